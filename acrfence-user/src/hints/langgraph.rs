//! LangGraph's checkpoints, as its savers for SQLite keep them: table `checkpoints`, each row with the
//! id of the checkpoint before it. An older one that is invoked again gets a second child.

use memchr::memmem;

use super::story::{Keeper, Step, Story, Tied, Wanted, printable};
use crate::words::Timestamp;

/// One row of `checkpoints`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'r> {
    /// `checkpoint_ns`: which graph within the thread's.
    pub(super) graph: &'r str,
    /// `checkpoint_id`.
    pub(super) id: &'r str,
    /// `parent_checkpoint_id`.
    pub(super) parent: Option<&'r str>,
    /// `checkpoint`: its state, with the messages, in msgpack or JSON.
    pub(super) state: &'r [u8],
}

/// A row as a step. The ids of calls are looked for as they stand, whatever is around them: they are
/// too random to stand there by chance.
pub(super) fn step(row: &Row<'_>, wanted: &Wanted) -> Step {
    let knows = |call: &&str| memmem::find(row.state, call.as_bytes()).is_some();
    Step {
        key: key(row.graph, row.id),
        parent: row.parent.map(|parent| key(row.graph, parent)),
        calls: wanted.calls().filter(knows).map(Into::into).collect(),
        at: made(row.id),
        of: "".into(),
    }
}

/// What a thread's steps tell; `newest` is the one that was written last.
pub(super) fn story(thread: &str, newest: Option<(&str, &str)>, steps: Vec<Step>) -> Option<Story> {
    let (graph, id) = newest?;
    Some(Story {
        keeper: Keeper::LangGraph,
        name: format!("“{}”", printable(thread, 60)),
        tied: Tied::Newest,
        steps,
        head: key(graph, id),
    })
}

fn key(graph: &str, id: &str) -> Box<str> {
    match graph {
        "" => id.into(),
        graph => format!("{id} of {graph}").into(),
    }
}

/// When a checkpoint was made: its id is a UUID of version 6, which begins with the time.
fn made(id: &str) -> Option<Timestamp> {
    /// From the beginning of the Gregorian calendar to 1970, in 100 ns.
    const TO_1970: u64 = 0x01b2_1dd2_1381_4000;
    let mut parts = id.split('-');
    let mut part = |digits: usize| {
        let part = parts.next().filter(|p| p.len() == digits)?;
        let is_hex = part.bytes().all(|b| b.is_ascii_hexdigit());
        is_hex.then(|| u64::from_str_radix(part, 16).ok())?
    };
    let (high, mid, low) = (part(8)?, part(4)?, part(4)?);
    if low >> 12 != 6 {
        return None;
    }
    let ticks = high << 28 | mid << 12 | low & 0xfff;
    ticks.checked_sub(TO_1970)?.checked_mul(100).map(Timestamp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::story::{Forgotten, confirm};
    use crate::words::{EffectId, Seq};

    /// Made by LangGraph 1.2.24 with checkpoint-sqlite 3.1.2; the third knows of the call.
    const ROWS: [(&str, Option<&str>, &[u8]); 5] = [
        ("1f1ed2ff-15f4-6d4a-bfff-5435e17bd3ca", None, b"\xa3pay"),
        (
            "1f1ed2ff-15fb-608a-8000-62363a90bdb9",
            Some("1f1ed2ff-15f4-6d4a-bfff-5435e17bd3ca"),
            b"\xa3pay",
        ),
        (
            "1f1ed2ff-1601-63d4-8001-a132bbfdd1fc",
            Some("1f1ed2ff-15fb-608a-8000-62363a90bdb9"),
            b"\xaatool_calls\x91\x84\xa4name\xa8transfer\xa2id\xd9%call_6eee4c458b204036b9894f6f67ee46ac\xa4type",
        ),
        (
            "1f1ed2ff-1606-6410-8002-5c136f008285",
            Some("1f1ed2ff-1601-63d4-8001-a132bbfdd1fc"),
            b"\xactool_call_id\xd9%call_6eee4c458b204036b9894f6f67ee46ac\xa8artifact",
        ),
        // `invoke(None, old.config)`: a checkpoint of the source "fork".
        (
            "1f1ed2ff-28db-671b-8001-829ed25abea5",
            Some("1f1ed2ff-15fb-608a-8000-62363a90bdb9"),
            b"\xa3pay",
        ),
    ];

    fn wanted(since: Timestamp) -> Wanted {
        Wanted {
            forgotten: vec![Forgotten {
                effect: EffectId(Seq(9)),
                calls: vec!["call_6eee4c458b204036b9894f6f67ee46ac".into()],
            }],
            since,
        }
    }

    fn told(rows: usize, since: Timestamp) -> Option<String> {
        let wanted = wanted(since);
        let steps = ROWS[..rows].iter().map(|(id, parent, state)| {
            let (graph, parent) = ("", *parent);
            let row = Row {
                graph,
                id,
                parent,
                state,
            };
            step(&row, &wanted)
        });
        let story = story("1", Some(("", ROWS[rows - 1].0)), steps.collect())?;
        confirm(&wanted, &story).map(|found| found.why)
    }

    #[test]
    fn time_travel_to_before_the_call_is_certain() {
        let paid = made(ROWS[3].0).unwrap();
        assert_eq!(
            told(5, paid).as_deref(),
            Some(
                "LangGraph's checkpoints of thread “1” goes back to 1f1ed2ff-15fb-608a-8000-62363a90bdb9, and what \
                 caused e9 stands in what it left"
            )
        );
        // Not yet written, or from before the conversation was last heard of.
        assert_eq!(told(4, paid), None);
        assert_eq!(told(5, made(ROWS[4].0).unwrap()), None);
    }

    #[test]
    fn the_time_is_in_the_id() {
        let at = made("1f1ed2ff-15f4-6d4a-bfff-5435e17bd3ca").unwrap();
        assert_eq!(at.to_string(), "2026-12-01T02:35:59.399Z");
        for none in [
            "",
            "1",
            "----",
            "1f1ed2ff-15f4-4d4a-bfff-5435e17bd3ca",
            "00000000-0000-6000-8000-000000000000",
            "1f1ed2ffff-15f4-6d4a",
            "+f1ed2ff-15f4-6d4a-bfff-5435e17bd3ca",
        ] {
            assert_eq!(made(none), None, "{none}");
        }
    }

    #[test]
    fn a_graph_within_a_thread_has_steps_of_its_own() {
        let row = Row {
            graph: "agent:1",
            id: "b",
            parent: Some("a"),
            state: b"",
        };
        let step = step(&row, &wanted(Timestamp(0)));
        assert_eq!(&*step.key, "b of agent:1");
        assert_eq!(step.parent.as_deref(), Some("a of agent:1"));
    }
}
