//! Traffic that was seen and not understood: an observation, never a candidate.

use serde::{Deserialize, Serialize};

use super::{Digest, Origin, Timestamp};

/// Something an agent sent, or wanted to send, past the fence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opaque {
    /// The process. Its connection is there when it went through the hook.
    pub origin: Origin,
    /// What kind of traffic.
    pub class: OpaqueClass,
    /// The other side: `10.0.0.1:5432`, `udp 10.0.0.1:53`, `/run/docker.sock`.
    pub peer: String,
    /// Why it is not fenced, or was refused.
    pub why: String,
    /// What happened to it.
    pub step: OpaqueStep,
    /// Bytes the agent sent so far; a lower bound for what did not go through the hook.
    #[serde(default)]
    pub sent: u64,
    /// Bytes the agent received so far; 0 for what did not go through the hook.
    #[serde(default)]
    pub received: u64,
    /// SHA-256 of the first [`Self::digested`] bytes that the agent sent.
    #[serde(default)]
    pub digest: Option<Digest>,
    /// How many bytes the digest covers.
    #[serde(default)]
    pub digested: u64,
    /// When.
    pub at: Timestamp,
}

/// Kinds of opaque traffic, by port and by what the connection looks like.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OpaqueClass {
    /// PostgreSQL, MySQL, MongoDB, Redis, …
    Database,
    /// SMTP, IMAP, POP3.
    Mail,
    /// SSH, Telnet.
    Shell,
    /// Message brokers: AMQP, MQTT, Kafka, NATS.
    Broker,
    /// A WebSocket, or another protocol that an HTTP request switched to.
    Upgrade,
    /// TLS that is passed on unopened.
    Tls,
    /// A unix socket.
    Unix,
    /// Datagrams.
    Udp,
    /// A command that policy names and that could not be stopped at exec.
    Command,
    /// Anything else.
    #[default]
    Other,
}

impl OpaqueClass {
    /// The word in the policy and in listings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Database => "database",
            Self::Mail => "mail",
            Self::Shell => "shell",
            Self::Broker => "broker",
            Self::Upgrade => "upgrade",
            Self::Tls => "tls",
            Self::Unix => "unix",
            Self::Udp => "udp",
            Self::Command => "command",
            Self::Other => "other",
        }
    }
}

/// What happened to opaque traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OpaqueStep {
    /// It was let through and begins, or was seen for the first time.
    Began,
    /// It was seen again, after it had gone on.
    WentOn,
    /// It ended.
    Ended,
    /// It was refused: nothing, or nothing more, was sent.
    Refused,
}

impl OpaqueStep {
    /// The word in listings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Began => "began",
            Self::WentOn => "went_on",
            Self::Ended => "ended",
            Self::Refused => "refused",
        }
    }
}
