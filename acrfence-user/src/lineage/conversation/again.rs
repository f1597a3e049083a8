//! A call of the model that is carried out once more.
//!
//! By another life of the agent that is a restore which no model request told of: [`executed_again`].
//! By the same life it is none. A program may do that, and means it: it polls, it tries again, it sends
//! three of a kind. But it may also run a step again from its beginning without knowing that it acted
//! already (a LangGraph node after `interrupt`, a tool after its permission was asked for), and then
//! what the model ordered once happens twice. [`again`] tells the two apart, from strict evidence.

use super::attach::{CallSeen, Found, Placement, is_tool, likeness};
use super::finding::{Confidence, Evidence, Rewind};
use super::memory::{CallMemory, Tie};
use crate::words::{EffectId, ForkPoint, Grade, Seq};

/// Most effects of an order that a call is compared with, the oldest: a step that runs again does
/// again what it did first.
const MOST_DONE: usize = 64;

/// What the model ordered by calls of one tool that a call fits equally well, and what was done for
/// them since the model was last asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// So many effects of a kind are meant: as many as the model made calls, or named in a call.
    pub meant: usize,
    /// Effects of these calls that went the way of the call at hand, oldest first.
    pub done: Vec<Done>,
}

/// An effect of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The effect.
    pub effect: EffectId,
    /// Whether it and the call at hand are the very call that the model made, both under its id.
    pub by_id: bool,
}

/// An effect of an order that means the same as the call at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alike {
    /// The effect.
    pub effect: EffectId,
    /// Whether it was carried out to its end.
    pub completed: bool,
    /// Whether the call at hand was made anew: under another reference or key that the caller made up.
    pub made_anew: bool,
}

/// Which effects the call at hand carries out once more, oldest first, and how sure that is. `alike`
/// are those of the orders that mean the same, as far as they did not fail.
///
/// *Certain*: both calls carry the id of the model's call, and are that call. *Suspect*: the model's
/// calls have all had such an effect already, and the call at hand comes under a new reference. Where
/// it repeats any of them under its old reference it is a retry, and its server can tell.
pub fn again(orders: &[Order], alike: &[Alike]) -> Vec<(EffectId, Grade)> {
    let same = |effect: EffectId| alike.iter().find(|a| a.effect == effect);
    let done = || orders.iter().flat_map(|order| &order.done);
    let certain: Vec<_> = done()
        .filter(|done| done.by_id && same(done.effect).is_some_and(|a| a.completed))
        .map(|done| (done.effect, Grade::Certain))
        .collect();
    if !certain.is_empty() {
        return certain;
    }
    if alike.iter().any(|a| !a.made_anew) {
        return Vec::new();
    }
    let suspect = orders.iter().flat_map(|order| {
        let done: Vec<&Alike> = order.done.iter().filter_map(|d| same(d.effect)).collect();
        let is_done = done.len() >= order.meant;
        done.into_iter()
            .filter(move |a| is_done && a.completed)
            .map(|a| (a.effect, Grade::Suspect))
    });
    suspect.collect()
}

/// What the model ordered that this call may be part of; nothing where nothing was done for it yet.
pub(super) fn orders(found: &Found<'_>, call: &CallSeen) -> Vec<Order> {
    let Some(turn) = found.thread.turn(found.turn) else {
        return Vec::new();
    };
    // A call that fits several of the model's equally well is for any of them.
    let best = turn.calls.iter().filter_map(|known| fit(call, known)).max();
    let fits = |known: &&CallMemory| best.is_some() && fit(call, known) == best;
    let mut tools: Vec<&str> = Vec::new();
    for known in turn.calls.iter().filter(fits) {
        if !tools.contains(&&*known.name) {
            tools.push(&known.name);
        }
    }
    let since_asked = |tie: &&Tie| {
        tie.at > found.strand.asked
            && tie.confidence >= Confidence::Values
            && tie.target.is_some_and(|target| target == call.target)
            && !found.strand.absent.iter().any(|(e, _)| *e == tie.effect)
    };
    let order_of = |tool: &str| {
        let calls = || {
            let of_tool = |known: &&CallMemory| &*known.name == tool;
            turn.calls.iter().filter(of_tool).filter(fits)
        };
        let done = |known: &CallMemory| {
            let is_the_call = is_the_call(call, known);
            let done = known.ties.iter().filter(since_asked).map(move |tie| Done {
                effect: tie.effect,
                by_id: is_the_call && tie.is_call && tie.confidence == Confidence::Id,
            });
            done.collect::<Vec<_>>()
        };
        let mut done: Vec<Done> = calls().flat_map(done).collect();
        done.sort_unstable_by_key(|done| done.effect);
        done.truncate(MOST_DONE);
        Order {
            meant: calls().map(|known| times(call, known)).sum(),
            done,
        }
    };
    let orders = tools.into_iter().map(order_of);
    orders.filter(|order| !order.done.is_empty()).collect()
}

/// How well a call fits one that the model made: by its id, else by how much of it is in it.
fn fit(call: &CallSeen, known: &CallMemory) -> Option<(Confidence, usize)> {
    if call.call_id.is_some() && call.call_id == known.id {
        return Some((Confidence::Id, 0));
    }
    let confidence = likeness(call, known).filter(|c| *c >= Confidence::Values)?;
    let is_in = |value| known.values.binary_search(value).is_ok();
    Some((confidence, call.values.iter().filter(|v| is_in(v)).count()))
}

/// How many effects a call of the model means: as many as it says (`count: 3`), where the request does
/// not say that by itself.
fn times(call: &CallSeen, known: &CallMemory) -> usize {
    let said = known
        .times
        .filter(|(_, mark)| call.values.binary_search(mark).is_err());
    said.map_or(1, |(times, _)| times as usize)
}

/// Whether the call is the model's own, and not something that happens while that runs: a program that
/// the model wrote may make many calls under the id of the one that runs it.
fn is_the_call(call: &CallSeen, known: &CallMemory) -> bool {
    call.call_id.is_some()
        && call.call_id == known.id
        && call
            .tool
            .as_deref()
            .is_some_and(|tool| is_tool(&known.name, tool))
}

/// A call that had its effect in another life of the agent, or below a process that is not the one
/// asking now, is being executed again.
pub(super) fn executed_again(
    found: &Found<'_>,
    known: &CallMemory,
    placement: &Placement,
    call: &CallSeen,
) -> Option<Rewind> {
    let is_other_life = |tie: &Tie| {
        tie.incarnation != placement.incarnation
            || tie.below && !placement.below && call.arguments.is_some_and(|a| a == known.arguments)
    };
    let is_own =
        |tie: &Tie| tie.incarnation == placement.incarnation && tie.below == placement.below;
    let absent = |effect: EffectId| found.strand.absent.iter().any(|(e, _)| *e == effect);
    let before: Vec<&Tie> = known
        .ties
        .iter()
        .filter(|tie| is_other_life(tie) && !absent(tie.effect))
        .collect();
    let first = before.iter().map(|tie| tie.at).min()?;
    // What this life did for the call already is its own doing.
    if known.ties.iter().any(is_own) {
        return None;
    }
    let forgotten: Vec<EffectId> = before.iter().map(|tie| tie.effect).collect();
    Some(Rewind {
        thread: found.thread.id,
        parent: found.strand.branch,
        grade: Grade::Certain,
        evidence: vec![Evidence::ExecutedAgain],
        last_remembered: Some(found.turn),
        forgotten_turns: vec![found.turn],
        remembered: Vec::new(),
        forgotten,
        fork_point: ForkPoint::At(Seq(first.0.saturating_sub(1))),
        exact: false,
        note: format!(
            "the call `{}` of turn {} already had its effect and is executed again by another life of the agent",
            known.name, found.turn
        ),
    })
}
