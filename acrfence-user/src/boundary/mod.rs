//! The tool boundary: takes redirected connections, terminates TLS, reads calls, asks the
//! [`Arbiter`], and only then connects upstream (DESIGN.md §5).
//!
//! The way of a connection: [`Boundary`] accepts it and learns whose it is, `connection` finds out
//! what it carries (`sniff`, `tls`), `http::agent` reads requests whole, `mcp` takes tool calls out
//! of them, `http::exchange` decides and sends each in a task of its own, `http::upstream` knows
//! whether a request left, `http::relay` and `mcp::events` bring the response back and hold its end
//! until the outcome is on disk. What is no HTTP goes through `opaque`.
//!
//! Two things touch the upstream before anything is decided, because nothing can be decided without:
//! a connection whose server may speak first is dialled (the agent's first bytes still decide when
//! they come first), and a CONNECT goes to the agent's own proxy. One is decided on its beginning: a
//! gRPC request whose agent waits for an answer before it goes on; its response is never played back.

mod config;
mod connection;
mod courier;
#[doc(hidden)]
pub mod fuzz;
pub mod http;
mod listener;
pub mod mcp;
mod namespace;
mod opaque;
pub mod process;
mod refusal;
pub mod sniff;
mod stream;
pub mod tls;

pub use config::{Config, Limits, PassThrough};
pub use http::decoded_body;
pub use listener::{Boundary, Handle};
pub use namespace::{Namespace, Opened};

use std::net::SocketAddr;

use bytes::Bytes;

use crate::effect::LogError;
use crate::words::{
    Digest, EffectId, Ending, Origin, ProcessIdentity, Refusal, Request, Response, ToolCall,
};

/// Who is at the other end of an accepted connection.
#[derive(Clone, Debug)]
pub struct Caller {
    /// The process; `connection` is filled in by the boundary.
    pub origin: Origin,
    /// Where it wanted to connect to.
    pub original: SocketAddr,
}

/// Tells the boundary whose connection it accepted. The probe's maps stand behind it.
pub trait Callers: Send + Sync + 'static {
    /// The caller whose socket has the local address `from`; none when the redirect was not
    /// recorded, in which case the connection must be dropped, never passed on.
    fn caller(&self, from: SocketAddr) -> Option<Caller>;

    /// The same for a listener inside another network namespace, given by the kernel's number of it.
    fn caller_in(&self, netns: u64, from: SocketAddr) -> Option<Caller> {
        let _ = (netns, from);
        None
    }
}

/// Decides calls and takes their outcomes. The daemon's pipeline stands behind it.
#[async_trait::async_trait]
pub trait Arbiter: Send + Sync + 'static {
    /// Decides a call. May wait for a person or a running twin.
    async fn admit(&self, call: ToolCall) -> Admission;

    /// Decides a call, and may ask the side it goes to first: what became of an earlier one that it
    /// repeats (DESIGN.md §7, in doubt).
    async fn admit_asking(&self, call: ToolCall, courier: &dyn Courier) -> Admission {
        let _ = courier;
        self.admit(call).await
    }

    /// Decides a call that a process of the agent's own tree carries out (a stdio server, a gated
    /// command): what `inside` and its descendants do while it runs belongs to it (DESIGN.md §9,
    /// nested boundaries).
    async fn admit_inside(&self, call: ToolCall, inside: ProcessIdentity) -> Admission {
        let _ = inside;
        self.admit(call).await
    }

    /// A call that `inside` carries out already, as nobody could stop it: it is not decided, only recorded.
    /// None when it is no effect, or cannot be recorded.
    async fn witness(&self, call: ToolCall, inside: ProcessIdentity) -> Option<Box<dyn Ticket>>;

    /// Whether a request with this method and URL is wanted with its whole body, decoded, whatever the
    /// recording bound is ([`Self::admit_whole`]): an LLM request says in it what the agent remembers.
    fn wants_whole(&self, method: &str, url: &str) -> bool {
        let _ = (method, url);
        false
    }

    /// Decides a call of which the whole body is there, with its content encoding taken off.
    async fn admit_whole(&self, call: ToolCall, body: Bytes, courier: &dyn Courier) -> Admission {
        let _ = body;
        self.admit_asking(call, courier).await
    }

    /// Decides whether bytes that are no HTTP may flow, before anything is sent upstream.
    async fn admit_opaque(&self, flow: &OpaqueFlow) -> Result<(), Refusal>;

    /// The bytes of an admitted flow begin to flow. Not said of one that came to nothing: the agent
    /// turned out to speak HTTP, or the other side could not be reached.
    fn opaque_began(&self, flow: &OpaqueFlow) {
        let _ = flow;
    }

    /// Waits until a flow that was admitted must not go on any more; the boundary then ends it.
    async fn opaque_revoked(&self, flow: &OpaqueFlow) {
        let _ = flow;
        std::future::pending().await
    }

    /// An opaque flow ended, or came to nothing.
    fn opaque_ended(&self, flow: OpaqueFlow);

    /// Replaces the secrets on a command line that is going to be kept: as the name of a stdio server it is
    /// part of the tool key. Equal secrets stay equal.
    fn take_secrets_off(&self, argv: &mut [String]) {
        let _ = argv;
    }

    /// Something kept the boundary from doing its work on a connection.
    fn trouble(&self, trouble: Trouble);

    /// A command that policy names ran, or was refused, and nobody could be asked about it.
    fn unasked(&self, unasked: Unasked);

    /// The agent hung up, or its connection broke, before it had the response of this effect:
    /// forwarded or replayed, it does not know the outcome and may well send the call again.
    fn undelivered(&self, origin: &Origin, effect: EffectId) {
        let _ = (origin, effect);
    }

    /// The agent hung up on an effect that is running: an equal call of it now means that one.
    fn abandoned(&self, origin: &Origin, effect: EffectId) {
        let _ = (origin, effect);
    }

    /// An MCP server told its tools: `tools` is the JSON text of the array in a `tools/list`
    /// result (one page of it), `server` the same as in [`McpRequest`](crate::words::McpRequest).
    fn tools_seen(&self, origin: &Origin, server: &str, tools: &str) {
        let _ = (origin, server, tools);
    }
}

/// Carries questions to the side that a call goes to, over the way that the call would take.
#[async_trait::async_trait]
pub trait Courier: Send + Sync {
    /// Sends a request and waits for its answer, at most so long. Sends it once, follows no redirect,
    /// and says [`Ending::Response`] only for an answer that came whole.
    async fn carry(&self, question: &Request, within: std::time::Duration) -> Ending;

    /// Whether whoever made the call hung up and hears no answer any more.
    fn is_gone(&self) -> bool {
        false
    }
}

/// What to do with a call.
pub enum Admission {
    /// Send it, and settle the ticket.
    Forward(Box<dyn Ticket>),
    /// Answer with this; send nothing. For MCP the boundary puts the new JSON-RPC id in.
    Replay {
        /// The effect whose record answers.
        effect: EffectId,
        /// What was recorded.
        response: Response,
    },
    /// Answer with a readable error; send nothing.
    Refuse(Refusal),
}

/// The right to send one call, and the duty to say how it ended. Dropped unsettled, the effect is
/// in doubt.
#[async_trait::async_trait]
pub trait Ticket: Send + Sync {
    /// The effect; none when the call is no effect (read-only, model traffic).
    fn effect(&self) -> Option<EffectId>;

    /// How many bytes of the response it wants to see; none: what is recorded of any response.
    fn keeps(&self) -> Option<usize> {
        None
    }

    /// The body, without content encoding, that is sent in place of the agent's own; none: the agent's.
    fn instead(&self) -> Option<Bytes> {
        None
    }

    /// Whether the end of the response must not reach the agent before [`Self::settle`] returned.
    fn holds_end(&self) -> bool;

    /// Says how the call ended. Returns once that is on disk.
    async fn settle(self: Box<Self>, ending: Ending) -> Result<(), LogError>;
}

/// Bytes that are passed on without being understood.
#[derive(Clone, Debug)]
pub struct OpaqueFlow {
    /// The process and connection.
    pub origin: Origin,
    /// Where it goes.
    pub peer: SocketAddr,
    /// Why it is opaque: `passed through by policy`, `not TLS or HTTP`, `WebSocket`, …
    pub why: String,
    /// Bytes sent by the agent so far.
    pub sent: u64,
    /// Bytes received by the agent so far.
    pub received: u64,
    /// SHA-256 of what the agent sent so far.
    pub digest: Option<Digest>,
    /// Whether its bytes began to flow.
    pub began: bool,
}

/// A command that policy names and that could not be stopped to ask about it.
#[derive(Clone, Debug)]
pub struct Unasked {
    /// The process, with its command line as far as it is known.
    pub origin: Origin,
    /// Whether it was kept from running.
    pub refused: bool,
    /// Why it could not be stopped, in a few words.
    pub why: &'static str,
    /// What a person should know and can do, in a sentence.
    pub detail: String,
}

/// Something a person should know about a connection.
#[derive(Clone, Debug)]
pub struct Trouble {
    /// The process and connection.
    pub origin: Origin,
    /// Which kind.
    pub kind: TroubleKind,
    /// In words, with what to do next.
    pub detail: String,
}

/// Kinds of trouble on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TroubleKind {
    /// The agent ended the handshake because it does not trust the CA.
    CaNotTrusted,
    /// The agent ended the handshake although it trusts the CA's issuer: it pins, or wants a client certificate.
    HandshakeAborted,
    /// The upstream's certificate does not verify.
    UpstreamUntrusted,
    /// The upstream could not be reached.
    UpstreamUnreachable,
    /// The upstream asks for a client certificate, which only the agent has.
    ClientCertificateWanted,
    /// The agent sent something that is no valid TLS or HTTP, or that must be refused.
    BadRequest,
    /// A stdio server or command could not be stopped at its exec.
    NotGated,
    /// A process was restored in a way that leaves something unfenced, or with connections that were cut.
    RestoredProcess,
    /// A connection that cannot be fenced was refused: the agent was restored, and policy wants it so.
    OpaqueDenied,
    /// The agent is in a network namespace where no hook could be opened: its connections fail.
    NoHook,
}
