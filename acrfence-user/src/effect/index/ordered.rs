//! What the index asks of the thing that keeps it: ordered keys, changes in order, nothing durable.
//!
//! The index is never the only copy of anything, so losing it costs a rebuild and no more.

use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use parking_lot::RwLock;

/// A change: the key, and its value or none to remove it.
pub type Change = (Vec<u8>, Option<Vec<u8>>);

/// One end of a range of keys.
pub type End<'a> = Bound<&'a [u8]>;

/// Takes keys and values until it says stop.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>;

/// Why the index cannot answer. It is then thrown away and rebuilt.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the index cannot be used: {0}")]
pub struct IndexFault(pub String);

/// Ordered keys and values.
pub trait Ordered: Send + Sync + 'static {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault>;

    /// Visits keys from `from` to `to` in order, or from `to` to `from` in reverse, until told to stop.
    fn scan(
        &self,
        from: End<'_>,
        to: End<'_>,
        reverse: bool,
        visit: Visit<'_>,
    ) -> Result<(), IndexFault>;

    /// Makes the changes in order. After a crash a beginning of them is there, so what a later one
    /// says about earlier ones (how far the index got) is true.
    fn apply(&self, changes: Vec<Change>) -> Result<(), IndexFault>;

    /// Hands what is held back to the kernel and, if asked, to the disk.
    fn flush(&self, sync: bool) -> Result<(), IndexFault>;

    /// Bytes on disk.
    fn size(&self) -> u64;
}

/// Where an index lives.
pub trait Home: Send + Sync + 'static {
    /// Opens it, empty when there is none.
    fn open(&self) -> Result<Arc<dyn Ordered>, IndexFault>;
    /// Throws it away.
    fn wipe(&self) -> Result<(), IndexFault>;
    /// Remembers that everything is on disk as of now, or that it no longer is.
    fn mark_clean(&self, clean: bool) -> Result<(), IndexFault>;
    /// Makes the next open quick, once nobody uses what [`Self::open`] gave any more.
    fn fold(&self) -> Result<(), IndexFault>;
    /// Whether the content can be trusted: marked clean, or written since the machine was started.
    fn trusted(&self) -> bool;
    /// Bytes of it that may be kept in memory; 0 when nothing is gained by reading ahead.
    fn cache(&self) -> u64 {
        0
    }
}

/// An index in memory: rebuilt at every start. For tests, and the model that others are held to.
#[derive(Clone, Default)]
pub struct MemoryHome(Arc<Memory>);

/// See [`MemoryHome`].
#[derive(Default)]
pub struct Memory(RwLock<BTreeMap<Vec<u8>, Vec<u8>>>);

impl Home for MemoryHome {
    fn open(&self) -> Result<Arc<dyn Ordered>, IndexFault> {
        Ok(self.0.clone())
    }

    fn wipe(&self) -> Result<(), IndexFault> {
        self.0.0.write().clear();
        Ok(())
    }

    fn mark_clean(&self, _: bool) -> Result<(), IndexFault> {
        Ok(())
    }

    fn fold(&self) -> Result<(), IndexFault> {
        Ok(())
    }

    fn trusted(&self) -> bool {
        true
    }
}

impl Ordered for Memory {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault> {
        Ok(self.0.read().get(key).cloned())
    }

    fn scan(
        &self,
        from: End<'_>,
        to: End<'_>,
        reverse: bool,
        visit: Visit<'_>,
    ) -> Result<(), IndexFault> {
        let map = self.0.read();
        let range = map.range::<[u8], _>((from, to));
        let mut each = |(key, value): (&Vec<u8>, &Vec<u8>)| visit(key, value);
        let _ = if reverse {
            range.rev().try_for_each(&mut each)
        } else {
            range.into_iter().try_for_each(&mut each)
        };
        Ok(())
    }

    fn apply(&self, changes: Vec<Change>) -> Result<(), IndexFault> {
        let mut map = self.0.write();
        for (key, value) in changes {
            match value {
                Some(value) => map.insert(key, value),
                None => map.remove(&key),
            };
        }
        Ok(())
    }

    fn flush(&self, _: bool) -> Result<(), IndexFault> {
        Ok(())
    }

    fn size(&self) -> u64 {
        0
    }
}
