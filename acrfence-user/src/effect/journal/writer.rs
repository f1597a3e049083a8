//! The one writer: takes what waits, writes it with one write and one sync, then answers.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::MutexGuard;
use tokio::sync::oneshot;

use crate::effect::{Event, LogError};
use crate::words::Seq;

use super::bodies;
use super::disk::DiskFile;
use super::frame::{self, Hash, Header, SKIPS};
use super::seal::{Record, Sealed};
use super::segment::{self, SegmentHeader};
use super::{COMPANY, Head, Inner, LINGER, Loc, Queue, Written, anchor};

/// A group is not longer than this, so that the first of it need not wait too long.
const GROUP_BYTES: usize = 8 << 20;

/// A record that waits to be written.
pub(super) struct Item {
    pub seq: Seq,
    pub sealed: Sealed,
    pub record: Record,
    pub skips: bool,
    pub waiter: Option<oneshot::Sender<Result<Seq, LogError>>>,
}

impl Item {
    /// Whether nobody waits for it and nothing is decided by it: an observation of what is not fenced.
    pub fn can_wait(&self) -> bool {
        let seen = matches!(self.record, Record::Event(Event::Ran(_) | Event::Opaque(_)));
        seen && self.waiter.is_none()
    }
}

/// Where the next record goes.
pub(super) struct Writer {
    pub inner: Arc<Inner>,
    pub number: u32,
    pub file: Option<Arc<dyn DiskFile>>,
    pub offset: u64,
    pub seq: Seq,
    pub chain: Hash,
    pub buffer: Vec<u8>,
}

impl Writer {
    /// Writes until the journal is closed or a write fails.
    pub fn run(mut self) {
        loop {
            let batch = {
                let mut queue = self.inner.queue.lock();
                while queue.items.is_empty() && !queue.closing {
                    self.inner.wake.wait(&mut queue);
                }
                if queue.items.is_empty() {
                    return;
                }
                let until = Instant::now() + LINGER;
                while !queue.pressing && !queue.closing && queue.items.len() < COMPANY {
                    if self.inner.wake.wait_until(&mut queue, until).timed_out() {
                        break;
                    }
                }
                let batch = take(&mut queue);
                queue.pressing = queue.items.iter().any(|item| !item.can_wait());
                batch
            };
            if let Err((batch, detail)) = self.write(batch) {
                self.stop(batch, &detail);
                return;
            }
            self.inner.sink.throttle();
        }
    }

    /// Writes a batch in as many groups as segments need; on failure what was not written.
    fn write(&mut self, mut batch: Vec<Item>) -> Result<(), (Vec<Item>, String)> {
        while !batch.is_empty() {
            let fits = self.fitting(&batch);
            if fits == 0 {
                if let Err(e) = self.rotate() {
                    return Err((batch, format!("a new segment could not be begun: {e}")));
                }
                continue;
            }
            let rest = batch.split_off(fits);
            let written = match self.write_group(&batch) {
                Ok(written) => written,
                Err(e) => {
                    batch.extend(rest);
                    return Err((batch, format!("a write or sync failed: {e}")));
                }
            };
            self.publish(batch, written);
            batch = rest;
        }
        Ok(())
    }

    /// How many of `batch` go into the segment in use.
    fn fitting(&self, batch: &[Item]) -> usize {
        let room = if self.file.is_some() {
            self.inner.segment_size - self.offset
        } else {
            0
        };
        let mut len = 0;
        batch
            .iter()
            .take(usize::from(u16::MAX))
            .take_while(|item| {
                len += frame::length(item.sealed.payload.len()) as u64;
                len <= room
            })
            .count()
    }

    fn write_group(&mut self, group: &[Item]) -> std::io::Result<Vec<(Loc, Hash)>> {
        let Some(file) = self.file.clone() else {
            return Err(std::io::Error::other("no segment is in use"));
        };
        let keyring = self.inner.archive.keyring.load();
        self.buffer.clear();
        let mut written = Vec::with_capacity(group.len());
        for (index, item) in group.iter().enumerate() {
            let sealed = &item.sealed;
            let mut header = Header {
                kind: sealed.kind,
                len: sealed.payload.len() as u32,
                seq: item.seq,
                index: index as u16,
                left: (group.len() - 1 - index) as u16,
                flags: u16::from(sealed.external) | if item.skips { SKIPS } else { 0 },
                key: sealed.key,
                nonce: sealed.nonce,
                previous: self.chain,
                mac: [0; 16],
            };
            self.chain = header.chain(&sealed.digest);
            let Some(keys) = keyring.get(sealed.key) else {
                return Err(std::io::Error::other("the sealing key is gone"));
            };
            header.mac = keys.mac(&self.chain);
            let start = self.buffer.len();
            frame::write(&header, &sealed.payload, &mut self.buffer);
            let loc = Loc {
                segment: self.number,
                offset: (self.offset + start as u64) as u32,
                len: (self.buffer.len() - start) as u32,
            };
            written.push((loc, self.chain));
            self.seq = item.seq;
        }
        file.write_at(&self.buffer, self.offset)?;
        file.sync()?;
        self.offset += self.buffer.len() as u64;
        let mut queue = self.inner.queue.lock();
        queue.room.queued = queue.room.queued.saturating_sub(self.buffer.len() as u64);
        queue.room.left = self.inner.segment_size - self.offset;
        queue.groups += 1;
        let wants = queue.room.wants_spare();
        drop(queue);
        if wants {
            self.inner.allocator.notify_one();
        }
        Ok(written)
    }

    /// Makes a synced group visible, then answers.
    fn publish(&self, group: Vec<Item>, written: Vec<(Loc, Hash)>) {
        let mut records = Vec::with_capacity(group.len());
        let mut waiters = Vec::with_capacity(group.len());
        for (item, (loc, chain)) in group.into_iter().zip(written) {
            records.push(Written {
                seq: item.seq,
                loc,
                chain,
                body: item
                    .sealed
                    .external
                    .then(|| bodies::split(&item.sealed.payload).ok())
                    .flatten()
                    .map(|(digest, _)| digest),
                record: item.record,
            });
            waiters.push((item.seq, item.waiter));
        }
        self.inner.sink.durable(records);
        let mut head = self.inner.head.lock();
        *head = Head {
            seq: self.seq,
            chain: self.chain,
        };
        for (seq, _) in &waiters {
            // An error only says that nobody listens.
            let _ = self.inner.follow.send(*seq);
        }
        drop(head);
        self.inner.head_moved.notify_all();
        self.inner.anchorer.advance(self.seq, self.chain);
        for (seq, waiter) in waiters {
            if let Some(waiter) = waiter {
                let _ = waiter.send(Ok(seq));
            }
        }
    }

    /// Takes a spare segment into use. Everything before it is synced already.
    fn rotate(&mut self) -> std::io::Result<()> {
        let spare = self.inner.queue.lock().spares.pop();
        let spare = match spare {
            Some(spare) => spare,
            None => self.inner.allocate_spare()?,
        };
        let number = self.number + 1;
        let header = SegmentHeader {
            number,
            store: self.inner.archive.store,
            first: Seq(self.seq.0 + 1),
            previous: self.chain,
            created: anchor::now(),
            compacted: None,
        };
        let file = self.inner.archive.disk.open(&spare)?;
        file.write_at(
            &header.write(self.inner.archive.keyring.load().current()),
            0,
        )?;
        file.sync()?;
        let path = self.inner.dir.join(segment::file_name(number));
        self.inner.archive.disk.rename(&spare, &path)?;
        self.inner.archive.disk.sync_dir(&self.inner.dir)?;
        self.number = number;
        self.offset = segment::HEADER as u64;
        self.file = Some(file.clone());
        self.inner.archive.add(header, file);
        let mut queue = self.inner.queue.lock();
        queue.room.spares = queue.spares.len() as u64;
        queue.room.left = self.inner.segment_size - self.offset;
        drop(queue);
        self.inner.allocator.notify_one();
        Ok(())
    }

    /// Nothing is taken any more: what the disk holds is unknown.
    fn stop(&self, batch: Vec<Item>, detail: &str) {
        tracing::error!("the effect log stops: {detail}");
        let waiting = {
            let mut queue = self.inner.queue.lock();
            queue.stopped = Some(detail.to_owned());
            take_all(&mut queue)
        };
        for item in batch.into_iter().chain(waiting) {
            if let Some(waiter) = item.waiter {
                let _ = waiter.send(Err(LogError::Stopped {
                    detail: detail.to_owned(),
                }));
            }
        }
        // Whoever waits for the head holds its lock between the look at `stopped` and the wait.
        drop(self.inner.head.lock());
        self.inner.head_moved.notify_all();
        self.inner.room_changed.notify_waiters();
        self.inner.room_changed_sync.notify_all();
    }
}

fn take(queue: &mut MutexGuard<'_, Queue>) -> Vec<Item> {
    let mut bytes = 0;
    let count = queue
        .items
        .iter()
        .take_while(|item| {
            let first = bytes == 0;
            bytes += item.sealed.payload.len();
            first || bytes <= GROUP_BYTES
        })
        .count();
    queue.items.drain(..count).collect()
}

fn take_all(queue: &mut MutexGuard<'_, Queue>) -> Vec<Item> {
    queue.items.drain(..).collect()
}
