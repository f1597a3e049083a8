//! Lines of a byte stream, whatever pieces it comes in.

use bytes::{Bytes, BytesMut};

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// All of it, with its newline (none at the end of the stream).
    Whole(Bytes),
    /// It was longer than the bound and is gone.
    TooLong {
        /// Its length in bytes, newline included.
        length: u64,
    },
}

/// Cuts a stream into lines; keeps no more than the bound and what was pushed last.
#[derive(Debug)]
pub struct Lines {
    kept: BytesMut,
    /// How much of `kept` is known to hold no newline.
    searched: usize,
    /// Length so far of a line that is longer than the bound.
    over: Option<u64>,
    bound: usize,
}

impl Lines {
    /// Lines of up to `bound` bytes.
    pub fn new(bound: usize) -> Self {
        Self {
            kept: BytesMut::new(),
            searched: 0,
            over: None,
            bound,
        }
    }

    /// Takes what came. Get every line with [`Self::next_line`] before the next push.
    pub fn push(&mut self, bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
    }

    /// The next line that is complete.
    pub fn next_line(&mut self) -> Option<Line> {
        match memchr::memchr(b'\n', &self.kept[self.searched..]) {
            Some(at) => {
                let line = self.kept.split_to(self.searched + at + 1);
                self.searched = 0;
                Some(self.line(line))
            }
            None => {
                self.searched = self.kept.len();
                if self.over.is_some() || self.kept.len() > self.bound {
                    *self.over.get_or_insert(0) += self.kept.len() as u64;
                    self.kept.clear();
                    self.searched = 0;
                }
                None
            }
        }
    }

    /// What is left when the stream has ended: a line without newline.
    pub fn take_rest(&mut self) -> Option<Line> {
        self.searched = 0;
        let rest = self.kept.split();
        (!rest.is_empty() || self.over.is_some()).then(|| self.line(rest))
    }

    fn line(&mut self, line: BytesMut) -> Line {
        match self.over.take() {
            Some(before) => Line::TooLong {
                length: before + line.len() as u64,
            },
            None if line.len() > self.bound => Line::TooLong {
                length: line.len() as u64,
            },
            None => Line::Whole(line.freeze()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]], bound: usize) -> Vec<Line> {
        let mut cutter = Lines::new(bound);
        let mut found = Vec::new();
        for chunk in chunks {
            cutter.push(chunk);
            while let Some(line) = cutter.next_line() {
                found.push(line);
            }
            assert!(cutter.kept.len() <= bound);
        }
        found.extend(cutter.take_rest());
        assert_eq!(cutter.take_rest(), None);
        found
    }

    proptest! {
        #[test]
        fn the_pieces_do_not_matter(
            text in "[ab\n]{0,60}",
            cuts in prop::collection::vec(0..60usize, 0..8),
            bound in 1..12usize,
        ) {
            let text = text.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().filter(|c| *c <= text.len()).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let chunks: Vec<&[u8]> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
            let expected: Vec<Line> = text
                .split_inclusive(|b| *b == b'\n')
                .map(|line| if line.len() > bound {
                    Line::TooLong { length: line.len() as u64 }
                } else {
                    Line::Whole(Bytes::copy_from_slice(line))
                })
                .collect();
            prop_assert_eq!(lines(&chunks, bound), expected);
        }
    }
}
