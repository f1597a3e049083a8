//! The journal: the truth of the effect log (DESIGN.md §7; format in `docs/effect-log.md`).
//!
//! Callers encode and seal on their own thread; [`Journal::submit`] gives the record its position;
//! one writer thread frames and chains what waits, writes it with one write and one sync, makes it
//! visible through [`Sink`], and only then answers.

pub mod anchor;
pub mod archive;
pub mod bodies;
pub mod disk;
mod ending;
pub mod frame;
mod inspect;
pub mod keys;
mod open;
mod room;
pub mod seal;
pub mod segment;
#[cfg(test)]
pub mod simulated;
mod tail;
pub mod walk;
mod writer;

use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, broadcast, oneshot};

use crate::effect::LogError;
use crate::words::{EffectId, Seq};

use anchor::Anchorer;
use archive::Archive;
use disk::Disk;
use frame::Hash;
use room::Room;
use seal::{Record, Sealed};
use writer::Item;

pub use archive::{Fault, Loc, place};
pub use inspect::{Inspected, inspect};
pub use open::{Acceptance, Opened, Torn, open};
pub use room::Claim;

/// How the journal is laid out.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Directory of the segments.
    pub dir: PathBuf,
    /// Directory of the body files.
    pub bodies: PathBuf,
    /// The anchor file.
    pub anchor: PathBuf,
    /// The key file.
    pub keys: PathBuf,
    /// Bytes of a segment.
    pub segment_size: u64,
    /// Sealed payloads over this go into a body file.
    pub inline_max: usize,
    /// Room kept for the outcome of a running effect.
    pub outcome_room: usize,
    /// At least this long between two writes of the anchor.
    pub anchor_write: Duration,
    /// At least this long between two syncs of the anchor.
    pub anchor_sync: Duration,
}

/// Takes records once they are durable, on the writer thread, before their writers are answered.
pub trait Sink: Send + Sync + 'static {
    /// These records are on disk.
    fn durable(&self, records: Vec<Written>);
    /// Called between groups; may wait until what was handed over is worked off.
    fn throttle(&self);
}

/// A record that is on disk.
pub struct Written {
    /// Its position.
    pub seq: Seq,
    /// Where it lies.
    pub loc: Loc,
    /// Its chain hash.
    pub chain: Hash,
    /// The body file it names.
    pub body: Option<Hash>,
    /// What it holds.
    pub record: Record,
}

/// The door of the journal.
pub struct Journal {
    inner: Arc<Inner>,
    threads: Mutex<Vec<std::thread::JoinHandle<()>>>,
}

/// Reports that a record is durable.
pub struct Durable(oneshot::Receiver<Result<Seq, LogError>>);

impl Durable {
    /// Returns once it is.
    pub async fn wait(self) -> Result<Seq, LogError> {
        self.0.await.unwrap_or_else(|_| {
            Err(LogError::Stopped {
                detail: "the writer ended".to_owned(),
            })
        })
    }
}

/// Counters for `stats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Commit groups written since the start.
    pub groups: u64,
    /// Records written since the start.
    pub records: u64,
    /// Effects for whose outcome room is kept.
    pub running: u64,
    /// Bytes allocated and not used yet.
    pub spare_bytes: u64,
}

struct Inner {
    archive: Arc<Archive>,
    dir: PathBuf,
    segment_size: u64,
    inline_max: usize,
    queue: Mutex<Queue>,
    /// Wakes the writer.
    wake: Condvar,
    /// Wakes the allocator.
    allocator: Condvar,
    /// An attempt to allocate ended.
    room_changed: Notify,
    room_changed_sync: Condvar,
    head: Mutex<Head>,
    /// The head moved, or never will again.
    head_moved: Condvar,
    anchorer: Anchorer,
    sink: Arc<dyn Sink>,
    follow: broadcast::Sender<Seq>,
    spare_names: AtomicU64,
}

struct Queue {
    items: VecDeque<Item>,
    /// Whether any of them is more than an observation, which can wait for company.
    pressing: bool,
    next: Seq,
    room: Room,
    spares: Vec<PathBuf>,
    /// Attempts to allocate that ended, and how the last one did.
    attempts: u64,
    full: Option<String>,
    /// Somebody waits for more room than there is.
    wanted: bool,
    groups: u64,
    records: u64,
    closing: bool,
    stopped: Option<String>,
}

/// How long an observation waits for company before it is written, and how much company is enough. A
/// program start that is only noted would cost a sync of the disk each otherwise.
const LINGER: Duration = Duration::from_millis(50);
const COMPANY: usize = 256;

/// The last durable record.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// Its position; 0 in an empty journal.
    pub seq: Seq,
    /// Its chain hash.
    pub chain: Hash,
}

enum Refused {
    /// No room; so many attempts to allocate had ended by then.
    Room(u64),
    Stopped(String),
}

// === impl Journal ===

impl Journal {
    /// Takes a record and returns its position and what reports that it is durable.
    pub async fn enter(
        &self,
        sealed: Sealed,
        record: Record,
        claim: Claim,
    ) -> Result<(Seq, Durable), LogError> {
        let (sender, receiver) = oneshot::channel();
        let mut entry = Some((sealed, record, Some(sender)));
        let mut after = None;
        loop {
            // Before the look at the room, so that no change of it is missed.
            let changed = self.inner.room_changed.notified();
            match self.inner.enqueue(&mut entry, claim, false) {
                Ok(seq) => return Ok((seq, Durable(receiver))),
                Err(Refused::Stopped(detail)) => return Err(LogError::Stopped { detail }),
                Err(Refused::Room(attempts)) => {
                    // One that runs already may have begun before this record was there. Whether there is
                    // no room is only known once the look at it failed again: an attempt that failed may
                    // have come after one that made room.
                    self.inner.full_since(*after.get_or_insert(attempts + 2))?;
                    changed.await;
                }
            }
        }
    }

    /// Gives a record its position and leaves it to the writer. Waits only when a segment must be
    /// allocated first.
    pub fn submit(
        &self,
        sealed: Sealed,
        record: Record,
        claim: Claim,
        skips_to: Option<Seq>,
    ) -> Result<Seq, LogError> {
        let mut entry = Some((sealed, record, None));
        let mut after = None;
        if let Some(seq) = skips_to {
            self.inner.queue.lock().next = seq;
        }
        loop {
            match self.inner.enqueue(&mut entry, claim, skips_to.is_some()) {
                Ok(seq) => return Ok(seq),
                Err(Refused::Stopped(detail)) => return Err(LogError::Stopped { detail }),
                Err(Refused::Room(attempts)) => {
                    self.inner.full_since(*after.get_or_insert(attempts + 2))?;
                    let mut queue = self.inner.queue.lock();
                    while queue.attempts == attempts && queue.stopped.is_none() && !queue.closing {
                        self.inner.room_changed_sync.wait(&mut queue);
                    }
                }
            }
        }
    }

    /// Writes what waits for company, and returns once everything that was taken so far is durable, or
    /// cannot become so.
    pub fn settle(&self) {
        let last = {
            let mut queue = self.inner.queue.lock();
            queue.pressing = true;
            Seq(queue.next.0.saturating_sub(1))
        };
        self.inner.wake.notify_one();
        if let Err(error) = self.wait_durable(last) {
            tracing::debug!(%error, "what waits will not be written");
        }
    }

    /// Blocks until the record at `seq` is durable.
    pub fn wait_durable(&self, seq: Seq) -> Result<(), LogError> {
        let mut head = self.inner.head.lock();
        while head.seq < seq {
            if let Some(detail) = self.stopped() {
                return Err(LogError::Stopped { detail });
            }
            self.inner.head_moved.wait(&mut head);
        }
        Ok(())
    }

    /// Reads records.
    pub fn archive(&self) -> &Arc<Archive> {
        &self.inner.archive
    }

    /// The last durable record.
    pub fn head(&self) -> Head {
        *self.inner.head.lock()
    }

    /// Reports every later position once it is durable.
    pub fn follow(&self) -> (Seq, broadcast::Receiver<Seq>) {
        let head = self.inner.head.lock();
        (head.seq, self.inner.follow.subscribe())
    }

    /// Whether the effect was prepared, and has no outcome yet.
    pub fn is_running(&self, effect: EffectId) -> bool {
        self.inner.queue.lock().room.is_running(effect)
    }

    /// Payloads over this go into body files.
    pub fn inline_max(&self) -> usize {
        self.inner.inline_max
    }

    /// Bytes of a segment.
    pub fn segment_size(&self) -> u64 {
        self.inner.segment_size
    }

    /// The anchor.
    pub fn anchorer(&self) -> &Anchorer {
        &self.inner.anchorer
    }

    /// Why the journal takes no more records, if it does not.
    pub fn stopped(&self) -> Option<String> {
        self.inner.queue.lock().stopped.clone()
    }

    /// Counters.
    pub fn counters(&self) -> Counters {
        let queue = self.inner.queue.lock();
        Counters {
            groups: queue.groups,
            records: queue.records,
            running: queue.room.running() as u64,
            spare_bytes: queue.room.spares * queue.room.capacity + queue.room.left,
        }
    }

    /// Writes what waits, anchors it, and ends the threads. Later calls do nothing.
    pub fn close(&self) {
        self.inner.queue.lock().closing = true;
        self.inner.wake.notify_all();
        self.inner.allocator.notify_all();
        self.inner.room_changed.notify_waiters();
        self.inner.room_changed_sync.notify_all();
        let threads: Vec<_> = self.threads.lock().drain(..).collect();
        for thread in threads {
            let _ = thread.join();
        }
        self.inner.anchorer.close();
        let mut queue = self.inner.queue.lock();
        queue
            .stopped
            .get_or_insert_with(|| "it was closed".to_owned());
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.close();
    }
}

// === impl Inner ===

type Entry = Option<(
    Sealed,
    Record,
    Option<oneshot::Sender<Result<Seq, LogError>>>,
)>;

impl Inner {
    /// Takes `entry` and gives it its position, if there is room.
    fn enqueue(&self, entry: &mut Entry, claim: Claim, skips: bool) -> Result<Seq, Refused> {
        let mut queue = self.queue.lock();
        if let Some(detail) = &queue.stopped {
            return Err(Refused::Stopped(detail.clone()));
        }
        if queue.closing {
            return Err(Refused::Stopped("it is being closed".to_owned()));
        }
        let Some((sealed, _, _)) = entry.as_ref() else {
            return Err(Refused::Stopped("the record was taken already".to_owned()));
        };
        let len = frame::length(sealed.payload.len()) as u64;
        if queue.room.missing(len, claim) > 0 {
            queue.wanted = true;
            let attempts = queue.attempts;
            drop(queue);
            self.allocator.notify_one();
            return Err(Refused::Room(attempts));
        }
        let seq = queue.next;
        queue.next = Seq(seq.0 + 1);
        queue.room.take(len, claim, EffectId(seq));
        queue.records += 1;
        let wants_spare = queue.room.wants_spare();
        let mut wakes = false;
        if let Some((sealed, record, waiter)) = entry.take() {
            let record = match record {
                Record::Event(event) => Record::Event(event.at_position(seq)),
                mark => mark,
            };
            let item = Item {
                seq,
                sealed,
                record,
                skips,
                waiter,
            };
            let presses = !item.can_wait();
            queue.pressing |= presses;
            queue.items.push_back(item);
            // The writer looks by itself after what else has come when it waits for company.
            wakes = presses || queue.items.len() == 1 || queue.items.len() == COMPANY;
        }
        drop(queue);
        if wakes {
            self.wake.notify_one();
        }
        if wants_spare {
            self.allocator.notify_one();
        }
        Ok(seq)
    }

    /// An error when the attempts to allocate up to `after` ended without room.
    fn full_since(&self, after: u64) -> Result<(), LogError> {
        let queue = self.queue.lock();
        if let Some(detail) = &queue.stopped {
            return Err(LogError::Stopped {
                detail: detail.clone(),
            });
        }
        match &queue.full {
            Some(detail) if queue.attempts >= after => Err(LogError::Full {
                detail: detail.clone(),
            }),
            _ => Ok(()),
        }
    }

    /// Keeps spare segments ready until the journal is closed.
    fn run_allocator(self: Arc<Self>) {
        loop {
            {
                let mut queue = self.queue.lock();
                loop {
                    if queue.closing || queue.stopped.is_some() {
                        return;
                    }
                    // After a failure only somebody who needs room starts another attempt.
                    let ahead = queue.room.wants_spare() && queue.full.is_none();
                    if queue.wanted || ahead {
                        break;
                    }
                    self.allocator.wait(&mut queue);
                }
                queue.wanted = false;
            }
            let made = self.allocate_spare();
            let mut queue = self.queue.lock();
            queue.attempts += 1;
            match made {
                Ok(path) => {
                    queue.spares.push(path);
                    queue.room.spares = queue.spares.len() as u64;
                    queue.full = None;
                }
                Err(e) => {
                    queue.full = Some(format!(
                        "{} bytes for the next segment in {}: {e}",
                        self.segment_size,
                        self.dir.display()
                    ));
                }
            }
            drop(queue);
            self.room_changed.notify_waiters();
            self.room_changed_sync.notify_all();
        }
    }

    fn allocate_spare(&self) -> io::Result<PathBuf> {
        let number = self.spare_names.fetch_add(1, Ordering::Relaxed);
        let path = self.dir.join(format!("spare-{number}"));
        allocate(&*self.archive.disk, &path, self.segment_size)?;
        Ok(path)
    }
}

fn allocate(disk: &dyn Disk, path: &std::path::Path, size: u64) -> io::Result<()> {
    let file = disk.create(path)?;
    let made = file.allocate(size).and_then(|()| file.sync());
    if made.is_err() {
        let _ = disk.remove(path);
    }
    made
}
