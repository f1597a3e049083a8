//! What the model ordered once is done once, and whatever a program means to do again is let through.
//! The log is the model in memory; the agent and its model speak Anthropic Messages.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use serde_json::{Value, json};

use crate::boundary::{Admission, Arbiter as _, Courier, Ticket};
use crate::daemon::{Keys, Pipeline};
use crate::effect::model::Model;
use crate::effect::{EffectLog, Event, HoldDecision};
use crate::policy::Config;
use crate::words::*;

const HOLD: &str = "[fence]\nhold_timeout = \"0s\"";
const REPLAY: &str = "[fence]\nhold_timeout = \"0s\"\nsuspect = \"replay\"";
const OBSERVE: &str = "[fence]\nmode = \"observe\"";

/// Nobody is asked anything.
struct Nobody;

#[async_trait::async_trait]
impl Courier for Nobody {
    async fn carry(&self, question: &Request, _within: Duration) -> Ending {
        panic!("{question:?} was asked")
    }
}

/// An agent in one process, with its conversation.
struct World {
    log: Arc<Model>,
    pipeline: Pipeline,
    policy: &'static str,
    history: Vec<Value>,
    /// Calls of the last answer.
    open: Vec<String>,
    /// Differs in whatever is made up for a call.
    fresh: u32,
}

async fn start(log: &Arc<Model>, policy: &str) -> Pipeline {
    let keys = Keys {
        credentials: [1; 32],
        values: [2; 32],
    };
    let config = Config::parse(policy).unwrap();
    let log: Arc<dyn EffectLog> = log.clone();
    Pipeline::start(log, Arc::new(ArcSwap::from_pointee(config)), keys, None)
        .await
        .unwrap()
}

fn agent() -> AgentName {
    "buyer".parse().unwrap()
}

const PROCESS: ProcessIdentity = ProcessIdentity {
    tgid: 1,
    start_ns: 1,
};

fn by_agent(request: Request) -> ToolCall {
    ToolCall {
        at: super::super::now(),
        request,
        origin: Origin {
            agent: agent(),
            incarnation: 1,
            process: PROCESS,
            exe: String::new(),
            argv: vec![],
            cwd: "/".into(),
            uid: 0,
            connection: None,
            gaps: String::new(),
        },
    }
}

fn http(url: &str, headers: &[(&str, &str)], body: String) -> Request {
    let headers = headers.iter();
    Request::Http(HttpRequest {
        method: "POST".into(),
        url: url.into(),
        headers: headers
            .map(|(name, value)| Header::new(*name, value.as_bytes().to_vec()))
            .collect(),
        rpc: Vec::new(),
        body: Body::whole(body),
    })
}

fn json_to(url: &str, body: &Value) -> Request {
    http(
        url,
        &[("content-type", "application/json")],
        body.to_string(),
    )
}

/// A call over MCP, under the model's id where the client passes that on.
fn mcp(arguments: &Value, id: Option<&str>) -> Request {
    Request::Mcp(McpRequest {
        server: "bank".into(),
        name: "pay".into(),
        arguments: arguments.to_string(),
        meta: id.map(|id| json!({"claudecode/toolUseId": id}).to_string()),
        extra: None,
        headers: Vec::new(),
    })
}

/// A payment as a tool makes it: with a reference and a time of its own.
fn payment(to: &str, amount: u32, reference: &str) -> Request {
    let at = super::super::now().to_string();
    let body = json!({"to": to, "amount": amount, "currency": "EUR", "reference": reference, "requested_at": at});
    json_to("https://bank.test/v1/transfers", &body)
}

fn answered(status: u16) -> Ending {
    Ending::Response(Response::Http(HttpResponse {
        status,
        headers: vec![Header::new("content-type", "application/json")],
        body: Body::whole(r#"{"status": "done"}"#.to_owned()),
        trailers: Vec::new(),
    }))
}

fn returned() -> Ending {
    Ending::Response(Response::Mcp(McpResponse {
        is_result: true,
        is_error: false,
        answer: r#"{"content": [{"type": "text", "text": "done"}]}"#.into(),
    }))
}

fn sent(admission: Admission) -> Box<dyn Ticket> {
    match admission {
        Admission::Forward(ticket) => ticket,
        Admission::Replay { effect, .. } => panic!("{effect} was replayed"),
        Admission::Refuse(refusal) => panic!("{refusal:?}"),
    }
}

fn replayed(admission: Admission) -> EffectId {
    match admission {
        Admission::Replay { effect, .. } => effect,
        Admission::Refuse(refusal) => panic!("{refusal:?}"),
        Admission::Forward(_) => panic!("it was sent"),
    }
}

fn refused(admission: Admission) -> Refusal {
    match admission {
        Admission::Refuse(refusal) => refusal,
        Admission::Replay { effect, .. } => panic!("{effect} was replayed"),
        Admission::Forward(_) => panic!("it was sent"),
    }
}

impl World {
    async fn new(policy: &'static str) -> Self {
        let log = Arc::new(Model::new());
        log.push(Event::IncarnationBegan(Incarnation {
            agent: agent(),
            number: 1,
            cause: IncarnationCause::Attach,
            root: PROCESS,
            boot_id: String::new(),
            uid: 0,
            exe: String::new(),
            argv: vec![],
            at: super::super::now(),
        }));
        let pipeline = start(&log, policy).await;
        pipeline.ensure_thread(&agent()).await.unwrap();
        Self {
            log,
            pipeline,
            policy,
            history: vec![json!({"role": "user", "content": "Do what is to be done."})],
            open: Vec::new(),
            fresh: 0,
        }
    }

    /// The daemon is started again over the same log.
    async fn restart(&mut self) {
        self.pipeline = start(&self.log, self.policy).await;
    }

    /// A value that looks random and was not there before.
    fn uuid(&mut self) -> String {
        self.fresh += 1;
        let n = u64::from(self.fresh).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        format!(
            "{:08x}-{:04x}-4{:03x}-a{:03x}-{:012x}",
            n >> 32,
            n & 0xffff,
            (n >> 16) & 0xfff,
            (n >> 28) & 0xfff,
            n.rotate_left(29) & 0xffff_ffff_ffff
        )
    }

    /// The model is shown that its last calls went well, and orders these. Gives their ids.
    async fn ordered(&mut self, calls: &[(&str, Value)]) -> Vec<String> {
        let results: Vec<Value> = std::mem::take(&mut self.open)
            .into_iter()
            .map(|id| json!({"type": "tool_result", "tool_use_id": id, "content": "done"}))
            .collect();
        if !results.is_empty() {
            self.history
                .push(json!({"role": "user", "content": results}));
        }
        let tools =
            json!([{"name": "pay", "description": "pays", "input_schema": {"type": "object"}}]);
        let body = json!({"model": "m", "max_tokens": 9, "tools": tools, "messages": self.history});
        let ids: Vec<String> = calls
            .iter()
            .map(|_| format!("toolu_{}", self.uuid().replace('-', "")))
            .collect();
        let uses = calls.iter().zip(&ids);
        let content: Vec<Value> = uses
            .map(|((name, input), id)| json!({"type": "tool_use", "id": id, "name": name, "input": input}))
            .collect();
        let answer = json!({
            "id": format!("msg_{}", self.uuid().replace('-', "")), "type": "message",
            "role": "assistant", "model": "m", "content": content, "stop_reason": "tool_use",
            "usage": {"input_tokens": 1, "output_tokens": 1},
        });
        self.history
            .push(json!({"role": "assistant", "content": content}));
        let asks = json_to("https://api.anthropic.com/v1/messages", &body);
        let whole = body.to_string().into_bytes().into();
        let admitted = self
            .pipeline
            .admit_whole(by_agent(asks), whole, &Nobody)
            .await;
        let response = HttpResponse {
            status: 200,
            headers: vec![Header::new("content-type", "application/json")],
            body: Body::whole(answer.to_string()),
            trailers: Vec::new(),
        };
        let ending = Ending::Response(Response::Http(response));
        sent(admitted).settle(ending).await.unwrap();
        self.open.clone_from(&ids);
        ids
    }

    async fn admit(&self, request: Request) -> Admission {
        self.pipeline.admit(by_agent(request)).await
    }

    /// A call that is sent and answered.
    async fn done(&self, request: Request, ending: Ending) -> EffectId {
        let ticket = sent(self.admit(request).await);
        let effect = ticket.effect().unwrap();
        ticket.settle(ending).await.unwrap();
        effect
    }

    async fn paid(&mut self, to: &str, amount: u32) -> EffectId {
        let reference = self.uuid();
        self.done(payment(to, amount, &reference), answered(201))
            .await
    }

    async fn pays_again(&mut self, to: &str, amount: u32) -> Admission {
        let reference = self.uuid();
        self.admit(payment(to, amount, &reference)).await
    }
}

fn alice() -> (&'static str, Value) {
    (
        "pay",
        json!({"to": "alice", "amount": 100, "ref": "made-up-by-the-model"}),
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn an_order_under_a_new_reference_is_held_and_its_reason_is_said() {
    let mut world = World::new(HOLD).await;
    world.ordered(&[alice()]).await;
    let first = world.paid("alice", 100).await;
    let refusal = refused(world.pays_again("alice", 100).await);
    assert_eq!(
        (refusal.code, refusal.effect),
        (RefusalCode::Held, Some(first))
    );
    assert!(refusal.title.contains("ordered this once"), "{refusal:?}");
    // A person sees why, and what they decide is used once.
    let holds = world.pipeline.open_holds();
    assert_eq!(holds.len(), 1);
    assert!(
        holds[0].why.contains("carries the same order out again"),
        "{}",
        holds[0].why
    );
    let decided = world
        .pipeline
        .decide_hold(holds[0].id, HoldDecision::Forward, "a person".into());
    decided.await.unwrap();
    world.paid("alice", 100).await;
    refused(world.pays_again("alice", 100).await);
    // Another order is nobody's repetition.
    world.paid("bob", 100).await;
    world.paid("alice", 101).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_policy_says_so_it_is_answered_however_often_the_step_runs() {
    let mut world = World::new(REPLAY).await;
    world.ordered(&[alice()]).await;
    let first = world.paid("alice", 100).await;
    for _ in 0..3 {
        assert_eq!(replayed(world.pays_again("alice", 100).await), first);
    }
    world.restart().await;
    assert_eq!(replayed(world.pays_again("alice", 100).await), first);
    let events = world.log.events.lock();
    let whys = events.iter().filter_map(|(_, event)| match event {
        Event::Replayed { why, .. } => Some(why.clone()),
        _ => None,
    });
    let whys: Vec<_> = whys.collect();
    assert_eq!(whys.len(), 4);
    for why in whys {
        assert!(why.is_some_and(|w| w.contains("carries the same order out again")));
    }
    let opened = |event: &Event| matches!(event, Event::BranchOpened(b) if b.cause != Cause::Start);
    assert!(
        !events.iter().any(|(_, event)| opened(event)),
        "a branch was opened"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn several_orders_that_run_again_are_answered_each_from_its_own() {
    let mut world = World::new(REPLAY).await;
    world.ordered(&[alice(), alice()]).await;
    let (one, two) = (
        world.paid("alice", 100).await,
        world.paid("alice", 100).await,
    );
    for _ in 0..2 {
        assert_eq!(replayed(world.pays_again("alice", 100).await), one);
        assert_eq!(replayed(world.pays_again("alice", 100).await), two);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_pays_two_and_tells_them_is_known_call_by_call() {
    let mut world = World::new(REPLAY).await;
    let bob = ("pay", json!({"to": "bob", "amount": 100}));
    let told = ("tell", json!({"to": "alice", "amount": 100}));
    world.ordered(&[told, alice(), bob]).await;
    let mut done = Vec::new();
    for round in 0..2 {
        for (url, to) in [
            ("/v1/messages", "alice"),
            ("/v1/transfers", "alice"),
            ("/v1/transfers", "bob"),
        ] {
            let reference = world.uuid();
            let body = json!({"to": to, "amount": 100, "reference": reference});
            let request = json_to(&format!("https://bank.test{url}"), &body);
            if round == 0 {
                done.push(world.done(request, answered(201)).await);
            } else {
                assert_eq!(replayed(world.admit(request).await), done.remove(0));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_model_s_own_id_makes_it_certain() {
    let mut world = World::new(HOLD).await;
    let (name, arguments) = alice();
    let ids = world
        .ordered(&[("mcp__bank__pay", arguments.clone())])
        .await;
    let call = || mcp(&arguments, Some(&ids[0]));
    let first = world.done(call(), returned()).await;
    assert_eq!(replayed(world.admit(call()).await), first);
    world.restart().await;
    assert_eq!(replayed(world.admit(call()).await), first);
    // With other arguments it is another call, whatever its id.
    let other = json!({"to": "alice", "amount": 7});
    world.done(mcp(&other, Some(&ids[0])), returned()).await;
    // A program that the model wrote calls the tool under its own id, twice, and means it.
    let ids = world
        .ordered(&[("run_program", json!({"code": name}))])
        .await;
    world.done(mcp(&arguments, Some(&ids[0])), returned()).await;
    world.done(mcp(&arguments, Some(&ids[0])), returned()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refused_or_questioning_first_leg_is_no_effect() {
    let mut world = World::new(HOLD).await;
    let (_, arguments) = alice();
    let ids = world
        .ordered(&[("mcp__bank__pay", arguments.clone())])
        .await;
    for answer in [r#"{"resultType":"input_required"}"#, "{}"] {
        let ending = Ending::Response(Response::Mcp(McpResponse {
            is_result: true,
            is_error: answer == "{}",
            answer: answer.into(),
        }));
        world.done(mcp(&arguments, Some(&ids[0])), ending).await;
    }
    world.done(mcp(&arguments, Some(&ids[0])), returned()).await;
    // 4xx: nothing was done; the tool corrects itself under another key.
    world.ordered(&[alice()]).await;
    let reference = world.uuid();
    world
        .done(payment("alice", 100, &reference), answered(422))
        .await;
    world.paid("alice", 100).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn observing_reports_a_duplicate_and_stops_nothing() {
    let mut world = World::new(OBSERVE).await;
    world.ordered(&[alice()]).await;
    let first = world.paid("alice", 100).await;
    world.paid("alice", 100).await;
    let events = world.log.events.lock();
    let refusals = events.iter().filter_map(|(_, event)| match event {
        Event::Refused {
            refusal, enforced, ..
        } => Some((refusal.clone(), *enforced)),
        _ => None,
    });
    let refusals: Vec<_> = refusals.collect();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    let (refusal, enforced) = &refusals[0];
    assert!(!enforced);
    assert_eq!(
        (refusal.code, refusal.effect),
        (RefusalCode::Duplicate, Some(first))
    );
    assert!(
        refusal.title.contains("carries the same order out again"),
        "{refusal:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_order_is_never_stopped() {
    let mut world = World::new(HOLD).await;
    for _ in 0..3 {
        world.ordered(&[alice()]).await;
        world.paid("alice", 100).await;
    }
    // Two equal calls in one answer are two orders; the third payment has none.
    world.ordered(&[alice(), alice()]).await;
    world.paid("alice", 100).await;
    world.paid("alice", 100).await;
    refused(world.pays_again("alice", 100).await);
}

/// The model says the memo, the tool does not send it: three orders, not one carried out again.
#[tokio::test(flavor = "multi_thread")]
async fn orders_whose_requests_look_the_same_are_as_many_as_the_model_made() {
    let mut world = World::new(HOLD).await;
    let rent = |memo: &str| ("pay", json!({"to": "alice", "amount": 100, "memo": memo}));
    world
        .ordered(&[rent("rent"), rent("food"), rent("gift")])
        .await;
    for _ in 0..3 {
        let quote = json!({"to": "alice", "amount": 100});
        let quote = json_to("https://bank.test/v1/quotes", &quote);
        world.done(quote, answered(200)).await;
        world.paid("alice", 100).await;
    }
}

/// One call that says how many, of a tool that makes them one by one.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_says_how_many_means_so_many() {
    let mut world = World::new(HOLD).await;
    let three = json!({"to": "alice", "amount": 100, "count": 3});
    world.ordered(&[("pay", three.clone())]).await;
    for _ in 0..3 {
        world.paid("alice", 100).await;
    }
    refused(world.pays_again("alice", 100).await);
    // Where the request itself says how many, it is one.
    world.ordered(&[("pay", three)]).await;
    let (one, two) = (world.uuid(), world.uuid());
    let all = |reference: &str| {
        let body = json!({"to": "alice", "amount": 100, "copies": 3, "reference": reference});
        json_to("https://bank.test/v1/transfers", &body)
    };
    world.done(all(&one), answered(201)).await;
    refused(world.admit(all(&two)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_again_is_a_retry() {
    let mut world = World::new(HOLD).await;
    world.ordered(&[alice()]).await;
    let body = json!({"to": "alice", "amount": 100}).to_string();
    let keyed = |key: &str| {
        let headers = [
            ("content-type", "application/json"),
            ("Idempotency-Key", key),
        ];
        http("https://bank.test/v1/payouts", &headers, body.clone())
    };
    let (one, two) = (world.uuid(), world.uuid());
    // A proxy answered, so nobody knows; the tool sends it once more.
    sent(world.admit(keyed(&one)).await)
        .settle(answered(503))
        .await
        .unwrap();
    let refusal = refused(world.admit(keyed(&one)).await);
    assert_eq!(refusal.code, RefusalCode::InDoubt, "as without this rule");
    // After an answer it is the server that knows the key.
    world.ordered(&[alice()]).await;
    world.done(payment("alice", 100, &one), answered(201)).await;
    world.done(payment("alice", 100, &one), answered(201)).await;
    // A new key is a new order to the server.
    let refusal = refused(world.admit(payment("alice", 100, &two)).await);
    assert_eq!(refusal.code, RefusalCode::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idempotency_key_in_a_header_is_a_reference_too() {
    let mut world = World::new(HOLD).await;
    world.ordered(&[alice()]).await;
    let keyed = |key: String| {
        let headers = [
            ("content-type", "application/json"),
            ("Idempotency-Key", &*key),
        ];
        let body = json!({"to": "alice", "amount": 100}).to_string();
        http("https://bank.test/v1/payouts", &headers, body)
    };
    let (one, two) = (world.uuid(), world.uuid());
    world.done(keyed(one), answered(201)).await;
    assert_eq!(
        refused(world.admit(keyed(two)).await).code,
        RefusalCode::Held
    );
}

/// A request of the given round, with values that were never sent before.
type Shape = fn(u32, &[String]) -> Request;

/// What programs send again and again inside one tool call, each time with what is made anew for it.
const REPEATED: &[(&str, Shape)] = &[
    ("poll", |_, _| {
        let body = json!({"job": "job-17", "region": "eu-central-1"});
        json_to("https://jobs.test/v1/jobs", &body)
    }),
    ("poll with a clock", |_, _| {
        let now = super::super::now().to_string();
        let body = json!({"job": "job-17", "region": "eu-central-1", "requested_at": now});
        json_to("https://jobs.test/v1/jobs", &body)
    }),
    ("poll with an id for each", |_, ids| {
        let body = json!({"job": "job-17", "region": "eu-central-1", "request_id": ids[0]});
        json_to("https://jobs.test/v1/jobs/query", &body)
    }),
    ("ids of the connection", |_, ids| {
        let trace = format!("00-{}-{}-01", hex(&ids[1]), &hex(&ids[2])[..16]);
        let body = json!({"job": "job-17", "region": "eu-central-1"});
        let headers = [
            ("content-type", "application/json"),
            ("x-request-id", &*ids[0]),
            ("traceparent", &*trace),
        ];
        http("https://jobs.test/v1/jobs", &headers, body.to_string())
    }),
    ("a trace in the body", |_, ids| {
        let body = json!({"job": "job-17", "region": "eu-central-1", "trace_id": ids[0]});
        json_to("https://jobs.test/v1/jobs", &body)
    }),
    ("a nonce", |_, ids| {
        let body = json!({"job": "job-17", "region": "eu-central-1", "nonce": ids[0]});
        json_to("https://jobs.test/v1/jobs", &body)
    }),
    ("a signed poll", |_, ids| {
        let signed = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20320304/eu-central-1/ec2/aws4_request, SignedHeaders=host;x-amz-date, Signature={}{}",
            hex(&ids[0]),
            hex(&ids[1])
        );
        let headers = [
            ("content-type", "application/x-www-form-urlencoded"),
            ("x-amz-date", "20320304T050607Z"),
            ("amz-sdk-invocation-id", &*ids[2]),
            ("authorization", &*signed),
        ];
        let body = format!(
            "Action=DescribeInstances&Version=2016-11-15&Region=eu-central-1&Filter=job-17&ClientToken={}",
            ids[3]
        );
        http("https://ec2.eu-central-1.amazonaws.com/", &headers, body)
    }),
    ("a target in a header", |_, ids| {
        let headers = [
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", "Jobs_20320304.GetJob"),
        ];
        let body = json!({"job": "job-17", "region": "eu-central-1", "clientRequestToken": ids[0]});
        http("https://jobs.test/v1/jobs", &headers, body.to_string())
    }),
    ("JSON-RPC that counts", |round, _| {
        let body =
            json!({"jsonrpc": "2.0", "id": round + 1, "method": "send", "params": ["alice", 100]});
        json_to("https://node.test/rpc", &body)
    }),
    ("JSON-RPC with random ids", |_, ids| {
        let body =
            json!({"jsonrpc": "2.0", "id": ids[0], "method": "send", "params": ["alice", 100]});
        json_to("https://node.test/rpc", &body)
    }),
    ("RPC that does not say its name", |_, ids| {
        let body = json!({"id": ids[0], "method": "send", "params": ["alice", 100]});
        json_to("https://node.test/rpc", &body)
    }),
    ("JSON-RPC that asks", |_, ids| {
        let params = json!({"to": "alice", "amount": 100, "request_id": ids[0]});
        let body = json!({"jsonrpc": "2.0", "id": 1, "method": "eth_getBalance", "params": params});
        json_to("https://node.test/rpc", &body)
    }),
    ("GraphQL that asks", |_, ids| {
        let body = json!({
            "query": "query Orders($to: String!, $n: Int!) { orders(to: $to, first: $n) { id } }",
            "variables": {"to": "alice", "n": 100}, "requestId": ids[0],
        });
        json_to("https://shop.test/graphql", &body)
    }),
    ("SQL that asks", |_, ids| {
        let body = json!({"sql": "SELECT * FROM jobs", "job": "job-17", "region": "eu-central-1", "request_id": ids[0]});
        json_to("https://db.test/v1/execute", &body)
    }),
    ("a sign of life", |_, ids| {
        let body = json!({"job": "job-17", "region": "eu-central-1", "request_id": ids[0]});
        json_to("https://jobs.test/v1/jobs/heartbeat", &body)
    }),
    ("an access token", |round, ids| {
        use base64::Engine as _;
        let coded =
            |v: Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(v.to_string());
        let assertion = format!(
            "{}.{}.{}{}",
            coded(json!({"alg": "RS256", "typ": "JWT"})),
            coded(json!({"iss": "alice", "jti": ids[0], "iat": 1_900_000_000 + round})),
            hex(&ids[1]),
            hex(&ids[2])
        );
        let body = format!(
            "grant_type=client_credentials&client_assertion={assertion}&scope=alice&audience=job-17&client_request_id={}",
            ids[3]
        );
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        http("https://auth.test/oauth/token", &headers, body)
    }),
];

/// The same shapes where they order something.
const ORDERS: &[(&str, Shape)] = &[
    ("an id for each", |_, ids| {
        let body = json!({"job": "job-17", "region": "eu-central-1", "request_id": ids[0]});
        json_to("https://jobs.test/v1/jobs", &body)
    }),
    ("a client token", |_, ids| {
        let headers = [("content-type", "application/x-www-form-urlencoded")];
        let body = format!(
            "Action=RunInstances&Version=2016-11-15&Region=eu-central-1&Name=job-17&ClientToken={}",
            ids[0]
        );
        http("https://ec2.eu-central-1.amazonaws.com/", &headers, body)
    }),
    ("a target in a header", |_, ids| {
        let headers = [
            ("content-type", "application/x-amz-json-1.1"),
            ("x-amz-target", "Jobs_20320304.StartJob"),
        ];
        let body = json!({"job": "job-17", "region": "eu-central-1", "clientRequestToken": ids[0]});
        http("https://jobs.test/v1/jobs", &headers, body.to_string())
    }),
    ("JSON-RPC", |round, ids| {
        let params = json!({"to": "alice", "amount": 100, "idempotency_key": ids[0]});
        let body = json!({"jsonrpc": "2.0", "id": round, "method": "send", "params": params});
        json_to("https://node.test/rpc", &body)
    }),
    ("GraphQL", |_, ids| {
        let body = json!({
            "query": "mutation Buy($i: BuyInput!) { buy(input: $i) { id } }",
            "variables": {"i": {"to": "alice", "amount": 100, "clientMutationId": ids[0]}},
        });
        json_to("https://shop.test/graphql", &body)
    }),
    ("SQL", |_, ids| {
        let body = json!({"sql": "INSERT INTO jobs DEFAULT VALUES", "job": "job-17", "region": "eu-central-1", "request_id": ids[0]});
        json_to("https://db.test/v1/execute", &body)
    }),
];

fn hex(id: &str) -> String {
    id.replace('-', "")
}

impl World {
    /// Carries a shape out again and again within one order. Gives what was held, by round.
    async fn repeats(&mut self, shape: Shape) -> Vec<u32> {
        let args = json!({"job": "job-17", "region": "eu-central-1", "to": "alice", "amount": 100});
        self.ordered(&[("work", args)]).await;
        let mut held = Vec::new();
        let mut first = None;
        for round in 0..4 {
            let ids: Vec<String> = (0..4).map(|_| self.uuid()).collect();
            let call = by_agent(shape(round, &ids));
            if let Some(first) = first {
                // Else nothing is tried here: it is the same call, and the same order.
                let effect = self.log.effect(first).unwrap().unwrap();
                let comparison = self.pipeline.compare(&effect, &call);
                assert_eq!(comparison.likeness, Likeness::Equivalent, "{comparison:?}");
                let asks = self.pipeline.asks(&call).await;
                let placed = self.pipeline.placed(&call.origin, asks.as_ref()).await;
                assert!(!placed.unwrap().placement.orders.is_empty(), "{call:?}");
            }
            match self.pipeline.admit(call).await {
                Admission::Forward(ticket) => {
                    first = first.or(ticket.effect());
                    ticket.settle(answered(200)).await.unwrap();
                }
                Admission::Refuse(refusal) if refusal.code == RefusalCode::Held => held.push(round),
                Admission::Refuse(refusal) => panic!("{refusal:?}"),
                Admission::Replay { effect, .. } => panic!("{effect} answered"),
            }
        }
        held
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_programs_repeat_on_purpose_is_sent() {
    let mut world = World::new(HOLD).await;
    let mut stopped = Vec::new();
    for (what, shape) in REPEATED {
        if !world.repeats(*shape).await.is_empty() {
            stopped.push(*what);
        }
    }
    assert!(stopped.is_empty(), "{stopped:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_orders_is_held_in_every_shape() {
    let mut world = World::new(HOLD).await;
    for (what, shape) in ORDERS {
        assert_eq!(world.repeats(*shape).await, [1, 2, 3], "{what}");
    }
}
