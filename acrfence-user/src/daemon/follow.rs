//! Following the effects: `GET /v1/effects/follow`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::{self, Stream};
use tokio::sync::broadcast::error::RecvError;

use super::service::Daemon;
use crate::control::Peer;
use crate::effect::EffectFilter;

impl Daemon {
    /// A JSON object a line for every effect that is prepared or changes, each as it was then. From now
    /// on, or from the position `after` of the filter.
    pub fn follow(
        self: &Arc<Self>,
        peer: Peer,
        filter: EffectFilter,
    ) -> impl Stream<Item = Result<Bytes, std::convert::Infallible>> + use<> {
        let (head, more) = self.pipeline.log().follow();
        let seen = filter.after.unwrap_or(head);
        let state = (self.clone(), more, seen);
        stream::unfold(state, move |(daemon, mut more, mut seen)| {
            let filter = filter.clone();
            async move {
                loop {
                    let (asked, wanted) = (daemon.clone(), filter.clone());
                    let changes = tokio::task::spawn_blocking(move || {
                        asked.pipeline.log().changes(seen, &wanted)
                    });
                    let (rows, reached) = match changes.await {
                        Ok(Ok(changes)) => changes,
                        // While the index is rebuilt nothing can be told; what is missed is told later.
                        Ok(Err(e)) => {
                            tracing::warn!("nobody can follow the effects now: {e}");
                            (Vec::new(), seen)
                        }
                        Err(_) => return None,
                    };
                    let is_behind = reached > seen;
                    seen = reached;
                    let mut lines = Vec::new();
                    for row in daemon.mine(peer, rows) {
                        serde_json::to_writer(&mut lines, &row).ok()?;
                        lines.push(b'\n');
                    }
                    if !lines.is_empty() {
                        return Some((Ok(Bytes::from(lines)), (daemon, more, seen)));
                    }
                    if !is_behind && let Err(RecvError::Closed) = more.recv().await {
                        return None;
                    }
                }
            }
        })
    }
}
