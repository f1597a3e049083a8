//! Requests to models, and answers, in every format.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    acrfence_user::lineage::conversation::fuzz::fuzz_conversation(data)
});
