//! Who sent a call, and over what.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use super::{AgentName, ProcessIdentity};

/// The process a call came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Origin {
    /// The agent whose tree it belongs to.
    pub agent: AgentName,
    /// Which life of the agent (1 = first).
    pub incarnation: u32,
    /// The process.
    pub process: ProcessIdentity,
    /// Its executable, `?` when it was gone before it could be read.
    #[serde(default)]
    pub exe: String,
    /// Its argument vector, bounded.
    #[serde(default)]
    pub argv: Vec<String>,
    /// Its working directory.
    #[serde(default)]
    pub cwd: String,
    /// Its real user id.
    #[serde(default)]
    pub uid: u32,
    /// The connection, for calls over a socket.
    #[serde(default)]
    pub connection: Option<Connection>,
    /// Why the process context may be incomplete ("12 exec events dropped"); empty normally.
    #[serde(default)]
    pub gaps: String,
}

/// A redirected connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Where the agent connected to.
    pub peer: SocketAddr,
    /// Its own address.
    pub local: SocketAddr,
    /// The name in the TLS handshake; none without SNI or without TLS.
    #[serde(default)]
    pub sni: Option<String>,
    /// Whether TLS was terminated.
    #[serde(default)]
    pub tls: bool,
    /// Negotiated protocol of the agent's leg: `http/1.1` or `h2`.
    #[serde(default)]
    pub protocol: String,
}
