//! Pages of effects.
//!
//! The most telling property of a filter is walked; what the lists of the other properties do not
//! have in the same block is left out; what is left is checked on the row. One call looks at a bounded
//! number of rows and reads a bounded part of the lists, so a page may be short (even empty) and still
//! have a next one.

use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use crate::effect::{EffectFilter, EffectRow, LogError, Page};
use crate::words::{EffectId, Seq, Timestamp};

use super::Index;
use super::key::{self, Tree};
use super::pack::{self, BLOCK_BITS};
use super::row::Row;

/// Items on a page, unless asked otherwise.
pub const PAGE: usize = 50;
/// Items on a page at most.
pub const PAGE_MAX: usize = 1000;
/// Rows looked at for one page at most.
const LOOKED_AT: usize = 4096;
/// Positions read from the lists for one page at most, roughly: a whole step is taken before it counts.
const READ: usize = if cfg!(test) { 8 } else { 16_384 };
/// Tools whose key contains a text are walked side by side up to this number.
const TOOLS: usize = 32;
/// The low bits of the last position of a block.
const BLOCK_END: u64 = (1 << BLOCK_BITS) - 1;

/// Says whether the bodies of an effect contain a text, and how many bytes it read.
pub type TextMatch<'a> = &'a dyn Fn(&Row, &str) -> Result<(bool, usize), LogError>;

impl Index {
    /// A page of effects. `text` looks into bodies; it is asked last, and for at most `read_max`
    /// bytes.
    pub fn effects(
        &self,
        filter: &EffectFilter,
        text: TextMatch<'_>,
        read_max: usize,
    ) -> Result<Page<EffectRow>, LogError> {
        let limit = filter.limit.unwrap_or(PAGE).clamp(1, PAGE_MAX);
        let mut walk = self.walk(filter)?;
        let mut items = Vec::new();
        let mut looked = 0;
        let mut read = 0;
        let mut last = None;
        loop {
            let id = match walk.next(self)? {
                Step::At(id) => id,
                Step::Paused(at) => {
                    return Ok(Page {
                        items,
                        next: Some(at),
                    });
                }
                Step::End => return Ok(Page { items, next: None }),
            };
            if items.len() == limit || looked >= LOOKED_AT || read >= read_max {
                return Ok(Page { items, next: last });
            }
            looked += 1;
            last = Some(id);
            if let Some(behind) = self.skip(filter, id)? {
                walk.jump(behind, filter.oldest_first);
                continue;
            }
            let Some(row) = self.row(EffectId(id))? else {
                continue;
            };
            if !fits(&row, filter) {
                continue;
            }
            if let Some(wanted) = &filter.text {
                let (found, bytes) = text(&row, wanted)?;
                read += bytes;
                if !found {
                    continue;
                }
            }
            items.push(row.shown);
        }
    }

    /// The walk over candidates for a page, in the order of the page.
    fn walk(&self, filter: &EffectFilter) -> Result<Walk, LogError> {
        let (low, high) = match (filter.after, filter.oldest_first) {
            (None, _) => (Seq(0), Seq(u64::MAX)),
            (Some(after), true) => (Seq(after.0.saturating_add(1)), Seq(u64::MAX)),
            (Some(after), false) => (Seq(0), Seq(after.0.saturating_sub(1))),
        };
        let (earliest, latest) = self.in_time(filter)?;
        let (low, high) = (low.max(earliest), high.min(latest));
        let empty = low > high || (filter.after == Some(Seq(0)) && !filter.oldest_first);
        let mut lists = if empty {
            Vec::new()
        } else {
            self.lists(filter)?
        };
        let driving = if lists.is_empty() {
            Vec::new()
        } else {
            lists.remove(0)
        };
        // The list by status is not packed, so it can drive, and not be looked into.
        lists.retain(|any| any.iter().all(|prefix| pack::is_packed(prefix)));
        let others = Arc::new(lists);
        let share = READ / driving.len().max(1);
        Ok(Walk {
            streams: driving
                .into_iter()
                .map(|prefix| Stream {
                    prefix,
                    others: others.clone(),
                    low,
                    high,
                    buffer: Vec::new(),
                    done: false,
                    left: share,
                })
                .collect(),
            reverse: !filter.oldest_first,
        })
    }

    /// What fits is, for each of these, in at least one of its lists. The most telling one is first.
    fn lists(&self, filter: &EffectFilter) -> Result<Vec<AnyOf>, LogError> {
        let mut lists: Vec<AnyOf> = Vec::new();
        if let Some(fingerprint) = filter.credential {
            lists.push(vec![key::credentials(key::CREDENTIAL, fingerprint)]);
        }
        if let Some(number) = filter.status.and_then(key::status_number) {
            lists.push(vec![key::list(Tree::Status, number)]);
        }
        if let Some(branch) = filter.branch {
            lists.push(vec![key::list(Tree::Branch, branch.0.0)]);
        }
        if let Some(thread) = filter.thread {
            lists.push(vec![key::list(Tree::Thread, thread.0.0)]);
        }
        if let Some(pid) = filter.pid {
            lists.push(vec![key::list(Tree::Process, pid.into())]);
        }
        if let Some(host) = &filter.host {
            let host = self.names.hash(Tree::Host, host);
            lists.push(vec![key::list(Tree::Host, host)]);
        }
        if let Some(part) = &filter.tool {
            let tools = self.tools_containing(part)?;
            if tools.len() <= TOOLS {
                let list = |tool| key::list(Tree::Tool, tool);
                lists.push(tools.into_iter().map(list).collect());
            }
        }
        if let Some(agent) = &filter.agent {
            let agent = self.names.hash(Tree::Agent, agent.as_str());
            lists.push(vec![key::list(Tree::Agent, agent)]);
        }
        if lists.is_empty() {
            lists.push(vec![key::list(Tree::All, 0)]);
        }
        Ok(lists)
    }

    fn tools_containing(&self, part: &str) -> Result<Vec<u64>, LogError> {
        let mut tools = Vec::new();
        self.scan_prefix(&[key::NAME, Tree::Tool as u8], &mut |key, name| {
            if contains(name, part.as_bytes()) {
                tools.push(key::last_number(key));
            }
            if tools.len() > TOOLS {
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        })?;
        Ok(tools)
    }

    /// The first and the last position at which an effect of the wanted time can be.
    fn in_time(&self, filter: &EffectFilter) -> Result<(Seq, Seq), LogError> {
        if filter.since.is_none() && filter.until.is_none() {
            return Ok((Seq(0), Seq(u64::MAX)));
        }
        let mut ends = (Seq(u64::MAX), Seq(0));
        self.scan_prefix(&[key::ZONE], &mut |key, span| {
            if !is_outside(filter, span) {
                let block = key::last_number(key) << BLOCK_BITS;
                ends.0 = ends.0.min(Seq(block));
                ends.1 = ends.1.max(Seq(block | BLOCK_END));
            }
            ControlFlow::Continue(())
        })?;
        Ok(ends)
    }

    /// The end of the run of positions around `id` in which no effect lies in the wanted time.
    fn skip(&self, filter: &EffectFilter, id: Seq) -> Result<Option<Seq>, LogError> {
        if filter.since.is_none() && filter.until.is_none() {
            return Ok(None);
        }
        let Some(span) = self.get(&key::zone(id))? else {
            return Ok(None);
        };
        let block = pack::block(id) << BLOCK_BITS;
        let end = if filter.oldest_first {
            Seq(block | BLOCK_END)
        } else {
            Seq(block)
        };
        Ok(is_outside(filter, &span).then_some(end))
    }
}

/// Lists walked side by side, in order and without repeats.
struct Walk {
    streams: Vec<Stream>,
    reverse: bool,
}

/// What a walk comes to.
enum Step {
    /// A position to look at.
    At(Seq),
    /// Enough was read for one page. All up to here (in the order of the page) was looked at.
    Paused(Seq),
    /// Nothing more.
    End,
}

/// Prefixes of lists.
type AnyOf = Vec<Vec<u8>>;

/// One list, less what is not in the others.
struct Stream {
    prefix: Vec<u8>,
    others: Arc<Vec<AnyOf>>,
    low: Seq,
    high: Seq,
    /// Positions that were read ahead, the next one last.
    buffer: Vec<Seq>,
    done: bool,
    /// Positions that may still be read.
    left: usize,
}

impl Walk {
    fn next(&mut self, index: &Index) -> Result<Step, LogError> {
        let reverse = self.reverse;
        let nearest = |a: Seq, b: Seq| if reverse { a.max(b) } else { a.min(b) };
        let mut best: Option<Seq> = None;
        // The first position that nobody looked at, of the streams that read enough for one page.
        let mut unread: Option<Seq> = None;
        // Each reads a step at least, so every page gets on.
        for stream in &mut self.streams {
            if !stream.fill(index, reverse)? {
                let next = if reverse { stream.high } else { stream.low };
                unread = Some(unread.map_or(next, |other| nearest(other, next)));
            }
            if let Some(&head) = stream.buffer.last() {
                best = Some(best.map_or(head, |other| nearest(other, head)));
            }
        }
        match (best, unread) {
            (None, Some(unread)) => Ok(self.paused_before(unread)),
            // It may be in a list that was not read so far.
            (Some(best), Some(unread)) if nearest(best, unread) == unread => {
                Ok(self.paused_before(unread))
            }
            (Some(best), _) => {
                for stream in &mut self.streams {
                    stream.buffer.pop_if(|head| *head == best);
                }
                Ok(Step::At(best))
            }
            (None, None) => Ok(Step::End),
        }
    }

    fn paused_before(&self, unread: Seq) -> Step {
        Step::Paused(Seq(if self.reverse {
            unread.0.saturating_add(1)
        } else {
            unread.0.saturating_sub(1)
        }))
    }

    /// Goes on behind `last`.
    fn jump(&mut self, last: Seq, oldest_first: bool) {
        for stream in &mut self.streams {
            if oldest_first {
                stream.low = stream.low.max(Seq(last.0.saturating_add(1)));
                stream.buffer.retain(|seq| *seq > last);
            } else {
                match last.0.checked_sub(1) {
                    Some(high) => stream.high = stream.high.min(Seq(high)),
                    None => stream.done = true,
                }
                stream.buffer.retain(|seq| *seq < last);
            }
        }
    }
}

impl Stream {
    /// Reads ahead until there is something to give, or nothing more. False when what may be read for
    /// one page ran out first.
    fn fill(&mut self, index: &Index, reverse: bool) -> Result<bool, LogError> {
        while self.buffer.is_empty() && !self.done {
            if self.left == 0 {
                return Ok(false);
            }
            let mut read = self.read_ahead(index, reverse)?;
            self.left = self.left.saturating_sub(read.len());
            match (read.last(), reverse) {
                (Some(last), true) => match last.0.checked_sub(1) {
                    Some(high) => self.high = Seq(high),
                    None => self.done = true,
                },
                (Some(last), false) => match last.0.checked_add(1) {
                    Some(low) => self.low = Seq(low),
                    None => self.done = true,
                },
                (None, _) => {}
            }
            self.keep_common(index, &mut read)?;
            read.reverse();
            self.buffer = read;
        }
        Ok(true)
    }

    fn read_ahead(&mut self, index: &Index, reverse: bool) -> Result<Vec<Seq>, LogError> {
        // Few in tests, so that lists are walked in steps.
        const AHEAD: usize = if cfg!(test) { 4 } else { 128 };
        // The list by status has a key for each effect, the others one for each block.
        let packed = pack::is_packed(&self.prefix);
        let end = |seq: Seq| {
            let number = if packed { pack::block(seq) } else { seq.0 };
            [&self.prefix[..], &number.to_be_bytes()].concat()
        };
        let (from, to) = (end(self.low), end(self.high));
        let within = self.low..=self.high;
        let mut read = Vec::new();
        let mut full = false;
        let (from, to) = (Bound::Included(&from[..]), Bound::Included(&to[..]));
        index.scan(from, to, reverse, &mut |key, value| {
            if packed {
                let mut block = pack::positions(key, value);
                block.retain(|seq| within.contains(seq));
                if reverse {
                    block.reverse();
                }
                read.extend(block);
            } else {
                read.push(Seq(key::last_number(key)));
            }
            full = read.len() >= AHEAD;
            if full {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })?;
        self.done = !full;
        Ok(read)
    }

    /// Leaves only what is in the other lists as well.
    fn keep_common(&self, index: &Index, read: &mut Vec<Seq>) -> Result<(), LogError> {
        for any in self.others.iter() {
            let mut common = HashSet::new();
            let mut block = None;
            for seq in read.iter() {
                if block.replace(pack::block(*seq)) == Some(pack::block(*seq)) {
                    continue;
                }
                for prefix in any {
                    let key = [&prefix[..], &pack::block(*seq).to_be_bytes()].concat();
                    if let Some(packed) = index.get(&key)? {
                        common.extend(pack::positions(&key, &packed));
                    }
                }
            }
            read.retain(|seq| common.contains(seq));
        }
        Ok(())
    }
}

/// Whether no effect of a zone lies in the wanted time.
fn is_outside(filter: &EffectFilter, span: &[u8]) -> bool {
    let earliest = Timestamp(span.first_chunk().map_or(0, |b| u64::from_be_bytes(*b)));
    let latest = Timestamp(key::last_number(span));
    filter.since.is_some_and(|since| latest < since)
        || filter.until.is_some_and(|until| earliest >= until)
}

/// Whether everything but the bodies fits.
pub fn fits(row: &Row, filter: &EffectFilter) -> bool {
    let shown = &row.shown;
    filter
        .agent
        .as_ref()
        .is_none_or(|agent| *agent == shown.agent)
        && filter.thread.is_none_or(|thread| thread == shown.thread)
        && filter.branch.is_none_or(|branch| branch == shown.branch)
        && filter
            .tool
            .as_ref()
            .is_none_or(|part| shown.key.0.contains(part.as_str()))
        && filter.host.as_ref().is_none_or(|host| *host == shown.host)
        && filter.status.is_none_or(|status| status == shown.status)
        && filter.pid.is_none_or(|pid| pid == shown.process.tgid)
        && filter.credential.is_none_or(|fingerprint| {
            row.presented.contains(&fingerprint) || row.issued.contains(&fingerprint)
        })
        && filter.since.is_none_or(|since| shown.at >= since)
        && filter.until.is_none_or(|until| shown.at < until)
}

/// Whether `bytes` contain `part`.
pub fn contains(bytes: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(bytes, part).is_some()
}
