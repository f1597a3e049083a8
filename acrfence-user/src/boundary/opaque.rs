//! Bytes that are passed on without being understood: admitted first, counted, reported.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::OpaqueFlow;
use super::listener::Shared;
use super::stream::{BoxTransport, Counted};
use crate::words::{Origin, Refusal};

/// An admitted flow. However it ends, the arbiter hears of it.
pub(crate) struct Flow {
    shared: Arc<Shared>,
    about: OpaqueFlow,
    sent: Arc<AtomicU64>,
    received: Arc<AtomicU64>,
}

/// Asks whether bytes may flow.
pub(crate) async fn admit(
    shared: &Arc<Shared>,
    origin: &Origin,
    peer: SocketAddr,
    why: &str,
) -> Result<Flow, Refusal> {
    let about = OpaqueFlow {
        origin: origin.clone(),
        peer,
        why: why.to_owned(),
        sent: 0,
        received: 0,
    };
    shared.arbiter.admit_opaque(&about).await?;
    Ok(Flow {
        shared: shared.clone(),
        about,
        sent: Arc::default(),
        received: Arc::default(),
    })
}

impl Flow {
    /// Passes bytes both ways until both sides ended, or the boundary is closed.
    pub(crate) async fn relay(self, agent: BoxTransport, mut upstream: BoxTransport) {
        let mut agent = Counted::new(agent, self.sent.clone(), self.received.clone());
        let stop = self.shared.stop.clone();
        tokio::select! {
            ended = tokio::io::copy_bidirectional(&mut agent, &mut upstream) => {
                if let Err(error) = ended {
                    tracing::debug!("an opaque flow broke: {error}");
                }
            }
            // Nobody can say when it would end.
            () = stop.cancelled() => {}
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let mut about = self.about.clone();
        about.sent = self.sent.load(Ordering::Relaxed);
        about.received = self.received.load(Ordering::Relaxed);
        self.shared.arbiter.opaque_ended(about);
    }
}
