//! Who is at the other end of the control socket.

use std::os::fd::AsFd;

use axum::extract::connect_info::Connected;
use axum::serve::IncomingStream;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use tokio::net::{UnixListener, UnixStream};

/// The process that connected, as the kernel says it (never as it says itself).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Process id; 0 when the kernel does not tell, which nothing that changes state accepts.
    pub pid: u32,
    /// User id.
    pub uid: u32,
}

impl Peer {
    /// The peer of a connected socket.
    pub fn of(stream: &UnixStream) -> Self {
        match getsockopt(&stream.as_fd(), PeerCredentials) {
            Ok(credentials) => Self {
                pid: u32::try_from(credentials.pid()).unwrap_or(0),
                uid: credentials.uid(),
            },
            Err(_) => Self {
                pid: 0,
                uid: u32::MAX,
            },
        }
    }

    /// Whether it is the superuser.
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}

impl Connected<IncomingStream<'_, UnixListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, UnixListener>) -> Self {
        Self::of(stream.io())
    }
}
