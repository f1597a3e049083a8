//! Whose connection an accepted one is.
//!
//! The kernel notes a claim before the first packet of a redirected connection leaves, and takes
//! it back when the connection ends. A client that sends, closes and goes may be gone before the
//! daemon has accepted; its claim then stays until it is made, or for [`UNCLAIMED_KEPT`].

use std::net::SocketAddr;
use std::time::Duration;

use acrfence_common::{Claim, ClientKey};

use super::{Probe, ProbeError, event, stream};
use crate::words::ProcessIdentity;

/// Whose connection an accepted one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Where it wanted to connect to.
    pub original: SocketAddr,
    /// The process.
    pub process: ProcessIdentity,
    /// The agent's index.
    pub agent: u32,
}

impl Probe {
    /// Whose connection the accepted one from `client` is; none when it was not redirected, or was
    /// reset already: then it must be dropped, never passed on.
    ///
    /// To be asked once a connection, when it is accepted. Asked again, it answers only as long as
    /// the client is there.
    pub fn claim(&self, client: SocketAddr) -> Option<Claimed> {
        self.claim_in(self.netns, client)
    }

    /// The same for a listener in another network namespace, given by its cookie.
    pub fn claim_in(&self, netns: u64, client: SocketAddr) -> Option<Claimed> {
        let key = ClientKey {
            netns,
            local: event::endpoint(client),
            zero: 0,
        };
        match self.take_claim(&key) {
            Ok(claim) => claim.map(|claim| Claimed {
                original: event::socket_addr(&claim.original),
                process: ProcessIdentity {
                    tgid: claim.tgid,
                    start_ns: claim.start_ns,
                },
                agent: claim.agent,
            }),
            Err(error) => {
                tracing::error!(%client, %error, "cannot tell whose connection this is");
                None
            }
        }
    }

    fn take_claim(&self, key: &ClientKey) -> Result<Option<Claim>, ProbeError> {
        let Some(claim) = self.maps.clients.get(key)? else {
            return Ok(None);
        };
        if claim.claimed == 0 {
            let claimed = Claim {
                claimed: 1,
                ..claim
            };
            self.maps.clients.set(key, &claimed)?;
        }
        // The kernel takes the socket out before it looks at the mark: if it is gone, the kernel
        // may have missed the mark, and nobody else takes the claim back.
        if self.maps.sockets.get(&claim.cookie)?.is_none() {
            self.maps.clients.remove(key)?;
        }
        Ok(Some(claim))
    }

    /// Takes back claims that nobody made.
    pub(super) fn clear_claims(&self) -> Result<(), ProbeError> {
        let now = stream::since_boot();
        for (key, claim) in self.maps.clients.entries()? {
            let age = Duration::from_nanos(now.saturating_sub(claim.closed_ns));
            if claim.closed_ns != 0 && age > UNCLAIMED_KEPT {
                self.maps.clients.remove(&key)?;
            }
        }
        Ok(())
    }
}

/// How long the claim of a client that is gone is kept.
const UNCLAIMED_KEPT: Duration = Duration::from_secs(60);
