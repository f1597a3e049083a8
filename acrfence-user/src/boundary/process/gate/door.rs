//! Where `acrfence mcp -- SERVER` hands its pipes over.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, accept4, bind, getsockopt, listen,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike as _};

use super::keeper::{Gatekeeper, Keeper};
use super::subject::kept_line;
use crate::boundary::process::handover::{Answer, Line, Offer, Pipes};
use crate::boundary::process::stdio::{self, Ends, Session, Sink, Source};
use crate::words::ProcessIdentity;

/// Clients that are being answered at the same time.
const AT_ONCE: usize = 64;

/// The socket on which the daemon takes pipes over. Closed and removed when dropped; relays that
/// run go on.
#[derive(Debug)]
pub struct Door {
    path: PathBuf,
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Door {
    /// Opens the door. Everybody may knock; only processes of agents are let in.
    pub fn open(path: &Path, gatekeeper: &Gatekeeper) -> io::Result<Self> {
        let listener = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        // What a daemon that is gone left behind.
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
        listen(&listener, Backlog::new(64)?)?;
        let (stopped, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
        let keeper = gatekeeper.keeper().clone();
        let thread = std::thread::Builder::new()
            .name("relay door".to_owned())
            .spawn(move || answer_all(&listener, &stopped, &keeper))?;
        Ok(Self {
            path: path.to_owned(),
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // The other end is told by closing this one.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn answer_all(listener: &OwnedFd, stopped: &OwnedFd, keeper: &Arc<Keeper>) {
    let busy = Arc::new(AtomicUsize::new(0));
    loop {
        let mut polled = [
            PollFd::new(listener.as_fd(), PollFlags::POLLIN),
            PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
        ];
        if poll(&mut polled, PollTimeout::NONE).is_err() {
            continue;
        }
        if polled[1].revents().is_some_and(|found| !found.is_empty()) {
            return;
        }
        let Ok(fd) = accept4(listener, SockFlag::SOCK_CLOEXEC) else {
            continue;
        };
        if busy.fetch_add(1, Ordering::Relaxed) >= AT_ONCE {
            busy.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (keeper, busy) = (keeper.clone(), busy.clone());
        // A client that says nothing keeps only its own thread waiting.
        let started = std::thread::Builder::new()
            .name("relay client".to_owned())
            .spawn(move || {
                answer(fd, &keeper);
                busy.fetch_sub(1, Ordering::Relaxed);
            });
        if let Err(error) = started {
            tracing::error!("a relay's client cannot be answered: {error}");
        }
    }
}

fn answer(fd: OwnedFd, keeper: &Arc<Keeper>) {
    // Otherwise the client could keep the thread for ever.
    let _ = setsockopt(&fd, sockopt::ReceiveTimeout, &TimeVal::seconds(5));
    let peer = getsockopt(&fd, sockopt::PeerCredentials);
    let line = Line::accepted(fd);
    let taken = peer
        .map_err(io::Error::from)
        .map_err(|error| error.to_string())
        .and_then(|peer| {
            // Read first: an answer to a client that is still writing would be lost.
            let (offer, pipes) = line.offered().map_err(|error| error.to_string())?;
            let pid = u32::try_from(peer.pid()).unwrap_or_default();
            let client = keeper.processes().identify(pid).ok_or_else(|| {
                "the process that started the server belongs to no agent; start the agent with `acrfence run`, attach to it \
                 with `acrfence attach PID`, or take the relay out of its configuration with `acrfence mcp unwrap`"
                    .to_owned()
            })?;
            session(keeper, client, &offer, pipes).map_err(|error| error.to_string())
        });
    match taken {
        Ok((client, ends, session)) => {
            // Before the client starts the server: its exec is not gated a second time.
            keeper.handed_over(client);
            if line.say(&Answer::Taken).is_err() {
                return keeper.taken_back(client);
            }
            keeper.count("handed_over");
            let own = keeper.clone();
            keeper.runtime().spawn(async move {
                stdio::relay(ends, session).await;
                own.taken_back(client);
                // The client may be gone.
                let _ = line.say(&Answer::Ended);
            });
        }
        Err(why) => {
            tracing::info!("a relay was refused: {why}");
            let _ = line.say(&Answer::Refused(why));
        }
    }
}

fn session(
    keeper: &Keeper,
    client: ProcessIdentity,
    offer: &Offer,
    pipes: Pipes,
) -> io::Result<(ProcessIdentity, Ends, Session)> {
    let gone = || io::Error::new(io::ErrorKind::NotFound, "the process is tracked no more");
    let _runtime = keeper.runtime().enter();
    let ends = Ends {
        agent_in: Source::shared(pipes.agent_in)?,
        agent_out: Sink::shared(pipes.agent_out)?,
        server_in: Sink::shared(pipes.server_in)?,
        server_out: Source::shared(pipes.server_out)?,
    };
    // Whoever started the client talks to the server.
    let parent = keeper.processes().parent(client);
    let origin = parent
        .and_then(|parent| keeper.processes().origin(parent))
        .or_else(|| keeper.processes().origin(client))
        .ok_or_else(gone)?;
    let session = Session {
        arbiter: keeper.arbiter().clone(),
        origin,
        inside: Some(client),
        server: kept_line(&offer.argv, &**keeper.arbiter()),
        limits: keeper.settings().stdio.clone(),
    };
    Ok((client, ends, session))
}
