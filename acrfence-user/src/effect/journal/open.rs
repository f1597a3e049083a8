//! Opening a journal: find its end, compare it with the anchor, cut a torn tail, start the threads.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::{Condvar, Mutex};
use tokio::sync::{Notify, broadcast};

use crate::effect::LogError;
use crate::words::{EffectId, Seq};

use super::anchor::{self, Anchor, Anchorer, Found, Pace};
use super::archive::{Archive, place};
use super::bodies::Bodies;
use super::disk::{Disk, read_range};
use super::ending::{find_end, refuse};
use super::keys::{KeyFile, StoreId, random};
use super::room::Room;
use super::segment::{self, SegmentHeader};
use super::writer::Writer;
use super::{Head, Inner, Journal, Queue, Settings, Sink, frame};

/// Positions reported by [`EffectLog::follow`](crate::effect::EffectLog::follow) that a slow reader
/// may lag behind.
const FOLLOW: usize = 8192;

/// What a person accepts that would otherwise keep the journal from being opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acceptance {
    /// Nothing: a damaged or rolled back journal is refused.
    Nothing,
    /// Go on from the last record that is whole, whatever the anchor says.
    Loss,
}

/// A journal that was read to its end and can be started.
pub struct Opened {
    /// For reading.
    pub archive: Arc<Archive>,
    /// The last record that is there.
    pub head: Head,
    /// The commit group that was cut off because a crash had torn it.
    pub torn: Option<Torn>,
    /// Whether the journal was made just now.
    pub created: bool,
    /// What was accepted, where [`Acceptance::Loss`] had to be used: the last position that is
    /// known to have existed, and why.
    pub lost: Option<(Seq, String)>,
    end: Option<End>,
    spares: Vec<std::path::PathBuf>,
    spare_names: u64,
    anchor_count: u64,
    settings: Settings,
}

/// A torn commit group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Segment and offset.
    pub place: String,
    /// Bytes that were cut off.
    pub bytes: u64,
}

/// The segment in use.
pub(super) struct End {
    pub(super) number: u32,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Opens the journal of `settings`, or makes it.
pub fn open(
    disk: Arc<dyn Disk>,
    settings: Settings,
    accept: Acceptance,
) -> Result<Opened, LogError> {
    let io = |what: &str, e: std::io::Error| LogError::Unusable(format!("{what}: {e}"));
    let dir = &settings.dir;
    disk.create_dir(dir)
        .map_err(|e| io(&format!("{} cannot be made", dir.display()), e))?;
    disk.check_private(dir)
        .map_err(|e| io("the effect log is not private", e))?;
    let names = disk
        .list(dir)
        .map_err(|e| io(&format!("{} cannot be listed", dir.display()), e))?;
    let mut numbers: Vec<u32> = names
        .iter()
        .filter_map(|name| segment::number_of(name))
        .collect();
    numbers.sort_unstable();
    check_numbers(&numbers)?;

    let created = numbers.is_empty();
    let known_store = anchor::store_of(&*disk, &settings.anchor).map_err(|e| {
        io(
            &format!("the anchor {} cannot be read", settings.anchor.display()),
            e,
        )
    })?;
    let key_file = KeyFile::load(&settings.keys, created && known_store.is_none())?;
    let store = match numbers.first() {
        Some(first) => store_of_segment(&*disk, &settings, *first)?,
        None => known_store.map_or_else(random, Ok)?,
    };
    let keyring = key_file.bind(&store);
    let found = anchor::read(&*disk, &settings.anchor, &keyring).map_err(|e| {
        io(
            &format!("the anchor {} cannot be read", settings.anchor.display()),
            e,
        )
    })?;
    let bodies = Bodies::open(disk.clone(), settings.bodies.clone()).map_err(|e| {
        io(
            &format!("{} cannot be opened", settings.bodies.display()),
            e,
        )
    })?;
    let archive = Arc::new(Archive::new(
        disk.clone(),
        dir.clone(),
        store,
        keyring,
        bodies,
    ));
    for number in &numbers {
        let header = read_header(&archive, *number)?;
        archive.segments.write().insert(*number, header);
    }
    check_headers(&archive)?;

    let mut lost = None;
    let anchor = match found {
        Found::Anchor(anchor) if anchor.store == store => Some(anchor),
        Found::Anchor(_) => {
            let why = "the anchor belongs to another effect log".to_owned();
            refuse(accept, &mut lost, Seq(0), why)?;
            None
        }
        Found::Broken(why) => {
            refuse(
                accept,
                &mut lost,
                Seq(0),
                format!("the anchor is damaged: {why}"),
            )?;
            None
        }
        Found::Missing => None,
    };
    let missing = anchor.is_none() && lost.is_none();
    let anchored = anchor.as_ref().map_or(Seq(0), |anchor| anchor.seq);
    let (head, end, torn) = find_end(&archive, anchor.as_ref(), accept, &mut lost)?;
    if missing && head.seq > Seq(0) {
        let why = format!("the anchor {} is missing", settings.anchor.display());
        refuse(accept, &mut lost, head.seq, why)?;
    }
    if anchored > head.seq {
        let why = format!(
            "the journal ends at record {}, and record {anchored} is known to have been written",
            head.seq
        );
        refuse(accept, &mut lost, anchored, why)?;
    }
    let (spares, spare_names) = find_spares(&*disk, &settings, &names)?;
    Ok(Opened {
        archive,
        head,
        torn,
        created,
        lost,
        end,
        spares,
        spare_names,
        anchor_count: anchor.map_or(0, |anchor| anchor.count),
        settings,
    })
}

impl Opened {
    /// Starts the writer. `running` are effects that wait for their outcome: room is kept for each.
    pub fn start(
        self,
        sink: Arc<dyn Sink>,
        running: impl IntoIterator<Item = EffectId>,
    ) -> Result<Journal, LogError> {
        let failed = |what: &str, e: std::io::Error| LogError::Unusable(format!("{what}: {e}"));
        let settings = self.settings;
        let largest = frame::length(settings.inline_max.max(settings.outcome_room)) as u64;
        let capacity = settings.segment_size - segment::HEADER as u64;
        let mut room = Room::new(capacity, largest);
        for effect in running {
            room.keep_for(effect);
        }
        room.spares = self.spares.len() as u64;
        let end = self.end.filter(|end| end.size >= settings.segment_size);
        if let Some(end) = &end {
            room.left = settings.segment_size.saturating_sub(end.offset);
        }
        let keyring = self.archive.keyring.load_full();
        let anchorer = Anchorer::start(
            self.archive.disk.clone(),
            settings.anchor.clone(),
            keyring,
            Pace {
                write: settings.anchor_write,
                sync: settings.anchor_sync,
            },
            Anchor {
                count: self.anchor_count + 1,
                store: self.archive.store,
                seq: self.head.seq,
                chain: self.head.chain,
                at: anchor::now(),
            },
        )
        .map_err(|e| {
            failed(
                &format!("the anchor {} cannot be written", settings.anchor.display()),
                e,
            )
        })?;
        let last_number = self.archive.segments.read().keys().next_back().copied();
        let file = match &end {
            Some(end) => Some(
                self.archive
                    .file(end.number)
                    .map_err(|e| failed("the last segment cannot be opened", e))?,
            ),
            None => None,
        };
        let inner = Arc::new(Inner {
            dir: settings.dir.clone(),
            segment_size: settings.segment_size,
            inline_max: settings.inline_max,
            queue: Mutex::new(Queue {
                items: Default::default(),
                pressing: false,
                next: Seq(self.head.seq.0 + 1),
                room,
                spares: self.spares,
                attempts: 0,
                full: None,
                wanted: false,
                groups: 0,
                records: 0,
                closing: false,
                stopped: None,
            }),
            wake: Condvar::new(),
            allocator: Condvar::new(),
            room_changed: Notify::new(),
            room_changed_sync: Condvar::new(),
            head: Mutex::new(self.head),
            head_moved: Condvar::new(),
            anchorer,
            sink,
            follow: broadcast::channel(FOLLOW).0,
            spare_names: AtomicU64::new(self.spare_names),
            archive: self.archive,
        });
        let writer = Writer {
            inner: inner.clone(),
            number: last_number.unwrap_or(0),
            offset: end.as_ref().map_or(0, |end| end.offset),
            file,
            seq: self.head.seq,
            chain: self.head.chain,
            buffer: Vec::new(),
        };
        let allocator = inner.clone();
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
            std::thread::Builder::new()
                .name(name.to_owned())
                .spawn(run)
                .map_err(|e| failed("a thread of the effect log cannot be started", e))
        };
        let threads = vec![
            spawn("acrfence-journal", Box::new(move || writer.run()))?,
            spawn("acrfence-room", Box::new(move || allocator.run_allocator()))?,
        ];
        Ok(Journal {
            inner,
            threads: Mutex::new(threads),
        })
    }
}

fn read_header(archive: &Archive, number: u32) -> Result<SegmentHeader, LogError> {
    let corrupt = |detail: String| LogError::Corrupt {
        place: place(number, 0, None),
        detail,
    };
    let file = archive.file(number).map_err(|e| corrupt(e.to_string()))?;
    let bytes = read_range(&*file, 0, segment::HEADER).map_err(|e| corrupt(e.to_string()))?;
    let header = SegmentHeader::read(&bytes, &archive.keyring.load())
        .map_err(|fault| corrupt(fault.to_string()))?;
    if header.number != number || header.store != archive.store {
        return Err(corrupt(
            "it belongs to another place or another effect log".to_owned(),
        ));
    }
    Ok(header)
}

fn check_numbers(numbers: &[u32]) -> Result<(), LogError> {
    for (number, expected) in numbers.iter().zip(1..) {
        if *number != expected {
            return Err(LogError::Corrupt {
                place: place(expected, 0, None),
                detail: "the segment is missing".to_owned(),
            });
        }
    }
    Ok(())
}

fn check_headers(archive: &Archive) -> Result<(), LogError> {
    let headers = archive.headers();
    for pair in headers.windows(2) {
        let known_end = pair[0].compacted.as_ref();
        let follows = match known_end {
            Some(end) => {
                pair[1].first.0 == end.last.0.saturating_add(1) && pair[1].previous == end.end
            }
            None => pair[1].first >= pair[0].first,
        };
        if !follows {
            return Err(LogError::Corrupt {
                place: place(pair[1].number, 0, None),
                detail: "the segment does not follow from the one before it".to_owned(),
            });
        }
    }
    Ok(())
}

/// Which store a segment belongs to.
fn store_of_segment(
    disk: &dyn Disk,
    settings: &Settings,
    number: u32,
) -> Result<StoreId, LogError> {
    let path = settings.dir.join(segment::file_name(number));
    let read = || -> Result<StoreId, String> {
        let file = disk.open(&path).map_err(|e| e.to_string())?;
        let bytes = read_range(&*file, 0, segment::HEADER).map_err(|e| e.to_string())?;
        segment::store_of(&bytes).map_err(|fault| fault.to_string())
    };
    read().map_err(|detail| LogError::Corrupt {
        place: place(number, 0, None),
        detail,
    })
}

/// Spare segments that an earlier run left; others of their name are removed.
fn find_spares(
    disk: &dyn Disk,
    settings: &Settings,
    names: &[String],
) -> Result<(Vec<std::path::PathBuf>, u64), LogError> {
    let mut spares = Vec::new();
    let mut next = 0;
    for name in names {
        if name.starts_with("compact-") {
            disk.remove(&settings.dir.join(name))
                .map_err(|e| LogError::Unusable(format!("{name} cannot be removed: {e}")))?;
            continue;
        }
        let Some(number) = name
            .strip_prefix("spare-")
            .and_then(|n| n.parse::<u64>().ok())
        else {
            continue;
        };
        next = next.max(number + 1);
        let path = settings.dir.join(name);
        let usable = |path: &std::path::Path| -> std::io::Result<bool> {
            let file = disk.open(path)?;
            if file.size()? != settings.segment_size {
                return Ok(false);
            }
            // A rotation may have been cut short after the header was written.
            file.write_at(&[0; segment::HEADER], 0)?;
            file.sync()?;
            Ok(true)
        };
        if usable(&path).unwrap_or(false) {
            spares.push(path);
        } else {
            disk.remove(&path).map_err(|e| {
                LogError::Unusable(format!("{} cannot be removed: {e}", path.display()))
            })?;
        }
    }
    Ok((spares, next))
}
