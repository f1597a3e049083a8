//! HTTP/2 and gRPC.

use std::time::Duration;

use acrfence_user::words::{Body, Ending, Header, HttpResponse, RefusalCode, Response as Recorded};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};

use crate::fence::Say;
use crate::hook::{Hook, get, post, text};
use crate::site::{self, Site, bank, handler};

#[tokio::test]
async fn many_streams_share_one_upstream_connection() {
    let site = Site::tls("bank.test", &["h2"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let agent = hook.https2("bank.test").await;
    let calls = (0..100).map(|n| {
        let agent = &agent;
        async move {
            let response = agent
                .send(post("https://bank.test/pay", &n.to_string()))
                .await
                .unwrap();
            assert_eq!(response.version(), http::Version::HTTP_2);
            assert_eq!(text(response).await, format!("paid {n}"));
        }
    });
    futures_util::future::join_all(calls).await;
    assert_eq!(site.accepted(), 1);
    assert_eq!(site.requests(), 100);
    assert_eq!(
        hook.fence.calls.lock()[0]
            .origin
            .connection
            .as_ref()
            .unwrap()
            .protocol,
        "h2"
    );
}

#[tokio::test]
async fn replays_and_refusals_touch_nothing_outside() {
    let site = Site::tls("bank.test", &["h2"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    hook.fence
        .say(Say::Refuse(RefusalCode::Diverged))
        .say(Say::Replay(Recorded::Http(HttpResponse {
            status: 200,
            headers: vec![Header::new("connection", "keep-alive")],
            body: Body::whole("before"),
            trailers: Vec::new(),
        })));
    let agent = hook.https2("bank.test").await;
    let response = agent
        .send(post("https://bank.test/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.status(), 409);
    let response = agent
        .send(post("https://bank.test/pay", "1"))
        .await
        .unwrap();
    assert_eq!(response.headers()["acrfence-replay"], "e17");
    assert_eq!(text(response).await, "before");
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn prior_knowledge_works_over_clear_text() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let agent = crate::hook::Http2::over(hook.tcp().await).await;
    let response = agent.send(post("http://bank.test/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
    assert_eq!(hook.fence.http_calls()[0].url, "http://bank.test/pay");
}

#[tokio::test]
async fn a_stream_that_breaks_is_reset_and_in_doubt() {
    let site = Site::tls(
        "bank.test",
        &["h2"],
        handler(|_| async {
            let (feed, body) = site::fed();
            feed.send(Ok(Frame::data(Bytes::from_static(b"half"))))
                .await
                .unwrap();
            feed.send(Err(std::io::Error::other("broke")))
                .await
                .unwrap();
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(body)
                .unwrap()
        }),
    )
    .await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let agent = hook.https2("bank.test").await;
    if let Ok(response) = agent.send(post("https://bank.test/pay", "1")).await {
        let status = response.status();
        let body = response.into_body().collect().await;
        assert!(
            status == 502 || body.is_err(),
            "the agent took it for whole"
        );
    }
    assert!(matches!(hook.fence.ending().await, Ending::Broken { .. }));
    // The connection lives on.
    let response = agent.send(get("https://bank.test/pay")).await;
    assert!(response.is_ok());
}

#[tokio::test]
async fn the_end_of_a_stream_is_held() {
    let site = Site::tls(
        "bank.test",
        &["h2"],
        handler(|_| async {
            let mut response = Response::new(site::full("data: 1\n\n"));
            response
                .headers_mut()
                .insert("content-type", "text/event-stream".parse().unwrap());
            response
        }),
    )
    .await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    hook.fence.close();
    let agent = hook.https2("bank.test").await;
    let response = agent
        .send(post("https://bank.test/pay", "1"))
        .await
        .unwrap();
    let mut body = response.into_body();
    let mut got = Vec::new();
    while let Ok(frame) = tokio::time::timeout(Duration::from_millis(200), body.frame()).await {
        let frame = frame.expect("the end came before the outcome was settled");
        got.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    hook.fence.open();
    while let Some(frame) = body.frame().await {
        got.extend_from_slice(&frame.unwrap().into_data().unwrap());
    }
    assert_eq!(got, b"data: 1\n\n");
}

fn grpc(body: &'static [u8]) -> Request<Full<Bytes>> {
    Request::post("https://bank.test/pay.Bank/Pay")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::from(body))
        .unwrap()
}

fn grpc_bank() -> site::Handler {
    handler(|request| async move {
        assert_eq!(request.headers()["te"], "trailers");
        let sent = request.into_body().collect().await.unwrap().to_bytes();
        let (feed, body) = site::fed();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("grpc-status", "0".parse().unwrap());
        feed.send(Ok(Frame::data(sent))).await.unwrap();
        feed.send(Ok(Frame::trailers(trailers))).await.unwrap();
        Response::builder()
            .header("content-type", "application/grpc")
            .body(body)
            .unwrap()
    })
}

#[tokio::test]
async fn grpc_keeps_its_trailers_and_is_replayed_with_them() {
    let site = Site::tls("bank.test", &["h2"], grpc_bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let agent = hook.https2("bank.test").await;
    let message = b"\0\0\0\0\x02ab";
    let body = agent
        .send(grpc(message))
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), &message[..]);
    let Ending::Response(recorded) = hook.fence.ending().await else {
        panic!()
    };
    hook.fence.say(Say::Replay(recorded));
    let body = agent
        .send(grpc(message))
        .await
        .unwrap()
        .into_body()
        .collect()
        .await
        .unwrap();
    assert_eq!(body.trailers().unwrap()["grpc-status"], "0");
    assert_eq!(body.to_bytes(), &message[..]);
    assert_eq!(site.requests(), 1);
}

#[tokio::test]
async fn grpc_is_refused_with_a_status_of_its_own() {
    let site = Site::tls("bank.test", &["h2"], grpc_bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    hook.fence.say(Say::Refuse(RefusalCode::Diverged));
    let response = hook
        .https2("bank.test")
        .await
        .send(grpc(b"x"))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["grpc-status"], "9");
    let message = response.headers()["grpc-message"].to_str().unwrap();
    assert!(
        message.contains("paid already") && message.contains("e17"),
        "{message}"
    );
    assert_eq!(site.accepted(), 0);
}

/// A gRPC server that refuses says so in a head that ends the stream. Clients look for the status there
/// and nowhere else: with a frame behind it, the head is taken for the beginning of an answer.
#[tokio::test]
async fn a_head_that_is_all_there_is_ends_the_stream() {
    let site = Site::tls(
        "bank.test",
        &["h2"],
        handler(|_| async {
            Response::builder()
                .header("content-type", "application/grpc")
                .header("grpc-status", "5")
                .header("grpc-message", "no such account")
                .body(site::full(""))
                .unwrap()
        }),
    )
    .await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let agent = hook.https2("bank.test").await;
    // Once as an effect, once as what is none.
    hook.fence.say(Say::Forward).say(Say::Pass);
    for _ in 0..2 {
        let response = agent.send(grpc(b"x")).await.unwrap();
        assert_eq!(response.headers()["grpc-status"], "5");
        assert_eq!(response.headers()["grpc-message"], "no such account");
        assert!(http_body::Body::is_end_stream(response.body()));
    }
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!("no response")
    };
    assert!(recorded.headers.iter().any(|h| h.name == "grpc-status"));
}

#[tokio::test]
async fn grpc_streams_both_ways_and_is_never_played_back() {
    // Echoes each message as it comes.
    let site = Site::tls(
        "bank.test",
        &["h2"],
        handler(|request| async move {
            let (feed, body) = site::fed();
            tokio::spawn(async move {
                let mut sent = request.into_body();
                while let Some(frame) = sent.frame().await {
                    if let Ok(data) = frame.unwrap().into_data() {
                        feed.send(Ok(Frame::data(data))).await.unwrap();
                    }
                }
                let mut trailers = http::HeaderMap::new();
                trailers.insert("grpc-status", "0".parse().unwrap());
                feed.send(Ok(Frame::trailers(trailers))).await.unwrap();
            });
            Response::builder()
                .header("content-type", "application/grpc")
                .body(body)
                .unwrap()
        }),
    )
    .await;
    let hook = Hook::with(site.address, site.roots.clone(), |c| {
        c.limits.duplex = Duration::from_millis(50);
    })
    .await;
    let io = hook.tls("bank.test", &["h2"]).await;
    let (sender, connection) =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new())
            .handshake(hyper_util::rt::TokioIo::new(io))
            .await
            .unwrap();
    tokio::spawn(connection);
    let (feed, body) = site::fed();
    let request = Request::post("https://bank.test/pay.Bank/Chat")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    feed.send(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x011"))))
        .await
        .unwrap();
    let response = sender.clone().send_request(request).await.unwrap();
    let mut answers = response.into_body();
    assert_eq!(
        answers.frame().await.unwrap().unwrap().into_data().unwrap(),
        &b"\0\0\0\0\x011"[..]
    );
    feed.send(Ok(Frame::data(Bytes::from_static(b"\0\0\0\0\x012"))))
        .await
        .unwrap();
    assert_eq!(
        answers.frame().await.unwrap().unwrap().into_data().unwrap(),
        &b"\0\0\0\0\x012"[..]
    );
    hook.fence.close();
    drop(feed);
    let early = tokio::time::timeout(Duration::from_millis(200), answers.frame()).await;
    assert!(
        early.is_err(),
        "the status came before the outcome was settled"
    );
    hook.fence.open();
    let trailers = answers
        .frame()
        .await
        .unwrap()
        .unwrap()
        .into_trailers()
        .unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(
        hook.fence.http_calls()[0].body,
        Body::whole(&b"\0\0\0\0\x011"[..])
    );
    let Ending::Response(recorded) = hook.fence.ending().await else {
        panic!()
    };
    assert!(!recorded.is_whole());
}

#[tokio::test]
async fn an_idle_connection_is_not_trusted_with_an_effect() {
    let site = Site::tls("bank.test", &["h2"], bank()).await;
    let hook = Hook::with(site.address, site.roots.clone(), |c| {
        c.limits.fresh = Duration::from_millis(50);
    })
    .await;
    let agent = hook.https2("bank.test").await;
    let pay = || agent.send(post("https://bank.test/pay", "1"));
    assert_eq!(text(pay().await.unwrap()).await, "paid 1");
    tokio::time::sleep(Duration::from_millis(100)).await;
    hook.fence.say(Say::Pass);
    assert_eq!(text(pay().await.unwrap()).await, "paid 1");
    assert_eq!(
        site.accepted(),
        1,
        "what is no effect may be sent again by its agent"
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(text(pay().await.unwrap()).await, "paid 1");
    assert_eq!(site.accepted(), 2);
}
