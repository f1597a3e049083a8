//! What a store tells, and the one rule of what follows from it.

use std::collections::{HashMap, HashSet};

use crate::words::{EffectId, Timestamp};

/// Who keeps a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// Claude Code's transcripts of a project.
    ClaudeCode,
    /// Codex's rollouts.
    Codex,
    /// LangGraph's checkpoints in a SQLite file.
    LangGraph,
}

impl Keeper {
    /// In words.
    fn words(self) -> &'static str {
        match self {
            Self::ClaudeCode => "Claude Code's transcript of session",
            Self::Codex => "Codex's rollout of session",
            Self::LangGraph => "LangGraph's checkpoints of thread",
        }
    }
}

/// How a story is known to be the one of the request that is suspected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tied {
    /// Its session is the one that the request, or its process, names.
    Session,
    /// It is what was written last in a file that the request's process has open: then it must have
    /// turned back since its conversation was last heard of.
    Newest,
}

/// A conversation as its agent keeps it: a tree of steps, and where it stands in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Story {
    /// Who keeps it.
    pub keeper: Keeper,
    /// Its name for people.
    pub name: String,
    /// How it belongs to the request.
    pub tied: Tied,
    /// Its steps, in any order. Of two with one key the first counts.
    pub steps: Vec<Step>,
    /// The key of the step at which it stands.
    pub head: Box<str>,
}

/// A message or a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Step {
    /// What other steps name it by.
    pub key: Box<str>,
    /// The step before it.
    pub parent: Option<Box<str>>,
    /// Wanted calls that it knows of.
    pub calls: Vec<Box<str>>,
    /// When it was made, where that is told.
    pub at: Option<Timestamp>,
    /// Which file or session it stands in, for people.
    pub of: Box<str>,
}

/// An effect that a request does not show, with the ids of the calls that caused it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forgotten {
    /// The effect.
    pub effect: EffectId,
    /// Ids that no other call in the world has.
    pub calls: Vec<Box<str>>,
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What only words say is forgotten.
    pub forgotten: Vec<Forgotten>,
    /// When anything of that conversation was last seen before the request.
    pub since: Timestamp,
}

impl Wanted {
    /// Ids of all the calls.
    pub fn calls(&self) -> impl Iterator<Item = &str> {
        self.forgotten
            .iter()
            .flat_map(|f| f.calls.iter().map(|c| &**c))
    }
}

/// What a story makes certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The effects, ascending.
    pub effects: Vec<EffectId>,
    /// How, in words.
    pub why: String,
}

/// What a story makes certain of what is only suspected to be forgotten.
///
/// An effect is, when the call that caused it stands in a part of the story that was left: a step that
/// hangs below a step of the way to where the conversation stands now, while that way itself does not
/// know of the call. A call that is nowhere to be found says nothing: stores are cleared.
pub fn confirm(wanted: &Wanted, story: &Story) -> Option<Confirmed> {
    let mut steps: HashMap<&str, &Step> = HashMap::with_capacity(story.steps.len());
    for step in &story.steps {
        steps.entry(&step.key).or_insert(step);
    }
    // From where it stands to its beginning, or as far as it is told.
    let way = up(&steps, &story.head);
    let on_way: HashMap<&str, usize> = way.iter().enumerate().map(|(n, s)| (&*s.key, n)).collect();
    let known: HashSet<&str> = calls_of(&way).collect();
    let mut turned: Option<(usize, &Step)> = None;
    let mut effects = Vec::new();
    for forgotten in &wanted.forgotten {
        if forgotten.calls.iter().any(|call| known.contains(&**call)) {
            continue;
        }
        let left = story
            .steps
            .iter()
            .filter(|step| step.calls.iter().any(|c| forgotten.calls.contains(c)))
            .find_map(|step| {
                let back = up(&steps, &step.key);
                let at = back.iter().find_map(|s| on_way.get(&*s.key))?;
                Some((*at, step))
            });
        let Some((at, step)) = left else {
            continue;
        };
        if !is_this_one(wanted, story, &way, at) {
            continue;
        }
        effects.push(forgotten.effect);
        // The earliest point is where it went back to.
        if turned.is_none_or(|(earliest, _)| at > earliest) {
            turned = Some((at, step));
        }
    }
    effects.sort_unstable();
    effects.dedup();
    let (at, left) = turned?;
    Some(Confirmed {
        why: why(story, way[at], left, &effects),
        effects,
    })
}

/// Whether turning back at `way[at]` is what the request shows.
fn is_this_one(wanted: &Wanted, story: &Story, way: &[&Step], at: usize) -> bool {
    match story.tied {
        Tied::Session => true,
        Tied::Newest => at
            .checked_sub(1)
            .and_then(|first| way[first].at)
            .is_some_and(|made| made > wanted.since),
    }
}

fn why(story: &Story, back_to: &Step, left: &Step, effects: &[EffectId]) -> String {
    let shown: Vec<String> = effects.iter().take(8).map(ToString::to_string).collect();
    let more = effects.len().saturating_sub(shown.len());
    let more = match more {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let aside = if left.of == back_to.of || left.of.is_empty() {
        String::new()
    } else {
        format!(" ({})", left.of)
    };
    format!(
        "{} {} goes back to {}, and what caused {}{more} stands in what it left{aside}",
        story.keeper.words(),
        story.name,
        shown_key(&back_to.key),
        shown.join(", "),
    )
}

/// Keys are an agent's own: no more of one than a person can use, and nothing that a terminal acts on.
fn shown_key(key: &str) -> String {
    printable(key, 48)
}

/// A text of an agent's for people: short, and without anything that a terminal acts on.
pub(super) fn printable(text: &str, most: usize) -> String {
    let plain = text.chars().filter(|c| !c.is_control());
    // What turns the direction of writing round could make one text look like another.
    let plain = plain.filter(|c| !matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    let mut shown: String = plain.clone().take(most).collect();
    if plain.count() > most {
        shown.push('…');
    }
    shown
}

/// The steps from one up to its beginning. A circle ends where it would begin again.
fn up<'s>(steps: &HashMap<&'s str, &'s Step>, from: &str) -> Vec<&'s Step> {
    let mut way: Vec<&Step> = Vec::new();
    let mut seen: HashSet<&str> = HashSet::new();
    let mut next = steps.get(from).copied();
    while let Some(step) = next {
        if !seen.insert(&step.key) {
            break;
        }
        way.push(step);
        next = step
            .parent
            .as_deref()
            .and_then(|parent| steps.get(parent).copied());
    }
    way
}

fn calls_of<'s>(steps: &[&'s Step]) -> impl Iterator<Item = &'s str> {
    steps.iter().flat_map(|s| s.calls.iter().map(|c| &**c))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::words::Seq;

    fn step(key: &str, parent: &str, calls: &[&str], at: u64) -> Step {
        Step {
            key: key.into(),
            parent: (!parent.is_empty()).then(|| parent.into()),
            calls: calls.iter().map(|c| (*c).into()).collect(),
            at: Some(Timestamp(at)),
            of: "".into(),
        }
    }

    fn story(steps: Vec<Step>, head: &str) -> Story {
        Story {
            keeper: Keeper::LangGraph,
            name: "\"1\"".into(),
            tied: Tied::Newest,
            steps,
            head: head.into(),
        }
    }

    fn wanted(since: u64) -> Wanted {
        Wanted {
            forgotten: vec![Forgotten {
                effect: EffectId(Seq(9)),
                calls: vec!["call_paid".into()],
            }],
            since: Timestamp(since),
        }
    }

    /// Asked, ordered, paid, answered; then back to *asked*.
    fn turned_back() -> Vec<Step> {
        vec![
            step("asked", "", &[], 10),
            step("ordered", "asked", &["call_paid"], 20),
            step("paid", "ordered", &["call_paid"], 30),
            step("again", "asked", &[], 50),
        ]
    }

    #[test]
    fn a_call_that_was_left_is_certainly_forgotten() {
        let found = confirm(&wanted(40), &story(turned_back(), "again")).unwrap();
        assert_eq!(found.effects, [EffectId(Seq(9))]);
        assert_eq!(
            found.why,
            "LangGraph's checkpoints of thread \"1\" goes back to asked, and what caused e9 stands in what it left"
        );
    }

    #[test]
    fn a_conversation_that_goes_on_says_nothing() {
        assert_eq!(confirm(&wanted(40), &story(turned_back(), "paid")), None);
        let mut on = turned_back();
        on.push(step("next", "paid", &["call_paid"], 60));
        assert_eq!(confirm(&wanted(40), &story(on, "next")), None);
    }

    #[test]
    fn one_that_turned_back_before_it_was_last_heard_of_says_nothing() {
        assert_eq!(confirm(&wanted(50), &story(turned_back(), "again")), None);
        let mut undated = turned_back();
        undated[3].at = None;
        assert_eq!(confirm(&wanted(40), &story(undated, "again")), None);
        // One that the request names needs no time.
        let named = Story {
            tied: Tied::Session,
            ..story(turned_back(), "again")
        };
        assert!(confirm(&wanted(99), &named).is_some());
    }

    #[test]
    fn the_last_step_itself_can_only_be_named() {
        // It stands at *asked*, and what came after is still there.
        assert_eq!(confirm(&wanted(0), &story(turned_back(), "asked")), None);
        let named = Story {
            tied: Tied::Session,
            ..story(turned_back(), "asked")
        };
        assert!(confirm(&wanted(0), &named).is_some());
    }

    #[test]
    fn a_call_that_is_nowhere_or_elsewhere_says_nothing() {
        let cleared: Vec<Step> = turned_back()
            .into_iter()
            .filter(|s| s.calls.is_empty())
            .collect();
        assert_eq!(confirm(&wanted(40), &story(cleared, "again")), None);
        let mut other = turned_back();
        other[1].parent = Some("another".into());
        assert_eq!(confirm(&wanted(40), &story(other, "again")), None);
    }

    #[test]
    fn a_call_that_the_way_knows_as_well_says_nothing() {
        let mut both = turned_back();
        both[3].calls = vec!["call_paid".into()];
        assert_eq!(confirm(&wanted(40), &story(both, "again")), None);
    }

    #[test]
    fn circles_and_loose_ends_are_no_story() {
        let circle = vec![
            step("a", "b", &[], 50),
            step("b", "a", &[], 60),
            step("c", "c", &["call_paid"], 20),
        ];
        assert_eq!(confirm(&wanted(0), &story(circle, "a")), None);
        assert_eq!(confirm(&wanted(0), &story(Vec::new(), "a")), None);
        assert_eq!(confirm(&wanted(0), &story(turned_back(), "gone")), None);
    }

    #[test]
    fn what_people_read_has_nothing_in_it_that_acts() {
        assert_eq!(printable("a\u{1b}[2Jb\u{202e}c", 9), "a[2Jbc");
        assert_eq!(printable("abcdef", 3), "abc…");
    }

    proptest! {
        /// Whatever a store holds, only what was asked for is confirmed, and it ends.
        #[test]
        fn any_store_confirms_at_most_what_was_suspected(
            edges in prop::collection::vec((0u8..12, 0u8..12, any::<bool>(), 0u64..100), 0..40),
            head in 0u8..12,
            since in 0u64..100,
        ) {
            let steps = edges.iter().map(|(key, parent, knows, at)| {
                let calls: &[&str] = if *knows { &["call_paid"] } else { &[] };
                step(&key.to_string(), &parent.to_string(), calls, *at)
            }).collect();
            let told = story(steps, &head.to_string());
            if let Some(found) = confirm(&wanted(since), &told) {
                prop_assert_eq!(found.effects, vec![EffectId(Seq(9))]);
            }
        }
    }
}
