//! What is no HTTP, and what stops being HTTP.

use std::sync::atomic::Ordering;
use std::time::Duration;

use acrfence_user::boundary::TroubleKind;
use http::Response;
use http_body_util::BodyExt as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::hook::{Hook, Http1, get, post, text};
use crate::site::{self, Site, bank, handler};

/// Says hello first, then echoes.
async fn smtp() -> Site {
    Site::raw(|mut stream| async move {
        let _ = stream.write_all(b"220 ready\r\n").await;
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await
}

#[tokio::test]
async fn a_server_that_speaks_first_is_passed_on_and_counted() {
    let site = smtp().await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.server_first = Duration::from_millis(20);
    })
    .await;
    let mut stream = hook.tcp().await;
    let mut hello = [0; 11];
    stream.read_exact(&mut hello).await.unwrap();
    assert_eq!(&hello, b"220 ready\r\n");
    stream.write_all(b"EHLO x\r\n").await.unwrap();
    let mut echo = [0; 8];
    stream.read_exact(&mut echo).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).await.unwrap();
    let flow = hook.fence.flow_end().await;
    assert_eq!((flow.sent, flow.received), (8, 19));
    assert_eq!(flow.why, "the server speaks first");
    assert!(hook.fence.calls.lock().is_empty());
}

#[tokio::test]
async fn a_client_that_speaks_another_protocol_is_passed_on() {
    let site = Site::raw(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"\x00\x00\x00\x08\x04\xd2\x16\x2f")
        .await
        .unwrap();
    let mut echo = [0; 8];
    stream.read_exact(&mut echo).await.unwrap();
    drop(stream);
    let flow = hook.fence.flow_end().await;
    assert_eq!(flow.why, "PostgreSQL");
    assert_eq!((flow.sent, flow.received), (8, 8));
}

#[tokio::test]
async fn an_agent_that_takes_its_time_is_still_fenced() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.server_first = Duration::from_millis(20);
    })
    .await;
    let mut stream = hook.tcp().await;
    // By now the upstream is connected, as the server might speak first.
    hook.fence
        .until("a flow", |f| f.flows.lock().first().cloned())
        .await;
    tokio::time::sleep(Duration::from_millis(50)).await;
    stream
        .write_all(
            b"POST /pay HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: 1\r\n\r\n1",
        )
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(seen.ends_with("paid 1"), "{seen}");
    assert_eq!(hook.fence.http_calls().len(), 1);
    let flow = hook.fence.flow_end().await;
    assert_eq!((flow.sent, flow.received), (0, 0));
}

#[tokio::test]
async fn a_denied_flow_reaches_nobody() {
    let site = smtp().await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.server_first = Duration::from_millis(20);
        c.limits.first_byte = Duration::from_millis(200);
    })
    .await;
    hook.fence.opaque_is_denied.store(true, Ordering::Relaxed);
    let mut stream = hook.tcp().await;
    stream.write_all(b"\x00\x01\x02\x03").await.unwrap();
    let mut seen = Vec::new();
    let _ = stream.read_to_end(&mut seen).await;
    let mut silent = hook.tcp().await;
    let _ = silent.read_to_end(&mut seen).await;
    assert!(seen.is_empty());
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn a_denied_opaque_flow_leaves_http_alone() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.server_first = Duration::from_millis(20);
    })
    .await;
    hook.fence.opaque_is_denied.store(true, Ordering::Relaxed);
    let mut stream = hook.tcp().await;
    hook.fence
        .until("a flow", |f| f.flows.lock().first().cloned())
        .await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
}

#[tokio::test]
async fn tls_for_another_protocol_stays_closed() {
    let site = Site::tls("mail.test", &["imap"], bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    // The agent gets the server's own certificate, so only its root helps.
    let config = crate::hook::client_config(&site.roots, &["imap"]);
    let name = rustls::pki_types::ServerName::try_from("mail.test").unwrap();
    let stream = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config))
        .connect(name, hook.tcp().await)
        .await
        .unwrap();
    drop(stream);
    assert_eq!(
        hook.fence.flow_end().await.why,
        "TLS for imap, not for HTTP"
    );
}

#[tokio::test]
async fn tls_without_http_inside_is_relayed_and_counted() {
    let (config, root) = site::server_config("db.test", &[]);
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let site = Site::raw(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let stream = acceptor.accept(stream).await.unwrap();
            let (mut read, mut write) = tokio::io::split(stream);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        }
    })
    .await;
    let hook = Hook::to(site.address, vec![root]).await;
    let mut stream = hook.tls("db.test", &[]).await;
    stream.write_all(b"\x01query").await.unwrap();
    let mut echo = [0; 6];
    stream.read_exact(&mut echo).await.unwrap();
    drop(stream);
    let flow = hook.fence.flow_end().await;
    assert_eq!(flow.why, "TLS that carries no HTTP");
    assert_eq!((flow.sent, flow.received), (6, 6));
}

#[tokio::test]
async fn an_opaque_flow_to_nobody_is_reported() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let hook = Hook::to(address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream.write_all(b"\x00\x00").await.unwrap();
    let mut seen = Vec::new();
    let _ = stream.read_to_end(&mut seen).await;
    hook.fence.trouble(TroubleKind::UpstreamUnreachable).await;
}

fn websocket() -> site::Handler {
    handler(|mut request| async move {
        if !request.headers().contains_key("upgrade") {
            return Response::new(site::full("plain"));
        }
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let io = hyper_util::rt::TokioIo::new(upgraded.await.unwrap());
            let (mut read, mut write) = tokio::io::split(io);
            let _ = tokio::io::copy(&mut read, &mut write).await;
        });
        Response::builder()
            .status(101)
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-accept", "x")
            .body(site::full(""))
            .unwrap()
    })
}

fn upgrade() -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut request = get("/ws");
    let fields = request.headers_mut();
    fields.insert("connection", "keep-alive, Upgrade".parse().unwrap());
    fields.insert("upgrade", "websocket".parse().unwrap());
    fields.insert("sec-websocket-key", "k".parse().unwrap());
    request
}

#[tokio::test]
async fn a_websocket_is_admitted_as_a_call_and_passed_on() {
    let site = Site::tls("bank.test", &["http/1.1"], websocket()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let response = hook
        .https1("bank.test")
        .await
        .send(upgrade())
        .await
        .unwrap();
    assert_eq!(response.status(), 101);
    assert_eq!(response.headers()["sec-websocket-accept"], "x");
    let mut io = hyper_util::rt::TokioIo::new(hyper::upgrade::on(response).await.unwrap());
    io.write_all(b"frames").await.unwrap();
    let mut echo = [0; 6];
    io.read_exact(&mut echo).await.unwrap();
    assert_eq!(&echo, b"frames");
    drop(io);
    let flow = hook.fence.flow_end().await;
    assert_eq!(
        (flow.why.as_str(), flow.sent, flow.received),
        ("WebSocket", 6, 6)
    );
    assert_eq!(hook.fence.http_calls()[0].url, "https://bank.test/ws");
}

#[tokio::test]
async fn a_denied_websocket_reaches_nobody() {
    let site = Site::plain(websocket()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.opaque_is_denied.store(true, Ordering::Relaxed);
    let response = hook.http1().await.send(upgrade()).await.unwrap();
    assert_eq!(response.status(), 409);
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn an_upgrade_that_is_declined_stays_http() {
    let site = Site::plain(handler(|_| async { Response::new(site::full("no")) })).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    assert_eq!(text(agent.send(upgrade()).await.unwrap()).await, "no");
    assert_eq!(text(agent.send(get("/")).await.unwrap()).await, "no");
    assert_eq!(site.accepted(), 1);
}

/// A proxy that opens tunnels to `to`, whatever it is asked for, and forwards nothing else.
async fn proxy(to: std::net::SocketAddr, says: &'static str) -> Site {
    Site::raw(move |mut stream| async move {
        let head = site::read_head(&mut stream).await;
        assert!(
            head.starts_with("CONNECT bank.test:443 HTTP/1.1\r\n"),
            "{head}"
        );
        assert!(head.contains("roxy-"), "{head}");
        site::write(&mut stream, says).await;
        if says.contains("200") {
            let mut upstream = tokio::net::TcpStream::connect(to).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut stream, &mut upstream).await;
        }
    })
    .await
}

const CONNECT: &[u8] =
    b"CONNECT bank.test:443 HTTP/1.1\r\nHost: bank.test:443\r\nProxy-Authorization: Basic x\r\n\r\n";

#[tokio::test]
async fn what_goes_through_a_tunnel_is_fenced() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let proxy = proxy(site.address, "HTTP/1.1 200 Connection established\r\n\r\n").await;
    let hook = Hook::to(proxy.address, site.roots.clone()).await;
    let mut stream = hook.tcp().await;
    stream.write_all(CONNECT).await.unwrap();
    let opened = site::read_head(&mut stream).await;
    assert!(opened.starts_with("HTTP/1.1 200"), "{opened}");
    let config = crate::hook::client_config(&[hook.ca.der().clone()], &["http/1.1"]);
    let name = rustls::pki_types::ServerName::try_from("bank.test").unwrap();
    let tls = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let mut agent = Http1::over(tls).await;
    hook.fence.say(crate::fence::Say::Refuse(
        acrfence_user::words::RefusalCode::Diverged,
    ));
    assert_eq!(agent.send(post("/pay", "1")).await.unwrap().status(), 409);
    assert_eq!(site.requests(), 0);
    for n in 2..4 {
        let response = agent.send(post("/pay", &n.to_string())).await.unwrap();
        assert_eq!(text(response).await, format!("paid {n}"));
    }
    assert_eq!(hook.fence.http_calls()[0].url, "https://bank.test/pay");
    assert_eq!((proxy.accepted(), site.accepted()), (1, 1));
}

#[tokio::test]
async fn in_a_tunnel_an_agent_without_sni_gets_the_name_it_asked_the_proxy_for() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let proxy = proxy(site.address, "HTTP/1.1 200 Connection established\r\n\r\n").await;
    let hook = Hook::to(proxy.address, site.roots.clone()).await;
    let mut stream = hook.tcp().await;
    stream.write_all(CONNECT).await.unwrap();
    site::read_head(&mut stream).await;
    let mut config = crate::hook::client_config(&[hook.ca.der().clone()], &["http/1.1"]);
    config.enable_sni = false;
    let name = rustls::pki_types::ServerName::try_from("bank.test").unwrap();
    let tls = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let response = Http1::over(tls)
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(text(response).await, "paid 1");
}

#[tokio::test]
async fn what_is_no_http_in_a_tunnel_says_where_it_goes() {
    let site = Site::raw(|mut stream| async move {
        let (mut read, mut write) = stream.split();
        let _ = tokio::io::copy(&mut read, &mut write).await;
    })
    .await;
    let proxy = proxy(site.address, "HTTP/1.1 200 Connection established\r\n\r\n").await;
    let hook = Hook::to(proxy.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream.write_all(CONNECT).await.unwrap();
    site::read_head(&mut stream).await;
    stream.write_all(b"SSH-2.0-x\r\n").await.unwrap();
    let mut echo = [0; 11];
    stream.read_exact(&mut echo).await.unwrap();
    drop(stream);
    let flow = hook.fence.flow_end().await;
    assert_eq!(flow.why, "SSH, through a tunnel to bank.test:443");
}

#[tokio::test]
async fn a_proxy_that_wants_to_know_who_asks_is_heard() {
    let proxy = proxy(
        "127.0.0.1:1".parse().unwrap(),
        "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic\r\nContent-Length: 2\r\n\r\nno",
    )
    .await;
    let hook = Hook::to(proxy.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream.write_all(CONNECT).await.unwrap();
    let answer = site::read_head(&mut stream).await.to_ascii_lowercase();
    assert!(answer.starts_with("http/1.1 407"), "{answer}");
    assert!(answer.contains("proxy-authenticate: basic"), "{answer}");
}

#[tokio::test]
async fn requests_to_a_plain_proxy_keep_their_absolute_form() {
    let site = Site::plain(handler(|request| async move {
        let line = request.uri().to_string();
        request.into_body().collect().await.unwrap();
        Response::new(site::full(line))
    }))
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut request = post("http://shop.test/order?x=1", "1");
    request
        .headers_mut()
        .insert("host", "shop.test".parse().unwrap());
    let mut agent = hook.http1().await;
    let response = agent.send(request).await.unwrap();
    assert_eq!(text(response).await, "http://shop.test/order?x=1");
    assert_eq!(hook.fence.http_calls()[0].url, "http://shop.test/order?x=1");
}
