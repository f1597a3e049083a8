//! Lines that are started beside others: sub-agents, and other conversations of a session.

use std::collections::BTreeSet;

use super::draft::{Continuation, draft_line};
use super::finding::Finding;
use super::history::What;
use super::judge::Judgement;
use super::line::Candidate;
use super::memory::{ThreadMemory, TurnNo};
use super::observe::{Draft, Needs, Observed};
use super::place::Ground;
use super::state::is_open;
use super::view::View;

impl<'a> Ground<'a> {
    /// A sub-agent's first request.
    pub(super) fn sub_agent(
        &self,
        thread: &'a ThreadMemory,
        candidates: &[Candidate<'a>],
        task: Option<(TurnNo, u16)>,
    ) -> Observed {
        self.beside(thread, candidates, Some(task))
    }

    /// A new line of a known thread that leaves nothing behind.
    pub(super) fn beside(
        &self,
        thread: &'a ThreadMemory,
        candidates: &[Candidate<'a>],
        task: Option<Option<(TurnNo, u16)>>,
    ) -> Observed {
        // It belongs to the branch of the line that started it.
        let parent = task
            .flatten()
            .and_then(|(turn, _)| {
                thread
                    .strands
                    .iter()
                    .filter(|s| {
                        thread
                            .path_to(s.tip)
                            .iter()
                            .any(|p| thread.turns[*p].number == turn)
                    })
                    .max_by_key(|s| (s.asked, s.number))
            })
            .or_else(|| {
                thread
                    .strands
                    .iter()
                    .filter(|s| !s.is_child)
                    .max_by_key(|s| s.asked)
            })
            .or(thread.strands.last());
        let Some(parent) = parent else {
            return self.opens_thread(Some(thread.id));
        };
        let shared = candidates
            .iter()
            .filter(|c| c.view.is_tied())
            .max_by_key(|c| c.view.last);
        let asked = draft_line(
            self,
            &Candidate {
                thread,
                strand: shared.map_or(parent, |c| c.strand),
                view: shared.map_or_else(View::of_nothing, |c| c.view.clone()),
            },
            &Judgement::default(),
            &[],
            Continuation::Beside {
                branch: parent.branch,
                born_of: task.flatten(),
                is_child: task.is_some(),
            },
        );
        Observed {
            findings: vec![Finding::Continues {
                thread: thread.id,
                branch: parent.branch,
            }],
            needs: Needs::Nothing,
            absent: Vec::new(),
            draft: Draft::Asked(Box::new(asked)),
        }
    }

    /// A call of the thread that has not come back, has no sub-agent yet, and has what the request
    /// ends with as an argument. A sub-agent that takes over its parent's history shows the call with
    /// something that stands for a result.
    ///
    /// Words that the agent's side had said itself are no task: many tools are called with them, and
    /// they come again when a conversation goes back.
    pub(super) fn open_call(&self, thread: &ThreadMemory) -> Option<(TurnNo, u16)> {
        let said_before = |mark| {
            thread.turns.iter().any(|t| t.prompt == Some(mark))
                || thread.strands.iter().any(|s| {
                    s.born_of.is_none() && (s.openings.contains(&mark) || s.prompt == Some(mark))
                })
        };
        let tasks: Vec<_> = self
            .turned
            .input()
            .iter()
            .filter_map(|piece| match &piece.what {
                What::Words(said) => Some(said),
                _ => None,
            })
            .filter(|said| !said_before(said.mark))
            .map(|said| said.value)
            .collect();
        if tasks.is_empty() {
            return None;
        }
        let taken = |place| thread.strands.iter().any(|s| s.born_of == Some(place));
        let tips: BTreeSet<TurnNo> = thread.strands.iter().filter_map(|s| s.tip).collect();
        let waiting = thread
            .turns
            .iter()
            .rev()
            .filter(|t| tips.contains(&t.number));
        waiting
            .flat_map(|turn| {
                (0u16..)
                    .zip(&turn.calls)
                    .map(|(n, call)| ((turn.number, n), call))
            })
            .find(|(place, call)| {
                is_open(call.result)
                    && !taken(*place)
                    && tasks.iter().any(|t| call.values.binary_search(t).is_ok())
            })
            .map(|(place, _)| place)
    }
}
