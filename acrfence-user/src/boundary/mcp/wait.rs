//! A call that was sent and waits for its answer, wherever that comes from.

use std::time::Duration;

use super::streams::{Scope, broken};
use super::{Call, events, jsonrpc};
use crate::boundary::Ticket;
use crate::boundary::http::exchange::{Asked, Leg};

/// The wait of one call.
pub(crate) struct Wait {
    pub(crate) scope: Scope,
    pub(crate) kind: Kind,
    /// What the id is compared by.
    pub(crate) id: String,
    number: u64,
}

/// Where the answer to a call may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The older transport's one stream.
    Endpoint,
    /// The stream of the call itself, or one that takes it up again.
    Session,
    /// The stream of the call itself.
    Alone,
}

impl Wait {
    /// Begins before the call is sent: over another stream, the answer may come first.
    pub(crate) fn begin(
        leg: &Leg,
        asked: &Asked,
        endpoint: Option<Scope>,
        call: &Call,
        ticket: Box<dyn Ticket>,
    ) -> Self {
        let streams = &leg.shared.streams;
        let agent = &leg.origin.agent;
        let id = jsonrpc::id_key(&call.id);
        let (mut scope, mut kind) = match (endpoint, events::session_of(leg, asked)) {
            (Some(scope), _) => (scope, Kind::Endpoint),
            (None, Some(scope)) => (scope, Kind::Session),
            (None, None) => (streams.alone(agent), Kind::Alone),
        };
        let mut ticket = ticket;
        let number = loop {
            match streams.wait(&scope, &id, ticket) {
                Ok(number) => break number,
                Err(back) => {
                    // Two calls under one id: only their own streams can tell them apart.
                    ticket = back;
                    scope = streams.alone(agent);
                    kind = Kind::Alone;
                }
            }
        };
        Self {
            scope,
            kind,
            id,
            number,
        }
    }

    /// The ticket, unless the answer came.
    pub(crate) fn take(&self, leg: &Leg) -> Option<Box<dyn Ticket>> {
        leg.shared
            .streams
            .take_wait(&self.scope, &self.id, self.number)
    }

    /// Goes on waiting for another stream, but not for ever.
    pub(crate) fn on(self, leg: &Leg, bound: Duration) {
        let shared = leg.shared.clone();
        leg.shared.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(bound) => {}
                () = shared.stop.cancelled() => {}
            }
            let left = shared.streams.take_wait(&self.scope, &self.id, self.number);
            if let Some(ticket) = left {
                broken(
                    ticket,
                    "the result did not come over any other stream either",
                )
                .await;
            }
        });
    }
}
