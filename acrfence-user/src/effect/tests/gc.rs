//! Garbage collection never removes what a live branch may need: every answer that a thread which is
//! kept can get is the same before and after, also from an index that was built anew.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proptest::sample::Index as Pick;

use super::answers::{open, small};
use crate::effect::journal::anchor::now;
use crate::effect::{
    CandidateRow, CredentialHistory, EffectLog, Event, GcKeep, GcPolicy, Harvest, HoldDecision,
    Prepared, Store, samples,
};
use crate::lineage::{Executed, Fenced, Lineage, RestoreTarget};
use crate::words::*;

/// What an agent or a person does next.
#[derive(Clone, Debug)]
enum Act {
    /// An agent pays: which thread, tool, credential, and how it ends.
    Pay {
        thread: Pick,
        tool: u8,
        secret: u8,
        end: u8,
        size: usize,
    },
    /// An answer issues a credential in a thread.
    Issue { thread: Pick, secret: u8 },
    /// A restore of a thread to one of the effects so far, or to nobody knows where.
    Restore { thread: Pick, to: Option<Pick> },
    /// A fork of a thread.
    Fork { thread: Pick },
    /// An effect is replayed into the current branch of its thread.
    Replay { effect: Pick },
    /// A call is held against an effect, and perhaps decided.
    Hold { effect: Pick, decided: bool },
    /// A call is refused because of an effect.
    Refuse { effect: Pick },
    /// A person or policy finds out about an effect.
    Resolve { effect: Pick, happened: bool },
    /// The answer never reached the agent.
    Lose { effect: Pick },
}

fn act() -> impl Strategy<Value = Act> {
    let pick = any::<Pick>;
    prop_oneof![
        12 => (pick(), 0..3u8, 0..4u8, 0..6u8, prop_oneof![Just(200usize), Just(3_000), Just(9_000)])
            .prop_map(|(thread, tool, secret, end, size)| Act::Pay { thread, tool, secret, end, size }),
        2 => (pick(), 0..4u8).prop_map(|(thread, secret)| Act::Issue { thread, secret }),
        2 => (pick(), proptest::option::of(pick())).prop_map(|(thread, to)| Act::Restore { thread, to }),
        1 => pick().prop_map(|thread| Act::Fork { thread }),
        3 => pick().prop_map(|effect| Act::Replay { effect }),
        1 => (pick(), any::<bool>()).prop_map(|(effect, decided)| Act::Hold { effect, decided }),
        1 => pick().prop_map(|effect| Act::Refuse { effect }),
        1 => (pick(), any::<bool>()).prop_map(|(effect, happened)| Act::Resolve { effect, happened }),
        1 => pick().prop_map(|effect| Act::Lose { effect }),
    ]
}

/// A store that is written as the daemon writes it.
struct World {
    store: Store,
    lineage: Lineage,
    threads: Vec<ThreadId>,
    effects: Vec<(EffectId, ThreadId, BranchId)>,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn write(&mut self, event: Event) -> Seq {
        let seq = self
            .runtime
            .block_on(self.store.append(event.clone()))
            .unwrap();
        self.lineage.apply(seq, &event.at_position(seq));
        seq
    }

    fn current(&self, thread: ThreadId) -> BranchId {
        self.lineage.current(thread).unwrap().id
    }

    fn act(&mut self, act: &Act, n: u8) {
        let at = Timestamp(n.into());
        let thread = |pick: &Pick| self.threads[pick.index(self.threads.len())];
        let effect = |pick: &Pick| {
            (!self.effects.is_empty()).then(|| self.effects[pick.index(self.effects.len())])
        };
        match act {
            Act::Pay {
                thread: of,
                tool,
                secret,
                end,
                size,
            } => {
                let thread = thread(of);
                let branch = self.current(thread);
                let event = Event::Prepared(Box::new(Prepared {
                    key: ToolKey(format!("tool-{tool}")),
                    thread,
                    branch,
                    parent: None,
                    co_parents: Vec::new(),
                    call: samples::call(n, n.into(), &"p".repeat(*size)),
                    presented: vec![samples::fingerprint(*secret)],
                    values: vec![u64::from(*tool)],
                    retry_of: None,
                }));
                let id = EffectId(self.write(event));
                self.effects.push((id, thread, branch));
                let outcome = match end {
                    0 => return,
                    1 => Outcome::InDoubt {
                        why: "reset".into(),
                        response: None,
                    },
                    2 => Outcome::Failed {
                        why: "refused".into(),
                        response: None,
                    },
                    _ => Outcome::Completed(samples::response(n, &"r".repeat(*size))),
                };
                let settled = Event::Settled {
                    effect: id,
                    outcome,
                    at,
                    harvest: Harvest {
                        issued: (*end == 3)
                            .then(|| samples::fingerprint(n % 4))
                            .into_iter()
                            .collect(),
                        values: vec![100 + u64::from(n % 5)],
                    },
                };
                self.write(settled);
            }
            Act::Issue { thread: of, secret } => {
                let event = Event::Observed {
                    thread: thread(of),
                    harvest: Harvest {
                        issued: vec![samples::fingerprint(*secret)],
                        values: vec![200 + u64::from(n % 5)],
                    },
                    at,
                };
                self.write(event);
            }
            Act::Restore { thread: of, to } => {
                let thread = thread(of);
                let target = match to.as_ref().and_then(effect) {
                    Some((id, of, branch)) if of == thread => {
                        RestoreTarget::Effect(Executed { id, branch })
                    }
                    _ => RestoreTarget::Unknown,
                };
                let agent = samples::agent(0);
                let made = self
                    .lineage
                    .restored(&agent, thread, &target, Grade::Certain, "", at);
                if let Ok(event) = made {
                    self.write(event);
                }
            }
            Act::Fork { thread: of } => {
                let parent = self.lineage.current(thread(of));
                if let Some(event) = parent.map(|b| Lineage::forked(b, "", at)) {
                    self.write(event);
                }
            }
            Act::Replay { effect: of } => {
                let Some((effect, thread, _)) = effect(of) else {
                    return;
                };
                let branch = self.current(thread);
                let call = Box::new(samples::call(n, 1, "again"));
                self.write(Event::Replayed {
                    effect,
                    branch,
                    call,
                    why: None,
                    at,
                });
            }
            Act::Hold {
                effect: of,
                decided,
            } => {
                let Some((effect, thread, _)) = effect(of) else {
                    return;
                };
                let event = Event::HoldOpened {
                    branch: self.current(thread),
                    effect,
                    key: ToolKey("tool-0".into()),
                    call: Box::new(samples::call(n, 1, "held")),
                    why: "w".into(),
                    at,
                };
                let hold = HoldId(self.write(event));
                if *decided {
                    let decision = HoldDecision::Forward;
                    self.write(Event::HoldDecided {
                        hold,
                        decision,
                        by: "uid 0".into(),
                        at,
                    });
                    self.write(Event::HoldUsed { hold, at });
                }
            }
            Act::Refuse { effect: of } => {
                let Some((effect, thread, _)) = effect(of) else {
                    return;
                };
                let event = Event::Refused {
                    branch: self.current(thread),
                    call: Box::new(samples::call(n, 1, "other")),
                    refusal: Refusal {
                        code: RefusalCode::Diverged,
                        title: "t".into(),
                        detail: "d".into(),
                        effect: Some(effect),
                        fields: Vec::new(),
                        hold: None,
                    },
                    enforced: true,
                    at,
                };
                self.write(event);
            }
            Act::Resolve {
                effect: of,
                happened,
            } => {
                let Some((effect, _, _)) = effect(of) else {
                    return;
                };
                let resolution = if *happened {
                    Resolution::Happened(samples::response(n, "resolved"))
                } else {
                    Resolution::DidNotHappen
                };
                self.write(Event::Resolved {
                    effect,
                    resolution,
                    by: "uid 0".into(),
                    at,
                });
            }
            Act::Lose { effect: of } => {
                let Some((effect, _, _)) = effect(of) else {
                    return;
                };
                self.write(Event::OutcomeLost {
                    effect,
                    why: "hung up".into(),
                    at,
                });
            }
        }
    }
}

/// Everything that a verdict in these threads can look at, and what a person can ask about them.
#[derive(Debug, PartialEq)]
struct Needed {
    candidates: Vec<Vec<CandidateRow>>,
    effects: Vec<Effect>,
    /// What each branch of these threads forgot of each effect of its thread.
    forgotten: Vec<Option<Fenced>>,
    credentials: Vec<CredentialHistory>,
    seen: Vec<Option<Seq>>,
    history: Vec<Vec<(Seq, Event)>>,
    holds: Vec<(Seq, Event)>,
    unsettled: Vec<EffectId>,
}

fn needed(
    store: &Store,
    live: &BTreeSet<ThreadId>,
    effects: &[(EffectId, ThreadId, BranchId)],
) -> Needed {
    let events = store.lineage_events().unwrap();
    let mut lineage = Lineage::default();
    for (seq, event) in &events {
        lineage.apply(*seq, event);
    }
    let branches: Vec<(BranchId, ThreadId)> = events
        .iter()
        .filter_map(|(seq, event)| match event {
            Event::BranchOpened(branch) if live.contains(&branch.thread) => {
                Some((BranchId(*seq), branch.thread))
            }
            _ => None,
        })
        .collect();
    let mut needed = Needed {
        candidates: Vec::new(),
        effects: Vec::new(),
        forgotten: Vec::new(),
        credentials: Vec::new(),
        seen: Vec::new(),
        history: Vec::new(),
        holds: Vec::new(),
        unsettled: store.unsettled().unwrap(),
    };
    for thread in live {
        for tool in (0..3).map(|n| ToolKey(format!("tool-{n}"))) {
            needed
                .candidates
                .push(store.candidates(*thread, &tool, Seq(u64::MAX)).unwrap());
        }
        for value in (0..3).chain(100..105).chain(200..205) {
            needed.seen.push(store.first_seen(*thread, value).unwrap());
        }
    }
    for (id, thread, branch) in effects
        .iter()
        .filter(|(_, thread, _)| live.contains(thread))
    {
        needed.effects.push(
            store
                .effect(*id)
                .unwrap()
                .expect("an effect of a live thread"),
        );
        needed.history.push(store.history(*id).unwrap());
        for (of, _) in branches.iter().filter(|(_, of)| of == thread) {
            let executed = Executed {
                id: *id,
                branch: *branch,
            };
            needed.forgotten.push(lineage.fenced(*of, executed));
        }
    }
    // Of a credential, what a verdict in these threads looks at: where it was issued in them, and
    // which of their effects presented it.
    let lives = |id: &EffectId| {
        effects
            .iter()
            .any(|(of, thread, _)| of == id && live.contains(thread))
    };
    for fingerprint in (0..5).map(samples::fingerprint) {
        let mut history = store.credential(fingerprint).unwrap();
        history.issued.retain(|(thread, _)| live.contains(thread));
        history.presented.retain(|(id, _)| lives(id));
        needed.credentials.push(history);
    }
    needed.holds = events
        .into_iter()
        .filter(|(_, event)| match event {
            Event::HoldOpened { branch, .. } => branches.iter().any(|(of, _)| of == branch),
            _ => false,
        })
        .collect();
    needed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn gc_never_removes_what_a_live_branch_may_need(
        acts in proptest::collection::vec(act(), 30..160),
        live in proptest::collection::vec(any::<bool>(), 4),
        twice in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut world = World {
            store: open(&config),
            lineage: Lineage::default(),
            threads: Vec::new(),
            effects: Vec::new(),
            runtime,
        };
        world.write(Event::IncarnationBegan(Incarnation {
            agent: samples::agent(0),
            number: 1,
            cause: IncarnationCause::Attach,
            root: ProcessIdentity { tgid: 1, start_ns: 1 },
            boot_id: "b".into(),
            uid: 0,
            exe: String::new(),
            argv: Vec::new(),
            at: Timestamp(1),
        }));
        for n in 0..4 {
            let (agent, title) = (samples::agent(0), format!("t{n}"));
            let (thread, branch) = Lineage::first_thread(&agent, &title, Timestamp(1));
            let seq = world.write(thread);
            world.write(branch(seq));
            world.threads.push(ThreadId(seq));
        }
        for (n, act) in acts.iter().enumerate() {
            world.act(act, n as u8);
        }
        let live: BTreeSet<ThreadId> = world
            .threads
            .iter()
            .zip(live)
            .filter_map(|(thread, is_live)| is_live.then_some(*thread))
            .collect();
        let before = needed(&world.store, &live, &world.effects);
        let policy = GcPolicy { older_than: Some(now()), max_bytes: None };
        let keep = GcKeep { threads: live.iter().copied().collect(), branches: Default::default() };
        let report = world.store.gc(&policy, &keep).unwrap();
        if twice {
            world.store.gc(&policy, &keep).unwrap();
        }
        prop_assert_eq!(&needed(&world.store, &live, &world.effects), &before, "{:?}", report);
        let World { store, effects, .. } = world;
        drop(store);
        let store = open(&config);
        prop_assert_eq!(&needed(&store, &live, &effects), &before, "opened again");
        drop(store);
        std::fs::remove_dir_all(config.index_dir()).unwrap();
        let store = open(&config);
        prop_assert_eq!(&needed(&store, &live, &effects), &before, "rebuilt");
        let found = store.verify(&mut |_| {}).unwrap();
        prop_assert_eq!(found.faults, []);
    }
}
