//! What is known of a process that stands at the gate.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use super::super::inject::{Kind, Standard};
use super::super::pinned::Process;
use crate::boundary::Arbiter;
use crate::words::ProcessIdentity;

/// Arguments and environment beyond this are not looked at: the kernel allows 6 MiB of them.
const LONGEST: u64 = 8 << 20;
/// `AT_EXECFN`: the auxiliary vector's entry for the path that was executed.
const AT_EXECFN: u64 = 31;

/// One visit of a process at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stop {
    /// The process.
    pub(crate) process: ProcessIdentity,
    /// Since when it stands there (nanoseconds since boot).
    pub(crate) since_ns: u64,
}

/// A process at the gate.
#[derive(Debug)]
pub(crate) struct Subject {
    /// Which, and since when.
    pub(crate) stop: Stop,
    /// A handle on it.
    pub(crate) process: Process,
    /// Its arguments.
    pub(crate) argv: Vec<String>,
    /// The path that was executed: of a script, not of its interpreter.
    pub(crate) started: String,
    /// Its program file.
    pub(crate) file: String,
    /// Its working directory.
    pub(crate) cwd: String,
    /// Its environment.
    pub(crate) environment: Vec<(String, String)>,
    /// Its standard input, output and error.
    pub(crate) standard: [Standard; 3],
}

impl Subject {
    /// Looks at a process. Its first instruction has not run, so nothing of this changes.
    pub(crate) fn look(stop: Stop) -> io::Result<Self> {
        let identity = stop.process;
        let process = Process::open_identity(identity)?;
        let place = format!("/proc/{}", identity.tgid);
        let link = |name: &str| {
            std::fs::read_link(format!("{place}/{name}"))
                .map(|path| path.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        let file = link("exe");
        Ok(Self {
            stop,
            argv: split(&read(&format!("{place}/cmdline"))?)
                .into_iter()
                .map(lossy)
                .collect(),
            started: started(&place).unwrap_or_else(|| file.clone()),
            file,
            cwd: link("cwd"),
            environment: split(&read(&format!("{place}/environ"))?)
                .into_iter()
                .filter_map(|variable| {
                    let text = lossy(variable);
                    let (name, value) = text.split_once('=')?;
                    Some((name.to_owned(), value.to_owned()))
                })
                .collect(),
            standard: [0, 1, 2].map(|number| Standard::of(&process, number)),
            process,
        })
    }

    /// Whether a variable is in its environment.
    pub(crate) fn has_variable(&self, name: &str) -> bool {
        self.environment.iter().any(|(own, _)| own == name)
    }

    /// Whether its program is this one.
    pub(crate) fn runs(&self, program: &Path) -> bool {
        let of = |path: &Path| std::fs::metadata(path).map(|about| (about.dev(), about.ino()));
        match (
            of(Path::new(&format!("/proc/{}/exe", self.stop.process.tgid))),
            of(program),
        ) {
            (Ok(theirs), Ok(ours)) => theirs == ours,
            _ => false,
        }
    }

    /// Whether a path leads it to the same file as us: not in a container, for instance.
    pub(crate) fn sees(&self, path: &Path) -> bool {
        let theirs = format!("/proc/{}/root{}", self.stop.process.tgid, path.display());
        match (std::fs::metadata(theirs), std::fs::metadata(path)) {
            (Ok(theirs), Ok(ours)) => (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()),
            _ => false,
        }
    }

    /// Whether input and output are pipes or unix stream sockets.
    pub(crate) fn has_pipes(&self) -> bool {
        let is_pipe = |standard: &Standard| matches!(standard.kind, Kind::Pipe | Kind::Socket);
        is_pipe(&self.standard[0]) && is_pipe(&self.standard[1])
    }

    /// Its command line in one line, as it may be kept.
    pub(crate) fn command_line(&self, arbiter: &dyn Arbiter) -> String {
        kept_line(&self.argv, arbiter)
    }
}

/// A command line in one line, without the secrets on it. It is the name of a stdio server.
pub(crate) fn kept_line(argv: &[String], arbiter: &dyn Arbiter) -> String {
    let mut argv = argv.to_vec();
    arbiter.take_secrets_off(&mut argv);
    quoted(&argv)
}

/// A command line in one line: bounded, with quotes where they are needed to tell words apart.
pub(crate) fn quoted(argv: &[String]) -> String {
    const LONGEST_NAME: usize = 4096;
    let mut line = String::new();
    for word in argv {
        if !line.is_empty() {
            line.push(' ');
        }
        let is_plain = !word.is_empty()
            && word
                .chars()
                .all(|c| c.is_alphanumeric() || "-_./:=@%+,~^".contains(c));
        if is_plain {
            line.push_str(word);
        } else {
            line.push('\'');
            line.push_str(&word.replace('\'', r"'\''"));
            line.push('\'');
        }
        if line.len() > LONGEST_NAME {
            line.truncate(line.floor_char_boundary(LONGEST_NAME));
            line.push('…');
            break;
        }
    }
    line
}

fn read(path: &str) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Strings that each end in a zero byte.
fn split(area: &[u8]) -> Vec<&[u8]> {
    let area = area.strip_suffix(&[0]).unwrap_or(area);
    if area.is_empty() {
        return Vec::new();
    }
    area.split(|&byte| byte == 0).collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The path that was executed, from where the kernel left it in the new program's memory.
fn started(place: &str) -> Option<String> {
    let vector = read(&format!("{place}/auxv")).ok()?;
    let at = vector.chunks_exact(16).find_map(|entry| {
        let (kind, value) = entry.split_at(8);
        let number = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).ok();
        (number(kind) == Some(AT_EXECFN))
            .then(|| number(value))
            .flatten()
    })?;
    let memory = File::open(format!("{place}/mem")).ok()?;
    let mut path = [0; 4096];
    // The string lies at the very end of the stack: what follows may not be there.
    let length = memory.read_at(&mut path, at).ok()?;
    let end = path[..length].iter().position(|&byte| byte == 0)?;
    Some(lossy(&path[..end]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_seen_as_it_is() {
        let pid = nix::unistd::Pid::this();
        let ticks = super::super::super::pinned::start_ticks(pid).unwrap();
        let identity = ProcessIdentity {
            tgid: std::process::id(),
            start_ns: ticks * 10_000_000,
        };
        let subject = Subject::look(Stop {
            process: identity,
            since_ns: 0,
        })
        .unwrap();
        let argv: Vec<String> = std::env::args().collect();
        assert_eq!(subject.argv, argv);
        assert!(subject.runs(Path::new("/proc/self/exe")));
        assert_eq!(
            subject.cwd,
            std::env::current_dir().unwrap().to_string_lossy()
        );
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        assert_eq!(name(&subject.started), name(&subject.file));
        assert!(subject.has_variable("PATH") && !subject.has_variable("PAT"));
        assert!(subject.sees(Path::new("/proc/self/exe")) || subject.sees(Path::new("/etc")));
        assert!(!subject.sees(Path::new("/no/such/file")));
    }

    #[test]
    fn strings_are_split_as_the_kernel_joins_them() {
        assert_eq!(split(b"a\0\0b\0"), [&b"a"[..], b"", b"b"]);
        assert!(split(b"").is_empty());
        assert_eq!(split(b"cut"), [b"cut"]);
    }
}
