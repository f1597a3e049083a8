//! A word to the person at a terminal, who otherwise sees only that a command was killed.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};

use super::super::pinned::Process;
use crate::words::ProcessIdentity;

/// Most of a sentence that is shown.
const LONGEST: usize = 1024;

/// Writes a sentence to the terminal that controls a process (a shell), through a descriptor that it has
/// open there. Never waits.
pub(super) fn say(process: ProcessIdentity, sentence: &str) -> io::Result<()> {
    // Held from before the look until after it: the pid is that of no other process.
    let held = Process::open_identity(process)?;
    let mut terminal = open(process.tgid)?;
    held.signal(0)?;
    terminal.write_all(shown(sentence).as_bytes())
}

/// The controlling terminal of a process.
fn open(pid: u32) -> io::Result<File> {
    let none = || io::Error::new(io::ErrorKind::NotFound, "it has no terminal open");
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let controlling = controlling(&stat).ok_or_else(none)?;
    for number in [2, 1, 0] {
        // Opened by name it is the device itself, whatever is mounted where the process lives. It must
        // become nobody's controlling terminal, and a terminal whose output is held must not hold us.
        let opened = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NOCTTY | libc::O_NONBLOCK | libc::O_CLOEXEC)
            .open(format!("/proc/{pid}/fd/{number}"));
        let Ok(file) = opened else {
            continue;
        };
        let about = file.metadata()?;
        let device = about.rdev();
        let is_it = (libc::major(device), libc::minor(device)) == controlling;
        if about.file_type().is_char_device() && is_it {
            return Ok(file);
        }
    }
    Err(none())
}

/// Major and minor number of the controlling terminal, as `/proc/PID/stat` has them.
fn controlling(stat: &str) -> Option<(u32, u32)> {
    // The name may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let device: i32 = fields.split_whitespace().nth(4)?.parse().ok()?;
    let device = device.cast_unsigned();
    let minor = (device & 0xff) | (device >> 12 & 0xfff00);
    (device != 0).then_some((device >> 8 & 0xfff, minor))
}

/// The sentence on a line of its own. What the command said about itself moves no cursor.
fn shown(sentence: &str) -> String {
    let end = sentence.floor_char_boundary(LONGEST);
    let plain: String = sentence[..end]
        .chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect();
    format!("\r\n{plain}\r\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_terminal_is_read_from_behind_any_name() {
        let stat = "42 (a) b (c)) S 1 42 42 34816 42 4194304 0";
        assert_eq!(controlling(stat), Some((136, 0)));
        assert_eq!(controlling("42 (x) S 1 42 42 1083393 7"), Some((136, 257)));
        assert_eq!(controlling("42 (x) S 1 42 42 0 -1"), None);
        assert_eq!(controlling("42 (x"), None);
    }

    #[test]
    fn a_sentence_cannot_move_the_cursor() {
        assert_eq!(
            shown("run \u{1b}[2J\u{9b}1m\nnow"),
            "\r\nrun ?[2J?1m?now\r\n"
        );
        assert!(shown(&"ä".repeat(4000)).len() <= LONGEST + 4);
    }
}
