//! TLS on both legs.

use std::process::Stdio;
use std::sync::Arc;

use acrfence_user::boundary::TroubleKind;
use acrfence_user::words::Ending;
use http::Response;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use crate::hook::{Hook, Http1, client_config, get, post, text};
use crate::site::{self, Site, bank, handler};

#[tokio::test]
async fn an_upstream_that_does_not_verify_gets_nothing() {
    // Another name, another CA, expired, and one that is fine.
    let other = Site::tls("other.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(other.address, other.roots.clone()).await;
    let response = hook
        .https1("bank.test")
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 502);
    assert!(text(response).await.contains("NotValidForName"));
    let detail = hook.fence.trouble(TroubleKind::UpstreamUntrusted).await;
    assert!(detail.contains("extra_roots"), "{detail}");
    assert!(matches!(hook.fence.ending().await, Ending::NotSent { .. }));
    assert_eq!(other.requests(), 0);

    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let stranger = site::certified("bank.test").2;
    let hook = Hook::to(site.address, vec![stranger]).await;
    let response = hook
        .https1("bank.test")
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 502);
    hook.fence.trouble(TroubleKind::UpstreamUntrusted).await;
    assert_eq!(site.requests(), 0);
}

#[tokio::test]
async fn an_expired_upstream_gets_nothing() {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let root = ca.self_signed(&ca_key).unwrap().der().clone();
    let issuer = Issuer::new(ca, ca_key);
    let key = KeyPair::generate().unwrap();
    let mut leaf = CertificateParams::new(vec!["bank.test".to_owned()]).unwrap();
    leaf.not_before = date_time_ymd(2020, 1, 1);
    leaf.not_after = date_time_ymd(2021, 1, 1);
    let leaf = leaf.signed_by(&key, &issuer).unwrap().der().clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf], key.serialize_der().try_into().unwrap())
        .unwrap();
    let site = Site::tls_with(config, root, bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let response = hook
        .https1("bank.test")
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 502);
    let detail = hook.fence.trouble(TroubleKind::UpstreamUntrusted).await;
    assert!(detail.contains("Expired"), "{detail}");
}

#[tokio::test]
async fn an_address_is_verified_as_an_address() {
    let site = Site::tls("127.0.0.1", &[], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    // No SNI for an address; the leaf must carry it, or this handshake fails.
    let stream = hook.tls("127.0.0.1", &[]).await;
    let mut agent = Http1::over(stream).await;
    let uri = format!("https://{}/pay", site.address);
    let mut request = post("/pay", "1");
    request
        .headers_mut()
        .insert("host", site.address.to_string().parse().unwrap());
    assert_eq!(text(agent.send(request).await.unwrap()).await, "paid 1");
    assert_eq!(hook.fence.http_calls()[0].url, uri);
    let connection = hook.fence.calls.lock()[0]
        .origin
        .connection
        .clone()
        .unwrap();
    assert_eq!(connection.sni, None);
}

#[tokio::test]
async fn nothing_is_dialled_before_a_request_is_admitted() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let mut stream = hook.tls("bank.test", &["http/1.1"]).await;
    stream
        .write_all(b"POST /pay HTTP/1.1\r\nHost: bank.test\r\n")
        .await
        .unwrap();
    stream.flush().await.unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn another_host_than_the_connections_is_misdirected() {
    let site = Site::tls("bank.test", &["h2", "http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let mut request = post("/pay", "1");
    request
        .headers_mut()
        .insert("host", "shop.test".parse().unwrap());
    let response = hook.https1("bank.test").await.send(request).await.unwrap();
    assert_eq!(response.status(), 421);
    let response = hook
        .https2("bank.test")
        .await
        .send(post("https://shop.test/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 421);
    assert_eq!(site.accepted(), 0);
    // Case, port and a final dot make no other host.
    let mut request = post("/pay", "1");
    request
        .headers_mut()
        .insert("host", "BANK.test.:443".parse().unwrap());
    let response = hook.https1("bank.test").await.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn an_agent_that_does_not_trust_the_ca_is_told_apart() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let config = client_config(&site.roots, &["http/1.1"]);
    let name = ServerName::try_from("bank.test").unwrap();
    let connected = TlsConnector::from(Arc::new(config))
        .connect(name, hook.tcp().await)
        .await;
    assert!(connected.is_err());
    let detail = hook.fence.trouble(TroubleKind::CaNotTrusted).await;
    assert!(detail.contains("acrfence run"), "{detail}");

    // One that goes away without a word is not said to distrust anything.
    let mut stream = hook.tcp().await;
    let hello = client_hello("bank.test");
    stream.write_all(&hello).await.unwrap();
    let mut some = [0; 5];
    stream.read_exact(&mut some).await.unwrap();
    drop(stream);
    hook.fence.trouble(TroubleKind::HandshakeAborted).await;
}

/// A first message, without the rest of a client.
fn client_hello(name: &str) -> Vec<u8> {
    let config = client_config(&[], &["http/1.1"]);
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut out = Vec::new();
    client.write_tls(&mut out).unwrap();
    out
}

#[tokio::test]
async fn broken_handshakes_harm_nobody_else() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::with(site.address, site.roots.clone(), |c| {
        c.limits.handshake = std::time::Duration::from_millis(100);
    })
    .await;
    let hello = client_hello("bank.test");
    let mut garbled = hello.clone();
    for byte in &mut garbled[9..60] {
        *byte ^= 0xff;
    }
    let truncated = hello[..hello.len() / 2].to_vec();
    for bytes in [
        truncated,
        garbled,
        b"\x16\x03\x01\xff\xff".to_vec(),
        b"\x16\x03\x01\x00\x05hello".to_vec(),
        [b"\x16\x03\x01\x40\x00".to_vec(), vec![0; 0x4000]].concat(),
    ] {
        let mut stream = hook.tcp().await;
        stream.write_all(&bytes).await.unwrap();
        let mut seen = Vec::new();
        tokio::time::timeout(
            std::time::Duration::from_secs(10),
            stream.read_to_end(&mut seen),
        )
        .await
        .expect("a broken handshake must end")
        .ok();
    }
    hook.fence.trouble(TroubleKind::BadRequest).await;
    assert_eq!(site.accepted(), 0);
    let response = hook
        .https1("bank.test")
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(text(response).await, "paid 1");
}

#[tokio::test]
async fn sessions_are_resumed_and_early_data_is_not_offered() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let mut config = client_config(&[hook.ca.der().clone()], &["http/1.1"]);
    config.enable_early_data = true;
    let connector = TlsConnector::from(Arc::new(config));
    for round in 0..2 {
        let name = ServerName::try_from("bank.test").unwrap();
        let stream = connector.connect(name, hook.tcp().await).await.unwrap();
        let kind = stream.get_ref().1.handshake_kind();
        assert!(!stream.get_ref().1.is_early_data_accepted());
        let mut agent = Http1::over(stream).await;
        assert_eq!(
            text(agent.send(post("/pay", "1")).await.unwrap()).await,
            "paid 1"
        );
        if round == 1 {
            assert_eq!(kind, Some(rustls::HandshakeKind::Resumed));
        }
    }
}

#[tokio::test]
async fn tls_1_2_is_enough() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let mut store = rustls::RootCertStore::empty();
    store.add(hook.ca.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS12])
        .unwrap()
        .with_root_certificates(store)
        .with_no_client_auth();
    let name = ServerName::try_from("bank.test").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, hook.tcp().await)
        .await
        .unwrap();
    let response = Http1::over(stream)
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(text(response).await, "paid 1");
}

#[tokio::test]
async fn an_upstream_that_wants_a_client_certificate_is_named() {
    let (chain, key, root) = site::certified("bank.test");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(root.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(roots),
        provider.clone(),
    )
    .build()
    .unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)
        .unwrap();
    let site = Site::tls_with(config, root, bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let response = hook
        .https1("bank.test")
        .await
        .send(post("/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 502);
    let detail = hook
        .fence
        .trouble(TroubleKind::ClientCertificateWanted)
        .await;
    assert!(detail.contains("pass_through"), "{detail}");
    assert!(matches!(hook.fence.ending().await, Ending::NotSent { .. }));
    assert_eq!(site.requests(), 0);
}

#[tokio::test]
async fn policy_passes_a_host_through_unopened() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.pass_through = Arc::new(|host| host == "bank.test");
    })
    .await;
    // The agent sees the server's own certificate.
    let config = client_config(&site.roots, &["http/1.1"]);
    let name = ServerName::try_from("bank.test").unwrap();
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, hook.tcp().await)
        .await
        .unwrap();
    let mut agent = Http1::over(stream).await;
    assert_eq!(
        text(agent.send(post("/pay", "1")).await.unwrap()).await,
        "paid 1"
    );
    drop(agent);
    let flow = hook.fence.flow_end().await;
    assert_eq!(flow.why, "passed through by policy");
    assert_eq!(flow.peer, site.address);
    assert!(flow.sent > 100 && flow.received > 100, "{flow:?}");
    assert!(hook.fence.calls.lock().is_empty());
}

async fn curl(hook: &Hook, port: u16, arguments: &[&str]) -> String {
    // The agent's own idea of where it connects to does not matter here: the hook is redirected to.
    let via = format!("bank.test:{port}:127.0.0.1:{}", hook.address.port());
    let output = tokio::process::Command::new("curl")
        .args(["-sS", "-i", "--max-time", "20", "--connect-to", &via])
        .arg("--cacert")
        .arg(hook.ca_file())
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[tokio::test]
async fn an_agent_that_pins_is_noticed() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let pin = "sha256//AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let seen = curl(&hook, 443, &["--pinnedpubkey", pin, "https://bank.test/"]).await;
    assert!(seen.contains("public key"), "{seen}");
    let detail = hook.fence.trouble(TroubleKind::HandshakeAborted).await;
    assert!(detail.contains("pins"), "{detail}");
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn curl_speaks_http2_and_http1() {
    let site = Site::tls("bank.test", &["h2", "http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let seen = curl(&hook, 443, &["--http2", "-d", "1", "https://bank.test/pay"]).await;
    assert!(
        seen.starts_with("HTTP/2 200") && seen.ends_with("paid 1"),
        "{seen}"
    );
    let seen = curl(
        &hook,
        443,
        &["--http1.1", "-d", "2", "https://bank.test/pay"],
    )
    .await;
    assert!(
        seen.starts_with("HTTP/1.1 200") && seen.ends_with("paid 2"),
        "{seen}"
    );
    let large = hook.dir.path().join("large");
    std::fs::write(&large, vec![b'7'; 3 << 20]).unwrap();
    let upload = format!("@{}", large.display());
    let seen = curl(
        &hook,
        443,
        &["--http2", "--data-binary", &upload, "https://bank.test/pay"],
    )
    .await;
    assert!(
        seen.contains("HTTP/2 200") && seen.ends_with("777"),
        "{}",
        seen.len()
    );
    assert!(seen.len() > 3 << 20);
    let seen = curl(
        &hook,
        443,
        &[
            "--http1.1",
            "-H",
            "Expect: 100-continue",
            "--data-binary",
            &upload,
            "https://bank.test/pay",
        ],
    )
    .await;
    assert!(seen.contains("HTTP/1.1 200 OK") && seen.len() > 3 << 20);
    let seen = curl(&hook, 443, &["-I", "https://bank.test/"]).await;
    assert!(seen.starts_with("HTTP/2 200"), "{seen}");
}

#[tokio::test]
async fn an_upstream_without_http2_is_translated_for() {
    let site = Site::tls(
        "bank.test",
        &["http/1.1"],
        handler(|request| async move {
            let host = request.headers()["host"].to_str().unwrap().to_owned();
            let cookie = request.headers()["cookie"].to_str().unwrap().to_owned();
            let line = format!("{:?} {} {host} {cookie}", request.version(), request.uri());
            let mut response = Response::new(site::full(line));
            response
                .headers_mut()
                .insert("keep-alive", "timeout=5".parse().unwrap());
            response
        }),
    )
    .await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let agent = hook.https2("bank.test").await;
    let mut request = get("https://bank.test/a?b=c");
    request
        .headers_mut()
        .append("cookie", "x=1".parse().unwrap());
    request
        .headers_mut()
        .append("cookie", "y=2".parse().unwrap());
    let response = agent.send(request).await.unwrap();
    assert!(!response.headers().contains_key("keep-alive"));
    assert_eq!(text(response).await, "HTTP/1.1 /a?b=c bank.test x=1; y=2");
}
