//! Questions to the effect log, as the control API takes them.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::effect::fuzz::fuzz_query(data));
