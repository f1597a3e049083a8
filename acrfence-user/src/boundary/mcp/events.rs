//! The answer to a tool call as a stream of events: each passes through as it comes, but the one
//! that carries the result waits until the outcome is on disk.

use bytes::Bytes;
use http_body::Frame;

use super::{answer, jsonrpc, sse};
use crate::boundary::Ticket;
use crate::boundary::config::Limits;
use crate::boundary::http::relay::{self, Inflow, Inflowing, Outlet, Reply};
use crate::boundary::refusal::Failure;
use crate::effect::LogError;
use crate::words::{EffectId, Ending, Response as Recorded};

/// Passes the events on and settles the ticket of the call `id`. True when the stream came to its
/// end.
pub(crate) async fn pass(
    response: http::Response<hyper::body::Incoming>,
    id: &str,
    ticket: Box<dyn Ticket>,
    reply: Reply,
    limits: &Limits,
) -> bool {
    let (head, body) = response.into_parts();
    let effect = ticket.effect();
    let mut stream = Stream {
        id: id.to_owned(),
        effect,
        ticket: Some(ticket),
    };
    let mut outlet = Outlet::new(reply, relay::head_for_agent(&head), None, limits);
    outlet.open();
    let mut inflow = Inflow::new(body, effect.is_some(), limits);
    let mut splitter = Some(sse::Splitter::new(limits.rpc));
    loop {
        // Once the outcome is on disk, nobody needs the rest but the agent.
        if stream.ticket.is_none() && outlet.is_gone() {
            return false;
        }
        match inflow.next(&mut outlet, None).await {
            Inflowing::Frame(frame) => {
                let Some(data) = frame.data_ref() else {
                    outlet.frame(frame).await;
                    continue;
                };
                let Some(cutter) = &mut splitter else {
                    outlet.frame(frame).await;
                    continue;
                };
                match cutter.push(data) {
                    Ok(events) => {
                        for event in events {
                            if let Err(error) = stream.event(event, &mut outlet).await {
                                return stream.not_recorded(outlet, error).await;
                            }
                        }
                    }
                    Err(too_long) => {
                        stream.broken(too_long.to_string()).await;
                        outlet.frame(Frame::data(too_long.raw)).await;
                        splitter = None;
                    }
                }
            }
            Inflowing::End => {
                if let Some(left) = splitter.and_then(sse::Splitter::finish)
                    && let Err(error) = stream.event(left, &mut outlet).await
                {
                    return stream.not_recorded(outlet, error).await;
                }
                stream
                    .broken("the stream of events ended without the result".to_owned())
                    .await;
                outlet.end(Vec::new()).await;
                return true;
            }
            Inflowing::Broken(why) => {
                stream.broken(why.clone()).await;
                outlet.cut(Failure::InDoubt, &why, effect).await;
                return false;
            }
            Inflowing::Woken => {}
        }
    }
}

struct Stream {
    id: String,
    effect: Option<EffectId>,
    /// None once settled.
    ticket: Option<Box<dyn Ticket>>,
}

impl Stream {
    /// Passes an event on, after settling when it carries the result.
    async fn event(&mut self, event: sse::Event, outlet: &mut Outlet) -> Result<(), LogError> {
        let found = event.data.as_deref().and_then(|data| {
            jsonrpc::parse_messages(data)
                .iter()
                .find_map(|message| answer::answer_to(message, &self.id))
        });
        let raw: Bytes = event.raw;
        let Some((answer, ticket)) = found.and_then(|a| self.ticket.take().map(|t| (a, t))) else {
            outlet.frame(Frame::data(raw)).await;
            return Ok(());
        };
        let ending = Ending::Response(Recorded::Mcp(answer));
        if ticket.holds_end() {
            ticket.settle(ending).await?;
            outlet.frame(Frame::data(raw)).await;
        } else {
            outlet.frame(Frame::data(raw)).await;
            if let Err(error) = ticket.settle(ending).await {
                tracing::error!("the outcome of a call could not be recorded: {error}");
            }
        }
        Ok(())
    }

    /// Settles as broken, unless it is settled.
    async fn broken(&mut self, why: String) {
        if let Some(ticket) = self.ticket.take()
            && let Err(error) = ticket.settle(Ending::Broken { why, partial: None }).await
        {
            tracing::error!("the outcome of a call could not be recorded: {error}");
        }
    }

    async fn not_recorded(self, outlet: Outlet, error: LogError) -> bool {
        tracing::error!("the outcome of a call could not be recorded: {error}");
        outlet
            .cut(Failure::NotRecorded, &error.to_string(), self.effect)
            .await;
        false
    }
}
