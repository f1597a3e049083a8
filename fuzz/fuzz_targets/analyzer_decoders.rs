//! Every decoder and normal form of the comparison.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::analyzer::fuzz::fuzz_decoder(data));
