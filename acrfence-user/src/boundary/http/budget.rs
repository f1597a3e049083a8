//! Memory for bodies, accounted for in all, so that many large ones at once cannot use it up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Memory is accounted for in blocks of this size.
const BLOCK: usize = 16 * 1024;

/// The memory that all bodies share.
#[derive(Clone)]
pub(crate) struct Memory(Arc<Semaphore>);

/// What one body has of it. Given back when dropped.
pub(crate) struct Share {
    memory: Memory,
    permit: Option<OwnedSemaphorePermit>,
}

impl Memory {
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new(bytes / BLOCK)))
    }

    /// A share of nothing so far.
    pub(crate) fn share(&self) -> Share {
        Share {
            memory: self.clone(),
            permit: None,
        }
    }
}

impl Share {
    /// Makes it large enough for `bytes` in all, if there is so much left.
    pub(crate) fn try_grow(&mut self, bytes: usize) -> bool {
        let Some(more) = self.missing(bytes) else {
            return true;
        };
        match self.memory.0.clone().try_acquire_many_owned(more) {
            Ok(got) => {
                self.add(got);
                true
            }
            Err(_) => false,
        }
    }

    /// The same, waiting for others to give some back.
    pub(crate) async fn grow(&mut self, bytes: usize, within: Duration) -> bool {
        let Some(more) = self.missing(bytes) else {
            return true;
        };
        match timeout(within, self.memory.0.clone().acquire_many_owned(more)).await {
            Ok(Ok(got)) => {
                self.add(got);
                true
            }
            _ => false,
        }
    }

    fn missing(&self, bytes: usize) -> Option<u32> {
        let have = self
            .permit
            .as_ref()
            .map_or(0, OwnedSemaphorePermit::num_permits);
        let more = bytes.div_ceil(BLOCK).checked_sub(have)?;
        (more > 0).then(|| u32::try_from(more).unwrap_or(u32::MAX))
    }

    fn add(&mut self, got: OwnedSemaphorePermit) {
        match &mut self.permit {
            Some(permit) => permit.merge(got),
            none => *none = Some(got),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_one_body_has_another_cannot_have() {
        let memory = Memory::new(4 * BLOCK);
        let (mut one, mut two) = (memory.share(), memory.share());
        assert!(one.try_grow(1) && one.try_grow(BLOCK) && one.try_grow(3 * BLOCK));
        assert!(two.try_grow(BLOCK));
        assert!(!two.try_grow(BLOCK + 1));
        assert!(!two.grow(2 * BLOCK, Duration::from_millis(10)).await);
        drop(one);
        assert!(two.grow(4 * BLOCK, Duration::from_millis(10)).await);
        assert!(!memory.share().try_grow(usize::MAX));
    }
}
