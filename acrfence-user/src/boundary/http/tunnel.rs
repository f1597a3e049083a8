//! Tunnels that an agent opens through a proxy of its own (CONNECT).

use std::io;
use std::sync::Arc;

use http::uri::Authority;
use http::{HeaderMap, Method, Uri, Version};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;

use super::spool::{Spooled, SpooledBody};
use super::upstream::{Outgoing, Received, SendError, Upstream};
use crate::boundary::stream::BoxTransport;

/// A tunnel through a proxy, opened by the agent's own CONNECT; opened again the same way when a
/// further connection is needed.
pub(crate) struct Tunnel {
    proxy: Arc<Upstream>,
    target: Uri,
    headers: HeaderMap,
    version: Version,
    first: Mutex<Option<BoxTransport>>,
}

impl Tunnel {
    /// A tunnel that is open already.
    pub(crate) fn new(
        proxy: Arc<Upstream>,
        target: Uri,
        headers: HeaderMap,
        version: Version,
        first: BoxTransport,
    ) -> Self {
        Self {
            proxy,
            target,
            headers,
            version,
            first: Mutex::new(Some(first)),
        }
    }

    /// `host:port` at the far end.
    pub(crate) fn target(&self) -> &Uri {
        &self.target
    }

    /// A connection through the tunnel: the open one first.
    pub(crate) async fn open(&self) -> io::Result<BoxTransport> {
        if let Some(first) = self.first.lock().take() {
            return Ok(first);
        }
        let outgoing = request(&self.target, &self.headers, self.version);
        let received =
            Box::pin(self.proxy.send(outgoing, false))
                .await
                .map_err(|error| match error {
                    SendError::NotSent { why, .. } | SendError::Broken { why } => {
                        io::Error::other(why)
                    }
                })?;
        let status = received.response.status();
        if !status.is_success() {
            return Err(io::Error::other(format!(
                "the proxy answered CONNECT {} with {status}",
                self.target
            )));
        }
        upgraded(received).await
    }
}

/// A CONNECT request as the agent sent it.
pub(crate) fn request(target: &Uri, headers: &HeaderMap, version: Version) -> Outgoing {
    Outgoing {
        method: Method::CONNECT,
        uri: target.clone(),
        authority: target
            .authority()
            .cloned()
            .unwrap_or_else(|| Authority::from_static("-")),
        headers: headers.clone(),
        version,
        extensions: http::Extensions::new(),
        upgrade: false,
        body: SpooledBody::from(Spooled::empty()),
    }
}

/// The bytes behind a response that ended HTTP on its connection.
pub(crate) async fn upgraded(received: Received) -> io::Result<BoxTransport> {
    let upgraded = hyper::upgrade::on(received.response)
        .await
        .map_err(io::Error::other)?;
    Ok(Box::new(TokioIo::new(upgraded)))
}
