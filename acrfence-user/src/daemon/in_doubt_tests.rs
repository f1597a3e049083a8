use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::boundary::{Admission, Arbiter, Courier};
use crate::daemon::{Keys, Pipeline};
use crate::effect::model::Model;
use crate::effect::{EffectLog, Event, Harvest};
use crate::policy::Config;
use crate::words::*;

const FIRST: &str = "pay-6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11";
const SECOND: &str = "pay-f3c2a9d8-1b64-4e0a-9c57-d20b8e6f4a73";
const SECRET: &str = "sk_live_9f8e7d6c5b4a39281706";
const QUERY: &str = r#"
[fence]
hold_timeout = "0s"
[[rule]]
match = { host = "bank.test", path = "/pay" }
as = "effect"
[rule.in_doubt.query]
url = "/payments?reference={body:/reference}"
happened = { status = 200, json = "/payments/0/reference", is = "{body:/reference}" }
did_not_happen = { status = 200, json = "/payments", is = "[]" }
response = "/payments/0"
settled_after = "5m"
"#;
const RESEND: &str = r#"
[fence]
hold_timeout = "0s"
[[rule]]
match = { host = "bank.test", path = "/pay" }
as = "effect"
in_doubt = { resend = { key = "{header:Idempotency-Key}", valid_for = "1h" } }
"#;

/// The other side: answers every question with the same, and remembers what it saw.
struct Bank {
    log: Arc<Model>,
    answer: Ending,
    seen: Mutex<Vec<Request>>,
}

#[async_trait::async_trait]
impl Courier for Bank {
    async fn carry(&self, question: &Request, _within: Duration) -> Ending {
        let is_on_disk = self
            .log
            .events
            .lock()
            .iter()
            .any(|(_, event)| matches!(event, Event::Asked { .. }));
        assert!(is_on_disk, "asked before it was written down");
        self.seen.lock().push(question.clone());
        self.answer.clone()
    }
}

fn says(status: u16, body: &str) -> Ending {
    Ending::Response(Response::Http(HttpResponse {
        status,
        headers: vec![Header::new("content-type", "application/json")],
        body: Body::whole(body.to_owned()),
        trailers: Vec::new(),
    }))
}

fn call(reference: &str, secret: &str, at: Timestamp) -> ToolCall {
    ToolCall {
        at,
        request: Request::Http(HttpRequest {
            method: "POST".into(),
            url: "https://bank.test/pay".into(),
            headers: vec![
                Header::new("Content-Type", "application/json"),
                Header::new("Authorization", format!("Bearer {secret}")),
                Header::new("Idempotency-Key", format!("key-{reference}")),
            ],
            body: Body::whole(format!(
                r#"{{"to": "alice", "amount": 100, "reference": "{reference}"}}"#
            )),
            rpc: Vec::new(),
        }),
        origin: Origin {
            agent: "buyer".parse().unwrap(),
            incarnation: 1,
            process: ProcessIdentity {
                tgid: 1,
                start_ns: 1,
            },
            exe: String::new(),
            argv: vec![],
            cwd: String::new(),
            uid: 0,
            connection: None,
            gaps: String::new(),
        },
    }
}

/// An agent whose payment is in doubt since `age` ago, and a bank that gives this answer.
struct World {
    log: Arc<Model>,
    pipeline: Pipeline,
    bank: Bank,
    effect: EffectId,
}

async fn start(log: &Arc<Model>, policy: &str) -> Pipeline {
    let config = Config::parse(policy).unwrap();
    let keys = Keys {
        credentials: [1; 32],
        values: [2; 32],
    };
    let log: Arc<dyn EffectLog> = log.clone();
    Pipeline::start(log, Arc::new(ArcSwap::from_pointee(config)), keys, None)
        .await
        .unwrap()
}

async fn world(policy: &str, age: Duration, answer: Ending) -> World {
    let log = Arc::new(Model::new());
    let then = Timestamp(super::now().0 - age.as_nanos() as u64);
    log.push(Event::IncarnationBegan(Incarnation {
        agent: "buyer".parse().unwrap(),
        number: 1,
        cause: IncarnationCause::Attach,
        root: ProcessIdentity {
            tgid: 1,
            start_ns: 1,
        },
        boot_id: String::new(),
        uid: 0,
        exe: String::new(),
        argv: vec![],
        at: then,
    }));
    let pipeline = start(&log, policy).await;
    pipeline
        .ensure_thread(&"buyer".parse().unwrap())
        .await
        .unwrap();
    let Admission::Forward(ticket) = pipeline.admit(call(FIRST, SECRET, then)).await else {
        panic!("the first payment was not sent");
    };
    let effect = ticket.effect().unwrap();
    let outcome = Outcome::InDoubt {
        why: "reset".into(),
        response: None,
    };
    log.push(Event::Settled {
        effect,
        outcome,
        at: then,
        harvest: Harvest::default(),
    });
    drop((ticket, pipeline));
    // The daemon was restarted since.
    let pipeline = start(&log, policy).await;
    let bank = Bank {
        log: log.clone(),
        answer,
        seen: Mutex::default(),
    };
    World {
        log,
        pipeline,
        bank,
        effect,
    }
}

const HOUR: Duration = Duration::from_secs(3600);
const MINUTE: Duration = Duration::from_secs(60);

impl World {
    /// The agent pays again, in other words.
    async fn again(&self, secret: &str) -> Admission {
        self.pipeline
            .admit_asking(call(SECOND, secret, super::now()), &self.bank)
            .await
    }

    fn status(&self) -> Status {
        self.log.effect(self.effect).unwrap().unwrap().status
    }

    fn findings(&self) -> Vec<(String, String)> {
        let events = self.log.events.lock();
        events
            .iter()
            .filter_map(|(_, event)| match event {
                Event::Answered { finding, why, .. } => Some((finding.clone(), why.clone())),
                _ => None,
            })
            .collect()
    }

    fn seen(&self) -> Vec<HttpRequest> {
        let seen = self.bank.seen.lock();
        seen.iter()
            .map(|request| match request {
                Request::Http(http) => http.clone(),
                other => panic!("{other:?}"),
            })
            .collect()
    }
}

fn held(admission: Admission) {
    match admission {
        Admission::Refuse(refusal) => assert_eq!(refusal.code, RefusalCode::InDoubt),
        Admission::Replay { .. } => panic!("it was answered"),
        Admission::Forward(_) => panic!("it was sent"),
    }
}

const PAID: &str =
    r#"{"payments": [{"id": "tr_1", "reference": "pay-6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11"}]}"#;

#[tokio::test(flavor = "multi_thread")]
async fn a_query_tells_that_it_happened() {
    let world = world(QUERY, MINUTE, says(200, PAID)).await;
    let Admission::Replay { effect, response } = world.again(SECRET).await else {
        panic!("the payment was not answered from what the bank told");
    };
    assert_eq!(effect, world.effect);
    let Response::Http(response) = response else {
        panic!("another transport")
    };
    assert_eq!(response.status, 200);
    let told: serde_json::Value = serde_json::from_slice(&response.body.kept).unwrap();
    assert_eq!(told["id"], "tr_1");
    // It asked for the first payment, with the agent's own credentials.
    let seen = world.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].method, "GET");
    assert_eq!(
        seen[0].url,
        format!("https://bank.test/payments?reference={FIRST}")
    );
    let field = |name: &str| seen[0].headers.iter().find(|h| h.is(name)).cloned();
    assert_eq!(
        field("authorization").unwrap().text(),
        Some(&*format!("Bearer {SECRET}"))
    );
    assert_eq!(field("idempotency-key"), None);
    // Nothing of them is kept.
    let kept = format!("{:?}", world.log.events.lock());
    assert!(!kept.contains(SECRET), "the secret was kept");
    assert_eq!(world.findings(), [("happened".into(), String::new())]);
    // The effect belongs to the timeline now: a third payment is a new one.
    assert!(matches!(world.again(SECRET).await, Admission::Forward(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resolution_outlives_the_daemon() {
    let world = world(QUERY, MINUTE, says(200, PAID)).await;
    let by = "uid 0".to_owned();
    let response = world.log.effect(world.effect).unwrap().unwrap();
    assert_eq!(response.status, Status::InDoubt);
    let happened = Resolution::Happened(match says(200, "{}") {
        Ending::Response(response) => response,
        _ => unreachable!(),
    });
    world
        .pipeline
        .resolve(world.effect, happened, by)
        .await
        .unwrap();
    let pipeline = start(&world.log, QUERY).await;
    let again = pipeline.admit(call(SECOND, SECRET, super::now())).await;
    assert!(matches!(again, Admission::Replay { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn not_happened_counts_once_it_had_time_to_arrive() {
    let nothing = || says(200, r#"{"payments": []}"#);
    let early = world(QUERY, MINUTE, nothing()).await;
    held(early.again(SECRET).await);
    assert_eq!(early.status(), Status::InDoubt);
    assert!(early.findings()[0].1.contains("on its way"));

    let late = world(QUERY, HOUR, nothing()).await;
    assert!(matches!(late.again(SECRET).await, Admission::Forward(_)));
    assert_eq!(late.status(), Status::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_does_not_tell_leaves_it_in_doubt() {
    let broken = Ending::Broken {
        why: "no answer came in time".into(),
        partial: None,
    };
    let unsent = Ending::NotSent {
        why: "no connection".into(),
    };
    let twice = r#"{"payments": [], "payments": [{"reference": "pay-6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f11"}]}"#;
    let mut cut = says(200, PAID);
    if let Ending::Response(Response::Http(http)) = &mut cut {
        http.body.len += 1;
    }
    for answer in [
        broken,
        unsent,
        cut,
        says(500, PAID),
        says(302, PAID),
        says(401, PAID),
        says(404, PAID),
        says(200, "{"),
        says(200, twice),
        says(
            200,
            r#"{"payments": [{"reference": "pay-6a1f0f0e-45b7-4d13-b76c-3c1a0e7b5f117"}]}"#,
        ),
        says(200, r#"{"payments": null}"#),
        says(200, ""),
    ] {
        let said = format!("{answer:?}");
        let world = world(QUERY, HOUR, answer).await;
        held(world.again(SECRET).await);
        assert_eq!(world.status(), Status::InDoubt, "{said}");
        assert_eq!(world.findings()[0].0, "unknown", "{said}");
        assert_eq!(world.seen().len(), 1, "{said}");
        assert_eq!(world.pipeline.open_holds().len(), 1, "{said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_credentials_but_those_of_the_original_are_used() {
    for policy in [QUERY, RESEND] {
        let world = world(policy, MINUTE, says(200, PAID)).await;
        held(world.again("sk_live_0000000000000000000000").await);
        assert!(world.seen().is_empty());
        assert_eq!(world.findings()[0].0, "not_asked");
        assert_eq!(world.status(), Status::InDoubt);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_original_is_sent_again_under_its_own_key() {
    let world = world(RESEND, MINUTE, says(200, r#"{"id": "tr_1"}"#)).await;
    let Admission::Replay { effect, response } = world.again(SECRET).await else {
        panic!("the payment was not answered");
    };
    assert_eq!(effect, world.effect);
    assert!(response.is_whole());
    let Request::Http(original) = call(FIRST, SECRET, Timestamp(0)).request else {
        unreachable!()
    };
    assert_eq!(world.seen(), [original], "not the original bytes");
    assert_eq!(world.status(), Status::Completed);
    let kept = format!("{:?}", world.log.events.lock());
    assert!(!kept.contains(SECRET), "the secret was kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resent_original_tells_only_by_success() {
    for status in [302, 400, 409, 422, 429, 500, 503] {
        let world = world(RESEND, MINUTE, says(status, "{}")).await;
        held(world.again(SECRET).await);
        assert_eq!(world.status(), Status::InDoubt, "{status}");
    }
    // Nobody knows whether the other side still remembers the key.
    let world = world(RESEND, 2 * HOUR, says(200, "{}")).await;
    held(world.again(SECRET).await);
    assert!(world.seen().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_rule_or_a_way_nobody_asks() {
    let world = world(QUERY, HOUR, says(200, PAID)).await;
    // Another way than the original's upstream leg: a person decides.
    held(
        world
            .pipeline
            .admit(call(SECOND, SECRET, super::now()))
            .await,
    );
    assert!(world.seen().is_empty() && world.findings().is_empty());
    let bare = "[fence]\nhold_timeout = \"0s\"\n";
    let other = self::world(bare, HOUR, says(200, PAID)).await;
    held(other.again(SECRET).await);
    assert!(other.seen().is_empty());
}

#[test]
fn rules_that_cannot_tell_are_refused() {
    let with = |in_doubt: &str| {
        Config::parse(&format!(
            "[[rule]]\nmatch = {{ host = \"h\" }}\nas = \"effect\"\nin_doubt = {in_doubt}\n"
        ))
    };
    for (in_doubt, said) in [
        (
            r#"{ query = { happened = { status = 200 } } }"#,
            "`url` or `tool`",
        ),
        (
            r#"{ query = { url = "/x", happened = { status = 200 } } }"#,
            "asks the same whatever the effect was",
        ),
        (
            r#"{ query = { url = "https://other/{body:/r}", happened = { status = 200 } } }"#,
            "a path on the host",
        ),
        (
            r#"{ query = { url = "//other/{body:/r}", happened = { status = 200 } } }"#,
            "a path on the host",
        ),
        (
            r#"{ query = { url = "/{body:/r}", happened = {} } }"#,
            "every answer would say so",
        ),
        (
            r#"{ query = { url = "/{body:r}", happened = { status = 200 } } }"#,
            "JSON pointer",
        ),
        (
            r#"{ query = { url = "/{cookie:r}", happened = { status = 200 } } }"#,
            "is no place",
        ),
        (r#"{ resend = { key = "constant" } }"#, "the one place"),
        (r#"{ guess = {} }"#, "unknown variant"),
    ] {
        let error = with(in_doubt).unwrap_err();
        assert!(error.contains(said), "{in_doubt}: {error}");
    }
    let fine = r#"{ query = { tool = "get", arguments = { id = "{argument:/id}" }, happened = { json = "/found", is = "true" } } }"#;
    let config = with(fine).unwrap();
    // What is written is read again.
    let text = toml::to_string(&config).unwrap();
    assert_eq!(Config::parse(&text).unwrap(), config);
    let wrong_kind = "[[rule]]\nmatch = { host = \"h\" }\nas = \"read_only\"\nin_doubt = { resend = { key = \"{header:K}\" } }\n";
    assert!(
        Config::parse(wrong_kind)
            .unwrap_err()
            .contains("for effects")
    );
}
