//! A segment file: a signed header, then records.
//!
//! ```text
//!   0  magic       "ACRFLOG1"
//!   8  version     u16, 1
//!  10  flags       u16, bit 0: compacted (see `gc`), positions may be missing
//!  12  number      u32, 1 for the first segment
//!  16  store       16 bytes, names the store for ever
//!  32  first       u64, position of its first record
//!  40  previous    32 bytes, chain hash before its first record
//!  72  key         u32, which key signed this header
//!  76  pass        u32, the gc pass that compacted it; 0 when it never was
//!  80  created     u64, nanoseconds since 1970
//!  88  last        u64, compacted only: position of the last record it had
//!  96  end         32 bytes, compacted only: chain hash of that record
//! 128  kept        32 bytes, compacted only: SHA-256 of the records that were kept
//! 160  removed     u64, compacted only: how many records were removed so far
//! 168  signature   64 bytes, Ed25519 over everything before
//! 232  check       u32, CRC-32C of everything before
//! ```
//!
//! 512 bytes with zeros to the end. So every segment boundary is a signed head, and the header of a
//! compacted segment is the signed statement of what was there.

use crate::words::{Seq, Timestamp};

use super::frame::Hash;
use super::keys::{Keyring, Keys, StoreId};

/// Length of the header.
pub const HEADER: usize = 512;
/// Version of the segment format.
pub const VERSION: u16 = 1;

const MAGIC: &[u8; 8] = b"ACRFLOG1";
const SIGNED: usize = 168;
const CHECKED: usize = 232;
const COMPACTED: u16 = 1;

/// What a segment says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Its number, 1 for the first.
    pub number: u32,
    /// The store it belongs to.
    pub store: StoreId,
    /// Position of its first record.
    pub first: Seq,
    /// Chain hash before its first record.
    pub previous: Hash,
    /// When it was made.
    pub created: Timestamp,
    /// What was removed from it.
    pub compacted: Option<Compacted>,
}

/// The signed statement of what a compacted segment was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compacted {
    /// The pass that did it; passes count from 1 over the life of the store.
    pub pass: u32,
    /// Position of the last record it had.
    pub last: Seq,
    /// Chain hash of that record.
    pub end: Hash,
    /// SHA-256 of the records that were kept.
    pub kept: Hash,
    /// How many records were removed so far.
    pub removed: u64,
}

/// Why a header cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// Damaged.
    #[error("the segment header is damaged: {0}")]
    Damaged(&'static str),
    /// A later version.
    #[error(
        "the segment has version {0}, this program reads up to version {VERSION}; use a later acrfence"
    )]
    Version(u16),
    /// Sealed with a key that is not at hand.
    #[error(
        "the segment was written with key {0:08x}, which is not in the key file; put that key back into it"
    )]
    Key(u32),
}

/// The file name of segment `number`.
pub fn file_name(number: u32) -> String {
    format!("{number:010}.seg")
}

/// The segment number in a file name.
pub fn number_of(name: &str) -> Option<u32> {
    let digits = name.strip_suffix(".seg")?;
    (digits.len() == 10).then(|| digits.parse().ok())?
}

/// The store a header names, before there are keys to check it with.
pub fn store_of(bytes: &[u8]) -> Result<StoreId, HeaderFault> {
    open_part(bytes)?;
    Ok(array(&bytes[16..32]))
}

impl SegmentHeader {
    /// The header as bytes, signed with `keys`.
    pub fn write(&self, keys: &Keys) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.number.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.store);
        bytes[32..40].copy_from_slice(&self.first.0.to_le_bytes());
        bytes[40..72].copy_from_slice(&self.previous);
        bytes[72..76].copy_from_slice(&keys.id.to_le_bytes());
        bytes[80..88].copy_from_slice(&self.created.0.to_le_bytes());
        if let Some(compacted) = &self.compacted {
            bytes[10..12].copy_from_slice(&COMPACTED.to_le_bytes());
            bytes[76..80].copy_from_slice(&compacted.pass.to_le_bytes());
            bytes[88..96].copy_from_slice(&compacted.last.0.to_le_bytes());
            bytes[96..128].copy_from_slice(&compacted.end);
            bytes[128..160].copy_from_slice(&compacted.kept);
            bytes[160..168].copy_from_slice(&compacted.removed.to_le_bytes());
        }
        let signature = keys.sign(&bytes[..SIGNED]);
        bytes[SIGNED..CHECKED].copy_from_slice(&signature);
        let check = crc32c::crc32c(&bytes[..CHECKED]);
        bytes[CHECKED..CHECKED + 4].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads a header and checks its signature.
    pub fn read(bytes: &[u8], keyring: &Keyring) -> Result<Self, HeaderFault> {
        open_part(bytes)?;
        let key = u32::from_le_bytes(array(&bytes[72..76]));
        let keys = keyring.get(key).ok_or(HeaderFault::Key(key))?;
        if !keys.signed(&bytes[..SIGNED], &array(&bytes[SIGNED..CHECKED])) {
            return Err(HeaderFault::Damaged("its signature is not by our key"));
        }
        let compacted = match u16::from_le_bytes(array(&bytes[10..12])) {
            0 => None,
            COMPACTED => Some(Compacted {
                pass: u32::from_le_bytes(array(&bytes[76..80])),
                last: Seq(u64::from_le_bytes(array(&bytes[88..96]))),
                end: array(&bytes[96..128]),
                kept: array(&bytes[128..160]),
                removed: u64::from_le_bytes(array(&bytes[160..168])),
            }),
            _ => return Err(HeaderFault::Damaged("its flags are unknown")),
        };
        Ok(Self {
            number: u32::from_le_bytes(array(&bytes[12..16])),
            store: array(&bytes[16..32]),
            first: Seq(u64::from_le_bytes(array(&bytes[32..40]))),
            previous: array(&bytes[40..72]),
            created: Timestamp(u64::from_le_bytes(array(&bytes[80..88]))),
            compacted,
        })
    }
}

fn open_part(bytes: &[u8]) -> Result<(), HeaderFault> {
    if bytes.len() < HEADER || &bytes[..8] != MAGIC {
        return Err(HeaderFault::Damaged("it does not begin like a segment"));
    }
    if crc32c::crc32c(&bytes[..CHECKED]) != u32::from_le_bytes(array(&bytes[CHECKED..CHECKED + 4]))
    {
        return Err(HeaderFault::Damaged("its checksum does not fit"));
    }
    if bytes[CHECKED + 4..HEADER].iter().any(|b| *b != 0) {
        return Err(HeaderFault::Damaged("its reserved bytes are not zero"));
    }
    match u16::from_le_bytes(array(&bytes[8..10])) {
        VERSION => Ok(()),
        later => Err(HeaderFault::Version(later)),
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}
