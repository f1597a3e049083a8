//! A control group of a test's own, so that the kernel programs under test see nothing else.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A child of the cgroup2 root. Dropping it ends every process in it and removes it.
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    /// Makes a new one.
    pub fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "acrfence-e2e-{}-{}",
            std::process::id(),
            COUNT.fetch_add(1, Ordering::Relaxed)
        );
        let path = mount_point()?.join(name);
        fs::create_dir(&path).with_context(|| {
            format!(
                "making the control group {}: the end-to-end tests need root, run them with `cargo xtask test`",
                path.display()
            )
        })?;
        Ok(Self { path })
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes `command` start inside.
    pub fn enter(&self, command: &mut Command) -> Result<()> {
        let procs = self.path.join("cgroup.procs");
        let procs: File = OpenOptions::new()
            .write(true)
            .open(&procs)
            .with_context(|| format!("opening {}", procs.display()))?;
        // SAFETY: one write to a descriptor that was opened before the fork.
        unsafe {
            command.pre_exec(move || {
                rustix::io::write(&procs, b"0")?;
                Ok(())
            });
        }
        Ok(())
    }

    /// Ends every process inside and waits until they are gone.
    pub fn clear(&self) -> Result<()> {
        clear(&self.path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let removed = clear(&self.path)
            .and_then(|()| fs::remove_dir(&self.path).context("removing the control group"));
        if let Err(e) = removed {
            eprintln!("{} is left behind: {e:#}", self.path.display());
        }
    }
}

/// Ends every process in the control group at `path` and waits until they are gone. A group that
/// somebody else removes meanwhile is empty.
pub fn clear(path: &Path) -> Result<()> {
    match end_all(path) {
        Err(_) if !path.exists() => Ok(()),
        ended => ended,
    }
}

fn end_all(path: &Path) -> Result<()> {
    let kill = path.join("cgroup.kill");
    OpenOptions::new()
        .write(true)
        .open(&kill)
        .and_then(|mut file| file.write_all(b"1"))
        .with_context(|| format!("writing {}", kill.display()))?;
    let events = path.join("cgroup.events");
    let file = File::open(&events).with_context(|| format!("opening {}", events.display()))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while fs::read_to_string(&events)?.contains("populated 1") {
        // The kernel reports a change of this file as an exceptional condition.
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            bail!("processes in {} do not end", path.display());
        }
        // Reading through the polled descriptor arms it for the next change.
        let mut armed = [0; 256];
        rustix::io::pread(&file, &mut armed, 0)?;
        if !String::from_utf8_lossy(&armed).contains("populated 1") {
            break;
        }
        let mut fds = [PollFd::new(&file, PollFlags::PRI)];
        match poll(&mut fds, Some(&Timespec::try_from(left)?)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e).context("waiting for a control group to empty"),
        }
    }
    Ok(())
}

/// Where cgroup2 is mounted; beside the old hierarchies it is not at the usual place.
fn mount_point() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mount table")?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut words = line.split(' ').skip(1);
            Some((words.next()?, words.next()?))
        })
        .find_map(|(point, kind)| (kind == "cgroup2").then(|| PathBuf::from(point)))
        .context("cgroup2 is not mounted; `mount -t cgroup2 none /sys/fs/cgroup/unified` mounts it")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Running;

    #[test]
    fn a_dropped_group_takes_its_processes_with_it() -> Result<()> {
        let group = Cgroup::new()?;
        let path = group.path().to_path_buf();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & echo started; wait"]);
        group.enter(&mut command)?;
        let mut shell = Running::start("a shell", &mut command)?;
        shell.wait_for("started")?;
        drop(group);
        assert!(!path.exists());
        assert_eq!(shell.finish()?.signal, Some(9));
        Ok(())
    }
}
