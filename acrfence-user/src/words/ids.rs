//! Names and numbers that identify things.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Position of a record in the journal. Starts at 1, has no gaps, and never repeats.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a person typed is not an id of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not {what} id: it looks like `{example}`, as `{source_command}` prints it")]
pub struct IdError {
    given: String,
    what: &'static str,
    example: &'static str,
    source_command: &'static str,
}

macro_rules! journal_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal, $what:literal, $example:literal, $command:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub Seq);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;
            fn from_str(given: &str) -> Result<Self, IdError> {
                given
                    .strip_prefix($prefix)
                    .filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()))
                    .and_then(|digits| digits.parse().ok())
                    .map(|n| Self(Seq(n)))
                    .ok_or_else(|| IdError {
                        given: given.chars().take(40).collect(),
                        what: $what,
                        example: $example,
                        source_command: $command,
                    })
            }
        }

        // Text in JSON (what people and scripts see), a bare number in the journal.
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                if s.is_human_readable() { s.collect_str(self) } else { self.0.serialize(s) }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                if d.is_human_readable() {
                    String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
                } else {
                    Seq::deserialize(d).map(Self)
                }
            }
        }
    };
}

journal_id!(
    /// An effect: the [`Seq`] of its *prepared* record. Printed as `e17`.
    EffectId, "e", "an effect", "e17", "acrfence effects"
);
journal_id!(
    /// A branch: the [`Seq`] of the record that opened it. Printed as `b5`.
    BranchId, "b", "a branch", "b5", "acrfence tree AGENT"
);
journal_id!(
    /// A thread: the [`Seq`] of the record that opened it. Printed as `t4`.
    ThreadId, "t", "a thread", "t4", "acrfence tree AGENT"
);
journal_id!(
    /// A held call: the [`Seq`] of the record that opened the hold. Printed as `h9`.
    HoldId, "h", "a hold", "h9", "acrfence holds"
);

/// The name a person gave an agent. 1 to 64 characters of `[A-Za-z0-9._-]`, so that it can stand
/// in a path, a URL and a table without quoting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AgentName(std::sync::Arc<str>);

impl AgentName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for AgentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for AgentName {
    type Err = String;
    fn from_str(given: &str) -> Result<Self, String> {
        let fits = (1..=64).contains(&given.len())
            && given
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
            && !given.starts_with(['.', '-']);
        if fits {
            Ok(Self(given.into()))
        } else {
            Err(format!(
                "`{}` cannot name an agent: use 1 to 64 letters, digits, `.`, `_` or `-`, not starting with `.` or `-`",
                given.chars().take(80).collect::<String>().escape_debug()
            ))
        }
    }
}

impl TryFrom<String> for AgentName {
    type Error = String;
    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl From<AgentName> for String {
    fn from(name: AgentName) -> Self {
        name.0.as_ref().into()
    }
}

/// A process, told apart from a later one with the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Thread group id in the initial pid namespace.
    pub tgid: u32,
    /// Start time of the group leader in nanoseconds since boot (`task->start_boottime`).
    ///
    /// `/proc/PID/stat` rounds it down to clock ticks; compare with [`Self::same_as_proc`].
    pub start_ns: u64,
}

impl ProcessIdentity {
    /// Whether this is the process whose `/proc/PID/stat` says `tgid` and `ticks` at `hz` a second.
    pub fn same_as_proc(&self, tgid: u32, ticks: u64, hz: u64) -> bool {
        let tick_ns = 1_000_000_000 / hz.max(1);
        self.tgid == tgid && self.start_ns / tick_ns == ticks
    }
}

impl fmt::Display for ProcessIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.tgid, self.start_ns)
    }
}

/// Wall-clock time in nanoseconds since 1970 (UTC). RFC 3339 in JSON, a number in the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(self.0.into()) {
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => write!(f, "{}ns", self.0),
        }
    }
}

impl FromStr for Timestamp {
    type Err = String;
    fn from_str(given: &str) -> Result<Self, String> {
        let parsed: jiff::Timestamp = given
            .parse()
            .map_err(|e| format!("`{given}` is not a time like 2031-02-03T09:12:04Z: {e}"))?;
        u64::try_from(parsed.as_nanosecond())
            .map(Self)
            .map_err(|_| format!("`{given}` lies before 1970"))
    }
}

impl Serialize for Timestamp {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.collect_str(self)
        } else {
            s.serialize_u64(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        if d.is_human_readable() {
            String::deserialize(d)?
                .parse()
                .map_err(serde::de::Error::custom)
        } else {
            u64::deserialize(d).map(Self)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        let id = EffectId(Seq(17));
        assert_eq!(id.to_string(), "e17");
        assert_eq!("e17".parse(), Ok(id));
        for bad in ["17", "e", "e-1", "e+1", "b17", "e99999999999999999999"] {
            assert!(bad.parse::<EffectId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn agent_names_stay_plain() {
        assert!("buyer-2.a_b".parse::<AgentName>().is_ok());
        for bad in ["", "a b", "../x", "-rf", ".hidden", "ü", &"x".repeat(65)] {
            assert!(bad.parse::<AgentName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let p = ProcessIdentity {
            tgid: 7,
            start_ns: 1_234_567_890,
        };
        assert!(p.same_as_proc(7, 123, 100));
        assert!(!p.same_as_proc(7, 124, 100));
        assert!(!p.same_as_proc(8, 123, 100));
    }
}
