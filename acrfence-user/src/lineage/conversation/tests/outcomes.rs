//! Whether a shown text is the recorded outcome, through every wrapping.

use serde_json::json;

use crate::lineage::conversation::{Shown, shows_outcome};
use crate::words::{Body, ExecResponse, HttpResponse, McpResponse, Response};

fn mcp(text: &str) -> Response {
    let answer = json!({"content": [{"type": "text", "text": text}], "isError": false});
    Response::Mcp(McpResponse {
        is_result: true,
        answer: answer.to_string(),
        is_error: false,
    })
}

fn http(body: &str) -> Response {
    Response::Http(HttpResponse {
        status: 200,
        headers: Vec::new(),
        body: Body::whole(body.to_owned()),
        trailers: Vec::new(),
    })
}

fn exec(stdout: &str, stderr: &str) -> Response {
    Response::Exec(ExecResponse {
        exit: 0,
        stdout: Body::whole(stdout.to_owned()),
        stderr: Body::whole(stderr.to_owned()),
    })
}

const PAID: &str =
    "{\n  \"status\": \"paid\",\n  \"reference\": \"pay-417cf967\",\n  \"amount\": 100\n}";

#[test]
fn the_true_outcome_in_every_wrapping() {
    let wrapped = json!({"output": PAID, "metadata": {"exit_code": 0, "duration_seconds": 0.1}});
    for shown in [
        PAID.to_owned(),
        format!("  {PAID}\n\n"),
        r#"{"status":"paid","reference":"pay-417cf967","amount":100}"#.to_owned(),
        // Keys in another order, numbers as doubles.
        r#"{"amount":100.0,"reference":"pay-417cf967","status":"paid"}"#.to_owned(),
        format!("Wall time: 0.0033 seconds\nOutput:\n{PAID}"),
        format!("Exit code: 0\nWall time: 0.2 seconds\nOutput:\n{PAID}"),
        wrapped.to_string(),
        json!({"result": PAID}).to_string(),
        json!([{"type": "text", "text": PAID}]).to_string(),
        json!(PAID).to_string(),
        json!({"content": [{"type": "text", "text": wrapped.to_string()}]}).to_string(),
        // As a list for people.
        "status: paid\nreference: pay-417cf967\namount: 100".to_owned(),
        format!("Tool `pay` returned:\n```json\n{PAID}\n```\n"),
        format!("{PAID}\n<system-reminder>be kind</system-reminder>"),
    ] {
        assert_eq!(shows_outcome(&mcp(PAID), &shown), Shown::True, "{shown}");
        assert_eq!(shows_outcome(&http(PAID), &shown), Shown::True, "{shown}");
        assert_eq!(
            shows_outcome(&exec(PAID, ""), &shown),
            Shown::True,
            "{shown}"
        );
    }
}

#[test]
fn structured_content_alone_is_enough() {
    let answer = json!({
        "content": [{"type": "text", "text": "Payment of 100 to alice went through, number 17"}],
        "structuredContent": {"number": 17, "to": "alice"},
    });
    let recorded = Response::Mcp(McpResponse {
        is_result: true,
        answer: answer.to_string(),
        is_error: false,
    });
    assert_eq!(
        shows_outcome(&recorded, r#"{"to":"alice","number":17}"#),
        Shown::True
    );
    assert_eq!(
        shows_outcome(&recorded, "Payment of 100 to alice went through, number 17"),
        Shown::True
    );
    assert_eq!(
        shows_outcome(&recorded, r#"{"to":"alice","number":18}"#),
        Shown::Different
    );
}

#[test]
fn a_long_outcome_cut_short() {
    let long: String = (0..400).fold(String::new(), |mut text, n| {
        text.push_str(&format!("line {n} says something about item-{}\n", n * 7));
        text
    });
    let words = |from: usize, to: usize| {
        let lines: Vec<&str> = long.lines().collect();
        lines[from..to].join("\n")
    };
    for shown in [
        words(0, 120),
        format!("{}\n[... truncated 280 lines ...]", words(0, 120)),
        format!(
            "{}\n\n… 9000 tokens truncated …\n\n{}",
            words(0, 30),
            words(380, 400)
        ),
        format!(
            "Wall time: 1.2 seconds\nOutput:\n{}\n[output omitted]",
            words(0, 200)
        ),
        format!("{}\nline 120 says so", words(0, 120)),
    ] {
        let head: String = shown.chars().take(60).collect();
        assert_eq!(
            shows_outcome(&exec(&long, ""), &shown),
            Shown::True,
            "{head}"
        );
    }
    // The same beginning, then another text.
    let other = format!(
        "{}\n{}",
        words(0, 3),
        "but then the disk was full and all was lost".repeat(20)
    );
    assert_eq!(shows_outcome(&exec(&long, ""), &other), Shown::Different);
}

#[test]
fn broken_off() {
    for shown in [
        "aborted",
        "aborted by user after 2.3s",
        "[Request interrupted by user for tool use]",
        "[Request interrupted by user]",
        "Tool result missing due to internal error",
        "Error: The operation timed out.",
        "Request timed out",
        "MCP error -32001: Request timed out",
        "CancelledError()",
        "The user doesn't want to proceed with this tool use. The tool use was rejected.",
        "An error occurred while running the tool. Please try again. Error: ConnectError",
        "Command was killed (signal 9)",
        r#"{"error": "connection reset by peer"}"#,
        "Wall time: 20.0 seconds\nOutput:\naborted",
    ] {
        assert_eq!(shows_outcome(&mcp(PAID), shown), Shown::Aborted, "{shown}");
        // A record without words, too.
        assert_eq!(
            shows_outcome(&exec("", ""), shown),
            Shown::Aborted,
            "{shown}"
        );
    }
}

#[test]
fn nothing_and_something_else() {
    for shown in ["", "  \n ", "{}", "[]", "\"\""] {
        assert_eq!(
            shows_outcome(&mcp(PAID), shown),
            Shown::Missing,
            "{shown:?}"
        );
    }
    for shown in [
        r#"{"status":"paid","reference":"pay-someone-elses","amount":100}"#,
        r#"{"status":"paid","reference":"pay-417cf967","amount":1000}"#,
        r#"{"status":"refused","reference":"pay-417cf967","amount":100}"#,
        "I do not know what became of it.",
        "[Old tool result content cleared]",
        "paid",
        "100",
    ] {
        assert_eq!(
            shows_outcome(&mcp(PAID), shown),
            Shown::Different,
            "{shown}"
        );
    }
}

#[test]
fn a_record_without_words_is_shown_by_anything() {
    for shown in ["", "(no output)", "Tool ran without output or errors", "OK"] {
        for recorded in [exec("", ""), http(""), mcp("")] {
            assert_eq!(shows_outcome(&recorded, shown), Shown::True, "{shown}");
        }
    }
    let picture = json!({"content": [{"type": "image", "data": "AAAA", "mimeType": "image/png"}]});
    let picture = Response::Mcp(McpResponse {
        is_result: true,
        answer: picture.to_string(),
        is_error: false,
    });
    assert_eq!(shows_outcome(&picture, "[image]"), Shown::True);
}

#[test]
fn an_outcome_that_itself_speaks_of_an_end_is_no_abort() {
    let text = "The subscription was cancelled as you asked.";
    assert_eq!(shows_outcome(&mcp(text), text), Shown::True);
    let text = "order 17 aborted";
    assert_eq!(shows_outcome(&http(text), text), Shown::True);
}

#[test]
fn standard_error_counts_where_there_is_nothing_else() {
    let pushed = exec("", "To origin\n   1a2b3c..4d5e6f  main -> main\n");
    assert_eq!(
        shows_outcome(&pushed, "To origin\n   1a2b3c..4d5e6f  main -> main"),
        Shown::True
    );
    let both = exec("hello out", "hello err");
    for shown in ["hello out", "hello out\nhello err", "hello err\nhello out"] {
        assert_eq!(shows_outcome(&both, shown), Shown::True, "{shown}");
    }
}

#[test]
fn hostile_texts_end_quickly() {
    let nested = "[".repeat(100_000);
    let repeated = "a ".repeat(200_000);
    let braces = "{".repeat(300_000);
    let quotes = "\\\"".repeat(100_000);
    for text in [&nested, &repeated, &braces, &quotes] {
        for recorded in [mcp(text), http(text), exec(text, text)] {
            for shown in [&nested, &repeated, &braces, &quotes] {
                let _ = shows_outcome(&recorded, shown);
            }
        }
    }
    // JSON in strings in JSON, many times over.
    let mut deep = String::from("paid");
    for _ in 0..12 {
        deep = json!({"result": deep}).to_string();
    }
    let _ = shows_outcome(&mcp(&deep), &deep);
    let mut recorded = json!({"content": []});
    for _ in 0..60 {
        recorded = json!({"content": [recorded]});
    }
    let recorded = Response::Mcp(McpResponse {
        is_result: true,
        answer: recorded.to_string(),
        is_error: false,
    });
    let _ = shows_outcome(&recorded, "x");
}
