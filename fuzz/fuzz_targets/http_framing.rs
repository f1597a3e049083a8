//! The agent's side of an HTTP/1 connection.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::boundary::fuzz::fuzz_http(data));
