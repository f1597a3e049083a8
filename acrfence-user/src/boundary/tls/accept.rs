//! The agent's handshake: the name is read first, then a leaf for it is shown.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use rustls::server::{
    Acceptor, ClientHello, NoServerSessionStorage, ProducesTickets, ResolvesServerCert,
};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, ServerConfig};
use tokio_rustls::{LazyConfigAcceptor, StartHandshake, server::TlsStream};

use super::ca::{Ca, Subject};
use crate::boundary::TroubleKind;
use crate::boundary::stream::Peeked;

/// Leaves are remembered for a fraction of their life, so that none runs out in use.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);
const REMEMBERED_COUNT: u64 = 10_000;

/// Shows agents leaves of the local CA.
pub(crate) struct Leaves {
    ca: Arc<Ca>,
    configs: moka::sync::Cache<(Subject, bool), Arc<ServerConfig>>,
    tickets: Arc<dyn ProducesTickets>,
}

/// What an agent's first message says.
pub(crate) struct Hello {
    pub(crate) start: StartHandshake<Peeked>,
    /// The name it wants; none for an address.
    pub(crate) sni: Option<String>,
    pub(crate) offers: Offers,
}

/// Protocols that an agent offers inside TLS (ALPN).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Offers {
    /// It does not say.
    Nothing,
    /// HTTP among them.
    Http,
    /// Something, and no HTTP.
    Other(String),
}

impl Leaves {
    pub(crate) fn new(ca: Arc<Ca>) -> anyhow::Result<Self> {
        Ok(Self {
            ca,
            configs: moka::sync::Cache::builder()
                .max_capacity(REMEMBERED_COUNT)
                .time_to_live(REMEMBERED)
                .build(),
            tickets: rustls::crypto::aws_lc_rs::Ticketer::new()
                .context("cannot make keys for TLS session tickets")?,
        })
    }

    /// Reads the agent's first message. What it read can be read again from `start.io` after
    /// [`Peeked::rewind`].
    pub(crate) async fn hello(mut io: Peeked) -> io::Result<Hello> {
        io.keep();
        let start = LazyConfigAcceptor::new(Acceptor::default(), io).await?;
        let hello = start.client_hello();
        let sni = hello.server_name().map(str::to_ascii_lowercase);
        let offers = offers(&hello);
        Ok(Hello { start, sni, offers })
    }

    /// The rest of the handshake, with a leaf for `subject`.
    pub(crate) async fn accept(
        &self,
        hello: Hello,
        subject: Subject,
    ) -> io::Result<TlsStream<Peeked>> {
        let negotiates = hello.offers != Offers::Nothing;
        let config = self
            .configs
            .try_get_with((subject.clone(), negotiates), || {
                self.config(&subject, negotiates)
            })
            .map_err(|error: Arc<anyhow::Error>| io::Error::other(format!("{error:#}")))?;
        let mut start = hello.start;
        start.io.forget();
        start.into_stream(config).await
    }

    fn config(&self, subject: &Subject, negotiates: bool) -> anyhow::Result<Arc<ServerConfig>> {
        let leaf = self.ca.leaf(subject)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("cannot set up TLS")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Always(leaf)));
        if negotiates {
            config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        }
        // Sessions come back by ticket; nothing is kept here for each agent. No early data: it
        // could be played back by anyone on the way.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = self.tickets.clone();
        config.max_early_data_size = 0;
        Ok(Arc::new(config))
    }
}

/// Whose fault a failed handshake is, and what to do about it.
pub(crate) fn diagnose(error: &io::Error) -> (TroubleKind, String) {
    let inner = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::AlertReceived(
            alert @ (AlertDescription::UnknownCA
            | AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown),
        )) => (
            TroubleKind::CaNotTrusted,
            format!(
                "the agent does not trust the ACRFence CA (it sent {alert:?}): if it has been running since before \
                 `acrfence ca rotate`, start it again; otherwise start it with `acrfence run` (`--private-trust` if it reads \
                 no variables, `--trust-file FILE` if it has roots of its own), or run `acrfence ca install` and restart \
                 it; if it trusts the CA and still refuses, it pins its server's certificate, and only `pass_through` in \
                 the policy lets it work (not fenced)"
            ),
        ),
        Some(rustls::Error::AlertReceived(alert)) => (
            TroubleKind::HandshakeAborted,
            format!(
                "the agent ended the handshake ({alert:?}): it pins its server's certificate or wants something of TLS \
                 that is not offered; `pass_through` in the policy lets it work (not fenced)"
            ),
        ),
        Some(other) => (
            TroubleKind::BadRequest,
            format!("the agent's TLS handshake is not valid: {other}"),
        ),
        None => (
            TroubleKind::HandshakeAborted,
            format!(
                "the agent closed the connection during the handshake without saying why ({error}): it does not trust \
                 the ACRFence CA (`acrfence run --private-trust` reaches Java and others that read no variables), pins its \
                 server's certificate, or was ended"
            ),
        ),
    }
}

fn offers(hello: &ClientHello<'_>) -> Offers {
    let Some(protocols) = hello.alpn() else {
        return Offers::Nothing;
    };
    let mut names = Vec::new();
    for protocol in protocols {
        if matches!(protocol, b"h2" | b"http/1.1") {
            return Offers::Http;
        }
        names.push(protocol.escape_ascii().to_string());
    }
    if names.is_empty() {
        Offers::Nothing
    } else {
        Offers::Other(names.join(", "))
    }
}

#[derive(Debug)]
struct Always(Arc<CertifiedKey>);

impl ResolvesServerCert for Always {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}
