//! Effects in doubt that policy can find out about: by asking, or by sending the original again
//! (DESIGN.md §7). The question goes over the way of the call that repeats the effect, with that
//! call's own credentials where they are the very ones of the original, and with none otherwise.

use std::collections::HashSet;
use std::time::Duration;

use parking_lot::Mutex;

use super::now;
use super::pipeline::{Inner, Pipeline, PipelineError};
use crate::analyzer::{credential, harvest};
use crate::boundary::Courier;
use crate::effect::{Event, LogError};
use crate::policy::{Config, Finding, InDoubt};
use crate::words::{Effect, EffectId, Request, Resolution, Seq, Status, ToolCall};

/// Effects that a question is on its way about.
#[derive(Default)]
pub(super) struct Asking(Mutex<HashSet<EffectId>>);

/// What a call brings along to find out about an effect it repeats.
pub(super) struct Doubt<'a> {
    courier: Option<&'a dyn Courier>,
    /// The call as it was sent, secrets and all: kept as long as the call is decided, never longer.
    live: Option<Request>,
    /// Effects that this call has asked about: once is enough.
    asked: HashSet<EffectId>,
}

impl<'a> Doubt<'a> {
    /// For a call before its secrets are taken out.
    pub(super) fn of(config: &Config, request: &Request, courier: Option<&'a dyn Courier>) -> Self {
        let may_ask = courier.is_some() && config.rule.iter().any(|rule| rule.in_doubt.is_some());
        Self {
            courier,
            live: may_ask.then(|| request.clone()),
            asked: HashSet::new(),
        }
    }

    /// Whether whoever made the call hung up meanwhile.
    pub(super) fn is_gone(&self) -> bool {
        self.courier.is_some_and(Courier::is_gone)
    }
}

/// A question that may be sent now. While it lives, nobody else asks about the effect.
pub(super) struct Question<'a> {
    courier: &'a dyn Courier,
    claim: Claim,
    effect: Effect,
    rule: String,
    in_doubt: InDoubt,
    /// As it is kept.
    kept: Request,
    /// As it is sent.
    live: Request,
    timeout: Duration,
}

/// Marks an effect as asked about.
struct Claim {
    pipeline: Pipeline,
    effect: EffectId,
}

impl Claim {
    fn take(pipeline: &Pipeline, effect: EffectId) -> Option<Self> {
        pipeline.0.asking.0.lock().insert(effect).then(|| Self {
            pipeline: pipeline.clone(),
            effect,
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.pipeline.0.asking.0.lock().remove(&self.effect);
        // Whoever waited for the answer decides again.
        self.pipeline.0.touch();
    }
}

impl Pipeline {
    /// Leaves fingerprints where the secrets of a call stood, and what policy names: in the request, and
    /// among the arguments of the process that makes it.
    pub(super) fn take_secrets_out(&self, call: &mut ToolCall) {
        self.take_secrets_off(&mut call.origin.argv);
        let request = &mut call.request;
        let key = &self.0.keys.credentials;
        credential::redact(request, key);
        let redact = &self.config().log.redact;
        credential::redact_named(
            request,
            key,
            |name| redact.hides_header(name),
            |name| redact.hides_variable(name),
        );
    }

    /// Leaves fingerprints where the secrets of a command line stood.
    pub(super) fn take_secrets_off(&self, argv: &mut [String]) {
        let config = self.config();
        let hides = |name: &str| config.log.redact.hides_header(name);
        credential::redact_command_line(argv, &self.0.keys.credentials, &hides);
    }

    /// The question that policy allows this call to ask about an effect in doubt; none when there is
    /// none, when it was asked, or while another call asks it.
    pub(super) async fn question<'a>(
        &self,
        doubt: &mut Doubt<'a>,
        effect: EffectId,
    ) -> Result<Option<Question<'a>>, LogError> {
        let (Some(courier), Some(live)) = (doubt.courier, &doubt.live) else {
            return Ok(None);
        };
        if doubt.asked.contains(&effect) {
            return Ok(None);
        }
        let Some(effect) = self.0.log.effect(effect)? else {
            return Ok(None);
        };
        let config = self.config().clone();
        let Some((number, in_doubt)) = config.in_doubt(&effect.call) else {
            return Ok(None);
        };
        if effect.status != Status::InDoubt {
            return Ok(None);
        }
        let Some(claim) = Claim::take(self, effect.id) else {
            return Ok(None);
        };
        doubt.asked.insert(effect.id);
        let rule = format!("rule {number} of the policy");
        let planned = in_doubt
            .plan(&effect, now(), credential::is_secret_header)
            .and_then(|plan| Ok((unsealed(&self.0, &plan.question, live)?, plan)));
        match planned {
            Ok((live, plan)) => Ok(Some(Question {
                courier,
                claim,
                rule,
                in_doubt: in_doubt.clone(),
                kept: plan.question,
                live,
                timeout: plan.timeout.0,
                effect,
            })),
            Err(why) => {
                tracing::warn!("{rule} cannot find out about {}: {why}", effect.id);
                let event = answered(effect.id, Seq(0), None, "not_asked", why);
                self.0.log.append(event).await?;
                Ok(None)
            }
        }
    }

    /// Asks, writes down what was asked and said, and resolves the effect where the answer tells.
    pub(super) async fn ask(&self, question: Question<'_>) -> Result<(), LogError> {
        let Question {
            courier,
            claim,
            effect,
            rule,
            in_doubt,
            kept,
            live,
            timeout,
        } = question;
        let asked = self
            .0
            .log
            .append(Event::Asked {
                effect: effect.id,
                rule: rule.clone(),
                how: in_doubt.word().into(),
                question: Box::new(kept),
                at: now(),
            })
            .await?;
        let ending = courier.carry(&live, timeout).await;
        drop(live);
        let answer = match &ending {
            crate::words::Ending::Response(response) => Some(response.clone()),
            _ => None,
        };
        let finding = in_doubt.read(&effect, ending, now());
        let (word, why) = match &finding {
            Finding::Happened(_) => ("happened", String::new()),
            Finding::DidNotHappen => ("did_not_happen", String::new()),
            Finding::Unknown(why) => ("unknown", why.clone()),
        };
        tracing::info!("{rule} asked what became of {}: {word} {why}", effect.id);
        self.0
            .log
            .append(answered(effect.id, asked, answer, word, why))
            .await?;
        let resolution = match finding {
            Finding::Unknown(_) => return Ok(()),
            Finding::DidNotHappen => Resolution::DidNotHappen,
            Finding::Happened(response) => {
                if let InDoubt::Resend(_) = in_doubt {
                    self.take_in(&effect, &response).await?;
                }
                Resolution::Happened(response)
            }
        };
        let by = format!("{rule} ({}, record {asked})", in_doubt.word());
        let resolved = match self.resolve(effect.id, resolution, by).await {
            Err(PipelineError::Log(e)) => Err(e),
            // A person was quicker.
            Ok(()) | Err(_) => Ok(()),
        };
        drop(claim);
        resolved
    }

    /// What the response of the effect itself told, as it would have been noted in the first place.
    async fn take_in(
        &self,
        effect: &Effect,
        response: &crate::words::Response,
    ) -> Result<(), LogError> {
        let keys = &self.0.keys;
        let request = Some(&effect.call.request);
        let harvest = harvest::response(&keys.values, &keys.credentials, request, response);
        let event = Event::Observed {
            thread: effect.thread,
            harvest,
            at: now(),
        };
        self.0.log.append(event).await.map(drop)
    }
}

fn answered(
    effect: EffectId,
    asked: Seq,
    answer: Option<crate::words::Response>,
    finding: &str,
    why: String,
) -> Event {
    Event::Answered {
        effect,
        asked,
        answer,
        finding: finding.into(),
        why,
        at: now(),
    }
}

/// The question with the secrets of the original, which the call must carry itself.
fn unsealed(inner: &Inner, question: &Request, live: &Request) -> Result<Request, String> {
    let key = &inner.keys.credentials;
    let missing = || {
        "the call does not carry the credentials of the original, and no others are used".to_owned()
    };
    let mut question = question.clone();
    match (&mut question, live) {
        (Request::Http(http), Request::Http(own)) => {
            http.headers =
                credential::unseal(&http.headers, &own.headers, key).ok_or_else(missing)?;
            http.url = credential::unseal_url(&http.url, &own.url, key).ok_or_else(missing)?;
        }
        (Request::Http(http), Request::Mcp(own)) => {
            http.headers =
                credential::unseal(&http.headers, &own.headers, key).ok_or_else(missing)?;
        }
        // The courier sends the call's own header fields: they must bring no other credentials.
        (Request::Mcp(mcp), Request::Mcp(own)) => {
            mcp.headers =
                credential::unseal(&mcp.headers, &own.headers, key).ok_or_else(missing)?;
            let is_new = |field: &&crate::words::Header| {
                credential::is_secret_header(&field.name)
                    && !mcp
                        .headers
                        .iter()
                        .any(|h| h.is(&field.name) && h.value == field.value)
            };
            if own.headers.iter().any(|field| is_new(&field)) {
                return Err(missing());
            }
        }
        _ => return Err("the call came another way than the original".to_owned()),
    }
    Ok(question)
}

#[cfg(test)]
#[path = "in_doubt_tests.rs"]
mod tests;
