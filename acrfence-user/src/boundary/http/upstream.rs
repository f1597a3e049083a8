//! The upstream leg: connected only once a call may be sent, kept for the next one, and honest
//! about whether a request left.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use http::uri::Authority;
use http::{HeaderMap, Method, Request, Response, Uri, Version};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::net::TcpSocket;
use tokio::time::timeout;

use super::headers;
use super::spool::SpooledBody;
use super::tunnel::Tunnel;
use crate::boundary::TroubleKind;
use crate::boundary::listener::Shared;
use crate::boundary::namespace::Namespace;
use crate::boundary::stream::BoxTransport;
use crate::boundary::tls::connect::{self, Alpn};

/// How to reach an upstream.
#[derive(Clone)]
pub(crate) enum Route {
    /// At the address the agent dialled, from the network namespace it lives in where that is not the
    /// daemon's own.
    Direct(SocketAddr, Option<Arc<Namespace>>),
    /// Through a proxy the agent opened a tunnel with.
    Tunnel(Arc<Tunnel>),
}

/// The upstream of one agent connection.
pub(crate) struct Upstream {
    shared: Arc<Shared>,
    route: Route,
    security: Security,
    pool: Mutex<Pool>,
    /// Held while connecting, so that parallel HTTP/2 requests share one connection.
    connecting: tokio::sync::Mutex<()>,
}

/// What protects the upstream leg, and what is spoken over it.
#[derive(Clone)]
pub(crate) enum Security {
    /// TLS, verified for a name.
    Tls(ServerName<'static>, Alpn),
    /// Nothing; HTTP/2 when `http2`, with prior knowledge as the agent has it.
    Plain { http2: bool },
}

/// A request for the upstream, before it is put into the words of a protocol version.
pub(crate) struct Outgoing {
    pub(crate) method: Method,
    /// As the agent wrote it.
    pub(crate) uri: Uri,
    /// The host it is for.
    pub(crate) authority: Authority,
    /// As the agent sent them.
    pub(crate) headers: HeaderMap,
    /// The agent's version.
    pub(crate) version: Version,
    /// Carries the case of field names from leg to leg.
    pub(crate) extensions: http::Extensions,
    /// `Connection` and `Upgrade` go on as they are.
    pub(crate) upgrade: bool,
    pub(crate) body: SpooledBody,
}

/// A response, and the connection it comes over.
pub(crate) struct Received {
    pub(crate) response: Response<Incoming>,
    pub(crate) lease: Lease,
}

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum SendError {
    /// Certainly nothing was sent.
    NotSent { kind: TroubleKind, why: String },
    /// Some of the request may have left.
    Broken { why: String },
}

/// The right to a connection until its response was read to the end.
pub(crate) struct Lease {
    http1: Option<http1::SendRequest<SpooledBody>>,
}

#[derive(Default)]
struct Pool {
    /// With the time when anything last came over it.
    http2: Option<(http2::SendRequest<SpooledBody>, Instant)>,
    http1: Vec<Idle>,
    /// What the last handshake settled on.
    speaks_http1: bool,
}

struct Idle {
    sender: http1::SendRequest<SpooledBody>,
    since: Instant,
}

enum Sender {
    Http1(http1::SendRequest<SpooledBody>),
    Http2(http2::SendRequest<SpooledBody>),
}

impl Route {
    /// Opens a connection. Nothing is sent over it but what opening a tunnel takes.
    pub(crate) async fn dial(&self) -> io::Result<BoxTransport> {
        match self {
            Self::Direct(address, namespace) => {
                let socket = match namespace {
                    Some(namespace) => namespace.socket(*address).await?,
                    None if address.is_ipv4() => TcpSocket::new_v4()?,
                    None => TcpSocket::new_v6()?,
                };
                socket.set_nodelay(true)?;
                socket.set_keepalive(true)?;
                Ok(Box::new(socket.connect(*address).await?))
            }
            Self::Tunnel(tunnel) => tunnel.open().await,
        }
    }
}

impl Upstream {
    pub(crate) fn new(shared: Arc<Shared>, route: Route, security: Security) -> Self {
        Self {
            shared,
            route,
            security,
            pool: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        }
    }

    /// Connects for bytes that are no HTTP, through TLS where the agent's leg has it.
    pub(crate) async fn dial(&self) -> Result<BoxTransport, SendError> {
        self.connect().await.map(|(io, _)| io)
    }

    /// Sends a request. A connection that turns out dead before anything was sent over it is
    /// replaced once; nothing is ever sent twice.
    pub(crate) async fn send(
        &self,
        outgoing: Outgoing,
        is_effect: bool,
    ) -> Result<Received, SendError> {
        let mut outgoing = outgoing;
        if let Some(sender) = self.reuse(is_effect) {
            match self.attempt(sender, outgoing).await {
                Attempt::Received(received) => return Ok(*received),
                Attempt::Unsent(back, _) => outgoing = *back,
                Attempt::Failed(error) => return Err(error),
            }
        }
        let sender = self.open(is_effect).await?;
        match self.attempt(sender, outgoing).await {
            Attempt::Received(received) => Ok(*received),
            Attempt::Unsent(_, why) => Err(SendError::NotSent {
                kind: TroubleKind::UpstreamUnreachable,
                why: format!(
                    "the connection to {} broke before the request was sent: {why}",
                    self.name()
                ),
            }),
            Attempt::Failed(error) => Err(error),
        }
    }

    /// Gives a connection back once its response was read to the end.
    pub(crate) fn give_back(self: &Arc<Self>, lease: Lease) {
        let Some(mut sender) = lease.http1 else {
            return self.http2_is_alive();
        };
        let this = self.clone();
        self.shared.tasks.spawn(async move {
            if sender.ready().await.is_ok() {
                this.pool.lock().http1.push(Idle {
                    sender,
                    since: Instant::now(),
                });
            }
        });
    }

    /// What to call it in messages.
    pub(crate) fn name(&self) -> String {
        let place = match &self.route {
            Route::Direct(address, _) => address.to_string(),
            Route::Tunnel(tunnel) => format!("{} through a proxy", tunnel.target()),
        };
        match &self.security {
            Security::Tls(name, _) => format!("{} ({place})", name.to_str()),
            Security::Plain { .. } => place,
        }
    }

    fn http2_is_alive(&self) {
        if let Some((_, since)) = &mut self.pool.lock().http2 {
            *since = Instant::now();
        }
    }

    fn reuse(&self, is_effect: bool) -> Option<Sender> {
        let is_stale = |since: Instant| is_effect && since.elapsed() > self.shared.limits().fresh;
        let mut pool = self.pool.lock();
        if let Some((sender, since)) = &pool.http2
            && !sender.is_closed()
            && !is_stale(*since)
        {
            return Some(Sender::Http2(sender.clone()));
        }
        while let Some(idle) = pool.http1.pop() {
            if idle.sender.is_ready() && !is_stale(idle.since) {
                return Some(Sender::Http1(idle.sender));
            }
        }
        None
    }

    async fn open(&self, is_effect: bool) -> Result<Sender, SendError> {
        let wants_http2 = match &self.security {
            Security::Tls(_, alpn) => *alpn == Alpn::Http2,
            Security::Plain { http2 } => *http2,
        };
        let _one_by_one = if wants_http2 && !self.pool.lock().speaks_http1 {
            let guard = self.connecting.lock().await;
            // Another request may have connected meanwhile.
            if let Some(sender) = self.reuse(is_effect) {
                return Ok(sender);
            }
            Some(guard)
        } else {
            None
        };
        let (io, is_http2) = self.connect().await?;
        let limits = self.shared.limits();
        let handshake = if is_http2 {
            let (sender, connection) = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .max_header_list_size(u32::try_from(limits.header).unwrap_or(u32::MAX))
                .adaptive_window(true)
                .handshake(TokioIo::new(io))
                .await
                .map_err(|error| self.unreachable(&error))?;
            self.shared.tasks.spawn(async move {
                if let Err(error) = connection.await {
                    tracing::debug!("an upstream connection ended: {error}");
                }
            });
            self.pool.lock().http2 = Some((sender.clone(), Instant::now()));
            Sender::Http2(sender)
        } else {
            let (sender, connection) = http1::Builder::new()
                .preserve_header_case(true)
                .max_headers(limits.header_count)
                .max_buf_size(limits.header.max(16 * 1024))
                .handshake(TokioIo::new(io))
                .await
                .map_err(|error| self.unreachable(&error))?;
            self.shared.tasks.spawn(async move {
                if let Err(error) = connection.with_upgrades().await {
                    tracing::debug!("an upstream connection ended: {error}");
                }
            });
            self.pool.lock().speaks_http1 = true;
            Sender::Http1(sender)
        };
        Ok(handshake)
    }

    /// Connects, shakes hands where there is TLS, and says whether HTTP/2 is spoken.
    async fn connect(&self) -> Result<(BoxTransport, bool), SendError> {
        let within = self.shared.limits().connect;
        let connected = timeout(within, async {
            let io = match self.route.dial().await {
                Ok(io) => io,
                Err(error) => self
                    .dial_elsewhere()
                    .await
                    .ok_or_else(|| SendError::NotSent {
                        kind: TroubleKind::UpstreamUnreachable,
                        why: format!("{} cannot be reached: {error}", self.name()),
                    })?,
            };
            match &self.security {
                Security::Plain { http2 } => Ok((io, *http2)),
                Security::Tls(name, alpn) => {
                    let tls = self
                        .shared
                        .verified
                        .connect(name.clone(), *alpn, io)
                        .await
                        .map_err(|error| {
                            let (kind, why) = connect::diagnose(&error, &self.name());
                            SendError::NotSent { kind, why }
                        })?;
                    let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
                    Ok((Box::new(tls) as BoxTransport, is_http2))
                }
            }
        });
        connected.await.unwrap_or_else(|_| {
            Err(SendError::NotSent {
                kind: TroubleKind::UpstreamUnreachable,
                why: format!("{} did not answer within {within:?}", self.name()),
            })
        })
    }

    /// A client tries the addresses of a name one after the other, but through the hook the first one
    /// always seems to be there. So the others are tried here, in its place. Only under TLS: there
    /// the certificate proves that another address is the same service.
    async fn dial_elsewhere(&self) -> Option<BoxTransport> {
        // What a name means inside another namespace, nobody here can tell.
        let (Route::Direct(tried, None), Security::Tls(ServerName::DnsName(name), _)) =
            (&self.route, &self.security)
        else {
            return None;
        };
        let found = tokio::net::lookup_host((name.as_ref(), tried.port())).await;
        for address in found.ok()?.filter(|address| address != tried) {
            if let Ok(io) = Route::Direct(address, None).dial().await {
                tracing::debug!("{tried} did not answer, {address} of the same name does");
                return Some(io);
            }
        }
        None
    }

    async fn attempt(&self, sender: Sender, outgoing: Outgoing) -> Attempt {
        let back = Back::of(&outgoing);
        match sender {
            Sender::Http1(mut sender) => {
                // A sender is ready at once unless its connection just closed.
                let _ = sender.ready().await;
                match sender.try_send_request(outgoing.for_http1()).await {
                    Ok(response) => Attempt::Received(Box::new(Received {
                        response,
                        lease: Lease {
                            http1: Some(sender),
                        },
                    })),
                    Err(mut error) => self.failed(error.take_message(), back, error.error()),
                }
            }
            Sender::Http2(mut sender) => {
                let _ = sender.ready().await;
                match sender.try_send_request(outgoing.for_http2()).await {
                    Ok(response) => {
                        self.http2_is_alive();
                        Attempt::Received(Box::new(Received {
                            response,
                            lease: Lease { http1: None },
                        }))
                    }
                    Err(mut error) => self.failed(error.take_message(), back, error.error()),
                }
            }
        }
    }

    fn failed(
        &self,
        unsent: Option<Request<SpooledBody>>,
        back: Back,
        error: &hyper::Error,
    ) -> Attempt {
        if let Some(request) = unsent {
            return Attempt::Unsent(Box::new(back.restore(request)), chain(error));
        }
        Attempt::Failed(self.sent_and_failed(error))
    }

    fn sent_and_failed(&self, error: &hyper::Error) -> SendError {
        if connect::wants_client_certificate(error) {
            return SendError::NotSent {
                kind: TroubleKind::ClientCertificateWanted,
                why: connect::client_certificate(&self.name()),
            };
        }
        if was_refused(error) {
            return SendError::NotSent {
                kind: TroubleKind::UpstreamUnreachable,
                why: format!(
                    "{} refused the stream before it looked at the request",
                    self.name()
                ),
            };
        }
        SendError::Broken {
            why: format!("the connection to {} broke: {}", self.name(), chain(error)),
        }
    }

    fn unreachable(&self, error: &hyper::Error) -> SendError {
        SendError::NotSent {
            kind: TroubleKind::UpstreamUnreachable,
            why: format!("no HTTP connection with {}: {}", self.name(), chain(error)),
        }
    }
}

enum Attempt {
    Received(Box<Received>),
    Unsent(Box<Outgoing>, String),
    Failed(SendError),
}

/// What is needed to make an [`Outgoing`] of a request that came back.
struct Back {
    uri: Uri,
    authority: Authority,
    headers: HeaderMap,
    version: Version,
    upgrade: bool,
}

impl Back {
    fn of(outgoing: &Outgoing) -> Self {
        Self {
            uri: outgoing.uri.clone(),
            authority: outgoing.authority.clone(),
            headers: outgoing.headers.clone(),
            version: outgoing.version,
            upgrade: outgoing.upgrade,
        }
    }

    fn restore(self, request: Request<SpooledBody>) -> Outgoing {
        let (parts, body) = request.into_parts();
        Outgoing {
            method: parts.method,
            uri: self.uri,
            authority: self.authority,
            headers: self.headers,
            version: self.version,
            extensions: parts.extensions,
            upgrade: self.upgrade,
            body,
        }
    }
}

impl Outgoing {
    fn for_http1(self) -> Request<SpooledBody> {
        let mut out = headers::onward(&self.headers, Version::HTTP_11, true);
        if self.version != Version::HTTP_10 && self.method != Method::CONNECT {
            out = headers::with_host(out, &self.authority);
        }
        if self.upgrade {
            for name in [http::header::CONNECTION, http::header::UPGRADE] {
                for value in self.headers.get_all(&name) {
                    out.append(name.clone(), value.clone());
                }
            }
        }
        let uri = if self.version == Version::HTTP_2 {
            let path = self.uri.path_and_query().map_or("/", |p| p.as_str());
            path.parse().unwrap_or(self.uri)
        } else {
            self.uri
        };
        let version = if self.version == Version::HTTP_10 {
            Version::HTTP_10
        } else {
            Version::HTTP_11
        };
        build(self.method, uri, version, out, self.extensions, self.body)
    }

    fn for_http2(self) -> Request<SpooledBody> {
        let out = headers::onward(&self.headers, Version::HTTP_2, false);
        build(
            self.method,
            self.uri,
            Version::HTTP_2,
            out,
            self.extensions,
            self.body,
        )
    }
}

fn build(
    method: Method,
    uri: Uri,
    version: Version,
    headers: HeaderMap,
    extensions: http::Extensions,
    body: SpooledBody,
) -> Request<SpooledBody> {
    let mut request = Request::new(body);
    *request.method_mut() = method;
    *request.uri_mut() = uri;
    *request.version_mut() = version;
    *request.headers_mut() = headers;
    *request.extensions_mut() = extensions;
    request
}

/// An error with its causes, in one line.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// RFC 9113 §8.7: such a stream was not processed in any way.
fn was_refused(error: &hyper::Error) -> bool {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(h2) = cause.downcast_ref::<h2::Error>() {
            return h2.is_reset()
                && h2.is_remote()
                && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
        }
        next = cause.source();
    }
    false
}
