//! Serves a router over TLS (HTTP/1.1 and HTTP/2) or in the clear, on both loopback addresses.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, bail};
use axum::extract::Request;
use axum::{Extension, Router, middleware};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio_rustls::TlsAcceptor;

/// Where a request came from, as the service sees it.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

/// A running service. Dropping it ends every connection.
pub struct Server {
    port: u16,
    scheme: &'static str,
    requests: Arc<AtomicUsize>,
    // Holds the threads that serve; last, so that it goes last.
    runtime: Option<Runtime>,
}

impl Server {
    /// Starts to serve `router` on `127.0.0.1`, and on `::1` if that is wanted and there; in the clear
    /// when there is no `tls`. Port 0 means any.
    pub fn start(
        router: Router,
        tls: Option<Arc<rustls::ServerConfig>>,
        port: u16,
        both: bool,
    ) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("testbed")
            .enable_all()
            .build()
            .context("starting the threads of a testbed service")?;
        let (v4, v6) = runtime.block_on(listen(port, both))?;
        let port = v4.local_addr()?.port();
        let requests = Arc::new(AtomicUsize::new(0));
        let scheme = if tls.is_some() { "https" } else { "http" };
        let acceptor = tls.map(TlsAcceptor::from);
        for listener in std::iter::once(v4).chain(v6) {
            runtime.spawn(accept(
                listener,
                acceptor.clone(),
                router.clone(),
                requests.clone(),
            ));
        }
        Ok(Self {
            port,
            scheme,
            requests,
            runtime: Some(runtime),
        })
    }

    /// Its port, the same on `127.0.0.1` and `::1`.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// URL of `path` on this server, by name.
    pub fn url(&self, path: &str) -> String {
        format!("{}://localhost:{}{path}", self.scheme, self.port)
    }

    /// HTTP requests received so far, whatever came of them.
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// One port on one or both addresses. `localhost` resolves to both, and a client may try either first.
async fn listen(port: u16, both: bool) -> Result<(TcpListener, Option<TcpListener>)> {
    for _ in 0..50 {
        let v4 = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .with_context(|| format!("listening on 127.0.0.1:{port}"))?;
        if !both {
            return Ok((v4, None));
        }
        match TcpListener::bind((Ipv6Addr::LOCALHOST, v4.local_addr()?.port())).await {
            Ok(v6) => return Ok((v4, Some(v6))),
            // A machine without IPv6: `localhost` is 127.0.0.1 alone.
            Err(e) if e.kind() == std::io::ErrorKind::AddrNotAvailable => return Ok((v4, None)),
            Err(e) if port != 0 => {
                return Err(e).with_context(|| format!("listening on [::1]:{port}"));
            }
            // Somebody has this port on ::1; take another.
            Err(_) => {}
        }
    }
    bail!("found no port that is free on both 127.0.0.1 and ::1")
}

async fn accept(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    requests: Arc<AtomicUsize>,
) {
    loop {
        let Ok((stream, peer)) = listener.accept().await else {
            // Out of descriptors or the like: the next one may do.
            tokio::task::yield_now().await;
            continue;
        };
        let requests = requests.clone();
        let router = router.clone();
        match tls.clone() {
            None => drop(tokio::spawn(converse(stream, peer, router, requests))),
            Some(tls) => drop(tokio::spawn(async move {
                // A client that does not trust the root ends the handshake; nothing to serve then.
                if let Ok(stream) = tls.accept(stream).await {
                    converse(stream, peer, router, requests).await;
                }
            })),
        }
    }
}

async fn converse<S>(stream: S, peer: SocketAddr, router: Router, requests: Arc<AtomicUsize>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let count = middleware::map_request(move |request: Request| {
        requests.fetch_add(1, Ordering::SeqCst);
        std::future::ready(request)
    });
    let router = router.layer(Extension(Peer(peer))).layer(count);
    let service = TowerToHyperService::new(router);
    // How a connection ends is the client's business.
    let _ = auto::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await;
}
