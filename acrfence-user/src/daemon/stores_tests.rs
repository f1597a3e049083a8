use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use serde_json::json;

use crate::boundary::{Admission, Arbiter, Courier, Ticket};
use crate::daemon::{Keys, Pipeline};
use crate::effect::model::Model;
use crate::effect::{EffectLog, Event};
use crate::policy::Config;
use crate::probe::proc::{ProcDir, clock_ticks};
use crate::words::*;

const READ: &str = "[fence]\nhold_timeout = \"0s\"\n";
const PATIENT: &str = "[fence]\nhold_timeout = \"1h\"\n";
const NOT_READ: &str = "[fence]\nhold_timeout = \"0s\"\nown_stores = false\n";
const PAID: &str = r#"{"id": "tr_1", "status": "booked"}"#;
const CALL: &str = "call_575gTsAW2PGFS7S5z664RgO9";

/// An agent that checkpoints as LangGraph does, in a real process that has the file open.
struct World {
    log: Arc<Model>,
    pipeline: Pipeline,
    process: ProcessIdentity,
    child: Child,
    store: PathBuf,
    _dir: tempfile::TempDir,
}

impl Drop for World {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Nobody;

#[async_trait::async_trait]
impl Courier for Nobody {
    async fn carry(&self, _: &Request, _: Duration) -> Ending {
        panic!("nothing is asked here")
    }
}

async fn start(log: &Arc<Model>, policy: &str) -> Pipeline {
    let keys = Keys {
        credentials: [1; 32],
        values: [2; 32],
    };
    let config = Arc::new(ArcSwap::from_pointee(Config::parse(policy).unwrap()));
    let log: Arc<dyn EffectLog> = log.clone();
    Pipeline::start(log, config, keys, None).await.unwrap()
}

/// It was asked to pay, ordered it and paid, which it checkpointed.
async fn world(policy: &str) -> World {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("checkpoints.db");
    let db = rusqlite::Connection::open(&store).unwrap();
    db.execute_batch(
        "CREATE TABLE checkpoints (thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '',
            checkpoint_id TEXT NOT NULL, parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
            PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id))",
    )
    .unwrap();
    let (process, child) = process_with(&store);
    let log = Arc::new(Model::new());
    log.push(Event::IncarnationBegan(Incarnation {
        agent: "buyer".parse().unwrap(),
        number: 1,
        cause: IncarnationCause::Attach,
        root: process,
        boot_id: String::new(),
        uid: 0,
        exe: String::new(),
        argv: vec![],
        at: super::now(),
    }));
    let pipeline = start(&log, policy).await;
    let agent = "buyer".parse().unwrap();
    pipeline.ensure_thread(&agent).await.unwrap();
    let world = World {
        log,
        pipeline,
        process,
        child,
        store,
        _dir: dir,
    };
    world.checkpoint("1", "asked", None, "pay");
    let asked = sent(world.asks("pay alice").await);
    settle(asked, 200, &order(CALL)).await;
    world.checkpoint("1", "ordered", Some("asked"), CALL);
    let paid = sent(
        world
            .pays(100, "b1946ac9-2f3a-4f1d-8f5e-0d2c7a1e9b44")
            .await,
    );
    settle(paid, 201, PAID).await;
    world.checkpoint("1", "paid", Some("ordered"), CALL);
    let shown = json!([{"role": "user", "content": "pay alice"}, message(CALL),
        {"role": "tool", "tool_call_id": CALL, "content": PAID}]);
    let told = sent(world.shows(shown).await);
    settle(told, 200, r#"{"choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Done."}}]}"#).await;
    world.checkpoint("1", "told", Some("paid"), CALL);
    world
}

/// The model's message that orders the payment.
fn message(call: &str) -> serde_json::Value {
    let function = json!({"name": "transfer", "arguments": "{\"to\": \"alice\", \"amount\": 100}"});
    let calls = json!([{"id": call, "type": "function", "function": function}]);
    json!({"role": "assistant", "content": null, "tool_calls": calls})
}

/// Its whole answer.
fn order(call: &str) -> String {
    json!({"choices": [{"index": 0, "finish_reason": "tool_calls", "message": message(call)}]})
        .to_string()
}

fn process_with(store: &Path) -> (ProcessIdentity, Child) {
    let mut child = Command::new("/bin/sh")
        .args(["-c", "exec 7<\"$0\"; echo ready; read end"])
        .arg(store)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut says = BufReader::new(child.stdout.take().unwrap());
    says.read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");
    let stat = ProcDir::open(child.id()).unwrap().stat().unwrap();
    let identity = ProcessIdentity {
        tgid: child.id(),
        start_ns: stat.start_ticks * (1_000_000_000 / clock_ticks()),
    };
    (identity, child)
}

fn sent(admission: Admission) -> Box<dyn Ticket> {
    match admission {
        Admission::Forward(ticket) => ticket,
        Admission::Replay { effect, .. } => panic!("answered from {effect}"),
        Admission::Refuse(refusal) => panic!("{refusal:?}"),
    }
}

async fn settle(ticket: Box<dyn Ticket>, status: u16, body: &str) {
    let response = Response::Http(HttpResponse {
        status,
        headers: vec![Header::new("content-type", "application/json")],
        body: Body::whole(body.to_owned()),
        trailers: Vec::new(),
    });
    ticket.settle(Ending::Response(response)).await.unwrap();
}

fn refused(admission: Admission) -> RefusalCode {
    match admission {
        Admission::Refuse(refusal) => refusal.code,
        Admission::Replay { effect, .. } => panic!("answered from {effect}"),
        Admission::Forward(_) => panic!("it was sent"),
    }
}

fn replayed(admission: Admission) -> EffectId {
    match admission {
        Admission::Replay { effect, .. } => effect,
        Admission::Refuse(refusal) => panic!("{refusal:?}"),
        Admission::Forward(_) => panic!("it was sent"),
    }
}

impl World {
    fn call(&self, url: &str, body: String) -> ToolCall {
        ToolCall {
            at: super::now(),
            request: Request::Http(HttpRequest {
                method: "POST".into(),
                url: url.into(),
                headers: vec![Header::new("Content-Type", "application/json")],
                body: Body::whole(body),
                rpc: Vec::new(),
            }),
            origin: Origin {
                agent: "buyer".parse().unwrap(),
                incarnation: 1,
                process: self.process,
                exe: String::new(),
                argv: vec![],
                cwd: String::new(),
                uid: 0,
                connection: None,
                gaps: String::new(),
            },
        }
    }

    async fn asks(&self, words: &str) -> Admission {
        self.shows(json!([{"role": "user", "content": words}]))
            .await
    }

    /// A request to the model with this history.
    async fn shows(&self, messages: serde_json::Value) -> Admission {
        let tools = json!([{"type": "function", "function": {"name": "transfer", "parameters": {"type": "object"}}}]);
        let body = json!({"model": "m", "messages": messages, "tools": tools}).to_string();
        let call = self.call("https://llm.test/v1/chat/completions", body.clone());
        self.pipeline
            .admit_whole(call, Bytes::from(body), &Nobody)
            .await
    }

    async fn pays(&self, amount: u32, reference: &str) -> Admission {
        let body = json!({"to": "alice", "amount": amount, "reference": reference}).to_string();
        let call = self.call("https://bank.test/v1/transfers", body);
        self.pipeline.admit(call).await
    }

    /// It turns back: it asks its model what it had asked before, and is told to pay.
    async fn turns_back(&self, call: &str) {
        let asked = sent(self.asks("pay alice").await);
        settle(asked, 200, &order(call)).await;
    }

    /// It turns back, and pays again in other words.
    async fn again(&self) -> Admission {
        self.turns_back("call_9kQyEk8Dgw03leh5a591yVPz").await;
        self.pays(100, "7d793037-a076-4c1b-8b2e-5b4b5d7f6a10").await
    }

    /// Writes a checkpoint, made now.
    fn checkpoint(&self, thread: &str, name: &str, parent: Option<&str>, state: &str) {
        let db = rusqlite::Connection::open(&self.store).unwrap();
        // The time of a UUID of version 6, in 100 ns since 1582; the name makes up its end.
        let ticks = super::now().0 / 100 + 0x01b2_1dd2_1381_4000;
        let (high, mid, low) = (ticks >> 28, ticks >> 12 & 0xffff, ticks & 0xfff);
        let id = format!("{high:08x}-{mid:04x}-6{low:03x}-8000-{name}");
        let parent: Option<String> = parent.map(|name| {
            let end = format!("%-8000-{name}");
            let sql = "SELECT checkpoint_id FROM checkpoints WHERE checkpoint_id LIKE ?1";
            db.query_row(sql, [end], |row| row.get(0)).unwrap()
        });
        db.execute(
            "INSERT INTO checkpoints VALUES (?1, '', ?2, ?3, 'msgpack', ?4, NULL)",
            rusqlite::params![thread, id, parent, state.as_bytes()],
        )
        .unwrap();
    }

    /// What the branches of conversations that went back say of themselves.
    fn notes(&self) -> Vec<(Grade, String)> {
        let events = self.log.events.lock();
        let opened = events.iter().filter_map(|(seq, event)| {
            let is_one = matches!(event, Event::BranchOpened(b) if b.cause == Cause::Restore);
            is_one.then_some(BranchId(*seq))
        });
        let ids: Vec<BranchId> = opened.collect();
        self.pipeline.with_lineage(|l| {
            ids.iter()
                .filter_map(|id| l.branch(*id))
                .map(|b| (b.grade, b.note.clone()))
                .collect()
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_store_shows_is_certain_before_the_request_goes_on() {
    let world = world(READ).await;
    world.checkpoint("1", "again", Some("asked"), "pay");
    world.turns_back("call_4BA5IcsQZbKraGXy1EavbGP0").await;
    let [(Grade::Certain, note)] = &world.notes()[..] else {
        panic!("{:?}", world.notes());
    };
    assert!(
        note.contains("; certain because LangGraph's checkpoints of thread “1”"),
        "{note}"
    );
    // A different payment is stopped, an equal one is answered, once.
    let other = world
        .pays(999, "0cc175b9-c0f1-4b6a-831c-399e26977266")
        .await;
    assert_eq!(refused(other), RefusalCode::Diverged);
    replayed(
        world
            .pays(100, "92eb5ffe-e6ae-4fec-ad71-c777531578f7")
            .await,
    );
    // The model ordered it once: another one is an order that is carried out again, and no part of what
    // was forgotten.
    let once_more = world
        .pays(100, "4a8a08f0-9d37-4737-9564-9038408b5f33")
        .await;
    assert_eq!(refused(once_more), RefusalCode::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_writes_a_moment_later_counts_and_stays() {
    let world = world(READ).await;
    world.turns_back("call_4BA5IcsQZbKraGXy1EavbGP0").await;
    assert_eq!(world.notes()[0].0, Grade::Suspect);
    world.checkpoint("1", "again", Some("asked"), "pay");
    replayed(
        world
            .pays(100, "92eb5ffe-e6ae-4fec-ad71-c777531578f7")
            .await,
    );
    let before = world.notes();
    assert_eq!(before[0].0, Grade::Certain);
    // And after a restart of the daemon.
    let mut world = world;
    world.pipeline = start(&world.log, READ).await;
    assert_eq!(world.notes(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_agent_writes_while_its_call_is_held_lets_it_go() {
    let world = world(PATIENT).await;
    let written = async {
        let mut changed = world.pipeline.0.changed.subscribe();
        while world.pipeline.0.holds.lock().open().is_empty() {
            changed.changed().await.unwrap();
        }
        world.checkpoint("1", "again", Some("asked"), "pay");
    };
    let both = async { tokio::join!(world.again(), written) };
    let (again, ()) = tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .unwrap();
    replayed(again);
    assert!(world.pipeline.0.holds.lock().open().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_who_asks_anew_is_held_as_before() {
    let world = world(READ).await;
    world.checkpoint("2", "another", None, "pay");
    assert_eq!(refused(world.again().await), RefusalCode::Held);
    assert_eq!(world.notes()[0].0, Grade::Suspect);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_that_turned_back_earlier_says_nothing_of_this_one() {
    let world = world(READ).await;
    // It went back, ordered again, and got the record.
    world.checkpoint("1", "again", Some("asked"), "pay");
    world.turns_back("call_4BA5IcsQZbKraGXy1EavbGP0").await;
    replayed(
        world
            .pays(100, "92eb5ffe-e6ae-4fec-ad71-c777531578f7")
            .await,
    );
    assert_eq!(world.notes().len(), 1);
    // Somebody asks for it anew, before anything of that was written.
    assert_eq!(refused(world.again().await), RefusalCode::Held);
    let notes = world.notes();
    assert_eq!((notes.len(), notes[1].0), (2, Grade::Suspect), "{notes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_reads_a_store_where_policy_says_so() {
    let world = world(NOT_READ).await;
    world.checkpoint("1", "again", Some("asked"), "pay");
    assert_eq!(refused(world.again().await), RefusalCode::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_hangs_holds_nobody_up() {
    let world = world(READ).await;
    world.checkpoint("1", "again", Some("asked"), "pay");
    let reading = world.pipeline.0.suspicions.reading.clone();
    // As a look would that waits for a file system.
    let _hangs = reading.acquire_owned().await.unwrap();
    let again = tokio::time::timeout(Duration::from_secs(60), world.again());
    assert_eq!(refused(again.await.unwrap()), RefusalCode::Held);
}
