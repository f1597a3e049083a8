//! What a command said, kept up to a bound and digested beyond it.

use bytes::BytesMut;
use sha2::Digest as _;

use crate::words::{Body, Digest};

/// Takes bytes down.
#[derive(Clone, Debug)]
pub(super) struct Recorder {
    kept: BytesMut,
    length: u64,
    digest: sha2::Sha256,
    bound: usize,
}

impl Recorder {
    /// Keeps up to `bound` bytes.
    pub(super) fn new(bound: usize) -> Self {
        Self {
            kept: BytesMut::new(),
            length: 0,
            digest: sha2::Sha256::new(),
            bound,
        }
    }

    pub(super) fn take(&mut self, bytes: &[u8]) {
        let room = self.bound - self.kept.len();
        self.kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
        self.length += bytes.len() as u64;
        self.digest.update(bytes);
    }

    pub(super) fn finish(self) -> Body {
        Body {
            kept: self.kept.freeze(),
            len: self.length,
            digest: Digest(self.digest.finalize().into()),
        }
    }
}

/// A body of which nothing is known but that it may not be empty: it is not whole, so it answers
/// no other call.
pub(super) fn unseen() -> Body {
    Body {
        kept: bytes::Bytes::new(),
        len: 1,
        digest: Digest([0; 32]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beyond_the_bound_the_digest_still_tells() {
        let mut recorder = Recorder::new(5);
        for piece in ["abc", "def", "g"] {
            recorder.take(piece.as_bytes());
        }
        let body = recorder.finish();
        assert_eq!(body.kept, "abcde");
        assert_eq!(body.len, 7);
        assert_eq!(body.digest, Digest::of(b"abcdefg"));
        assert!(!body.is_whole() && !unseen().is_whole());
        assert_eq!(Recorder::new(5).finish(), Body::empty());
    }
}
