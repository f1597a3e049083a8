//! Durations and sizes as people write them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A length of time: `"20s"`, `"15m"`, `"1h 30m"`, `"250ms"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration(pub std::time::Duration);

impl Duration {
    /// So many seconds.
    pub const fn secs(secs: u64) -> Self {
        Self(std::time::Duration::from_secs(secs))
    }

    /// Nanoseconds, for arithmetic with timestamps.
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Duration {
    type Err = String;
    fn from_str(given: &str) -> Result<Self, String> {
        let span: jiff::SignedDuration = given.parse().map_err(|_| {
            format!("`{given}` is no length of time; write it like `20s`, `15m` or `1h 30m`")
        })?;
        std::time::Duration::try_from(span)
            .map(Self)
            .map_err(|_| format!("`{given}` is negative"))
    }
}

impl TryFrom<String> for Duration {
    type Error = String;
    fn try_from(given: String) -> Result<Self, String> {
        given.parse()
    }
}

impl From<Duration> for String {
    fn from(d: Duration) -> Self {
        d.to_string()
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::SignedDuration::try_from(self.0) {
            Ok(span) => write!(f, "{span:#}"),
            Err(_) => write!(f, "{:?}", self.0),
        }
    }
}

/// A number of bytes: `4096`, `"64KiB"`, `"1MiB"`, `"2GiB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Size {
    /// So many bytes as a length in memory.
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Size {
    type Err = String;
    fn from_str(given: &str) -> Result<Self, String> {
        let digits = given.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match given[digits.len()..].trim() {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1u64 << 30,
            _ => 0,
        };
        digits
            .parse::<u64>()
            .ok()
            .filter(|_| unit > 0)
            .and_then(|n| n.checked_mul(unit))
            .map(Self)
            .ok_or_else(|| format!("`{given}` is no size; write it like `64KiB`, `1MiB` or `2GiB`"))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
            if self.0 >= unit && self.0.is_multiple_of(unit) {
                return write!(f, "{}{name}", self.0 / unit);
            }
        }
        write!(f, "{}", self.0)
    }
}

impl Serialize for Size {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Number(u64),
            Text(String),
        }
        match Written::deserialize(d)? {
            Written::Number(n) => Ok(Self(n)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}
