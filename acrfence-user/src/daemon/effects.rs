//! What people ask and decide about effects and calls that wait: the control API's answers.

use super::api_errors::{log_error, not_found, pipeline_error};
use super::nesting;
use super::service::Daemon;
use crate::analyzer;
use crate::control::{ApiError, EffectDetail, Explained, HeldCall, Peer, Resolve};
use crate::effect::{EffectFilter, EffectRow, Event, HoldDecision, Page};
use crate::words::{
    Body, EffectId, Header, HoldId, HttpResponse, McpResponse, Request, Resolution, Response,
};

impl Daemon {
    /// `GET /v1/effects`.
    pub fn effects(&self, peer: Peer, filter: &EffectFilter) -> Result<Page<EffectRow>, ApiError> {
        let page = self.pipeline.log().effects(filter).map_err(log_error)?;
        Ok(Page {
            items: self.mine(peer, page.items),
            next: page.next,
        })
    }

    /// `GET /v1/effects/ID`.
    pub fn effect(&self, peer: Peer, id: EffectId) -> Result<EffectDetail, ApiError> {
        let effect = self.pipeline.log().effect(id).map_err(log_error)?;
        let effect = effect
            .filter(|e| self.may_see(peer, &e.call.origin.agent))
            .ok_or_else(|| {
                not_found(format!(
                    "there is no effect {id}; `acrfence effects` lists them"
                ))
            })?;
        let replayed_into = self
            .pipeline
            .with_lineage(|lineage| nesting::replays(lineage, &effect));
        Ok(EffectDetail {
            children: self.pipeline.children(&effect).map_err(log_error)?,
            effect,
            replayed_into,
        })
    }

    /// `GET /v1/effects/ID/explain`: every call that was decided against this effect, compared again
    /// field by field.
    pub fn explain(&self, peer: Peer, id: EffectId) -> Result<Vec<Explained>, ApiError> {
        let effect = self.effect(peer, id)?.effect;
        let mut explained = Vec::new();
        for (position, event) in self.pipeline.log().history(id).map_err(log_error)? {
            let (verdict, call, at) = match event {
                Event::Replayed {
                    effect,
                    call,
                    why,
                    at,
                    ..
                } if effect == id => {
                    let verdict =
                        why.map_or_else(|| "replay".to_owned(), |w| format!("replay: {w}"));
                    (verdict, call, at)
                }
                Event::HoldOpened {
                    effect,
                    call,
                    at,
                    why,
                    ..
                } if effect == id => (format!("hold: {why}"), call, at),
                Event::Refused {
                    refusal,
                    call,
                    at,
                    enforced,
                    ..
                } if refusal.effect == Some(id) => {
                    let how = if enforced { "block" } else { "observed" };
                    (format!("{how}: {}", refusal.code.as_str()), call, at)
                }
                _ => continue,
            };
            let comparison = self.pipeline.compare(&effect, &call);
            explained.push(Explained {
                position,
                at,
                verdict,
                likeness: comparison.likeness,
                words: analyzer::explain(&comparison),
                fields: comparison.fields,
            });
        }
        Ok(explained)
    }

    /// `POST /v1/effects/ID/resolve`.
    pub async fn resolve(
        &self,
        peer: Peer,
        id: EffectId,
        wanted: Resolve,
    ) -> Result<EffectDetail, ApiError> {
        let effect = self.effect(peer, id)?.effect;
        self.check_changes(peer, &effect.call.origin.agent)?;
        let resolution = match wanted {
            Resolve::DidNotHappen => Resolution::DidNotHappen,
            Resolve::Happened(response) => Resolution::Happened(response),
            Resolve::HappenedWith { body } => {
                Resolution::Happened(response_from(&effect.call.request, body)?)
            }
        };
        self.pipeline
            .resolve(id, resolution, format!("uid {}", peer.uid))
            .await
            .map_err(pipeline_error)?;
        self.effect(peer, id)
    }

    /// `GET /v1/holds`.
    pub fn holds(&self, peer: Peer) -> Vec<HeldCall> {
        let open = self.pipeline.open_holds();
        open.into_iter()
            .filter(|h| self.may_see(peer, &h.call.origin.agent))
            .map(held)
            .collect()
    }

    /// `POST /v1/holds/ID`.
    pub async fn decide_hold(
        &self,
        peer: Peer,
        id: HoldId,
        decision: HoldDecision,
    ) -> Result<HeldCall, ApiError> {
        let hold = self.pipeline.hold(id).ok_or_else(|| {
            not_found(format!(
                "there is no hold {id}; `acrfence holds` lists them"
            ))
        })?;
        self.check_changes(peer, &hold.call.origin.agent)?;
        self.pipeline
            .decide_hold(id, decision, format!("uid {}", peer.uid))
            .await
            .map_err(pipeline_error)?;
        Ok(held(hold))
    }
}

/// Makes a response of the words a person gave.
fn response_from(request: &Request, body: String) -> Result<Response, ApiError> {
    Ok(match request {
        Request::Http(_) => Response::Http(HttpResponse {
            status: 200,
            headers: vec![Header::new("content-type", "application/json")],
            body: Body::whole(body),
            trailers: Vec::new(),
        }),
        Request::Mcp(mcp) => Response::Mcp(McpResponse::of_text(mcp, &body)),
        Request::Exec(_) => Response::Exec(crate::words::ExecResponse {
            exit: 0,
            stdout: Body::whole(body),
            stderr: Body::empty(),
        }),
    })
}

fn held(hold: super::Hold) -> HeldCall {
    HeldCall {
        id: hold.id,
        agent: hold.call.origin.agent,
        branch: hold.branch,
        key: hold.key.0,
        effect: hold.effect,
        why: hold.why,
        at: hold.at,
    }
}
