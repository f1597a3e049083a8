//! Connections that were open before the attach: no hook sees them, so they are not fenced. They
//! are listed, and can be cut so that the agent connects anew, through the hook.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, RawFd};

use super::proc::ProcDir;
use super::{Probe, ProbeError, event, sys};
use crate::words::ProcessIdentity;

/// A connection of a tracked process that is not redirected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenConnection {
    /// The process; others may share the connection.
    pub process: ProcessIdentity,
    /// Its descriptor.
    pub fd: RawFd,
    /// Inode number of the socket.
    pub inode: u64,
    /// `tcp` or `udp`.
    pub protocol: &'static str,
    /// Its own address.
    pub local: SocketAddr,
    /// The other end.
    pub peer: SocketAddr,
}

impl Probe {
    /// Connections of an agent's processes that go past the daemon: TCP, and UDP that is connected
    /// to port 443 (QUIC). Connections that the agent accepted are among them.
    pub fn open_connections(&self, agent: u32) -> Result<Vec<OpenConnection>, ProbeError> {
        let redirected: std::collections::HashSet<SocketAddr> = self
            .maps
            .sockets
            .entries()?
            .into_values()
            .map(|record| event::socket_addr(&record.local))
            .collect();
        let mut found = vec![];
        for (process, owner) in self.tracked()? {
            if owner == agent
                && let Ok(dir) = ProcDir::of(process)
            {
                found.extend(
                    of_process(process, &dir)
                        .into_iter()
                        .filter(|open| !redirected.contains(&open.local)),
                );
            }
        }
        Ok(found)
    }

    /// Whether a TCP socket of a process was accepted from a listener of its own network namespace: what
    /// is written to it answers whoever connected. False where it cannot be told.
    pub fn is_accepted(&self, process: ProcessIdentity, inode: u64) -> bool {
        let Ok(dir) = ProcDir::of(process) else {
            return false;
        };
        let mut listening = std::collections::HashSet::new();
        let mut own = None;
        for file in ["net/tcp", "net/tcp6"] {
            let Ok(text) = dir.read(file, MOST_TABLE) else {
                continue;
            };
            for row in rows(&String::from_utf8_lossy(&text)) {
                if row.inode == inode {
                    own = Some(row.local.port());
                }
                if row.is_listener {
                    listening.insert(row.local.port());
                }
            }
        }
        own.is_some_and(|port| listening.contains(&port))
    }

    /// Ends a connection in both directions, whoever shares it: the agent reads its end and
    /// connects anew. Gives false when it is not there any more.
    pub fn cut(&self, open: &OpenConnection) -> Result<bool, ProbeError> {
        let failed = |source| ProbeError::System {
            what: format!(
                "cannot cut the connection of process {} to {}",
                open.process.tgid, open.peer
            ),
            source,
        };
        let gone = |error: &std::io::Error| {
            matches!(
                error.raw_os_error(),
                Some(libc::ESRCH | libc::EBADF | libc::ENOENT)
            )
        };
        let process = match sys::pidfd_open(open.process.tgid) {
            Ok(process) => process,
            Err(error) if gone(&error) => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        // Looked at after the handle was opened: it is the right process's.
        let Ok(dir) = ProcDir::of(open.process) else {
            return Ok(false);
        };
        if socket_inode(&dir, open.fd) != Some(open.inode) {
            return Ok(false);
        }
        let socket = match sys::pidfd_getfd(process.as_fd(), open.fd) {
            Ok(socket) => socket,
            Err(error) if gone(&error) => return Ok(false),
            Err(error) => return Err(failed(error)),
        };
        let stat = nix::sys::stat::fstat(&socket).map_err(|error| failed(error.into()))?;
        if stat.st_ino != open.inode {
            return Ok(false);
        }
        match nix::sys::socket::shutdown(socket.as_raw_fd(), nix::sys::socket::Shutdown::Both) {
            Ok(()) => Ok(true),
            Err(nix::errno::Errno::ENOTCONN) => Ok(false),
            Err(error) => Err(failed(error.into())),
        }
    }
}

fn of_process(process: ProcessIdentity, dir: &ProcDir) -> Vec<OpenConnection> {
    let Ok(fds) = std::fs::read_dir(dir.path("fd")) else {
        return vec![];
    };
    let sockets: Vec<(RawFd, u64)> = fds
        .flatten()
        .filter_map(|entry| {
            let fd = entry.file_name().to_str()?.parse().ok()?;
            Some((fd, socket_inode(dir, fd)?))
        })
        .collect();
    if sockets.is_empty() {
        return vec![];
    }
    // The process's own network namespace, which need not be ours.
    let mut table = HashMap::new();
    for (file, protocol) in [
        ("net/tcp", "tcp"),
        ("net/tcp6", "tcp"),
        ("net/udp", "udp"),
        ("net/udp6", "udp"),
    ] {
        if let Ok(text) = dir.read(file, MOST_TABLE) {
            for row in rows(&String::from_utf8_lossy(&text)) {
                table.insert(row.inode, (protocol, row));
            }
        }
    }
    sockets
        .into_iter()
        .filter_map(|(fd, inode)| {
            let (protocol, row) = table.get(&inode)?;
            let counts = match *protocol {
                "tcp" => row.is_connection,
                _ => row.peer.port() == 443,
            };
            counts.then_some(OpenConnection {
                process,
                fd,
                inode,
                protocol,
                local: row.local,
                peer: row.peer,
            })
        })
        .collect()
}

const MOST_TABLE: u64 = 64 << 20;

fn socket_inode(dir: &ProcDir, fd: RawFd) -> Option<u64> {
    let target = dir.read_link(&format!("fd/{fd}")).ok()?;
    target
        .to_str()?
        .strip_prefix("socket:[")?
        .strip_suffix(']')?
        .parse()
        .ok()
}

#[derive(Debug, PartialEq)]
struct Row {
    local: SocketAddr,
    peer: SocketAddr,
    inode: u64,
    is_connection: bool,
    is_listener: bool,
}

/// Reads `/proc/net/tcp` and its like.
fn rows(table: &str) -> Vec<Row> {
    table.lines().skip(1).filter_map(row).collect()
}

fn row(line: &str) -> Option<Row> {
    const ESTABLISHED: u8 = 1;
    const SYN_SENT: u8 = 2;
    const CLOSE_WAIT: u8 = 8;
    const LISTEN: u8 = 10;
    let fields: Vec<&str> = line.split_whitespace().collect();
    let state = u8::from_str_radix(fields.get(3)?, 16).ok()?;
    Some(Row {
        local: address(fields.get(1)?)?,
        peer: address(fields.get(2)?)?,
        inode: fields.get(9)?.parse().ok()?,
        is_connection: matches!(state, ESTABLISHED | SYN_SENT | CLOSE_WAIT),
        is_listener: state == LISTEN,
    })
}

/// Reads `0100007F:1F90`: words of the address in the machine's byte order, then the port.
fn address(field: &str) -> Option<SocketAddr> {
    let (ip, port) = field.split_once(':')?;
    let mut bytes = vec![];
    for at in (0..ip.len()).step_by(8) {
        let word = u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?;
        bytes.extend(word.to_ne_bytes());
    }
    let ip = if let Ok(v4) = <[u8; 4]>::try_from(bytes.as_slice()) {
        IpAddr::V4(Ipv4Addr::from(v4))
    } else {
        let v6 = Ipv6Addr::from(<[u8; 16]>::try_from(bytes.as_slice()).ok()?);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    #[cfg(target_endian = "little")]
    fn connections_are_read_and_listeners_are_not() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
           0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31 1 0\n\
           1: 0100007F:9C40 6363630A:01BB 01 00000000:00000000 00:00000000 00000000     0        0 32 1 0\n\
           2: 0000000000000000FFFF00000100007F:0001 00000000000000000000000001000000:0002 08 0:0 0:0 0 0 0 33 1 0\n\
           junk\n";
        let rows = rows(table);
        assert_eq!(rows.len(), 3);
        assert!(!rows[0].is_connection);
        assert_eq!(rows[1].peer, "10.99.99.99:443".parse().unwrap());
        assert!(rows[1].is_connection);
        assert_eq!(rows[2].local, "127.0.0.1:1".parse().unwrap());
        assert_eq!(rows[2].peer, "[::1]:2".parse().unwrap());
    }

    proptest! {
        #[test]
        fn no_table_makes_it_panic(text in ".{0,200}") {
            let _ = row(&text);
            let _ = address(&text);
        }
    }
}
