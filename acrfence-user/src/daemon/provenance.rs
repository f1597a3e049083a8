//! Where the values of calls come from, as far as the log knows.

use super::pipeline::Inner;
use crate::analyzer::{self, Provenance};
use crate::words::{AgentName, Seq, ThreadId};

/// Provenance from the hashes that the log keeps.
pub(super) struct LogProvenance<'a> {
    inner: &'a Inner,
    /// What any of the agent's threads was told counts: a value that a conversation got from another
    /// is no value that a model made up.
    threads: Vec<ThreadId>,
    before: Seq,
}

impl<'a> LogProvenance<'a> {
    /// What was told before a position, to the agent or to the owner of the thread.
    pub(super) fn of(inner: &'a Inner, thread: ThreadId, agent: &AgentName, before: Seq) -> Self {
        Self {
            inner,
            threads: threads_of(inner, thread, agent),
            before,
        }
    }
}

impl Provenance for LogProvenance<'_> {
    fn seen(&self, value: &str) -> Option<String> {
        let hash = analyzer::value_hash(&self.inner.keys.values, value);
        // A log that cannot be read says nothing of where a value came from: taken as seen, the
        // difference counts, and the call is stopped.
        self.threads
            .iter()
            .find_map(|thread| match self.inner.log.first_seen(*thread, hash) {
                Ok(seq) => seq
                    .filter(|seq| *seq < self.before)
                    .map(|seq| format!("seen earlier by this agent (record {seq})")),
                Err(e) => Some(format!("perhaps seen earlier ({e})")),
            })
    }
}

fn threads_of(inner: &Inner, thread: ThreadId, agent: &AgentName) -> Vec<ThreadId> {
    let lineage = inner.lineage.read();
    let of = |agent| lineage.agent(agent).map_or(&[][..], |line| &line.threads);
    let owner = lineage.thread(thread).map(|t| &t.agent);
    let mut threads = vec![thread];
    threads.extend(of(agent));
    threads.extend(owner.filter(|o| *o != agent).into_iter().flat_map(of));
    threads.dedup();
    threads
}
