//! Another network namespace: listeners that are opened inside it, and upstreams that are dialled from
//! there.
//!
//! A connection must leave from where its agent lives: what an address means there is nothing that
//! another namespace could know, and a sandbox without a network must stay without one.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::sync::Arc;

use nix::sched::{CloneFlags, setns};
use tokio::net::{TcpListener, TcpSocket};

use crate::netns;

/// A network namespace that is not the daemon's own. It lives at least as long as this.
pub struct Namespace {
    file: File,
    cookie: u64,
}

/// What was opened inside a namespace.
pub struct Opened {
    /// The namespace.
    pub namespace: Arc<Namespace>,
    /// On the loopback addresses, where the namespace has them.
    pub listeners: Vec<TcpListener>,
    /// Whether its loopback interface is up: without it no connection can be brought to a listener.
    pub loopback_is_up: bool,
    /// Whether it has another interface that is up.
    pub has_network: bool,
}

impl Namespace {
    /// The kernel's number of it.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Opens listeners inside the namespace that `file` (`/proc/PID/ns/net`) stands for.
    pub fn open(file: File) -> io::Result<Opened> {
        let opened = inside(&file, || {
            let v4 = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
            // A namespace may well have no IPv6.
            let v6 = std::net::TcpListener::bind((Ipv6Addr::LOCALHOST, 0));
            let probe = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            let cookie = netns::cookie_of(probe.as_fd())?;
            let up = interfaces_up()?;
            let mut listeners = vec![v4?];
            listeners.extend(v6);
            Ok((listeners, cookie, up))
        })?;
        let (listeners, cookie, up) = opened;
        let mut taken = Vec::new();
        for listener in listeners {
            listener.set_nonblocking(true)?;
            taken.push(TcpListener::from_std(listener)?);
        }
        Ok(Opened {
            namespace: Arc::new(Self { file, cookie }),
            listeners: taken,
            loopback_is_up: up.iter().any(|name| name == "lo"),
            has_network: up.iter().any(|name| name != "lo"),
        })
    }

    /// Connects from inside.
    pub(crate) async fn socket(self: &Arc<Self>, to: SocketAddr) -> io::Result<TcpSocket> {
        let this = self.clone();
        // A socket belongs to the namespace it was made in, whoever uses it later.
        let made = tokio::task::spawn_blocking(move || {
            inside(&this.file, || {
                if to.is_ipv4() {
                    TcpSocket::new_v4()
                } else {
                    TcpSocket::new_v6()
                }
            })
        });
        made.await.map_err(io::Error::other)?
    }
}

/// Does something on a thread of its own that has entered the namespace.
fn inside<T: Send>(namespace: &File, work: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("acrfence-netns".into())
            .spawn_scoped(scope, || {
                setns(namespace.as_fd(), CloneFlags::CLONE_NEWNET)?;
                work()
            })?;
        thread
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread in the namespace failed")))
    })
}

/// Names of the interfaces of this thread's namespace that are up.
fn interfaces_up() -> io::Result<Vec<String>> {
    let all = nix::ifaddrs::getifaddrs()?;
    let mut up: Vec<String> = all
        .filter(|one| one.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
        .map(|one| one.interface_name)
        .collect();
    up.dedup();
    Ok(up)
}
