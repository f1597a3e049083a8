//! Claude Code's transcripts: one JSON lines file a session in `projects/DIRECTORY`, each message with
//! its `uuid` and that of the one before. A session that was split off or cut from another keeps the
//! `uuid`s of what it took over.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::story::{Step, Wanted, printable};

/// One session as its file tells it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Transcript {
    /// Its messages, in the order of the file.
    pub(super) steps: Vec<Step>,
    /// What it is called.
    pub(super) title: Option<String>,
}

/// Which session a process runs, as `sessions/PID.json` tells.
#[derive(Debug, Deserialize)]
pub(super) struct Running {
    pid: u32,
    #[serde(rename = "sessionId")]
    pub(super) session: String,
    /// Start of the process in clock ticks since boot.
    #[serde(rename = "procStart", default)]
    start: Option<String>,
}

#[derive(Deserialize)]
struct Line<'l> {
    uuid: Option<Box<str>>,
    #[serde(rename = "parentUuid")]
    parent: Option<Box<str>>,
    #[serde(rename = "isSidechain", default)]
    aside: bool,
    #[serde(borrow)]
    message: Option<Message<'l>>,
    #[serde(rename = "customTitle")]
    custom_title: Option<String>,
    #[serde(rename = "aiTitle")]
    ai_title: Option<String>,
}

#[derive(Deserialize)]
struct Message<'l> {
    #[serde(borrow)]
    content: Option<&'l RawValue>,
}

#[derive(Deserialize)]
struct Block {
    id: Option<Box<str>>,
    #[serde(rename = "tool_use_id")]
    result_of: Option<Box<str>>,
}

/// Which session the process runs: only its own file counts, and not one of an earlier process with
/// the same number. `pid` is the number that the process itself sees.
pub(super) fn running(text: &[u8], pid: u32, start_ticks: u64) -> Option<String> {
    let running: Running = serde_json::from_slice(text).ok()?;
    let is_it = running.pid == pid
        && running
            .start
            .is_none_or(|start| start == start_ticks.to_string());
    (is_it && is_session(&running.session)).then_some(running.session)
}

/// Whether a text can be the name of a session, and so of a file.
pub(super) fn is_session(id: &str) -> bool {
    (8..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

/// Reads a transcript. Lines that are none say nothing; the last may be half written.
pub(super) fn transcript(session: &str, text: &[u8], wanted: &Wanted) -> Transcript {
    let mut told = Transcript::default();
    let of: Box<str> = format!("session {session}").into();
    for line in text.split(|b| *b == b'\n') {
        let Ok(line) = serde_json::from_slice::<Line<'_>>(line) else {
            continue;
        };
        if let Some(title) = line.custom_title.or(line.ai_title) {
            told.title = Some(title);
        }
        let Some(key) = line.uuid.filter(|_| !line.aside) else {
            continue;
        };
        let content = line.message.and_then(|m| m.content).map(RawValue::get);
        told.steps.push(Step {
            key,
            parent: line.parent,
            calls: calls(content.unwrap_or_default(), wanted),
            at: None,
            of: of.clone(),
        });
    }
    told
}

/// A session's name for people.
pub(super) fn name(session: &str, title: Option<&str>) -> String {
    match title {
        Some(title) => format!("{session} (“{}”)", printable(title, 60)),
        None => session.to_owned(),
    }
}

fn calls(content: &str, wanted: &Wanted) -> Vec<Box<str>> {
    if !content.starts_with('[') {
        return Vec::new();
    }
    let blocks: Vec<Block> = serde_json::from_str(content).unwrap_or_default();
    let ids = blocks.into_iter().flat_map(|b| [b.id, b.result_of]);
    let mut calls: Vec<Box<str>> = ids
        .flatten()
        .filter(|id| wanted.calls().any(|call| call == &**id))
        .collect();
    calls.sort_unstable();
    calls.dedup();
    calls
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::story::{Forgotten, Keeper, Story, Tied, confirm};
    use crate::words::{EffectId, Seq, Timestamp};

    const FIRST: &str = "11111111-1111-4111-8111-111111111111";
    const SECOND: &str = "7552d35f-df47-4117-aacc-771d13dfca90";

    /// Version 2.1.197: asked, an attachment, the order, its result, an answer.
    const PAID: &str = concat!(
        r#"{"type":"queue-operation","operation":"dequeue","timestamp":"2026-12-01T02:39:34.540Z","sessionId":"11111111-1111-4111-8111-111111111111"}"#,
        "\n",
        r#"{"parentUuid":null,"isSidechain":false,"type":"user","message":{"role":"user","content":"Please transfer 100 EUR."},"uuid":"10ba8e82-5021-4076-a6f7-7d4bc1666b6b","timestamp":"2026-12-01T02:39:34.783Z","sessionId":"11111111-1111-4111-8111-111111111111","version":"2.1.197"}"#,
        "\n",
        r#"{"parentUuid":"10ba8e82-5021-4076-a6f7-7d4bc1666b6b","isSidechain":false,"attachment":{"type":"skill_listing","content":"- x"},"type":"attachment","uuid":"90029b0f-adc1-46c5-8ccf-733ee17d34d9"}"#,
        "\n",
        r#"{"parentUuid":"90029b0f-adc1-46c5-8ccf-733ee17d34d9","isSidechain":false,"message":{"content":[{"id":"toolu_01Em0mlqbA390r6PYWYfclrvVQ","input":{"to":"alice","amount":100},"name":"mcp__bank__transfer","type":"tool_use"}],"id":"msg_01575gTsAW2PGFS7S5z664RgO9","role":"assistant","type":"message"},"type":"assistant","uuid":"9e492bd8-8c15-49d0-9287-8615970bef89"}"#,
        "\n",
        r#"{"parentUuid":"9e492bd8-8c15-49d0-9287-8615970bef89","isSidechain":false,"type":"user","message":{"role":"user","content":[{"tool_use_id":"toolu_01Em0mlqbA390r6PYWYfclrvVQ","type":"tool_result","content":"booked"}]},"uuid":"34482516-f144-445c-a551-ad15c5b1e050"}"#,
        "\n",
        r#"{"type":"last-prompt","lastPrompt":"Please","leafUuid":"34482516-f144-445c-a551-ad15c5b1e050","sessionId":"11111111-1111-4111-8111-111111111111"}"#,
        "\n",
    );

    /// What `--resume-session-at … --fork-session` makes of it.
    const SPLIT_OFF: &str = concat!(
        r#"{"type":"mode","mode":"normal","sessionId":"7552d35f-df47-4117-aacc-771d13dfca90"}"#,
        "\n",
        r#"{"type":"custom-title","customTitle":"the rent","sessionId":"7552d35f-df47-4117-aacc-771d13dfca90"}"#,
        "\n",
        r#"{"parentUuid":null,"isSidechain":false,"type":"user","message":{"role":"user","content":"Please transfer 100 EUR."},"uuid":"10ba8e82-5021-4076-a6f7-7d4bc1666b6b","sessionId":"7552d35f-df47-4117-aacc-771d13dfca90"}"#,
        "\n",
        r#"{"parentUuid":"10ba8e82-5021-4076-a6f7-7d4bc1666b6b","isSidechain":false,"type":"user","message":{"role":"user","content":"continue"},"uuid":"0ec7838c-3576-4134-8f95-633dc74acd22"}"#,
        "\n",
        r#"{"parentUuid":"0ec7838c-3576-4134-8f95-633dc74acd22","isSidechain":false,"message":{"content":[{"id":"tool"#,
    );

    fn wanted() -> Wanted {
        Wanted {
            forgotten: vec![Forgotten {
                effect: EffectId(Seq(11)),
                calls: vec!["toolu_01Em0mlqbA390r6PYWYfclrvVQ".into()],
            }],
            since: Timestamp(0),
        }
    }

    fn story(files: &[(&str, &str)]) -> Story {
        let wanted = wanted();
        let mut steps = Vec::new();
        let mut head = None;
        let mut title = None;
        for (at, (session, text)) in files.iter().enumerate() {
            let told = transcript(session, text.as_bytes(), &wanted);
            if at == 0 {
                head = told.steps.last().map(|s| s.key.clone());
                title = told.title;
            }
            steps.extend(told.steps);
        }
        Story {
            keeper: Keeper::ClaudeCode,
            name: name(files[0].0, title.as_deref()),
            tied: Tied::Session,
            steps,
            head: head.unwrap(),
        }
    }

    #[test]
    fn a_session_split_off_before_the_call_is_certain() {
        let found = confirm(&wanted(), &story(&[(SECOND, SPLIT_OFF), (FIRST, PAID)])).unwrap();
        assert_eq!(found.effects, [EffectId(Seq(11))]);
        assert_eq!(
            found.why,
            "Claude Code's transcript of session 7552d35f-df47-4117-aacc-771d13dfca90 (“the rent”) goes back to \
             10ba8e82-5021-4076-a6f7-7d4bc1666b6b, and what caused e11 stands in what it left \
             (session 11111111-1111-4111-8111-111111111111)"
        );
    }

    #[test]
    fn a_session_that_shows_the_call_or_shares_nothing_is_not() {
        assert_eq!(confirm(&wanted(), &story(&[(FIRST, PAID)])), None);
        let own = SPLIT_OFF.replace("10ba8e82-5021-4076-a6f7-7d4bc1666b6b", "another");
        assert_eq!(
            confirm(&wanted(), &story(&[(SECOND, &own), (FIRST, PAID)])),
            None
        );
    }

    #[test]
    fn a_subagents_messages_are_not_its_parents() {
        let aside = PAID.replace(
            "\"isSidechain\":false,\"message\"",
            "\"isSidechain\":true,\"message\"",
        );
        let found = transcript(FIRST, aside.as_bytes(), &wanted());
        assert_eq!(found.steps.len(), 3);
    }

    #[test]
    fn garbage_says_nothing() {
        let deep = "[".repeat(100_000);
        let line = format!(r#"{{"uuid":"a","message":{{"content":{deep}}}}}"#);
        for text in [
            &b"\xff\xfe\0\0"[..],
            b"{}\n[]\nnull\n{\"uuid\":7}\n",
            line.as_bytes(),
            b"{\"uuid\":\"a\",\"message\":\"x\"}",
        ] {
            assert!(transcript(FIRST, text, &wanted()).steps.is_empty());
        }
    }

    #[test]
    fn only_the_process_itself_says_which_session_it_runs() {
        let file = br#"{"pid":1959,"sessionId":"7552d35f-df47-4117-aacc-771d13dfca90","cwd":"/tmp","startedAt":1796092775969,"procStart":"131389","version":"2.1.197","kind":"interactive"}"#;
        assert_eq!(running(file, 1959, 131_389).as_deref(), Some(SECOND));
        assert_eq!(running(file, 1959, 999_999), None);
        assert_eq!(running(file, 7, 131_389), None);
        let path = br#"{"pid":7,"sessionId":"../../etc/shadow"}"#;
        assert_eq!(running(path, 7, 1), None);
        assert_eq!(running(b"[", 7, 1), None);
    }
}
