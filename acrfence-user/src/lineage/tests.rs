use proptest::prelude::*;

use super::*;
use crate::effect::Event;
use crate::words::*;

const AT: Timestamp = Timestamp(0);

/// A journal in memory that feeds a lineage, as the daemon does.
struct Story {
    lineage: Lineage,
    agent: AgentName,
    thread: ThreadId,
    next: u64,
}

impl Story {
    fn new() -> Self {
        let agent: AgentName = "buyer".parse().unwrap();
        let mut story = Self {
            lineage: Lineage::default(),
            agent: agent.clone(),
            thread: ThreadId(Seq(0)),
            next: 1,
        };
        story.write(Event::IncarnationBegan(Incarnation {
            agent: agent.clone(),
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
            at: AT,
        }));
        let (thread, branch) = Lineage::first_thread(&agent, "main", AT);
        let seq = story.write(thread);
        story.thread = ThreadId(seq);
        story.write(branch(seq));
        story
    }

    fn write(&mut self, event: Event) -> Seq {
        let seq = Seq(self.next);
        self.next += 1;
        self.lineage.apply(seq, &event);
        seq
    }

    fn current(&self) -> BranchId {
        self.lineage.current(self.thread).unwrap().id
    }

    fn pay(&mut self) -> Executed {
        let branch = self.current();
        let seq = Seq(self.next);
        self.next += 1;
        Executed {
            id: EffectId(seq),
            branch,
        }
    }

    fn restore(&mut self, target: RestoreTarget) -> BranchId {
        let event = self
            .lineage
            .restored(
                &self.agent,
                self.thread,
                &target,
                Grade::Certain,
                "told",
                AT,
            )
            .unwrap();
        BranchId(self.write(event))
    }

    fn fork(&mut self) -> BranchId {
        let parent = self.lineage.current(self.thread).unwrap();
        let event = Lineage::forked(parent, "told", AT);
        BranchId(self.write(event))
    }

    fn checkpoint(&mut self, name: &str) {
        self.checkpoint_through(name, None);
    }

    fn checkpoint_through(&mut self, name: &str, through: Option<Seq>) -> Seq {
        let agent = self.agent.clone();
        self.write(Event::CheckpointTaken(Checkpoint {
            agent,
            name: name.into(),
            thread: None,
            at: AT,
            through,
            image: None,
        }))
    }

    fn replay(&mut self, effect: Executed) {
        let branch = self.current();
        let seq = Seq(self.next);
        self.next += 1;
        // Only the ids matter to the fold; the call is not looked at.
        self.lineage.entered.insert((branch, effect.id), seq);
        self.lineage.last_entered.insert(effect.id, seq);
    }

    fn fenced(&self, effect: Executed) -> Option<Forgotten> {
        let fenced = self.lineage.fenced(self.current(), effect)?;
        Some(fenced.forgotten)
    }

    /// The branch that a conversation opens from the current one.
    fn rewind(&mut self, absent: &[(EffectId, Forgotten, Grade)]) -> BranchId {
        let absent = absent.iter().map(|&(effect, forgotten, grade)| Absent {
            effect,
            forgotten,
            grade,
        });
        let parent = self.lineage.current(self.thread).unwrap();
        let event = Lineage::rewound(parent, ForkPoint::Unknown, absent.collect(), "shown", AT);
        BranchId(self.write(event))
    }
}

#[test]
fn without_a_restore_nothing_is_fenced() {
    let mut s = Story::new();
    let paid = s.pay();
    assert_eq!(s.fenced(paid), None);
}

#[test]
fn a_restore_fences_what_came_after_its_point() {
    let mut s = Story::new();
    let before = s.pay();
    s.checkpoint("c");
    let after = s.pay();
    s.restore(RestoreTarget::Checkpoint("c".into()));
    assert_eq!(s.fenced(before), None);
    assert_eq!(s.fenced(after), Some(Forgotten::Call));
    s.replay(after);
    assert_eq!(s.fenced(after), None, "each is answered once");
    let new = s.pay();
    assert_eq!(s.fenced(new), None);
}

#[test]
fn an_unknown_point_fences_everything() {
    let mut s = Story::new();
    let paid = s.pay();
    s.restore(RestoreTarget::Unknown);
    assert_eq!(s.fenced(paid), Some(Forgotten::Call));
}

#[test]
fn a_chain_fences_a_replayed_effect_again() {
    let mut s = Story::new();
    s.checkpoint("c");
    let paid = s.pay();
    for _ in 0..3 {
        s.restore(RestoreTarget::Checkpoint("c".into()));
        assert_eq!(s.fenced(paid), Some(Forgotten::Call));
        s.replay(paid);
        assert_eq!(s.fenced(paid), None);
    }
    // A restore to just after the last replay remembers it.
    s.checkpoint("later");
    s.pay();
    s.restore(RestoreTarget::Checkpoint("later".into()));
    assert_eq!(s.fenced(paid), None);
}

#[test]
fn restoring_to_a_replayed_effect_remembers_it_where_it_was_replayed() {
    let mut s = Story::new();
    s.checkpoint("c");
    let paid = s.pay();
    let branch = s.restore(RestoreTarget::Checkpoint("c".into()));
    let other = s.pay();
    s.replay(paid);
    assert!(s.lineage.position(branch, paid).unwrap() > other.id.0);
    s.restore(RestoreTarget::Effect(paid));
    assert_eq!(s.fenced(paid), None);
    assert_eq!(s.fenced(other), None);
}

#[test]
fn a_rewind_behind_the_start_of_the_current_branch_forgets_both() {
    let mut s = Story::new();
    s.checkpoint("early");
    let one = s.pay();
    s.checkpoint("late");
    let two = s.pay();
    s.restore(RestoreTarget::Checkpoint("late".into()));
    let three = s.pay();
    s.restore(RestoreTarget::Checkpoint("early".into()));
    for e in [one, two, three] {
        assert_eq!(s.fenced(e), Some(Forgotten::Call));
    }
}

#[test]
fn a_fork_keeps_memory_and_fence() {
    let mut s = Story::new();
    s.checkpoint("c");
    let paid = s.pay();
    s.restore(RestoreTarget::Checkpoint("c".into()));
    let own = s.pay();
    s.fork();
    assert_eq!(s.fenced(own), None, "a fork remembers what its parent did");
    assert_eq!(
        s.fenced(paid),
        Some(Forgotten::Call),
        "and still fences what that forgot"
    );
}

#[test]
fn an_old_process_that_goes_on_is_fenced_too() {
    let mut s = Story::new();
    let first = s.current();
    s.restore(RestoreTarget::Unknown);
    let late = Executed {
        id: EffectId(Seq(s.next)),
        branch: first,
    };
    assert_eq!(s.fenced(late), Some(Forgotten::Call));
}

#[test]
fn what_was_spent_stays_spent_after_its_replay() {
    let mut s = Story::new();
    s.checkpoint("c");
    let spent = s.pay();
    let branch = s.restore(RestoreTarget::Checkpoint("c".into()));
    s.replay(spent);
    assert!(s.lineage.forgotten_at_opening(branch, spent));
    let fork = s.fork();
    // The fork's parent replayed it, so the fork knows it; the parent's own opening still tells.
    assert!(
        s.lineage
            .ancestors(fork)
            .any(|b| s.lineage.forgotten_at_opening(b, spent))
    );
}

#[test]
fn a_lost_outcome_is_fenced_until_it_is_replayed() {
    let mut s = Story::new();
    let paid = s.pay();
    s.write(Event::OutcomeLost {
        effect: paid.id,
        why: "hung up".into(),
        at: AT,
    });
    assert_eq!(s.fenced(paid), Some(Forgotten::Outcome));
    s.replay(paid);
    assert_eq!(s.fenced(paid), None);
}

#[test]
fn a_replay_that_did_not_arrive_is_given_again() {
    let mut s = Story::new();
    s.checkpoint("c");
    let paid = s.pay();
    s.restore(RestoreTarget::Checkpoint("c".into()));
    s.replay(paid);
    s.write(Event::OutcomeLost {
        effect: paid.id,
        why: "hung up".into(),
        at: AT,
    });
    assert_eq!(s.fenced(paid), Some(Forgotten::Outcome));
    s.replay(paid);
    assert_eq!(s.fenced(paid), None);
    // Whoever remembers the answer that did arrive asks for something new.
    s.checkpoint("later");
    s.restore(RestoreTarget::Checkpoint("later".into()));
    assert_eq!(s.fenced(paid), None);
}

#[test]
fn a_conversation_names_what_is_forgotten_to_the_call() {
    let mut s = Story::new();
    let (one, two, three) = (s.pay(), s.pay(), s.pay());
    let first = s.current();
    let rewound = s.rewind(&[
        (two.id, Forgotten::Call, Grade::Certain),
        (three.id, Forgotten::Compacted, Grade::Suspect),
    ]);
    assert_eq!(s.fenced(one), None, "what it still shows is remembered");
    let fenced = s.lineage.fenced(rewound, two).unwrap();
    assert_eq!(
        (fenced.forgotten, fenced.grade, fenced.cause),
        (Forgotten::Call, Grade::Certain, Cause::Restore)
    );
    let fenced = s.lineage.fenced(rewound, three).unwrap();
    assert_eq!(
        (fenced.forgotten, fenced.grade),
        (Forgotten::Compacted, Grade::Suspect)
    );
    // Another line of the thread goes on in the old branch: that is its own business.
    let beside = Executed {
        id: EffectId(Seq(s.next)),
        branch: first,
    };
    assert_eq!(s.fenced(beside), None);
    s.replay(two);
    assert_eq!(s.fenced(two), None);
    assert!(s.lineage.forgotten_at_opening(rewound, two));
    let fork = s.fork();
    let fenced = s.lineage.fenced(fork, three).unwrap();
    assert_eq!(
        (fenced.forgotten, fenced.cause),
        (Forgotten::Compacted, Cause::Fork)
    );
}

#[test]
fn an_outcome_that_is_shown_after_all_is_remembered() {
    let mut s = Story::new();
    let paid = s.pay();
    let branch = s.rewind(&[(paid.id, Forgotten::Outcome, Grade::Certain)]);
    assert_eq!(s.fenced(paid), Some(Forgotten::Outcome));
    s.write(Event::Remembered {
        branch,
        effects: vec![paid.id],
        at: AT,
    });
    assert_eq!(s.fenced(paid), None);
    assert_eq!(s.lineage.replays_of(paid.id), []);
}

#[test]
fn what_an_agents_own_store_shows_raises_a_suspicion_and_nothing_else() {
    let mut s = Story::new();
    let (one, two, three, four) = (s.pay(), s.pay(), s.pay(), s.pay());
    let before = s.current();
    let branch = s.rewind(&[
        (two.id, Forgotten::Call, Grade::Suspect),
        (three.id, Forgotten::Call, Grade::Suspect),
        (four.id, Forgotten::Compacted, Grade::Certain),
    ]);
    assert!(s.lineage.is_suspected(branch, two.id));
    let corroborated = |s: &mut Story, branch, effects| {
        s.write(Event::Corroborated {
            branch,
            effects,
            why: "its checkpoints fork".into(),
            at: AT,
        });
    };
    let grade = |s: &Story, effect| s.lineage.fenced(branch, effect).map(|f| f.grade);

    // Only what is suspected: not what it remembers, what another branch has, or nobody knows.
    corroborated(&mut s, branch, vec![one.id, four.id, EffectId(Seq(999))]);
    corroborated(&mut s, before, vec![two.id]);
    corroborated(&mut s, BranchId(Seq(999)), vec![two.id]);
    assert_eq!(grade(&s, one), None);
    assert_eq!(grade(&s, two), Some(Grade::Suspect));
    assert_eq!(s.lineage.branch(branch).unwrap().note, "shown");

    corroborated(&mut s, branch, vec![one.id, two.id]);
    assert_eq!(grade(&s, one), None);
    assert_eq!(grade(&s, two), Some(Grade::Certain));
    assert_eq!(grade(&s, three), Some(Grade::Suspect));
    assert_eq!(
        s.lineage.fenced(branch, four).unwrap().forgotten,
        Forgotten::Compacted
    );
    let raised = s.lineage.branch(branch).unwrap();
    assert_eq!(raised.note, "shown; certain because its checkpoints fork");
    assert_eq!(raised.grade, Grade::Certain);
    assert!(!s.lineage.is_suspected(branch, two.id));

    // Said again it is no news, and a replay consumes it as ever.
    corroborated(&mut s, branch, vec![two.id]);
    assert_eq!(
        s.lineage.branch(branch).unwrap().note,
        "shown; certain because its checkpoints fork"
    );
    s.replay(two);
    assert_eq!(grade(&s, two), None);
    s.replay(three);
    assert!(!s.lineage.is_suspected(branch, three.id));
}

#[test]
fn a_restore_of_the_agent_is_one_of_every_thread() {
    let mut s = Story::new();
    let main = s.pay();
    let (thread, branch) = Lineage::first_thread(&s.agent, "a conversation", AT);
    let other = ThreadId(s.write(thread));
    let began = BranchId(s.write(branch(other.0)));
    s.checkpoint("c");
    let paid = Executed {
        id: EffectId(Seq(s.next)),
        branch: began,
    };
    s.next += 1;
    let target = RestoreTarget::Checkpoint("c".into());
    let opened = s
        .lineage
        .restored_whole(&s.agent, &target, Grade::Certain, "told", AT)
        .unwrap();
    assert_eq!(opened.len(), 2);
    for event in opened {
        s.write(event);
    }
    assert_eq!(s.fenced(main), None);
    let wide = s.lineage.wide(other).unwrap().id;
    assert!(s.lineage.fenced_elsewhere(wide, paid).is_some());
    assert!(s.lineage.is_restored_whole(&s.agent));
    // Replayed into whatever branch, it is consumed for all.
    s.replay(paid);
    assert_eq!(s.lineage.fenced_elsewhere(wide, paid), None);
    // A point in one thread's timeline is a position in the others'.
    let target = RestoreTarget::Effect(main);
    let opened = s
        .lineage
        .restored_whole(&s.agent, &target, Grade::Certain, "told", AT)
        .unwrap();
    for event in opened {
        s.write(event);
    }
    assert_eq!(s.fenced(main), None);
    let wide = s.lineage.wide(other).unwrap().id;
    assert!(s.lineage.fenced_elsewhere(wide, paid).is_some());
}

#[test]
fn errors_name_what_there_is() {
    let mut s = Story::new();
    s.checkpoint("monday");
    let err = s
        .lineage
        .restored(
            &s.agent,
            s.thread,
            &RestoreTarget::Checkpoint("tuesday".into()),
            Grade::Certain,
            "",
            AT,
        )
        .unwrap_err();
    assert!(err.to_string().contains("there are: monday"), "{err}");
    let nobody: AgentName = "nobody".parse().unwrap();
    assert!(s.lineage.thread_of(&nobody, None).is_err());
}

#[derive(Clone, Debug)]
enum Step {
    Pay,
    Checkpoint,
    Restore(usize),
    RestoreUnknown,
    Fork,
    Replay(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => Just(Step::Pay),
        2 => Just(Step::Checkpoint),
        2 => any::<usize>().prop_map(Step::Restore),
        1 => Just(Step::RestoreUnknown),
        1 => Just(Step::Fork),
        3 => any::<usize>().prop_map(Step::Replay),
    ];
    proptest::collection::vec(step, 0..40)
}

proptest! {
    /// Against the plainest model there is: an agent's memory is a list of effects, a checkpoint is
    /// a copy of it, a restore puts a copy back, the world never forgets.
    #[test]
    fn fenced_is_what_happened_and_is_not_in_memory(script in steps()) {
        let mut s = Story::new();
        let mut world: Vec<Executed> = vec![];
        let mut memory: Vec<EffectId> = vec![];
        let mut saved: Vec<Vec<EffectId>> = vec![];
        for step in script {
            match step {
                Step::Pay => { let e = s.pay(); world.push(e); memory.push(e.id); }
                Step::Checkpoint => { s.checkpoint(&format!("c{}", saved.len())); saved.push(memory.clone()); }
                Step::Restore(n) if !saved.is_empty() => {
                    let n = n % saved.len();
                    s.restore(RestoreTarget::Checkpoint(format!("c{n}")));
                    memory = saved[n].clone();
                }
                Step::RestoreUnknown => { s.restore(RestoreTarget::Unknown); memory.clear(); }
                Step::Fork => { s.fork(); }
                Step::Replay(n) => {
                    let fenced: Vec<_> = world.iter().filter(|e| s.fenced(**e).is_some()).copied().collect();
                    if !fenced.is_empty() { let e = fenced[n % fenced.len()]; s.replay(e); memory.push(e.id); }
                }
                Step::Restore(_) => {}
            }
            let restored = s.lineage.is_restored(s.current());
            for e in &world {
                let expected = restored && !memory.contains(&e.id);
                prop_assert_eq!(s.fenced(*e).is_some(), expected, "{:?} in {}", e, s.current());
            }
        }
    }
}

#[test]
fn a_checkpoint_does_not_remember_what_was_running() {
    let mut s = Story::new();
    let known = s.pay();
    let running = s.pay();
    let through = Seq(running.id.0.0 - 1);
    let taken = s.checkpoint_through("c", Some(through));
    let after = s.pay();
    for target in [
        RestoreTarget::Checkpoint("c".into()),
        RestoreTarget::CheckpointAt(taken),
    ] {
        s.restore(target);
        assert_eq!(s.fenced(known), None);
        assert_eq!(s.fenced(running), Some(Forgotten::Call));
        assert_eq!(s.fenced(after), Some(Forgotten::Call));
    }
}

#[test]
fn a_checkpoint_is_found_by_its_position_whatever_its_name() {
    let mut s = Story::new();
    let early = s.checkpoint_through("c", None);
    let paid = s.pay();
    s.checkpoint("c");
    s.restore(RestoreTarget::CheckpointAt(early));
    assert_eq!(s.fenced(paid), Some(Forgotten::Call));
    // By name the latest counts.
    s.restore(RestoreTarget::Checkpoint("c".into()));
    assert_eq!(s.fenced(paid), None);
}
