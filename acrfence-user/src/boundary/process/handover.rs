//! How `acrfence mcp -- SERVER` gives its pipes to the daemon: one packet with four descriptors on
//! a unix socket, an answer, and the connection stays for as long as the relay runs.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, recvmsg, sendmsg, socket,
};
use serde::{Deserialize, Serialize};

/// What a client offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Which version of this; 1.
    pub version: u32,
    /// The server's command line.
    pub argv: Vec<String>,
}

/// What the daemon says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// The pipes are taken over: start the server.
    Taken,
    /// They are not, for this reason.
    Refused(String),
    /// The relay has ended as relays do. A connection that closes without this means that the
    /// daemon died.
    Ended,
}

/// The descriptors that go with an offer, in this order.
#[derive(Debug)]
pub struct Pipes {
    /// To read what the agent says.
    pub agent_in: OwnedFd,
    /// To say something to the agent.
    pub agent_out: OwnedFd,
    /// To say something to the server.
    pub server_in: OwnedFd,
    /// To read what the server says.
    pub server_out: OwnedFd,
}

/// The longest packet.
const LONGEST: usize = 64 << 10;

/// A connection, from either side.
#[derive(Debug)]
pub struct Line(OwnedFd);

impl Line {
    /// Connects to the daemon.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let fd = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self(fd))
    }

    /// A connection that was accepted.
    pub fn accepted(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Its descriptor, to be polled.
    pub fn fd(&self) -> &OwnedFd {
        &self.0
    }

    /// Offers pipes.
    pub fn offer(&self, offer: &Offer, pipes: [BorrowedFd<'_>; 4]) -> io::Result<()> {
        let bytes = serde_json::to_vec(offer)?;
        if bytes.len() > LONGEST {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the server's command line is too long",
            ));
        }
        let fds = pipes.map(|fd| fd.as_raw_fd());
        sendmsg::<()>(
            self.0.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[ControlMessage::ScmRights(&fds)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        )?;
        Ok(())
    }

    /// Takes an offer.
    pub fn offered(&self) -> io::Result<(Offer, Pipes)> {
        let invalid = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let (bytes, fds) = self.receive()?;
        let offer: Offer = serde_json::from_slice(&bytes)
            .map_err(|error| invalid(&format!("that is no offer: {error}")))?;
        if offer.version != 1 {
            return Err(invalid("the offer is of another version of acrfence"));
        }
        let [agent_in, agent_out, server_in, server_out] =
            <[OwnedFd; 4]>::try_from(fds).map_err(|_| invalid("an offer comes with four pipes"))?;
        Ok((
            offer,
            Pipes {
                agent_in,
                agent_out,
                server_in,
                server_out,
            },
        ))
    }

    /// Says something to the client.
    pub fn say(&self, answer: &Answer) -> io::Result<()> {
        let bytes = serde_json::to_vec(answer)?;
        let flags = MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT;
        sendmsg::<()>(
            self.0.as_raw_fd(),
            &[IoSlice::new(&bytes)],
            &[],
            flags,
            None,
        )?;
        Ok(())
    }

    /// Waits for what the daemon says; none when the connection has ended.
    pub fn hear(&self) -> io::Result<Option<Answer>> {
        let (bytes, _) = self.receive()?;
        if bytes.is_empty() {
            return Ok(None);
        }
        serde_json::from_slice(&bytes).map(Some).map_err(Into::into)
    }

    fn receive(&self) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
        let mut bytes = vec![0; LONGEST];
        let mut room = nix::cmsg_space!([RawFd; 8]);
        let (length, fds, whole) = {
            let mut parts = [IoSliceMut::new(&mut bytes)];
            let message = recvmsg::<()>(
                self.0.as_raw_fd(),
                &mut parts,
                Some(&mut room),
                MsgFlags::MSG_CMSG_CLOEXEC,
            )?;
            let mut fds = Vec::new();
            for control in message.cmsgs()? {
                if let ControlMessageOwned::ScmRights(received) = control {
                    for fd in received {
                        // SAFETY: the kernel has just made it for us.
                        fds.push(unsafe { OwnedFd::from_raw_fd(fd) });
                    }
                }
            }
            let cut = MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC;
            (message.bytes, fds, !message.flags.intersects(cut))
        };
        if !whole {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the packet is too long",
            ));
        }
        bytes.truncate(length);
        Ok((bytes, fds))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use nix::sys::socket::socketpair;

    use super::*;

    fn pair() -> (Line, Line) {
        let (one, other) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        (Line(one), Line(other))
    }

    #[test]
    fn an_offer_arrives_with_its_pipes() {
        let (client, daemon) = pair();
        let (read, write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        let offer = Offer {
            version: 1,
            argv: vec!["npx".to_owned(), "bank".to_owned()],
        };
        let fds = [read.as_fd(), write.as_fd(), write.as_fd(), read.as_fd()];
        client.offer(&offer, fds).unwrap();
        let (got, pipes) = daemon.offered().unwrap();
        assert_eq!(got, offer);
        drop((read, write));
        std::fs::File::from(pipes.agent_out)
            .write_all(b"x")
            .unwrap();
        daemon.say(&Answer::Refused("no".to_owned())).unwrap();
        assert_eq!(
            client.hear().unwrap(),
            Some(Answer::Refused("no".to_owned()))
        );
        drop(daemon);
        assert_eq!(client.hear().unwrap(), None);
    }

    #[test]
    fn what_is_no_offer_is_refused() {
        let (client, daemon) = pair();
        let (read, _write) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).unwrap();
        for (text, count) in [
            (&br#"{"version":2,"argv":[]}"#[..], 4),
            (br#"{"version":1,"argv":[]}"#, 3),
            (br#"{"version":1,"argv":[]}"#, 9),
            (b"garbage", 4),
        ] {
            let fds = vec![read.as_raw_fd(); count];
            sendmsg::<()>(
                client.0.as_raw_fd(),
                &[IoSlice::new(text)],
                &[ControlMessage::ScmRights(&fds)],
                MsgFlags::empty(),
                None,
            )
            .unwrap();
            assert!(daemon.offered().is_err(), "{count}");
        }
    }
}
