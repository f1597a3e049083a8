//! The upstream's handshake: verified for the name the agent asked for.

use std::io;
use std::sync::Arc;

use anyhow::Context as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::boundary::TroubleKind;
use crate::boundary::stream::BoxTransport;

/// What is offered to an upstream inside TLS (ALPN): what the agent's own leg speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alpn {
    /// The agent negotiated nothing.
    Nothing,
    /// The agent speaks HTTP/1.1.
    Http1,
    /// The agent speaks HTTP/2; HTTP/1.1 is translated where the upstream has no HTTP/2.
    Http2,
}

/// Connects to upstreams over TLS.
pub(crate) struct Verified {
    nothing: Arc<ClientConfig>,
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl Verified {
    /// Verifies against `roots`; certificates that cannot be a root are left out with a warning.
    pub(crate) fn new(
        roots: impl IntoIterator<Item = CertificateDer<'static>>,
    ) -> anyhow::Result<Self> {
        let mut store = RootCertStore::empty();
        let (_, bad) = store.add_parsable_certificates(roots);
        if bad > 0 {
            tracing::warn!("{bad} of the trusted roots cannot be read and are left out");
        }
        if store.is_empty() {
            store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let base = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("cannot set up TLS")?
            .with_root_certificates(store)
            .with_no_client_auth();
        let with = |alpn: &[&[u8]]| {
            let mut config = base.clone();
            config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
            Arc::new(config)
        };
        Ok(Self {
            nothing: with(&[]),
            http1: with(&[b"http/1.1"]),
            http2: with(&[b"h2", b"http/1.1"]),
        })
    }

    /// Shakes hands over `io` as a client of `name`.
    pub(crate) async fn connect(
        &self,
        name: ServerName<'static>,
        alpn: Alpn,
        io: BoxTransport,
    ) -> io::Result<TlsStream<BoxTransport>> {
        let config = match alpn {
            Alpn::Nothing => &self.nothing,
            Alpn::Http1 => &self.http1,
            Alpn::Http2 => &self.http2,
        };
        TlsConnector::from(config.clone()).connect(name, io).await
    }
}

/// What a failure to shake hands means.
pub(crate) fn diagnose(error: &io::Error, name: &str) -> (TroubleKind, String) {
    match tls_error(error) {
        Some(rustls::Error::InvalidCertificate(reason)) => (
            TroubleKind::UpstreamUntrusted,
            format!(
                "the certificate of {name} does not verify ({reason:?}): nothing was sent. If it belongs to a private CA, \
                 add that CA to the system's trust store or to `upstream.extra_roots` in the configuration"
            ),
        ),
        Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) => (
            TroubleKind::ClientCertificateWanted,
            client_certificate(name),
        ),
        Some(other) => (
            TroubleKind::UpstreamUnreachable,
            format!("the TLS handshake with {name} failed: {other}; nothing was sent"),
        ),
        None => (
            TroubleKind::UpstreamUnreachable,
            format!("the TLS handshake with {name} failed: {error}; nothing was sent"),
        ),
    }
}

/// What to tell when only the agent's own client certificate would do.
pub(crate) fn client_certificate(name: &str) -> String {
    format!(
        "{name} asks for a client certificate, which only the agent has: `pass_through` in the policy lets it work (not \
         fenced)"
    )
}

/// Whether an upstream ended the connection because it wants a client certificate. In TLS 1.3 that
/// comes after the client's side of the handshake is done; nothing sent before was looked at.
pub(crate) fn wants_client_certificate(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(io) = error.downcast_ref::<io::Error>()
            && matches!(
                tls_error(io),
                Some(rustls::Error::AlertReceived(
                    AlertDescription::CertificateRequired
                ))
            )
        {
            return true;
        }
        next = error.source();
    }
    false
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
