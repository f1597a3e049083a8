//! What becomes of a call when something goes wrong, and what the agent may see when.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use acrfence_user::boundary::TroubleKind;
use acrfence_user::words::{Body, Ending, Response as Recorded};
use bytes::Bytes;
use http::Response;
use http_body::Frame;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fence::Say;
use crate::hook::{Hook, get, post, text};
use crate::site::{self, Site, bank, handler};

type Feed = tokio::sync::mpsc::Sender<std::io::Result<Frame<Bytes>>>;

/// An upstream whose response is fed by the test.
async fn fed_site(kind: &'static str) -> (Site, Arc<Mutex<Option<Feed>>>) {
    let slot: Arc<Mutex<Option<Feed>>> = Arc::default();
    let filled = slot.clone();
    let site = Site::plain(handler(move |request| {
        let slot = slot.clone();
        async move {
            request.into_body().collect().await.unwrap();
            let (feed, body) = site::fed();
            *slot.lock() = Some(feed);
            let mut response = Response::new(body);
            response
                .headers_mut()
                .insert("content-type", kind.parse().unwrap());
            response
        }
    }))
    .await;
    (site, filled)
}

async fn feed_of(slot: &Mutex<Option<Feed>>) -> Feed {
    for _ in 0..10_000 {
        if let Some(feed) = slot.lock().take() {
            return feed;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("the request never reached the upstream");
}

#[tokio::test]
async fn the_agent_sees_nothing_before_the_outcome_is_on_disk() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.close();
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: 1\r\n\r\n1")
        .await
        .unwrap();
    let mut byte = [0];
    let early = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut byte)).await;
    assert!(early.is_err(), "a byte came before the outcome was settled");
    assert_eq!(site.requests(), 1);
    hook.fence.open();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(seen.ends_with("paid 1"), "{seen}");
}

#[tokio::test]
async fn a_stream_flows_but_its_end_is_held() {
    let (site, slot) = fed_site("text/event-stream").await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.close();
    let mut agent = hook.http1().await;
    let response = agent.send(post("/", "{}")).await.unwrap();
    let feed = feed_of(&slot).await;
    let mut body = response.into_body();
    for n in 0..3 {
        let piece = Bytes::from(format!("data: {n}\n\n"));
        feed.send(Ok(Frame::data(piece.clone()))).await.unwrap();
        let got = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(got, piece, "a stream is passed on as it comes");
    }
    drop(feed);
    let early = tokio::time::timeout(Duration::from_millis(200), body.frame()).await;
    assert!(
        early.is_err(),
        "the end came before the outcome was settled"
    );
    hook.fence.open();
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn a_long_response_of_known_length_keeps_its_last_bytes_back() {
    const LEN: usize = 300_000;
    let site = Site::plain(handler(|_| async {
        Response::new(site::full(vec![b'x'; LEN]))
    }))
    .await;
    let hook = Hook::with(site.address, Vec::new(), |c| c.limits.record = 1000).await;
    hook.fence.close();
    let response = hook.http1().await.send(post("/", "{}")).await.unwrap();
    let mut body = response.into_body();
    let mut got = 0;
    while let Ok(frame) = tokio::time::timeout(Duration::from_millis(500), body.frame()).await {
        got += frame.unwrap().unwrap().into_data().unwrap().len();
    }
    assert!(
        got > 0 && got < LEN,
        "{got} of {LEN} bytes came before the outcome was settled"
    );
    hook.fence.open();
    while let Some(frame) = body.frame().await {
        got += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(got, LEN);
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!()
    };
    assert_eq!(
        (recorded.body.len, recorded.body.kept.len()),
        (LEN as u64, 1000)
    );
}

#[tokio::test]
async fn a_slow_response_of_unknown_length_is_not_held_for_ever() {
    let (site, slot) = fed_site("text/plain").await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.hold = Duration::from_millis(50);
    })
    .await;
    let mut agent = hook.http1().await;
    let asking = tokio::spawn(async move { agent.send(post("/", "{}")).await.unwrap() });
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"first"))))
        .await
        .unwrap();
    let mut body = asking.await.unwrap().into_body();
    let got = body.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(got, "first");
    drop(feed);
    assert!(body.frame().await.is_none());
}

#[tokio::test]
async fn what_is_no_effect_is_never_held() {
    let (site, slot) = fed_site("text/plain").await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.close();
    hook.fence.say(Say::Pass);
    let response = hook.http1().await.send(get("/")).await.unwrap();
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"read"))))
        .await
        .unwrap();
    drop(feed);
    assert_eq!(text(response).await, "read");
    assert!(hook.fence.endings.lock().is_empty());
    hook.fence.open();
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!()
    };
    assert_eq!(recorded.body, Body::whole("read"));
}

#[tokio::test]
async fn an_agent_that_hangs_up_loses_no_outcome() {
    let (site, slot) = fed_site("text/plain").await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\n1")
        .await
        .unwrap();
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"pa"))))
        .await
        .unwrap();
    drop(stream);
    tokio::time::sleep(Duration::from_millis(50)).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"id"))))
        .await
        .unwrap();
    drop(feed);
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!("the outcome was lost: {:?}", hook.fence.endings.lock())
    };
    assert_eq!(recorded.body, Body::whole("paid"));
    let effect = hook
        .fence
        .until("word that nobody heard it", |f| {
            f.undelivered.lock().first().copied()
        })
        .await;
    assert_eq!(effect.to_string(), "e1");
}

#[tokio::test]
async fn the_arbiter_hears_only_of_responses_that_were_lost() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    for n in 0..3 {
        text(agent.send(post("/", &n.to_string())).await.unwrap()).await;
    }
    // A replay that is being decided when the agent goes away.
    let recorded = acrfence_user::words::HttpResponse {
        status: 200,
        headers: Vec::new(),
        body: Body::whole("before"),
        trailers: Vec::new(),
    };
    hook.fence.admitting.store(true, Ordering::Relaxed);
    hook.fence.close();
    hook.fence.say(Say::Replay(Recorded::Http(recorded)));
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\n1")
        .await
        .unwrap();
    hook.fence
        .until("the call", |f| (f.calls.lock().len() == 4).then_some(()))
        .await;
    assert!(hook.fence.undelivered.lock().is_empty());
    drop(stream);
    tokio::time::sleep(Duration::from_millis(50)).await;
    hook.fence.open();
    let effect = hook
        .fence
        .until("word that nobody heard it", |f| {
            f.undelivered.lock().first().copied()
        })
        .await;
    assert_eq!(effect.to_string(), "e17");
}

#[tokio::test]
async fn a_call_of_an_agent_that_is_gone_is_not_sent() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.admitting.store(true, Ordering::Relaxed);
    hook.fence.close();
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\n1")
        .await
        .unwrap();
    hook.fence
        .until("the call", |f| f.calls.lock().first().cloned())
        .await;
    drop(stream);
    tokio::time::sleep(Duration::from_millis(50)).await;
    hook.fence.open();
    assert!(matches!(hook.fence.ending().await, Ending::NotSent { .. }));
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn an_agent_that_hangs_up_mid_stream_loses_no_outcome() {
    let (site, slot) = fed_site("text/event-stream").await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    let response = agent.send(post("/", "{}")).await.unwrap();
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"data: 1\n\n"))))
        .await
        .unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    drop((body, agent));
    for _ in 0..100 {
        feed.send(Ok(Frame::data(Bytes::from(vec![b' '; 10_000]))))
            .await
            .unwrap();
    }
    feed.send(Ok(Frame::data(Bytes::from_static(b"data: 2\n\n"))))
        .await
        .unwrap();
    drop(feed);
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!("the outcome was lost: {:?}", hook.fence.endings.lock())
    };
    assert_eq!(recorded.body.len, 1_000_018);
}

#[tokio::test]
async fn what_is_no_effect_ends_with_its_agent() {
    let (site, slot) = fed_site("text/event-stream").await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut agent = hook.http1().await;
    let response = agent.send(post("/v1/messages", "{}")).await.unwrap();
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"data: 1\n\n"))))
        .await
        .unwrap();
    drop((response, agent));
    // The upstream is told: its body is dropped.
    tokio::time::timeout(Duration::from_secs(10), feed.closed())
        .await
        .expect("the upstream must hear that nobody listens");
    assert!(matches!(hook.fence.ending().await, Ending::Broken { .. }));
}

#[tokio::test]
async fn a_refused_connection_is_certainly_not_sent() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let hook = Hook::to(address, Vec::new()).await;
    let response = hook.http1().await.send(post("/", "{}")).await.unwrap();
    assert_eq!(response.status(), 502);
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["code"], "not_sent");
    assert!(matches!(hook.fence.ending().await, Ending::NotSent { .. }));
    hook.fence.trouble(TroubleKind::UpstreamUnreachable).await;
}

#[tokio::test]
async fn a_reset_before_the_response_is_in_doubt() {
    let site = Site::raw(|mut stream| async move {
        site::read_head(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let response = hook.http1().await.send(post("/", "")).await.unwrap();
    assert_eq!(response.status(), 502);
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["code"], "in_doubt");
    assert_eq!(problem["effect"], "e1");
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Broken { partial: None, .. }
    ));
    assert_eq!(site.accepted(), 1, "nothing is ever sent twice");
}

#[tokio::test]
async fn a_reset_in_the_response_is_in_doubt_and_no_success() {
    for head in ["Content-Length: 10", "Transfer-Encoding: chunked"] {
        let chunk = if head.contains("chunked") {
            "4\r\nhalf\r\n"
        } else {
            "half"
        };
        let answer =
            format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n{head}\r\n\r\n{chunk}");
        let site = Site::raw(move |mut stream| {
            let answer = answer.clone();
            async move {
                site::read_head(&mut stream).await;
                site::write(&mut stream, &answer).await;
                stream.flush().await.unwrap();
            }
        })
        .await;
        let hook = Hook::to(site.address, Vec::new()).await;
        let response = hook.http1().await.send(post("/", "")).await;
        if let Ok(response) = response {
            assert!(
                response.into_body().collect().await.is_err(),
                "{head}: the agent took it for whole"
            );
        }
        let Ending::Broken {
            partial: Some(Recorded::Http(partial)),
            ..
        } = hook.fence.ending().await
        else {
            panic!("{head}: {:?}", hook.fence.endings.lock())
        };
        assert_eq!(partial.body, Body::whole("half"));
    }
}

#[tokio::test]
async fn time_outs_are_in_doubt() {
    let (site, slot) = fed_site("text/event-stream").await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.response_idle = Duration::from_millis(100);
    })
    .await;
    let response = hook.http1().await.send(post("/", "")).await.unwrap();
    let feed = feed_of(&slot).await;
    assert!(response.into_body().collect().await.is_err());
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Broken {
            partial: Some(_),
            ..
        }
    ));
    drop(feed);

    let silent = Site::raw(|mut stream| async move {
        site::read_head(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let hook = Hook::with(silent.address, Vec::new(), |c| {
        c.limits.response_head = Duration::from_millis(100);
    })
    .await;
    let response = hook.http1().await.send(post("/", "")).await.unwrap();
    assert_eq!(response.status(), 502);
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Broken { partial: None, .. }
    ));
}

#[tokio::test]
async fn an_outcome_that_cannot_be_recorded_is_no_success() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.log_is_broken.store(true, Ordering::Relaxed);
    let response = hook.http1().await.send(post("/", "1")).await.unwrap();
    assert_eq!(response.status(), 503);
    assert!(text(response).await.contains("not_recorded"));

    let (site, slot) = fed_site("text/event-stream").await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.log_is_broken.store(true, Ordering::Relaxed);
    let response = hook.http1().await.send(post("/", "1")).await.unwrap();
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"data: 1\n\n"))))
        .await
        .unwrap();
    drop(feed);
    assert!(response.into_body().collect().await.is_err());
}

#[tokio::test]
async fn a_dead_idle_connection_is_replaced_without_sending_twice() {
    let site = Site::raw(|mut stream| async move {
        let head = site::read_head(&mut stream).await;
        assert!(head.starts_with("POST"));
        site::write(
            &mut stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    for n in 1..=3 {
        // The upstream closes after each response; the agent's connection stays.
        let response = agent.send(post("/", "")).await.unwrap();
        // Either the boundary saw the end in time, or it says that it cannot know.
        let status = response.status().as_u16();
        assert!(status == 200 || status == 502, "{status}");
        assert!(site.accepted() <= n);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let answered = hook.fence.endings.lock().len();
    assert_eq!(answered, 3);
}

#[tokio::test]
async fn a_connection_that_breaks_under_a_later_call_is_in_doubt() {
    let site = Site::raw(|mut stream| async move {
        site::read_head(&mut stream).await;
        site::write(
            &mut stream,
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
        // The second call arrives, and nothing comes back.
        site::read_head(&mut stream).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    assert_eq!(text(agent.send(post("/", "")).await.unwrap()).await, "ok");
    let response = agent.send(post("/", "")).await.unwrap();
    assert_eq!(response.status(), 502);
    assert!(text(response).await.contains("in_doubt"));
    let endings = hook
        .fence
        .until("both endings", |f| {
            Some(f.endings.lock().clone()).filter(|e| e.len() == 2)
        })
        .await;
    assert!(matches!(endings[1].1, Ending::Broken { .. }), "{endings:?}");
    assert_eq!(site.accepted(), 1, "nothing is ever sent twice");
}

#[tokio::test]
async fn an_idle_connection_is_not_trusted_with_an_effect() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.fresh = Duration::from_millis(20);
    })
    .await;
    let mut agent = hook.http1().await;
    assert_eq!(
        text(agent.send(post("/", "1")).await.unwrap()).await,
        "paid 1"
    );
    tokio::time::sleep(Duration::from_millis(60)).await;
    assert_eq!(
        text(agent.send(post("/", "2")).await.unwrap()).await,
        "paid 2"
    );
    assert_eq!(site.accepted(), 2);
}

#[tokio::test]
async fn a_shutdown_lets_exchanges_end() {
    let (site, slot) = fed_site("text/plain").await;
    let mut hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    let asking =
        tokio::spawn(async move { text(agent.send(post("/", "{}")).await.unwrap()).await });
    let feed = feed_of(&slot).await;
    hook.stop();
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!hook.running.is_finished());
    feed.send(Ok(Frame::data(Bytes::from_static(b"done"))))
        .await
        .unwrap();
    drop(feed);
    assert_eq!(asking.await.unwrap(), "done");
    hook.running.await.unwrap();
    assert!(tokio::net::TcpStream::connect(hook.address).await.is_err());
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_what_has_no_end() {
    let (site, slot) = fed_site("text/event-stream").await;
    let mut hook = Hook::to(site.address, Vec::new()).await;
    // A stream to listen on, an opaque flow, a silent connection, an idle one.
    hook.fence.say(Say::Pass);
    let mut listener = hook.http1().await;
    let mut request = get("/");
    request
        .headers_mut()
        .insert("accept", "text/event-stream".parse().unwrap());
    let response = listener.send(request).await.unwrap();
    let feed = feed_of(&slot).await;
    feed.send(Ok(Frame::data(Bytes::from_static(b"data: 1\n\n"))))
        .await
        .unwrap();
    let mut body = response.into_body();
    body.frame().await.unwrap().unwrap();
    let mut opaque = hook.tcp().await;
    opaque.write_all(b"\0\0").await.unwrap();
    hook.fence
        .until("a flow", |f| f.flows.lock().first().cloned())
        .await;
    let _silent = hook.tcp().await;
    hook.stop();
    tokio::time::timeout(Duration::from_secs(5), hook.running)
        .await
        .expect("the default drain is longer than that")
        .unwrap();
    assert!(body.frame().await.unwrap().is_err(), "cut, not ended");
}
