//! What waits for a person: effects in doubt and held calls.

use super::api_errors::log_error;
use super::service::Daemon;
use crate::control::{ApiError, Peer, Waiting};
use crate::effect::EffectFilter;
use crate::words::Status;

/// So many of each kind are told.
const MOST: usize = 50;

impl Daemon {
    /// What this peer could decide, oldest first.
    pub(super) fn waiting(&self, peer: Peer) -> Result<Vec<Waiting>, ApiError> {
        let in_doubt = EffectFilter {
            status: Some(Status::InDoubt),
            oldest_first: true,
            limit: Some(1000),
            ..EffectFilter::default()
        };
        let rows = self
            .pipeline
            .log()
            .effects(&in_doubt)
            .map_err(log_error)?
            .items;
        let effects = self
            .mine(peer, rows)
            .into_iter()
            .take(MOST)
            .map(|row| Waiting {
                kind: "in_doubt".into(),
                next: vec![
                    format!("acrfence resolve {} --happened FILE", row.id),
                    format!("acrfence resolve {} --did-not-happen", row.id),
                ],
                id: row.id.to_string(),
                agent: row.agent,
                key: row.key.0,
                why: row.why,
                since: row.ended.unwrap_or(row.at),
            });
        let holds = self.holds(peer).into_iter().take(MOST).map(|hold| Waiting {
            kind: "hold".into(),
            next: vec![
                format!("acrfence approve {} --as replay", hold.id),
                format!("acrfence approve {} --as forward", hold.id),
                format!("acrfence deny {}", hold.id),
            ],
            id: hold.id.to_string(),
            agent: hold.agent,
            key: hold.key,
            why: format!("{} ({})", hold.why, hold.effect),
            since: hold.at,
        });
        let mut waiting: Vec<Waiting> = effects.chain(holds).collect();
        waiting.sort_by_key(|w| w.since);
        Ok(waiting)
    }
}
