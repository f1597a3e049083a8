//! What observations told lately, so that an agent that polls, or sends its whole history with every
//! model request, does not fill the log with what it holds already.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;

use crate::effect::Harvest;
use crate::words::{Fingerprint, ThreadId};

/// Most values remembered of one thread. When there are more, the memory begins anew: some are then
/// written again, none is left out.
const MOST_VALUES: usize = 200_000;

/// What was told lately, by thread.
#[derive(Default)]
pub(super) struct News(Mutex<HashMap<ThreadId, Told>>);

#[derive(Default)]
struct Told {
    values: HashSet<u64>,
    issued: HashSet<Fingerprint>,
}

impl News {
    /// Forgets everything: the log may not hold it any more.
    pub(super) fn forget(&self) {
        self.0.lock().clear();
    }

    /// Leaves of a harvest what was not told before.
    pub(super) fn only_new(&self, thread: ThreadId, mut harvest: Harvest) -> Harvest {
        let mut all = self.0.lock();
        let told = all.entry(thread).or_default();
        if told.values.len() + told.issued.len() > MOST_VALUES {
            *told = Told::default();
        }
        harvest.values.retain(|value| told.values.insert(*value));
        harvest.issued.retain(|secret| told.issued.insert(*secret));
        harvest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::Seq;

    #[test]
    fn what_was_told_is_not_told_again_in_the_same_thread() {
        let news = News::default();
        let told = |values: &[u64]| Harvest {
            values: values.to_vec(),
            issued: Vec::new(),
        };
        let (one, two) = (ThreadId(Seq(1)), ThreadId(Seq(2)));
        assert_eq!(news.only_new(one, told(&[1, 2])), told(&[1, 2]));
        assert_eq!(news.only_new(one, told(&[2, 3])), told(&[3]));
        assert_eq!(news.only_new(two, told(&[2])), told(&[2]));
        assert_eq!(news.only_new(one, told(&[1, 2, 3])), Harvest::default());
    }
}
