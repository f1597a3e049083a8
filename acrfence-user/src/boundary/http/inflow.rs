//! A response on its way from the upstream, with the patience that its call deserves.

use std::future::pending;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body::{Body as _, Frame};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::time::sleep_until;

use super::outlet::Outlet;
use super::upstream::chain;
use crate::boundary::config::Limits;

/// A response body as it comes in.
pub(crate) struct Inflow {
    body: Incoming,
    after_hangup: Duration,
    patience: Patience,
    gone_since: Option<Instant>,
    /// Called once when the agent hangs up.
    on_hangup: Option<Box<dyn FnOnce() + Send>>,
}

/// How long a response is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as the agent listens: it is no effect.
    Agent,
    /// Until the outcome is known, within bounds; also when the agent hung up.
    Outcome {
        /// How long it may stay without a byte; none on a stream that may be idle.
        idle: Option<Duration>,
    },
}

/// What came in next.
pub(crate) enum Inflowing {
    Frame(Frame<Bytes>),
    End,
    /// It will not come to its end.
    Broken(String),
    /// The agent hung up, and only for it was this waited for.
    Deserted,
    /// `wake` came first.
    Woken,
}

impl Inflow {
    pub(crate) fn new(body: Incoming, is_effect: bool, limits: &Limits) -> Self {
        Self {
            body,
            after_hangup: limits.after_hangup,
            patience: if is_effect {
                Patience::Outcome {
                    idle: Some(limits.response_idle),
                }
            } else {
                Patience::Agent
            },
            gone_since: None,
            on_hangup: None,
        }
    }

    /// Calls this once when the agent hangs up while the response is waited for.
    pub(crate) fn on_hangup(mut self, call: Option<Box<dyn FnOnce() + Send>>) -> Self {
        self.on_hangup = call;
        self
    }

    /// From now on, waits like this.
    pub(crate) fn wait_as(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Whether the last frame is known to have come.
    pub(crate) fn is_end(&self) -> bool {
        self.body.is_end_stream()
    }

    /// Waits for the next frame. Nothing is lost when this is cancelled.
    pub(crate) async fn next(&mut self, outlet: &mut Outlet, wake: Option<Instant>) -> Inflowing {
        if outlet.is_gone() {
            self.hung_up();
        }
        let listens = self.patience == Patience::Agent;
        let mut give_up = None;
        let mut idle = None;
        if let Patience::Outcome { idle: bound } = self.patience {
            idle = bound;
            if outlet.is_gone() {
                let since = *self.gone_since.get_or_insert_with(Instant::now);
                give_up = Some(since + self.after_hangup);
            }
        }
        let idle_at = idle.map(|idle| Instant::now() + idle);
        let tells = self.on_hangup.is_some();
        tokio::select! {
            biased;
            frame = self.body.frame() => match frame {
                Some(Ok(frame)) => Inflowing::Frame(frame),
                None => Inflowing::End,
                Some(Err(error)) => Inflowing::Broken(format!(
                    "the response broke off: {}",
                    chain(&error)
                )),
            },
            () = outlet.gone(), if listens || tells => {
                self.hung_up();
                if listens { Inflowing::Deserted } else { Inflowing::Woken }
            }
            () = at(wake) => Inflowing::Woken,
            () = at(give_up) => Inflowing::Broken(
                "the agent hung up, and the response did not end for long after that".to_owned()
            ),
            () = at(idle_at) => Inflowing::Broken(format!(
                "no byte of the response came for {:?}", idle.unwrap_or_default()
            )),
        }
    }
}

impl Inflow {
    fn hung_up(&mut self) {
        if let Some(call) = self.on_hangup.take() {
            call();
        }
    }
}

async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}
