use proptest::prelude::*;

use super::*;
use crate::lineage::Fenced;
use crate::words::*;

const RULES: Rules = Rules {
    unmatched: Unmatched::Forward,
    suspect: SuspectRule::Hold,
    compacted: CompactedRule::Hold,
};

fn branch(cause: Cause, grade: Grade) -> Branch {
    Branch {
        id: BranchId(Seq(100)),
        thread: ThreadId(Seq(1)),
        parent: Some(BranchId(Seq(2))),
        fork_point: ForkPoint::Unknown,
        cause,
        grade,
        note: String::new(),
        at: Timestamp(0),
        absent: None,
        wide: false,
    }
}

fn candidate(n: u64, status: Status, likeness: Likeness) -> Candidate {
    Candidate {
        effect: EffectId(Seq(n)),
        status,
        fenced: Fenced {
            forgotten: Forgotten::Call,
            grade: Grade::Certain,
            cause: Cause::Restore,
        },
        comparison: Comparison {
            likeness,
            fields: vec![],
        },
        replayable: true,
    }
}

fn spent(n: u64) -> Spent {
    Spent {
        fingerprint: Fingerprint([7; 16]),
        consumed_by: EffectId(Seq(n)),
    }
}

fn on(branch: &Branch, candidates: &[Candidate], spent: &[Spent]) -> Decision {
    decide(
        &Situation {
            branch,
            candidates: &forgotten_by(branch, candidates),
            spent,
        },
        RULES,
    )
}

/// The candidates as the branch's fork point fences them.
fn forgotten_by(branch: &Branch, candidates: &[Candidate]) -> Vec<Candidate> {
    let mut candidates = candidates.to_vec();
    for c in &mut candidates {
        if c.fenced != Fenced::LOST {
            c.fenced.grade = branch.grade;
            c.fenced.cause = branch.cause;
        }
    }
    candidates
}

use Likeness::{Different, Equivalent, Unsure};
use Status::{Completed, InDoubt, Prepared};

#[test]
fn rule_1_a_spent_credential_opens_nothing_else_not_even_in_a_fork() {
    for cause in [Cause::Restore, Cause::Fork] {
        let b = branch(cause, Grade::Certain);
        let blocked = Decision::Block {
            code: RefusalCode::CredentialConsumed,
            effect: Some(EffectId(Seq(5))),
        };
        assert_eq!(on(&b, &[], &[spent(5)]), blocked);
        assert_eq!(
            on(&b, &[candidate(5, Completed, Different)], &[spent(5)]),
            blocked
        );
        assert_eq!(
            on(&b, &[candidate(4, Completed, Equivalent)], &[spent(5)]),
            blocked
        );
        assert_eq!(
            on(&b, &[candidate(5, Completed, Equivalent)], &[spent(5)]),
            Decision::Replay(EffectId(Seq(5)))
        );
    }
}

#[test]
fn rule_1_the_effect_that_spent_it_answers_also_behind_an_older_twin() {
    let b = branch(Cause::Restore, Grade::Certain);
    let twins = [
        candidate(4, Completed, Equivalent),
        candidate(5, Completed, Equivalent),
    ];
    assert_eq!(
        on(&b, &twins, &[spent(5)]),
        Decision::Replay(EffectId(Seq(5)))
    );
}

#[test]
fn rule_2_the_nearest_equivalent_answers() {
    let b = branch(Cause::Restore, Grade::Certain);
    let c = [
        candidate(3, Completed, Different),
        candidate(4, Completed, Equivalent),
        candidate(5, Completed, Equivalent),
    ];
    assert_eq!(on(&b, &c, &[]), Decision::Replay(EffectId(Seq(4))));
}

#[test]
fn rule_3_running_twins_are_awaited_and_doubt_is_held() {
    let b = branch(Cause::Restore, Grade::Certain);
    assert_eq!(
        on(&b, &[candidate(4, Prepared, Equivalent)], &[]),
        Decision::AwaitTwin(EffectId(Seq(4)))
    );
    let held = Decision::Hold {
        effect: EffectId(Seq(4)),
        reason: HoldReason::InDoubt,
    };
    assert_eq!(on(&b, &[candidate(4, InDoubt, Equivalent)], &[]), held);
    // Also without any restore: nobody knows the outcome.
    let start = branch(Cause::Start, Grade::Certain);
    let own = Candidate {
        fenced: Fenced::LOST,
        ..candidate(4, InDoubt, Equivalent)
    };
    assert_eq!(on(&start, &[own], &[]), held);
}

#[test]
fn rule_4_a_different_call_needs_a_fork() {
    let different = [candidate(4, Completed, Different)];
    let blocked = Decision::Block {
        code: RefusalCode::Diverged,
        effect: Some(EffectId(Seq(4))),
    };
    assert_eq!(
        on(&branch(Cause::Restore, Grade::Certain), &different, &[]),
        blocked
    );
    assert_eq!(
        on(&branch(Cause::Restore, Grade::Suspect), &different, &[]),
        Decision::Forward
    );
    assert_eq!(
        on(&branch(Cause::Fork, Grade::Certain), &different, &[]),
        Decision::Forward
    );
    let unsure = [candidate(4, Completed, Unsure)];
    let held = Decision::Hold {
        effect: EffectId(Seq(4)),
        reason: HoldReason::Unsure,
    };
    assert_eq!(on(&branch(Cause::Fork, Grade::Certain), &unsure, &[]), held);
}

#[test]
fn an_effect_that_is_remembered_stops_only_its_own_repetition() {
    let b = branch(Cause::Restore, Grade::Certain);
    let remembered = Candidate {
        fenced: Fenced::LOST,
        ..candidate(4, InDoubt, Different)
    };
    assert_eq!(on(&b, &[remembered], &[]), Decision::Forward);
}

#[test]
fn rule_5_what_nothing_resembles_is_new() {
    let b = branch(Cause::Restore, Grade::Certain);
    assert_eq!(on(&b, &[], &[]), Decision::Forward);
    let strict = Rules {
        unmatched: Unmatched::Block,
        ..RULES
    };
    let blocked = Decision::Block {
        code: RefusalCode::Policy,
        effect: None,
    };
    assert_eq!(
        decide(
            &Situation {
                branch: &b,
                candidates: &[],
                spent: &[]
            },
            strict
        ),
        blocked
    );
}

#[test]
fn a_suspected_restore_asks_a_person() {
    let b = branch(Cause::Restore, Grade::Suspect);
    let c = [candidate(4, Completed, Equivalent)];
    assert_eq!(
        on(&b, &c, &[]),
        Decision::Hold {
            effect: EffectId(Seq(4)),
            reason: HoldReason::Suspect
        }
    );
    let with = |suspect| {
        decide(
            &Situation {
                branch: &b,
                candidates: &forgotten_by(&b, &c),
                spent: &[],
            },
            Rules { suspect, ..RULES },
        )
    };
    assert_eq!(
        with(SuspectRule::Replay),
        Decision::Replay(EffectId(Seq(4)))
    );
    assert_eq!(with(SuspectRule::Forward), Decision::Forward);
}

#[test]
fn what_a_shortened_history_lost_is_held_or_given_again_and_stops_nothing_else() {
    let b = branch(Cause::Restore, Grade::Certain);
    let behind_a_summary = |likeness| Candidate {
        fenced: Fenced {
            forgotten: Forgotten::Compacted,
            grade: Grade::Certain,
            cause: Cause::Restore,
        },
        ..candidate(4, Completed, likeness)
    };
    let with = |likeness, compacted| {
        decide(
            &Situation {
                branch: &b,
                candidates: &[behind_a_summary(likeness)],
                spent: &[],
            },
            Rules { compacted, ..RULES },
        )
    };
    let effect = EffectId(Seq(4));
    assert_eq!(
        with(Equivalent, CompactedRule::Hold),
        Decision::Hold {
            effect,
            reason: HoldReason::Compacted
        }
    );
    assert_eq!(
        with(Equivalent, CompactedRule::Replay),
        Decision::Replay(effect)
    );
    assert_eq!(with(Different, CompactedRule::Hold), Decision::Forward);
}

#[test]
fn a_call_that_is_known_without_its_outcome_after_a_restore_is_fenced_like_a_forgotten_one() {
    let b = branch(Cause::Restore, Grade::Certain);
    let aborted = Candidate {
        fenced: Fenced {
            forgotten: Forgotten::Outcome,
            grade: Grade::Certain,
            cause: Cause::Restore,
        },
        ..candidate(4, Completed, Different)
    };
    assert_eq!(
        on(&b, &[aborted], &[]),
        Decision::Block {
            code: RefusalCode::Diverged,
            effect: Some(EffectId(Seq(4))),
        }
    );
}

#[test]
fn a_refusal_says_what_was_done_what_differs_and_what_to_do() {
    let field = Field {
        path: "body.amount".into(),
        class: FieldClass::Intent,
        reason: "a number".into(),
        recorded: Some("100".into()),
        restored: Some("900".into()),
    };
    let earlier = Earlier {
        id: EffectId(Seq(4)),
        key: ToolKey("POST bank.example/v1/transfers".into()),
        at: Timestamp(0),
        status: Completed,
        comparison: Some(Comparison {
            likeness: Different,
            fields: vec![field],
        }),
    };
    let decision = Decision::Block {
        code: RefusalCode::Diverged,
        effect: Some(EffectId(Seq(4))),
    };
    let agent = "buyer".parse().unwrap();
    let told = refusal(&decision, &agent, Some(&earlier), None).unwrap();
    for needed in [
        "e4",
        "POST bank.example/v1/transfers",
        "`100`",
        "`900`",
        "acrfence fork buyer",
        "Nothing was sent",
    ] {
        assert!(
            told.detail.contains(needed),
            "{needed} is missing in: {}",
            told.detail
        );
    }
    assert_eq!(refusal(&Decision::Forward, &agent, None, None), None);
}

fn any_candidate() -> impl Strategy<Value = Candidate> {
    (
        1..20u64,
        prop_oneof![Just(Completed), Just(Prepared), Just(InDoubt)],
        prop_oneof![Just(Equivalent), Just(Different), Just(Unsure)],
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(n, status, likeness, call, replayable)| Candidate {
            replayable,
            fenced: if call {
                candidate(n, status, likeness).fenced
            } else {
                Fenced::LOST
            },
            ..candidate(n, status, likeness)
        })
}

proptest! {
    /// The worst errors cannot come out of the rules, whatever goes in.
    #[test]
    fn never_the_worst_errors(
        candidates in proptest::collection::vec(any_candidate(), 0..6),
        spent_by in proptest::collection::vec(1..20u64, 0..3),
        fork in any::<bool>(), certain in any::<bool>(), replay_suspects in any::<bool>(),
    ) {
        let b = branch(if fork { Cause::Fork } else { Cause::Restore }, if certain { Grade::Certain } else { Grade::Suspect });
        let spents: Vec<_> = spent_by.iter().map(|n| spent(*n)).collect();
        let suspect = if replay_suspects { SuspectRule::Replay } else { SuspectRule::Hold };
        let candidates = forgotten_by(&b, &candidates);
        let decision = decide(&Situation { branch: &b, candidates: &candidates, spent: &spents }, Rules { suspect, ..RULES });
        match decision {
            Decision::Replay(effect) => {
                let by = candidates.iter().find(|c| c.effect == effect && c.comparison.likeness == Equivalent && c.status == Completed);
                prop_assert!(by.is_some_and(|c| c.replayable), "replayed something else: {effect}");
            }
            Decision::Forward => {
                prop_assert!(spents.is_empty(), "a spent credential was let through");
                prop_assert!(candidates.iter().all(|c| c.comparison.likeness == Different), "a possible duplicate was sent");
                let forgotten = candidates.iter().any(|c| c.fenced.forgotten == Forgotten::Call);
                prop_assert!(!(forgotten && certain && !fork), "a different call was sent without a fork");
            }
            _ => {}
        }
    }
}
