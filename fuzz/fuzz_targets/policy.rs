//! Configuration files.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::policy::fuzz::fuzz_policy(data));
