//! What was seen and is not fenced, for those who ask (`GET /v1/opaque`, `GET /v1/commands`).

use super::api_errors::{error, log_error};
use super::service::Daemon;
use crate::control::{ApiError, ErrorCode, OpaqueQuery, OpaqueRow, Peer, RanRow};
use crate::effect::{LogError, Store};

impl Daemon {
    /// `GET /v1/opaque`: what was seen and not fenced, oldest first.
    pub async fn opaque(&self, peer: Peer, asked: OpaqueQuery) -> Result<Vec<OpaqueRow>, ApiError> {
        let read = |store: &Store, asked: &OpaqueQuery, most| {
            store.opaque(asked.agent.as_ref(), asked.since, most)
        };
        let seen = self.observations(peer, asked, read).await?.into_iter();
        Ok(seen
            .filter(|(_, seen)| self.may_see(peer, &seen.origin.agent))
            .map(|(position, seen)| OpaqueRow { position, seen })
            .collect())
    }

    /// `GET /v1/commands`: programs that ran and are no effects, oldest first.
    pub async fn ran(&self, peer: Peer, asked: OpaqueQuery) -> Result<Vec<RanRow>, ApiError> {
        let read = |store: &Store, asked: &OpaqueQuery, most| {
            store.ran(asked.agent.as_ref(), asked.since, most)
        };
        let seen = self.observations(peer, asked, read).await?.into_iter();
        Ok(seen
            .filter(|(_, ran)| self.may_see(peer, &ran.origin.agent))
            .map(|(position, ran)| RanRow { position, ran })
            .collect())
    }

    async fn observations<T: Send + 'static>(
        &self,
        peer: Peer,
        asked: OpaqueQuery,
        read: impl FnOnce(&Store, &OpaqueQuery, usize) -> Result<Vec<T>, LogError> + Send + 'static,
    ) -> Result<Vec<T>, ApiError> {
        if let Some(agent) = &asked.agent {
            self.check_sees(peer, agent)?;
        }
        let store = self.store.clone();
        let most = asked.limit.unwrap_or(50).min(10_000);
        let read = tokio::task::spawn_blocking(move || read(&store, &asked, most));
        let read = read.await.map_err(|e| {
            error(
                ErrorCode::Unavailable,
                format!("the log could not be read: {e}"),
            )
        })?;
        read.map_err(log_error)
    }
}
