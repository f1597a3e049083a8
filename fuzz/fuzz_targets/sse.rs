//! Streams of server-sent events.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::boundary::fuzz::fuzz_sse(data));
