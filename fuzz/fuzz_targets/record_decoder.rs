//! Everything that reads bytes of the effect log.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::effect::fuzz::fuzz_record(data));
