//! Upstreams: real servers on loopback that count what reaches them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

pub type Body = BoxBody<Bytes, std::io::Error>;
pub type Handler =
    Arc<dyn Fn(Request<Incoming>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

/// An upstream and what reached it.
pub struct Site {
    pub address: SocketAddr,
    pub accepted: Arc<AtomicUsize>,
    pub requests: Arc<AtomicUsize>,
    pub roots: Vec<CertificateDer<'static>>,
}

impl Site {
    pub fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }

    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }

    /// Over clear text: HTTP/1.1, or HTTP/2 with prior knowledge.
    pub async fn plain(handler: Handler) -> Self {
        Self::start(handler, None, Vec::new()).await
    }

    /// Over TLS for `name`, with these protocols.
    pub async fn tls(name: &str, alpn: &[&str], handler: Handler) -> Self {
        let (config, root) = server_config(name, alpn);
        Self::start(
            handler,
            Some(TlsAcceptor::from(Arc::new(config))),
            vec![root],
        )
        .await
    }

    pub async fn tls_with(
        config: rustls::ServerConfig,
        root: CertificateDer<'static>,
        handler: Handler,
    ) -> Self {
        Self::start(
            handler,
            Some(TlsAcceptor::from(Arc::new(config))),
            vec![root],
        )
        .await
    }

    async fn start(
        handler: Handler,
        tls: Option<TlsAcceptor>,
        roots: Vec<CertificateDer<'static>>,
    ) -> Self {
        let requests = Arc::new(AtomicUsize::new(0));
        let count = requests.clone();
        let serve = move |stream: TcpStream| {
            let (handler, tls, count) = (handler.clone(), tls.clone(), count.clone());
            async move {
                let service = service_fn(move |request| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let response = handler(request);
                    async move { Ok::<_, Infallible>(response.await) }
                });
                let mut builder =
                    hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                builder.http1().preserve_header_case(true);
                match tls {
                    None => {
                        let _ = builder
                            .serve_connection_with_upgrades(TokioIo::new(stream), service)
                            .await;
                    }
                    Some(tls) => {
                        if let Ok(stream) = tls.accept(stream).await {
                            let _ = builder
                                .serve_connection_with_upgrades(TokioIo::new(stream), service)
                                .await;
                        }
                    }
                }
            }
        };
        let (address, accepted) = listen(serve).await;
        Self {
            address,
            accepted,
            requests,
            roots,
        }
    }

    /// An upstream that does with each connection what the test says.
    pub async fn raw<F>(serve: impl Fn(TcpStream) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (address, accepted) = listen(serve).await;
        Self {
            address,
            accepted,
            requests: Arc::default(),
            roots: Vec::new(),
        }
    }
}

async fn listen<F>(
    serve: impl Fn(TcpStream) -> F + Send + Sync + 'static,
) -> (SocketAddr, Arc<AtomicUsize>)
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = accepted.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(serve(stream));
        }
    });
    (address, accepted)
}

/// A server certificate for `name` (or an address) from a CA of its own.
pub fn server_config(name: &str, alpn: &[&str]) -> (rustls::ServerConfig, CertificateDer<'static>) {
    let (chain, key, root) = certified(name);
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    (config, root)
}

pub fn certified(
    name: &str,
) -> (
    Vec<CertificateDer<'static>>,
    PrivateKeyDer<'static>,
    CertificateDer<'static>,
) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = ca.self_signed(&ca_key).unwrap().der().clone();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![name.to_owned()])
        .unwrap()
        .signed_by(&key, &issuer)
        .unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    (vec![leaf.der().clone()], key, root)
}

/// A handler from an async function.
pub fn handler<F>(f: impl Fn(Request<Incoming>) -> F + Send + Sync + 'static) -> Handler
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    Arc::new(move |request| Box::pin(f(request)))
}

/// Answers `paid` to everything.
pub fn bank() -> Handler {
    handler(|request| async move {
        if request.method() == http::Method::HEAD {
            let mut response = Response::new(full(""));
            response.headers_mut().insert("content-length", 5.into());
            return response;
        }
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Response::new(full(format!("paid {}", String::from_utf8_lossy(&body))))
    })
}

pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into())
        .map_err(|never| match never {})
        .boxed()
}

/// A body that is fed through a channel; an error cuts it off.
pub fn fed() -> (
    tokio::sync::mpsc::Sender<std::io::Result<http_body::Frame<Bytes>>>,
    Body,
) {
    let (sender, receiver) = tokio::sync::mpsc::channel(16);
    let stream = futures_util::stream::unfold(receiver, |mut receiver| async move {
        receiver.recv().await.map(|frame| (frame, receiver))
    });
    (sender, http_body_util::StreamBody::new(stream).boxed())
}

/// Reads from `stream` up to the end of a request's header fields.
pub async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).unwrap()
}

pub async fn write(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
}
