//! A server behind the fence: its pipes go to the daemon, and this process stands for it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use nix::fcntl::OFlag;
use nix::sys::signal::{SigHandler, SigSet, Signal, kill, signal};
use nix::unistd::Pid;

use super::{DOOR, Start, Unfenced};
use crate::boundary::process::handover::{Answer, Line, Offer};
use crate::cli::Global;

/// How long a server may go on after the daemon that relayed for it has died.
const GRACE: Duration = Duration::from_secs(5);

/// What may happen while a server runs.
enum News {
    /// A signal for us.
    Signal(Signal),
    /// The daemon is gone.
    Alone,
}

impl Start {
    /// Runs the server; the exit status is its own.
    pub(super) fn run(self, global: &Global) -> anyhow::Result<ExitCode> {
        let socket = self
            .socket
            .clone()
            .unwrap_or_else(|| global.run_dir.join(DOOR));
        let (server, arguments) = self
            .server
            .split_first()
            .context("name the server behind `--`")?;
        let mut command = Command::new(server);
        command.args(arguments);

        // Before any thread is there, so that all of them leave signals to the one that waits.
        let wanted = signals();
        wanted.thread_block()?;

        let (server_reads, we_write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let (we_read, server_writes) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
        let (agent_in, _) = pollable(io::stdin().as_fd(), Way::In)?;
        let (agent_out, carrier) = pollable(io::stdout().as_fd(), Way::Out)?;
        let pipes = [
            agent_in.as_fd(),
            agent_out.as_fd(),
            we_write.as_fd(),
            we_read.as_fd(),
        ];
        let line = match self.hand_over(&socket, pipes) {
            Ok(line) => {
                command.stdin(server_reads).stdout(server_writes);
                drop((agent_in, agent_out));
                // The agent must see the end of its server although we live on.
                forget_standard()?;
                Some(line)
            }
            Err(error) if self.unfenced == Unfenced::Run => {
                eprintln!("acrfence: the server runs and is NOT fenced: {error:#}");
                command.stdin(agent_in).stdout(agent_out);
                None
            }
            Err(error) => return Err(error.context("the server was not started")),
        };
        drop((we_write, we_read));

        let (sender, news) = mpsc::channel();
        if let Some(line) = line {
            let sender = sender.clone();
            std::thread::spawn(move || listen(&line, &sender));
        }
        // The server gets the signals' usual treatment back.
        restore_in(&mut command, wanted);
        let child = command
            .spawn()
            .with_context(|| format!("{} cannot be started", server.to_string_lossy()))?;
        std::thread::spawn(move || wait_for_signals(&wanted, &sender));
        let status = stand_for(child, &news)?;
        drop(command);
        if let Some(carrier) = carrier {
            // What is on its way into a file must get there.
            let _ = carrier.join();
        }
        Ok(end_as(status))
    }

    fn hand_over(&self, socket: &Path, pipes: [BorrowedFd<'_>; 4]) -> anyhow::Result<Line> {
        let line = Line::connect(socket).map_err(|error| {
            anyhow!(
                "the daemon cannot be reached at {}: {error}; start it with `systemctl start acrfence`, or name another socket with --socket",
                socket.display()
            )
        })?;
        let offer = Offer {
            version: 1,
            argv: self
                .server
                .iter()
                .map(|word| word.to_string_lossy().into_owned())
                .collect(),
        };
        line.offer(&offer, pipes)
            .context("the daemon took no pipes")?;
        match line.hear().context("the daemon gave no answer")? {
            Some(Answer::Taken) => Ok(line),
            Some(Answer::Refused(why)) => bail!("{why}"),
            _ => bail!("the daemon went away before it answered; try again"),
        }
    }
}

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    In,
    Out,
}

/// The same end in a form that can be waited on: a file cannot, so a thread carries its bytes.
fn pollable(fd: BorrowedFd<'_>, way: Way) -> anyhow::Result<(OwnedFd, Option<JoinHandle<()>>)> {
    let copy = fd.try_clone_to_owned()?;
    let kind = File::from(copy.try_clone()?).metadata()?.file_type();
    let is_terminal = nix::unistd::isatty(fd).unwrap_or(false);
    if kind.is_fifo() || kind.is_socket() || is_terminal {
        return Ok((copy, None));
    }
    let (read, write) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    let (ours, mut from, mut to) = match way {
        Way::In => (read, File::from(copy), File::from(write)),
        Way::Out => (write, File::from(read), File::from(copy)),
    };
    let carrier = std::thread::spawn(move || {
        // Ends with either side.
        let _ = io::copy(&mut from, &mut to);
    });
    Ok((ours, Some(carrier)))
}

/// Lets go of our own copies of the agent's ends.
fn forget_standard() -> anyhow::Result<()> {
    let nowhere = File::options().read(true).write(true).open("/dev/null")?;
    for number in [0, 1] {
        // SAFETY: both are open descriptors, and what stood at `number` is used no more.
        if unsafe { libc::dup2(nowhere.as_raw_fd(), number) } < 0 {
            return Err(io::Error::last_os_error().into());
        }
    }
    Ok(())
}

/// Waits for the end of what the daemon does for us.
fn listen(line: &Line, news: &mpsc::Sender<News>) {
    loop {
        match line.hear() {
            Ok(Some(Answer::Ended)) => return,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                let _ = news.send(News::Alone);
                return;
            }
        }
    }
}

fn signals() -> SigSet {
    [
        Signal::SIGCHLD,
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ]
    .into_iter()
    .collect()
}

fn wait_for_signals(wanted: &SigSet, news: &mpsc::Sender<News>) {
    while let Ok(signal) = wanted.wait() {
        if news.send(News::Signal(signal)).is_err() {
            return;
        }
    }
}

fn restore_in(command: &mut Command, wanted: SigSet) {
    use std::os::unix::process::CommandExt as _;
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || wanted.thread_unblock().map_err(Into::into));
    }
}

/// Passes signals on until the server has ended.
fn stand_for(mut child: Child, news: &mpsc::Receiver<News>) -> anyhow::Result<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
    let mut patience = None;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        let next = match patience {
            None => news
                .recv()
                .map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(time) => news.recv_timeout(time),
        };
        match next {
            Ok(News::Signal(Signal::SIGCHLD)) => {}
            // It may have ended just now.
            Ok(News::Signal(signal)) => drop(kill(pid, signal)),
            Ok(News::Alone) => {
                eprintln!("acrfence: the daemon died; its server is told to end");
                patience = Some(GRACE);
            }
            // Its input has ended; that it still runs means that it does not care.
            Err(_) => {
                let harder = match patience {
                    Some(time) if time == GRACE => Signal::SIGTERM,
                    _ => Signal::SIGKILL,
                };
                let _ = kill(pid, harder);
                patience = Some(GRACE / 2);
            }
        }
    }
}

/// Ends as the server did.
fn end_as(status: ExitStatus) -> ExitCode {
    if let Some(number) = status.signal() {
        if let Ok(same) = Signal::try_from(number) {
            // SAFETY: the default action runs no code of ours.
            let _ = unsafe { signal(same, SigHandler::SigDfl) };
            let mut set = SigSet::empty();
            set.add(same);
            let _ = set.thread_unblock();
            let _ = nix::sys::signal::raise(same);
        }
        return ExitCode::from(u8::try_from(128 + number).unwrap_or(u8::MAX));
    }
    ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1))
}
