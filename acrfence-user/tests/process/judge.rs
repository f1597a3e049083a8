//! An arbiter that does what a test says, and remembers what it was asked.

use std::collections::VecDeque;
use std::sync::Arc;

use acrfence_user::boundary::{Admission, Arbiter, OpaqueFlow, Ticket, Trouble, Unasked};
use acrfence_user::effect::LogError;
use acrfence_user::words::{
    EffectId, Ending, ProcessIdentity, Refusal, RefusalCode, Request, Response, Seq, ToolCall,
};
use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::Notify;

/// What to do with the next call.
pub enum Verdict {
    Replay(Response),
    Refuse,
    /// Decides only when told.
    Hold(Arc<Notify>),
}

/// A call, who carries it out, and how it ended.
#[derive(Clone, Debug)]
pub struct Seen {
    pub call: ToolCall,
    pub inside: Option<ProcessIdentity>,
    pub ending: Option<Ending>,
}

/// Forwards everything, unless verdicts are given for the next calls.
#[derive(Default)]
pub struct Judge {
    verdicts: Mutex<VecDeque<Verdict>>,
    seen: Mutex<Vec<Seen>>,
    troubles: Mutex<Vec<Trouble>>,
    unasked: Mutex<Vec<Unasked>>,
    news: Notify,
}

impl Judge {
    pub fn next(&self, verdict: Verdict) {
        self.verdicts.lock().push_back(verdict);
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    pub fn unasked(&self) -> Vec<Unasked> {
        self.unasked.lock().clone()
    }

    pub fn troubles(&self) -> Vec<Trouble> {
        self.troubles.lock().clone()
    }

    /// Waits until `count` calls have come to their end.
    pub async fn ended(&self, count: usize) -> Vec<Seen> {
        loop {
            let news = self.news.notified();
            let seen = self.seen();
            if seen.iter().filter(|seen| seen.ending.is_some()).count() >= count {
                return seen;
            }
            tokio::time::timeout(std::time::Duration::from_secs(20), news)
                .await
                .unwrap_or_else(|_| panic!("only {seen:?}"));
        }
    }
}

pub struct Court(pub Arc<Judge>);

struct Duty {
    judge: Arc<Judge>,
    index: usize,
}

#[async_trait]
impl Arbiter for Court {
    async fn admit(&self, call: ToolCall) -> Admission {
        self.decide(call, None).await
    }

    async fn admit_inside(&self, call: ToolCall, inside: ProcessIdentity) -> Admission {
        self.decide(call, Some(inside)).await
    }

    async fn admit_opaque(&self, _: &OpaqueFlow) -> Result<(), Refusal> {
        Ok(())
    }

    fn opaque_ended(&self, _: OpaqueFlow) {}

    async fn witness(&self, call: ToolCall, inside: ProcessIdentity) -> Option<Box<dyn Ticket>> {
        match self.decide(call, Some(inside)).await {
            Admission::Forward(ticket) => Some(ticket),
            _ => None,
        }
    }

    fn trouble(&self, trouble: Trouble) {
        self.0.troubles.lock().push(trouble);
    }

    fn unasked(&self, unasked: Unasked) {
        self.0.unasked.lock().push(unasked);
    }
}

impl Court {
    async fn decide(&self, call: ToolCall, inside: Option<ProcessIdentity>) -> Admission {
        let index = {
            let mut seen = self.0.seen.lock();
            seen.push(Seen {
                call,
                inside,
                ending: None,
            });
            seen.len() - 1
        };
        let verdict = self.0.verdicts.lock().pop_front();
        match verdict {
            Some(Verdict::Replay(response)) => Admission::Replay {
                effect: EffectId(Seq(4)),
                response,
            },
            Some(Verdict::Refuse) => Admission::Refuse(Refusal {
                code: RefusalCode::Diverged,
                title: "It differs from what was done".to_owned(),
                detail: "Fork to run it.".to_owned(),
                effect: Some(EffectId(Seq(4))),
                fields: Vec::new(),
                hold: None,
            }),
            Some(Verdict::Hold(until)) => {
                until.notified().await;
                self.forward(index)
            }
            None => self.forward(index),
        }
    }

    fn forward(&self, index: usize) -> Admission {
        Admission::Forward(Box::new(Duty {
            judge: self.0.clone(),
            index,
        }))
    }
}

#[async_trait]
impl Ticket for Duty {
    fn effect(&self) -> Option<EffectId> {
        Some(EffectId(Seq(7)))
    }

    fn holds_end(&self) -> bool {
        true
    }

    async fn settle(self: Box<Self>, ending: Ending) -> Result<(), LogError> {
        self.judge.seen.lock()[self.index].ending = Some(ending);
        self.judge.news.notify_waiters();
        Ok(())
    }
}

/// A call to a tool of an MCP server: server, tool, arguments.
pub fn mcp(seen: &Seen) -> (String, String, String) {
    match &seen.call.request {
        Request::Mcp(request) => (
            request.server.clone(),
            request.name.clone(),
            request.arguments.clone(),
        ),
        other => panic!("{other:?}"),
    }
}
