//! Entry point for fuzzers: a hostile configuration. It may not panic, and what was read must survive
//! being written.

use super::Config;

/// Reads the bytes as a configuration file.
pub fn fuzz_policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(config) = Config::parse(text) else {
        return;
    };
    let _ = config.commands();
    let _ = config.passes_through("example.com");
    let written = toml::to_string(&config);
    let again = written.ok().and_then(|text| Config::parse(&text).ok());
    assert_eq!(again, Some(config), "a configuration reads back");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn policies(lines in proptest::collection::vec(proptest::sample::select(vec![
            "[fence]", "mode = \"observe\"", "hold_timeout = \"20s\"", "[[rule]]",
            "match = { host = \"*\" }", "as = \"effect\"", "as = \"trust_hints\"", "[boundary]",
            "record_bound = \"1MiB\"", "pass_through = [\"*.x\"]", "[[gate.command]]",
            "program = [\"git\"]", "gate = false", "[after_restore]", "opaque = \"deny\"",
            "[[after_restore.class]]", "port = [25]", "kind = [\"mail\"]", "x = 1", "=", "\u{0}",
        ]), 0..12)) {
            super::fuzz_policy(lines.join("\n").as_bytes());
        }
    }
}
