//! Looking at a journal without opening it: nothing is changed, and a fault does not end the look.

use std::io;
use std::sync::Arc;

use crate::effect::LogError;
use crate::words::Seq;

use super::Settings;
use super::anchor::{self, Found};
use super::archive::{Archive, Fault, place};
use super::bodies::Bodies;
use super::disk::{Disk, read_range};
use super::keys::KeyFile;
use super::segment::{self, SegmentHeader};

/// A journal as it lies on the disk.
pub struct Inspected {
    /// Its segments, those with a readable header.
    pub archive: Archive,
    /// About where it ends.
    pub last: Seq,
    /// Position that the anchor names, if there is one to be trusted.
    pub anchored: Option<Seq>,
    /// What is wrong with headers and anchor.
    pub faults: Vec<Fault>,
}

/// Looks at the journal of `settings`.
pub fn inspect(disk: Arc<dyn Disk>, settings: &Settings) -> Result<Inspected, LogError> {
    let unreadable = |e: io::Error| {
        LogError::Unusable(format!("{} cannot be read: {e}", settings.dir.display()))
    };
    let keys = KeyFile::load(&settings.keys, false)?;
    let mut numbers: Vec<u32> = disk
        .list(&settings.dir)
        .map_err(unreadable)?
        .iter()
        .filter_map(|name| segment::number_of(name))
        .collect();
    numbers.sort_unstable();
    if numbers.is_empty() {
        return Err(LogError::Unusable(format!(
            "there is no journal in {}; give the state directory of the daemon",
            settings.dir.display()
        )));
    }

    let mut faults = Vec::new();
    let mut headers = Vec::new();
    let mut expected = 1;
    for number in numbers {
        for missing in expected..number {
            faults.push(fault(missing, "the segment is missing"));
        }
        expected = number.saturating_add(1);
        match header_bytes(&*disk, settings, number) {
            Ok(bytes) => headers.push((number, bytes)),
            Err(e) => faults.push(fault(number, &e.to_string())),
        }
    }
    let store = headers
        .iter()
        .find_map(|(_, bytes)| segment::store_of(bytes).ok())
        .ok_or_else(|| LogError::Corrupt {
            place: place(1, 0, None),
            detail: "no segment has a readable header".to_owned(),
        })?;
    let keyring = keys.bind(&store);
    let found = anchor::read(&*disk, &settings.anchor, &keyring).map_err(unreadable)?;
    let bodies = Bodies::at(disk.clone(), settings.bodies.clone());
    let archive = Archive::new(disk, settings.dir.clone(), store, keyring, bodies);
    let mut last = Seq(0);
    for (number, bytes) in headers {
        match SegmentHeader::read(&bytes, &archive.keyring.load()) {
            Ok(header) if header.number == number && header.store == store => {
                last = header.first;
                archive.segments.write().insert(number, header);
            }
            Ok(_) => faults.push(fault(
                number,
                "it belongs to another place or another effect log",
            )),
            Err(e) => faults.push(fault(number, &e.to_string())),
        }
    }
    let mut anchored = None;
    match found {
        Found::Anchor(anchor) if anchor.store == store => anchored = Some(anchor.seq),
        Found::Anchor(_) => faults.push(anchor_fault("it belongs to another effect log")),
        Found::Broken(why) => faults.push(anchor_fault(&why)),
        Found::Missing => faults.push(anchor_fault("it is missing")),
    }
    Ok(Inspected {
        archive,
        last,
        anchored,
        faults,
    })
}

fn header_bytes(disk: &dyn Disk, settings: &Settings, number: u32) -> io::Result<Vec<u8>> {
    let file = disk.open(&settings.dir.join(segment::file_name(number)))?;
    read_range(&*file, 0, segment::HEADER)
}

fn fault(number: u32, detail: &str) -> Fault {
    Fault {
        place: place(number, 0, None),
        detail: detail.to_owned(),
    }
}

fn anchor_fault(detail: &str) -> Fault {
    Fault {
        place: "anchor".to_owned(),
        detail: detail.to_owned(),
    }
}
