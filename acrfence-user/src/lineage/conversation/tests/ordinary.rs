//! Ordinary conversations: none of them is a rewind.

use serde_json::{Value, json};

use super::agent::{Agent, Reach, check, fresh, pay};
use super::wire::{ALL, Client, Message, ToolResult, reply};
use super::world::{Asked, Who, World};
use crate::lineage::conversation::{Finding, Known};
use crate::words::{Body, EffectId, HttpRequest, Request};

/// What one conversation was found to be, request by request.
type Told = Vec<Asked>;

/// A scenario, the clients it is played with, and whether its history is shortened on the way.
struct Scenario {
    name: &'static str,
    clients: &'static [Client],
    shortened: bool,
    play: fn(&mut World, Client) -> Told,
}

const WITH_IDS: &[Client] = &[
    Client::ClaudeCode,
    Client::AnthropicSdk,
    Client::Codex,
    Client::ResponsesFull,
    Client::ChatSdk,
];
const FULL_HISTORY: &[Client] = &[
    Client::ClaudeCode,
    Client::AnthropicSdk,
    Client::Codex,
    Client::ResponsesFull,
    Client::ChatSdk,
    Client::Ollama,
    Client::Gemini,
];
const SESSIONS: &[Client] = &[Client::ClaudeCode, Client::Codex];
const PLAIN: &[Client] = &[
    Client::AnthropicSdk,
    Client::ResponsesFull,
    Client::ChatSdk,
    Client::Ollama,
    Client::Gemini,
];

const fn quiet(
    name: &'static str,
    clients: &'static [Client],
    play: fn(&mut World, Client) -> Told,
) -> Scenario {
    Scenario {
        name,
        clients,
        shortened: false,
        play,
    }
}

const fn shortened(
    name: &'static str,
    clients: &'static [Client],
    play: fn(&mut World, Client) -> Told,
) -> Scenario {
    Scenario {
        name,
        clients,
        shortened: true,
        play,
    }
}

const SCENARIOS: &[Scenario] = &[
    quiet("a long conversation with many payments", &ALL, long),
    quiet("polling the same tool again and again", &ALL, polling),
    quiet("whole answers instead of streams", &ALL, not_streamed),
    quiet("a pause of days", &ALL, pause),
    quiet("resumed with its whole history, twice", &ALL, resumed_whole),
    quiet("the first request sent again", &ALL, first_again),
    quiet("a later request sent again", &ALL, later_again),
    quiet("provider errors in between", &ALL, provider_errors),
    quiet("a stream that breaks before any call", &ALL, broken_stream),
    quiet(
        "sub-agents that the client names, same task",
        SESSIONS,
        named_children,
    ),
    quiet(
        "sub-agents known by their task alone",
        FULL_HISTORY,
        children_by_task,
    ),
    quiet(
        "sub-agents that share the parent's history",
        WITH_IDS,
        children_with_history,
    ),
    quiet(
        "parallel workers from one prefix",
        WITH_IDS,
        parallel_workers,
    ),
    quiet(
        "a second conversation, same opening, nothing done yet",
        &ALL,
        second_before_effects,
    ),
    quiet(
        "a second conversation that only begins the same way",
        &ALL,
        second_differs,
    ),
    quiet("many people say hello to one server", PLAIN, many_hellos),
    quiet("the same opening from another agent", &ALL, another_agent),
    quiet(
        "a scheduler, every hour, new process",
        &ALL,
        hourly_new_process,
    ),
    quiet(
        "a scheduler, every hour, same process",
        &ALL,
        hourly_same_process,
    ),
    quiet("a title asked from the opening", FULL_HISTORY, title),
    quiet(
        "a summary asked from the whole history",
        FULL_HISTORY,
        summary_aside,
    ),
    quiet(
        "a suggestion that is dropped again",
        FULL_HISTORY,
        suggestion,
    ),
    quiet("a probe with no history at all", FULL_HISTORY, probe),
    quiet("cache markers and reminders move", FULL_HISTORY, reminders),
    quiet(
        "reminders inside messages and results",
        FULL_HISTORY,
        reminders_inside,
    ),
    quiet("parallel results in another order", FULL_HISTORY, reordered),
    quiet(
        "parallel calls in another order",
        FULL_HISTORY,
        reordered_calls,
    ),
    quiet(
        "the system prompt and the tools are edited",
        &ALL,
        edited_system,
    ),
    quiet(
        "the last question is asked in other words",
        FULL_HISTORY,
        edited_question,
    ),
    quiet("traces sent while the model answers", &ALL, traces),
    quiet(
        "an answer without effects is written anew",
        FULL_HISTORY,
        regenerated,
    ),
    quiet(
        "arguments written in another form",
        FULL_HISTORY,
        rewritten_arguments,
    ),
    quiet("tools that tell in their own words", &ALL, own_words),
    quiet(
        "numbered call ids, the same in every conversation",
        &[Client::ChatSdk, Client::AnthropicSdk],
        weak_ids,
    ),
    quiet("a call that fails, and another", &ALL, failing_call),
    quiet("white space and blocks change", FULL_HISTORY, white_space),
    shortened("compacted to a summary", FULL_HISTORY, compacted),
    shortened(
        "compacted by the client, opening kept",
        &[Client::Codex],
        compacted_window,
    ),
    shortened(
        "compacted to a summary and the last turns",
        WITH_IDS,
        compacted_with_tail,
    ),
    shortened("a window that slides", FULL_HISTORY, sliding),
    shortened("old results cleared", WITH_IDS, cleared),
    shortened(
        "a summary in the program's own words",
        FULL_HISTORY,
        summary_by_lines,
    ),
];

#[test]
fn no_ordinary_conversation_is_a_rewind() {
    let mut conversations = 0;
    let mut wrong = Vec::new();
    for scenario in SCENARIOS {
        for client in scenario.clients {
            let mut world = World::new();
            let told = (scenario.play)(&mut world, *client);
            conversations += 1;
            world.check();
            let mut compactions = 0;
            for (at, asked) in told.iter().enumerate() {
                for finding in &asked.findings {
                    match finding {
                        Finding::Rewind(_) | Finding::LostOutcome { .. } => wrong.push(format!(
                            "{} / {client:?} / request {at}: {finding:?}",
                            scenario.name
                        )),
                        Finding::Compacted { .. } if !scenario.shortened => wrong.push(format!(
                            "{} / {client:?} / request {at}: {finding:?}",
                            scenario.name
                        )),
                        Finding::Compacted { .. } => compactions += 1,
                        _ => {}
                    }
                }
            }
            if !world.late.is_empty() || !world.again.is_empty() {
                wrong.push(format!("{} / {client:?}: late or again", scenario.name));
            }
            if scenario.shortened && compactions == 0 {
                wrong.push(format!(
                    "{} / {client:?}: not seen as shortened",
                    scenario.name
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    assert!(conversations >= 40, "{conversations}");
}

/// How many threads there are, for scenarios that say so.
fn threads(world: &World) -> usize {
    world.all.threads().count()
}

fn long(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    let mut told = Vec::new();
    for n in 0..6 {
        agent.say(&format!("pay person {n}"));
        told.push(agent.round(world, Some("I will check"), &[check()]).0);
        told.push(agent.round(world, Some("I will pay"), &[pay("alice", n)]).0);
        told.push(agent.talk(world, "Done."));
    }
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn polling(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("wait until it is there, then pay");
    let mut told = Vec::new();
    for _ in 0..5 {
        told.push(agent.round(world, Some("Still waiting"), &[check()]).0);
    }
    told.push(agent.round(world, None, &[pay("alice", 1)]).0);
    told.push(agent.round(world, None, &[check()]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn not_streamed(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.dress.stream = false;
    agent.piece = 100_000;
    agent.say("pay alice");
    let mut told = vec![
        agent
            .round(world, Some("I check"), &[check(), pay("bob", 2)])
            .0,
    ];
    told.push(agent.round(world, Some("I pay"), &[pay("alice", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn pause(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice");
    let mut told = vec![agent.round(world, None, &[pay("alice", 1)]).0];
    told.push(agent.talk(world, "Done."));
    world.wait(3 * 24 * 60);
    agent.say("and bob");
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn resumed_whole(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice");
    let mut told = vec![agent.round(world, None, &[pay("alice", 1)]).0];
    told.push(agent.talk(world, "Done."));
    for pid in [11, 12] {
        agent = agent.restored(pid).under_new_session();
        agent.say("pay alice once more");
        told.push(agent.round(world, None, &[pay("alice", 1)]).0);
        told.push(agent.talk(world, "Done."));
    }
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn first_again(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice");
    let mut told = vec![agent.ask(world), agent.ask(world)];
    told.push(agent.round(world, None, &[check()]).0);
    told.push(agent.round(world, None, &[pay("alice", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn later_again(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice");
    let mut told = vec![agent.round(world, None, &[pay("alice", 1)]).0];
    // Timed out twice.
    told.extend([agent.ask(world), agent.ask(world)]);
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.extend([agent.ask(world), agent.ask(world)]);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn provider_errors(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice");
    let mut told = Vec::new();
    for calls in [vec![check()], vec![pay("alice", 1)], vec![]] {
        for status in [529, 500, 429] {
            let asked = agent.ask(world);
            let error =
                br#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#;
            world.answer_with(&agent.who, &asked, client, status, error, 20);
            told.push(asked);
        }
        told.push(agent.round(world, Some("Well"), &calls).0);
    }
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn broken_stream(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice");
    let mut told = Vec::new();
    for n in 0..3 {
        let asked = agent.ask(world);
        let answer = agent.answer_of(Some("I will see what can be done"), &[pay("alice", n)]);
        let bytes = reply(&agent.dress, &answer);
        world.answer(&agent.who, &asked, client, &bytes[..bytes.len() / 5], 16);
        told.push(asked);
        told.push(agent.round(world, Some("I pay"), &[pay("alice", n)]).0);
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

/// A parent whose last answer starts these tasks; the calls are not run.
fn parent_of(
    world: &mut World,
    client: Client,
    tasks: &[&str],
) -> (Agent, super::wire::Answer, Told) {
    let mut parent = Agent::new(client, 10);
    parent.dress.tools.push("Agent".into());
    parent.say("have people paid");
    let mut told = vec![parent.round(world, None, &[pay("zoe", 3)]).0];
    let asked = parent.ask(world);
    let calls: Vec<(&str, Value)> = tasks
        .iter()
        .map(|task| ("Agent", json!({"description": "sub", "prompt": task})))
        .collect();
    let mut answer = parent.answer_of(Some("I delegate"), &calls);
    for call in &mut answer.calls {
        call.name = "Agent".into();
    }
    parent.take(world, &asked, &answer);
    told.push(asked);
    (parent, answer, told)
}

fn results_of(answer: &super::wire::Answer, text: &str) -> Message {
    Message::Results(
        answer
            .calls
            .iter()
            .map(|call| ToolResult {
                id: call.id.clone(),
                name: call.name.clone(),
                text: text.into(),
                is_error: false,
            })
            .collect(),
    )
}

fn named_children(world: &mut World, client: Client) -> Told {
    let task = "pay bob 5, whatever it takes";
    let (mut parent, answer, mut told) = parent_of(world, client, &[task, task, task]);
    let mut children = Vec::new();
    for n in 0..3 {
        let mut child = Agent::new(client, 10);
        child.dress.session.clone_from(&parent.dress.session);
        child.dress.child = Some(fresh("child-"));
        child.dress.parent = Some(parent.dress.session.clone());
        child.say(task);
        // One pays before the next is even started.
        told.push(child.round(world, None, &[pay("bob", n)]).0);
        children.push(child);
    }
    for child in &mut children {
        told.push(child.talk(world, "Paid."));
    }
    parent.history.push(results_of(&answer, "Paid."));
    told.push(parent.talk(world, "All done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn children_by_task(world: &mut World, client: Client) -> Told {
    let tasks = ["pay bob 5 and tell me", "pay carol 6 and tell me"];
    let (mut parent, answer, mut told) = parent_of(world, client, &tasks);
    for task in tasks {
        let mut child = Agent::new(client, 10);
        if client.has_session() {
            child.dress.session.clone_from(&parent.dress.session);
        }
        child.say(task);
        told.push(child.round(world, None, &[pay("bob", 5)]).0);
        told.push(child.round(world, None, &[check()]).0);
        told.push(child.talk(world, "Paid."));
    }
    parent.history.push(results_of(&answer, "Paid."));
    told.push(parent.talk(world, "All done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn children_with_history(world: &mut World, client: Client) -> Told {
    // Each takes over all that its parent knows, and its own task.
    let tasks = ["now pay bob 5 please", "now pay carol 6 please"];
    let (mut parent, answer, mut told) = parent_of(world, client, &tasks);
    for task in tasks {
        let mut child = parent.clone();
        child
            .history
            .push(results_of(&answer, "started in the background"));
        child.say(task);
        told.push(child.round(world, None, &[pay("bob", 5)]).0);
        told.push(child.talk(world, "Paid."));
    }
    parent.history.push(results_of(&answer, "Paid."));
    told.push(parent.talk(world, "All done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn parallel_workers(world: &mut World, client: Client) -> Told {
    let mut base = Agent::new(client, 10);
    base.say("here is the plan");
    let mut told = vec![base.round(world, None, &[check()]).0];
    let mut workers: Vec<Agent> = (0..3)
        .map(|n| {
            let mut worker = base.clone();
            worker.say(&format!("do part {n}"));
            worker
        })
        .collect();
    // All ask before any of them acts.
    let asked: Vec<Asked> = workers.iter().map(|w| w.ask(world)).collect();
    for ((n, worker), asked) in (0..).zip(&mut workers).zip(&asked) {
        let answer = worker.answer_of(None, &[pay("bob", n)]);
        worker.take(world, asked, &answer);
        worker.run_calls(world, &answer);
    }
    told.extend(asked);
    for worker in &mut workers {
        told.push(worker.round(world, None, &[pay("carol", 7)]).0);
    }
    for worker in workers.iter_mut().rev() {
        told.push(worker.talk(world, "Done."));
    }
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn second_before_effects(world: &mut World, client: Client) -> Told {
    let mut one = Agent::new(client, 10);
    let mut two = Agent::new(client, 10);
    one.say("hello there");
    two.say("hello there");
    let mut told = vec![
        one.talk(world, "How can I help?"),
        two.talk(world, "What is it?"),
    ];
    one.say("pay alice");
    two.say("pay bob");
    told.push(one.round(world, None, &[pay("alice", 1)]).0);
    told.push(two.round(world, None, &[pay("bob", 1)]).0);
    told.push(one.talk(world, "Done."));
    told.push(two.talk(world, "Done."));
    assert_eq!(threads(world), 2, "{client:?}");
    told
}

fn second_differs(world: &mut World, client: Client) -> Told {
    let mut one = Agent::new(client, 10);
    one.say("hello there");
    let mut told = vec![one.talk(world, "How can I help?")];
    one.say("pay alice");
    told.push(one.round(world, None, &[pay("alice", 1)]).0);
    told.push(one.talk(world, "Done."));
    let mut two = Agent::new(client, 11);
    two.say("hello there");
    told.push(two.talk(world, "How can I help?"));
    two.say("pay bob");
    told.push(two.round(world, None, &[pay("bob", 1)]).0);
    told.push(two.talk(world, "Done."));
    assert_eq!(threads(world), 2, "{client:?}");
    told
}

fn many_hellos(world: &mut World, client: Client) -> Told {
    let mut told = Vec::new();
    let mut people: Vec<Agent> = Vec::new();
    for n in 0..8 {
        let mut person = Agent::new(client, 10);
        person.reach = Reach::Http;
        person.say("hi");
        told.push(person.talk(world, "Hello! What can I do for you?"));
        person.say(&format!("pay friend number {n}"));
        told.push(person.round(world, None, &[pay("friend", n)]).0);
        told.push(person.talk(world, "Done."));
        people.push(person);
    }
    for person in &mut people {
        person.say("thank you");
        told.push(person.talk(world, "You are welcome."));
    }
    told
}

fn another_agent(world: &mut World, client: Client) -> Told {
    let mut told = Vec::new();
    for name in ["buyer", "worker-2", "worker-3"] {
        let mut agent = Agent::new(client, 10);
        agent.who = Who::new(name, 10 + u32::try_from(name.len()).unwrap());
        agent.say("take the next order and pay it");
        told.push(agent.round(world, None, &[pay("alice", 1)]).0);
        told.push(agent.talk(world, "Done."));
    }
    assert_eq!(threads(world), 3, "{client:?}");
    told
}

fn hourly(world: &mut World, client: Client, same_process: bool) -> Told {
    let mut told = Vec::new();
    for hour in 0..5 {
        let pid = if same_process { 10 } else { 10 + hour };
        let mut agent = Agent::new(client, pid);
        agent.reach = Reach::Http;
        agent.say("Daily briefing: check the balance and pay the cleaner.");
        told.push(agent.round(world, Some("I check"), &[check()]).0);
        told.push(agent.round(world, Some("I pay"), &[pay("cleaner", 20)]).0);
        told.push(agent.talk(world, "The cleaner was paid."));
        world.wait(60);
    }
    assert_eq!(threads(world), 5, "{client:?}");
    told
}

fn hourly_new_process(world: &mut World, client: Client) -> Told {
    hourly(world, client, false)
}

fn hourly_same_process(world: &mut World, client: Client) -> Told {
    hourly(world, client, true)
}

/// A request on the side by the same program in the same session.
fn aside(agent: &Agent, history: Vec<Message>, tools: Vec<String>) -> Agent {
    let mut aside = agent.clone();
    aside.dress.tools = tools;
    aside.dress.system = "Write a title of at most five words.".into();
    aside.history = history;
    aside
}

fn title(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let opening = agent.history.clone();
    let mut told = vec![agent.round(world, None, &[check()]).0];
    let mut titled = aside(&agent, opening.clone(), Vec::new());
    let title = titled.talk(world, "Paying Alice");
    assert!(title.is_aside(), "{client:?}: {:?}", title.findings);
    told.push(title);
    told.push(agent.round(world, None, &[pay("alice", 100)]).0);
    // Asked again after the payment, from the very same words.
    let mut titled = aside(&agent, opening, Vec::new());
    told.push(titled.talk(world, "Alice was paid"));
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn summary_aside(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = vec![agent.round(world, None, &[pay("alice", 100)]).0];
    told.push(agent.talk(world, "Done."));
    // The first half and the whole of the history, to be summed up.
    for length in [1, agent.history.len()] {
        let mut history = agent.history[..length].to_vec();
        history.push(Message::User {
            text: "Sum up what was said so far.".into(),
            id: fresh("msg_"),
        });
        told.push(aside(&agent, history, Vec::new()).talk(world, "Alice was paid."));
    }
    agent.say("pay bob");
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn suggestion(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = vec![agent.round(world, None, &[pay("alice", 100)]).0];
    told.push(agent.talk(world, "Done."));
    for _ in 0..3 {
        let mut suggests = agent.clone();
        suggests.say("[suggest what the person may want next]");
        told.push(suggests.talk(world, "pay bob too"));
        agent.say("pay bob");
        told.push(agent.round(world, None, &[pay("bob", 1)]).0);
        told.push(agent.talk(world, "Done."));
    }
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn probe(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = vec![agent.round(world, None, &[pay("alice", 100)]).0];
    let mut quota = aside(&agent, Vec::new(), Vec::new());
    quota.say("quota");
    told.push(quota.talk(world, "Hi"));
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn reminders(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = Vec::new();
    for n in 0..4 {
        agent.dress.reminder = format!("it is {n} o'clock, {n} files changed");
        told.push(agent.round(world, Some("Next"), &[pay("alice", n)]).0);
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn reminders_inside(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = vec![agent.round(world, None, &[pay("alice", 1)]).0];
    for n in 0..3 {
        let mut shown = agent.clone();
        for message in &mut shown.history {
            let reminder = format!("\n<system-reminder>\nnote {n}: be kind\n</system-reminder>");
            match message {
                Message::User { text, .. } => text.push_str(&reminder),
                Message::Results(results) => results[0].text.push_str(&reminder),
                Message::Model(_) => {}
            }
        }
        let asked = shown.ask(world);
        let answer = agent.answer_of(Some("Next"), &[pay("bob", n)]);
        agent.take(world, &asked, &answer);
        agent.run_calls(world, &answer);
        told.push(asked);
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn reordered(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay them all");
    let mut told = Vec::new();
    for n in 0..3 {
        let calls = [pay("alice", n), check(), pay("carol", n)];
        told.push(agent.round(world, None, &calls).0);
        if let Some(Message::Results(results)) = agent.history.last_mut() {
            if client.has_ids() {
                results.reverse();
            } else {
                // Without ids only different tools can be told apart.
                results.swap(0, 1);
            }
        }
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn reordered_calls(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay them all");
    let mut told = vec![
        agent
            .round(world, None, &[pay("alice", 1), pay("bob", 2)])
            .0,
    ];
    if let [.., Message::Model(answer), Message::Results(results)] = &mut agent.history[..] {
        answer.calls.reverse();
        results.reverse();
    }
    told.push(agent.round(world, None, &[pay("carol", 3)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn edited_system(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = Vec::new();
    for n in 0..4 {
        agent.dress.system = format!("You are assistant number {n}.");
        agent.dress.tools.push(format!("tool-{n}"));
        told.push(agent.round(world, Some("Next"), &[pay("alice", n)]).0);
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn edited_question(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = vec![agent.round(world, None, &[pay("alice", 1)]).0];
    told.push(agent.talk(world, "Done."));
    let at = agent.clone();
    agent.say("what is the weather");
    told.push(agent.talk(world, "Fine."));
    let mut agent = at;
    agent.say("what will the weather be tomorrow");
    told.push(agent.talk(world, "Fine as well."));
    agent.say("pay bob");
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    told
}

/// A trace or metric that the program sends while the model answers: an effect like any other.
fn trace(world: &mut World, agent: &Agent) {
    let request = Request::Http(HttpRequest {
        method: "POST".into(),
        url: "https://traces.test/v1/batch".into(),
        headers: Vec::new(),
        rpc: Vec::new(),
        body: Body::whole(json!({"run": fresh("run-")}).to_string()),
    });
    world.effect(&agent.who, &request, Known::Running);
}

fn traces(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = Vec::new();
    for n in 0..3 {
        let asked = agent.ask(world);
        trace(world, &agent);
        world.answer_with(&agent.who, &asked, client, 529, b"{\"error\":{}}", 9);
        trace(world, &agent);
        told.push(asked);
        let asked = agent.ask(world);
        trace(world, &agent);
        let answer = agent.answer_of(Some("So"), &[pay("alice", n)]);
        agent.take(world, &asked, &answer);
        trace(world, &agent);
        agent.run_calls(world, &answer);
        told.push(asked);
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn regenerated(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = vec![agent.round(world, None, &[pay("alice", 1)]).0];
    let before = agent.clone();
    for words in ["Done.", "It is done.", "Alice has her money."] {
        agent = before.clone();
        told.push(agent.talk(world, words));
    }
    agent.say("pay bob");
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    told
}

fn rewritten_arguments(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = Vec::new();
    for n in 0..3_u64 {
        told.push(agent.round(world, None, &[pay("alice", n)]).0);
        // A client that reads and writes numbers as doubles.
        if let [.., Message::Model(answer), Message::Results(_)] = &mut agent.history[..] {
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let amount = n as f64;
            answer.calls[0].arguments["amount"] = json!(amount);
        }
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn own_words(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.reach = Reach::Http;
    agent.say("pay alice 100");
    let mut told = Vec::new();
    for n in 0..3 {
        told.push(agent.round(world, None, &[pay("alice", n)]).0);
    }
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn weak_ids(world: &mut World, client: Client) -> Told {
    let mut told = Vec::new();
    for n in 0..3 {
        let mut agent = Agent::new(client, 10 + n);
        agent.say(&format!("order number {n}"));
        for (call, calls) in [vec![check()], vec![pay("alice", 1)], vec![check()]]
            .iter()
            .enumerate()
        {
            let asked = agent.ask(world);
            let mut answer = agent.answer_of(None, calls);
            answer.calls[0].id = format!("call_{call}");
            answer.response = "resp_0".into();
            agent.take(world, &asked, &answer);
            agent.run_calls(world, &answer);
            told.push(asked);
        }
        told.push(agent.talk(world, "Done."));
    }
    assert_eq!(threads(world), 3, "{client:?}");
    told
}

fn failing_call(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let asked = agent.ask(world);
    let answer = agent.answer_of(None, &[pay("alice", 100)]);
    agent.take(world, &asked, &answer);
    let (request, ..) = agent.request_of(&answer.calls[0]);
    world.effect(&agent.who, &request, Known::Nothing);
    agent
        .history
        .push(results_of(&answer, "error: the request timed out"));
    let mut told = vec![asked];
    told.push(agent.round(world, None, &[pay("alice", 100)]).0);
    told.push(agent.talk(world, "Done."));
    told
}

fn white_space(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice\n  100");
    let mut told = vec![
        agent
            .round(world, Some("I will\npay"), &[pay("alice", 1)])
            .0,
    ];
    if let [Message::User { text, .. }, Message::Model(answer), ..] = &mut agent.history[..] {
        *text = "pay alice 100\n\n".into();
        answer.text = Some("I will pay ".into());
    }
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

const SUMMARY: &str = "This session is being continued from a previous conversation that ran out of context. \
    The summary below covers the earlier portion of the conversation.\n\nAlice was paid 100.";

fn before_compaction(world: &mut World, client: Client) -> (Agent, Told, Vec<EffectId>) {
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice 100");
    let mut told = Vec::new();
    let mut effects = Vec::new();
    for n in 0..3 {
        let (asked, made) = agent.round(world, Some("Next"), &[pay("alice", n)]);
        told.push(asked);
        effects.extend(made);
    }
    told.push(agent.talk(world, "Done."));
    (agent, told, effects)
}

fn compacted(world: &mut World, client: Client) -> Told {
    let (mut agent, mut told, effects) = before_compaction(world, client);
    // Where no session ties the two, the summary's own lines do.
    let mut summing = agent.clone();
    summing.say("Write a detailed summary of everything so far.");
    let lines = "Alice was paid three times, with the amounts 0, 1 and 2.\n\
        No other person was paid, and nothing else was asked for yet.";
    told.push(summing.talk(world, lines));
    agent.history.clear();
    agent.since = None;
    agent.say(&format!("{SUMMARY}\n{lines}\n\nContinue."));
    let asked = agent.ask(world);
    assert_eq!(asked.compacted(), effects, "{client:?}");
    told.push(asked);
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.round(world, None, &[check()]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn compacted_window(world: &mut World, client: Client) -> Told {
    let (mut agent, mut told, mut effects) = before_compaction(world, client);
    for round in 1..=3 {
        let mut compacting = agent.clone();
        compacting.dress.kind = "compaction";
        compacting.say("Create a handoff summary.");
        let aside = compacting.talk(world, "Alice was paid.");
        assert!(aside.is_aside());
        told.push(aside);
        // What people said stays, everything else goes.
        agent.history.retain(|m| matches!(m, Message::User { .. }));
        agent.dress.window = round;
        agent.say("Another language model started to solve this problem and produced a summary of its thinking process.");
        let asked = agent.ask(world);
        assert_eq!(asked.compacted(), effects, "{round}");
        told.push(asked);
        told.push(agent.ask(world));
        let (asked, made) = agent.round(world, None, &[pay("bob", round)]);
        effects = made;
        told.push(asked);
        told.push(agent.talk(world, "Done."));
    }
    assert_eq!(threads(world), 1);
    told
}

fn compacted_with_tail(world: &mut World, client: Client) -> Told {
    let (mut agent, mut told, effects) = before_compaction(world, client);
    let tail = agent.history.split_off(agent.history.len() - 3);
    agent.history.clear();
    agent.say("Here is a summary of the conversation to date:\n\nAlice was paid twice.");
    agent.history.extend(tail);
    agent.say("pay bob");
    let asked = agent.ask(world);
    assert_eq!(asked.compacted(), effects[..2], "{client:?}");
    told.push(asked);
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn sliding(world: &mut World, client: Client) -> Told {
    let mut agent = Agent::new(client, 10);
    let mut told = Vec::new();
    for n in 0..8 {
        agent.say(&format!("pay person {n}"));
        told.push(agent.round(world, None, &[pay("alice", n)]).0);
        told.push(agent.talk(world, &format!("Paid person {n}.")));
        // Only the last two rounds are kept.
        let over = agent.history.len().saturating_sub(8);
        agent.history.drain(..over);
    }
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn cleared(world: &mut World, client: Client) -> Told {
    let (mut agent, mut told, _) = before_compaction(world, client);
    agent.say("go on");
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    for message in agent.history.iter_mut().take(4) {
        if let Message::Results(results) = message {
            results[0].text = "[Old tool result content cleared]".into();
        }
    }
    told.push(agent.round(world, None, &[pay("bob", 2)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}

fn summary_by_lines(world: &mut World, client: Client) -> Told {
    let (mut agent, mut told, effects) = before_compaction(world, client);
    let lines = "The person called Alice has received all three amounts by now.\n\
        There is nothing left to be done for her, as far as anybody can tell.\n\
        The next thing that the person may ask for is a payment to Bob.";
    let mut summing = agent.clone();
    summing.dress.tools.clear();
    summing.say("Please write down what you will need to know later.");
    told.push(summing.talk(world, lines));
    agent.history.clear();
    agent.since = None;
    agent.say(&format!("Notes from before:\n{lines}"));
    agent.say("pay bob");
    let asked = agent.ask(world);
    assert_eq!(asked.compacted(), effects, "{client:?}");
    told.push(asked);
    told.push(agent.round(world, None, &[pay("bob", 1)]).0);
    told.push(agent.talk(world, "Done."));
    assert_eq!(threads(world), 1, "{client:?}");
    told
}
