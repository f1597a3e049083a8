//! What was stopped, and in observe mode what went through although it would have been: for an audit.

use super::api_errors::log_error;
use super::service::Daemon;
use crate::control::{ApiError, Found, Peer};
use crate::effect::Event;
use crate::fence::tool_key;
use crate::words::{AgentName, Seq};

/// So many records are looked at for one page.
const AT_ONCE: usize = 1000;

impl Daemon {
    /// `GET /v1/report?agent=…&after=…`: what the fence found, oldest first, and where the next page
    /// begins, if there is one.
    pub fn report(
        &self,
        peer: Peer,
        agent: Option<&AgentName>,
        after: Seq,
    ) -> Result<(Vec<Found>, Option<Seq>), ApiError> {
        let records = self
            .pipeline
            .log()
            .refusals(after, AT_ONCE)
            .map_err(log_error)?;
        let next = (records.len() == AT_ONCE)
            .then(|| records.last().map(|(seq, _)| *seq))
            .flatten();
        let found = records.into_iter().filter_map(|(position, event)| {
            let Event::Refused {
                branch,
                call,
                refusal,
                enforced,
                at,
            } = event
            else {
                return None;
            };
            Some(Found {
                position,
                at,
                key: tool_key(&call.request),
                agent: call.origin.agent,
                branch,
                code: refusal.code,
                title: refusal.title,
                effect: refusal.effect,
                fields: refusal.fields,
                stopped: enforced,
            })
        });
        let wanted = found
            .filter(|f| agent.is_none_or(|agent| f.agent == *agent))
            .filter(|f| self.may_see(peer, &f.agent))
            .collect();
        Ok((wanted, next))
    }
}
