//! How a model words things: anew each time, and in the way that the paper's data show.

use std::collections::HashSet;

use fastrand::Rng;

/// A seeded hand. The same seed and the same requests give the same words.
pub struct Hand {
    rng: Rng,
    keys: HashSet<String>,
}

/// The key that came first in all twenty trials of the paper. It is no valid UUID.
pub const FIRST_KEY: &str = "a1b2c3d4-e5f6-7890-g1h2-i3j4k5l6m7n8";

/// Lengths of the groups of a UUID.
const GROUPS: [usize; 5] = [8, 4, 4, 4, 12];

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

impl Hand {
    /// A hand that writes as `seed` says.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            keys: HashSet::new(),
        }
    }

    /// An idempotency key, as a model makes one up: the first is always the same, later ones are
    /// runs of letters and digits that look like a UUID and often are none. Never the same twice.
    pub fn key(&mut self) -> String {
        let mut key = FIRST_KEY.to_owned();
        while !self.keys.insert(key.clone()) {
            key = self.run_of_letters_and_digits();
        }
        key
    }

    /// Like `f0a1b2c3-d4e5-6789-f0a1-b2c3d4e5f6g7`.
    fn run_of_letters_and_digits(&mut self) -> String {
        let last = if self.rng.bool() { b'f' } else { b'n' };
        let down = self.rng.bool();
        let mut letter = b'f';
        let mut digit = self.rng.u8(0..10);
        let step = |letter: &mut u8, digit: &mut u8| {
            *digit = if down { *digit + 9 } else { *digit + 1 } % 10;
            *letter = match (down, *letter) {
                (true, b'a') => last,
                (true, other) => other - 1,
                (false, other) if other >= last => b'a',
                (false, other) => other + 1,
            };
        };
        let plain = self.rng.usize(1..4);
        let mut groups = Vec::new();
        for (n, length) in GROUPS.into_iter().enumerate() {
            let mut group = String::new();
            if self.rng.u8(0..4) == 0 {
                letter = b'f';
            }
            while group.len() < length {
                if n != plain && group.len().is_multiple_of(2) {
                    group.push(char::from(letter));
                } else {
                    group.push(char::from(b'0' + digit));
                    step(&mut letter, &mut digit);
                }
            }
            groups.push(group);
        }
        groups.join("-")
    }

    /// An id as a provider's server makes it: `prefix` and random letters and digits.
    pub fn id(&mut self, prefix: &str) -> String {
        let tail = (0..24).map(|_| char::from(BASE62[self.rng.usize(0..BASE62.len())]));
        prefix.chars().chain(tail).collect()
    }

    /// One of several ways to say the same.
    pub fn pick<'a>(&mut self, ways: &[&'a str]) -> &'a str {
        ways.get(self.rng.usize(0..ways.len().max(1)))
            .copied()
            .unwrap_or_default()
    }

    /// The same things in another order.
    pub fn shuffled<T>(&mut self, mut things: Vec<T>) -> Vec<T> {
        self.rng.shuffle(&mut things);
        things
    }

    /// `text` in one to four pieces, as a stream carries it.
    pub fn pieces<'a>(&mut self, text: &'a str) -> Vec<&'a str> {
        let mut cuts: Vec<usize> = (0..self.rng.usize(0..4))
            .map(|_| text.floor_char_boundary(self.rng.usize(0..=text.len())))
            .chain([0, text.len()])
            .collect();
        cuts.sort_unstable();
        cuts.dedup();
        cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_the_papers_kind() {
        let mut hand = Hand::new(7);
        assert_eq!(hand.key(), FIRST_KEY);
        let mut seen = HashSet::from([FIRST_KEY.to_owned()]);
        let mut invalid = 0;
        for _ in 0..200 {
            let key = hand.key();
            let lengths: Vec<usize> = key.split('-').map(str::len).collect();
            assert_eq!(lengths, GROUPS, "{key}");
            invalid += usize::from(key.chars().any(|c| !c.is_ascii_hexdigit() && c != '-'));
            assert!(seen.insert(key.clone()), "{key} came twice");
        }
        assert!(
            invalid > 20 && invalid < 180,
            "{invalid} of 200 are no UUID"
        );
    }

    #[test]
    fn a_seed_decides_everything() {
        let words = |seed| {
            let mut hand = Hand::new(seed);
            (
                hand.key(),
                hand.key(),
                hand.id("call_"),
                hand.shuffled(vec![1, 2, 3, 4, 5]),
            )
        };
        assert_eq!(words(1), words(1));
        assert_ne!(words(1), words(2));
    }

    #[test]
    fn pieces_are_the_whole() {
        let mut hand = Hand::new(3);
        for text in ["", "ä", "{\"to\":\"älice\",\"amount\":100}"] {
            for _ in 0..50 {
                assert_eq!(hand.pieces(text).concat(), text);
            }
        }
    }
}
