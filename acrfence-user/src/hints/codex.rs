//! Codex's rollouts: one JSON lines file a session in `sessions/YEAR/MONTH/DAY`. A session that was
//! split off names what it goes on from (`history_base`); older versions copied it, ids and all.

use serde::Deserialize;

use super::story::{Step, Wanted};

/// One session as its file tells it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Rollout {
    /// Its id.
    pub(super) id: Box<str>,
    /// The session it goes on from, and the number behind the last item of that.
    pub(super) base: Option<(Box<str>, u64)>,
    items: Vec<Item>,
}

#[derive(Clone, Debug, PartialEq)]
struct Item {
    ordinal: u64,
    key: Box<str>,
    calls: Vec<Box<str>>,
}

#[derive(Deserialize)]
struct Line {
    #[serde(rename = "type")]
    kind: Box<str>,
    ordinal: Option<u64>,
    payload: Payload,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Payload {
    id: Option<Box<str>>,
    call_id: Option<Box<str>>,
    forked_from_id: Option<Box<str>>,
    forked_from_ordinal_exclusive: Option<u64>,
    history_base: Option<Base>,
}

#[derive(Deserialize)]
struct Base {
    thread_id: Box<str>,
    end_ordinal_exclusive: u64,
}

/// Reads a rollout. Lines that are none say nothing; the last may be half written.
pub(super) fn rollout(text: &[u8], wanted: &Wanted) -> Rollout {
    let mut told = Rollout::default();
    for (number, line) in text.split(|b| *b == b'\n').enumerate() {
        let Ok(line) = serde_json::from_slice::<Line>(line) else {
            continue;
        };
        let payload = line.payload;
        match &*line.kind {
            // The first is the file's own; a copied history brings those of others.
            "session_meta" if told.id.is_empty() => {
                told.base = match payload.history_base {
                    Some(base) => Some((base.thread_id, base.end_ordinal_exclusive)),
                    None => payload
                        .forked_from_id
                        .zip(payload.forked_from_ordinal_exclusive),
                };
                told.id = payload.id.unwrap_or_default();
            }
            "response_item" => {
                let ordinal = line.ordinal.unwrap_or(number as u64);
                let named = [&payload.id, &payload.call_id].into_iter().flatten();
                let calls: Vec<Box<str>> = named
                    .filter(|id| wanted.calls().any(|call| call == id.as_ref()))
                    .cloned()
                    .collect();
                told.items.push(Item {
                    ordinal,
                    calls,
                    key: payload
                        .id
                        .unwrap_or_else(|| format!("{}#{ordinal}", told.id).into()),
                });
            }
            _ => {}
        }
    }
    told
}

/// Steps of several rollouts, those of the first first, and where the first stands.
pub(super) fn steps(rollouts: &[Rollout]) -> (Vec<Step>, Option<Box<str>>) {
    let mut steps = Vec::new();
    for told in rollouts {
        let of: Box<str> = format!("session {}", told.id).into();
        let mut parent = base_of(told, rollouts);
        for item in &told.items {
            steps.push(Step {
                key: item.key.clone(),
                parent: parent.replace(item.key.clone()),
                calls: item.calls.clone(),
                at: None,
                of: of.clone(),
            });
        }
    }
    let head = rollouts.first().and_then(|first| {
        let own = first.items.last().map(|item| item.key.clone());
        own.or_else(|| base_of(first, rollouts))
    });
    (steps, head)
}

/// The last item that a rollout took over from the one it was split off from.
fn base_of(told: &Rollout, rollouts: &[Rollout]) -> Option<Box<str>> {
    let (id, end) = told.base.as_ref()?;
    let base = rollouts.iter().find(|r| r.id == *id && r.id != told.id)?;
    let mut taken = base.items.iter().rev().filter(|item| item.ordinal < *end);
    taken.next().map(|item| item.key.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::story::{Forgotten, Keeper, Story, Tied, confirm};
    use crate::words::{EffectId, Seq, Timestamp};

    /// Version 0.171.0.
    const PAID: &str = concat!(
        r#"{"timestamp":"2026-12-01T02:43:17.716Z","ordinal":0,"type":"session_meta","payload":{"session_id":"01a22f7c-3050","id":"01a22f7c-3050","cli_version":"0.171.0","history_mode":"paginated"}}"#,
        "\n",
        r#"{"ordinal":7,"type":"response_item","payload":{"type":"message","id":"msg_01a22f7c-30bd","role":"user","content":[{"type":"input_text","text":"pay"}]}}"#,
        "\n",
        r#"{"ordinal":9,"type":"response_item","payload":{"type":"function_call","id":"fc_YoGIrW9z03QmSjQLaX3xJYKd","name":"transfer","arguments":"{}","call_id":"call_1mqEyk8Dgw03leh5a591yVPa"}}"#,
        "\n",
        r#"{"ordinal":11,"type":"response_item","payload":{"type":"function_call_output","id":"fco_01a22f79-00ff","call_id":"call_1mqEyk8Dgw03leh5a591yVPa","output":"booked"}}"#,
        "\n",
    );

    fn split_off(end: u64) -> String {
        format!(
            "{}\n{}\n",
            format_args!(
                r#"{{"ordinal":10,"type":"session_meta","payload":{{"id":"01a22f7c-3248","forked_from_id":"01a22f7c-3050","forked_from_ordinal_exclusive":{end},"history_base":{{"thread_id":"01a22f7c-3050","end_ordinal_exclusive":{end},"end_byte_offset":32457}}}}}}"#
            ),
            r#"{"ordinal":15,"type":"response_item","payload":{"type":"message","id":"msg_01a22f7c-32b7","role":"user","content":[]}}"#
        )
    }

    fn confirmed(texts: &[&str]) -> Option<String> {
        let wanted = Wanted {
            forgotten: vec![Forgotten {
                effect: EffectId(Seq(11)),
                calls: vec!["call_1mqEyk8Dgw03leh5a591yVPa".into()],
            }],
            since: Timestamp(0),
        };
        let rollouts: Vec<Rollout> = texts
            .iter()
            .map(|text| rollout(text.as_bytes(), &wanted))
            .collect();
        let (steps, head) = steps(&rollouts);
        let story = Story {
            keeper: Keeper::Codex,
            name: rollouts[0].id.to_string(),
            tied: Tied::Session,
            steps,
            head: head?,
        };
        confirm(&wanted, &story).map(|found| found.why)
    }

    #[test]
    fn a_session_split_off_before_the_call_is_certain() {
        let before = split_off(8);
        assert_eq!(
            confirmed(&[&before, PAID]).as_deref(),
            Some(
                "Codex's rollout of session 01a22f7c-3248 goes back to msg_01a22f7c-30bd, and what caused e11 \
                 stands in what it left"
            )
        );
        let after = split_off(12);
        assert_eq!(confirmed(&[&after, PAID]), None);
        assert_eq!(confirmed(&[&before]), None);
    }

    #[test]
    fn a_copied_history_is_the_same_history() {
        let lines: Vec<&str> = PAID.lines().collect();
        let copied = format!(
            "{}\n{}\n{}\n{}\n",
            r#"{"type":"session_meta","payload":{"id":"01a22f7c-9999","forked_from_id":"01a22f7c-3050"}}"#,
            lines[0],
            lines[1],
            r#"{"type":"response_item","payload":{"type":"message","role":"user","content":[]}}"#
        );
        assert!(confirmed(&[&copied, PAID]).is_some());
    }

    #[test]
    fn garbage_and_circles_say_nothing() {
        let circle = split_off(99).replace("01a22f7c-3050", "01a22f7c-3248");
        assert_eq!(confirmed(&[&circle, PAID]), None);
        assert_eq!(confirmed(&["\0\u{1}", "[]\nnull\n{\"type\":3}"]), None);
    }
}
