//! Trust for programs that read no variable: a mount namespace of the agent's own, in which bundles of
//! roots are covered by copies with the CA in front.
//!
//! Nothing of it is seen outside, and nothing is left of it: the copies are files of a `tmpfs` that is
//! mounted nowhere else, and go with the last process of the namespace, however that ends.

mod find;
mod merged;
mod refresh;

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};

pub use find::{Found, Surroundings, bundles};
pub use refresh::refresh;

/// What the file system of the copies is called in the mount table.
const SOURCE: &str = "acrfence-trust";
/// No bundle is so large.
const SIZE_MAX: u64 = 16 << 20;

/// What came of it.
#[derive(Debug, Default)]
pub struct Arranged {
    /// Files that are covered.
    pub covered: Vec<PathBuf>,
    /// Files that are not, and why.
    pub left: Vec<(PathBuf, String)>,
}

/// Why there is no namespace. The caller is where it was, or in one in which nothing is covered.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The kernel does not allow it to this caller.
    #[error("this user may not make a mount namespace ({0})")]
    NotAllowed(Errno),
    /// A step failed that is not known to.
    #[error("{what}: {source}")]
    Step {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// There is nothing to do.
    #[error("no bundle of roots was found that could be covered")]
    Nothing,
}

/// A file that will be covered.
struct Copy {
    file: PathBuf,
    bytes: Vec<u8>,
    of: fs::Metadata,
}

/// Moves this process, which must have one thread, into a mount namespace of its own in which `files`
/// hold `ca` (PEM) as well. `stage` is any folder; nothing happens to it.
///
/// Whoever may not mount gets a user namespace with it, in which only the caller's own ids are known.
pub fn arrange(ca: &str, stage: &Path, files: &[PathBuf]) -> Result<Arranged, Failed> {
    let ours = merged::Ours::new(ca).map_err(|e| Failed::Step {
        what: "the CA's certificate cannot be used",
        source: io::Error::other(format!("{e:#}")),
    })?;
    let mut arranged = Arranged::default();
    let mut copies = Vec::new();
    for file in files {
        match copy(file, &ours) {
            Ok(copy) => copies.push(copy),
            Err(why) => arranged.left.push((file.clone(), why)),
        }
    }
    if copies.is_empty() {
        return Err(Failed::Nothing);
    }
    enter()?;
    // Mounts of the machine still come in; none of ours goes out. Before anything is mounted.
    mount_at(
        None,
        Path::new("/"),
        None,
        MsFlags::MS_SLAVE | MsFlags::MS_REC,
    )
    .map_err(|e| Failed::Step {
        what: "the new mount namespace cannot be made private",
        source: e.into(),
    })?;
    let flags = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    mount_at(Some(Path::new(SOURCE)), stage, Some("tmpfs"), flags).map_err(|e| Failed::Step {
        what: "a place for the copies cannot be mounted",
        source: e.into(),
    })?;
    for (number, copy) in copies.into_iter().enumerate() {
        match cover(&stage.join(number.to_string()), &copy) {
            Ok(()) => arranged.covered.push(copy.file),
            Err(e) => arranged.left.push((copy.file, e.to_string())),
        }
    }
    // The copies stay where they are bound; what lies below the stage is seen again.
    umount2(stage, MntFlags::MNT_DETACH).map_err(|e| Failed::Step {
        what: "the place of the copies cannot be unmounted",
        source: e.into(),
    })?;
    Ok(arranged)
}

fn copy(file: &Path, ours: &merged::Ours) -> Result<Copy, String> {
    let of = fs::metadata(file).map_err(|e| e.to_string())?;
    if !of.is_file() || of.len() > SIZE_MAX {
        return Err("it is no file of a bundle's size".into());
    }
    let own = fs::read(file).map_err(|e| e.to_string())?;
    let bytes = ours.merged(&own)?;
    let file = file.to_owned();
    Ok(Copy { file, bytes, of })
}

/// A mount namespace: by right, or inside a user namespace.
fn enter() -> Result<(), Failed> {
    match unshare(CloneFlags::CLONE_NEWNS) {
        Ok(()) => return Ok(()),
        // Root without the right to mount would be another root in a user namespace.
        Err(e @ Errno::EPERM) if nix::unistd::geteuid().is_root() => {
            return Err(Failed::NotAllowed(e));
        }
        Err(Errno::EPERM) => {}
        Err(e) => return Err(Failed::NotAllowed(e)),
    }
    let (user, group) = (nix::unistd::geteuid(), nix::unistd::getegid());
    unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNS).map_err(Failed::NotAllowed)?;
    // Who may leave groups could get at what they are kept from.
    for (file, map) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("{user} {user} 1")),
        ("/proc/self/gid_map", format!("{group} {group} 1")),
    ] {
        fs::write(file, map).map_err(|source| Failed::Step {
            what: "the ids of the new user namespace cannot be set",
            source,
        })?;
    }
    Ok(())
}

fn cover(place: &Path, copy: &Copy) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(place)?;
    file.write_all(&copy.bytes)?;
    // In a user namespace, other owners than the caller cannot be: then whoever could read it, can.
    let _ = chown(place, Some(copy.of.uid()), Some(copy.of.gid()));
    let mode = copy.of.permissions().mode() & 0o777;
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    mount_at(Some(place), &copy.file, None, MsFlags::MS_BIND)?;
    Ok(())
}

fn mount_at(
    source: Option<&Path>,
    place: &Path,
    kind: Option<&str>,
    flags: MsFlags,
) -> Result<(), Errno> {
    mount(source, place, kind, flags, None::<&str>)
}
