//! Bytes of a message as they are kept.

use std::fmt;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// SHA-256 of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Digest of `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl Serialize for Digest {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.collect_str(self)
        } else {
            s.serialize_bytes(&self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        let bytes = if d.is_human_readable() {
            hex::decode(String::deserialize(d)?).map_err(D::Error::custom)?
        } else {
            serde_bytes::ByteBuf::deserialize(d)?.into_vec()
        };
        bytes
            .try_into()
            .map(Self)
            .map_err(|_| D::Error::custom("a SHA-256 digest has 32 bytes"))
    }
}

/// A message body: its first bytes up to the recording bound, and the digest of all of it.
///
/// Two bodies are the same bytes exactly when length and digest agree, however little was kept.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// What was kept. All of the body when `kept.len() == len`.
    #[serde(with = "kept_bytes")]
    pub kept: Bytes,
    /// Length of the whole body in bytes.
    pub len: u64,
    /// SHA-256 of the whole body.
    pub digest: Digest,
}

impl Body {
    /// A body that is kept whole.
    pub fn whole(bytes: impl Into<Bytes>) -> Self {
        let kept = bytes.into();
        Self {
            len: kept.len() as u64,
            digest: Digest::of(&kept),
            kept,
        }
    }

    /// No bytes.
    pub fn empty() -> Self {
        Self::whole(Bytes::new())
    }

    /// Whether every byte was kept.
    pub fn is_whole(&self) -> bool {
        self.kept.len() as u64 == self.len
    }
}

impl Default for Body {
    fn default() -> Self {
        Self::empty()
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head = &self.kept[..self.kept.len().min(200)];
        write!(f, "Body({} bytes, \"{}\")", self.len, head.escape_ascii())
    }
}

/// One header field: the name as it was sent (case included) and the bytes of its value.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Name as sent; compare with [`Header::is`].
    pub name: String,
    /// Value as sent; not always UTF-8.
    #[serde(with = "kept_bytes")]
    pub value: Bytes,
}

impl Header {
    /// A header field.
    pub fn new(name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }

    /// Whether this field has that name (names ignore case).
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The value as text, where it is.
    pub fn text(&self) -> Option<&str> {
        std::str::from_utf8(&self.value).ok()
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.value.escape_ascii())
    }
}

/// Bytes: raw in the journal; in JSON text where they are UTF-8, else `{"base64": …}`.
pub(super) mod kept_bytes {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use bytes::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(untagged)]
    enum Readable {
        Text(String),
        Raw { base64: String },
    }

    pub fn serialize<S: Serializer>(bytes: &Bytes, s: S) -> Result<S::Ok, S::Error> {
        if !s.is_human_readable() {
            return s.serialize_bytes(bytes);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => s.serialize_str(text),
            Err(_) => Readable::Raw {
                base64: STANDARD.encode(bytes),
            }
            .serialize(s),
        }
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Bytes, D::Error> {
        if !d.is_human_readable() {
            return Ok(serde_bytes::ByteBuf::deserialize(d)?.into_vec().into());
        }
        match Readable::deserialize(d)? {
            Readable::Text(text) => Ok(text.into()),
            Readable::Raw { base64 } => STANDARD
                .decode(base64)
                .map(Bytes::from)
                .map_err(serde::de::Error::custom),
        }
    }
}
