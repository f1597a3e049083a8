//! JSON-RPC as MCP sends it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| acrfence_user::boundary::fuzz::fuzz_jsonrpc(data));
