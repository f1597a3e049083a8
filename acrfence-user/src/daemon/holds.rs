//! Held calls and what people decided about them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::effect::{Event, HoldDecision};
use crate::words::{AgentName, BranchId, EffectId, HoldId, Seq, Timestamp, ToolCall, ToolKey};

/// A held call.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hold {
    /// Its id.
    pub id: HoldId,
    /// The branch it came from.
    pub branch: BranchId,
    /// The effect it may be the same as.
    pub effect: EffectId,
    /// What it is looked up by.
    pub key: ToolKey,
    /// The call.
    pub call: ToolCall,
    /// Why it waits.
    pub why: String,
    /// Since when.
    pub at: Timestamp,
    /// What a person decided.
    pub decision: Option<HoldDecision>,
    /// Whether the decision was used up.
    pub used: bool,
}

/// Which holds count for a call.
pub(super) struct Whose {
    /// Those of this agent,
    pub(super) agent: AgentName,
    /// opened after this position.
    pub(super) since: Seq,
}

/// All holds, folded from the journal.
#[derive(Debug, Default)]
pub(super) struct Holds(BTreeMap<HoldId, Hold>);

impl Holds {
    pub(super) fn apply(&mut self, seq: Seq, event: &Event) {
        match event {
            Event::HoldOpened {
                branch,
                effect,
                key,
                call,
                why,
                at,
            } => {
                let hold = Hold {
                    id: HoldId(seq),
                    branch: *branch,
                    effect: *effect,
                    key: key.clone(),
                    call: call.as_ref().clone(),
                    why: why.clone(),
                    at: *at,
                    decision: None,
                    used: false,
                };
                self.0.insert(hold.id, hold);
            }
            Event::HoldDecided { hold, decision, .. } => {
                if let Some(hold) = self.0.get_mut(hold) {
                    hold.decision = Some(*decision);
                }
            }
            Event::HoldUsed { hold, .. } => {
                if let Some(hold) = self.0.get_mut(hold) {
                    hold.used = true;
                }
            }
            // What was held against an effect is answered once that effect is.
            Event::Resolved { effect, .. } | Event::Replayed { effect, .. } => {
                for hold in self.0.values_mut().filter(|h| h.effect == *effect) {
                    hold.used = true;
                }
            }
            _ => {}
        }
    }

    pub(super) fn get(&self, id: HoldId) -> Option<&Hold> {
        self.0.get(&id)
    }

    /// Holds that wait for a person.
    pub(super) fn open(&self) -> Vec<Hold> {
        self.0
            .values()
            .filter(|h| h.decision.is_none() && !h.used)
            .cloned()
            .collect()
    }

    /// Holds against an effect that nobody decided yet.
    pub(super) fn undecided(&self, whose: &Whose, effect: EffectId) -> Vec<(HoldId, ToolCall)> {
        self.against(whose, effect)
            .filter(|h| h.decision.is_none())
            .map(|h| (h.id, h.call.clone()))
            .collect()
    }

    /// Decisions about holds against an effect. What a person decided about one effect says nothing
    /// about another, however equal the call.
    pub(super) fn decided(
        &self,
        whose: &Whose,
        effect: EffectId,
    ) -> Vec<(HoldId, HoldDecision, ToolCall)> {
        self.against(whose, effect)
            .filter_map(|h| Some((h.id, h.decision?, h.call.clone())))
            .collect()
    }

    fn against(&self, whose: &Whose, effect: EffectId) -> impl Iterator<Item = &Hold> {
        self.0.values().filter(move |h| {
            !h.used
                && h.effect == effect
                && h.call.origin.agent == whose.agent
                && h.id.0 > whose.since
        })
    }
}
