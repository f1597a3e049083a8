//! Waits for what a program writes into its files.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};

/// Waits until `so` holds, and looks again whenever something changes under `directory`.
pub fn until(directory: &Path, limit: Duration, so: impl Fn() -> bool) -> Result<()> {
    let deadline = Instant::now() + limit;
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    let mut buffer = [0; 4096];
    loop {
        // Directories that are new since the last look are watched before the next one.
        add(&watch, directory)?;
        if so() {
            return Ok(());
        }
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now()))?;
        let mut fds = [PollFd::new(&watch, PollFlags::IN)];
        if poll(&mut fds, Some(&left))? == 0 {
            bail!(
                "nothing of the kind was written under {} in {limit:?}",
                directory.display()
            );
        }
        // What exactly changed does not matter.
        while rustix::io::read(&watch, &mut buffer).is_ok_and(|read| read > 0) {}
    }
}

fn add(watch: &rustix::fd::OwnedFd, directory: &Path) -> Result<()> {
    let changes = WatchFlags::CREATE | WatchFlags::MODIFY | WatchFlags::MOVED_TO;
    inotify::add_watch(watch, directory, changes)
        .with_context(|| format!("watching {}", directory.display()))?;
    for entry in fs::read_dir(directory)?.flatten() {
        // One that is gone again needs no watch.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = add(watch, &entry.path());
        }
    }
    Ok(())
}
