//! The door that the boundary knocks at: what a call is, and whether it needs a look.

use bytes::Bytes;

use super::in_doubt::Doubt;
use super::pipeline::Pipeline;
use super::ticket::ObservedTicket;
use crate::analyzer::credential;
use crate::boundary::{Admission, Arbiter, Courier, OpaqueFlow, Ticket, Trouble, Unasked};
use crate::effect::LogError;
use crate::fence::tool_key;
use crate::lineage::conversation::{ModelTraffic, may_be_model, recognise};
use crate::policy::Kind;
use crate::words::{EffectId, Origin, ProcessIdentity, Refusal, RefusalCode, Request, ToolCall};

#[async_trait::async_trait]
impl Arbiter for Pipeline {
    async fn admit(&self, call: ToolCall) -> Admission {
        self.take(call, None, None).await
    }

    async fn admit_asking(&self, call: ToolCall, courier: &dyn Courier) -> Admission {
        self.take(call, None, Some(courier)).await
    }

    async fn admit_inside(&self, call: ToolCall, inside: ProcessIdentity) -> Admission {
        let admitted = self.take(call, None, None).await;
        self.carried_out(admitted, inside)
    }

    async fn witness(&self, call: ToolCall, inside: ProcessIdentity) -> Option<Box<dyn Ticket>> {
        let kind = self
            .config()
            .classify(&call, false, Default::default())
            .kind;
        let admitted = match kind {
            Kind::Effect => self.happened(call).await,
            Kind::ReadOnly | Kind::Model => return None,
        };
        match admitted {
            Ok(admitted) => match self.carried_out(admitted, inside) {
                Admission::Forward(ticket) => Some(ticket),
                Admission::Replay { .. } | Admission::Refuse(_) => None,
            },
            Err(e) => {
                tracing::error!("a command that runs could not be recorded: {e}");
                None
            }
        }
    }

    fn wants_whole(&self, method: &str, url: &str) -> bool {
        may_be_model(method, url)
    }

    async fn admit_whole(&self, call: ToolCall, body: Bytes, courier: &dyn Courier) -> Admission {
        self.take(call, Some(&body), Some(courier)).await
    }

    async fn admit_opaque(&self, flow: &OpaqueFlow) -> Result<(), Refusal> {
        self.let_through(flow).await
    }

    fn opaque_began(&self, flow: &OpaqueFlow) {
        self.flow_began(flow);
    }

    async fn opaque_revoked(&self, flow: &OpaqueFlow) {
        self.until_denied(flow).await;
    }

    fn opaque_ended(&self, flow: OpaqueFlow) {
        self.flow_ended(flow);
    }

    fn trouble(&self, trouble: Trouble) {
        tracing::warn!(agent = %trouble.origin.agent, pid = trouble.origin.process.tgid, "{}", trouble.detail);
        self.0.notices.trouble(trouble);
    }

    fn unasked(&self, unasked: Unasked) {
        self.note_unasked(unasked);
    }

    fn abandoned(&self, _origin: &Origin, effect: EffectId) {
        self.abandon(effect);
    }

    fn undelivered(&self, _origin: &Origin, effect: EffectId) {
        let pipeline = self.clone();
        tokio::spawn(async move {
            if let Err(e) = pipeline.lose_outcome(effect).await {
                tracing::error!(
                    "it could not be written down that the outcome of {effect} was lost: {e}"
                );
            }
        });
    }

    fn take_secrets_off(&self, argv: &mut [String]) {
        Self::take_secrets_off(self, argv);
    }

    fn tools_seen(&self, _origin: &Origin, server: &str, tools: &str) {
        self.0.tools.learn(server, tools);
    }
}

impl Pipeline {
    /// Takes a call its way. `body` is there where it may be a model request: whole and decoded. A
    /// `courier` goes the way that the call would take.
    async fn take(
        &self,
        call: ToolCall,
        body: Option<&[u8]>,
        courier: Option<&dyn Courier>,
    ) -> Admission {
        let Some(thread) = self.with_lineage(|l| l.main_thread(&call.origin.agent)) else {
            return Admission::Refuse(not_attached());
        };
        let hints = match &call.request {
            Request::Mcp(mcp) => self.0.tools.hints(&mcp.server, &mcp.name),
            _ => Default::default(),
        };
        let traffic = match (&call.request, body) {
            (Request::Http(http), Some(body)) => {
                tokio::task::block_in_place(|| recognise(&http.method, &http.url, body, false))
            }
            _ => None,
        };
        let treatment = self.config().classify(&call, traffic.is_some(), hints);
        let admitted = match treatment.kind {
            Kind::Effect => self.effect(call, courier).await,
            Kind::ReadOnly => {
                let ticket = ObservedTicket::read(self.clone(), thread, call.request);
                Ok(Admission::Forward(Box::new(ticket)))
            }
            Kind::Model => {
                let conversation = match (traffic, body) {
                    (Some(ModelTraffic::Conversation(format)), Some(body)) => {
                        self.read_model_request(&call, format, body).await
                    }
                    _ => Ok(None),
                };
                match conversation {
                    Ok(asking) => {
                        let note = match (&asking, body) {
                            (Some(asking), Some(body)) => self.note_for(&call, asking, body).await,
                            _ => None,
                        };
                        let request = call.request;
                        let ticket = ObservedTicket::model(self.clone(), thread, request, asking);
                        Ok(Admission::Forward(Box::new(ticket.with(note))))
                    }
                    Err(e) => Err(e),
                }
            }
        };
        admitted.unwrap_or_else(|e| cannot_record(&e))
    }

    /// Records an effect that is on its way already.
    async fn happened(&self, mut call: ToolCall) -> Result<Admission, LogError> {
        let asks = self.asks(&call).await;
        let presented = credential::presented(&call.request);
        self.take_secrets_out(&mut call);
        self.decided().effect(&call);
        let key = tool_key(&call.request);
        if let Some(within) = self.0.nesting.around(call.origin.process) {
            return self.admit_within(call, key, presented, within).await;
        }
        let (_shared, placed) = self.desk_shared(&call.origin, asks.as_ref()).await;
        let placed = placed.as_ref();
        let Some(place) = self.place(&call.origin.agent, placed) else {
            return Ok(Admission::Refuse(not_attached()));
        };
        let presented = self.fingerprints(&presented);
        self.forward(call, place, placed, key, presented, None)
            .await
    }

    /// Takes an effect's call its way.
    async fn effect(
        &self,
        mut call: ToolCall,
        courier: Option<&dyn Courier>,
    ) -> Result<Admission, LogError> {
        let asks = self.asks(&call).await;
        let presented = credential::presented(&call.request);
        let doubt = Doubt::of(&self.config(), &call.request, courier);
        self.take_secrets_out(&mut call);
        self.decided().effect(&call);
        let key = tool_key(&call.request);
        if let Some(within) = self.0.nesting.around(call.origin.process) {
            return self.admit_within(call, key, presented, within).await;
        }
        // Only now is the branch the one that the record will stand in.
        let (shared, placed) = self.desk_shared(&call.origin, asks.as_ref()).await;
        let placed = placed.as_ref();
        let Some(place) = self.place(&call.origin.agent, placed) else {
            return Ok(Admission::Refuse(not_attached()));
        };
        let again =
            placed.is_some_and(|p| p.placement.again.is_some() || !p.placement.orders.is_empty());
        if again || self.0.needs_a_look(&call.origin.agent, place, &key) {
            drop(shared);
            return self.decide(call, asks, key, presented, doubt).await;
        }
        let presented = self.fingerprints(&presented);
        self.forward(call, place, placed, key, presented, None)
            .await
    }
}

pub(super) fn cannot_record(error: &LogError) -> Admission {
    tracing::error!("a call was refused because the effect log could not take it: {error}");
    Admission::Refuse(unavailable(
        "The effect log cannot take this call.",
        &format!("Nothing was sent. {error}."),
    ))
}

pub(super) fn not_attached() -> Refusal {
    Refusal {
        code: RefusalCode::Policy,
        ..unavailable(
            "This agent is not attached any more.",
            "Nothing was sent. Attach it again with `acrfence attach PID`.",
        )
    }
}

fn unavailable(title: &str, detail: &str) -> Refusal {
    Refusal {
        code: RefusalCode::LogUnavailable,
        title: title.into(),
        detail: detail.into(),
        effect: None,
        fields: Vec::new(),
        hold: None,
    }
}
