//! Rewinds as agents make them, to the call.

use serde_json::json;

use super::agent::{Agent, Reach, check, fresh, pay};
use super::wire::{ALL, Client, Message, ToolResult};
use super::world::{Who, World};
use crate::lineage::conversation::{Absence, Evidence, Finding, Known, Shown};
use crate::words::{BranchId, EffectId, ForkPoint, Grade, Seq};

/// Asks, checks, pays, is told so. Gives the agent, a checkpoint after the check, and the payment.
fn paid(world: &mut World, client: Client) -> (Agent, Agent, EffectId) {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let (first, checked) = agent.round(world, Some("I will check"), &[check()]);
    assert!(first.opens());
    let checkpoint = agent.clone();
    let (second, effects) = agent.round(world, Some("I will pay"), &[pay("alice", 100)]);
    assert!(second.is_quiet(), "{:?}", second.findings);
    assert_eq!((checked.len(), effects.len()), (1, 1));
    let done = agent.talk(world, "Done.");
    assert!(done.is_quiet(), "{:?}", done.findings);
    (agent, checkpoint, effects[0])
}

#[test]
fn cut_after_the_check_and_resumed_under_a_new_session() {
    for client in ALL {
        let mut world = World::new();
        let (_, checkpoint, payment) = paid(&mut world, client);
        let mut restored = checkpoint.restored(11).under_new_session();
        // A coding agent tells itself that it was interrupted.
        if client == Client::ClaudeCode {
            restored.say("Continue from where you left off.");
            let answer = restored.answer_of(Some("No response requested."), &[]);
            restored.history.push(Message::Model(answer));
        }
        if client != Client::ResponsesChained {
            restored.say("continue");
        }
        let asked = restored.ask(&mut world);
        let rewind = asked
            .rewind()
            .unwrap_or_else(|| panic!("{client:?}: {:?}", asked.findings));
        assert_eq!(rewind.forgotten, [payment], "{client:?}");
        assert_eq!(rewind.remembered.len(), 1, "{client:?}");
        assert!(rewind.exact, "{client:?}");
        let ForkPoint::At(at) = rewind.fork_point else {
            panic!("{client:?}: {:?}", rewind.fork_point)
        };
        assert!(rewind.remembered[0].0 <= at && at < payment.0, "{client:?}");
        let expected = if client.has_ids() {
            Grade::Certain
        } else {
            Grade::Suspect
        };
        assert_eq!(rewind.grade, expected, "{client:?}");
        assert_eq!(asked.absent, [(payment, Absence::Forgotten)]);
        // It is said once; the new line goes on in its own branch.
        let answer = restored.answer_of(None, &[pay("alice", 100)]);
        restored.take(&mut world, &asked, &answer);
        let text = restored.run_replayed(&mut world, &answer.calls[0], payment);
        restored.history.push(Message::Results(vec![ToolResult {
            id: answer.calls[0].id.clone(),
            name: answer.calls[0].name.clone(),
            text,
            is_error: false,
        }]));
        let next = restored.ask(&mut world);
        assert_eq!(
            next.findings,
            [Finding::Continues {
                thread: rewind.thread,
                branch: asked.branch.unwrap()
            }],
            "{client:?}"
        );
        world.check();
    }
}

#[test]
fn killed_in_flight_the_dangling_call_dropped() {
    for client in [
        Client::ClaudeCode,
        Client::AnthropicSdk,
        Client::ChatSdk,
        Client::Codex,
    ] {
        for keeps_words in [true, false] {
            let mut world = World::new();
            let mut agent = Agent::new(client, 10);
            agent.say("pay alice 100");
            agent.round(&mut world, Some("I will check"), &[check()]);
            let before = agent.clone();
            let asked = agent.ask(&mut world);
            let answer = agent.answer_of(Some("I will pay"), &[pay("alice", 100)]);
            agent.take(&mut world, &asked, &answer);
            let (payment, _) = agent.run(&mut world, &answer.calls[0]);
            // Killed. The history that was saved has lost the call, or the whole turn.
            let mut resumed = before.restored(11);
            if keeps_words {
                let mut kept = answer.clone();
                kept.calls.clear();
                resumed.history.push(Message::Model(kept));
            }
            resumed.say("continue");
            let asked = resumed.ask(&mut world);
            let rewind = asked
                .rewind()
                .unwrap_or_else(|| panic!("{client:?}: {:?}", asked.findings));
            assert_eq!(rewind.forgotten, [payment], "{client:?}");
            assert_eq!(rewind.grade, Grade::Certain);
            assert_eq!(rewind.remembered.len(), 1);
            world.check();
        }
    }
}

#[test]
fn killed_in_flight_on_the_very_first_call() {
    // No id is left in the history: the session ties it.
    for client in [Client::ClaudeCode, Client::Codex] {
        let mut world = World::new();
        let mut agent = Agent::new(client, 10);
        agent.say("pay alice 100");
        let before = agent.clone();
        let asked = agent.ask(&mut world);
        let answer = agent.answer_of(None, &[pay("alice", 100)]);
        agent.take(&mut world, &asked, &answer);
        let (payment, _) = agent.run(&mut world, &answer.calls[0]);
        let mut resumed = before.restored(11);
        resumed.say("continue");
        let asked = resumed.ask(&mut world);
        let rewind = asked.rewind().unwrap();
        assert_eq!(rewind.forgotten, [payment]);
        assert_eq!(rewind.last_remembered, None);
        assert_eq!(rewind.grade, Grade::Certain);
        assert!(rewind.evidence.contains(&Evidence::Session));
        world.check();
    }
}

#[test]
fn resumed_at_an_earlier_message_and_split_off() {
    // `--resume-session-at … --fork-session` onto a tool result, and onto words alone.
    for onto_words in [false, true] {
        let mut world = World::new();
        let (live, checkpoint, payment) = paid(&mut world, Client::ClaudeCode);
        let mut forked = checkpoint.restored(11).under_new_session();
        if onto_words {
            forked.history.truncate(1);
            let words = forked.answer_of(Some("I will check"), &[]);
            forked.history.push(Message::Model(words));
        }
        forked.say("go on");
        let asked = forked.ask(&mut world);
        let rewind = asked.rewind().unwrap();
        assert!(rewind.forgotten.contains(&payment));
        let grade = if onto_words {
            // Nothing but words is left.
            Grade::Suspect
        } else {
            Grade::Certain
        };
        assert_eq!(rewind.grade, grade);
        // The one that was left alone goes on undisturbed, and so does the other, in turns.
        let mut live = live;
        for _ in 0..3 {
            live.say("and now?");
            assert!(live.talk(&mut world, "Nothing.").is_quiet());
            assert!(forked.talk(&mut world, "Well.").is_quiet() || onto_words);
            forked.say("and now?");
        }
        world.check();
    }
}

#[test]
fn a_rollout_cut_between_call_and_output_says_aborted() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::Codex, 10);
    agent.say("pay alice 100");
    agent.round(&mut world, None, &[check()]);
    let (_, payment) = agent.round(&mut world, None, &[pay("alice", 100)]);
    agent.talk(&mut world, "Done.");
    let mut resumed = agent.restored(11);
    resumed.history.pop();
    let Some(Message::Results(results)) = resumed.history.last_mut() else {
        panic!()
    };
    results[0].text = "aborted".into();
    results[0].is_error = true;
    resumed.say("continue");
    let asked = resumed.ask(&mut world);
    let lost = asked.lost();
    assert_eq!(lost.len(), 1, "{:?}", asked.findings);
    assert_eq!(lost[0].effects, payment);
    assert_eq!(lost[0].shown, Shown::Aborted);
    assert!(asked.rewind().is_none());
    // Said once.
    assert!(resumed.talk(&mut world, "Hm.").is_quiet());
    world.check();
}

#[test]
fn killed_in_flight_the_history_says_aborted_and_the_effect_came_through() {
    for client in [
        Client::Codex,
        Client::ResponsesFull,
        Client::ChatSdk,
        Client::AnthropicSdk,
    ] {
        let mut world = World::new();
        let mut agent = Agent::new(client, 10);
        agent.say("pay alice 100");
        agent.round(&mut world, None, &[check()]);
        let asked = agent.ask(&mut world);
        let answer = agent.answer_of(None, &[pay("alice", 100)]);
        agent.take(&mut world, &asked, &answer);
        let (payment, _) = agent.run(&mut world, &answer.calls[0]);
        let mut resumed = agent.restored(11);
        resumed.history.push(Message::Results(vec![ToolResult {
            id: answer.calls[0].id.clone(),
            name: answer.calls[0].name.clone(),
            text: "[Request interrupted by user for tool use]".into(),
            is_error: true,
        }]));
        resumed.say("continue");
        let asked = resumed.ask(&mut world);
        assert_eq!(asked.lost()[0].effects, [payment], "{client:?}");
        assert_eq!(asked.absent, [(payment, Absence::Lost)]);
        world.check();
    }
}

#[test]
fn a_call_without_any_result_is_lost() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.say("pay alice 100");
    let asked = agent.ask(&mut world);
    let answer = agent.answer_of(None, &[pay("alice", 100)]);
    agent.take(&mut world, &asked, &answer);
    let (payment, _) = agent.run(&mut world, &answer.calls[0]);
    let mut resumed = agent.restored(11);
    resumed.say("continue");
    let asked = resumed.ask(&mut world);
    assert_eq!(asked.lost()[0].effects, [payment]);
    assert_eq!(asked.lost()[0].shown, Shown::Missing);
}

#[test]
fn a_different_result_is_lost_and_a_rewritten_one_is_not() {
    for (shown, is_lost) in [
        (
            r#"{"status":"paid","reference":"someone-elses","txn":"t9"}"#,
            true,
        ),
        ("", true),
    ] {
        let mut world = World::new();
        let mut agent = Agent::new(Client::AnthropicSdk, 10);
        agent.say("pay alice 100");
        let asked = agent.ask(&mut world);
        let answer = agent.answer_of(None, &[pay("alice", 100)]);
        agent.take(&mut world, &asked, &answer);
        let (payment, true_text) = agent.run(&mut world, &answer.calls[0]);
        let result = |text: &str| {
            Message::Results(vec![ToolResult {
                id: answer.calls[0].id.clone(),
                name: answer.calls[0].name.clone(),
                text: text.into(),
                is_error: false,
            }])
        };
        let mut liar = agent.restored(11);
        liar.history.push(result(shown));
        let asked = liar.ask(&mut world);
        assert_eq!(
            asked.lost().first().map(|l| l.effects.clone()),
            is_lost.then(|| vec![payment])
        );
        let compact = serde_json::from_str::<serde_json::Value>(&true_text)
            .unwrap()
            .to_string();
        let mut honest = agent.restored(12);
        honest.history.push(result(&compact));
        assert!(honest.ask(&mut world).is_quiet());
    }
}

#[test]
fn an_agent_that_resumes_with_its_whole_history_is_no_rewind() {
    for client in ALL {
        let mut world = World::new();
        let (agent, _, first) = paid(&mut world, client);
        let mut resumed = agent.restored(11).under_new_session();
        resumed.say("pay alice again");
        let (asked, effects) = resumed.round(&mut world, Some("I will pay"), &[pay("alice", 100)]);
        assert!(asked.is_quiet(), "{client:?}: {:?}", asked.findings);
        assert!(!asked.opens(), "{client:?}: it is the same thread");
        assert_ne!(effects[0], first);
        assert!(resumed.talk(&mut world, "Done.").is_quiet(), "{client:?}");
        world.check();
    }
}

#[test]
fn whatever_agent_continues_a_session_it_is_the_same_thread() {
    let mut world = World::new();
    let (_, checkpoint, payment) = paid(&mut world, Client::ClaudeCode);
    let mut other = checkpoint.restored(11);
    other.who = Who::new("somebody-else", 77);
    other.say("continue");
    let asked = other.ask(&mut world);
    assert_eq!(asked.rewind().unwrap().forgotten, [payment]);
}

#[test]
fn chained_three_times() {
    for client in [
        Client::ClaudeCode,
        Client::Codex,
        Client::ChatSdk,
        Client::Gemini,
    ] {
        let mut world = World::new();
        let (_, checkpoint, payment) = paid(&mut world, client);
        let mut last_branch = None;
        for round in 0..3_u32 {
            let mut restored = checkpoint.restored(20 + round).under_new_session();
            restored.say("continue");
            let asked = restored.ask(&mut world);
            let rewind = asked
                .rewind()
                .unwrap_or_else(|| panic!("{client:?} {round}: {:?}", asked.findings));
            assert_eq!(rewind.forgotten, [payment], "{client:?} {round}");
            if let Some(branch) = last_branch {
                assert_eq!(rewind.parent, branch, "{client:?} {round}");
            }
            last_branch = asked.branch;
            // The fence answers from the record: the effect enters this timeline.
            let answer = restored.answer_of(None, &[pay("alice", 100)]);
            restored.take(&mut world, &asked, &answer);
            let text = restored.run_replayed(&mut world, &answer.calls[0], payment);
            restored.history.push(Message::Results(vec![ToolResult {
                id: answer.calls[0].id.clone(),
                name: answer.calls[0].name.clone(),
                text,
                is_error: false,
            }]));
            assert!(
                restored.talk(&mut world, "Done.").is_quiet(),
                "{client:?} {round}"
            );
        }
        world.check();
    }
}

#[test]
fn a_second_payment_in_the_new_timeline_is_fenced_with_the_first() {
    let mut world = World::new();
    let (_, checkpoint, payment) = paid(&mut world, Client::ClaudeCode);
    let mut second = checkpoint.restored(11);
    second.say("pay bob instead");
    let (asked, other) = second.round(&mut world, None, &[pay("bob", 5)]);
    assert_eq!(asked.rewind().unwrap().forgotten, [payment]);
    assert!(second.talk(&mut world, "Done.").is_quiet());
    let mut third = checkpoint.restored(12);
    third.say("continue");
    let asked = third.ask(&mut world);
    let rewind = asked.rewind().unwrap();
    assert_eq!(rewind.forgotten, [payment, other[0]]);
    assert_eq!(asked.absent.len(), 2);
    world.check();
}

#[test]
fn back_to_before_the_first_call_with_nothing_but_words() {
    // Time travel to before the model call, a crash with nothing saved, `pop_item`, `rewind`,
    // `from_dict`: the very first request once more.
    for client in [
        Client::AnthropicSdk,
        Client::ChatSdk,
        Client::ResponsesFull,
        Client::ResponsesChained,
        Client::Ollama,
        Client::Gemini,
    ] {
        for same_process in [true, false] {
            let mut world = World::new();
            let mut agent = Agent::new(client, 10);
            agent.reach = Reach::Http;
            agent.say("pay alice 100");
            let start = agent.clone();
            let (_, effects) = agent.round(&mut world, None, &[pay("alice", 100)]);
            agent.talk(&mut world, "Done.");
            let again = if same_process {
                start
            } else {
                start.restored(11)
            };
            let asked = again.ask(&mut world);
            let rewind = asked
                .rewind()
                .unwrap_or_else(|| panic!("{client:?}: {:?}", asked.findings));
            assert_eq!(rewind.forgotten, effects, "{client:?}");
            assert_eq!(rewind.grade, Grade::Suspect, "{client:?}");
            assert!(rewind.evidence.contains(&Evidence::SameRequest));
            assert_eq!(rewind.last_remembered, None);
            world.check();
        }
    }
}

#[test]
fn back_to_a_point_with_ids_in_the_same_process_is_certain() {
    for client in [
        Client::AnthropicSdk,
        Client::ChatSdk,
        Client::ResponsesFull,
        Client::ResponsesChained,
    ] {
        let mut world = World::new();
        let mut agent = Agent::new(client, 10);
        agent.reach = Reach::Http;
        agent.say("pay alice 100");
        agent.round(&mut world, None, &[check()]);
        let saved = agent.clone();
        let (_, effects) = agent.round(&mut world, None, &[pay("alice", 100)]);
        agent.talk(&mut world, "Done.");
        let asked = saved.ask(&mut world);
        let rewind = asked.rewind().unwrap();
        assert_eq!(
            (&rewind.forgotten, rewind.grade),
            (&effects, Grade::Certain),
            "{client:?}"
        );
        assert!(
            rewind.evidence.contains(&Evidence::SameRequest),
            "{client:?}"
        );
    }
}

#[test]
fn the_same_process_goes_back_by_itself() {
    // A person rewinds inside the running program and asks for something else.
    let mut world = World::new();
    let (agent, checkpoint, payment) = paid(&mut world, Client::ClaudeCode);
    let mut back = checkpoint;
    assert_eq!(back.who, agent.who);
    back.say("no, pay bob");
    let asked = back.ask(&mut world);
    assert_eq!(asked.rewind().unwrap().forgotten, [payment]);
}

#[test]
fn one_of_two_parallel_calls_is_cut_off() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ClaudeCode, 10);
    agent.say("pay alice and bob");
    let (_, effects) = agent.round(&mut world, None, &[pay("alice", 1), pay("bob", 2)]);
    agent.talk(&mut world, "Done.");
    let mut cut = agent.restored(11).under_new_session();
    cut.history.pop();
    if let Some(Message::Results(results)) = cut.history.last_mut() {
        results.truncate(1);
    }
    if let Some(Message::Model(answer)) = cut.history.get_mut(1) {
        answer.calls.truncate(1);
    }
    cut.say("continue");
    let asked = cut.ask(&mut world);
    let rewind = asked.rewind().unwrap();
    assert_eq!(rewind.remembered, [effects[0]]);
    assert_eq!(rewind.forgotten, [effects[1]]);
}

#[test]
fn an_effect_that_ends_up_out_of_order_needs_the_lists() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ClaudeCode, 10);
    agent.say("pay alice and bob");
    let asked = agent.ask(&mut world);
    let answer = agent.answer_of(None, &[pay("alice", 1), pay("bob", 2)]);
    agent.take(&mut world, &asked, &answer);
    // Bob's payment gets through first.
    let (bob, _) = agent.run(&mut world, &answer.calls[1]);
    let (alice, text) = agent.run(&mut world, &answer.calls[0]);
    assert!(bob < alice);
    let mut cut = agent.restored(11);
    if let Some(Message::Model(answer)) = cut.history.last_mut() {
        answer.calls.truncate(1);
    }
    cut.history.push(Message::Results(vec![ToolResult {
        id: answer.calls[0].id.clone(),
        name: answer.calls[0].name.clone(),
        text,
        is_error: false,
    }]));
    let asked = cut.ask(&mut world);
    let rewind = asked.rewind().unwrap();
    assert_eq!(
        (&rewind.remembered[..], &rewind.forgotten[..]),
        (&[alice][..], &[bob][..])
    );
    assert!(!rewind.exact, "no position tells them apart");
}

#[test]
fn what_a_sub_agent_did_is_forgotten_with_the_call_that_started_it() {
    let mut world = World::new();
    let mut main = Agent::new(Client::ClaudeCode, 10);
    main.dress.tools.push("Agent".into());
    main.say("have alice paid");
    main.round(&mut world, None, &[check()]);
    let saved = main.clone();
    let asked = main.ask(&mut world);
    let mut answer = main.answer_of(
        None,
        &[("pay", json!({"prompt": "pay alice 100 now please"}))],
    );
    answer.calls[0].name = "Agent".into();
    main.take(&mut world, &asked, &answer);

    let mut child = Agent::new(Client::ClaudeCode, 10);
    child.dress.session.clone_from(&main.dress.session);
    child.dress.child = Some("a0ff965169cd07011".into());
    child.say("pay alice 100 now please");
    let (first, effects) = child.round(&mut world, None, &[pay("alice", 100)]);
    assert!(first.is_quiet() && !first.opens(), "{:?}", first.findings);
    assert!(child.talk(&mut world, "Paid.").is_quiet());

    // The parent goes on with what the child said: nothing is lost.
    let mut goes_on = main.clone();
    goes_on.history.push(Message::Results(vec![ToolResult {
        id: answer.calls[0].id.clone(),
        name: "Agent".into(),
        text: "Paid.".into(),
        is_error: false,
    }]));
    assert!(goes_on.ask(&mut world).is_quiet());

    // Interrupted: the parent does not know what the child did.
    let mut interrupted = main.restored(11);
    interrupted.history.push(Message::Results(vec![ToolResult {
        id: answer.calls[0].id.clone(),
        name: "Agent".into(),
        text: "[Request interrupted by user for tool use]".into(),
        is_error: true,
    }]));
    let asked = interrupted.ask(&mut world);
    assert_eq!(asked.lost()[0].effects, effects);

    // Cut before the call: forgotten with it.
    let mut cut = saved.restored(12).under_new_session();
    cut.say("continue");
    let asked = cut.ask(&mut world);
    assert_eq!(asked.rewind().unwrap().forgotten, effects);
    world.check();
}

#[test]
fn an_effect_that_comes_after_the_line_went_on_is_noticed_late() {
    // Killed before its command ran; the command outlives it.
    let mut world = World::new();
    let mut agent = Agent::new(Client::ClaudeCode, 10);
    agent.say("pay alice 100");
    agent.round(&mut world, None, &[check()]);
    let before = agent.clone();
    let asked = agent.ask(&mut world);
    let answer = agent.answer_of(None, &[pay("alice", 100)]);
    agent.take(&mut world, &asked, &answer);
    let mut resumed = before.restored(11);
    resumed.say("continue");
    let asked = resumed.ask(&mut world);
    assert!(
        asked.is_quiet(),
        "nothing has happened yet: {:?}",
        asked.findings
    );
    let (payment, _) = agent.run(&mut world, &answer.calls[0]);
    assert_eq!(world.late.len(), 1);
    assert_eq!(world.late[0].forgotten, [payment]);
    // The same stream broken off and asked again, in the same process.
    let mut world = World::new();
    let mut agent = Agent::new(Client::ClaudeCode, 10);
    agent.say("pay alice 100");
    let again = agent.clone();
    let asked = agent.ask(&mut world);
    let answer = agent.answer_of(None, &[pay("alice", 100)]);
    let bytes = super::wire::reply(&agent.dress, &answer);
    let text = String::from_utf8(bytes).unwrap();
    let (broken, _) = text.split_once("event: message_delta").unwrap();
    world.answer(
        &agent.who,
        &asked,
        Client::ClaudeCode,
        broken.as_bytes(),
        50,
    );
    assert!(again.ask(&mut world).is_quiet());
    let (payment, _) = agent.run(&mut world, &answer.calls[0]);
    assert_eq!(world.late.len(), 1);
    assert_eq!(world.late[0].forgotten, [payment]);
    world.check();
}

#[test]
fn a_call_that_another_life_executes_again_is_a_restore() {
    // A framework that resumes at the checkpoint between model and tool asks no model first.
    let mut world = World::new();
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.reach = Reach::Http;
    agent.say("pay alice 100");
    let asked = agent.ask(&mut world);
    let answer = agent.answer_of(None, &[pay("alice", 100)]);
    agent.take(&mut world, &asked, &answer);
    let (payment, _) = agent.run(&mut world, &answer.calls[0]);
    let restored = agent.restored(11);
    restored.run(&mut world, &answer.calls[0]);
    assert_eq!(world.again.len(), 1);
    assert_eq!(world.again[0].forgotten, [payment]);
    assert_eq!(world.again[0].grade, Grade::Certain);
    // The same life may call twice within one tool.
    let mut world = World::new();
    let asked = agent_asks(&mut world);
    let (agent, answer) = asked;
    agent.run(&mut world, &answer.calls[0]);
    agent.run(&mut world, &answer.calls[0]);
    assert!(world.again.is_empty());
}

fn agent_asks(world: &mut World) -> (Agent, super::wire::Answer) {
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.reach = Reach::Http;
    agent.say("pay alice 100");
    let asked = agent.ask(world);
    let answer = agent.answer_of(None, &[pay("alice", 100)]);
    agent.take(world, &asked, &answer);
    (agent, answer)
}

#[test]
fn a_rewind_behind_a_compaction() {
    let mut world = World::new();
    let (agent, _, first) = paid(&mut world, Client::ClaudeCode);
    let mut compacted = agent.clone();
    compacted.history.clear();
    compacted
        .say("This session is being continued from a previous conversation that ran out of context. Alice was paid.")
        .say("go on");
    let asked = compacted.ask(&mut world);
    let before = asked.compacted();
    assert_eq!(before.last(), Some(&first));
    compacted.round(&mut world, None, &[check()]);
    let saved = compacted.clone();
    let (quiet, second) = compacted.round(&mut world, None, &[pay("bob", 7)]);
    assert!(quiet.is_quiet(), "{:?}", quiet.findings);
    compacted.talk(&mut world, "Done.");
    let mut restored = saved.restored(11);
    restored.say("continue");
    let asked = restored.ask(&mut world);
    let rewind = asked.rewind().unwrap();
    assert_eq!(rewind.forgotten, second);
    let gone = before.iter().map(|e| (*e, Absence::Compacted));
    let gone: Vec<_> = gone.chain([(second[0], Absence::Forgotten)]).collect();
    assert_eq!(asked.absent, gone);
    world.check();
}

#[test]
fn back_to_before_a_compaction() {
    let mut world = World::new();
    let (agent, checkpoint, first) = paid(&mut world, Client::ClaudeCode);
    let mut compacted = agent;
    compacted.history.clear();
    compacted.say(
        "This session is being continued from a previous conversation that ran out of context.",
    );
    compacted.round(&mut world, None, &[pay("bob", 7)]);
    compacted.talk(&mut world, "Done.");
    let mut restored = checkpoint.restored(11);
    restored.say("continue");
    let rewind = restored.ask(&mut world).rewind().cloned().unwrap();
    assert_eq!(rewind.forgotten.len(), 2);
    assert!(rewind.forgotten.contains(&first));
}

#[test]
fn effects_in_doubt_and_failed() {
    for (known, shown, is_lost) in [
        (Known::InDoubt, "upstream request timed out", true),
        (Known::InDoubt, "", true),
        (Known::Nothing, "connection refused", false),
        (Known::Running, "moved to the background", false),
    ] {
        let mut world = World::new();
        let mut agent = Agent::new(Client::AnthropicSdk, 10);
        agent.say("pay alice 100");
        let asked = agent.ask(&mut world);
        let answer = agent.answer_of(None, &[pay("alice", 100)]);
        agent.take(&mut world, &asked, &answer);
        let (request, ..) = agent.request_of(&answer.calls[0]);
        world.effect(&agent.who, &request, known.clone());
        agent.history.push(Message::Results(vec![ToolResult {
            id: answer.calls[0].id.clone(),
            name: answer.calls[0].name.clone(),
            text: shown.into(),
            is_error: true,
        }]));
        let asked = agent.ask(&mut world);
        assert_eq!(!asked.lost().is_empty(), is_lost, "{known:?} {shown:?}");
    }
}

#[test]
fn suspicion_ends_with_its_window_and_needs_the_words_that_caused_the_effect() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.reach = Reach::Http;
    agent.say("pay alice 100");
    let start = agent.clone();
    agent.round(&mut world, None, &[pay("alice", 100)]);
    agent.talk(&mut world, "Done.");
    world.wait(16);
    assert!(start.restored(11).ask(&mut world).opens());

    let mut world = World::new();
    let mut agent = Agent::new(Client::ChatSdk, 10);
    agent.reach = Reach::Http;
    agent.say("hello");
    agent.talk(&mut world, "How can I help?");
    agent.say("pay alice 100");
    let before = agent.clone();
    agent.round(&mut world, None, &[pay("alice", 100)]);
    let mut stranger = Agent::new(Client::ChatSdk, 10);
    stranger.say("hello");
    assert!(stranger.ask(&mut world).is_quiet());
    assert!(before.ask(&mut world).rewind().is_some());
    let _ = fresh("");
}

#[test]
fn a_provider_held_history_goes_back_by_its_response_id() {
    let mut world = World::new();
    let mut agent = Agent::new(Client::ResponsesChained, 10);
    agent.say("pay alice 100");
    agent.round(&mut world, None, &[check()]);
    let saved = agent.clone();
    let (_, effects) = agent.round(&mut world, None, &[pay("alice", 100)]);
    agent.talk(&mut world, "Done.");
    let asked = saved.restored(11).ask(&mut world);
    let rewind = asked.rewind().unwrap();
    assert_eq!(rewind.forgotten, effects);
    assert!(rewind.evidence.contains(&Evidence::PreviousResponse));
    assert_eq!(rewind.grade, Grade::Certain);
}

#[test]
fn a_tool_called_with_the_persons_own_words_is_no_sub_agent() {
    for client in ALL {
        let mut world = World::new();
        let mut agent = Agent::new(client, 10);
        agent.reach = Reach::Http;
        let words = "pay alice 100 for the rent";
        agent.say(words);
        let start = agent.clone();
        let asked = agent.ask(&mut world);
        let order = json!({"order": words, "to": "alice", "amount": 100});
        let answer = agent.answer_of(None, &[("pay", order)]);
        agent.take(&mut world, &asked, &answer);
        let (payment, _) = agent.run(&mut world, &answer.calls[0]);
        let asked = start.restored(11).ask(&mut world);
        let rewind = asked
            .rewind()
            .unwrap_or_else(|| panic!("{client:?}: {:?}", asked.findings));
        assert_eq!(rewind.forgotten, [payment], "{client:?}");
    }
}

#[test]
fn a_restore_that_was_told_of_is_not_found_again() {
    let mut world = World::new();
    let (_, checkpoint, payment) = paid(&mut world, Client::ClaudeCode);
    let thread = world.all.threads().next().unwrap().id;
    let fork = ForkPoint::At(Seq(payment.0.0 - 1));
    let branch = BranchId(Seq(900));
    let moved = world.all.told(thread, branch, fork).unwrap();
    world.all.apply(&moved);
    world.deltas.push(moved);
    let mut restored = checkpoint.restored(11);
    restored.say("continue");
    let asked = restored.ask(&mut world);
    assert_eq!(asked.findings, [Finding::Continues { thread, branch }]);
    assert_eq!(asked.absent, [(payment, Absence::Forgotten)]);
    // Told too little: the conversation knows better.
    let mut earlier = checkpoint.restored(12);
    earlier.history.truncate(1);
    earlier.say("continue");
    assert_eq!(earlier.ask(&mut world).rewind().unwrap().forgotten.len(), 2);
    world.check();
}
