//! A boundary on loopback with an agent that wanted to go to a given address.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use acrfence_user::boundary::tls::ca::Ca;
use acrfence_user::boundary::{Boundary, Caller, Callers, Config, Limits};
use acrfence_user::words::{Origin, ProcessIdentity};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::fence::{Door, Fence};

pub struct Hook {
    pub address: SocketAddr,
    pub fence: Arc<Fence>,
    pub ca: Arc<Ca>,
    pub dir: tempfile::TempDir,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    pub running: tokio::task::JoinHandle<()>,
}

struct OneAgent(SocketAddr);

impl Callers for OneAgent {
    fn caller(&self, _: SocketAddr) -> Option<Caller> {
        Some(Caller {
            origin: Origin {
                agent: "buyer".parse().unwrap(),
                incarnation: 1,
                process: ProcessIdentity {
                    tgid: 7,
                    start_ns: 1,
                },
                exe: String::new(),
                argv: Vec::new(),
                cwd: String::new(),
                uid: 0,
                connection: None,
                gaps: String::new(),
            },
            original: self.0,
        })
    }
}

struct Nobody;

impl Callers for Nobody {
    fn caller(&self, _: SocketAddr) -> Option<Caller> {
        None
    }
}

impl Hook {
    /// A hook whose agent dials `original`; upstreams are verified against `roots`.
    pub async fn to(original: SocketAddr, roots: Vec<CertificateDer<'static>>) -> Self {
        Self::with(original, roots, |_| {}).await
    }

    pub async fn with(
        original: SocketAddr,
        roots: Vec<CertificateDer<'static>>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        Self::of(Arc::new(OneAgent(original)), roots, change).await
    }

    pub async fn of_nobody() -> Self {
        Self::of(Arc::new(Nobody), Vec::new(), |_| {}).await
    }

    async fn of(
        callers: Arc<dyn Callers>,
        roots: Vec<CertificateDer<'static>>,
        change: impl FnOnce(&mut Config),
    ) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Arc::new(Ca::create(dir.path()).unwrap());
        let mut config = Config {
            listen: vec!["127.0.0.1:0".parse().unwrap()],
            ca: ca.clone(),
            spool: dir.path().to_owned(),
            roots,
            pass_through: Arc::new(|_| false),
            limits: Limits::default(),
        };
        change(&mut config);
        let fence = Fence::new();
        let boundary = Boundary::bind(config, callers, Arc::new(Door(fence.clone())))
            .await
            .unwrap();
        let address = boundary.addresses().unwrap()[0];
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let running = tokio::spawn(boundary.run(async {
            let _ = stopped.await;
        }));
        Self {
            address,
            fence,
            ca,
            dir,
            stop: Some(stop),
            running,
        }
    }

    pub fn stop(&mut self) {
        self.stop.take();
    }

    pub fn ca_file(&self) -> &Path {
        self.ca.path()
    }

    pub async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// A TLS connection of an agent that trusts the CA.
    pub async fn tls(&self, name: &str, alpn: &[&str]) -> TlsStream<TcpStream> {
        self.try_tls(name, alpn).await.unwrap()
    }

    pub async fn try_tls(
        &self,
        name: &str,
        alpn: &[&str],
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let config = client_config(&[self.ca.der().clone()], alpn);
        let name = ServerName::try_from(name.to_owned()).unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, self.tcp().await)
            .await
    }

    /// An HTTP/1.1 client over clear text.
    pub async fn http1(&self) -> Http1 {
        Http1::over(self.tcp().await).await
    }

    pub async fn https1(&self, name: &str) -> Http1 {
        Http1::over(self.tls(name, &["http/1.1"]).await).await
    }

    pub async fn https2(&self, name: &str) -> Http2 {
        Http2::over(self.tls(name, &["h2"]).await).await
    }
}

pub fn client_config(roots: &[CertificateDer<'static>], alpn: &[&str]) -> rustls::ClientConfig {
    let mut store = rustls::RootCertStore::empty();
    store.add_parsable_certificates(roots.iter().cloned());
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|p| p.as_bytes().to_vec()).collect();
    config
}

pub struct Http1 {
    pub sender: hyper::client::conn::http1::SendRequest<Full<Bytes>>,
}

impl Http1 {
    pub async fn over(
        io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let (sender, connection) = hyper::client::conn::http1::Builder::new()
            .preserve_header_case(true)
            .handshake(TokioIo::new(io))
            .await
            .unwrap();
        tokio::spawn(connection.with_upgrades());
        Self { sender }
    }

    pub async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Response<Incoming>> {
        self.sender.ready().await?;
        self.sender.send_request(request).await
    }
}

pub struct Http2 {
    pub sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
}

impl Http2 {
    pub async fn over(
        io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
            .handshake(TokioIo::new(io))
            .await
            .unwrap();
        tokio::spawn(connection);
        Self { sender }
    }

    pub async fn send(&self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        self.sender.clone().send_request(request).await
    }
}

pub fn post(uri: &str, body: &str) -> Request<Full<Bytes>> {
    let host = uri
        .parse::<http::Uri>()
        .unwrap()
        .host()
        .map_or("bank.test".to_owned(), str::to_owned);
    let mut request = Request::post(uri)
        .header("content-type", "application/json")
        .body(Full::from(body.to_owned()))
        .unwrap();
    if !uri.starts_with("http") {
        request.headers_mut().insert("host", host.parse().unwrap());
    }
    request
}

pub fn get(uri: &str) -> Request<Full<Bytes>> {
    let mut request = post(uri, "");
    *request.method_mut() = http::Method::GET;
    request.headers_mut().remove("content-type");
    request
}

pub async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}
