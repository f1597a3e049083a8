//! What was written and is not in the ordered keys yet, in layers over them.
//!
//! Top to bottom: *early* (noted, visible at once, not on disk), *active* (on disk, waiting for the
//! applier), *frozen* (being applied). Facts only move downward, so a reader that looks at the
//! layers first and at the ordered keys after misses nothing.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::effect::Event;
use crate::effect::journal::Loc;
use crate::effect::journal::frame::Hash;
use crate::words::Seq;

use super::facts::{merge, merges};
use super::ordered::{Change, End};

/// Values by key; none hides what lies below.
pub type Layer = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// How far something got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reached {
    /// Position of the last record; 0 for none.
    pub seq: Seq,
    /// Its chain hash.
    pub chain: Hash,
    /// Where it lies.
    pub loc: Loc,
}

/// A key in a layer, and what the layer says of it.
type Entry<'a> = (&'a [u8], &'a Option<Vec<u8>>);

/// The layers.
pub struct Layers {
    early: BTreeMap<Vec<u8>, (Seq, Option<Vec<u8>>)>,
    noted: HashMap<Seq, Arc<Event>>,
    active: Layer,
    frozen: Arc<Layer>,
    /// The last record whose facts are in the layers or below.
    pub durable: Reached,
    pass: u32,
    unsaid: bool,
}

/// What is handed to the applier.
pub struct Frozen {
    /// The facts.
    pub facts: Arc<Layer>,
    /// How far they reach.
    pub reached: Reached,
    /// The pass of garbage collection that they belong to.
    pub pass: u32,
    /// Whether that is new.
    pub unsaid: bool,
}

/// Entries of the layers in scan order, complete up to `horizon`.
pub struct Slice {
    /// Keys and values.
    pub entries: Vec<Change>,
    /// The last key up to which `entries` are complete; none when they are complete to the end.
    pub horizon: Option<Vec<u8>>,
}

impl Layers {
    /// Nothing yet, on top of ordered keys that reach this far.
    pub fn over(durable: Reached, pass: u32) -> Self {
        Self {
            early: BTreeMap::new(),
            noted: HashMap::new(),
            active: Layer::new(),
            frozen: Arc::default(),
            durable,
            pass,
            unsaid: false,
        }
    }

    /// What the layers say of a key, without or with what is only noted; the outer none says that
    /// they say nothing.
    pub fn get(&self, key: &[u8], early: bool) -> Option<Option<Vec<u8>>> {
        let top = self
            .early
            .get(key)
            .filter(|_| early)
            .map(|(_, value)| value);
        let found = [top, self.active.get(key), self.frozen.get(key)];
        let mut found = found.into_iter().flatten();
        let mut value = found.next()?.clone();
        if merges(key) {
            for older in found {
                value = join(key, older.clone(), value);
            }
        }
        Some(value)
    }

    /// Adds facts of a record that is on disk.
    pub fn add(&mut self, facts: Vec<Change>) {
        for (key, value) in facts {
            insert(&mut self.active, key, value);
        }
    }

    /// Adds facts of a record that is only noted.
    pub fn add_early(&mut self, seq: Seq, event: Arc<Event>, facts: Vec<Change>) {
        self.noted.insert(seq, event);
        for (key, value) in facts {
            let value = match self.early.remove(&key) {
                Some((_, older)) if merges(&key) => join(&key, older, value),
                _ => value,
            };
            self.early.insert(key, (seq, value));
        }
    }

    /// A noted record is on disk now; its facts were added again, with its place.
    pub fn settle_early(&mut self, seq: Seq) {
        if self.noted.remove(&seq).is_some() {
            self.early.retain(|_, (noted, _)| *noted != seq);
        }
    }

    /// A record that is only noted.
    pub fn noted(&self, seq: Seq) -> Option<Arc<Event>> {
        self.noted.get(&seq).cloned()
    }

    /// How many facts wait for the applier or are being applied.
    pub fn waiting(&self) -> usize {
        self.active.len() + self.frozen.len()
    }

    /// How many facts wait for the applier.
    pub fn active(&self) -> usize {
        self.active.len()
    }

    /// Hands the active facts to the applier.
    pub fn freeze(&mut self) -> Frozen {
        self.frozen = Arc::new(std::mem::take(&mut self.active));
        Frozen {
            facts: self.frozen.clone(),
            reached: self.durable,
            pass: self.pass,
            unsaid: std::mem::take(&mut self.unsaid),
        }
    }

    /// All facts from now on belong to this pass of garbage collection.
    pub fn set_pass(&mut self, pass: u32) {
        self.pass = pass;
        self.unsaid = true;
    }

    /// The frozen facts are in the ordered keys.
    pub fn thaw(&mut self) {
        self.frozen = Arc::default();
    }

    /// At least the first entries between `from` and `to` in scan order.
    pub fn slice(&self, from: End<'_>, to: End<'_>, reverse: bool, at_most: usize) -> Slice {
        let mut all: BTreeMap<&[u8], Option<Vec<u8>>> = BTreeMap::new();
        let mut horizon: Option<&[u8]> = None;
        let layers = [
            take(&self.frozen, from, to, reverse, at_most, |value| value),
            take(&self.active, from, to, reverse, at_most, |value| value),
            take(&self.early, from, to, reverse, at_most, |(_, value)| value),
        ];
        for layer in layers {
            if let (true, Some((last, _))) = (layer.len() == at_most, layer.last()) {
                let nearer = horizon.is_none_or(|h| if reverse { *last > h } else { *last < h });
                if nearer {
                    horizon = Some(last);
                }
            }
            for (key, value) in layer {
                let value = match all.remove(key) {
                    Some(older) if merges(key) => join(key, older, value.clone()),
                    _ => value.clone(),
                };
                all.insert(key, value);
            }
        }
        let within = |key: &[u8]| horizon.is_none_or(|h| if reverse { key >= h } else { key <= h });
        let mut entries: Vec<Change> = all
            .into_iter()
            .filter(|(key, _)| within(key))
            .map(|(key, value)| (key.to_vec(), value))
            .collect();
        if reverse {
            entries.reverse();
        }
        Slice {
            entries,
            horizon: horizon.map(<[u8]>::to_vec),
        }
    }
}

/// Puts a fact into a layer, over what the layer says of the key already.
pub fn insert(layer: &mut Layer, key: Vec<u8>, value: Option<Vec<u8>>) {
    match layer.get_mut(&key) {
        Some(there) => {
            let older = there.take();
            *there = if merges(&key) {
                join(&key, older, value)
            } else {
                value
            };
        }
        None => {
            layer.insert(key, value);
        }
    }
}

fn join(key: &[u8], older: Option<Vec<u8>>, newer: Option<Vec<u8>>) -> Option<Vec<u8>> {
    match (older, newer) {
        (Some(older), Some(newer)) => Some(merge(key, &older, newer)),
        (older, None) => older,
        (None, newer) => newer,
    }
}

fn take<'a, V>(
    layer: &'a BTreeMap<Vec<u8>, V>,
    from: End<'_>,
    to: End<'_>,
    reverse: bool,
    at_most: usize,
    value: impl Fn(&'a V) -> &'a Option<Vec<u8>>,
) -> Vec<Entry<'a>> {
    let range = layer.range::<[u8], _>((from, to));
    let each = |(key, v): (&'a Vec<u8>, &'a V)| (key.as_slice(), value(v));
    if reverse {
        range.rev().take(at_most).map(each).collect()
    } else {
        range.take(at_most).map(each).collect()
    }
}
