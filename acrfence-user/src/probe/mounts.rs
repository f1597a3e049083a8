//! Finds the file systems the hooks need, and mounts those that are missing.

use std::path::{Path, PathBuf};

use nix::mount::MsFlags;

use super::{ProbeError, sys};

/// Where a cgroup2 hierarchy is mounted: at `/sys/fs/cgroup`, or below it on hybrid systems.
pub fn cgroup2() -> Option<PathBuf> {
    find(&table(), "cgroup2")
}

/// Where tracefs is mounted.
pub fn tracefs() -> Option<PathBuf> {
    find(&table(), "tracefs")
}

/// Mounts tracefs where it is looked for, unless it is there.
pub fn ensure_tracefs() -> Result<(), ProbeError> {
    let place = Path::new("/sys/kernel/tracing");
    let is_there = || place.join("events/syscalls").is_dir();
    if is_there() {
        return Ok(());
    }
    // Somebody else may do so in the same moment.
    mount("tracefs", place).or_else(|error| if is_there() { Ok(()) } else { Err(error) })
}

/// Makes `directory` in a bpffs, mounting one at `/sys/fs/bpf` if that is missing.
pub fn ensure_pin_directory(directory: &Path) -> Result<(), ProbeError> {
    let standard = Path::new(BPFFS);
    if directory.starts_with(standard)
        && standard.is_dir()
        && !sys::is_bpffs(standard).unwrap_or(false)
    {
        mount("bpf", standard)?;
    }
    std::fs::create_dir_all(directory).map_err(|source| ProbeError::System {
        what: format!("cannot create the pin directory {}", directory.display()),
        source,
    })?;
    match sys::is_bpffs(directory) {
        Ok(true) => {}
        Ok(false) => return Err(ProbeError::NoBpffs(directory.into())),
        Err(source) => {
            return Err(ProbeError::System {
                what: format!("cannot look at {}", directory.display()),
                source,
            });
        }
    }
    // Whoever can open a pinned map for writing can let a process out of the fence.
    std::fs::set_permissions(
        directory,
        std::os::unix::fs::PermissionsExt::from_mode(0o700),
    )
    .map_err(|source| ProbeError::System {
        what: format!("cannot close {} to others", directory.display()),
        source,
    })
}

/// Where bpffs is by convention.
pub const BPFFS: &str = "/sys/fs/bpf";

fn mount(kind: &str, place: &Path) -> Result<(), ProbeError> {
    nix::mount::mount(
        Some(kind),
        place,
        Some(kind),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC,
        None::<&str>,
    )
    .map_err(|error| ProbeError::System {
        what: format!(
            "{kind} is not mounted at {} and cannot be mounted there",
            place.display()
        ),
        source: error.into(),
    })
}

fn table() -> String {
    std::fs::read_to_string("/proc/self/mounts").unwrap_or_default()
}

/// The first mount of a kind in a mount table.
fn find(table: &str, kind: &str) -> Option<PathBuf> {
    table.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == kind).then(|| PathBuf::from(unescape(place)))
    })
}

/// Spaces and the like are written as `\040`.
fn unescape(field: &str) -> String {
    let mut out = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(3..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n\
        cgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\n\
        cgroup2 /sys/fs/cgroup/uni\\040fied cgroup2 rw 0 0\n";

    #[test]
    fn hybrid_systems_have_cgroup2_below() {
        assert_eq!(
            find(HYBRID, "cgroup2"),
            Some(PathBuf::from("/sys/fs/cgroup/uni fied"))
        );
        assert_eq!(find(HYBRID, "tracefs"), None);
    }

    #[test]
    fn broken_escapes_stay_as_they_are() {
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(unescape("a\\999"), "a\\999");
        assert_eq!(unescape("\\"), "\\");
    }
}
