//! Events for tests, and strategies that make them.

use proptest::prelude::*;

use super::{Event, Harvest, HoldDecision, Prepared};
use crate::words::{
    Absent, AgentName, Body, Branch, BranchId, Cause, Checkpoint, Digest, EffectId, ExecRequest,
    ExecResponse, ExitStatus, Fingerprint, Forgotten, ForkPoint, Grade, Header, HoldId,
    HttpRequest, HttpResponse, Incarnation, IncarnationCause, McpRequest, McpResponse, Opaque,
    OpaqueClass, OpaqueStep, Origin, Outcome, ProcessIdentity, Ran, RanEnd, Refusal, RefusalCode,
    Request, Resolution, Response, Seq, Thread, ThreadId, Timestamp, ToolCall, ToolKey,
};

/// An agent.
pub fn agent(n: u8) -> AgentName {
    format!("agent-{n}").parse().expect("a plain name")
}

/// A call of agent `n`; `text` is somewhere in its body.
pub fn call(n: u8, at: u64, text: &str) -> ToolCall {
    let request = match n % 3 {
        0 => Request::Http(HttpRequest {
            method: "POST".into(),
            url: format!("https://host-{}.test:8443/pay?q={n}", n % 4),
            headers: vec![Header::new("Content-Type", "application/json")],
            body: Body::whole(format!("{{\"note\":\"{text}\"}}").into_bytes()),
            rpc: Vec::new(),
        }),
        1 => Request::Mcp(McpRequest {
            server: "stdio-server --flag".into(),
            name: "pay".into(),
            arguments: format!("{{\"note\":\"{text}\"}}"),
            meta: None,
            headers: Vec::new(),
            extra: None,
        }),
        _ => Request::Exec(ExecRequest {
            argv: vec!["git".into(), "push".into(), text.into()],
            cwd: "/tmp".into(),
            env: vec![("LANG".into(), "C".into())],
            stdin: None,
        }),
    };
    ToolCall {
        at: Timestamp(at),
        request,
        origin: Origin {
            agent: agent(n % 3),
            incarnation: 1,
            process: ProcessIdentity {
                tgid: 100 + u32::from(n % 5),
                start_ns: 5,
            },
            exe: "/usr/bin/agent".into(),
            argv: vec!["agent".into()],
            cwd: "/".into(),
            uid: 1000,
            connection: None,
            gaps: String::new(),
        },
    }
}

/// A *prepared* record.
pub fn prepared(n: u8, at: u64, text: &str) -> Event {
    Event::Prepared(Box::new(Prepared {
        key: ToolKey(format!("tool-{}", n % 4)),
        thread: ThreadId(Seq(u64::from(n % 2) + 1)),
        branch: BranchId(Seq(u64::from(n % 3) + 1)),
        parent: (n % 4 == 3).then_some(EffectId(Seq(u64::from(n)))),
        co_parents: (0..u64::from(n % 3)).map(|n| EffectId(Seq(n))).collect(),
        call: call(n, at, text),
        presented: vec![fingerprint(n % 6)],
        values: vec![u64::from(n % 7), 1_000 + u64::from(n % 11)],
        retry_of: None,
    }))
}

/// A fingerprint.
pub fn fingerprint(n: u8) -> Fingerprint {
    Fingerprint([n; 16])
}

/// A response that fits the call of [`call`]; `text` is somewhere in it.
pub fn response(n: u8, text: &str) -> Response {
    match n % 3 {
        0 => Response::Http(HttpResponse {
            status: 200 + u16::from(n),
            headers: vec![Header::new("X-Id", vec![0xff, n])],
            body: Body::whole(text.as_bytes().to_vec()),
            trailers: Vec::new(),
        }),
        1 => Response::Mcp(McpResponse {
            is_result: true,
            answer: format!("{{\"text\":\"{text}\"}}"),
            is_error: false,
        }),
        _ => Response::Exec(ExecResponse {
            exit: i32::from(n) - 100,
            stdout: Body::whole(text.as_bytes().to_vec()),
            stderr: Body::empty(),
        }),
    }
}

/// An outcome for an effect.
pub fn settled(effect: EffectId, outcome: Outcome, n: u8, at: u64) -> Event {
    Event::Settled {
        effect,
        outcome,
        at: Timestamp(at),
        harvest: harvest(n),
    }
}

/// What a message told.
pub fn harvest(n: u8) -> Harvest {
    Harvest {
        issued: vec![fingerprint(n % 5)],
        values: vec![u64::from(n % 9), 2_000 + u64::from(n % 13)],
    }
}

/// A step of a random history: what to write, with effects chosen among those that are there.
#[derive(Clone, Debug)]
pub enum Step {
    /// Append it and wait.
    Append(Box<Event>),
    /// Note it.
    Note(Box<Event>),
    /// An outcome for one of the effects so far.
    Settle {
        which: prop::sample::Index,
        n: u8,
        how: u8,
        note: bool,
        text: String,
    },
    /// A person's answer about one of the effects so far.
    Resolve {
        which: prop::sample::Index,
        n: u8,
        happened: bool,
    },
    /// Close and open again.
    Reopen,
    /// Let the index take everything in.
    CatchUp,
}

impl Step {
    /// The event, given the effects so far; none when there is none to speak of.
    pub fn event(&self, effects: &[EffectId], at: u64) -> Option<Event> {
        match self {
            Self::Append(event) | Self::Note(event) => Some((**event).clone()),
            Self::Settle {
                which,
                n,
                how,
                text,
                ..
            } => {
                let effect = *effects.get(which.index(effects.len().max(1)))?;
                let outcome = match how % 4 {
                    0 | 1 => Outcome::Completed(response(*n, text)),
                    2 => Outcome::Failed {
                        why: format!("refused {n}"),
                        response: Some(response(*n, text)),
                    },
                    _ => Outcome::InDoubt {
                        why: format!("reset {n}"),
                        response: None,
                    },
                };
                Some(settled(effect, outcome, *n, at))
            }
            Self::Resolve { which, n, happened } => {
                let effect = *effects.get(which.index(effects.len().max(1)))?;
                let resolution = if *happened {
                    Resolution::Happened(response(*n, "resolved"))
                } else {
                    Resolution::DidNotHappen
                };
                Some(Event::Resolved {
                    effect,
                    resolution,
                    by: format!("uid {n}"),
                    at: Timestamp(at),
                })
            }
            Self::Reopen | Self::CatchUp => None,
        }
    }
}

/// Random steps.
pub fn step() -> impl Strategy<Value = Step> {
    let text = prop_oneof![8 => "[a-z]{0,30}", 1 => "[a-z]{9000}", 1 => "needle"];
    let boxed = |event: Event| Box::new(event);
    prop_oneof![
        8 => (any::<u8>(), 1u64..5000, text.clone()).prop_map(move |(n, at, text)| Step::Append(boxed(prepared(n, at, &text)))),
        8 => (any::<prop::sample::Index>(), any::<u8>(), any::<u8>(), any::<bool>(), text)
            .prop_map(|(which, n, how, note, text)| Step::Settle { which, n, how, note, text }),
        2 => (any::<prop::sample::Index>(), any::<u8>(), any::<bool>())
            .prop_map(|(which, n, happened)| Step::Resolve { which, n, happened }),
        3 => (any::<u8>(), any::<bool>()).prop_map(move |(n, note)| {
            let event = boxed(Event::Observed {
                thread: ThreadId(Seq(u64::from(n % 2) + 1)),
                harvest: harvest(n),
                at: Timestamp(n.into()),
            });
            if note { Step::Note(event) } else { Step::Append(event) }
        }),
        4 => (0..15u8, any::<u8>(), any::<bool>()).prop_map(move |(kind, n, note)| {
            let event = boxed(lineage(kind, n));
            if note { Step::Note(event) } else { Step::Append(event) }
        }),
        1 => Just(Step::Reopen),
        1 => Just(Step::CatchUp),
    ]
}

fn lineage(kind: u8, n: u8) -> Event {
    let at = Timestamp(n.into());
    let branch = BranchId(Seq(u64::from(n % 3) + 1));
    match kind {
        0 => Event::IncarnationBegan(Incarnation {
            agent: agent(n % 3),
            number: n.into(),
            cause: IncarnationCause::Attach,
            root: ProcessIdentity {
                tgid: n.into(),
                start_ns: 1,
            },
            boot_id: "b".into(),
            uid: 0,
            exe: "/bin/x".into(),
            argv: vec!["x".into()],
            at,
        }),
        1 => Event::IncarnationEnded {
            agent: agent(n % 3),
            number: n.into(),
            at,
            why: "exited".into(),
        },
        2 => Event::ThreadOpened(Thread {
            id: ThreadId(Seq(0)),
            agent: agent(n % 3),
            title: "main".into(),
            at,
        }),
        3 => Event::BranchOpened(Branch {
            id: BranchId(Seq(0)),
            thread: ThreadId(Seq(1)),
            parent: None,
            fork_point: ForkPoint::At(Seq(n.into())),
            cause: Cause::Restore,
            grade: Grade::Certain,
            note: String::new(),
            at,
            absent: (n.is_multiple_of(2)).then(|| {
                vec![Absent {
                    effect: EffectId(Seq(n.into())),
                    forgotten: Forgotten::Call,
                    grade: Grade::Certain,
                }]
            }),
            wide: n.is_multiple_of(3),
        }),
        4 => Event::CheckpointTaken(Checkpoint {
            agent: agent(n % 3),
            name: "c".into(),
            thread: None,
            at,
            through: n.is_multiple_of(2).then_some(Seq(n.into())),
            image: n.is_multiple_of(4).then(|| crate::words::Image {
                incarnation: 1,
                processes: vec![crate::words::Saved {
                    pid: 7,
                    start_ns: n.into(),
                    program: "python3".into(),
                }],
                dir: n.is_multiple_of(8).then(|| "/images".into()),
            }),
        }),
        5 => Event::Replayed {
            effect: EffectId(Seq(1)),
            branch,
            call: Box::new(call(n, 1, "again")),
            why: n.is_multiple_of(3).then(|| "carried out again".into()),
            at,
        },
        6 => Event::Refused {
            branch,
            call: Box::new(call(n, 1, "other")),
            refusal: Refusal {
                code: RefusalCode::Diverged,
                title: "t".into(),
                detail: "d".into(),
                effect: n.is_multiple_of(2).then_some(EffectId(Seq(1))),
                fields: Vec::new(),
                hold: Some(HoldId(Seq(3))),
            },
            enforced: true,
            at,
        },
        7 => Event::HoldOpened {
            branch,
            effect: EffectId(Seq(1)),
            key: ToolKey("k".into()),
            call: Box::new(call(n, 1, "held")),
            why: "w".into(),
            at,
        },
        8 => Event::HoldUsed {
            hold: HoldId(Seq(1)),
            at,
        },
        9 => Event::OutcomeLost {
            effect: EffectId(Seq(1)),
            why: "hung up".into(),
            at,
        },
        10 => Event::Asked {
            effect: EffectId(Seq(1)),
            rule: "rule 1 of the policy".into(),
            how: "query".into(),
            question: Box::new(call(n, 1, "asked").request),
            at,
        },
        11 => Event::Answered {
            effect: EffectId(Seq(1)),
            asked: Seq(2),
            answer: Some(response(n, "answered")),
            finding: "unknown".into(),
            why: "it says neither".into(),
            at,
        },
        13 => Event::Opaque(Box::new(Opaque {
            origin: call(n, 1, "").origin,
            class: OpaqueClass::Database,
            peer: "10.0.0.1:5432".into(),
            why: "PostgreSQL".into(),
            step: OpaqueStep::Began,
            sent: n.into(),
            received: 0,
            digest: Some(Digest::of(&[n])),
            digested: 1,
            at,
        })),
        14 => Event::Ran(Box::new(Ran {
            origin: call(n, 1, "").origin,
            parent: None,
            began: at,
            end: RanEnd::Exited(ExitStatus::Code(n.into())),
            at,
        })),
        _ => Event::HoldDecided {
            hold: HoldId(Seq(1)),
            decision: HoldDecision::Forward,
            by: "uid 0".into(),
            at,
        },
    }
}
