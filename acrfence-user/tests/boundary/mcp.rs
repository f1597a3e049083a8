//! MCP over streamable HTTP.

use std::sync::Arc;
use std::time::Duration;

use acrfence_user::words::{Ending, McpResponse, RefusalCode, Response as Recorded};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::fence::Say;
use crate::hook::{Hook, Http1, text};
use crate::site::{self, Handler, Site, handler};

const BOTH: &str = "application/json, text/event-stream";

fn rpc(accept: &str, body: impl Into<String>) -> Request<Full<Bytes>> {
    Request::post("/mcp?session=1")
        .header("host", "tools.test")
        .header("content-type", "application/json")
        .header("accept", accept)
        .header("mcp-session-id", "s1")
        .body(Full::from(body.into()))
        .unwrap()
}

fn call(id: Value, amount: u32) -> String {
    json!({"jsonrpc": "2.0", "id": id, "method": "tools/call",
        "params": {"name": "pay", "arguments": {"amount": amount}}})
    .to_string()
}

/// Answers every request with its own method or tool, as JSON.
fn json_server() -> Handler {
    handler(|request: Request<Incoming>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        let message: Value = serde_json::from_slice(&body).unwrap();
        let answer = |message: &Value| {
            let id = message.get("id")?;
            Some(json!({"jsonrpc": "2.0", "id": id, "result": {
                "content": [{"type": "text", "text": format!("paid {}", message["params"]["arguments"]["amount"])}],
                "tools": [{"name": "pay", "annotations": {"readOnlyHint": false}}],
            }}))
        };
        let answers = match &message {
            Value::Array(all) => {
                let all: Vec<Value> = all.iter().filter_map(answer).collect();
                (!all.is_empty()).then_some(Value::Array(all))
            }
            one => answer(one),
        };
        match answers {
            Some(answers) => Response::builder()
                .header("content-type", "application/json")
                .body(site::full(answers.to_string()))
                .unwrap(),
            None => Response::builder()
                .status(StatusCode::ACCEPTED)
                .body(site::full(""))
                .unwrap(),
        }
    })
}

fn result_of(text: &str) -> Value {
    let message: Value = serde_json::from_str(text).unwrap();
    message["result"].clone()
}

#[tokio::test]
async fn a_tool_call_is_taken_out_of_the_body() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let body = r#"{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"pay","arguments":{"amount": 1.50, "amount": 2},"_meta":{"progressToken":3},"requestState":"x"}}"#;
    let mut request = rpc(BOTH, body);
    // Headers that lie are not believed.
    request
        .headers_mut()
        .insert("mcp-method", "ping".parse().unwrap());
    request
        .headers_mut()
        .insert("mcp-name", "harmless".parse().unwrap());
    let response = hook.http1().await.send(request).await.unwrap();
    assert_eq!(response.status(), 200);
    text(response).await;
    let calls = hook.fence.mcp_calls();
    assert_eq!(calls[0].server, "http://tools.test/mcp");
    assert_eq!(calls[0].name, "pay");
    assert_eq!(calls[0].arguments, r#"{"amount": 1.50, "amount": 2}"#);
    assert_eq!(calls[0].meta.as_deref(), Some(r#"{"progressToken":3}"#));
    assert_eq!(calls[0].extra.as_deref(), Some(r#"{"requestState":"x"}"#));
    let Ending::Response(Recorded::Mcp(answer)) = hook.fence.ending().await else {
        panic!("{:?}", hook.fence.endings.lock())
    };
    assert!(answer.is_result && !answer.is_error);
    assert!(answer.answer.contains("paid"), "{}", answer.answer);
}

#[tokio::test]
async fn a_replay_has_the_new_id_and_the_kind_that_was_asked_for() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let recorded = || {
        Say::Replay(Recorded::Mcp(McpResponse {
            is_result: true,
            answer: "{\n\"content\":[]}".to_owned(),
            is_error: false,
        }))
    };
    let mut agent = hook.http1().await;
    hook.fence.say(recorded());
    let response = agent.send(rpc(BOTH, call(json!("new"), 1))).await.unwrap();
    assert_eq!(response.headers()["content-type"], "application/json");
    assert_eq!(response.headers()["acrfence-replay"], "e17");
    let message: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(
        message,
        json!({"jsonrpc": "2.0", "id": "new", "result": {"content": []}})
    );

    hook.fence.say(recorded());
    let response = agent
        .send(rpc("text/event-stream", call(json!(8), 1)))
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let stream = text(response).await;
    assert_eq!(
        stream,
        "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":8,\"result\":{\ndata: \"content\":[]}}\n\n"
    );
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn a_refusal_is_a_result_that_a_model_can_read() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    hook.fence.say(Say::Refuse(RefusalCode::Diverged));
    let response = agent.send(rpc(BOTH, call(json!(1), 1))).await.unwrap();
    assert_eq!(response.status(), 200);
    let result = result_of(&text(response).await);
    assert_eq!(result["isError"], true);
    assert!(result.get("resultType").is_none());
    let words = result["content"][0]["text"].as_str().unwrap();
    assert!(
        words.contains("paid already") && words.contains("e17"),
        "{words}"
    );

    // The latest revision wants to know the type of a result.
    hook.fence.say(Say::Refuse(RefusalCode::Diverged));
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pay",
        "_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}}});
    let response = agent.send(rpc(BOTH, body.to_string())).await.unwrap();
    assert_eq!(result_of(&text(response).await)["resultType"], "complete");

    // A recorded HTTP answer is no tool result.
    hook.fence.say(Say::Replay(Recorded::Http(
        acrfence_user::words::HttpResponse {
            status: 200,
            headers: Vec::new(),
            body: acrfence_user::words::Body::empty(),
            trailers: Vec::new(),
        },
    )));
    let response = agent.send(rpc(BOTH, call(json!(1), 1))).await.unwrap();
    assert_eq!(result_of(&text(response).await)["isError"], true);
    assert_eq!(site.accepted(), 0);
}

#[tokio::test]
async fn other_methods_are_http_that_says_what_it_is() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    for (body, rpc_methods, housekeeping) in [
        (
            json!({"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}),
            vec!["initialize"],
            true,
        ),
        (
            json!({"jsonrpc":"2.0","method":"notifications/initialized"}),
            vec!["notifications/initialized"],
            true,
        ),
        (
            json!({"jsonrpc":"2.0","id":1,"result":{}}),
            vec!["(response)"],
            true,
        ),
        (
            json!([{"jsonrpc":"2.0","id":1,"method":"ping"},{"jsonrpc":"2.0","id":2,"method":"resources/read"}]),
            vec!["ping", "resources/read"],
            true,
        ),
        (
            json!({"jsonrpc":"2.0","id":1,"method":"eth_sendTransaction"}),
            vec!["eth_sendTransaction"],
            false,
        ),
        (
            json!({"jsonrpc":"2.0","method":"tools/call","params":{"name":"x"}}),
            vec!["tools/call"],
            false,
        ),
        (json!({"amount": 1, "method": "ping"}), vec![], false),
    ] {
        let before = hook.fence.http_calls().len();
        let _ = agent
            .send(rpc(BOTH, body.to_string()))
            .await
            .unwrap()
            .into_body()
            .collect()
            .await;
        let call = hook.fence.http_calls()[before].clone();
        assert_eq!(call.rpc, rpc_methods, "{body}");
        assert_eq!(call.is_mcp_housekeeping(), housekeeping, "{body}");
    }
    assert!(hook.fence.mcp_calls().is_empty());
}

#[tokio::test]
async fn messages_that_readers_understand_differently_are_not_sent() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let body =
        r#"{"jsonrpc":"2.0","id":5,"method":"ping","method":"tools/call","params":{"name":"pay"}}"#;
    let response = hook.http1().await.send(rpc(BOTH, body)).await.unwrap();
    let message: Value = serde_json::from_str(&text(response).await).unwrap();
    assert_eq!(message["id"], 5);
    assert_eq!(message["error"]["code"], -32600);
    assert_eq!(site.accepted(), 0);
    assert!(hook.fence.calls.lock().is_empty());
}

#[tokio::test]
async fn tools_are_learned() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).to_string();
    hook.fence.say(Say::Pass);
    text(hook.http1().await.send(rpc(BOTH, body)).await.unwrap()).await;
    let (server, tools) = hook
        .fence
        .until("tools", |f| f.tools.lock().first().cloned())
        .await;
    assert_eq!(server, "http://tools.test/mcp");
    let tools: Value = serde_json::from_str(&tools).unwrap();
    assert_eq!(tools[0]["name"], "pay");
}

type Feed = tokio::sync::mpsc::Sender<std::io::Result<Frame<Bytes>>>;

/// A server that answers with events fed by the test.
async fn event_server() -> (Site, Arc<Mutex<Option<Feed>>>) {
    let slot: Arc<Mutex<Option<Feed>>> = Arc::default();
    let filled = slot.clone();
    let site = Site::plain(handler(move |request: Request<Incoming>| {
        let slot = slot.clone();
        async move {
            assert!(!request.headers().contains_key("accept-encoding"));
            request.into_body().collect().await.unwrap();
            let (feed, body) = site::fed();
            *slot.lock() = Some(feed);
            Response::builder()
                .header("content-type", "text/event-stream")
                .header("mcp-session-id", "s1")
                .body(body)
                .unwrap()
        }
    }))
    .await;
    (site, filled)
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

#[tokio::test]
async fn events_flow_and_the_result_waits_for_the_record() {
    let (site, slot) = event_server().await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.close();
    let mut request = rpc(BOTH, call(json!(7), 1));
    request
        .headers_mut()
        .insert("accept-encoding", "gzip".parse().unwrap());
    let mut agent = hook.http1().await;
    let response = agent.send(request).await.unwrap();
    assert_eq!(response.headers()["mcp-session-id"], "s1");
    let feed = slot.lock().take().unwrap();
    let mut body = response.into_body();

    let progress =
        "id: 1\r\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\"}\r\n\r\n";
    tell(&feed, progress).await;
    assert_eq!(next(&mut body).await, progress);
    // The server asks something under the same id; that is no answer.
    let asks = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"sampling/createMessage\"}\n\n";
    tell(&feed, asks).await;
    assert_eq!(next(&mut body).await, asks);

    let answer = "event: message\ndata: {\"jsonrpc\":\"2.0\",\"id\":7,\ndata: \"result\":{\"content\":[]}}\n\n";
    let (one, two) = answer.split_at(40);
    tell(&feed, one).await;
    tell(&feed, two).await;
    let early = tokio::time::timeout(Duration::from_millis(200), body.frame()).await;
    assert!(
        early.is_err(),
        "the result came before the outcome was settled"
    );
    hook.fence.open();
    assert_eq!(next(&mut body).await, answer);
    tell(&feed, ": bye\n\n").await;
    assert_eq!(next(&mut body).await, ": bye\n\n");
    drop(feed);
    assert!(body.frame().await.is_none());
    let Ending::Response(Recorded::Mcp(recorded)) = hook.fence.ending().await else {
        panic!()
    };
    assert_eq!(recorded.answer, "{\"content\":[]}");
}

#[tokio::test]
async fn an_agent_that_closes_the_stream_loses_no_outcome() {
    let (site, slot) = event_server().await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    let response = agent.send(rpc(BOTH, call(json!(7), 1))).await.unwrap();
    let feed = slot.lock().take().unwrap();
    drop((response, agent));
    tokio::time::sleep(Duration::from_millis(50)).await;
    tell(
        &feed,
        "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{\"isError\":true}}\n\n",
    )
    .await;
    let Ending::Response(Recorded::Mcp(recorded)) = hook.fence.ending().await else {
        panic!("{:?}", hook.fence.endings.lock())
    };
    assert!(recorded.is_error);
}

#[tokio::test]
async fn a_call_that_is_no_effect_ends_with_its_agent() {
    let (site, slot) = event_server().await;
    let hook = Hook::to(site.address, Vec::new()).await;
    hook.fence.say(Say::Pass);
    let mut agent = hook.http1().await;
    let response = agent.send(rpc(BOTH, call(json!(7), 1))).await.unwrap();
    let feed = slot.lock().take().unwrap();
    drop((response, agent));
    tokio::time::timeout(Duration::from_secs(10), feed.closed())
        .await
        .expect("the upstream must hear that nobody listens");
    assert!(matches!(hook.fence.ending().await, Ending::Broken { .. }));
}

#[tokio::test]
async fn a_result_without_its_last_line_end_is_still_recorded() {
    let (site, slot) = event_server().await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut agent = hook.http1().await;
    let response = agent.send(rpc(BOTH, call(json!(7), 1))).await.unwrap();
    let feed = slot.lock().take().unwrap();
    let event = "data: {\"jsonrpc\":\"2.0\",\"id\":7,\"result\":{}}\n";
    tell(&feed, event).await;
    drop(feed);
    assert_eq!(text(response).await, event);
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Response(Recorded::Mcp(_))
    ));
}

#[tokio::test]
async fn a_stream_without_the_result_is_in_doubt() {
    for cut in [false, true] {
        let (site, slot) = event_server().await;
        let hook = Hook::to(site.address, Vec::new()).await;
        let mut agent = hook.http1().await;
        let response = agent.send(rpc(BOTH, call(json!(7), 1))).await.unwrap();
        let feed = slot.lock().take().unwrap();
        tell(
            &feed,
            "data: {\"jsonrpc\":\"2.0\",\"id\":8,\"result\":{}}\n\n",
        )
        .await;
        if cut {
            feed.send(Err(std::io::Error::other("cut"))).await.unwrap();
        }
        drop(feed);
        let got = response.into_body().collect().await;
        assert_eq!(got.is_err(), cut);
        assert!(
            matches!(hook.fence.ending().await, Ending::Broken { .. }),
            "cut: {cut}"
        );
    }
}

#[tokio::test]
async fn a_call_that_breaks_is_told_to_the_model_not_to_the_transport() {
    let site = Site::raw(|mut stream| async move {
        site::read_head(&mut stream).await;
    })
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let response = hook
        .http1()
        .await
        .send(rpc(BOTH, call(json!(7), 1)))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    let result = result_of(&text(response).await);
    assert_eq!(result["isError"], true);
    assert!(
        result["content"][0]["text"]
            .as_str()
            .unwrap()
            .contains("unknown")
    );
    assert!(matches!(hook.fence.ending().await, Ending::Broken { .. }));
    assert_eq!(site.accepted(), 1);
}

#[tokio::test]
async fn an_http_error_is_recorded_as_what_it_is() {
    let site = Site::plain(handler(|_| async {
        Response::builder()
            .status(404)
            .header("content-type", "application/json")
            .body(site::full("{\"no\":\"session\"}"))
            .unwrap()
    }))
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let response = hook
        .http1()
        .await
        .send(rpc(BOTH, call(json!(7), 1)))
        .await
        .unwrap();
    assert_eq!(response.status(), 404);
    assert_eq!(text(response).await, "{\"no\":\"session\"}");
    let Ending::Response(Recorded::Http(recorded)) = hook.fence.ending().await else {
        panic!()
    };
    assert_eq!(recorded.status, 404);
}

#[tokio::test]
async fn calls_of_a_batch_are_decided_one_by_one() {
    let site = Site::plain(json_server()).await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let batch = json!([
        {"jsonrpc": "2.0", "id": "list", "method": "tools/list"},
        serde_json::from_str::<Value>(&call(json!(1), 10)).unwrap(),
        {"jsonrpc": "2.0", "method": "notifications/cancelled"},
        serde_json::from_str::<Value>(&call(json!(2), 20)).unwrap(),
        serde_json::from_str::<Value>(&call(json!(3), 30)).unwrap(),
        serde_json::from_str::<Value>(&call(json!(4), 40)).unwrap(),
    ]);
    hook.fence
        .say(Say::Pass)
        .say(Say::Forward)
        .say(Say::Pass)
        .say(Say::Refuse(RefusalCode::Diverged))
        .say(Say::Replay(Recorded::Mcp(McpResponse {
            is_result: true,
            answer: "{\"replayed\":true}".to_owned(),
            is_error: false,
        })))
        .say(Say::Forward);
    let response = hook
        .http1()
        .await
        .send(rpc(BOTH, batch.to_string()))
        .await
        .unwrap();
    let answers: Vec<Value> = serde_json::from_str(&text(response).await).unwrap();
    let by_id = |id: Value| answers.iter().find(|a| a["id"] == id).unwrap()["result"].clone();
    assert_eq!(answers.len(), 5);
    assert_eq!(by_id(json!("list"))["tools"][0]["name"], "pay");
    assert_eq!(by_id(json!(1))["content"][0]["text"], "paid 10");
    assert_eq!(by_id(json!(2))["isError"], true);
    assert_eq!(by_id(json!(3))["replayed"], true);
    assert_eq!(by_id(json!(4))["content"][0]["text"], "paid 40");
    // The list, the notification and the two calls that were let through.
    assert_eq!(site.requests(), 4);
    assert_eq!(hook.fence.mcp_calls().len(), 4);
}

#[tokio::test]
async fn a_compressed_request_is_understood() {
    use async_compression::tokio::bufread::GzipEncoder;
    use tokio::io::AsyncReadExt as _;
    let site = Site::plain(handler(|request: Request<Incoming>| async move {
        assert_eq!(request.headers()["content-encoding"], "gzip");
        Response::new(site::full(""))
    }))
    .await;
    let hook = Hook::to(site.address, Vec::new()).await;
    let mut packed = Vec::new();
    GzipEncoder::new(call(json!(1), 10).as_bytes())
        .read_to_end(&mut packed)
        .await
        .unwrap();
    let mut request = rpc(BOTH, "");
    *request.body_mut() = Full::from(packed);
    request
        .headers_mut()
        .insert("content-encoding", "gzip".parse().unwrap());
    let mut agent: Http1 = hook.http1().await;
    agent.send(request).await.unwrap();
    assert_eq!(hook.fence.mcp_calls()[0].arguments, "{\"amount\":10}");
}

#[tokio::test]
async fn a_long_result_is_passed_on_and_recorded_as_far_as_it_goes() {
    const LEN: usize = 3 << 20;
    let site = Site::plain(handler(|_| async {
        let text = "x".repeat(LEN);
        let answer = json!({"jsonrpc": "2.0", "id": 1, "result": {"content": text}}).to_string();
        Response::builder()
            .header("content-type", "application/json")
            .body(site::full(answer))
            .unwrap()
    }))
    .await;
    // Longer than the recording bound, not than what is taken apart: recorded whole.
    let hook = Hook::to(site.address, Vec::new()).await;
    let response = hook
        .http1()
        .await
        .send(rpc(BOTH, call(json!(1), 1)))
        .await
        .unwrap();
    assert!(text(response).await.len() > LEN);
    assert!(matches!(
        hook.fence.ending().await,
        Ending::Response(Recorded::Mcp(_))
    ));
    // Longer than what is taken apart: recorded as HTTP, which cannot be played back.
    let hook = Hook::with(site.address, Vec::new(), |c| c.limits.rpc = 1 << 20).await;
    let response = hook
        .http1()
        .await
        .send(rpc(BOTH, call(json!(1), 1)))
        .await
        .unwrap();
    assert!(text(response).await.len() > LEN);
    let Ending::Response(recorded) = hook.fence.ending().await else {
        panic!()
    };
    assert!(!recorded.is_whole());
}
