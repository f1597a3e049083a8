//! From the agent to the program: calls are admitted on the way.

use std::sync::Arc;

use bytes::BytesMut;
use http::HeaderMap;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::classify::{Class, classify};
use super::flow::{Broken, Sink, Source};
use super::inbound::{self, Inbound};
use super::lines::{Line, Lines};
use super::relay::{Said, Shared, broken, not_sent, settle};
use crate::boundary::mcp::{Call, Calls, Part, answer, jsonrpc};
use crate::boundary::{Admission, Ticket, refusal};
use crate::words::{EffectId, Response};

/// Runs this direction; gives the number of bytes that came.
pub(super) async fn run(shared: Arc<Shared>, source: Source, sink: Sink) -> u64 {
    let mut head = BytesMut::new();
    let (class, ended) = loop {
        let length = read(&source, &sink, &mut head).await;
        let Some(length) = length else {
            return head.len() as u64;
        };
        match classify(&head, length == 0, shared.limits().first) {
            Class::Undecided if length > 0 => {}
            class => break (class, length == 0),
        }
    };
    // Told before a byte goes on: what the server says to it must be seen as what it is.
    shared.class.send_replace(class);
    match class {
        Class::Rpc => {
            let mut direction = Direction {
                lines: Lines::new(shared.limits().message),
                wire: Arc::new(Wire {
                    shared,
                    sink,
                    turn: tokio::sync::Mutex::new(()),
                }),
                tasks: TaskTracker::new(),
                held: Arc::default(),
            };
            direction.run(source, head, ended).await
        }
        Class::Raw | Class::Undecided => raw(source, sink, head, ended).await,
    }
}

/// Reads more; none when the program has closed its input or the source is broken.
async fn read(source: &Source, sink: &Sink, into: &mut BytesMut) -> Option<usize> {
    tokio::select! {
        length = source.read(into) => length.ok(),
        () = sink.hung_up() => None,
    }
}

async fn raw(source: Source, sink: Sink, head: BytesMut, ended: bool) -> u64 {
    let mut all = head.len() as u64;
    if sink.write_all(&head).await.is_err() || ended {
        return all;
    }
    loop {
        let moved = tokio::select! {
            moved = source.splice(&sink) => moved,
            () = sink.hung_up() => return all,
        };
        match moved {
            Ok(0) | Err(_) => return all,
            Ok(length) => all += length as u64,
        }
    }
}

struct Direction {
    wire: Arc<Wire>,
    lines: Lines,
    /// Calls that wait for their admission.
    tasks: TaskTracker,
    held: Held,
}

/// Calls that wait for their admission, by id, and how to call them off.
type Held = Arc<Mutex<Vec<(String, CancellationToken)>>>;

/// The way to the server, which one line takes at a time.
struct Wire {
    shared: Arc<Shared>,
    sink: Sink,
    turn: tokio::sync::Mutex<()>,
}

impl Direction {
    async fn run(&mut self, source: Source, mut chunk: BytesMut, mut ended: bool) -> u64 {
        let mut all = 0;
        loop {
            all += chunk.len() as u64;
            self.lines.push(&chunk);
            chunk.clear();
            while let Some(line) = self.lines.next_line() {
                self.line(line).await;
            }
            if ended {
                break;
            }
            match read(&source, &self.wire.sink, &mut chunk).await {
                Some(length) => ended = length == 0,
                // The server closed its input. The agent learns of it as it would without us.
                None => return all,
            }
        }
        // The last line may lack its newline: no held one may come behind it.
        self.decided().await;
        if let Some(line) = self.lines.take_rest() {
            self.line(line).await;
            self.decided().await;
        }
        let shared = &self.wire.shared;
        let linger = tokio::time::sleep(shared.limits().linger);
        tokio::pin!(linger);
        loop {
            let fewer = shared.fewer.notified();
            if !shared.waiting.lock().has_calls() {
                return all;
            }
            tokio::select! {
                () = fewer => {}
                () = &mut linger => return all,
                () = self.wire.sink.hung_up() => return all,
            }
        }
    }

    /// Waits until no call waits for its admission.
    async fn decided(&self) {
        self.tasks.close();
        self.tasks.wait().await;
        self.tasks.reopen();
    }

    async fn line(&mut self, line: Line) {
        let shared = &self.wire.shared;
        let (bytes, inbound) = match line {
            Line::Whole(bytes) => {
                let inbound = inbound::understand(&bytes, &shared.session.server);
                (bytes, inbound)
            }
            Line::TooLong { length } => {
                let bound = shared.limits().message;
                (Default::default(), inbound::too_long(length, bound))
            }
        };
        match inbound {
            Inbound::Pass { lists_tools } => {
                self.wire.asks_for_tools(lists_tools);
                // When the server is gone, reading ends next.
                let _ = self.wire.send(&bytes).await;
            }
            Inbound::Cancels { id } => {
                if !self.call_off(&id) {
                    let _ = self.wire.send(&bytes).await;
                    self.wire.expect_no_more(id);
                }
            }
            Inbound::Refused { answer, why } => {
                shared.trouble(format!("a message was not passed on: {why}"));
                self.wire.answer(answer, Vec::new()).await;
            }
            Inbound::Calls(calls) => {
                let own = held(&calls);
                self.held.lock().extend(own.iter().cloned());
                let (wire, all_held) = (self.wire.clone(), self.held.clone());
                let task = self.tasks.spawn(async move {
                    wire.carry(calls, &bytes, &own).await;
                    let ended = |id: &String| own.iter().any(|(own, _)| own == id);
                    all_held.lock().retain(|(id, _)| !ended(id));
                });
                // In order, as long as that takes no time that anybody notices.
                let _ = tokio::time::timeout(shared.limits().patience, task).await;
            }
        }
    }

    /// Calls a held call off; false when none with this id is held.
    fn call_off(&self, id: &str) -> bool {
        let held = self.held.lock();
        let key = jsonrpc::id_key(id);
        let found = held.iter().find(|(own, _)| jsonrpc::id_key(own) == key);
        if let Some((_, called_off)) = found {
            called_off.cancel();
        }
        found.is_some()
    }
}

fn held(calls: &Calls) -> Vec<(String, CancellationToken)> {
    calls
        .messages
        .iter()
        .filter_map(|part| match part {
            Part::Call(call) => Some((call.id.clone(), CancellationToken::new())),
            Part::Other { .. } => None,
        })
        .collect()
}

impl Wire {
    /// Has calls decided and does what was decided: `line` is what they came in.
    async fn carry(&self, calls: Calls, line: &[u8], held: &[(String, CancellationToken)]) {
        let mut parts = Vec::with_capacity(calls.messages.len());
        let mut tickets = Vec::new();
        let mut answers = Vec::new();
        let mut effects = Vec::new();
        let mut held = held.iter();
        let mut is_as_it_was = true;
        for part in calls.messages {
            match part {
                Part::Other { text, .. } => parts.push(text),
                Part::Call(call) => {
                    let called_off = held.next().map(|(_, token)| token);
                    match self.decide(&call, called_off).await {
                        Decided::Send(ticket) => {
                            parts.push(call.text);
                            tickets.push((call.id, ticket));
                        }
                        Decided::Answer(answer) => {
                            is_as_it_was = false;
                            answers.push(answer);
                        }
                        Decided::Replay(answer, effect) => {
                            is_as_it_was = false;
                            answers.push(answer);
                            effects.push(effect);
                        }
                        Decided::Nothing => is_as_it_was = false,
                    }
                }
            }
        }
        if !parts.is_empty() {
            let rest;
            let bytes = if is_as_it_was {
                line
            } else {
                rest = format!("[{}]\n", parts.join(","));
                rest.as_bytes()
            };
            self.send_calls(bytes, tickets).await;
        }
        let answer = match &answers[..] {
            [] => None,
            answers if calls.batch => Some(format!("[{}]", answers.join(","))),
            answers => Some(answers.join("\n")),
        };
        self.answer(answer, effects).await;
    }

    async fn decide(&self, call: &Call, called_off: Option<&CancellationToken>) -> Decided {
        let tell = |text: &str| Decided::Answer(answer::tool_error(call, &HeaderMap::new(), text));
        let admission = self.shared.admit(call.request.clone()).await;
        let is_off = called_off.is_some_and(CancellationToken::is_cancelled);
        match admission {
            Admission::Forward(ticket) if is_off => {
                settle(
                    ticket,
                    not_sent("the agent cancelled it before it was sent"),
                )
                .await;
                Decided::Nothing
            }
            // Whoever cancelled does not expect an answer.
            Admission::Replay { effect, .. } if is_off => {
                self.shared.undelivered(&[effect]);
                Decided::Nothing
            }
            _ if is_off => Decided::Nothing,
            Admission::Forward(ticket) => Decided::Send(ticket),
            Admission::Refuse(refused) => tell(&refusal::in_words(&refused)),
            Admission::Replay {
                effect,
                response: Response::Mcp(recorded),
            } => Decided::Replay(answer::replayed(&call.id, &recorded), effect),
            Admission::Replay { effect, .. } => {
                let why = "its recorded response carries no tool result";
                tell(&refusal::in_words(&refusal::cannot_replay(effect, why)))
            }
        }
    }

    /// Sends a line with calls in it.
    async fn send_calls(&self, line: &[u8], tickets: Vec<(String, Box<dyn Ticket>)>) {
        let _turn = self.turn.lock().await;
        let ids: Vec<String> = tickets.iter().map(|(id, _)| id.clone()).collect();
        let twice = {
            let mut waiting = self.shared.waiting.lock();
            let mut twice = Vec::new();
            for (id, ticket) in tickets {
                if waiting.has_call(&id) {
                    twice.push((id, ticket));
                } else {
                    waiting.add_call(id, ticket);
                }
            }
            twice
        };
        if !twice.is_empty() {
            // Which answer belongs to which could not be told.
            self.refuse_twice(&ids, twice).await;
            return;
        }
        let Err(failed) = self.write(line).await else {
            return;
        };
        for id in ids {
            let ticket = self.shared.waiting.lock().take_call(&id);
            if let Some(ticket) = ticket {
                let why = format!("the server took no more input: {}", failed.error);
                let ending = if failed.written == 0 {
                    not_sent(&why)
                } else {
                    broken(&why)
                };
                settle(ticket, ending).await;
            }
        }
    }

    async fn refuse_twice(&self, ids: &[String], twice: Vec<(String, Box<dyn Ticket>)>) {
        const WHY: &str = "a call with the same id is still running";
        let mut answers = Vec::new();
        let twice_ids: Vec<&String> = twice.iter().map(|(id, _)| id).collect();
        for id in ids.iter().filter(|id| !twice_ids.contains(id)) {
            let ticket = self.shared.waiting.lock().take_call(id);
            if let Some(ticket) = ticket {
                settle(ticket, not_sent(WHY)).await;
            }
        }
        for (id, ticket) in twice {
            settle(ticket, not_sent(WHY)).await;
            let text = format!("ACRFence did not pass this message on: {WHY}");
            answers.push(answer::error(Some(&id), jsonrpc::INVALID_REQUEST, &text));
        }
        self.shared
            .trouble(format!("a call was not passed on: {WHY}"));
        self.answer(Some(answers.join("\n")), Vec::new()).await;
    }

    /// Sends a line that needs no admission.
    async fn send(&self, line: &[u8]) -> Result<(), Broken> {
        let _turn = self.turn.lock().await;
        self.write(line).await
    }

    /// Writes while it is this line's turn.
    async fn write(&self, line: &[u8]) -> Result<(), Broken> {
        self.sink.write_all(line).await
    }

    /// Gives the agent a line of our own, which plays the record of `effects` back.
    async fn answer(&self, line: Option<String>, effects: Vec<EffectId>) {
        let Some(line) = line else {
            return;
        };
        let said = Said {
            line: line + "\n",
            effects,
        };
        if let Err(unsaid) = self.shared.answers.send(said).await {
            // Nobody takes it: the agent is gone.
            self.shared.undelivered(&unsaid.0.effects);
        }
    }

    fn asks_for_tools(&self, ids: Vec<String>) {
        let mut waiting = self.shared.waiting.lock();
        for id in ids {
            waiting.add_list(id);
        }
    }

    /// After a while, a cancelled call counts as never answered.
    fn expect_no_more(&self, id: String) {
        {
            let waiting = self.shared.waiting.lock();
            if !waiting.has_call(&id) {
                return;
            }
            if let Some(effect) = waiting.effect(&id) {
                self.shared.abandoned(effect);
            }
        }
        let shared = self.shared.clone();
        tokio::spawn(async move {
            tokio::time::sleep(shared.limits().after_cancel).await;
            let ticket = shared.waiting.lock().take_call(&id);
            if let Some(ticket) = ticket {
                settle(ticket, broken("the agent cancelled it, and no answer came")).await;
                shared.fewer.notify_waiters();
            }
        });
    }
}

/// What a decision leads to.
enum Decided {
    Send(Box<dyn Ticket>),
    Answer(String),
    /// An answer from the record of an effect.
    Replay(String, EffectId),
    Nothing,
}
