//! What garbage collection and verification ask of the index.

use std::ops::ControlFlow;

use super::Index;
use super::facts::{Seen, facts, merge};
use super::key::{self, Tree};
use super::layers::Layers;
use super::ordered::{IndexFault, Ordered};
use super::pack;
use super::row::status_byte;
use crate::effect::journal::Loc;
use crate::effect::journal::frame::Hash;
use crate::effect::{Event, LogError, Prepared};
use crate::words::{EffectId, Outcome, Resolution, Seq, Status};

/// Records of a segment that was rewritten.
#[derive(Default)]
pub struct Moved {
    /// Those that stayed, with their new places.
    pub kept: Vec<(Seq, Loc, Event)>,
    /// Those that went.
    pub removed: Vec<(Seq, Event)>,
    /// Body files that went with them.
    pub bodies: Vec<Hash>,
}

impl Index {
    /// Takes over the new places, and forgets effects whose records went. First sightings of values
    /// and credentials stay: they are still true.
    pub fn moved(&self, moved: &Moved) -> Result<(), LogError> {
        let ordered = self.ordered()?;
        let mut layers = self.layers.write();
        let done = self.move_rows(&mut layers, &*ordered, moved);
        drop(layers);
        done.map_err(|fault| self.fail(&fault))?;
        self.wake.notify_one();
        Ok(())
    }

    /// The ordered keys, once they have everything, belong to this pass of garbage collection.
    pub fn took_in_pass(&self, pass: u32) {
        self.catch_up();
        self.layers.write().set_pass(pass);
        self.signals.lock().dirty = true;
        self.wake.notify_one();
    }

    /// An error while look-ups are refused.
    pub fn ready(&self) -> Result<(), LogError> {
        self.ordered().map(|_| ())
    }

    /// Rebuilds the index from the journal.
    pub fn distrust(&self, why: &str) {
        let _ = self.fail(&IndexFault(why.to_owned()));
    }

    /// How many effects it knows of up to a position.
    pub fn count_rows(&self, to: Seq) -> Result<u64, LogError> {
        let mut count = 0;
        let mut blocks = Vec::new();
        self.scan_prefix(&key::list(Tree::All, 0), &mut |key, value| {
            blocks.push((key.to_vec(), value.to_vec()));
            ControlFlow::Continue(())
        })?;
        for (key, block) in blocks {
            for seq in pack::positions(&key, &block) {
                count += u64::from(seq <= to && self.row(EffectId(seq))?.is_some());
            }
        }
        Ok(count)
    }

    /// Whether the index tells what a record says; otherwise what it tells wrongly.
    pub fn agrees(&self, seq: Seq, loc: Loc, event: &Event) -> Result<(), String> {
        let failed = |e: LogError| e.to_string();
        match event {
            Event::Settled {
                effect, outcome, ..
            } => {
                self.agrees_on_end(*effect, seq, loc, Outcome::status(outcome))?;
            }
            Event::Resolved {
                effect, resolution, ..
            } => {
                let status = match resolution {
                    Resolution::Happened(_) => Status::Completed,
                    Resolution::DidNotHappen => Status::Failed,
                };
                self.agrees_on_end(*effect, seq, loc, status)?;
            }
            Event::Prepared(_) => {
                let row = self.row(EffectId(seq)).map_err(failed)?;
                let row = row.ok_or("the index does not know this effect")?;
                if row.prepared != Some(loc) {
                    return Err("the index looks for this effect in another place".to_owned());
                }
            }
            _ => {}
        }
        let seen = Seen {
            seq,
            loc: Some(loc),
            body: None,
            event,
        };
        let row_of = |id: EffectId| self.row(id).map_err(|e| IndexFault(e.to_string()));
        for (key, value) in facts(&seen, &self.names, &row_of).map_err(|e| e.to_string())? {
            let Some(value) = value else { continue };
            match key.first() {
                // What a later record may have changed was looked at above.
                Some(&key::ROW) => continue,
                Some(tree) if *tree == Tree::Status as u8 => continue,
                _ => {}
            }
            let told = self.get(&key).map_err(failed)?.unwrap_or_default();
            // What is told already cannot change by being told again.
            let right = merge(&key, &told, value) == told;
            if !right {
                return Err(format!(
                    "the index lacks an entry for it (tree `{}`)",
                    char::from(key.first().copied().unwrap_or(b'?'))
                ));
            }
        }
        Ok(())
    }

    fn agrees_on_end(
        &self,
        effect: EffectId,
        seq: Seq,
        loc: Loc,
        status: Status,
    ) -> Result<(), String> {
        let row = self.row(effect).map_err(|e| e.to_string())?;
        if row.is_none() && self.archive.may_lack(effect.0) {
            // Garbage collection took the effect and has not come to this record.
            return Ok(());
        }
        let row = row.ok_or_else(|| format!("the index does not know effect {effect}"))?;
        if status_byte(row.shown.status) < status_byte(status) {
            return Err(format!(
                "the index says that effect {effect} is {}",
                row.shown.status
            ));
        }
        if row
            .outcome
            .is_some_and(|(told, place)| told == seq && place != Some(loc))
        {
            return Err(format!(
                "the index looks for the outcome of effect {effect} in another place"
            ));
        }
        let tool = self.names.hash(Tree::Tool, &row.shown.key.0);
        let key = key::candidate(row.shown.thread, tool, effect.0);
        let block = self
            .get(&key)
            .map_err(|e| e.to_string())?
            .unwrap_or_default();
        let right = pack::candidates(&key, &block)
            .into_iter()
            .any(|(at, branch, told)| {
                at == effect.0
                    && branch == row.shown.branch
                    && told == status_byte(row.shown.status)
            });
        if !right {
            return Err(format!(
                "the index has a wrong candidate entry for effect {effect}"
            ));
        }
        Ok(())
    }

    fn move_rows(
        &self,
        layers: &mut Layers,
        ordered: &dyn Ordered,
        moved: &Moved,
    ) -> Result<(), IndexFault> {
        for (seq, loc, event) in &moved.kept {
            layers.add(self.replaced(*seq, Some(*loc), event)?);
            let effect = match event {
                Event::Prepared(_) => EffectId(*seq),
                Event::Settled { effect, .. } | Event::Resolved { effect, .. } => *effect,
                _ => continue,
            };
            let Some(mut row) = self.row_below(layers, ordered, effect, false)? else {
                continue;
            };
            if matches!(event, Event::Prepared(_)) {
                row.prepared = Some(*loc);
            } else if let Some((told, place)) = &mut row.outcome
                && told == seq
            {
                *place = Some(*loc);
            }
            layers.add(vec![(key::at(key::ROW, effect.0), Some(row.encode()))]);
        }
        for (seq, event) in &moved.removed {
            layers.add(self.replaced(*seq, None, event)?);
            if let Event::Prepared(prepared) = event {
                self.forget(layers, *seq, prepared);
            }
        }
        for digest in &moved.bodies {
            layers.add(vec![(key::body(digest), None)]);
        }
        Ok(())
    }

    /// Takes an effect out of everything that answers with it. Lists may go on naming it: what has no
    /// row is passed over.
    fn forget(&self, layers: &mut Layers, seq: Seq, prepared: &Prepared) {
        let tool = self.names.hash(Tree::Tool, &prepared.key.0);
        let mut gone = vec![
            (key::at(key::ROW, seq), None),
            (
                key::candidate(prepared.thread, tool, seq),
                Some(pack::no_candidate(seq)),
            ),
        ];
        for status in [Status::Prepared, Status::InDoubt, Status::Failed] {
            if let Some(number) = key::status_number(status) {
                gone.push((key::with_status(number, seq), None));
            }
        }
        layers.add(gone);
    }
}
