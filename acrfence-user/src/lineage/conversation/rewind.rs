//! Puts a rewind into words and positions.

use super::finding::{Evidence, Rewind};
use super::judge::Judgement;
use super::line::Candidate;
use super::memory::{Absence, TurnNo};
use super::view::Shows;
use crate::words::{EffectId, ForkPoint, Grade, Seq};

/// A line that is left.
pub(super) struct Left<'l, 'a> {
    pub(super) shows: &'l Shows<'a>,
    pub(super) primary: &'l Candidate<'a>,
    pub(super) judged: &'l Judgement,
    pub(super) absent: &'l [(EffectId, Absence)],
    pub(super) grade: Grade,
}

pub(super) fn describe(left: &Left<'_, '_>, evidence: &[Evidence]) -> Rewind {
    let Candidate {
        thread,
        strand,
        view,
    } = left.primary;
    let last = view.last.map(|last| &thread.turns[view.path[last]]);
    let remembered = left.judged.remembered.clone();
    // What another line did is forgotten as well by a line that goes back.
    let forgotten: Vec<EffectId> = left
        .absent
        .iter()
        .filter(|(_, why)| [Absence::Forgotten, Absence::Elsewhere].contains(why))
        .map(|(effect, _)| *effect)
        .collect();
    let mut forgotten_turns: Vec<TurnNo> = left.judged.forgotten.iter().map(|f| f.turn).collect();
    forgotten_turns.sort_unstable();
    forgotten_turns.dedup();

    let after_last = |t: &&super::memory::TurnMemory| {
        t.parent == last.map(|l| l.number) && t.input == left.shows.input
    };
    let mut evidence = evidence.to_vec();
    if view.same_opening && view.last.is_none() && !evidence.contains(&Evidence::SameOpening) {
        evidence.push(Evidence::SameOpening);
    }
    if thread
        .turns
        .iter()
        .any(|t| after_last(&t) && t.ties().next().is_some())
    {
        evidence.push(Evidence::SameRequest);
    }
    evidence.sort_unstable();
    evidence.dedup();

    let known_path = view.path.first().map(|at| thread.turns[*at].parent);
    let reaches_start = known_path.is_none_or(|parent| parent.is_none());
    let (fork_point, exact) = if last.is_none() && !reaches_start {
        (ForkPoint::Unknown, false)
    } else {
        let remembered_through = view
            .path
            .iter()
            .flat_map(|at| thread.turns[*at].ties())
            .filter(|tie| remembered.binary_search(&tie.effect).is_ok())
            .map(|tie| tie.at)
            .max()
            .unwrap_or_default();
        let forgotten_from = left
            .judged
            .forgotten
            .iter()
            .map(|f| f.at)
            .min()
            .unwrap_or(Seq(u64::MAX));
        let known = last.map_or(strand.began, |t| t.shown_at.unwrap_or(t.at));
        let before = Seq(forgotten_from.0.saturating_sub(1));
        if remembered_through <= before {
            let at = known.max(remembered_through).min(before);
            let all = forgotten.len() == left.judged.forgotten.len();
            (ForkPoint::At(at), all)
        } else {
            (ForkPoint::At(before), false)
        }
    };
    let note = note(
        last.map(|l| l.number),
        &forgotten_turns,
        forgotten.len(),
        &evidence,
    );
    Rewind {
        thread: thread.id,
        parent: strand.branch,
        grade: left.grade,
        evidence,
        last_remembered: last.map(|l| l.number),
        forgotten_turns,
        remembered,
        forgotten,
        fork_point,
        exact,
        note,
    }
}

/// A line that goes on while another, which parted from it by a rewind, had effects.
pub(super) fn elsewhere(
    primary: &Candidate<'_>,
    judged: &Judgement,
    effects: Vec<EffectId>,
) -> Rewind {
    let Candidate {
        thread,
        strand,
        view,
    } = primary;
    let from = effects.first().map_or(Seq(0), |effect| effect.0);
    let note = format!(
        "another line of this conversation had {} that this one does not know of",
        counted(effects.len(), "effect")
    );
    Rewind {
        thread: thread.id,
        parent: strand.branch,
        grade: Grade::Suspect,
        evidence: vec![Evidence::OtherLine],
        last_remembered: view.last.map(|last| thread.turns[view.path[last]].number),
        forgotten_turns: Vec::new(),
        remembered: judged.remembered.clone(),
        forgotten: effects,
        fork_point: ForkPoint::At(Seq(from.0.saturating_sub(1))),
        exact: false,
        note,
    }
}

fn note(last: Option<TurnNo>, turns: &[TurnNo], effects: usize, evidence: &[Evidence]) -> String {
    let to = match last {
        Some(last) => format!("to turn {last}"),
        None => "to before its first turn".to_owned(),
    };
    let tied: Vec<&str> = evidence.iter().map(|e| words(*e)).collect();
    format!(
        "a model request goes back {to} and does not show {} with {}: {}",
        counted(turns.len(), "turn"),
        counted(effects, "effect"),
        tied.join(", ")
    )
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 {
        format!("1 {what}")
    } else {
        format!("{n} {what}s")
    }
}

fn words(evidence: Evidence) -> &'static str {
    match evidence {
        Evidence::Ids => "ids in it are this thread's",
        Evidence::PreviousResponse => "it names a response of this thread",
        Evidence::Session => "it names this thread's session",
        Evidence::SplitOff => "it names the session it was split off from",
        Evidence::SameOpening => "it begins with the same words",
        Evidence::SameRequest => "the same request already led to effects",
        Evidence::SameTurns => "its calls are, word for word, this thread's",
        Evidence::Hint => "a key that may mean a session is the same",
        Evidence::OtherLine => "another line of this thread had effects meanwhile",
        Evidence::ExecutedAgain => "a call that had its effect is executed again",
    }
}
