//! What the boundary is told when it is opened.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;

use super::tls::ca::Ca;

/// Says which hosts' TLS is passed on unopened: given a name from a handshake, or an address where
/// there is none. May change its mind when the policy is reloaded.
pub type PassThrough = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// What the boundary needs to know.
#[derive(Clone)]
pub struct Config {
    /// Where the kernel redirects connections to.
    pub listen: Vec<SocketAddr>,
    /// The local CA.
    pub ca: Arc<Ca>,
    /// Where bodies go that are too large for memory. They are unlinked as soon as they are made.
    pub spool: PathBuf,
    /// Roots that upstreams are verified against.
    pub roots: Vec<CertificateDer<'static>>,
    /// Hosts whose TLS is passed on unopened.
    pub pass_through: PassThrough,
    /// Bounds in bytes, counts and time.
    pub limits: Limits,
}

impl Config {
    /// The usual configuration: the system's roots, nothing passed through, default limits.
    pub fn new(listen: Vec<SocketAddr>, ca: Arc<Ca>) -> Self {
        Self {
            listen,
            roots: super::tls::trust::system_roots(&ca),
            ca,
            spool: std::env::temp_dir(),
            pass_through: Arc::new(|_| false),
            limits: Limits::default(),
        }
    }
}

/// Bounds, so that no agent and no upstream can use up the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How much of a body is kept for the record.
    pub record: usize,
    /// How much of a request body stays in memory; the rest is spooled to disk.
    pub memory: usize,
    /// Memory for all bodies together; when it is used up, bodies go to disk from their first byte.
    pub memory_in_all: usize,
    /// The largest request body.
    pub body: u64,
    /// The largest JSON-RPC message that is taken apart.
    pub rpc: usize,
    /// Size of all header fields of a message together.
    pub header: usize,
    /// Number of header fields of an HTTP/1 message.
    pub header_count: usize,
    /// Open connections of one agent.
    pub connections_per_agent: usize,
    /// Open connections in all.
    pub connections: usize,
    /// Requests at the same time on one HTTP/2 connection.
    pub streams: u32,
    /// How long a connection may stay without a first byte.
    pub first_byte: Duration,
    /// After how long without a byte from the agent the server is taken to speak first.
    pub server_first: Duration,
    /// How long the agent's TLS handshake may take.
    pub handshake: Duration,
    /// How long a request's header fields may take, and how long a connection may be idle.
    pub head: Duration,
    /// How long a request body may stay without a byte.
    pub body_idle: Duration,
    /// How long a gRPC agent may be silent between two messages before it is taken to wait for an
    /// answer, so that its request is sent while it still streams.
    pub duplex: Duration,
    /// How long connecting to an upstream may take, TLS included.
    pub connect: Duration,
    /// How long an effect may wait for the head of its response.
    pub response_head: Duration,
    /// How long an effect's response may stay without a byte.
    pub response_idle: Duration,
    /// How long an effect's response may go on after the agent hung up.
    pub after_hangup: Duration,
    /// How long a call of an MCP session may wait for a stream that takes up its broken one.
    pub resume: Duration,
    /// How long an agent may leave a response unread before it counts as gone.
    pub unread: Duration,
    /// How long a response of unknown length may be held whole before it is passed on as it comes.
    pub hold: Duration,
    /// An upstream connection that was idle longer is not used for an effect: the server may be
    /// closing it just now, and the effect would be in doubt.
    pub fresh: Duration,
    /// How long exchanges may go on after a shutdown began.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            record: MIB,
            memory: MIB,
            memory_in_all: 256 * MIB,
            body: 4 << 30,
            rpc: 16 * MIB,
            header: 256 * 1024,
            header_count: 256,
            connections_per_agent: 1024,
            connections: 8192,
            streams: 128,
            first_byte: Duration::from_secs(60),
            server_first: Duration::from_secs(1),
            handshake: Duration::from_secs(15),
            head: Duration::from_secs(75),
            body_idle: Duration::from_secs(60),
            duplex: Duration::from_millis(500),
            connect: Duration::from_secs(15),
            response_head: Duration::from_secs(15 * 60),
            response_idle: Duration::from_secs(10 * 60),
            after_hangup: Duration::from_secs(10 * 60),
            resume: Duration::from_secs(5 * 60),
            unread: Duration::from_secs(5 * 60),
            hold: Duration::from_secs(1),
            fresh: Duration::from_secs(2),
            drain: Duration::from_secs(10),
        }
    }
}
