//! The thread that moves facts into the ordered keys, and rebuilds them when they cannot be trusted.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::build;
use super::layers::{Frozen, Layers};
use super::ordered::IndexFault;
use super::warm::Warming;
use super::{Index, State};
use crate::effect::{LogError, Progress};

/// The applier waits this long for more facts, so that a call's beginning and end meet.
const LINGER: Duration = Duration::from_secs(1);
/// The applier does not wait any longer with so many facts.
const ENOUGH: usize = 50_000;
/// With nothing to apply for so long, the applier hands what sled holds back to the kernel.
const IDLE: Duration = Duration::from_millis(500);
/// A rebuild that failed is tried again after so long.
const RETRY: Duration = Duration::from_secs(10);
/// After so many facts it is worth the while to make the next open quick.
const FOLD: u64 = 100_000;

/// What the applier has to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    Facts,
    Idle,
    /// Nothing is due, and look-ups have not been read ahead for yet.
    Spare,
    Closing,
}

impl Index {
    /// Runs until the index is closed.
    pub(super) fn run_applier(&self) {
        let mut held_back = false;
        let mut warming = Warming::new(self.home.cache());
        // When what waits is applied.
        let mut apply_at = None;
        loop {
            let wake = self.next_wake(&mut apply_at, held_back, !warming.is_done());
            if wake != Wake::Spare {
                apply_at = None;
                if let Err(fault) = self.apply_waiting(wake == Wake::Closing) {
                    let _ = self.fail(&fault);
                }
            }
            match wake {
                Wake::Closing => return,
                Wake::Facts => held_back = true,
                Wake::Spare => {
                    if let Ok(ordered) = self.ordered()
                        && let Err(fault) = warming.go_on(&*ordered)
                    {
                        let _ = self.fail(&fault);
                    }
                    self.read_ahead.store(warming.is_done(), Ordering::Relaxed);
                }
                Wake::Idle => {
                    // What sled holds back goes to the kernel, so that a killed daemon has little
                    // to catch up with.
                    held_back = false;
                    if let Ok(ordered) = self.ordered()
                        && let Err(fault) = ordered.flush(false)
                    {
                        let _ = self.fail(&fault);
                    }
                }
            }
            if self.given_up() {
                self.rebuild();
            }
        }
    }

    /// Waits for something to do.
    fn next_wake(&self, apply_at: &mut Option<Instant>, held_back: bool, spare: bool) -> Wake {
        let mut signals = self.signals.lock();
        let idle_at = Instant::now() + IDLE;
        loop {
            let spare = spare && signals.ahead;
            let waiting = self.layers.read().active();
            if signals.closing {
                return Wake::Closing;
            }
            if std::mem::take(&mut signals.dirty)
                || waiting >= ENOUGH
                || (signals.hurry && signals.applied < self.layers.read().durable.seq)
            {
                return Wake::Facts;
            }
            if waiting > 0 {
                let until = *apply_at.get_or_insert_with(|| Instant::now() + LINGER);
                if spare && Instant::now() < until {
                    return Wake::Spare;
                }
                if self.wake.wait_until(&mut signals, until).timed_out() {
                    return Wake::Facts;
                }
            } else if spare {
                return Wake::Spare;
            } else if held_back {
                if self.wake.wait_until(&mut signals, idle_at).timed_out() {
                    return Wake::Idle;
                }
            } else {
                self.wake.wait(&mut signals);
            }
        }
    }

    fn apply_waiting(&self, closing: bool) -> Result<(), IndexFault> {
        let Ok(ordered) = self.ordered() else {
            return Ok(());
        };
        loop {
            let Frozen {
                facts,
                reached,
                pass,
                unsaid,
            } = self.layers.write().freeze();
            if facts.is_empty() && !unsaid && self.signals.lock().applied >= reached.seq {
                break;
            }
            self.keeper.store(&*ordered, &facts, reached, pass)?;
            self.written
                .fetch_add(facts.len() as u64, Ordering::Relaxed);
            self.layers.write().thaw();
            self.signals.lock().applied = reached.seq;
            self.applied.notify_all();
            if !closing {
                return Ok(());
            }
        }
        if closing {
            ordered.flush(true)?;
            drop(ordered);
            *self.state.write() = State::Broken("it was closed".to_owned());
            if self.written.load(Ordering::Relaxed) >= FOLD {
                self.home.fold()?;
            }
            self.home.mark_clean(true)?;
        }
        Ok(())
    }

    /// Wipes the index and makes it again from the journal, while records keep coming. Tries again
    /// now and then: a full disk may get room.
    fn rebuild(&self) {
        while let Err(e) = self.try_rebuild() {
            tracing::error!("the index could not be rebuilt: {e}; look-ups stay refused");
            *self.state.write() = State::Broken(format!("it could not be rebuilt: {e}"));
            let until = Instant::now() + RETRY;
            let mut signals = self.signals.lock();
            self.applied.notify_all();
            while !signals.closing && !self.wake.wait_until(&mut signals, until).timed_out() {}
            if signals.closing {
                return;
            }
        }
    }

    fn try_rebuild(&self) -> Result<(), LogError> {
        let unusable = |fault: IndexFault| LogError::Unusable(fault.to_string());
        let _rewriting = self.archive.rewriting.lock();
        // Records that come meanwhile only move `durable`: they are read from the journal.
        {
            let mut layers = self.layers.write();
            let durable = layers.durable;
            *layers = Layers::over(durable, build::gc_pass(&self.archive));
        }
        let ordered = build::fresh(&*self.home, &self.keeper, &self.archive).map_err(unusable)?;
        let mut at = build::nowhere();
        loop {
            let target = self.layers.read().durable;
            at = build::take_in(
                &self.keeper,
                &self.names,
                &self.archive,
                &*ordered,
                at,
                target.seq,
                &mut |_: Progress| {},
            )?;
            let layers = self.layers.write();
            if layers.durable.seq == at.seq {
                *self.state.write() = State::Ready(ordered);
                drop(layers);
                let mut signals = self.signals.lock();
                signals.applied = at.seq;
                signals.rebuilds += 1;
                self.applied.notify_all();
                tracing::warn!(
                    "the index was rebuilt from the journal up to record {}",
                    at.seq
                );
                return Ok(());
            }
        }
    }
}
