use super::*;
use crate::words::*;

fn origin() -> Origin {
    Origin {
        agent: "buyer".parse().unwrap(),
        incarnation: 1,
        process: ProcessIdentity {
            tgid: 1,
            start_ns: 1,
        },
        exe: String::new(),
        argv: vec![],
        cwd: String::new(),
        uid: 0,
        connection: None,
        gaps: String::new(),
    }
}

fn http(method: &str, url: &str) -> ToolCall {
    let request = HttpRequest {
        method: method.into(),
        url: url.into(),
        headers: vec![],
        body: Body::empty(),
        rpc: vec![],
    };
    ToolCall {
        at: Timestamp(0),
        request: Request::Http(request),
        origin: origin(),
    }
}

fn mcp(server: &str, tool: &str) -> ToolCall {
    let request = McpRequest {
        server: server.into(),
        name: tool.into(),
        arguments: "{}".into(),
        meta: None,
        extra: None,
        headers: vec![],
    };
    ToolCall {
        at: Timestamp(0),
        request: Request::Mcp(request),
        origin: origin(),
    }
}

fn kind(config: &Config, call: &ToolCall) -> Kind {
    config.classify(call, false, ToolHints::default()).kind
}

#[test]
fn everything_is_an_effect_unless_marked_otherwise() {
    let c = Config::default();
    assert_eq!(kind(&c, &http("POST", "https://x.example/")), Kind::Effect);
    assert_eq!(kind(&c, &http("BREW", "https://x.example/")), Kind::Effect);
    assert_eq!(kind(&c, &http("GET", "https://x.example/")), Kind::ReadOnly);
    assert_eq!(
        kind(&c, &http("get", "https://x.example/")),
        Kind::Effect,
        "methods are case sensitive"
    );
    assert_eq!(
        kind(&c, &mcp("https://x.example/mcp", "look")),
        Kind::Effect
    );
    assert_eq!(
        kind(&c, &http("POST", "https://api.anthropic.com/v1/messages")),
        Kind::Model
    );
    assert_eq!(
        kind(
            &c,
            &http("POST", "https://api.anthropic.com.evil.example/v1/messages")
        ),
        Kind::Effect
    );
}

#[test]
fn hints_count_only_where_policy_trusts_the_server() {
    let says_read_only = ToolHints { read_only: true };
    let call = mcp("https://x.example/mcp", "look");
    assert_eq!(
        Config::default()
            .classify(&call, false, says_read_only)
            .kind,
        Kind::Effect
    );
    let trusting = Config::parse(
        "[[rule]]\nmatch = { server = \"https://x.example/*\" }\nas = \"trust_hints\"",
    )
    .unwrap();
    assert_eq!(
        trusting.classify(&call, false, says_read_only).kind,
        Kind::ReadOnly
    );
    assert_eq!(
        trusting.classify(&call, false, ToolHints::default()).kind,
        Kind::Effect
    );
}

#[test]
fn the_first_matching_rule_wins() {
    let c = Config::parse(
        "[[rule]]\nmatch = { host = \"S.example\", path = \"/search*\", method = \"POST\" }\nas = \"read_only\"\n\
         [[rule]]\nmatch = { host = \"s.example\" }\nas = \"effect\"",
    )
    .unwrap();
    assert_eq!(
        kind(&c, &http("POST", "https://s.example/search/all?q=1")),
        Kind::ReadOnly
    );
    assert_eq!(
        kind(&c, &http("GET", "https://s.example/delete")),
        Kind::Effect
    );
}

#[test]
fn errors_have_a_line_and_say_what_to_do() {
    let unknown = Config::parse("[fence]\nunmatchd = \"block\"").unwrap_err();
    assert!(
        unknown.contains("line 2") && unknown.contains("unmatchd"),
        "{unknown}"
    );
    let duration = Config::parse("[fence]\nhold_timeout = \"20 parsecs\"").unwrap_err();
    assert!(duration.contains("`20s`"), "{duration}");
    let empty = Config::parse("[[rule]]\nmatch = {}\nas = \"read_only\"").unwrap_err();
    assert!(
        empty.contains("rule 1") && empty.contains("everything"),
        "{empty}"
    );
    assert!(empty.contains("line 1, column 1"), "{empty}");
    let command = Config::parse("[fence]\n\n[[gate.command]]\nprogram = [\"a/b\"]").unwrap_err();
    assert!(
        command.contains("line 3, column 1: gate.command 1"),
        "{command}"
    );
    let mixed = Config::parse("[[rule]]\nmatch = { path = \"/\", tool = \"x\" }\nas = \"effect\"")
        .unwrap_err();
    assert!(mixed.contains("one rule can match one"), "{mixed}");
}

#[test]
fn defaults_survive_writing_and_reading() {
    let written = toml::to_string(&Config::default()).unwrap();
    assert_eq!(Config::parse(&written).unwrap(), Config::default());
}

#[test]
fn globs() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("a*c", "abc", true),
        ("a*c", "ab", false),
        ("*.x", "a.b.x", true),
        ("", "a", false),
        ("a*b*c", "aXbYbZc", true),
        ("a", "A", false),
    ] {
        assert_eq!(
            rule::glob(pattern.as_bytes(), text.as_bytes()),
            expected,
            "{pattern} {text}"
        );
    }
    // Would take for ever if stars were tried one inside the other.
    assert!(!rule::glob(
        "*a".repeat(30).as_bytes(),
        "b".repeat(3000).as_bytes()
    ));
}
