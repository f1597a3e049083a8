//! One record as bytes: framing, checksum, chain, and nothing that needs a key to read.
//!
//! ```text
//!   0  magic      AC FE
//!   2  version    1
//!   3  kind       which kind of event, or a mark of the journal itself (0x80 and up)
//!   4  len        u32, length of the payload
//!   8  seq        u64, position
//!  16  index      u16, how many records of the same commit group stand before it
//!  18  left       u16, how many stand after it
//!  20  flags      u16, bit 0: the payload names a body file; bit 1: positions were skipped
//!  22  reserved   u16, zero
//!  24  key        u32, which key sealed it
//!  28  check      u32, CRC-32C of the other header bytes
//!  32  nonce      24 bytes
//!  56  previous   32 bytes, chain hash of the record before
//!  88  mac        16 bytes, keyed hash of this record's chain hash
//! 104  payload    len bytes
//!      check      u32, CRC-32C of everything before it
//!      end        A5
//! ```
//!
//! Numbers are little-endian. The chain hash of a record is
//! `SHA-256(previous ‖ header[0..28] ‖ nonce ‖ SHA-256(payload))`.

use sha2::{Digest as _, Sha256};

use crate::words::Seq;

/// Bytes before the payload.
pub const HEADER: usize = 104;
/// Bytes after the payload.
pub const TRAILER: usize = 5;
/// Version of the framing.
pub const VERSION: u8 = 1;
/// The payload is the name of a body file.
pub const EXTERNAL: u16 = 1;
/// Positions between the record before and this one were given up (a person accepted a rollback).
pub const SKIPS: u16 = 2;
/// No payload is longer.
pub const PAYLOAD_MAX: usize = 1 << 28;

const MAGIC: [u8; 2] = [0xAC, 0xFE];
const END: u8 = 0xA5;

/// A chain hash.
pub type Hash = [u8; 32];

/// Header fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of event or mark.
    pub kind: u8,
    /// Payload length.
    pub len: u32,
    /// Position.
    pub seq: Seq,
    /// Records of the same commit group before this one.
    pub index: u16,
    /// Records of the same commit group after this one.
    pub left: u16,
    /// [`EXTERNAL`], [`SKIPS`].
    pub flags: u16,
    /// Which key sealed the payload.
    pub key: u32,
    /// Nonce of the seal.
    pub nonce: [u8; 24],
    /// Chain hash of the record before.
    pub previous: Hash,
    /// Keyed hash of this record's chain hash.
    pub mac: [u8; 16],
}

/// A record that was read and whose checksums are right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its header.
    pub header: Header,
    /// Its payload, sealed.
    pub payload: &'a [u8],
}

/// Why bytes are no record.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameFault {
    /// Only zeros where the header should be: nothing was written here.
    #[error("nothing is written here")]
    Blank,
    /// The bytes end before the record does.
    #[error("the record needs {need} bytes and only {have} are left")]
    Short {
        /// Bytes the record needs.
        need: usize,
        /// Bytes there are.
        have: usize,
    },
    /// The header is not one.
    #[error("the header is damaged: {0}")]
    Header(&'static str),
    /// A later version.
    #[error("the record has version {0}, this program reads up to version {VERSION}")]
    Version(u8),
    /// The checksum over the whole record does not fit.
    #[error("the checksum of the record does not fit its {len} bytes")]
    Checksum {
        /// Length of the whole record.
        len: usize,
    },
}

/// Length of a record with such a payload.
pub fn length(payload: usize) -> usize {
    HEADER + payload + TRAILER
}

impl Header {
    /// The chain hash of the record that has this header and a payload with this digest.
    pub fn chain(&self, payload: &Hash) -> Hash {
        let mut hash = Sha256::new();
        hash.update(self.previous);
        hash.update(self.open_part());
        hash.update(self.nonce);
        hash.update(payload);
        hash.finalize().into()
    }

    fn open_part(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2] = VERSION;
        bytes[3] = self.kind;
        bytes[4..8].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.0.to_le_bytes());
        bytes[16..18].copy_from_slice(&self.index.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.left.to_le_bytes());
        bytes[20..22].copy_from_slice(&self.flags.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }
}

/// Appends the record to `out`.
pub fn write(header: &Header, payload: &[u8], out: &mut Vec<u8>) {
    debug_assert_eq!(header.len as usize, payload.len());
    let start = out.len();
    let open = header.open_part();
    out.extend_from_slice(&open);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&header.nonce);
    out.extend_from_slice(&header.previous);
    out.extend_from_slice(&header.mac);
    let check = header_check(&out[start..start + HEADER]);
    out[start + 28..start + 32].copy_from_slice(&check.to_le_bytes());
    out.extend_from_slice(payload);
    let check = crc32c::crc32c(&out[start..]);
    out.extend_from_slice(&check.to_le_bytes());
    out.push(END);
}

/// Reads the header at the start of `bytes`.
pub fn read_header(bytes: &[u8]) -> Result<Header, FrameFault> {
    let have = bytes.len().min(HEADER);
    if bytes[..have].iter().all(|b| *b == 0) {
        return Err(FrameFault::Blank);
    }
    let Some((head, _)) = bytes.split_first_chunk::<HEADER>() else {
        return Err(FrameFault::Short { need: HEADER, have });
    };
    if head[..2] != MAGIC {
        return Err(FrameFault::Header("it does not begin like a record"));
    }
    if header_check(head) != u32::from_le_bytes(array(&head[28..32])) {
        return Err(FrameFault::Header("its checksum does not fit"));
    }
    if head[2] != VERSION {
        return Err(FrameFault::Version(head[2]));
    }
    if head[22..24] != [0, 0] {
        return Err(FrameFault::Header("its reserved bytes are not zero"));
    }
    let header = Header {
        kind: head[3],
        len: u32::from_le_bytes(array(&head[4..8])),
        seq: Seq(u64::from_le_bytes(array(&head[8..16]))),
        index: u16::from_le_bytes(array(&head[16..18])),
        left: u16::from_le_bytes(array(&head[18..20])),
        flags: u16::from_le_bytes(array(&head[20..22])),
        key: u32::from_le_bytes(array(&head[24..28])),
        nonce: array(&head[32..56]),
        previous: array(&head[56..88]),
        mac: array(&head[88..104]),
    };
    if header.len as usize > PAYLOAD_MAX {
        return Err(FrameFault::Header("its length is out of range"));
    }
    Ok(header)
}

/// Reads the record at the start of `bytes`.
pub fn read(bytes: &[u8]) -> Result<Frame<'_>, FrameFault> {
    let header = read_header(bytes)?;
    let need = length(header.len as usize);
    let Some(whole) = bytes.get(..need) else {
        return Err(FrameFault::Short {
            need,
            have: bytes.len(),
        });
    };
    let body = &whole[..need - TRAILER];
    let check = u32::from_le_bytes(array(&whole[need - TRAILER..need - 1]));
    if whole[need - 1] != END || crc32c::crc32c(body) != check {
        return Err(FrameFault::Checksum { len: need });
    }
    Ok(Frame {
        header,
        payload: &body[HEADER..],
    })
}

/// Where in `bytes`, from `from` on, the next thing that looks like a record begins.
pub fn next_magic(bytes: &[u8], from: usize) -> Option<usize> {
    let rest = bytes.get(from..)?;
    rest.windows(2).position(|w| w == MAGIC).map(|at| from + at)
}

fn header_check(head: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..28]), &head[32..HEADER])
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(len: usize) -> Header {
        Header {
            kind: 6,
            len: len as u32,
            seq: Seq(7),
            index: 1,
            left: 2,
            flags: EXTERNAL,
            key: 9,
            nonce: [3; 24],
            previous: [4; 32],
            mac: [5; 16],
        }
    }

    proptest! {
        #[test]
        fn reads_back_what_was_written(payload in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut bytes = Vec::new();
            write(&header(payload.len()), &payload, &mut bytes);
            prop_assert_eq!(bytes.len(), length(payload.len()));
            let frame = read(&bytes).unwrap();
            prop_assert_eq!(frame.header, header(payload.len()));
            prop_assert_eq!(frame.payload, &payload[..]);
        }

        #[test]
        fn any_flipped_bit_is_noticed(
            payload in proptest::collection::vec(any::<u8>(), 0..200), at: prop::sample::Index, bit in 0..8u8,
        ) {
            let mut bytes = Vec::new();
            write(&header(payload.len()), &payload, &mut bytes);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(read(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = read(&bytes);
            let mut with_magic = MAGIC.to_vec();
            with_magic.extend(bytes);
            let _ = read(&with_magic);
        }
    }
}
