//! To which turn an effect is attached, and how sure that is.

use serde_json::json;

use super::agent::{Agent, Reach, check, pay};
use super::wire::{ALL, Client, Message, ToolResult};
use super::world::{Who, World};
use crate::lineage::conversation::{Confidence, Finding, Known};
use crate::words::{
    Body, EffectId, ExecRequest, HttpRequest, ProcessIdentity, Request, Seq, ThreadId,
};

/// An agent that was told to make these calls and has not made them.
fn told(
    world: &mut World,
    client: Client,
    calls: &[(&str, serde_json::Value)],
) -> (Agent, super::wire::Answer) {
    let mut agent = Agent::new(client, 10);
    agent.say("do it");
    let asked = agent.ask(world);
    let answer = agent.answer_of(None, calls);
    agent.take(world, &asked, &answer);
    (agent, answer)
}

fn http(body: &str) -> Request {
    Request::Http(HttpRequest {
        method: "POST".into(),
        url: "https://bank.test/pay?via=app".into(),
        headers: Vec::new(),
        rpc: Vec::new(),
        body: Body::whole(body.to_owned()),
    })
}

fn exec(argv: &[&str]) -> Request {
    Request::Exec(ExecRequest {
        argv: argv.iter().map(|a| (*a).to_owned()).collect(),
        cwd: "/".into(),
        env: Vec::new(),
        stdin: None,
    })
}

fn call_of(world: &World, effect: EffectId) -> Option<u16> {
    world.placed[&effect].at.call
}

#[test]
fn calls_that_surely_caused_an_effect_are_told_and_no_others() {
    let mut world = World::new();
    let (agent, answer) = told(
        &mut world,
        Client::ClaudeCode,
        &[pay("alice", 1), pay("bob", 2)],
    );
    let (first, _) = agent.run(&mut world, &answer.calls[0]);
    let (second, _) = agent.run(&mut world, &answer.calls[1]);
    // A trace that is sent meanwhile.
    let trace = Request::Http(HttpRequest {
        method: "POST".into(),
        url: "https://traces.test/v1/spans".into(),
        headers: Vec::new(),
        rpc: Vec::new(),
        body: Body::whole("spans"),
    });
    let loose = world.effect(&agent.who, &trace, Known::Nothing);
    let thread = world.placed[&first].at.thread;
    let all = [first, second, loose];
    let known = world.all.calls_of(thread, &all);
    let ids: Vec<String> = answer.calls.iter().map(|c| c.id.clone()).collect();
    let told: Vec<_> = known
        .iter()
        .map(|(effect, id)| (*effect, id.as_str().to_owned()))
        .collect();
    assert_eq!(told, [(first, ids[0].clone()), (second, ids[1].clone())]);
    assert_eq!(world.all.calls_of(thread, &[second]).len(), 1);
    assert!(world.all.calls_of(ThreadId(Seq(999)), &all).is_empty());
}

#[test]
fn by_id_where_the_agent_passes_it() {
    for client in [Client::ClaudeCode, Client::Codex] {
        let mut world = World::new();
        let (agent, answer) = told(&mut world, client, &[pay("alice", 1), pay("bob", 2)]);
        let (second, _) = agent.run(&mut world, &answer.calls[1]);
        let (first, _) = agent.run(&mut world, &answer.calls[0]);
        assert_eq!(world.confidence(first), Some(Confidence::Id));
        assert_eq!(
            (call_of(&world, first), call_of(&world, second)),
            (Some(0), Some(1))
        );
    }
}

#[test]
fn by_name_and_arguments() {
    for client in ALL {
        let mut world = World::new();
        let (mut agent, answer) = told(
            &mut world,
            client,
            &[pay("alice", 1), pay("bob", 2), check()],
        );
        agent.passes_ids = false;
        for (at, confidence) in [
            (1, Confidence::Arguments),
            (0, Confidence::Arguments),
            (2, Confidence::Arguments),
        ] {
            let (effect, _) = agent.run(&mut world, &answer.calls[at]);
            assert_eq!(world.confidence(effect), Some(confidence), "{client:?}");
            assert_eq!(
                call_of(&world, effect),
                u16::try_from(at).ok(),
                "{client:?}"
            );
        }
    }
}

#[test]
fn the_same_call_twice_at_once_goes_to_both() {
    let mut world = World::new();
    let same = || ("pay", json!({"to": "alice", "amount": 1}));
    let (mut agent, answer) = told(&mut world, Client::ChatSdk, &[same(), same()]);
    agent.passes_ids = false;
    let (a, _) = agent.run(&mut world, &answer.calls[0]);
    let (b, _) = agent.run(&mut world, &answer.calls[1]);
    assert_eq!((call_of(&world, a), call_of(&world, b)), (Some(0), Some(1)));
}

#[test]
fn by_name_when_the_tool_server_sees_other_arguments() {
    let mut world = World::new();
    let (mut agent, answer) = told(&mut world, Client::ChatSdk, &[check(), pay("alice", 1)]);
    agent.passes_ids = false;
    let mut call = answer.calls[1].clone();
    call.arguments = json!({"to": "alice", "amount": 1, "added": "by the client"});
    let (effect, _) = agent.run(&mut world, &call);
    assert_eq!(world.confidence(effect), Some(Confidence::Name));
    assert_eq!(call_of(&world, effect), Some(1));
}

#[test]
fn a_request_inside_a_tool_by_its_values() {
    let mut world = World::new();
    let (agent, _) = told(
        &mut world,
        Client::Gemini,
        &[
            ("pay", json!({"to": "alice", "amount": 100})),
            ("pay", json!({"to": "bob", "amount": 7})),
        ],
    );
    for (body, call) in [
        (r#"{"recipient":"bob","cents":7,"memo":"x"}"#, 1),
        ("recipient=alice&amount=100", 0),
    ] {
        let effect = world.effect(&agent.who, &http(body), Known::Running);
        assert_eq!(world.confidence(effect), Some(Confidence::Values), "{body}");
        assert_eq!(call_of(&world, effect), Some(call), "{body}");
    }
}

#[test]
fn a_command_inside_the_shell_line_that_ran_it() {
    let mut world = World::new();
    let shell = |line: &str| ("Bash", json!({"command": line, "description": "run it"}));
    let (agent, _) = told(
        &mut world,
        Client::ClaudeCode,
        &[
            shell("ls -l"),
            shell("cd repo && git push origin main 2>&1 | tail -3"),
        ],
    );
    let child = ProcessIdentity {
        tgid: 77,
        start_ns: 5,
    };
    let effect = world.effect_from(
        &agent.who,
        &[child, agent.who.process],
        &exec(&["/usr/bin/git", "push", "origin", "main", "2>", "1"]),
        Known::Running,
    );
    // The redirection is the shell's: the line is not found, but the only process that talks is.
    assert_eq!(world.confidence(effect), Some(Confidence::Time));
    let (agent, _) = told(
        &mut world,
        Client::ClaudeCode,
        &[shell("ls -l"), shell("cd repo; git push origin main")],
    );
    let effect = world.effect(
        &agent.who,
        &exec(&["git", "push", "origin", "main"]),
        Known::Running,
    );
    assert_eq!(world.confidence(effect), Some(Confidence::Values));
    assert_eq!(call_of(&world, effect), Some(1));
}

#[test]
fn by_the_only_open_call_else_by_time_and_process() {
    let mut world = World::new();
    let (mut agent, answer) = told(
        &mut world,
        Client::ChatSdk,
        &[("report", json!({"month": "may"}))],
    );
    let effect = world.effect(&agent.who, &http("{}"), Known::Running);
    assert_eq!(world.confidence(effect), Some(Confidence::OnlyCall));
    agent.history.push(Message::Results(vec![ToolResult {
        id: answer.calls[0].id.clone(),
        name: answer.calls[0].name.clone(),
        text: "sent".into(),
        is_error: false,
    }]));
    agent.talk(&mut world, "Done.");
    // Nothing is open any more.
    let effect = world.effect(&agent.who, &http("{}"), Known::Running);
    assert_eq!(world.confidence(effect), Some(Confidence::Time));
    assert_eq!(call_of(&world, effect), None);
}

#[test]
fn an_agent_that_talks_to_no_model_has_no_place() {
    let mut world = World::new();
    let effect = world.effect(&Who::new("quiet", 5), &http("{}"), Known::Running);
    assert_eq!(world.confidence(effect), None);
    told(&mut world, Client::ChatSdk, &[check()]);
    let effect = world.effect(&Who::new("quiet", 5), &http("{}"), Known::Running);
    assert_eq!(
        world.confidence(effect),
        None,
        "another agent's conversation is not its own"
    );
}

#[test]
fn the_nearest_process_that_talks_is_meant() {
    let mut world = World::new();
    let mut one = Agent::new(Client::ChatSdk, 10);
    one.say("a");
    let asked = one.ask(&mut world);
    let answer = one.answer_of(None, &[("run", json!({"x": "one"}))]);
    one.take(&mut world, &asked, &answer);
    let mut two = Agent::new(Client::ChatSdk, 20);
    two.say("b");
    let asked = two.ask(&mut world);
    let answer = two.answer_of(None, &[("run", json!({"x": "two"}))]);
    two.take(&mut world, &asked, &answer);
    let child = ProcessIdentity {
        tgid: 99,
        start_ns: 9,
    };
    for agent in [&one, &two] {
        let effect = world.effect_from(
            &agent.who,
            &[child, agent.who.process],
            &http("{}"),
            Known::Running,
        );
        let place = &world.placed[&effect].at;
        let strand = world
            .all
            .thread(place.thread)
            .unwrap()
            .strand(place.strand)
            .unwrap();
        assert_eq!(strand.process, agent.who.process);
    }
}

#[test]
fn an_effect_is_there_before_the_stream_ends() {
    // A client runs a tool as soon as its block is whole.
    let mut world = World::new();
    let mut agent = Agent::new(Client::ClaudeCode, 10);
    agent.say("pay alice");
    let asked = agent.ask(&mut world);
    let answer = agent.answer_of(Some("I pay"), &[pay("alice", 1), pay("bob", 2)]);
    let bytes = super::wire::reply(&agent.dress, &answer);
    let text = String::from_utf8(bytes).unwrap();
    let half = text.match_indices("content_block_stop").nth(2).unwrap().0;
    let end = text[half..].find("\n\n").unwrap() + half + 2;
    let mut reader = crate::lineage::conversation::ReplyReader::new(
        world.marker.clone(),
        Client::ClaudeCode.format(),
        200,
    );
    assert!(reader.push(&text.as_bytes()[..end]));
    let seen = crate::lineage::conversation::Seen {
        agent: &agent.who.agent,
        process: agent.who.process,
        incarnation: 1,
        at: crate::words::Seq(world.seq),
        now: crate::words::Timestamp(world.now),
    };
    let delta = world
        .all
        .observe_reply(&asked.exchange, &reader.so_far(), &seen)
        .unwrap();
    world.all.apply(&delta);
    world.deltas.push(delta);
    let (effect, _) = agent.run(&mut world, &answer.calls[0]);
    assert_eq!(world.confidence(effect), Some(Confidence::Id));
    reader.push(&text.as_bytes()[end..]);
    let delta = world
        .all
        .observe_reply(&asked.exchange, &reader.finish(), &seen)
        .unwrap();
    world.all.apply(&delta);
    world.deltas.push(delta);
    // The effect is still there, and the second call as well.
    let place = &world.placed[&effect].at;
    let turn = world
        .all
        .thread(place.thread)
        .unwrap()
        .turn(place.turn)
        .unwrap();
    assert_eq!(turn.calls[0].ties.len(), 1);
    assert_eq!(turn.calls.len(), 2);
    world.check();
}

#[test]
fn effects_of_a_thread_say_which_branch_their_line_is_in() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ClaudeCode, 10);
    agent.say("pay alice");
    agent.round(&mut world, None, &[check()]);
    let saved = agent.clone();
    let (_, first) = agent.round(&mut world, None, &[pay("alice", 1)]);
    agent.talk(&mut world, "Done.");
    let mut restored = saved.restored(11).under_new_session();
    let asked = restored.ask(&mut world);
    let answer = restored.answer_of(None, &[pay("carol", 1)]);
    restored.take(&mut world, &asked, &answer);
    let (second, _) = restored.run(&mut world, &answer.calls[0]);
    let (one, two) = (&world.placed[&first[0]].at, &world.placed[&second].at);
    assert_eq!(one.thread, two.thread);
    assert_ne!(one.branch, two.branch);
    assert_eq!(Some(two.branch), asked.branch);
}

#[test]
fn a_line_that_goes_on_does_not_know_what_another_did_meanwhile() {
    let mut world = World::new();
    let mut live = Agent::new(Client::ClaudeCode, 10);
    live.say("pay alice");
    live.round(&mut world, None, &[check()]);
    let saved = live.clone();
    live.round(&mut world, None, &[pay("alice", 1)]);
    assert!(live.talk(&mut world, "Done.").is_quiet());
    let mut restored = saved.restored(11).under_new_session();
    restored.reach = Reach::Mcp;
    restored.say("pay bob instead");
    let (_, effects) = restored.round(&mut world, None, &[pay("bob", 5)]);
    live.say("and what about bob?");
    let asked = live.ask(&mut world);
    let rewind = asked.rewind().unwrap();
    assert_eq!(rewind.forgotten, effects);
    assert_eq!(rewind.grade, crate::words::Grade::Suspect);
    // Said once.
    assert!(live.talk(&mut world, "Nothing.").is_quiet());
    live.say("well");
    assert!(matches!(
        live.talk(&mut world, "Well.").findings[..],
        [Finding::Continues { .. }]
    ));
    world.check();
}

#[test]
fn a_command_is_the_call_itself_and_its_output_the_outcome() {
    for (shown, is_lost) in [
        (None, false),
        (Some("something else entirely"), true),
        (Some("aborted"), true),
    ] {
        let mut world = World::new();
        let mut agent = Agent::new(Client::Codex, 10);
        agent.reach = Reach::Exec;
        agent.passes_ids = false;
        agent.say("push it");
        let asked = agent.ask(&mut world);
        let run = ("shell", json!({"command": "git push origin main"}));
        let answer = agent.answer_of(None, &[run]);
        agent.take(&mut world, &asked, &answer);
        let (effect, text) = agent.run(&mut world, &answer.calls[0]);
        assert_eq!(world.confidence(effect), Some(Confidence::Values));
        agent.history.push(Message::Results(vec![ToolResult {
            id: answer.calls[0].id.clone(),
            name: answer.calls[0].name.clone(),
            text: shown.map_or(text, str::to_owned),
            is_error: false,
        }]));
        let asked = agent.ask(&mut world);
        assert_eq!(
            !asked.lost().is_empty(),
            is_lost,
            "{shown:?}: {:?}",
            asked.findings
        );
    }
}

#[test]
fn an_effect_that_comes_before_anything_of_its_answer_was_seen() {
    // The client acts on a stream that is read here only at its end.
    for client in [Client::ClaudeCode, Client::Codex, Client::ChatSdk] {
        let mut world = World::new();
        let mut agent = Agent::new(client, 10);
        agent.say("pay alice");
        agent.round(&mut world, None, &[check()]);
        let saved = agent.clone();
        let asked = agent.ask(&mut world);
        let answer = agent.answer_of(Some("I pay"), &[pay("bob", 2), pay("alice", 1)]);
        let (effect, text) = agent.run(&mut world, &answer.calls[1]);
        let bytes = super::wire::reply(&agent.dress, &answer);
        let killed_before_the_end = saved.restored(11);
        let mut other = World::new();
        other.all = world.all.clone();
        other.log.clone_from(&world.log);
        (other.seq, other.now) = (world.seq, world.now);
        let found = killed_before_the_end.ask(&mut other);
        assert_eq!(found.rewind().unwrap().forgotten, [effect], "{client:?}");

        world.answer(&agent.who, &asked, client, &bytes, 1_000_000);
        let place = &world.placed[&effect].at;
        let turn = world
            .all
            .thread(place.thread)
            .unwrap()
            .turn(place.turn)
            .unwrap();
        assert_eq!(turn.calls[1].ties.len(), 1, "{client:?}");
        assert!(turn.calls[1].ties[0].confidence >= Confidence::Arguments);
        assert!(turn.loose.is_empty());
        agent.history.push(Message::Model(answer.clone()));
        agent.since = Some((answer.response.clone(), agent.history.len()));
        let (_, other_text) = agent.run(&mut world, &answer.calls[0]);
        let results = [other_text, text]
            .into_iter()
            .zip(&answer.calls)
            .map(|(text, call)| ToolResult {
                id: call.id.clone(),
                name: call.name.clone(),
                text,
                is_error: false,
            });
        agent.history.push(Message::Results(results.collect()));
        assert!(agent.ask(&mut world).is_quiet(), "{client:?}");
        world.check();
    }
}

#[test]
fn what_only_happened_at_the_same_time_makes_a_rewind_suspect() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.say("pay alice");
    agent.round(&mut world, None, &[check()]);
    let saved = agent.clone();
    agent.talk(&mut world, "Shall I?");
    world.effect(&agent.who, &http(r#"{"trace": "x"}"#), Known::Running);
    let asked = saved.ask(&mut world);
    assert_eq!(asked.rewind().unwrap().grade, crate::words::Grade::Suspect);
}
