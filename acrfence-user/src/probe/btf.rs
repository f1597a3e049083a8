//! Reads the running kernel's type information (BTF): where a field lies in a structure.
//!
//! Pure: bytes in, offsets out. The input is the kernel's own, but nothing here trusts it.

use std::collections::HashMap;

/// Type information, indexed by structure name.
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Offset of every type in `types`; type 0 is `void` and has none.
    offsets: Vec<usize>,
    structures: HashMap<&'a [u8], u32>,
}

/// Why type information cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    /// It is not BTF, or ends early.
    #[error("it is damaged or of an unknown version")]
    Damaged,
    /// A structure or field is not there.
    #[error("`{0}` is missing")]
    Missing(String),
    /// A field has another size than the programs read.
    #[error("`{field}` has {found} bytes, not {wanted}")]
    Size {
        /// `structure.field`
        field: String,
        /// Its size.
        found: u32,
        /// What the programs read.
        wanted: u32,
    },
}

impl<'a> Btf<'a> {
    /// Reads type information as `/sys/kernel/btf/vmlinux` has it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let damaged = BtfError::Damaged;
        let magic = bytes.get(..4).ok_or(damaged.clone())?;
        if magic[..3] != [0x9f, 0xeb, 1] {
            return Err(damaged);
        }
        let header = word(bytes, 4).ok_or(damaged.clone())? as usize;
        let section = |at: usize| {
            let start = header.checked_add(word(bytes, at)? as usize)?;
            let end = start.checked_add(word(bytes, at + 4)? as usize)?;
            bytes.get(start..end)
        };
        let types = section(8).ok_or(damaged.clone())?;
        let strings = section(16).ok_or(damaged.clone())?;

        let mut btf = Self {
            types,
            strings,
            offsets: vec![usize::MAX],
            structures: HashMap::new(),
        };
        let mut at = 0;
        while at < types.len() {
            let head = Head::read(types, at).ok_or(damaged.clone())?;
            let id = u32::try_from(btf.offsets.len()).map_err(|_| damaged.clone())?;
            btf.offsets.push(at);
            if head.kind == STRUCT && head.count > 0 {
                let name = btf.string(head.name).ok_or(damaged.clone())?;
                // The first definition of a name is the kernel's own.
                btf.structures.entry(name).or_insert(id);
            }
            at = head
                .length()
                .and_then(|length| at.checked_add(length))
                .filter(|&end| end <= types.len())
                .ok_or(damaged.clone())?;
        }
        Ok(btf)
    }

    /// Byte offset of `field` in `structure`, looking into unnamed members. A `size` other than
    /// none must be the field's.
    pub fn offset(&self, structure: &str, field: &str, size: Option<u32>) -> Result<u32, BtfError> {
        let path = || format!("{structure}.{field}");
        let id = self
            .structures
            .get(structure.as_bytes())
            .ok_or_else(|| BtfError::Missing(structure.into()))?;
        let (bits, kind) = self
            .find(*id, field.as_bytes(), 0)
            .ok_or_else(|| BtfError::Missing(path()))?;
        if bits % 8 != 0 {
            return Err(BtfError::Missing(path()));
        }
        if let Some(wanted) = size {
            let found = self.size(kind).ok_or(BtfError::Damaged)?;
            if found != wanted {
                return Err(BtfError::Size {
                    field: path(),
                    found,
                    wanted,
                });
            }
        }
        Ok(bits / 8)
    }

    /// Size of a structure in bytes.
    pub fn structure_size(&self, structure: &str) -> Result<u32, BtfError> {
        let id = self.structures.get(structure.as_bytes());
        let id = id.ok_or_else(|| BtfError::Missing(structure.into()))?;
        self.size(*id).ok_or(BtfError::Damaged)
    }

    /// Bit offset and type of a member.
    fn find(&self, id: u32, field: &[u8], depth: u32) -> Option<(u32, u32)> {
        if depth > DEEPEST {
            return None;
        }
        let at = self.at(id)?;
        let head = Head::read(self.types, at)?;
        if head.kind != STRUCT && head.kind != UNION {
            return None;
        }
        for n in 0..head.count as usize {
            let member = at + 12 + n * 12;
            let name = self.string(word(self.types, member)?)?;
            let kind = word(self.types, member + 4)?;
            let place = word(self.types, member + 8)?;
            // With the flag set, the upper byte is the width of a bit field.
            let (bits, is_bit_field) = if head.flag {
                (place & 0x00ff_ffff, place >> 24 != 0)
            } else {
                (place, false)
            };
            if name == field {
                return (!is_bit_field).then_some((bits, kind));
            }
            if name.is_empty()
                && let Some((inner, kind)) = self.find(self.resolve(kind)?, field, depth + 1)
            {
                return Some((bits.checked_add(inner)?, kind));
            }
        }
        None
    }

    /// Follows type names and qualifiers.
    fn resolve(&self, mut id: u32) -> Option<u32> {
        for _ in 0..DEEPEST {
            let head = Head::read(self.types, self.at(id)?)?;
            match head.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = head.size,
                _ => return Some(id),
            }
        }
        None
    }

    fn size(&self, id: u32) -> Option<u32> {
        let at = self.at(self.resolve(id)?)?;
        let head = Head::read(self.types, at)?;
        match head.kind {
            INT | ENUM | STRUCT | UNION | ENUM64 | FLOAT => Some(head.size),
            PTR => Some(8),
            ARRAY => {
                let element = self.resolve(word(self.types, at + 12)?)?;
                let element = Head::read(self.types, self.at(element)?)?;
                let count = word(self.types, at + 20)?;
                match element.kind {
                    PTR => count.checked_mul(8),
                    INT | STRUCT | UNION => count.checked_mul(element.size),
                    _ => None,
                }
            }
            _ => None,
        }
    }

    fn at(&self, id: u32) -> Option<usize> {
        self.offsets
            .get(id as usize)
            .copied()
            .filter(|&at| at != usize::MAX)
    }

    fn string(&self, at: u32) -> Option<&'a [u8]> {
        let rest = self.strings.get(at as usize..)?;
        let end = rest.iter().position(|&b| b == 0)?;
        rest.get(..end)
    }
}

const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FLOAT: u32 = 16;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// No type of a kernel is nested deeper.
const DEEPEST: u32 = 16;

struct Head {
    name: u32,
    kind: u32,
    count: u32,
    flag: bool,
    /// Size, or the type referred to.
    size: u32,
}

impl Head {
    fn read(types: &[u8], at: usize) -> Option<Self> {
        let info = word(types, at.checked_add(4)?)?;
        Some(Self {
            name: word(types, at)?,
            kind: info >> 24 & 0x1f,
            count: info & 0xffff,
            flag: info >> 31 != 0,
            size: word(types, at + 8)?,
        })
    }

    /// Bytes of the whole type; none for an unknown kind.
    fn length(&self) -> Option<usize> {
        let count = self.count as usize;
        let rest = match self.kind {
            INT | 14 | 17 => 4,
            ARRAY => 12,
            STRUCT | UNION | 15 | ENUM64 => count * 12,
            ENUM | 13 => count * 8,
            PTR | 7..=12 | FLOAT | TYPE_TAG => 0,
            _ => return None,
        };
        Some(12 + rest)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_ne_bytes(four.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds BTF the way a compiler would.
    struct Builder {
        types: Vec<u32>,
        strings: Vec<u8>,
    }

    impl Builder {
        fn new() -> Self {
            Self {
                types: vec![],
                strings: vec![0],
            }
        }

        fn name(&mut self, name: &str) -> u32 {
            if name.is_empty() {
                return 0;
            }
            let at = self.strings.len() as u32;
            self.strings.extend(name.bytes());
            self.strings.push(0);
            at
        }

        fn push(&mut self, name: &str, kind: u32, count: u32, size: u32, rest: &[u32]) {
            let name = self.name(name);
            self.types.extend([name, kind << 24 | count, size]);
            self.types.extend(rest);
        }

        fn structure(&mut self, name: &str, kind: u32, size: u32, members: &[(&str, u32, u32)]) {
            let mut rest = vec![];
            for &(member, kind, bits) in members {
                rest.extend([self.name(member), kind, bits]);
            }
            self.push(name, kind, members.len() as u32, size, &rest);
        }

        fn bytes(&self) -> Vec<u8> {
            let mut out = vec![0x9f, 0xeb, 1, 0];
            let types: Vec<u8> = self.types.iter().flat_map(|w| w.to_ne_bytes()).collect();
            for word in [
                24,
                0,
                types.len() as u32,
                types.len() as u32,
                self.strings.len() as u32,
            ] {
                out.extend(word.to_ne_bytes());
            }
            out.extend(types);
            out.extend(&self.strings);
            out
        }
    }

    fn sample() -> Vec<u8> {
        let mut b = Builder::new();
        b.push("u64", INT, 0, 8, &[64]); // 1
        b.push("", PTR, 0, 1, &[]); // 2
        b.structure("", UNION, 8, &[("low", 1, 0), ("link", 2, 0)]); // 3
        b.push("time_t", TYPEDEF, 0, 1, &[]); // 4
        b.structure(
            "task",
            STRUCT,
            24,
            &[("first", 1, 0), ("", 3, 64), ("start", 4, 128)],
        ); // 5
        b.bytes()
    }

    #[test]
    fn fields_are_found_also_in_unnamed_members() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(btf.offset("task", "first", Some(8)), Ok(0));
        assert_eq!(btf.offset("task", "link", Some(8)), Ok(8));
        assert_eq!(btf.offset("task", "start", Some(8)), Ok(16));
    }

    #[test]
    fn what_is_missing_or_of_another_size_is_named() {
        let bytes = sample();
        let btf = Btf::parse(&bytes).unwrap();
        assert_eq!(
            btf.offset("mm", "x", None),
            Err(BtfError::Missing("mm".into()))
        );
        assert_eq!(
            btf.offset("task", "x", None),
            Err(BtfError::Missing("task.x".into()))
        );
        assert!(matches!(
            btf.offset("task", "start", Some(4)),
            Err(BtfError::Size { found: 8, .. })
        ));
    }

    proptest! {
        #[test]
        fn damage_is_an_error_and_never_a_panic(
            at in 0usize..200, byte: u8, cut in 0usize..200,
        ) {
            let mut bytes = sample();
            let length = bytes.len();
            bytes[at % length] = byte;
            bytes.truncate(length - cut % length);
            if let Ok(btf) = Btf::parse(&bytes) {
                for field in ["first", "link", "start", "x"] {
                    let _ = btf.offset("task", field, Some(8));
                }
            }
        }
    }
}
