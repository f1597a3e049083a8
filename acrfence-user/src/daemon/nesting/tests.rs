//! What happens inside a call stands or falls with it. The log is the model in memory, the tree of
//! processes a table.

use arc_swap::ArcSwap;

use super::*;
use crate::boundary::Arbiter as _;
use crate::daemon::Keys;
use crate::effect::model::Model;
use crate::effect::{EffectLog, Event};
use crate::lineage::{Lineage, RestoreTarget};
use crate::policy::Config;
use crate::words::*;

/// The agent, a server that it talks to, and somebody whom the server started.
const AGENT: u32 = 1;
const SERVER: u32 = 10;
const HELPER: u32 = 20;

struct World {
    log: Arc<Model>,
    pipeline: Pipeline,
    agent: AgentName,
    thread: ThreadId,
}

fn process(tgid: u32) -> ProcessIdentity {
    ProcessIdentity {
        tgid,
        start_ns: tgid.into(),
    }
}

fn body(text: &str) -> Body {
    Body::whole(text.as_bytes().to_vec())
}

async fn pipeline(log: &Arc<Model>) -> Pipeline {
    let config = "[fence]\nhold_timeout = \"50ms\"";
    let keys = Keys {
        credentials: [1; 32],
        values: [2; 32],
    };
    let config = Arc::new(ArcSwap::from_pointee(Config::parse(config).unwrap()));
    let log: Arc<dyn EffectLog> = log.clone();
    let pipeline = Pipeline::start(log, config, keys, None).await.unwrap();
    pipeline.sees_processes(Arc::new(|of| match of.tgid {
        SERVER => Some(process(AGENT)),
        HELPER => Some(process(SERVER)),
        _ => None,
    }));
    pipeline
}

impl World {
    async fn new() -> Self {
        let log = Arc::new(Model::new());
        let pipeline = pipeline(&log).await;
        let agent: AgentName = "buyer".parse().unwrap();
        let began = Event::IncarnationBegan(Incarnation {
            agent: agent.clone(),
            number: 1,
            cause: IncarnationCause::Attach,
            root: process(AGENT),
            boot_id: String::new(),
            uid: 0,
            exe: String::new(),
            argv: vec![],
            at: super::super::now(),
        });
        pipeline.write(began).await.unwrap();
        let thread = pipeline.ensure_thread(&agent).await.unwrap();
        Self {
            log,
            pipeline,
            agent,
            thread,
        }
    }

    fn by(&self, tgid: u32, request: Request) -> ToolCall {
        ToolCall {
            at: super::super::now(),
            request,
            origin: Origin {
                agent: self.agent.clone(),
                incarnation: 1,
                process: process(tgid),
                exe: String::new(),
                argv: vec![],
                cwd: "/".into(),
                uid: 0,
                connection: None,
                gaps: String::new(),
            },
        }
    }

    /// A tool call of the agent that the server carries out.
    async fn tool(&self, amount: u32) -> Admission {
        let request = Request::Mcp(McpRequest {
            server: "bank-server".into(),
            name: "transfer".into(),
            arguments: format!(r#"{{"to":"alice","amount":{amount}}}"#),
            meta: None,
            extra: None,
            headers: Vec::new(),
        });
        let call = self.by(AGENT, request);
        self.pipeline.admit_inside(call, process(SERVER)).await
    }

    /// A payment over HTTP.
    async fn post(&self, tgid: u32, amount: u32) -> Admission {
        self.post_with(tgid, amount, None).await
    }

    async fn post_with(&self, tgid: u32, amount: u32, token: Option<&str>) -> Admission {
        let token = token.map_or_else(String::new, |token| format!(r#","token":"{token}""#));
        let request = Request::Http(HttpRequest {
            method: "POST".into(),
            url: "https://bank.example/v1/transfers".into(),
            headers: vec![Header::new("content-type", "application/json")],
            body: body(&format!(r#"{{"to":"alice","amount":{amount}{token}}}"#)),
            rpc: Vec::new(),
        });
        self.pipeline.admit(self.by(tgid, request)).await
    }

    async fn restored(&self, fork: bool) {
        self.pipeline
            .open_branches::<LogError>(&self.agent, |lineage| {
                let at = super::super::now();
                Ok(if fork {
                    let parent = lineage.current(self.thread).unwrap();
                    vec![Lineage::forked(parent, "", at)]
                } else {
                    let to = RestoreTarget::Position(Seq(3));
                    lineage
                        .restored_whole(&self.agent, &to, Grade::Certain, "", at)
                        .unwrap()
                })
            })
            .await
            .unwrap();
    }

    fn effect(&self, id: EffectId) -> Effect {
        self.log.effect(id).unwrap().unwrap()
    }
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

fn http(status: u16) -> Ending {
    Ending::Response(Response::Http(HttpResponse {
        status,
        headers: Vec::new(),
        body: body(r#"{"id":"tr_1"}"#),
        trailers: Vec::new(),
    }))
}

fn said(is_error: bool, answer: &str) -> Ending {
    Ending::Response(Response::Mcp(McpResponse {
        is_result: true,
        answer: answer.into(),
        is_error,
    }))
}

fn broken() -> Ending {
    Ending::Broken {
        why: "the server died".into(),
        partial: None,
    }
}

async fn end(ticket: Box<dyn Ticket>, ending: Ending) -> EffectId {
    let effect = ticket.effect().unwrap();
    ticket.settle(ending).await.unwrap();
    effect
}

/// A tool call that pays inside, both done.
async fn paid(world: &World, amount: u32) -> (EffectId, EffectId) {
    let outer = sent(world.tool(amount).await);
    let inner = sent(world.post(HELPER, amount).await);
    let inner = end(inner, http(201)).await;
    (end(outer, said(false, "{}")).await, inner)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_descendant_does_meanwhile_is_a_child() {
    let world = World::new().await;
    let (outer, inner) = paid(&world, 5).await;
    assert_eq!(world.effect(inner).outer().collect::<Vec<_>>(), [outer]);
    assert_eq!(world.effect(outer).parent, None);
    let children = world.pipeline.children(&world.effect(outer)).unwrap();
    assert_eq!(
        children.iter().map(|row| row.id).collect::<Vec<_>>(),
        [inner]
    );
    // What the server does by itself, and what the agent does beside it, is their own.
    let own = end(sent(world.post(SERVER, 5).await), http(201)).await;
    assert_eq!(world.effect(own).parent, None);
    let outer = sent(world.tool(6).await);
    let beside = end(sent(world.post(AGENT, 6).await), http(201)).await;
    assert_eq!(world.effect(beside).parent, None);
    end(outer, said(false, "{}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_in_flight_all_are_named() {
    let world = World::new().await;
    let (one, two) = (sent(world.tool(1).await), sent(world.tool(2).await));
    let (first, second) = (one.effect().unwrap(), two.effect().unwrap());
    let inner = end(sent(world.post(HELPER, 1).await), http(201)).await;
    assert_eq!(
        world.effect(inner).outer().collect::<Vec<_>>(),
        [second, first]
    );
    end(one, said(false, "{}")).await;
    let inner = end(sent(world.post(SERVER, 2).await), http(201)).await;
    assert_eq!(world.effect(inner).outer().collect::<Vec<_>>(), [second]);
    end(two, said(false, "{}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_fenced_with_its_outer_effect_and_consumed_with_it() {
    let world = World::new().await;
    let (outer, inner) = paid(&world, 5).await;
    world.restored(false).await;
    // Another way to the same payment is still the same payment.
    let refusal = refused(world.post(AGENT, 7).await);
    assert_eq!(refusal.effect, Some(inner), "{refusal:?}");
    assert_eq!(replayed(world.tool(5).await), outer);
    // With it, what it did inside has happened in this timeline too.
    end(sent(world.post(AGENT, 5).await), http(201)).await;
    world.restored(false).await;
    assert_eq!(replayed(world.post(AGENT, 5).await), inner);
    assert_eq!(replayed(world.tool(5).await), outer);
}

#[tokio::test(flavor = "multi_thread")]
async fn inside_a_call_that_runs_nothing_is_decided_again() {
    let world = World::new().await;
    let (_, inner) = paid(&world, 5).await;
    world.restored(false).await;
    refused(world.tool(7).await);
    world.restored(true).await;
    let outer = sent(world.tool(7).await);
    // Neither another one than the child of before, nor an equal one.
    for amount in [7, 5] {
        let again = end(sent(world.post(HELPER, amount).await), http(201)).await;
        assert_ne!(again, inner);
        assert_eq!(world.effect(again).parent, outer.effect());
    }
    end(outer, said(false, "{}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_in_doubt_with_its_outer_effect() {
    let world = World::new().await;
    let outer = sent(world.tool(5).await);
    let inner = end(sent(world.post(HELPER, 5).await), http(201)).await;
    let outer = end(outer, broken()).await;
    assert_eq!(world.effect(outer).status, Status::InDoubt);
    let held = |refusal: Refusal| {
        assert_eq!(refusal.code, RefusalCode::InDoubt, "{refusal:?}");
        assert_eq!(refusal.effect, Some(inner));
    };
    held(refused(world.post(AGENT, 5).await));
    // Also for the daemon after this one.
    let next = World {
        pipeline: pipeline(&world.log).await,
        log: world.log.clone(),
        agent: world.agent.clone(),
        thread: world.thread,
    };
    held(refused(next.post(AGENT, 5).await));
    // Somebody found out that it happened. The agent does not know yet, whichever way it asks.
    let happened = Response::Mcp(McpResponse {
        is_result: true,
        answer: "{}".into(),
        is_error: false,
    });
    next.pipeline
        .resolve(outer, Resolution::Happened(happened), "uid 0".into())
        .await
        .unwrap();
    assert_eq!(replayed(next.post(AGENT, 5).await), inner);
    assert_eq!(replayed(next.tool(5).await), outer);
    sent(next.post(AGENT, 5).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_ticket_is_lost_leaves_its_children_in_doubt() {
    let world = World::new().await;
    let outer = sent(world.tool(5).await);
    let id = outer.effect().unwrap();
    end(sent(world.post(HELPER, 5).await), http(201)).await;
    drop(outer);
    assert_eq!(world.effect(id).status, Status::InDoubt);
    assert_eq!(
        refused(world.post(AGENT, 5).await).code,
        RefusalCode::InDoubt
    );
    // It runs no more.
    let own = end(sent(world.post(SERVER, 6).await), http(201)).await;
    assert_eq!(world.effect(own).parent, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn i_failed_is_believed_only_when_nothing_went_out() {
    let world = World::new().await;
    for (inner, expected) in [
        (http(201), Status::InDoubt),
        (http(503), Status::InDoubt),
        (broken(), Status::InDoubt),
        (http(422), Status::Failed),
    ] {
        let outer = sent(world.tool(5).await);
        end(sent(world.post(HELPER, 5).await), inner).await;
        let outer = end(outer, said(true, "{}")).await;
        let known = world.effect(outer);
        assert_eq!(known.status, expected, "{known:?}");
        if let Some(Outcome::InDoubt { why, response }) = known.outcome {
            assert!(why.contains("went out") && response.is_some(), "{why}");
            // Not to be asked about again in the next round.
            world
                .pipeline
                .resolve(outer, Resolution::DidNotHappen, "uid 0".into())
                .await
                .unwrap();
        }
    }
    // It asks first, and then it acts.
    let outer = sent(world.tool(6).await);
    end(sent(world.post(HELPER, 6).await), http(201)).await;
    let asks = said(false, r#"{"resultType":"input_required"}"#);
    let outer = end(outer, asks).await;
    assert_eq!(world.effect(outer).status, Status::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_still_runs_may_have_gone_out() {
    let world = World::new().await;
    let outer = sent(world.tool(5).await);
    let inner = sent(world.post(HELPER, 5).await);
    // The server gave up waiting, the bank did not.
    let outer = end(outer, said(true, "{}")).await;
    assert_eq!(world.effect(outer).status, Status::InDoubt);
    let inner = end(inner, http(201)).await;
    assert_eq!(world.effect(inner).outer().collect::<Vec<_>>(), [outer]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_spent_credential_opens_nothing_inside_either() {
    let token = "apr_9f2c7be1d4a04c55b1e1";
    let world = World::new().await;
    let asked = sent(world.post(AGENT, 1).await);
    let issued = Ending::Response(Response::Http(HttpResponse {
        status: 201,
        headers: vec![Header::new("content-type", "application/json")],
        body: body(&format!(r#"{{"token":"{token}"}}"#)),
        trailers: Vec::new(),
    }));
    end(asked, issued).await;
    let outer = sent(world.tool(5).await);
    let inner = end(
        sent(world.post_with(HELPER, 5, Some(token)).await),
        http(201),
    )
    .await;
    end(outer, said(false, "{}")).await;
    world.restored(false).await;
    world.restored(true).await;
    let outer = sent(world.tool(7).await);
    let refusal = refused(world.post_with(HELPER, 7, Some(token)).await);
    assert_eq!(refusal.code, RefusalCode::CredentialConsumed, "{refusal:?}");
    assert_eq!(refusal.effect, Some(inner));
    end(outer, said(false, "{}")).await;
}
