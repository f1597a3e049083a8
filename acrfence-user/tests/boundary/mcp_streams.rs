//! Answers that come over another stream than the call: the older SSE transport, and sessions
//! whose streams are taken up again.

use std::sync::Arc;
use std::time::Duration;

use acrfence_user::words::{Ending, McpResponse, RefusalCode, Response as Recorded};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::fence::Say;
use crate::hook::{Hook, get, text};
use crate::site::{self, Site, handler};

type Feed = tokio::sync::mpsc::Sender<std::io::Result<Frame<Bytes>>>;

/// A server whose GET streams, and with `answers_post` its POST streams too, are fed by the test.
async fn server(answers_post: bool) -> (Site, Arc<Mutex<Vec<Feed>>>) {
    let feeds: Arc<Mutex<Vec<Feed>>> = Arc::default();
    let opened = feeds.clone();
    let site = Site::plain(handler(move |request: Request<Incoming>| {
        let opened = opened.clone();
        async move {
            let method = request.method().clone();
            request.into_body().collect().await.unwrap();
            if method == Method::POST && !answers_post {
                return Response::builder()
                    .status(StatusCode::ACCEPTED)
                    .body(site::full("Accepted"))
                    .unwrap();
            }
            let (feed, body) = site::fed();
            opened.lock().push(feed);
            Response::builder()
                .header("content-type", "text/event-stream")
                .body(body)
                .unwrap()
        }
    }))
    .await;
    (site, feeds)
}

async fn tell(feed: &Feed, text: &str) {
    feed.send(Ok(Frame::data(Bytes::from(text.to_owned()))))
        .await
        .unwrap();
}

async fn next(body: &mut Incoming) -> String {
    let frame = tokio::time::timeout(Duration::from_secs(10), body.frame())
        .await
        .expect("an event must come at once")
        .unwrap()
        .unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

async fn quiet(body: &mut Incoming) {
    let early = tokio::time::timeout(Duration::from_millis(150), body.frame()).await;
    assert!(early.is_err(), "{early:?}");
}

fn listen(uri: &str) -> Request<Full<Bytes>> {
    let mut request = get(uri);
    request
        .headers_mut()
        .insert("accept", "text/event-stream".parse().unwrap());
    request
}

fn call(uri: &str, id: u32) -> Request<Full<Bytes>> {
    let body =
        json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "pay"}});
    Request::post(uri)
        .header("host", "bank.test")
        .header("accept", "application/json, text/event-stream")
        .body(Full::from(body.to_string()))
        .unwrap()
}

fn answer(id: u32) -> String {
    format!("event: message\ndata: {{\"jsonrpc\":\"2.0\",\"id\":{id},\"result\":{{}}}}\n\n")
}

#[tokio::test]
async fn in_the_older_transport_the_answer_waits_on_its_stream() {
    let (site, feeds) = server(false).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut listener = hook.http1().await;
    let mut stream = listener.send(listen("/sse")).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    let endpoint = "event: endpoint\ndata: /messages/?session_id=7\n\n";
    tell(&feed, endpoint).await;
    assert_eq!(next(&mut stream).await, endpoint);

    hook.fence.close();
    let mut agent = hook.http1().await;
    let response = agent
        .send(call("/messages/?session_id=7", 3))
        .await
        .unwrap();
    assert_eq!(response.status(), 202);
    assert_eq!(text(response).await, "Accepted");
    assert_eq!(
        hook.fence.mcp_calls()[0].server,
        "http://bank.test/messages/"
    );
    assert!(hook.fence.endings.lock().is_empty(), "accepted is not done");
    tell(&feed, &answer(3)).await;
    quiet(&mut stream).await;
    hook.fence.open();
    assert_eq!(next(&mut stream).await, answer(3));
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Response(Recorded::Mcp(_))
    ));
}

#[tokio::test]
async fn in_the_older_transport_replays_and_refusals_come_over_the_stream() {
    let (site, feeds) = server(false).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut listener = hook.http1().await;
    let mut stream = listener.send(listen("/sse")).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    tell(
        &feed,
        "event: endpoint\ndata: http://bank.test/messages/?session_id=7\n\n",
    )
    .await;
    next(&mut stream).await;
    let sent = site.requests();

    let mut agent = hook.http1().await;
    hook.fence.say(Say::Replay(Recorded::Mcp(McpResponse {
        is_result: true,
        answer: "{\"before\":1}".to_owned(),
        is_error: false,
    })));
    let response = agent
        .send(call("/messages/?session_id=7", 4))
        .await
        .unwrap();
    assert_eq!(response.status(), 202);
    let event = next(&mut stream).await;
    assert_eq!(
        event,
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":4,\"result\":{\"before\":1}}\n\n"
    );
    hook.fence.say(Say::Refuse(RefusalCode::Diverged));
    let response = agent
        .send(call("/messages/?session_id=7", 5))
        .await
        .unwrap();
    assert_eq!(response.status(), 202);
    let event = next(&mut stream).await;
    let message: Value = serde_json::from_str(
        event
            .lines()
            .nth(1)
            .unwrap()
            .strip_prefix("data: ")
            .unwrap(),
    )
    .unwrap();
    assert_eq!(message["id"], 5);
    assert_eq!(message["result"]["isError"], true);
    assert_eq!(site.requests(), sent, "nothing was sent");
    assert!(hook.fence.undelivered.lock().is_empty());
}

#[tokio::test]
async fn a_stream_that_ends_leaves_its_calls_in_doubt() {
    let (site, feeds) = server(false).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut listener = hook.http1().await;
    let mut stream = listener.send(listen("/sse")).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    tell(&feed, "event: endpoint\ndata: /m?s=7\n\n").await;
    drop(feed);
    next(&mut stream).await;
    let mut agent = hook.http1().await;
    assert_eq!(agent.send(call("/m?s=7", 4)).await.unwrap().status(), 202);
    feeds.lock().clear();
    let ending = hook
        .fence
        .until("the call's ending", |f| {
            f.endings.lock().iter().find(|(id, _)| *id == 2).cloned()
        })
        .await;
    assert!(matches!(ending.1, Ending::Broken { .. }));
}

#[tokio::test]
async fn an_agent_that_leaves_its_stream_loses_no_outcome() {
    let (site, feeds) = server(false).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut listener = hook.http1().await;
    let mut stream = listener.send(listen("/sse")).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    tell(&feed, "event: endpoint\ndata: /m?s=7\n\n").await;
    next(&mut stream).await;
    let mut agent = hook.http1().await;
    assert_eq!(agent.send(call("/m?s=7", 4)).await.unwrap().status(), 202);
    drop((stream, listener));
    tokio::time::sleep(Duration::from_millis(50)).await;
    tell(&feed, &answer(4)).await;
    let ending = hook
        .fence
        .until("the call's ending", |f| {
            f.endings.lock().iter().find(|(id, _)| *id == 2).cloned()
        })
        .await;
    assert!(
        matches!(ending.1, Ending::Response(Recorded::Mcp(_))),
        "{ending:?}"
    );
    hook.fence
        .until("word that nobody heard it", |f| {
            f.undelivered.lock().first().copied()
        })
        .await;
    // With nobody waiting, the stream is given up.
    tokio::time::timeout(Duration::from_secs(10), feed.closed())
        .await
        .unwrap();
}

#[tokio::test]
async fn tools_are_learned_from_the_older_transport() {
    let (site, feeds) = server(false).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut listener = hook.http1().await;
    let mut stream = listener.send(listen("/sse")).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    tell(&feed, "event: endpoint\ndata: /m?s=7\n\n").await;
    next(&mut stream).await;
    tell(
        &feed,
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"tools\":[]}}\n\n",
    )
    .await;
    let told = hook
        .fence
        .until("tools", |f| f.tools.lock().first().cloned())
        .await;
    assert_eq!(told, ("http://bank.test/m".to_owned(), "[]".to_owned()));
}

#[tokio::test]
async fn only_the_end_of_a_session_that_was_given_out_is_housekeeping() {
    let site = Site::plain(handler(|request: Request<Incoming>| async move {
        request.into_body().collect().await.unwrap();
        Response::builder()
            .header("mcp-session-id", "s1")
            .body(site::full(""))
            .unwrap()
    }))
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    let end = || {
        let mut end = in_session(get("/mcp"));
        *end.method_mut() = Method::DELETE;
        end
    };
    agent.send(end()).await.unwrap();
    let mut begin = in_session(get("/mcp"));
    *begin.method_mut() = Method::POST;
    *begin.body_mut() = Full::from(r#"{"jsonrpc":"2.0","id":1,"method":"initialize"}"#);
    begin.headers_mut().remove("mcp-session-id");
    agent.send(begin).await.unwrap();
    agent.send(end()).await.unwrap();
    let calls = hook.fence.http_calls();
    let said: Vec<bool> = calls
        .iter()
        .map(|call| call.is_mcp_housekeeping())
        .collect();
    assert_eq!(said, [false, true, true]);
}

fn in_session(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    request
        .headers_mut()
        .insert("mcp-session-id", "s1".parse().unwrap());
    request
}

#[tokio::test]
async fn a_stream_that_is_taken_up_again_brings_the_outcome() {
    let (site, feeds) = server(true).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    let response = agent.send(in_session(call("/mcp", 9))).await.unwrap();
    let mut stream = response.into_body();
    let feed = feeds.lock()[0].clone();
    tell(&feed, "id: 1\nretry: 10\ndata:\n\n").await;
    next(&mut stream).await;
    feeds.lock().clear();
    drop(feed);
    assert!(stream.frame().await.is_none());
    assert!(
        hook.fence.endings.lock().is_empty(),
        "it can be taken up again"
    );

    hook.fence.say(Say::Pass);
    let mut again = in_session(listen("/mcp"));
    again
        .headers_mut()
        .insert("last-event-id", "1".parse().unwrap());
    let mut stream = agent.send(again).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    hook.fence.close();
    tell(&feed, &answer(9)).await;
    quiet(&mut stream).await;
    hook.fence.open();
    assert_eq!(next(&mut stream).await, answer(9));
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Response(Recorded::Mcp(_))
    ));
}

#[tokio::test]
async fn a_stream_that_is_not_taken_up_again_is_in_doubt() {
    let (site, feeds) = server(true).await;
    let hook = Hook::with(site.address, Vec::new(), |c| {
        c.limits.resume = Duration::from_millis(50);
    })
    .await;
    let mut agent = hook.http1().await;
    let response = agent.send(in_session(call("/mcp", 9))).await.unwrap();
    let feed = feeds.lock()[0].clone();
    tell(&feed, "id: 1\ndata:\n\n").await;
    feeds.lock().clear();
    drop(feed);
    text(response).await;
    assert!(matches!(hook.fence.ending().await, Ending::Broken { .. }));
}

#[tokio::test]
async fn two_calls_under_one_id_keep_their_own_answers() {
    let (site, feeds) = server(true).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let (mut one, mut two) = (hook.http1().await, hook.http1().await);
    let first = one.send(in_session(call("/mcp", 1))).await.unwrap();
    let second = two.send(in_session(call("/mcp", 1))).await.unwrap();
    let (feed_one, feed_two) = {
        let feeds = feeds.lock();
        (feeds[0].clone(), feeds[1].clone())
    };
    feeds.lock().clear();
    tell(
        &feed_two,
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":2}}\n\n",
    )
    .await;
    drop(feed_two);
    assert!(text(second).await.contains("\"n\":2"));
    tell(
        &feed_one,
        "data: {\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"n\":1}}\n\n",
    )
    .await;
    drop(feed_one);
    assert!(text(first).await.contains("\"n\":1"));
    let endings = hook
        .fence
        .until("both endings", |f| {
            Some(f.endings.lock().clone()).filter(|e| e.len() == 2)
        })
        .await;
    for (id, ending) in endings {
        let Ending::Response(Recorded::Mcp(answer)) = ending else {
            panic!("{ending:?}")
        };
        assert_eq!(answer.answer, format!("{{\"n\":{id}}}"));
    }
}

#[tokio::test]
async fn streams_that_are_none_of_mcp_flow_byte_by_byte() {
    let (site, feeds) = server(false).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut agent = hook.http1().await;
    let mut stream = agent.send(listen("/news")).await.unwrap().into_body();
    let feed = feeds.lock()[0].clone();
    tell(&feed, "data: 1\n\ndata: ").await;
    assert_eq!(next(&mut stream).await, "data: 1\n\n");
    assert_eq!(next(&mut stream).await, "data: ");
    tell(&feed, "half").await;
    assert_eq!(next(&mut stream).await, "half");
}
