//! HTTP/1.1 over clear text and TLS.

use std::time::Duration;

use acrfence_user::boundary::TroubleKind;
use acrfence_user::words::{Body, Ending, Header, HttpResponse, RefusalCode, Response as Recorded};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fence::Say;
use crate::hook::{Hook, get, post, text};
use crate::site::{self, Site, bank, handler};

#[tokio::test]
async fn a_call_is_admitted_sent_recorded_and_answered() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let mut agent = hook.https1("bank.test").await;
    let response = agent
        .send(post("/pay?x=1", r#"{"amount":1}"#))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(text(response).await, r#"paid {"amount":1}"#);

    let calls = hook.fence.http_calls();
    assert_eq!(calls[0].url, "https://bank.test/pay?x=1");
    assert_eq!(calls[0].method, "POST");
    assert_eq!(calls[0].body, Body::whole(r#"{"amount":1}"#));
    let connection = hook.fence.calls.lock()[0]
        .origin
        .connection
        .clone()
        .unwrap();
    assert_eq!(connection.peer, site.address);
    assert_eq!(connection.sni.as_deref(), Some("bank.test"));
    assert!(connection.tls);
    assert_eq!(connection.protocol, "http/1.1");
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!("no response")
    };
    assert_eq!(recorded.status, 200);
    assert_eq!(recorded.body, Body::whole(r#"paid {"amount":1}"#));
}

#[tokio::test]
async fn one_upstream_connection_serves_one_agent_connection() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    let mut agent = hook.https1("bank.test").await;
    for n in 0..5 {
        let response = agent.send(post("/pay", &n.to_string())).await.unwrap();
        assert_eq!(text(response).await, format!("paid {n}"));
    }
    assert_eq!(site.accepted(), 1);
    assert_eq!(site.requests(), 5);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    let one = |n: usize| format!("POST /pay HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\n{n}");
    stream
        .write_all((one(1) + &one(2) + &one(3)).as_bytes())
        .await
        .unwrap();
    let mut seen = String::new();
    while !seen.contains("paid 3") {
        let mut chunk = [0; 1024];
        let n = stream.read(&mut chunk).await.unwrap();
        assert!(n > 0, "{seen}");
        seen.push_str(std::str::from_utf8(&chunk[..n]).unwrap());
    }
    let at = |n: usize| seen.find(&format!("paid {n}")).unwrap();
    assert!(at(1) < at(2) && at(2) < at(3));
}

#[tokio::test]
async fn a_replay_touches_nothing_outside() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    hook.fence.say(Say::Replay(Recorded::Http(HttpResponse {
        status: 201,
        headers: vec![Header::new("X-Reference", "r1")],
        body: Body::whole("paid before"),
        trailers: Vec::new(),
    })));
    let mut agent = hook.https1("bank.test").await;
    let response = agent.send(post("/pay", "{}")).await.unwrap();
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["x-reference"], "r1");
    assert_eq!(response.headers()["acrfence-replay"], "e17");
    assert_eq!(text(response).await, "paid before");
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn a_refusal_touches_nothing_outside() {
    let site = Site::tls("bank.test", &["http/1.1"], bank()).await;
    let hook = Hook::to(site.address, site.roots.clone()).await;
    hook.fence
        .say(Say::Refuse(RefusalCode::Diverged))
        .say(Say::Refuse(RefusalCode::LogUnavailable));
    let mut agent = hook.https1("bank.test").await;
    let response = agent.send(post("/pay", "{}")).await.unwrap();
    assert_eq!(response.status(), 409);
    assert_eq!(
        response.headers()["content-type"],
        "application/problem+json"
    );
    let problem: serde_json::Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(problem["code"], "diverged");
    assert_eq!(problem["effect"], "e17");
    let response = agent.send(post("/pay", "{}")).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn a_record_that_is_not_whole_is_refused_not_truncated() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut body = Body::whole("paid before");
    body.kept.truncate(4);
    hook.fence.say(Say::Replay(Recorded::Http(HttpResponse {
        status: 200,
        headers: Vec::new(),
        body,
        trailers: Vec::new(),
    })));
    let response = hook.http1().await.send(post("/pay", "{}")).await.unwrap();
    assert_eq!(response.status(), 409);
    assert!(text(response).await.contains("4 of its 11 bytes"));
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn what_the_agent_sees_is_what_the_server_sent() {
    let site = Site::raw(|mut stream| async move {
        site::read_head(&mut stream).await;
        site::write(
            &mut stream,
            "HTTP/1.1 299 Quite Fine\r\nX-FIRST: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nalt-svc: h3=\":443\"\r\nx-Last: \"ü\"\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    let seen = seen.replace("connection: close\r\n", "");
    assert_eq!(
        seen,
        "HTTP/1.1 299 Quite Fine\r\nX-FIRST: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nx-Last: \"ü\"\r\nContent-Length: 2\r\n\r\nok"
    );
}

#[tokio::test]
async fn what_the_server_sees_is_what_the_agent_sent() {
    let (seen, mut heads) = tokio::sync::mpsc::channel(1);
    let site = Site::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            let head = site::read_head(&mut stream).await;
            seen.send(head).await.unwrap();
            site::write(&mut stream, "HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    let head = "GET /a%20b?q=%C3%BC HTTP/1.1\r\nHOST: Bank.Test:8080\r\nUser-Agent: x\r\nX-B: 1\r\nx-a: 2\r\nCookie: c=1\r\nAccept: */*\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    assert_eq!(heads.recv().await.unwrap(), head);
}

#[tokio::test]
async fn chunked_bodies_and_trailers_go_through() {
    let site = Site::plain(handler(|request| async move {
        let body = request.into_body().collect().await.unwrap();
        let trailer = body.trailers().unwrap()["x-sum"]
            .to_str()
            .unwrap()
            .to_owned();
        let bytes = body.to_bytes();
        let (feed, body) = site::fed();
        let mut trailers = http::HeaderMap::new();
        trailers.insert("x-back", trailer.parse().unwrap());
        feed.send(Ok(http_body::Frame::data(bytes))).await.unwrap();
        feed.send(Ok(http_body::Frame::trailers(trailers)))
            .await
            .unwrap();
        let mut response = Response::new(body);
        response
            .headers_mut()
            .insert("trailer", "x-back".parse().unwrap());
        response
    }))
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nTE: trailers\r\nConnection: TE, close\r\nTrailer: x-sum\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;ext=1\r\nde\r\n0\r\nx-sum: 5\r\n\r\n")
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(
        seen.contains("abcde") && seen.contains("x-back: 5"),
        "{seen}"
    );
    assert_eq!(hook.fence.http_calls()[0].body, Body::whole("abcde"));
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!()
    };
    assert_eq!(recorded.trailers, [Header::new("x-back", "5")]);
}

#[tokio::test]
async fn expect_continue_is_answered_here() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: 1\r\n\r\n")
        .await
        .unwrap();
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    assert_eq!(site.accepted(), 0);
    stream.write_all(b"7").await.unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(seen.ends_with("paid 7"), "{seen}");
}

#[tokio::test]
async fn responses_without_a_body_are_left_without_one() {
    let site = Site::plain(handler(|request| async move {
        let mut response = Response::new(site::full(""));
        match request.uri().path() {
            "/204" => *response.status_mut() = StatusCode::NO_CONTENT,
            "/304" => {
                *response.status_mut() = StatusCode::NOT_MODIFIED;
                response.headers_mut().insert("content-length", 7.into());
            }
            _ => {
                response.headers_mut().insert("content-length", 1234.into());
            }
        }
        response
    }))
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    for path in ["/204", "/304"] {
        let response = agent.send(get(path)).await.unwrap();
        assert_eq!(response.status().as_str(), &path[1..]);
        assert_eq!(text(response).await, "");
    }
    let mut head = get("/head");
    *head.method_mut() = http::Method::HEAD;
    let response = agent.send(head).await.unwrap();
    assert_eq!(response.headers()["content-length"], "1234");
    assert_eq!(text(response).await, "");
    // The connection is still in step.
    assert_eq!(agent.send(get("/204")).await.unwrap().status(), 204);
}

#[tokio::test]
async fn interim_responses_do_not_confuse() {
    let site = Site::raw(|mut stream| async move {
        site::read_head(&mut stream).await;
        site::write(
            &mut stream,
            "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
        )
        .await;
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let response = hook.http1().await.send(get("/")).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), text(response).await.as_str()),
        (200, "ok")
    );
}

#[tokio::test]
async fn smuggling_shapes_are_refused() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    for request in [
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 1, 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: +1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 0x1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nContent-Length : 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nX: a\r\n folded\r\nContent-Length: 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nHost: c\r\nContent-Length: 1\r\n\r\na",
        "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\na\r\n",
        "POST / HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\na\r\n",
        "POST http://c/ HTTP/1.1\r\nHost: b\r\nContent-Length: 1\r\n\r\na",
        "GET / HTTP/1.1\r\nHost: b\r\nX: a\0b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: b/c\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: u@b\r\n\r\n",
    ] {
        let mut stream = hook.tcp().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut seen = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut seen))
            .await
            .unwrap_or_else(|_| panic!("still open after {request:?}"));
        let seen = String::from_utf8_lossy(&seen);
        assert!(
            seen.starts_with("HTTP/1.1 400 "),
            "{request:?} got {seen:?}"
        );
        assert!(
            !seen[5..].contains("HTTP/1.1"),
            "{request:?} was answered twice: {seen:?}"
        );
    }
    assert_eq!(site.accepted(), 0);
    assert!(hook.fence.calls.lock().is_empty());
}

/// Shapes that readers are known to differ about, with a second request hidden in each. It may be refused
/// or taken for one request; the hidden one is never a call, and nothing but a clear shape goes on.
#[tokio::test]
async fn nothing_hides_in_a_request() {
    let (seen, mut heads) = tokio::sync::mpsc::unbounded_channel();
    let site = Site::raw(move |mut stream| {
        let seen = seen.clone();
        async move {
            let mut bytes = vec![0; 64 * 1024];
            let mut got = Vec::new();
            while let Ok(n @ 1..) = stream.read(&mut bytes).await {
                got.extend_from_slice(&bytes[..n]);
                if String::from_utf8_lossy(&got).contains("\r\n\r\n") {
                    site::write(&mut stream, "HTTP/1.1 204 No Content\r\n\r\n").await;
                    let _ = seen.send(String::from_utf8_lossy(&got).into_owned());
                    got.clear();
                }
            }
        }
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let hidden = "GET /hidden HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n";
    let chunked = "POST /pay HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked\r\n\r\n";
    let after = |head: &str| format!("{head}{hidden}");
    let mut accepted = 0;
    for request in [
        // Chunks.
        after(&format!("{chunked}3\r\nabcd\r\n0\r\n\r\n")),
        after(&format!("{chunked}3\r\nab\r\n0\r\n\r\n")),
        after(&format!("{chunked}0x3\r\nabc\r\n0\r\n\r\n")),
        after(&format!("{chunked}+3\r\nabc\r\n0\r\n\r\n")),
        after(&format!("{chunked}3_0\r\nabc\r\n0\r\n\r\n")),
        after(&format!("{chunked}3\nabc\n0\n\n")),
        after(&format!("{chunked}3\rabc\r0\r\r")),
        after(&format!("{chunked}3;a\nb\r\nabc\r\n0\r\n\r\n")),
        after(&format!("{chunked}3\r\nabcXX0\r\n\r\n")),
        after(&format!("{chunked}\r\n3\r\nabc\r\n0\r\n\r\n")),
        after(&format!("{chunked}10000000000000003\r\nabc\r\n0\r\n\r\n")),
        after(&format!(
            "{chunked}3;{}\r\nabc\r\n0\r\n\r\n",
            "e".repeat(40_000)
        )),
        after(&format!("{chunked}0\r\nx: 1\r\n y: 2\r\n\r\n")),
        after(&format!("{chunked}0\r\nx : 1\r\n\r\n")),
        // Lengths.
        after("POST /pay HTTP/1.1\r\nHost: b\r\nContent-Length: \r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nContent-Length: -1\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nContent-Length: 1 1\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nContent-Length: 18446744073709551617\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nContent-Length: \u{664}\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nContent_Length: 39\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nX: \rContent-Length: 39\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\n\x0bTransfer-Encoding: chunked\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nTransfer-Encoding\t: chunked\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: \"chunked\"\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: identity, chunked\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: chunked;q=1\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nTransfer-Encoding: gzip\r\n\r\n"),
        // Lines.
        after("POST  /pay HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay  HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1 \r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/2.0\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.2\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay http/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /p\ray HTTP/1.1\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\n Host: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\n: b\r\nHost: b\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\r\nHost: c\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b\0c\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b, c\r\nContent-Length: 0\r\n\r\n"),
        after("POST /pay HTTP/1.1\r\nHost: b:1:2\r\nContent-Length: 0\r\n\r\n"),
    ] {
        let before = hook.fence.http_calls().len();
        let mut stream = hook.tcp().await;
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answered = Vec::new();
        let _ = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut answered))
            .await
            .unwrap_or_else(|_| panic!("still open after {request:?}"));
        let answered = String::from_utf8_lossy(&answered);
        let calls = hook.fence.http_calls().split_off(before);
        let short: String = request.chars().take(110).collect();
        let urls: Vec<&str> = calls.iter().map(|call| call.url.as_str()).collect();
        println!("{short:?}: {:?} {urls:?}", answered.get(..12));
        assert!(
            hook.fence.flows.lock().is_empty(),
            "{short:?} passed unread"
        );
        if urls.is_empty() {
            assert!(answered.starts_with("HTTP/1.1 4"), "{short:?}: {answered}");
            assert_eq!(answered.matches("HTTP/1.1").count(), 1, "{answered}");
            continue;
        }
        accepted += 1;
        // Its length was clear, and what comes after it is a request of its own.
        assert_eq!(urls, ["http://b/pay", "http://b/hidden"], "{short:?}");
        assert_eq!(calls[0].body, Body::whole(""), "{short:?}");
    }
    // The one with a field that only resembles a length.
    assert_eq!(accepted, 1);
    // Only that one was sent, in a shape that has one meaning.
    let pay = heads.recv().await.unwrap();
    assert!(pay.starts_with("POST /pay HTTP/1.1\r\n"), "{pay}");
    assert!(!pay.contains("hidden"), "{pay}");
    let hidden = heads.recv().await.unwrap();
    assert!(hidden.starts_with("GET /hidden HTTP/1.1\r\n"), "{hidden}");
    assert!(heads.try_recv().is_err());
    // A line may end without a carriage return (RFC 9112 §2.2); it goes on as a line like any other, and so
    // means the same to whoever reads it next.
    let before = hook.fence.http_calls().len();
    let mut stream = hook.tcp().await;
    let request =
        "POST /pay HTTP/1.1\r\nHost: b\r\nX: a\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answered = String::new();
    stream.read_to_string(&mut answered).await.unwrap();
    assert!(answered.starts_with("HTTP/1.1 204"), "{answered}");
    let pay = heads.recv().await.unwrap();
    assert!(pay.contains("\r\nX: a\r\nContent-Length: 3\r\n"), "{pay}");
    let calls = hook.fence.http_calls().split_off(before);
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].body, Body::whole("abc"));
}

/// Reads a request whose body is one byte; false when there is none.
async fn read_request(stream: &mut tokio::net::TcpStream) -> bool {
    site::read_head(stream).await;
    stream.read_u8().await.is_ok()
}

/// What a server adds to an answer, or says in two ways, is never the answer to the next call.
#[tokio::test]
async fn nothing_hides_in_a_response() {
    let forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged";
    for answer in [
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok{forged}"),
        format!("HTTP/1.1 204 No Content\r\n\r\n{forged}"),
        format!("HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\nok{forged}"),
        format!(
            "HTTP/1.1 304 Not Modified\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{forged}"
        ),
        format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 50\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n{forged}"
        ),
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n2\r\nok\r\n0\r\n\r\n{forged}"
        ),
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok{forged}"),
        format!("HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok{forged}"),
        format!("HTTP/1.1 200 OK\r\nContent-Length: 2, 3\r\n\r\nok{forged}"),
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n2\r\nok\r\n0\r\n\r\n{forged}"
        ),
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokXX0\r\n\r\n{forged}"),
        format!(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-2\r\nok\r\n0\r\n\r\n{forged}"
        ),
        format!(
            "HTTP/1.1 200 OK\r\nX: a\r\n Content-Length: 9\r\nContent-Length: 2\r\n\r\nok{forged}"
        ),
        format!("HTTP/1.1 101 Switching Protocols\r\n\r\n{forged}"),
        format!("HTTP/1.1 2000 OK\r\nContent-Length: 2\r\n\r\nok{forged}"),
        "220 mail.example ESMTP\r\n".to_owned(),
    ] {
        let first = std::sync::atomic::AtomicBool::new(true);
        let odd = answer.clone();
        let site = Site::raw(move |mut stream| {
            let odd = first
                .swap(false, std::sync::atomic::Ordering::Relaxed)
                .then(|| odd.clone());
            async move {
                if let Some(odd) = odd {
                    read_request(&mut stream).await;
                    let _ = stream.write_all(odd.as_bytes()).await;
                }
                while read_request(&mut stream).await {
                    let own = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue";
                    let _ = stream.write_all(own).await;
                }
            }
        })
        .await;
        let hook = Hook::with(site.address, Vec::new(), |c| {
            c.limits.response_idle = Duration::from_secs(2);
        })
        .await;
        let mut agent = hook.http1().await;
        let mut of = async |path| match agent.send(post(path, "1")).await {
            Ok(response) => {
                let status = response.status().as_u16();
                let body = response.into_body().collect().await;
                let body = body.map(|body| body.to_bytes()).unwrap_or_default();
                format!("{status} {}", String::from_utf8_lossy(&body))
            }
            Err(error) => format!("nothing: {error}"),
        };
        let one = of("/one").await;
        let two = of("/two").await;
        println!(
            "{answer:?}: {:?}, {two:?}",
            one.chars().take(80).collect::<String>()
        );
        // Its own answer, or none because the connection ended.
        assert!(
            two == "200 true" || two.starts_with("nothing"),
            "{answer:?}: {one}; {two}"
        );
        assert!(!one.starts_with("200 forged"), "{answer:?}: {one}");
        assert!(!one.starts_with("nothing"), "{answer:?}: {one}");
    }
}

/// Node's fetch leaves a method in the case that it was given, and a server may take it for the one in
/// upper case.
#[tokio::test]
async fn a_method_in_lower_case_is_fenced() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(
            b"patch /pay HTTP/1.1\r\nHost: b\r\nConnection: close\r\nContent-Length: 1\r\n\r\n7",
        )
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(seen.ends_with("paid 7"), "{seen}");
    let calls = hook.fence.http_calls();
    assert_eq!(calls.len(), 1, "{:?}", hook.fence.flows.lock());
    assert_eq!(calls[0].method, "patch");
}

#[tokio::test]
async fn garbage_ends_the_connection_and_nothing_else() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.header = 16 * 1024;
        c.limits.header_count = 20;
    })
    .await;
    let many: String = (0..40).map(|n| format!("x-{n}: 1\r\n")).collect();
    for request in [
        "GET / HTTP/1.1\r\nHost: b\r\nbad header\r\n\r\n".to_owned(),
        format!(
            "GET / HTTP/1.1\r\nHost: b\r\nX: {}\r\n\r\n",
            "a".repeat(100_000)
        ),
        format!("GET / HTTP/1.1\r\nHost: b\r\n{many}\r\n"),
        format!("GET /{} HTTP/1.1\r\nHost: b\r\n\r\n", "a".repeat(50_000)),
    ] {
        let mut stream = hook.tcp().await;
        let _ = stream.write_all(request.as_bytes()).await;
        let mut seen = Vec::new();
        let _ = stream.read_to_end(&mut seen).await;
        let seen = String::from_utf8_lossy(&seen);
        assert!(seen.starts_with("HTTP/1.1 4") || seen.is_empty(), "{seen}");
    }
    hook.fence.trouble(TroubleKind::BadRequest).await;
    assert_eq!(site.accepted(), 0);
    let response = hook.http1().await.send(post("/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
}

#[tokio::test]
async fn a_body_that_does_not_come_to_its_end_is_never_a_call() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.body_idle = Duration::from_millis(100);
    })
    .await;
    // Stalls.
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\n\r\nab")
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(seen.starts_with("HTTP/1.1 408 "), "{seen}");
    // Hangs up.
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST / HTTP/1.1\r\nHost: b\r\nContent-Length: 5\r\n\r\nab")
        .await
        .unwrap();
    drop(stream);
    // Another request shows that the boundary went on, and is the only call.
    let response = hook.http1().await.send(post("/pay", "1")).await.unwrap();
    assert_eq!(text(response).await, "paid 1");
    assert_eq!(hook.fence.calls.lock().len(), 1);
    assert_eq!(site.requests(), 1);
}

#[tokio::test]
async fn slow_heads_are_cut_off() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.head = Duration::from_millis(150);
    })
    .await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: b\r\n")
        .await
        .unwrap();
    let mut seen = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut seen))
        .await
        .expect("a slow head must not keep a connection")
        .unwrap();
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn a_large_body_is_spooled_and_arrives() {
    const LEN: usize = 20 << 20;
    let site = Site::plain(handler(|request| async move {
        let mut sum = 0u64;
        let mut len = 0usize;
        let mut body = request.into_body();
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.unwrap().into_data() {
                len += data.len();
                sum += data.iter().map(|b| u64::from(*b)).sum::<u64>();
            }
        }
        Response::new(site::full(format!("{len} {sum}")))
    }))
    .await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.memory = 64 * 1024;
        c.limits.record = 1000;
        // Memory for the beginning alone.
        c.limits.memory_in_all = 128 * 1024;
    })
    .await;
    let bytes: Vec<u8> = (0..LEN).map(|n| (n % 251) as u8).collect();
    let sum: u64 = bytes.iter().map(|b| u64::from(*b)).sum();
    let digest = acrfence_user::words::Digest::of(&bytes);
    let request = Request::post("/up")
        .header("host", "b")
        .body(Full::from(bytes))
        .unwrap();
    let response = hook.http1().await.send(request).await.unwrap();
    assert_eq!(text(response).await, format!("{LEN} {sum}"));
    let body = &hook.fence.http_calls()[0].body;
    assert_eq!(
        (body.len, body.kept.len(), body.digest),
        (LEN as u64, 1000, digest)
    );
}

#[tokio::test]
async fn a_body_over_the_bound_is_refused() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| c.limits.body = 10).await;
    let response = hook
        .http1()
        .await
        .send(post("/", "12345678901"))
        .await
        .unwrap();
    assert_eq!(response.status(), 413);
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn an_agent_of_http_1_0_is_served() {
    let site = Site::plain(bank()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut stream = hook.tcp().await;
    stream
        .write_all(b"POST /pay HTTP/1.0\r\nContent-Length: 1\r\n\r\n4")
        .await
        .unwrap();
    let mut seen = String::new();
    stream.read_to_string(&mut seen).await.unwrap();
    assert!(
        seen.starts_with("HTTP/1.0 200 OK") && seen.ends_with("\r\n\r\npaid 4"),
        "{seen}"
    );
    assert_eq!(
        hook.fence.http_calls()[0].url,
        format!("http://{}/pay", site.address)
    );
}

#[tokio::test]
async fn connections_of_one_agent_are_bounded() {
    let site = Site::plain(bank()).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.connections_per_agent = 2
    })
    .await;
    let mut one = hook.http1().await;
    let mut two = hook.http1().await;
    assert_eq!(
        text(one.send(post("/", "1")).await.unwrap()).await,
        "paid 1"
    );
    assert_eq!(
        text(two.send(post("/", "2")).await.unwrap()).await,
        "paid 2"
    );
    let mut three = hook.tcp().await;
    let mut byte = [0];
    assert!(
        matches!(three.read(&mut byte).await, Ok(0) | Err(_)),
        "the third connection must be dropped"
    );
    drop(one);
    // As soon as one is gone, the next is welcome.
    for _ in 0..200 {
        let mut next = hook.tcp().await;
        next.write_all(b"GET / HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n")
            .await
            .unwrap();
        let mut seen = String::new();
        if next.read_to_string(&mut seen).await.is_ok() && seen.contains("paid") {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("a freed place was never given away");
}

#[tokio::test]
async fn a_connection_of_nobody_is_dropped() {
    let hook = Hook::of_nobody().await;
    let mut stream = hook.tcp().await;
    let _ = stream.write_all(b"GET / HTTP/1.1\r\nHost: b\r\n\r\n").await;
    let mut seen = Vec::new();
    let _ = stream.read_to_end(&mut seen).await;
    assert!(seen.is_empty());
}
