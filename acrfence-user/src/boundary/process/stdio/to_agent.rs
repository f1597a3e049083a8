//! From the program to the agent: answers to calls are on disk before the agent sees them.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::classify::Class;
use super::flow::{Sink, Source, Unread};
use super::outbound::{self, Outbound, Piece};
use super::relay::{Said, Shared, broken, settle};
use crate::boundary::mcp::answer;
use crate::effect::LogError;
use crate::words::{EffectId, Ending, McpResponse, Response};

/// JSON-RPC's code for errors that a server defines.
const SERVER_ERROR: i32 = -32000;

/// Runs this direction; gives the number of bytes that came.
pub(super) async fn run(
    shared: Arc<Shared>,
    source: Source,
    sink: Sink,
    answers: mpsc::Receiver<Said>,
) -> u64 {
    let direction = Direction {
        class: shared.class.subscribe(),
        cutter: Outbound::new(shared.limits().message),
        shared: shared.clone(),
        sink,
        answers,
        queue: VecDeque::new(),
        behind: 0,
        is_gone: false,
        written: 0,
        told: VecDeque::new(),
    };
    direction.run(source).await
}

struct Direction {
    shared: Arc<Shared>,
    sink: Sink,
    class: watch::Receiver<Class>,
    answers: mpsc::Receiver<Said>,
    cutter: Outbound,
    /// What goes to the agent, in order.
    queue: VecDeque<Next>,
    /// Bytes in the queue.
    behind: usize,
    /// Whether nobody reads what we write.
    is_gone: bool,
    /// Bytes written to the agent.
    written: u64,
    /// Outcomes told last: where the line ended, and of which effects.
    told: VecDeque<(u64, Vec<EffectId>)>,
}

/// How many outcomes are kept in mind until they were surely read.
const TOLD: usize = 256;

/// Something that goes to the agent.
enum Next {
    Now(Line),
    /// A line that waits until the outcome in it is on disk.
    Settled(JoinHandle<Line>, usize),
}

/// Bytes, and the effects whose outcome they tell.
#[derive(Default)]
struct Line {
    bytes: Bytes,
    effects: Vec<EffectId>,
}

impl From<Bytes> for Line {
    fn from(bytes: Bytes) -> Self {
        Self {
            bytes,
            effects: Vec::new(),
        }
    }
}

impl Direction {
    async fn run(mut self, source: Source) -> u64 {
        let mut all = 0;
        let mut chunk = BytesMut::new();
        let mut ended = false;
        let shared = self.shared.clone();
        loop {
            self.write_ready().await;
            // Before the look at what is awaited, so that no change is missed in between.
            let fewer = shared.fewer.notified();
            let class = *self.class.borrow_and_update();
            if class == Class::Raw && self.queue.is_empty() {
                return all + self.raw(&source).await;
            }
            if ended && self.queue.is_empty() {
                break;
            }
            // Nobody reads, and no outcome can be learned: the program shall notice.
            if self.is_gone && !self.shared.waiting.lock().has_calls() && self.queue.is_empty() {
                break;
            }
            tokio::select! {
                biased;
                done = front(&mut self.queue) => self.replace_front(done),
                Some(said) = self.answers.recv(), if self.cutter.at_boundary() => {
                    let Said { line, effects } = said;
                    self.put(Next::Now(Line { bytes: line.into(), effects }));
                }
                length = source.read(&mut chunk), if !ended && self.behind < self.shared.limits().behind => {
                    match length {
                        Ok(length) if length > 0 => {
                            all += length as u64;
                            self.take(&chunk);
                            chunk.clear();
                        }
                        _ => {
                            ended = true;
                            let rest = self.cutter.finish();
                            self.pieces(rest);
                            self.shared.break_calls("the server ended without an answer").await;
                        }
                    }
                }
                () = self.sink.hung_up(), if !self.is_gone => self.agent_is_gone(),
                _ = self.class.changed(), if class == Class::Undecided => {}
                () = fewer, if self.is_gone => {}
            }
        }
        drop(source);
        self.shared
            .break_calls("the agent went before the answer came")
            .await;
        all
    }

    async fn raw(self, source: &Source) -> u64 {
        let mut all = 0;
        loop {
            let moved = tokio::select! {
                moved = source.splice(&self.sink) => moved,
                () = self.sink.hung_up() => return all,
            };
            match moved {
                Ok(0) | Err(_) => return all,
                Ok(length) => all += length as u64,
            }
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        let look = self.shared.waiting.lock().is_any();
        let pieces = self.cutter.push(bytes, look);
        self.pieces(pieces);
    }

    fn pieces(&mut self, pieces: impl IntoIterator<Item = Piece>) {
        for piece in pieces {
            match piece {
                Piece::Bytes(bytes) => self.put(Next::Now(bytes.into())),
                Piece::Line(line) => self.line(line),
                Piece::EndOfLongLine(bytes) => {
                    let only = self.shared.waiting.lock().take_only_call();
                    let Some(ticket) = only else {
                        self.put(Next::Now(bytes.into()));
                        continue;
                    };
                    let length = bytes.len();
                    let shared = self.shared.clone();
                    let task = tokio::spawn(async move {
                        settle(ticket, broken("its answer was too long to be read")).await;
                        shared.fewer.notify_waiters();
                        bytes.into()
                    });
                    self.put(Next::Settled(task, length));
                }
            }
        }
    }

    /// A whole line: answers in it are settled first.
    fn line(&mut self, line: Bytes) {
        let (calls, lists) = self.shared.waiting.lock().ids();
        let found = outbound::answers(&line, &calls, &lists);
        for (id, tools) in found.tools {
            self.shared.waiting.lock().end_list(&id);
            let session = &self.shared.session;
            if let Some(tools) = tools {
                session
                    .arbiter
                    .tools_seen(&session.origin, &session.server, &tools);
            }
        }
        let mut first = Vec::new();
        let mut later = Vec::new();
        for (id, answer) in found.calls {
            let Some(ticket) = self.shared.waiting.lock().take_key(&id) else {
                continue;
            };
            let list = if ticket.holds_end() {
                &mut first
            } else {
                &mut later
            };
            list.push((id, answer, ticket));
        }
        if !later.is_empty() {
            let shared = self.shared.clone();
            tokio::spawn(async move {
                for (_, answer, ticket) in later {
                    settle(ticket, Ending::Response(Response::Mcp(answer))).await;
                }
                shared.fewer.notify_waiters();
            });
        }
        if first.is_empty() {
            return self.put(Next::Now(line.into()));
        }
        let length = line.len();
        let shared = self.shared.clone();
        let task = tokio::spawn(async move {
            let line = settled(line, first).await;
            shared.fewer.notify_waiters();
            line
        });
        self.put(Next::Settled(task, length));
    }

    fn put(&mut self, next: Next) {
        self.behind += match &next {
            Next::Now(line) => line.bytes.len(),
            Next::Settled(_, length) => *length,
        };
        self.queue.push_back(next);
    }

    fn replace_front(&mut self, line: Line) {
        if let Some(Next::Settled(_, length)) = self.queue.pop_front() {
            self.behind = self.behind - length + line.bytes.len();
            self.queue.push_front(Next::Now(line));
        }
    }

    /// Writes what need not wait.
    async fn write_ready(&mut self) {
        while let Some(Next::Now(_)) = self.queue.front() {
            let Some(Next::Now(line)) = self.queue.pop_front() else {
                return;
            };
            self.behind -= line.bytes.len();
            if !self.is_gone && self.sink.write_all(&line.bytes).await.is_err() {
                self.agent_is_gone();
            }
            if self.is_gone {
                self.shared.undelivered(&line.effects);
                continue;
            }
            self.written += line.bytes.len() as u64;
            if !line.effects.is_empty() {
                if self.told.len() == TOLD {
                    self.told.pop_front();
                }
                self.told.push_back((self.written, line.effects));
            }
        }
    }

    /// Nobody reads any more: what was running is abandoned, and what lay unread was never told.
    fn agent_is_gone(&mut self) {
        self.is_gone = true;
        let running = self.shared.waiting.lock().effects();
        for effect in running {
            self.shared.abandoned(effect);
        }
        let read = match self.sink.unread() {
            Unread::Bytes(left) => self.written.saturating_sub(left),
            // At least the last thing that was said.
            Unread::Some => self.told.back().map_or(self.written, |(end, _)| end - 1),
        };
        for (end, effects) in std::mem::take(&mut self.told) {
            if end > read {
                self.shared.undelivered(&effects);
            }
        }
    }
}

/// The first line of the queue, once it is settled. Never, when the first one need not wait.
async fn front(queue: &mut VecDeque<Next>) -> Line {
    match queue.front_mut() {
        // A task that panicked has dropped its ticket: the effect is in doubt, and the agent gets
        // nothing rather than something unrecorded.
        Some(Next::Settled(task, _)) => task.await.unwrap_or_default(),
        _ => std::future::pending().await,
    }
}

/// Settles the answers of a line and gives the line for the agent.
async fn settled(
    line: Bytes,
    answers: Vec<(String, McpResponse, Box<dyn crate::boundary::Ticket>)>,
) -> Line {
    let mut unrecorded: Vec<(String, Option<EffectId>, LogError)> = Vec::new();
    let mut effects = Vec::new();
    for (id, answer, ticket) in answers {
        let effect = ticket.effect();
        if let Err(error) = ticket.settle(Ending::Response(Response::Mcp(answer))).await {
            tracing::error!("the outcome of a call could not be recorded: {error}");
            unrecorded.push((id, effect, error));
        } else {
            effects.extend(effect);
        }
    }
    if unrecorded.is_empty() {
        return Line {
            bytes: line,
            effects,
        };
    }
    let ids: Vec<String> = unrecorded.iter().map(|(id, ..)| id.clone()).collect();
    let instead = |key: &str, id: &str| {
        let found = unrecorded.iter().find(|(own, ..)| own == key);
        let effect = found
            .and_then(|(_, effect, _)| *effect)
            .map(|effect| format!(" (effect: {effect})"))
            .unwrap_or_default();
        let why = found.map(|(.., why)| why.to_string()).unwrap_or_default();
        let text = format!(
            "ACRFence: the call was sent and answered, and its outcome could not be recorded: {why}. Do not call again \
             before somebody has looked{effect}."
        );
        answer::error(Some(id), SERVER_ERROR, &text)
    };
    Line {
        bytes: outbound::without_answers(&line, &ids, instead).into(),
        effects,
    }
}
