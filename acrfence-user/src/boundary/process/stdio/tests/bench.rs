//! What the tests stand on: an arbiter that does what tools' names say, an agent and a program by hand.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use nix::fcntl::OFlag;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use super::super::*;
use crate::boundary::{Admission, Arbiter, OpaqueFlow, Ticket, Trouble, Unasked};
use crate::effect::LogError;
use crate::words::{
    EffectId, Ending, McpRequest, McpResponse, Origin, ProcessIdentity, Refusal, RefusalCode,
    Request, Response, Seq, ToolCall,
};

/// What the fake arbiter does with calls of a tool, by its name.
#[derive(Default)]
pub(super) struct Judge {
    /// Every call admitted, and how it ended.
    pub(super) seen: Mutex<Vec<(String, Option<String>)>>,
    pub(super) troubles: Mutex<Vec<String>>,
    pub(super) tools: Mutex<Vec<(String, String)>>,
    /// What was told of effects whose outcome the agent does not know.
    pub(super) lost: Mutex<Vec<String>>,
    /// Lets calls of tools named `held…` go.
    pub(super) go: Notify,
    /// Lets outcomes of tools named `slow…` reach the disk.
    pub(super) disk: Notify,
}

pub(super) struct FakeTicket {
    pub(super) judge: Arc<Judge>,
    pub(super) index: usize,
    pub(super) name: String,
}

/// The judge as an arbiter.
pub(super) struct Court(pub(super) Arc<Judge>);

#[async_trait]
impl Arbiter for Court {
    async fn witness(&self, _: ToolCall, _: ProcessIdentity) -> Option<Box<dyn Ticket>> {
        panic!("no command here");
    }

    fn unasked(&self, _: Unasked) {
        panic!("no command here");
    }

    async fn admit(&self, call: ToolCall) -> Admission {
        let Request::Mcp(McpRequest { name, .. }) = call.request else {
            panic!("not MCP");
        };
        if name.starts_with("held") {
            self.0.go.notified().await;
        }
        if name.starts_with("refuse") {
            return Admission::Refuse(Refusal {
                code: RefusalCode::Diverged,
                title: "It differs".to_owned(),
                detail: String::new(),
                effect: Some(EffectId(Seq(9))),
                fields: Vec::new(),
                hold: None,
            });
        }
        if name.starts_with("replay") {
            return Admission::Replay {
                effect: EffectId(Seq(4)),
                response: Response::Mcp(McpResponse {
                    is_result: true,
                    answer: r#"{"recorded":1}"#.to_owned(),
                    is_error: false,
                }),
            };
        }
        let mut seen = self.0.seen.lock();
        seen.push((name.clone(), None));
        Admission::Forward(Box::new(FakeTicket {
            judge: self.0.clone(),
            index: seen.len() - 1,
            name,
        }))
    }

    async fn admit_opaque(&self, _: &OpaqueFlow) -> Result<(), Refusal> {
        Ok(())
    }

    fn opaque_ended(&self, _: OpaqueFlow) {}

    fn trouble(&self, trouble: Trouble) {
        self.0.troubles.lock().push(trouble.detail);
    }

    fn undelivered(&self, _: &Origin, effect: EffectId) {
        self.0.lost.lock().push(format!("undelivered {effect}"));
    }

    fn abandoned(&self, _: &Origin, effect: EffectId) {
        self.0.lost.lock().push(format!("abandoned {effect}"));
    }

    fn tools_seen(&self, _: &Origin, server: &str, tools: &str) {
        self.0
            .tools
            .lock()
            .push((server.to_owned(), tools.to_owned()));
    }
}

#[async_trait]
impl Ticket for FakeTicket {
    fn effect(&self) -> Option<EffectId> {
        Some(EffectId(Seq(7)))
    }

    fn holds_end(&self) -> bool {
        !self.name.starts_with("loose")
    }

    async fn settle(self: Box<Self>, ending: Ending) -> Result<(), LogError> {
        if self.name.starts_with("slow") {
            self.judge.disk.notified().await;
        }
        if self.name.starts_with("unlucky") {
            return Err(LogError::Stopped {
                detail: "a torn write".to_owned(),
            });
        }
        let text = match ending {
            Ending::Response(Response::Mcp(answer)) => answer.answer,
            Ending::NotSent { why } => format!("not sent: {why}"),
            Ending::Broken { why, .. } => format!("broken: {why}"),
            other => panic!("{other:?}"),
        };
        self.judge.seen.lock()[self.index].1 = Some(text);
        Ok(())
    }
}

pub(super) fn pipe() -> (OwnedFd, OwnedFd) {
    nix::unistd::pipe2(OFlag::O_CLOEXEC).unwrap()
}

/// A relay with the outer ends of its pipes.
pub(super) struct Bench {
    pub(super) judge: Arc<Judge>,
    /// The agent's ends: what it writes to and reads from.
    pub(super) agent: (OwnedFd, OwnedFd),
    /// The program's ends: what it reads from and writes to.
    pub(super) server: (OwnedFd, OwnedFd),
    pub(super) relay: tokio::task::JoinHandle<Summary>,
}

pub(super) fn limits() -> Limits {
    Limits {
        message: 100_000,
        first: 50_000,
        patience: Duration::from_millis(50),
        after_cancel: Duration::from_millis(50),
        linger: Duration::from_secs(5),
        behind: 100_000,
    }
}

pub(super) fn bench() -> Bench {
    bench_with(pipe(), pipe(), limits())
}

pub(super) fn bench_with(
    from_agent: (OwnedFd, OwnedFd),
    to_agent: (OwnedFd, OwnedFd),
    limits: Limits,
) -> Bench {
    let (to_server, from_server) = (pipe(), pipe());
    let judge = Arc::new(Judge::default());
    let ends = Ends {
        agent_in: Source::shared(from_agent.0).unwrap(),
        agent_out: Sink::shared(to_agent.1).unwrap(),
        server_in: Sink::ours(to_server.1).unwrap(),
        server_out: Source::ours(from_server.0).unwrap(),
    };
    let session = Session {
        arbiter: Arc::new(Court(judge.clone())),
        origin: origin(),
        inside: Some(origin().process),
        server: "bank".to_owned(),
        limits,
    };
    Bench {
        judge,
        agent: (from_agent.1, to_agent.0),
        server: (to_server.0, from_server.1),
        relay: tokio::spawn(relay(ends, session)),
    }
}

pub(super) fn origin() -> Origin {
    Origin {
        agent: "a".parse().unwrap(),
        incarnation: 1,
        process: ProcessIdentity {
            tgid: 1,
            start_ns: 1,
        },
        exe: String::new(),
        argv: Vec::new(),
        cwd: String::new(),
        uid: 0,
        connection: None,
        gaps: String::new(),
    }
}

/// One side, spoken to line by line without blocking the runtime.
pub(super) struct Side {
    pub(super) to: Option<std::fs::File>,
    pub(super) lines: mpsc::UnboundedReceiver<String>,
}

impl Side {
    pub(super) fn new(to: OwnedFd, from: OwnedFd) -> Self {
        let (sender, lines) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            let mut reader = BufReader::new(std::fs::File::from(from));
            loop {
                let mut line = Vec::new();
                match reader.read_until(b'\n', &mut line) {
                    Ok(n) if n > 0 => {}
                    _ => return,
                }
                if sender.send(String::from_utf8(line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Self {
            to: Some(to.into()),
            lines,
        }
    }

    pub(super) fn say(&mut self, line: &str) {
        let to = self.to.as_mut().unwrap();
        to.write_all(line.as_bytes()).unwrap();
        to.write_all(b"\n").unwrap();
    }

    /// The next line; none at the end of the stream.
    pub(super) async fn hear(&mut self) -> Option<String> {
        let line = tokio::time::timeout(Duration::from_secs(10), self.lines.recv()).await;
        line.expect("nothing came")
            .map(|line| line.trim_end_matches('\n').to_owned())
    }

    /// Makes sure that nothing has come, after `other` was seen to have been passed on.
    pub(super) fn heard_nothing(&mut self) {
        assert_eq!(self.lines.try_recv().ok(), None);
    }
}

impl Bench {
    pub(super) fn sides(self) -> (Side, Side, Arc<Judge>, tokio::task::JoinHandle<Summary>) {
        (
            Side::new(self.agent.0, self.agent.1),
            Side::new(self.server.1, self.server.0),
            self.judge,
            self.relay,
        )
    }

    /// Both sides after the opening of an MCP session.
    pub(super) async fn opened(self) -> (Side, Side, Arc<Judge>, tokio::task::JoinHandle<Summary>) {
        let (mut agent, mut server, judge, relay) = self.sides();
        agent.say(INITIALIZE);
        assert_eq!(server.hear().await.as_deref(), Some(INITIALIZE));
        server.say(INITIALIZED);
        assert_eq!(agent.hear().await.as_deref(), Some(INITIALIZED));
        (agent, server, judge, relay)
    }
}

pub(super) const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
pub(super) const INITIALIZED: &str = r#"{"jsonrpc":"2.0","id":0,"result":{"capabilities":{}}}"#;
pub(super) const PING: &str = r#"{"jsonrpc":"2.0","id":"p","method":"ping"}"#;

pub(super) fn call(id: &str, name: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{name}","arguments":{{}}}}}}"#
    )
}

pub(super) fn result(id: &str, text: &str) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{"text":"{text}"}}}}"#)
}

pub(super) fn cancel(id: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{{"requestId":{id}}}}}"#
    )
}
