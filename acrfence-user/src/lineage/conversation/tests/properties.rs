//! Random conversations, random restores: what is not remembered is known to the effect. Random ways
//! of showing the same history: nothing is found.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::json;

use super::agent::{Agent, fresh, pay};
use super::wire::{Client, Message, ToolResult};
use super::world::World;
use crate::lineage::conversation::Bounds;
use crate::words::{EffectId, ForkPoint};

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    /// One of the running agents asks and makes so many calls.
    Round {
        agent: usize,
        calls: usize,
        says: bool,
    },
    /// One of them is saved.
    Save { agent: usize },
    /// A saved one is restored.
    Restore { saved: usize, new_session: bool },
    /// One is killed while its calls run, and resumed: the turn is gone, its calls are, or they are
    /// there without their results.
    Killed {
        agent: usize,
        calls: usize,
        how: Killed,
    },
}

#[derive(Clone, Copy, Debug)]
enum Killed {
    TurnGone,
    CallsGone,
    Aborted,
}

fn step() -> impl Strategy<Value = Step> {
    let any_agent = 0..8_usize;
    prop_oneof![
        6 => (any_agent.clone(), 0..4_usize, any::<bool>())
            .prop_map(|(agent, calls, says)| Step::Round { agent, calls, says }),
        2 => any_agent.clone().prop_map(|agent| Step::Save { agent }),
        3 => (0..8_usize, any::<bool>())
            .prop_map(|(saved, new_session)| Step::Restore { saved, new_session }),
        2 => (
            any_agent,
            1..3_usize,
            prop_oneof![Just(Killed::TurnGone), Just(Killed::CallsGone), Just(Killed::Aborted)],
        )
            .prop_map(|(agent, calls, how)| Step::Killed { agent, calls, how }),
    ]
}

fn client() -> impl Strategy<Value = Client> {
    prop_oneof![
        Just(Client::ClaudeCode),
        Just(Client::AnthropicSdk),
        Just(Client::Codex),
        Just(Client::ResponsesFull),
        Just(Client::ResponsesChained),
        Just(Client::ChatSdk),
        Just(Client::Ollama),
        Just(Client::Gemini),
    ]
}

/// An agent, and the effects whose outcome is in its history.
#[derive(Clone)]
struct Minded {
    agent: Agent,
    mind: BTreeSet<EffectId>,
}

fn calls(n: usize) -> Vec<(&'static str, serde_json::Value)> {
    (0..n)
        .map(|at| {
            if at % 2 == 0 {
                pay("alice", 7)
            } else {
                ("check", json!({"account": fresh("acc-")}))
            }
        })
        .collect()
}

fn play(client: Client, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut first = Agent::new(client, 10);
    first.say("pay alice what she is owed");
    // Something to tie a restore to: before the first call, nothing but words does.
    let (_, effects) = first.round(&mut world, Some("Well"), &calls(1));
    let mut everything: BTreeSet<EffectId> = effects.into_iter().collect();
    let mut agents = vec![Minded {
        agent: first,
        mind: everything.clone(),
    }];
    let mut saved = vec![agents[0].clone()];
    let mut pid = 10;
    for step in steps {
        match *step {
            Step::Round {
                agent,
                calls: n,
                says,
            } => {
                let at = agent % agents.len();
                let minded = &mut agents[at];
                // Where only words tie, a restore to before somebody asked for something is a
                // conversation in which nobody did.
                let n = if client.has_ids() { n } else { n.max(1) };
                if says && client.has_ids() && client != Client::ResponsesChained {
                    minded.agent.say("go on");
                }
                let (asked, effects) = minded.agent.round(&mut world, Some("So"), &calls(n));
                expect(&asked, &everything, &minded.mind)?;
                minded.mind.extend(&effects);
                everything.extend(effects);
                if n == 0 {
                    // The API wants the agent's side to speak last.
                    minded.agent.say("continue");
                }
            }
            Step::Save { agent } => saved.push(agents[agent % agents.len()].clone()),
            Step::Restore {
                saved: which,
                new_session,
            } => {
                pid += 1;
                let mut minded = saved[which % saved.len()].clone();
                minded.agent = minded.agent.restored(pid);
                if new_session {
                    minded.agent = minded.agent.under_new_session();
                }
                agents.push(minded);
            }
            Step::Killed {
                agent,
                calls: n,
                how,
            } => {
                if client == Client::ResponsesChained || !client.has_ids() {
                    continue;
                }
                let at = agent % agents.len();
                let mut minded = agents[at].clone();
                let asked = minded.agent.ask(&mut world);
                expect(&asked, &everything, &minded.mind)?;
                let before = minded.agent.clone();
                let answer = minded.agent.answer_of(Some("Paying"), &calls(n));
                minded.agent.take(&mut world, &asked, &answer);
                for call in &answer.calls {
                    everything.insert(minded.agent.run(&mut world, call).0);
                }
                pid += 1;
                match how {
                    Killed::TurnGone => minded.agent = before,
                    Killed::CallsGone => {
                        minded.agent = before;
                        let mut kept = answer;
                        kept.calls.clear();
                        minded.agent.history.push(Message::Model(kept));
                    }
                    Killed::Aborted => {
                        let results = answer.calls.iter().map(|call| ToolResult {
                            id: call.id.clone(),
                            name: call.name.clone(),
                            text: "aborted".into(),
                            is_error: true,
                        });
                        minded
                            .agent
                            .history
                            .push(Message::Results(results.collect()));
                    }
                }
                minded.agent = minded.agent.restored(pid);
                minded.agent.say("continue");
                agents[at] = minded;
            }
        }
    }
    for minded in &agents {
        let asked = minded.agent.ask(&mut world);
        expect(&asked, &everything, &minded.mind)?;
    }
    prop_assert_eq!(world.all.threads().count(), 1);
    world.check();
    Ok(())
}

/// What a request does not remember is exactly what its agent does not.
fn expect(
    asked: &super::world::Asked,
    everything: &BTreeSet<EffectId>,
    mind: &BTreeSet<EffectId>,
) -> Result<(), TestCaseError> {
    let missing: Vec<EffectId> = everything.difference(mind).copied().collect();
    let absent: Vec<EffectId> = asked.absent.iter().map(|(effect, _)| *effect).collect();
    prop_assert_eq!(&absent, &missing, "{:?}", &asked.findings);
    if let Some(rewind) = asked.rewind() {
        for effect in &rewind.remembered {
            prop_assert!(mind.contains(effect));
        }
        if rewind.exact {
            let ForkPoint::At(at) = rewind.fork_point else {
                return Err(TestCaseError::fail("exact, but nowhere"));
            };
            for effect in &rewind.remembered {
                prop_assert!(effect.0 <= at);
            }
            for effect in &rewind.forgotten {
                prop_assert!(effect.0 > at);
            }
        }
    }
    Ok(())
}

/// How a history is shown otherwise than before.
#[derive(Clone, Debug)]
enum Otherwise {
    Reminder,
    WhiteSpace,
    System,
    MoreTools,
    WholeReply,
    SentAgain(usize),
    ProviderError(u16),
    Title,
    Suggestion,
    ReorderResults,
    Pause,
    NewProcess,
}

fn otherwise() -> impl Strategy<Value = Otherwise> {
    prop_oneof![
        Just(Otherwise::Reminder),
        Just(Otherwise::WhiteSpace),
        Just(Otherwise::System),
        Just(Otherwise::MoreTools),
        Just(Otherwise::WholeReply),
        (1..3_usize).prop_map(Otherwise::SentAgain),
        prop_oneof![Just(429_u16), Just(500), Just(529)].prop_map(Otherwise::ProviderError),
        Just(Otherwise::Title),
        Just(Otherwise::Suggestion),
        Just(Otherwise::ReorderResults),
        Just(Otherwise::Pause),
        Just(Otherwise::NewProcess),
    ]
}

fn play_ordinary(client: Client, rounds: &[(usize, Vec<Otherwise>)]) -> Result<(), TestCaseError> {
    let mut world = World::new();
    let mut agent = Agent::new(client, 10);
    agent.say("pay alice what she is owed");
    let mut pid = 10;
    for (n, ways) in rounds {
        let mut shown = agent.clone();
        for way in ways {
            match way {
                Otherwise::Reminder => {
                    shown.dress.reminder = fresh("note ");
                    for message in &mut shown.history {
                        if let Message::User { text, .. } = message {
                            text.push_str("\n<system-reminder>be kind</system-reminder>");
                        }
                    }
                }
                Otherwise::WhiteSpace => {
                    for message in &mut shown.history {
                        match message {
                            Message::User { text, .. } => text.push('\n'),
                            Message::Model(answer) => {
                                if let Some(text) = &mut answer.text {
                                    text.push(' ');
                                }
                            }
                            Message::Results(_) => {}
                        }
                    }
                }
                Otherwise::System => shown.dress.system = fresh("You are number "),
                Otherwise::MoreTools => {
                    agent.dress.tools.push(fresh("tool_"));
                    shown.dress.tools.clone_from(&agent.dress.tools);
                }
                Otherwise::WholeReply => {
                    agent.dress.stream = !agent.dress.stream;
                    shown.dress.stream = agent.dress.stream;
                }
                Otherwise::SentAgain(times) => {
                    for _ in 0..*times {
                        prop_assert!(shown.ask(&mut world).is_quiet());
                    }
                }
                Otherwise::ProviderError(status) => {
                    let asked = shown.ask(&mut world);
                    prop_assert!(asked.is_quiet());
                    world.answer_with(&agent.who, &asked, client, *status, b"{\"error\":{}}", 5);
                }
                Otherwise::Title if client != Client::ResponsesChained => {
                    let mut side = shown.clone();
                    side.dress.tools.clear();
                    side.history.truncate(1);
                    let asked = side.talk(&mut world, "A title");
                    // Before the first real request it is all there is of the conversation.
                    prop_assert!(asked.is_quiet());
                }
                Otherwise::Suggestion if client != Client::ResponsesChained => {
                    let mut side = shown.clone();
                    side.say("[suggest something]");
                    prop_assert!(side.talk(&mut world, "pay bob").is_quiet());
                }
                Otherwise::ReorderResults if client.has_ids() => {
                    for message in &mut shown.history {
                        if let Message::Results(results) = message {
                            results.reverse();
                        }
                    }
                }
                Otherwise::Pause => world.wait(45),
                Otherwise::NewProcess => {
                    pid += 1;
                    agent = agent.restored(pid);
                    shown.who = agent.who.clone();
                }
                _ => {}
            }
        }
        let asked = shown.ask(&mut world);
        prop_assert!(asked.is_quiet(), "{:?}", asked.findings);
        let answer = agent.answer_of(Some("So"), &calls(*n));
        agent.take(&mut world, &asked, &answer);
        agent.run_calls(&mut world, &answer);
        if *n == 0 {
            agent.say("go on");
        }
    }
    world.check();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    #[test]
    fn what_is_not_remembered_is_known_to_the_effect(
        client in client(),
        steps in prop::collection::vec(step(), 1..24),
    ) {
        play(client, &steps)?;
    }

    #[test]
    fn another_way_of_showing_the_same_is_no_rewind(
        client in client(),
        rounds in prop::collection::vec((0..3_usize, prop::collection::vec(otherwise(), 0..4)), 1..10),
    ) {
        play_ordinary(client, &rounds)?;
    }

    #[test]
    fn memory_is_bounded_and_replays_the_same(
        client in client(),
        threads in 1..4_usize,
        turns in 1..6_usize,
        strands in 2..4_usize,
        rounds in 1..12_usize,
    ) {
        let bounds = Bounds { threads, turns, strands };
        let mut world = World::bounded(bounds);
        for n in 0..rounds {
            let mut agent = Agent::new(client, 10);
            agent.say(&format!("order number {n}"));
            for _ in 0..n {
                agent.round(&mut world, Some("So"), &calls(2));
                let mut aside = agent.clone();
                aside.say("what if");
                aside.talk(&mut world, "Then nothing.");
            }
        }
        prop_assert!(world.all.threads().count() <= threads);
        for thread in world.all.threads() {
            prop_assert!(thread.turns.len() <= turns);
            prop_assert!(thread.strands.len() <= strands);
        }
        world.check();
    }
}
