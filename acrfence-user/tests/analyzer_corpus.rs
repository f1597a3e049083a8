//! What the comparison must hold on the corpora, without a model.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on should fail at once"
)]

use std::time::Duration;

use acrfence_user::analyzer::credential::presented;
use acrfence_user::analyzer::judge::{conclude, examine_pair};
use acrfence_user::analyzer::pairs::{self, Pair, PairVerdict};
use acrfence_user::analyzer::report::Report;
use acrfence_user::analyzer::{Settled, explain};
use acrfence_user::words::{FieldClass, Likeness};

const DEV: &str = include_str!("../testdata/corpus/dev.jsonl");
const OTHER: &str = include_str!("../testdata/corpus/other-domains.jsonl");
const UNSEEN: [&str; 2] = [
    include_str!("../testdata/corpus/unseen-open.jsonl"),
    include_str!("../testdata/corpus/unseen-closed.jsonl"),
];
const PAPER: &str = include_str!("../testdata/corpus/paper-trials.json");

fn corpus(text: &str) -> Vec<Pair> {
    text.lines()
        .filter(|l| !l.trim().is_empty())
        .map(|l| pairs::read(l).unwrap())
        .collect()
}

fn verdict(pair: &Pair) -> PairVerdict {
    conclude(pair, &Settled::without_model(examine_pair(pair))).verdict
}

/// Pairs whose free text was worded anew: only a reader of prose can settle those.
fn is_reworded(pair: &Pair) -> bool {
    pair.tags.iter().any(|t| t == "rephrase-same-facts")
}

fn holds(name: &str, text: &str) {
    let pairs = corpus(text);
    let mut report = Report::new(name);
    let (mut plain, mut recognised, mut reworded_diverge) = (0, 0, Vec::new());
    for pair in &pairs {
        let judgement = conclude(pair, &Settled::without_model(examine_pair(pair)));
        report.add(pair, &judgement, Duration::ZERO);
        if pair.expected == Some(PairVerdict::Replay) {
            if is_reworded(pair) {
                if judgement.verdict == PairVerdict::Diverge {
                    reworded_diverge.push(pair.id.clone());
                }
            } else {
                plain += 1;
                recognised += usize::from(judgement.verdict == PairVerdict::Replay);
            }
        }
    }
    assert_eq!(report.unsafe_verdicts(), [] as [String; 0], "{report}");
    assert!(
        recognised * 100 >= plain * 97,
        "{recognised} of {plain}\n{report}"
    );
    assert_eq!(
        reworded_diverge,
        [] as [String; 0],
        "reworded prose is at worst held"
    );
    let credentials = report.total(PairVerdict::Credential);
    let right = report.cell(PairVerdict::Credential, PairVerdict::Credential);
    assert!(
        right * 100 >= credentials * 97,
        "{right} of {credentials}\n{report}"
    );
}

#[test]
fn the_development_corpus() {
    assert_eq!(corpus(DEV).len(), 150);
    holds("dev", DEV);
}

#[test]
fn the_corpus_of_other_domains() {
    assert!(corpus(OTHER).len() >= 250);
    holds("other domains", OTHER);
}

/// Written before anything was tuned on it. What is not recognised is held or stopped; nothing is
/// answered from the record that means something else.
#[test]
fn the_corpus_that_was_new() {
    let pairs: Vec<Pair> = UNSEEN.iter().flat_map(|text| corpus(text)).collect();
    assert_eq!(pairs.len(), 147);
    let mut report = Report::new("unseen");
    let mut reworded = 0;
    for pair in &pairs {
        let judgement = conclude(pair, &Settled::without_model(examine_pair(pair)));
        reworded += usize::from(is_reworded(pair));
        report.add(pair, &judgement, Duration::ZERO);
    }
    assert_eq!(report.unsafe_verdicts(), [] as [String; 0], "{report}");
    let plain = report.total(PairVerdict::Replay) - reworded;
    let right = report.cell(PairVerdict::Replay, PairVerdict::Replay);
    assert!(right * 100 >= plain * 90, "{right} of {plain}\n{report}");
    let stopped = report.cell(PairVerdict::Credential, PairVerdict::Diverge)
        + report.cell(PairVerdict::Credential, PairVerdict::Credential);
    assert_eq!(stopped, report.total(PairVerdict::Credential), "{report}");
}

#[test]
fn the_paper_s_keys_are_the_same_effect() {
    let trials: serde_json::Value = serde_json::from_str(PAPER).unwrap();
    let mut tried = 0;
    for trial in trials["trials"].as_array().unwrap() {
        let (Some(before), Some(after)) =
            (trial["key_before"].as_str(), trial["key_after"].as_str())
        else {
            continue;
        };
        let cloud = trial["scenario"].as_str().unwrap().contains("Cloud");
        let call = |key: &str, more: u32| {
            if cloud {
                serde_json::json!({"server": "cloud", "name": "create_server", "arguments": {"spec": {"size": "gpu-large", "count": 1 + more}, "client_token": key}})
            } else {
                serde_json::json!({"server": "bank", "name": "transfer", "arguments": {"to": "bob", "amount": 500 + more, "ref": key}})
            }
        };
        let pair = |more: u32| {
            let line = serde_json::json!({
                "id": "paper", "transport": "mcp",
                "recorded": {"at": "2031-01-01T00:00:00Z", "request": call(before, 0),
                    "response": {"content": [{"type": "text", "text": "{\"status\":\"ok\"}"}], "isError": false}},
                "restored": {"at": "2031-01-01T00:02:00Z", "request": call(after, more)},
            });
            pairs::read(&line.to_string()).unwrap()
        };
        assert_eq!(verdict(&pair(0)), PairVerdict::Replay, "{before} {after}");
        assert_eq!(
            verdict(&pair(1)),
            PairVerdict::Diverge,
            "another amount under {after}"
        );
        tried += 1;
    }
    assert_eq!(tried, 20);
}

#[test]
fn every_verdict_can_be_explained() {
    for pair in corpus(DEV).iter().chain(&corpus(OTHER)) {
        let comparison = examine_pair(pair).comparison;
        for field in &comparison.fields {
            assert!(!field.reason.is_empty(), "{}: {}", pair.id, field.path);
            assert!(
                field.path.len() < 300 && field.recorded.as_ref().is_none_or(|v| v.len() < 1000)
            );
        }
        let decided = comparison
            .fields
            .iter()
            .any(|f| f.class != FieldClass::Volatile);
        assert_eq!(
            decided,
            comparison.likeness != Likeness::Equivalent,
            "{}",
            pair.id
        );
        assert!(explain(&comparison).starts_with("The two calls"));
    }
}

#[test]
fn secrets_are_not_shown() {
    let mut looked = 0;
    for pair in corpus(DEV).iter().chain(&corpus(OTHER)) {
        let shown = format!("{:?}", examine_pair(pair).comparison);
        for secret in presented(&pair.recorded)
            .into_iter()
            .chain(presented(&pair.restored))
        {
            let login = secret.path == "headers.authorization" || secret.path.ends_with("token");
            // Words such as `Bearer demo` are too short to be told from the rest of a message.
            if login && secret.value.len() >= 16 && !secret.value.contains("demo") {
                looked += 1;
                let tail = &secret.value[secret.value.len() - 12..];
                assert!(
                    !shown.contains(tail),
                    "{}: {}: {shown}",
                    pair.id,
                    secret.path
                );
            }
        }
    }
    assert!(looked > 40, "{looked}");
}
