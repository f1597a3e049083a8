//! Java's own form of a list of roots (JKS): Java reads no PEM file and no variable.
//!
//! Java reads it wherever it expects a store, since `keystore.type.compat` is on unless somebody turned it
//! off. A digest over everything and a password guards it against accidents; the password of lists
//! of roots is the same everywhere.

use sha1::{Digest as _, Sha1};

const MAGIC: u32 = 0xfeed_feed;
const VERSION: u32 = 2;
/// An entry that is a trusted certificate, and one that is a key.
const TRUSTED: u32 = 2;
const KEY: u32 = 1;
const PASSWORD: &str = "changeit";
const GUARD: &[u8] = b"Mighty Aphrodite";
const DIGEST: usize = 20;
/// What the CA is called in a store that is not ours.
const ALIAS: &str = "acrfence";

/// A store of these certificates (DER).
pub fn store<'a>(certificates: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let (mut count, mut entries) = (0, Vec::new());
    for certificate in certificates {
        count += 1;
        entry(&mut entries, &format!("root{count}"), certificate);
    }
    sealed(count, &entries)
}

/// Whether this says that it is such a store.
pub(super) fn is_store(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC.to_be_bytes())
}

/// Whether [`merged`] made it.
pub(super) fn is_merged(store: &[u8]) -> bool {
    walk(store).is_some_and(|walked| walked.ours.is_some())
}

/// `store` with `certificate` (DER) besides, in the place of what [`merged`] put there before.
pub(super) fn merged(store: &[u8], certificate: &[u8]) -> Result<Vec<u8>, &'static str> {
    let walked = walk(store).ok_or("it is damaged, or no list of roots as Java writes them")?;
    if digest(&store[..walked.end]) != store[walked.end..] {
        return Err("its password is another than the usual");
    }
    let mut entries = Vec::with_capacity(store.len() + certificate.len());
    entry(&mut entries, ALIAS, certificate);
    let theirs = &store[HEAD..walked.end];
    let (before, after) = match walked.ours {
        Some((from, to)) => (&store[HEAD..from], &store[to..walked.end]),
        None => (theirs, &[][..]),
    };
    entries.extend([before, after].concat());
    let count = walked.count + u32::from(walked.ours.is_none());
    Ok(sealed(count, &entries))
}

/// Magic, version and count.
const HEAD: usize = 12;

struct Walked {
    count: u32,
    /// Where our entry is.
    ours: Option<(usize, usize)>,
    /// Where the digest begins.
    end: usize,
}

/// Follows a store from entry to entry; none when it does not end where it must.
fn walk(store: &[u8]) -> Option<Walked> {
    let mut reader = Reader { store, at: 0 };
    if reader.number()? != MAGIC {
        return None;
    }
    let version = reader.number()?;
    let count = reader.number()?;
    let mut ours = None;
    for _ in 0..count {
        let from = reader.at;
        let tag = reader.number()?;
        let alias = reader.short()?;
        reader.take(8)?;
        let certificates = match tag {
            TRUSTED => 1,
            KEY => {
                reader.long()?;
                reader.number()?
            }
            _ => return None,
        };
        for _ in 0..certificates {
            if version == VERSION {
                reader.short()?;
            }
            reader.long()?;
        }
        if tag == TRUSTED && alias == ALIAS.as_bytes() {
            ours = Some((from, reader.at));
        }
    }
    let end = reader.at;
    let is_whole = (version == 1 || version == VERSION) && store.len() == end + DIGEST;
    // Of the first version there is none without the type of a certificate.
    (is_whole && (version == VERSION || count == 0)).then_some(Walked { count, ours, end })
}

struct Reader<'a> {
    store: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.store.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(taken)
    }

    fn number(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.take(4)?.try_into().ok()?))
    }

    fn short(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        self.take(length.into())
    }

    fn long(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }
}

fn entry(entries: &mut Vec<u8>, alias: &str, certificate: &[u8]) {
    // Names of ours and a type: far below 64 KiB. A certificate has less than 4 GiB.
    let short = |text: &str| [&(text.len() as u16).to_be_bytes()[..], text.as_bytes()].concat();
    entries.extend(TRUSTED.to_be_bytes());
    entries.extend(short(alias));
    // When it was put there: nobody asks.
    entries.extend(0u64.to_be_bytes());
    entries.extend(short("X.509"));
    entries.extend((certificate.len() as u32).to_be_bytes());
    entries.extend(certificate);
}

fn sealed(count: u32, entries: &[u8]) -> Vec<u8> {
    let mut store = Vec::with_capacity(HEAD + entries.len() + DIGEST);
    for number in [MAGIC, VERSION, count] {
        store.extend(number.to_be_bytes());
    }
    store.extend(entries);
    store.extend(digest(&store));
    store
}

fn digest(store: &[u8]) -> [u8; DIGEST] {
    let mut digest = Sha1::new();
    for unit in PASSWORD.encode_utf16() {
        digest.update(unit.to_be_bytes());
    }
    digest.update(GUARD);
    digest.update(store);
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_keeps_its_own_roots_and_gets_the_ca_once() {
        let theirs = store([b"one".as_slice(), b"two"]);
        assert!(is_store(&theirs) && !is_merged(&theirs));
        let first = merged(&theirs, b"the CA").unwrap();
        assert!(is_merged(&first));
        assert_eq!(walk(&first).unwrap().count, 3);
        let theirs_inside = &theirs[HEAD..theirs.len() - DIGEST];
        assert!(first[..first.len() - DIGEST].ends_with(theirs_inside));
        let next = merged(&first, b"the next CA").unwrap();
        assert_eq!(next, merged(&theirs, b"the next CA").unwrap());
    }

    #[test]
    fn what_is_no_list_of_roots_is_left_alone() {
        let whole = store([b"one".as_slice(), b"two"]);
        for length in 0..whole.len() {
            assert!(merged(&whole[..length], b"x").is_err());
        }
        let mut changed = whole.clone();
        changed[30] ^= 1;
        assert!(merged(&changed, b"x").is_err());
        // A count that promises more than there is.
        let mut many = whole.clone();
        many[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(merged(&many, b"x").is_err());
        assert!(merged(&[whole, vec![0]].concat(), b"x").is_err());
    }
}
