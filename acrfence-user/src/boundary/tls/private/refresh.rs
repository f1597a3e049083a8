//! The copies of agents that run, brought up to date after the CA was rotated.
//!
//! A rename would leave what is bound as it was: the copies are written where they are.

use std::collections::HashSet;
use std::fs;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::statfs::{TMPFS_MAGIC, fstatfs};

use super::{SIZE_MAX, SOURCE, merged};
use crate::boundary::tls::java;

/// Puts `ca` (PEM) into every copy that one of these processes sees. Says how many were written, and
/// which could not be.
pub fn refresh(ca: &str, processes: impl IntoIterator<Item = u32>) -> (usize, Vec<String>) {
    let (mut written, mut problems) = (0, Vec::new());
    let ours = match merged::Ours::new(ca) {
        Ok(ours) => ours,
        Err(e) => return (0, vec![format!("{e:#}")]),
    };
    let mut seen: HashSet<u64> = namespace("self").into_iter().collect();
    for process in processes {
        // Who has ended needs none.
        let process = process.to_string();
        let Some(number) = namespace(&process) else {
            continue;
        };
        if !seen.insert(number) {
            continue;
        }
        let table = match fs::read_to_string(format!("/proc/{process}/mountinfo")) {
            Ok(table) => table,
            Err(_) => continue,
        };
        for place in table.lines().filter_map(place_of) {
            match write(&process, &place, &ours) {
                Ok(()) => written += 1,
                Err(e) => problems.push(format!("{} of process {process}: {e}", place.display())),
            }
        }
    }
    (written, problems)
}

fn namespace(process: &str) -> Option<u64> {
    let file = fs::metadata(format!("/proc/{process}/ns/mnt"));
    file.ok().map(|file| file.ino())
}

/// The path of a mount, if it is one of our copies (proc_pid_mountinfo(5)).
fn place_of(line: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split(' ');
    if kind.next() != Some("tmpfs") || kind.next() != Some(SOURCE) {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let (inside, place) = (fields.next()?, fields.next()?);
    // The whole file system is none of the copies.
    (inside != "/").then(|| unescape(place))
}

/// The kernel writes white space and backslashes in octal.
fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let code = bytes.get(at + 1..at + 4).filter(|_| byte == b'\\');
        let code =
            code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        path.push(code.unwrap_or(byte));
        at += if code.is_some() { 4 } else { 1 };
    }
    use std::os::unix::ffi::OsStringExt as _;
    std::ffi::OsString::from_vec(path).into()
}

/// An agent may have mounted anything, and may change it meanwhile: no link is followed, nothing
/// outside of its root is reached, and only what is one of our copies is written.
fn write(process: &str, place: &Path, ours: &merged::Ours) -> io::Result<()> {
    let root: OwnedFd = fs::File::open(format!("/proc/{process}/root"))?.into();
    let inside = place.strip_prefix("/").unwrap_or(place);
    let how = OpenHow::new()
        .flags(OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY)
        .resolve(
            ResolveFlag::RESOLVE_IN_ROOT
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS,
        );
    let file = fs::File::from(openat2(&root, inside, how)?);
    let not_ours = || io::Error::other("it is not what was put there");
    let is_like_ours = file.metadata()?.is_file()
        && file.metadata()?.len() <= 2 * SIZE_MAX
        && fstatfs(&file)?.filesystem_type() == TMPFS_MAGIC;
    if !is_like_ours {
        return Err(not_ours());
    }
    let mut bytes = Vec::new();
    (&file).read_to_end(&mut bytes)?;
    let beginning = ours.renewed(&bytes).ok_or_else(not_ours)?;
    file.write_all_at(&beginning, 0)?;
    // A store of Java's is written whole, and may be shorter than before.
    if java::is_store(&beginning) {
        file.set_len(beginning.len() as u64)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_copies_are_taken_out_of_a_mount_table() {
        let line = "90 27 0:45 /0 /etc/ssl/certs/ca-certificates.crt rw,nosuid - tmpfs acrfence-trust rw,size=1k";
        let place = Path::new("/etc/ssl/certs/ca-certificates.crt");
        assert_eq!(place_of(line).as_deref(), Some(place));
        let odd = r"90 27 0:45 /1 /a\040b\134c\011d rw shared:1 master:2 - tmpfs acrfence-trust rw";
        assert_eq!(place_of(odd).as_deref(), Some(Path::new("/a b\\c\td")));
        for other in [
            "90 27 0:45 / /run/acrfence rw - tmpfs acrfence-trust rw",
            "90 27 0:45 /0 /a rw - tmpfs tmpfs rw",
            "90 27 8:1 /0 /a rw - ext4 acrfence-trust rw",
            "90 27 0:45 /0 /a rw",
            "",
        ] {
            assert_eq!(place_of(other), None, "{other}");
        }
    }

    /// What an agent may lay in the way: nothing else is ever written.
    #[test]
    fn nothing_but_a_copy_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        let ca = crate::boundary::tls::ca::Ca::create(&dir.join("ca")).unwrap();
        let ours = merged::Ours::new(ca.pem()).unwrap();
        let victim = dir.join("victim");
        fs::write(&victim, "theirs").unwrap();
        let link = dir.join("link");
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let pipe = dir.join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // On a disk, even what looks like a copy.
        let alike = dir.join("alike");
        fs::write(&alike, ours.merged(ca.pem().as_bytes()).unwrap()).unwrap();
        for place in [&victim, &link, &pipe, &dir, &dir.join("none")] {
            assert!(write("self", place, &ours).is_err(), "{}", place.display());
        }
        assert_eq!(fs::read(&victim).unwrap(), b"theirs");
        if fstatfs(fs::File::open(&alike).unwrap())
            .unwrap()
            .filesystem_type()
            != TMPFS_MAGIC
        {
            assert!(write("self", &alike, &ours).is_err());
        }
    }
}
