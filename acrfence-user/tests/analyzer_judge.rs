//! `acrfence judge`: lines in, verdicts out, in the form that scripts rely on.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should fail at once"
)]

use std::io::Write as _;

use acrfence_user::cli::judge::{JudgeArgs, run};
use clap::Parser;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: JudgeArgs,
    /// A global option of `acrfence`.
    #[arg(long)]
    json: bool,
}

const DEV: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/corpus/dev.jsonl");

async fn judge(arguments: &[&str]) -> (anyhow::Result<()>, String) {
    let cli = Cli::parse_from(std::iter::once("judge").chain(arguments.iter().copied()));
    let mut out = Vec::new();
    let args = JudgeArgs {
        json: cli.json,
        ..cli.args
    };
    let result = run(args, &mut out).await;
    (result, String::from_utf8(out).unwrap())
}

#[tokio::test]
async fn prints_one_object_a_line() {
    let (result, out) = judge(&["--pairs", DEV, "--json"]).await;
    result.unwrap();
    assert_eq!(out.lines().count(), 150);
    for line in out.lines() {
        let object: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut names: Vec<&str> = object
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        assert_eq!(names, ["fields", "id", "stage", "verdict"]);
        assert!(
            ["replay", "diverge", "credential", "hold"]
                .contains(&object["verdict"].as_str().unwrap())
        );
        assert_eq!(object["stage"], "compare");
        for field in object["fields"].as_array().unwrap() {
            let mut names: Vec<&str> = field
                .as_object()
                .unwrap()
                .keys()
                .map(String::as_str)
                .collect();
            names.sort_unstable();
            assert_eq!(names, ["class", "path", "reason"]);
            assert!(
                ["volatile", "intent", "prose", "unknown"]
                    .contains(&field["class"].as_str().unwrap())
            );
        }
    }
}

#[tokio::test]
async fn reports_matrix_tags_transports_and_baselines() {
    let (result, out) = judge(&["--pairs", DEV, "--report", "--baselines"]).await;
    result.unwrap();
    for wanted in [
        "expected      replay diverge  credential    hold",
        "-- by transport",
        "-- by tag",
        "same-key-changed-amount",
        "-- unsafe verdicts: 0",
        "== exact bytes",
        "== idempotency key only",
        "== all fields equal",
    ] {
        assert!(out.contains(wanted), "{wanted}\n{out}");
    }
    // Deciding by the key alone replays calls that only share it: the report must list them.
    let keyed = out.split("== idempotency key only").nth(1).unwrap();
    assert!(
        keyed.contains("tilepay-same-idempotency-key-changed-amount: diverge but replay"),
        "{keyed}"
    );
}

#[tokio::test]
async fn other_methods_stand_in_the_same_table() {
    let mut verdicts = tempfile::NamedTempFile::new().unwrap();
    let ids = std::fs::read_to_string(DEV).unwrap();
    // Replays everything but the first, of which it says nothing.
    for line in ids.lines().skip(1) {
        let pair: serde_json::Value = serde_json::from_str(line).unwrap();
        let verdict = serde_json::json!({"id": pair["id"], "verdict": "replay"});
        writeln!(verdicts, "{verdict}").unwrap();
    }
    let method = format!("always=yes={}", verdicts.path().display());
    // The name ends at the first `=`; a file of this name does not exist.
    assert!(
        Cli::try_parse_from(["judge", "--pairs", DEV, "--report", "--verdicts", &method]).is_err()
    );
    let method = format!("always yes={}", verdicts.path().display());
    let (result, out) = judge(&[
        "--pairs",
        DEV,
        "--report",
        "--baselines",
        "--verdicts",
        &method,
    ])
    .await;
    result.unwrap();
    let table: Vec<&str> = out
        .split("== in one table")
        .nth(1)
        .unwrap()
        .lines()
        .collect();
    assert_eq!(table.len(), 7, "{table:?}");
    let words: Vec<&str> = table[6].split_whitespace().collect();
    assert_eq!(
        words,
        [
            "74", "of", "75", "0", "of", "57", "0", "of", "18", "1", "75", "always", "yes"
        ]
    );
}

#[tokio::test]
async fn unreadable_lines_are_held_and_told() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    let good = std::fs::read_to_string(DEV).unwrap();
    let good = good.lines().next().unwrap();
    writeln!(
        file,
        "{good}\n\n{{\"id\":\"half\",\"transport\":\"http\"}}\nnot json\n{good}"
    )
    .unwrap();
    let path = file.path().to_str().unwrap();
    let (result, out) = judge(&["--pairs", path, "--json"]).await;
    let error = result.unwrap_err().to_string();
    assert!(error.contains("2 of 4 lines"), "{error}");
    let verdicts: Vec<(String, String)> = out
        .lines()
        .map(|l| serde_json::from_str::<serde_json::Value>(l).unwrap())
        .map(|v| {
            (
                v["id"].as_str().unwrap().to_owned(),
                v["verdict"].as_str().unwrap().to_owned(),
            )
        })
        .collect();
    assert_eq!(verdicts[1], ("half".into(), "hold".into()));
    assert_eq!(verdicts[2], ("line 4".into(), "hold".into()));
    assert_eq!(verdicts[0].1, "replay");
}

#[tokio::test]
async fn a_missing_file_is_a_clear_error() {
    let (result, out) = judge(&["--pairs", "/does/not/exist.jsonl"]).await;
    let error = format!("{:#}", result.unwrap_err());
    assert!(
        error.contains("/does/not/exist.jsonl") && error.contains("one JSON object a line"),
        "{error}"
    );
    assert!(out.is_empty());
    let (result, _) = judge(&[
        "--pairs",
        DEV,
        "--analyzer",
        "ollama",
        "--ollama-url",
        "nonsense",
    ])
    .await;
    assert!(
        result
            .unwrap_err()
            .to_string()
            .contains("http://127.0.0.1:11434")
    );
}
