//! A process that does nothing but outlive the daemon: whoever stands at the gate when the daemon
//! dies is killed, or let run, as policy says. Without it they would stand there for ever.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use super::super::pinned::Process;
use crate::probe::{Abandoned, GateWhy, ProbeError, Standing};

/// How long the warden looks for late comers: processes whose exec had begun when the daemon died.
const LATE: Duration = Duration::from_secs(2);
/// How often it looks.
const LOOK: Duration = Duration::from_millis(20);
/// What a daemon that ends in order says.
const IN_ORDER: u8 = b'.';

/// The daemon's side of its warden.
#[derive(Debug)]
pub struct Warden {
    child: Child,
    line: Option<ChildStdin>,
}

impl Warden {
    /// Starts a warden: `command` must call [`stand_watch`] with the gate's pin directory.
    pub fn start(mut command: Command) -> io::Result<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        // Not in the daemon's process group: what is sent to that does not end it.
        command.process_group(0);
        let mut child = command.spawn()?;
        let line = child.stdin.take();
        Ok(Self { child, line })
    }

    /// The warden's process id: exempt it from what ends the daemon's service.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Lets the warden go, once nobody stands at the gate any more.
    pub fn dismiss(mut self) {
        if let Some(mut line) = self.line.take() {
            // It may be gone already.
            let _ = line.write_all(&[IN_ORDER]);
        }
        let _ = self.child.wait();
    }
}

/// The warden itself: waits on `line` for the daemon to end, and sees to it that nobody is left at
/// the gate whose maps are pinned in `pin_directory`. Gives how many it saw off.
pub fn stand_watch(pin_directory: &Path, mut line: impl io::Read) -> Result<usize, ProbeError> {
    ignore_signals();
    let mut gate = Abandoned::open(pin_directory)?;
    let mut said = [0];
    loop {
        match line.read(&mut said) {
            Ok(1) if said[0] == IN_ORDER => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The end of the line: the daemon is gone, however it went.
            _ => break,
        }
    }
    let mut seen_off = 0;
    let until = Instant::now() + LATE;
    while Instant::now() < until && !gate.is_served() {
        for standing in gate.at_gate() {
            seen_off += 1;
            let signal = if gate.is_open() || standing.why == GateWhy::ENVIRONMENT {
                libc::SIGCONT
            } else {
                libc::SIGKILL
            };
            see_off(&mut gate, standing, signal);
        }
        std::thread::sleep(LOOK);
    }
    Ok(seen_off)
}

fn see_off(gate: &mut Abandoned, standing: Standing, signal: i32) {
    gate.left(standing.process);
    match Process::open_identity(standing.process).and_then(|process| process.signal(signal)) {
        Ok(()) => tracing::warn!(
            pid = standing.process.tgid,
            "the daemon died with this process at the gate: it got signal {signal}"
        ),
        Err(error) => tracing::debug!(pid = standing.process.tgid, %error, "it was gone"),
    }
}

/// What ends services in order must not end the warden before the daemon.
fn ignore_signals() {
    use nix::sys::signal::{SigHandler, Signal, signal};
    for ignored in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        // SAFETY: to ignore a signal runs no code.
        let _ = unsafe { signal(ignored, SigHandler::SigIgn) };
    }
}
