//! What a person decides: effects in doubt, held calls.

use super::holds::Hold;
use super::pipeline::{Pipeline, PipelineError};
use super::{evidence, now};
use crate::effect::{Event, HoldDecision};
use crate::words::{Comparison, Effect, EffectId, HoldId, Resolution, Status, ToolCall};

impl Pipeline {
    /// Takes in a person's answer about an effect in doubt.
    pub async fn resolve(
        &self,
        effect: EffectId,
        resolution: Resolution,
        by: String,
    ) -> Result<(), PipelineError> {
        let known = self.0.log.effect(effect)?.ok_or_else(|| {
            PipelineError::NotFound(format!(
                "there is no effect {effect}; `acrfence effects` lists them"
            ))
        })?;
        if known.status != Status::InDoubt {
            return Err(PipelineError::Conflict(format!(
                "{effect} is {}, only an effect that is in_doubt can be resolved",
                known.status
            )));
        }
        self.write(Event::Resolved {
            effect,
            resolution,
            by,
            at: now(),
        })
        .await?;
        Ok(())
    }

    /// Takes in a person's decision about a held call.
    pub async fn decide_hold(
        &self,
        id: HoldId,
        decision: HoldDecision,
        by: String,
    ) -> Result<(), PipelineError> {
        let hold = self.0.holds.lock().get(id).cloned();
        let hold = hold.ok_or_else(|| {
            PipelineError::NotFound(format!(
                "there is no hold {id}; `acrfence holds` lists them"
            ))
        })?;
        let effect = hold.effect;
        let status = self.0.log.effect(effect)?.map(|e| {
            (
                e.status,
                e.outcome
                    .is_some_and(|o| o.response().is_some_and(|r| r.is_whole())),
            )
        });
        match (decision, status) {
            (HoldDecision::Deny, _) => {}
            (_, Some((Status::InDoubt, _))) => {
                return Err(PipelineError::Conflict(format!(
                    "{effect} is in doubt, so it is not known what there is to repeat; find out and run `acrfence resolve {effect} --happened RESPONSE` or `--did-not-happen`"
                )));
            }
            (HoldDecision::Replay, Some((_, false)) | None) => {
                return Err(PipelineError::Conflict(format!(
                    "the response of {effect} was not kept whole, so it cannot be given again; `acrfence approve {id} --as forward` sends the call, `acrfence deny {id}` refuses it"
                )));
            }
            (HoldDecision::Replay | HoldDecision::Forward, _) => {}
        }
        self.write(Event::HoldDecided {
            hold: id,
            decision,
            by,
            at: now(),
        })
        .await?;
        Ok(())
    }

    /// How a call compares to an earlier effect, with the evidence there is now.
    pub fn compare(&self, effect: &Effect, call: &ToolCall) -> Comparison {
        evidence::examine(&self.0, effect, call).comparison
    }

    /// Holds that wait for a person, oldest first.
    pub fn open_holds(&self) -> Vec<Hold> {
        self.0.holds.lock().open()
    }

    /// One hold.
    pub fn hold(&self, id: HoldId) -> Option<Hold> {
        self.0.holds.lock().get(id).cloned()
    }
}
