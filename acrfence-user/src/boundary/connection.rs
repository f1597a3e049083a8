//! One connection, or the inside of a tunnel: what it carries, and who takes care of it.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustls::pki_types::ServerName;
use tokio::time::timeout;

use super::http::agent;
use super::http::exchange::Leg;
use super::http::upstream::{Route, Security, SendError, Upstream};
use super::listener::{Shared, Slot};
use super::opaque;
use super::sniff::{self, Carries};
use super::stream::{BoxTransport, Counted, Peeked};
use super::tls::accept::{self, Hello, Leaves, Offers};
use super::tls::ca::Subject;
use super::tls::connect::Alpn;
use super::{Trouble, TroubleKind};
use crate::words::Origin;

/// An agent that likes a certificate does not leave sooner without a word.
const AT_ONCE: Duration = Duration::from_secs(1);
/// Tunnels inside tunnels end here.
const DEPTH_MAX: u8 = 4;

/// Where a connection comes from and goes to.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) shared: Arc<Shared>,
    pub(crate) origin: Origin,
    /// Where the agent dialled.
    pub(crate) peer: SocketAddr,
    /// Port at the far end: of a tunnel, not of its proxy.
    pub(crate) port: u16,
    pub(crate) route: Route,
    pub(crate) depth: u8,
    /// Its place among the open connections, for as long as anything of it goes on.
    pub(crate) _slot: Arc<Slot>,
}

/// Takes care of a connection until it ends. Boxed: what is inside a tunnel is a connection again.
pub(crate) fn serve(place: Place, io: BoxTransport) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(async move {
        if let Err(error) = place.outer(Peeked::new(io)).await {
            tracing::debug!("a connection ended: {error}");
        }
    })
}

/// What came of waiting for the first bytes.
enum First {
    Carries(Peeked, Carries),
    /// It was taken care of, or ended.
    Done,
}

impl Place {
    async fn outer(mut self, io: Peeked) -> io::Result<()> {
        if self.depth > DEPTH_MAX {
            self.trouble(
                TroubleKind::BadRequest,
                format!("the agent opened more than {DEPTH_MAX} tunnels inside each other"),
            );
            return Ok(());
        }
        let plain = Security::Plain { http2: false };
        let (io, carries) = match self.first(io, &plain).await? {
            First::Carries(io, carries) => (io, carries),
            First::Done => return Ok(()),
        };
        match carries {
            Carries::Tls => self.tls(io).await,
            Carries::Http1 => {
                self.http(Box::new(io), plain, None, false).await;
                Ok(())
            }
            Carries::Http2 => {
                let security = Security::Plain { http2: true };
                self.http(Box::new(io), security, None, true).await;
                Ok(())
            }
            Carries::Other => {
                let why = sniff::guess(io.ahead());
                self.opaque(Box::new(io), plain, why).await;
                Ok(())
            }
        }
    }

    async fn tls(&mut self, io: Peeked) -> io::Result<()> {
        let within = self.shared.limits().handshake;
        let plain = Security::Plain { http2: false };
        let hello = match timeout(within, Leaves::hello(io)).await {
            Ok(Ok(hello)) => hello,
            Ok(Err(error)) => {
                let (kind, detail) = accept::diagnose(&error);
                self.trouble(kind, detail);
                return Ok(());
            }
            Err(_) => {
                self.trouble(
                    TroubleKind::BadRequest,
                    format!("the agent's TLS handshake did not begin within {within:?}"),
                );
                return Ok(());
            }
        };
        if let Some(connection) = &mut self.origin.connection {
            connection.sni.clone_from(&hello.sni);
        }
        let host = hello.sni.clone().unwrap_or_else(|| match self.far_end() {
            Subject::Name(name) => name,
            Subject::Address(address) => address.to_string(),
        });
        let unopened = if (self.shared.config.pass_through)(&host) {
            Some("passed through by policy".to_owned())
        } else if let Offers::Other(protocols) = &hello.offers {
            Some(format!("TLS for {protocols}, not for HTTP"))
        } else if hello.offers == Offers::Nothing && sniff::tls_without_http(self.port) {
            Some(format!("TLS on port {}, which carries no HTTP", self.port))
        } else {
            None
        };
        if let Some(why) = unopened {
            let mut io = hello.start.io;
            io.rewind();
            self.opaque(Box::new(io), plain, &why).await;
            return Ok(());
        }
        self.terminated(hello).await
    }

    async fn terminated(&mut self, hello: Hello) -> io::Result<()> {
        let within = self.shared.limits().handshake;
        let sni = hello.sni.clone();
        let subject = match &sni {
            Some(name) => Subject::Name(name.clone()),
            None => self.far_end(),
        };
        let Some(name) = server_name(&subject) else {
            self.trouble(
                TroubleKind::BadRequest,
                "the agent's TLS handshake names no valid host".to_owned(),
            );
            return Ok(());
        };
        let leaves = self.shared.leaves.clone();
        let tls = match timeout(within, leaves.accept(hello, subject)).await {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => {
                let (kind, detail) = accept::diagnose(&error);
                self.trouble(kind, detail);
                return Ok(());
            }
            Err(_) => {
                self.trouble(
                    TroubleKind::HandshakeAborted,
                    format!("the agent did not finish the TLS handshake within {within:?}"),
                );
                return Ok(());
            }
        };
        let protocol = tls.get_ref().1.alpn_protocol().map(<[u8]>::to_vec);
        if let Some(connection) = &mut self.origin.connection {
            connection.tls = true;
        }
        match protocol.as_deref() {
            Some(b"h2") => {
                let security = Security::Tls(name, Alpn::Http2);
                self.http(Box::new(tls), security, sni, true).await;
            }
            Some(_) => {
                let security = Security::Tls(name, Alpn::Http1);
                self.http(Box::new(tls), security, sni, false).await;
            }
            None => {
                let security = Security::Tls(name, Alpn::Nothing);
                let io = Peeked::new(Box::new(tls));
                match self.first(io, &security).await? {
                    First::Done => {}
                    First::Carries(io, Carries::Http1) => {
                        self.http(Box::new(io), security, sni, false).await;
                    }
                    First::Carries(io, Carries::Http2) => {
                        let Security::Tls(name, _) = security else {
                            return Ok(());
                        };
                        let security = Security::Tls(name, Alpn::Http2);
                        self.http(Box::new(io), security, sni, true).await;
                    }
                    First::Carries(io, Carries::Tls | Carries::Other) => {
                        let why = "TLS that carries no HTTP";
                        self.opaque(Box::new(io), security, why).await;
                    }
                }
            }
        }
        Ok(())
    }

    async fn http(
        &mut self,
        io: BoxTransport,
        security: Security,
        sni: Option<String>,
        http2: bool,
    ) {
        if let Some(connection) = &mut self.origin.connection {
            connection.protocol = if http2 { "h2" } else { "http/1.1" }.to_owned();
        }
        let scheme = match &security {
            Security::Tls(..) => "https",
            Security::Plain { .. } => "http",
        };
        let upstream = Upstream::new(self.shared.clone(), self.route.clone(), security);
        let stop = self.shared.stop.clone();
        let place = self.clone();
        let began = Instant::now();
        let (read, written) = (Arc::<AtomicU64>::default(), Arc::default());
        let io = Counted::new(io, read.clone(), written);
        let leg = Leg {
            place: self.clone(),
            shared: self.shared.clone(),
            origin: self.origin.clone(),
            scheme,
            peer: self.peer,
            sni,
            upstream: Arc::new(upstream),
        };
        agent::serve(Arc::new(leg), Box::new(io), http2, stop.cancelled_owned()).await;
        if scheme == "https" && read.load(Ordering::Relaxed) == 0 && began.elapsed() < AT_ONCE {
            place.trouble(
                TroubleKind::HandshakeAborted,
                "the agent closed the connection right after the TLS handshake without a request, as one does that pins \
                 its server's certificate; if its calls fail, only `pass_through` in the policy lets it work (not fenced)"
                    .to_owned(),
            );
        }
    }

    /// Waits for the first bytes. An agent that stays silent may be waiting for a server that
    /// speaks first: then, if that may be, the upstream is connected, and whoever speaks first
    /// decides what it is.
    async fn first(&self, mut io: Peeked, security: &Security) -> io::Result<First> {
        let limits = self.shared.limits();
        let server_first = sniff::server_speaks_first(self.port);
        let wait = if server_first {
            Duration::ZERO
        } else {
            limits.server_first
        };
        match timeout(wait, carried(&mut io)).await {
            Ok(Ok(Some(carries))) => return Ok(First::Carries(io, carries)),
            Ok(Ok(None)) => return Ok(First::Done),
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
        if let Some(carries) = sniff::stalled(io.ahead()) {
            return Ok(First::Carries(io, carries));
        }
        let mut denied = None;
        // Half a request line is not silence.
        if io.ahead().is_empty() {
            let why = sniff::SPEAKS_FIRST;
            match opaque::admit(&self.shared, &self.origin, self.peer, why).await {
                Ok(flow) => return self.whoever_speaks(io, security, flow).await,
                Err(_) if server_first => return Ok(First::Done),
                // It may still turn out to be HTTP.
                Err(refusal) => denied = Some(refusal),
            }
        }
        let waited = tokio::select! {
            waited = timeout(limits.first_byte, carried(&mut io)) => waited,
            () = self.shared.stop.cancelled() => return Ok(First::Done),
        };
        match waited {
            Ok(Ok(Some(carries))) => Ok(First::Carries(io, carries)),
            Ok(Ok(None)) | Err(_) => {
                if let Some(refusal) = denied {
                    let detail = format!("{} {}", refusal.title, refusal.detail);
                    self.trouble(TroubleKind::OpaqueDenied, detail);
                }
                Ok(First::Done)
            }
            Ok(Err(error)) => Err(error),
        }
    }

    async fn whoever_speaks(
        &self,
        mut io: Peeked,
        security: &Security,
        flow: opaque::Flow,
    ) -> io::Result<First> {
        let upstream = match self.dial(security).await {
            Some(upstream) => upstream,
            None => return Ok(First::Done),
        };
        let mut upstream = Peeked::new(upstream);
        tokio::select! {
            biased;
            carries = carried(&mut io) => match carries? {
                Some(Carries::Other) => {
                    flow.relay(Box::new(io), Box::new(upstream)).await;
                    Ok(First::Done)
                }
                // The agent only took its time: back to deciding first, with a new connection.
                Some(carries) => Ok(First::Carries(io, carries)),
                None => Ok(First::Done),
            },
            _ = upstream.fill() => {
                flow.relay(Box::new(io), Box::new(upstream)).await;
                Ok(First::Done)
            }
            () = self.shared.stop.cancelled() => Ok(First::Done),
        }
    }

    async fn opaque(&self, io: BoxTransport, security: Security, why: &str) {
        let why = match &self.route {
            Route::Direct(..) => why.to_owned(),
            Route::Tunnel(tunnel) => format!("{why}, through a tunnel to {}", tunnel.target()),
        };
        let Ok(flow) = opaque::admit(&self.shared, &self.origin, self.peer, &why).await else {
            return;
        };
        if let Some(upstream) = self.dial(&security).await {
            flow.relay(io, upstream).await;
        }
    }

    async fn dial(&self, security: &Security) -> Option<BoxTransport> {
        let upstream = Upstream::new(self.shared.clone(), self.route.clone(), security.clone());
        match upstream.dial().await {
            Ok(io) => Some(io),
            Err(SendError::NotSent { kind, why }) => {
                self.trouble(kind, why);
                None
            }
            Err(SendError::Broken { why }) => {
                self.trouble(TroubleKind::UpstreamUnreachable, why);
                None
            }
        }
    }

    /// What the far end is called by an agent that names nobody in its handshake.
    fn far_end(&self) -> Subject {
        let Route::Tunnel(tunnel) = &self.route else {
            return Subject::Address(self.peer.ip());
        };
        let host = tunnel.target().host().unwrap_or_default();
        match host.trim_matches(['[', ']']).parse() {
            Ok(address) => Subject::Address(address),
            Err(_) => Subject::Name(host.to_ascii_lowercase()),
        }
    }

    fn trouble(&self, kind: TroubleKind, detail: String) {
        self.shared.arbiter.trouble(Trouble {
            origin: self.origin.clone(),
            kind,
            detail,
        });
    }
}

impl Leg {
    /// The place inside a tunnel that this connection opened.
    pub(crate) fn inside(&self, route: Route) -> Place {
        let port = match &route {
            Route::Direct(address, _) => address.port(),
            Route::Tunnel(tunnel) => tunnel.target().port_u16().unwrap_or_default(),
        };
        let mut place = self.place.clone();
        if let Some(connection) = &mut place.origin.connection {
            // These were of the connection to the proxy.
            connection.sni = None;
            connection.tls = false;
            connection.protocol = String::new();
        }
        Place {
            port,
            route,
            depth: place.depth + 1,
            ..place
        }
    }
}

/// Reads until it is clear what the connection carries; none when it ended before.
async fn carried(io: &mut Peeked) -> io::Result<Option<Carries>> {
    loop {
        if let Some(carries) = sniff::sniff(io.ahead()) {
            return Ok(Some(carries));
        }
        if io.fill().await? == 0 {
            // What came is all there is; it was too little to be one of the known.
            return Ok((!io.ahead().is_empty()).then_some(Carries::Other));
        }
    }
}

fn server_name(subject: &Subject) -> Option<ServerName<'static>> {
    match subject {
        Subject::Name(name) => ServerName::try_from(name.clone()).ok(),
        Subject::Address(address) => Some(ServerName::IpAddress((*address).into())),
    }
}
