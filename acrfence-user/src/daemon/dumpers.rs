//! Programs that dump or restore processes, as far as they can be looked at. What they say of themselves only
//! helps to tell dumps apart.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::service::Daemon;
use crate::lineage::ImageSeen;
use crate::probe::proc::ProcDir;
use crate::words::{ProcessIdentity, Timestamp};

/// A program that dumps or restores, as far as it can be looked at.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    pub(super) process: ProcessIdentity,
    /// Its pid in the innermost of its pid namespaces.
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) image: ImageSeen,
}

/// How long is looked whether a process that was asked to be traced is.
const TRACED_WITHIN: Duration = Duration::from_millis(200);

impl Daemon {
    /// File name of the program that a process runs.
    pub(super) fn program_of(process: ProcessIdentity) -> String {
        let link = format!("/proc/{}/exe", process.tgid);
        let exe = std::fs::read_link(link).unwrap_or_default();
        let name = exe.file_name().unwrap_or_default().to_string_lossy();
        name.trim_end_matches(" (deleted)").to_owned()
    }

    pub(super) fn tool(&self, process: ProcessIdentity) -> Tool {
        let facts = self.kernel.facts(process);
        let name = facts.argv.iter().find_map(|word| criu(word));
        let exe = || facts.exe.rsplit('/').next().unwrap_or("?").to_owned();
        let proc = Path::new("/proc").join(process.tgid.to_string());
        let dir = images_dir(&facts.argv, &facts.cwd).or_else(|| open_directory(&proc));
        let image = ImageSeen {
            written: dir.as_ref().and_then(|dir| written(&proc, dir)),
            dir: dir.map(|dir| dir.to_string_lossy().into_owned()),
        };
        Tool {
            process,
            pid: ProcDir::open(process.tgid)
                .and_then(|dir| dir.innermost_pid())
                .unwrap_or(process.tgid),
            name: name.unwrap_or_else(exe),
            image,
        }
    }
}

/// The program's name, if it is CRIU, perhaps started through a loader.
fn criu(word: &str) -> Option<String> {
    (word.rsplit('/').next() == Some("criu")).then(|| "criu".to_owned())
}

pub(super) fn name_of(tool: &Tool) -> String {
    match (&tool.image.dir, tool.name.as_str()) {
        (Some(dir), _) => format!("criu-dump:{dir}"),
        (None, "criu") => format!("criu-dump-{}", tool.process.tgid),
        (None, other) => format!("seized-by-{other}-{}", tool.process.tgid),
    }
}

/// The directory of images that CRIU's arguments name, without links; its working directory when they
/// name none.
fn images_dir(argv: &[String], cwd: &str) -> Option<PathBuf> {
    let program = argv.iter().position(|word| criu(word).is_some())?;
    let words = argv.get(program + 1..)?;
    let acts = ["dump", "pre-dump", "restore"];
    if !words.iter().any(|word| acts.contains(&word.as_str())) {
        // As a service it is told over a socket.
        return None;
    }
    let mut dir = PathBuf::from(cwd);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if let Some(named) = word.strip_prefix("--images-dir=") {
            dir = named.into();
        } else if word == "-D" || word == "--images-dir" {
            dir = words.next()?.into();
        } else if let Some(named) = word.strip_prefix("-D").filter(|_| !word.starts_with("--")) {
            dir = named.into();
        }
    }
    let whole = Path::new(cwd).join(dir);
    Some(whole.canonicalize().unwrap_or(whole))
}

/// The only directory that a process has open, apart from those of the kernel and the root: CRIU keeps
/// the one of its images open.
fn open_directory(proc: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(proc.join("fd")).ok()?.flatten();
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter(|target| target.is_absolute() && target.parent().is_some())
        .filter(|target| {
            !["/proc", "/sys", "/dev"]
                .iter()
                .any(|k| target.starts_with(k))
        })
        .filter(|target| target.is_dir())
        .collect();
    found.sort();
    found.dedup();
    match found.as_slice() {
        [one] => Some(one.clone()),
        _ => None,
    }
}

/// When the image in a directory was finished: CRIU writes its inventory last.
fn written(proc: &Path, dir: &Path) -> Option<Timestamp> {
    let below = dir.strip_prefix("/").ok()?;
    let file = proc.join("root").join(below).join("inventory.img");
    let changed = std::fs::metadata(file).ok()?.modified().ok()?;
    let since_1970 = changed.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Some(Timestamp(u64::try_from(since_1970.as_nanos()).ok()?))
}

pub(super) fn parent_of(pid: u32) -> Option<u32> {
    let stat = ProcDir::open(pid).ok()?.stat().ok()?;
    (stat.parent != 0).then_some(stat.parent)
}

/// Whether a process comes to be traced by a thread of another: who only asks to trace saves nobody.
pub(super) async fn is_traced_by(pid: u32, tracer: u32) -> bool {
    let deadline = Instant::now() + TRACED_WITHIN;
    loop {
        let by = ProcDir::open(pid).and_then(|dir| dir.tracer()).unwrap_or(0);
        if by != 0 && ProcDir::open(by).and_then(|dir| dir.tgid()).ok() == Some(tracer) {
            return true;
        }
        // The kernel reports the call before it takes effect.
        if Instant::now() >= deadline || ProcDir::open(tracer).is_err() {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(words: &str, cwd: &str) -> Option<String> {
        let argv: Vec<String> = words.split(' ').map(Into::into).collect();
        images_dir(&argv, cwd).map(|dir| dir.to_string_lossy().into_owned())
    }

    #[test]
    fn criu_s_arguments_name_the_directory_of_its_images() {
        for words in [
            "criu dump -t 7 -D /images/a -j",
            "/usr/sbin/criu restore --images-dir /images/a -d",
            "criu restore --images-dir=/images/a",
            "criu -D/images/a pre-dump -t 7",
            "/lib64/ld-linux-x86-64.so.2 --library-path /x /root/usr/sbin/criu dump -D a",
        ] {
            assert_eq!(
                dir(words, "/images").as_deref(),
                Some("/images/a"),
                "{words}"
            );
        }
        assert_eq!(dir("criu dump -t 7", "/there").as_deref(), Some("/there"));
        assert_eq!(dir("criu swrk 3", "/there"), None);
        assert_eq!(dir("strace -p 7 -D", "/there"), None);
    }

    #[test]
    fn a_dump_is_named_after_what_is_known() {
        let tool = |name: &str, dir: Option<&str>| Tool {
            process: ProcessIdentity {
                tgid: 7,
                start_ns: 1,
            },
            pid: 7,
            name: name.into(),
            image: ImageSeen {
                dir: dir.map(Into::into),
                written: None,
            },
        };
        assert_eq!(name_of(&tool("criu", Some("/a"))), "criu-dump:/a");
        assert_eq!(name_of(&tool("criu", None)), "criu-dump-7");
        assert_eq!(name_of(&tool("strace", None)), "seized-by-strace-7");
    }
}
