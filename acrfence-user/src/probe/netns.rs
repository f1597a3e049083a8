//! In which network namespaces the processes of agents live.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;

use super::proc::ProcDir;
use super::{Probe, ProbeError};
use crate::words::ProcessIdentity;

impl Probe {
    /// The network namespace of a process: its inode number, and a handle that keeps it alive.
    pub fn namespace_of(&self, process: ProcessIdentity) -> io::Result<(u64, File)> {
        let dir = ProcDir::of(process)?;
        let file = File::open(dir.path("ns/net"))?;
        Ok((file.metadata()?.ino(), file))
    }

    /// Inode numbers of the network namespaces that tracked processes live in now, with one process of
    /// each.
    pub fn namespaces(&self) -> Result<HashMap<u64, ProcessIdentity>, ProbeError> {
        let mut found = HashMap::new();
        for process in self.tracked()?.into_keys() {
            // Whoever has ended meanwhile lives nowhere.
            let number = ProcDir::of(process).and_then(|dir| {
                std::fs::metadata(dir.path("ns/net")).map(|metadata| metadata.ino())
            });
            if let Ok(number) = number {
                found.entry(number).or_insert(process);
            }
        }
        Ok(found)
    }

    /// Takes back what [`Self::set_listeners`] said of a namespace: connections from there are refused.
    pub fn forget_listeners(&self, netns: u64) -> Result<(), ProbeError> {
        self.maps.listeners.remove(&netns).map(drop)
    }
}
