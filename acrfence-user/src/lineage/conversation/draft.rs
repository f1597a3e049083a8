//! How a line stands after a request.

use super::history::{From, Piece, What};
use super::judge::Judgement;
use super::line::Candidate;
use super::mark::Mark;
use super::memory::{Absence, Asked, ResultMemory, Strand, StrandMemory, TurnMemory, TurnNo};
use super::observe::call_memory;
use super::place::Ground;
use crate::words::{BranchId, EffectId, Seq, ThreadId};

/// Most turns that are learned from one history.
const MOST_IMPORTED: usize = 512;

/// Most openings of one line that are remembered.
const MOST_OPENINGS: usize = 8;

/// Most ids of one input that are remembered.
const MOST_INPUT_IDS: usize = 16;

/// How a request goes on.
pub(super) enum Continuation {
    /// The same line.
    Same,
    /// The same line, its history behind a summary.
    Shortened,
    /// A new line that parts from another, by a rewind or merely by an answer that is written anew.
    Parts {
        /// Whether it is a rewind.
        rewinds: bool,
    },
    /// A new line that leaves nothing behind.
    Beside {
        branch: BranchId,
        born_of: Option<(TurnNo, u16)>,
        is_child: bool,
    },
}

/// A request that opens a thread. Thread and branch are filled in when it is bound.
pub(super) fn draft_thread(ground: &Ground<'_>, title: &str) -> Asked {
    let imported = imported(ground, 0, 1, Strand(1), None);
    let next = imported.last().map_or(1, |t| t.number.0 + 1);
    let mut strand = new_strand(ground, Strand(1), BranchId(Seq(0)), TurnNo(next));
    strand.tip = imported.last().map(|t| t.number);
    Asked {
        thread: ThreadId(Seq(0)),
        opens: Some((ground.seen.agent.clone(), title.to_owned())),
        strand,
        absent: Vec::new(),
        imported,
        results: Vec::new(),
        shown: Vec::new(),
        sessions: ground.turned.session.family.clone(),
        hints: ground.turned.session.hints.clone(),
    }
}

/// A request of a known thread.
pub(super) fn draft_line(
    ground: &Ground<'_>,
    primary: &Candidate<'_>,
    judged: &Judgement,
    absent: &[(EffectId, Absence)],
    how: Continuation,
) -> Asked {
    let Candidate {
        thread,
        strand: old,
        view,
    } = primary;
    let shown = view.last.map(|last| thread.turns[view.path[last]].number);
    let is_new = matches!(
        how,
        Continuation::Parts { .. } | Continuation::Beside { .. }
    );
    let number = if is_new {
        Strand(thread.next_strand)
    } else {
        old.number
    };
    let from = match how {
        // The summary stands for everything before.
        Continuation::Shortened => old.tip,
        _ => shown,
    };
    let imported = imported(ground, view.end, thread.next_turn, number, from);
    let next = imported.last().map_or(thread.next_turn, |t| t.number.0 + 1);
    let tip = imported.last().map(|t| t.number).or(from);
    let mut strand = new_strand(ground, number, old.branch, TurnNo(next));
    strand.tip = tip;
    let opening = ground.shows.opening;
    match how {
        Continuation::Same | Continuation::Shortened => {
            keep_from(old, &mut strand);
            strand.openings = with_opening(&old.openings, opening);
            let first = view.turns.iter().position(|t| t.shown);
            if matches!(how, Continuation::Shortened) {
                strand.summarised = old.tip;
            } else if strand.summary.is_some()
                && strand.summary != old.summary
                && let Some(before) = first.and_then(|f| f.checked_sub(1))
            {
                strand.summarised = Some(thread.turns[view.path[before]].number);
            }
        }
        Continuation::Parts { rewinds } => {
            let line = strand.line.or(old.line);
            let began = strand.began;
            keep_from(old, &mut strand);
            strand.line = line;
            strand.began = began;
            strand.parted |= rewinds;
            strand.openings = with_opening(&old.openings, opening);
        }
        Continuation::Beside {
            branch,
            born_of,
            is_child,
        } => {
            strand.branch = branch;
            strand.born_of = born_of;
            strand.is_child = is_child;
        }
    }
    let new_marks = |known: &[Mark], now: &[Mark]| -> Vec<Mark> {
        now.iter().filter(|m| !known.contains(m)).copied().collect()
    };
    let session = &ground.turned.session;
    let news = absent
        .iter()
        .filter(|gone| is_new || !old.absent.contains(gone));
    Asked {
        thread: thread.id,
        opens: None,
        strand,
        absent: news.copied().collect(),
        imported,
        results: judged.results.clone(),
        shown: judged.shown.clone(),
        sessions: new_marks(&thread.sessions, &session.family),
        hints: new_marks(&thread.hints, &session.hints),
    }
}

/// What stays of a line from one request to the next.
fn keep_from(old: &StrandMemory, strand: &mut StrandMemory) {
    strand.born_of = old.born_of;
    strand.is_child = old.is_child;
    strand.parted = old.parted;
    strand.summarised = old.summarised;
    strand.began = old.began;
    strand.line = strand.line.or(old.line);
    strand.window = strand.window.or(old.window);
    // A request without tools does not make a line that has them one that has none.
    strand.may_call |= old.may_call;
    if strand.tools.is_empty() {
        strand.tools.clone_from(&old.tools);
    }
}

fn new_strand(
    ground: &Ground<'_>,
    number: Strand,
    branch: BranchId,
    pending: TurnNo,
) -> StrandMemory {
    let turned = ground.turned;
    let ids = turned.input().iter().flat_map(|piece| &piece.ids);
    StrandMemory {
        number,
        branch,
        line: turned.session.line,
        born_of: None,
        is_child: turned.session.is_child,
        parted: false,
        openings: ground.shows.opening.into_iter().collect(),
        tip: None,
        summarised: None,
        pending: Some(pending),
        input: Some(ground.shows.input),
        input_ids: ids
            .filter(|id| id.is_unique())
            .take(MOST_INPUT_IDS)
            .cloned()
            .collect(),
        prompt: ground.shows.prompt,
        answered: false,
        process: ground.seen.process,
        agent: ground.seen.agent.clone(),
        began: ground.seen.at,
        asked: ground.seen.at,
        active: ground.seen.now,
        tools: turned.tools.clone(),
        may_call: turned.may_call,
        summary: turned.summary,
        window: turned.session.window,
        absent: Vec::new(),
    }
}

fn with_opening(known: &[Mark], opening: Option<Mark>) -> Vec<Mark> {
    let mut openings = known.to_vec();
    if let Some(opening) = opening.filter(|o| !known.contains(o)) {
        openings.push(opening);
        if openings.len() > MOST_OPENINGS {
            // The first says how the conversation began.
            openings.remove(1);
        }
    }
    openings
}

/// Turns that a history shows and the thread does not know, from a piece on.
fn imported(
    ground: &Ground<'_>,
    from: usize,
    first: u32,
    strand: Strand,
    parent: Option<TurnNo>,
) -> Vec<TurnMemory> {
    let pieces = &ground.turned.pieces;
    let mut turns: Vec<TurnMemory> = Vec::new();
    let mut at = from;
    let mut prompt = None;
    let mut input: Vec<Mark> = Vec::new();
    while at < pieces.len() {
        if pieces[at].from == From::Agent {
            if let What::Words(said) = &pieces[at].what {
                prompt = Some(said.mark);
            }
            input.push(pieces[at].mark());
            at += 1;
            continue;
        }
        let end = pieces[at..]
            .iter()
            .position(|p| p.from == From::Agent)
            .map_or(pieces.len(), |n| at + n);
        let mark = ground.marker.whole(std::mem::take(&mut input));
        turns.push(one_turn(ground, &pieces[at..end], at, prompt, mark));
        at = end;
    }
    let over = turns.len().saturating_sub(MOST_IMPORTED);
    turns.drain(..over);
    let mut parent = parent;
    for (number, turn) in (first..).zip(&mut turns) {
        turn.number = TurnNo(number);
        turn.strand = strand;
        turn.parent = parent;
        parent = Some(turn.number);
    }
    turns
}

fn one_turn(
    ground: &Ground<'_>,
    answer: &[Piece],
    first: usize,
    prompt: Option<Mark>,
    input: Mark,
) -> TurnMemory {
    let mut turn = TurnMemory {
        number: TurnNo(0),
        parent: None,
        strand: Strand(0),
        at: ground.seen.at,
        time: ground.seen.now,
        ids: Vec::new(),
        input_ids: Vec::new(),
        said: None,
        calls: Vec::new(),
        loose: Vec::new(),
        input,
        prompt,
        shown_at: Some(ground.seen.at),
        complete: true,
        imported: true,
    };
    for (n, piece) in answer.iter().enumerate() {
        turn.ids.extend(piece.ids.iter().cloned());
        match &piece.what {
            What::Words(said) => turn.said = Some(said.mark),
            What::Call(called) => {
                let mut call = call_memory(called);
                if let Some(result) = ground.shows.result(first + n) {
                    call.result = ResultMemory::True(result.mark);
                    call.values = Vec::new();
                }
                turn.calls.push(call);
            }
            _ => {}
        }
    }
    turn
}
