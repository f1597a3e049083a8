//! The thread that takes processes from the kernel's queue to a gatekeeper.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::keeper::Gatekeeper;
use crate::probe::GateQueue;

/// A thread that takes processes from the kernel's queue to a gatekeeper.
#[derive(Debug)]
pub struct Serving {
    stop: Option<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// Serves the gate until the answer is dropped.
pub fn serve(mut queue: GateQueue, gatekeeper: Arc<Gatekeeper>) -> io::Result<Serving> {
    let (stopped, stop) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)?;
    let thread = std::thread::Builder::new()
        .name("gate".to_owned())
        .spawn(move || {
            loop {
                while let Some(gated) = queue.try_next() {
                    gatekeeper.take(gated);
                }
                let mut polled = [
                    PollFd::new(queue.as_fd(), PollFlags::POLLIN),
                    PollFd::new(stopped.as_fd(), PollFlags::POLLIN),
                ];
                match poll(&mut polled, PollTimeout::NONE) {
                    Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                    Err(error) => {
                        tracing::error!("the exec gate is served no more: {error}");
                        return;
                    }
                }
                if polled[1].revents().is_some_and(|found| !found.is_empty()) {
                    return;
                }
            }
        })?;
    Ok(Serving {
        stop: Some(stop),
        thread: Some(thread),
    })
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The other end is told by closing this one.
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
