//! What the kernel reports, typed. Pure: bytes in, events out.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use acrfence_common::{
    Channel, ConnectEvent, Endpoint, EventHeader, EventKind, ExecFlags, ExecHead, ExitEvent,
    ForkEvent, NO_AGENT, PATH_ROOM, Primitive, RestoreEvent, Treatment, WriteEvent,
};

use super::proc::split_texts;
use crate::words::{ExitStatus, ProcessIdentity, Timestamp};

/// Something that happened in the kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeEvent {
    /// When.
    pub at: Timestamp,
    /// The process it is about.
    pub process: ProcessIdentity,
    /// The agent it belongs to; none for a process outside every agent (only [`What::Restoring`]).
    /// [`acrfence_common::RESTORED`] as long as the daemon has not adopted it.
    pub agent: Option<u32>,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The process was born.
    Born {
        /// The process that made it.
        parent: ProcessIdentity,
    },
    /// It started a program.
    Executed(Box<Execution>),
    /// It ended.
    Exited {
        /// How.
        status: ExitStatus,
    },
    /// It connected, or sent a datagram, without being redirected.
    Connected {
        /// Where to.
        peer: SocketAddr,
        /// `IPPROTO_…`
        protocol: u32,
        /// Whether it was let through, and why.
        treatment: Treatment,
    },
    /// It wrote across a boundary that is not fenced.
    Wrote(Box<Write>),
    /// It used a restore primitive.
    Restoring {
        /// Which.
        primitive: Primitive,
        /// The pid asked for, the `PR_SET_MM_…` field, the repair mode, the agent that was, or the pid
        /// that is seized.
        argument: u64,
    },
}

/// A program start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Execution {
    /// The name it was started by.
    pub filename: String,
    /// Its arguments.
    pub argv: Vec<String>,
    /// Whether `argv` is only the beginning.
    pub argv_truncated: bool,
    /// Variables that are allow-listed.
    pub env: BTreeMap<String, String>,
    /// Whether allow-listed variables may be missing from `env`.
    pub env_truncated: bool,
    /// Real user id.
    pub uid: u32,
    /// Real group id.
    pub gid: u32,
    /// Number of its cgroup in the cgroup2 hierarchy.
    pub cgroup_id: u64,
    /// Path of its cgroup; none when it is not known.
    pub cgroup: Option<String>,
    /// Where it was started; none when that could not be told.
    pub cwd: Option<String>,
    /// Its executable (for a script its interpreter); none when that could not be told.
    pub exe: Option<String>,
    /// Inode number of its network namespace; none when that could not be read.
    pub netns: Option<u64>,
}

/// A write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// To what.
    pub channel: Channel,
    /// The descriptor.
    pub fd: i32,
    /// Inode number of the pipe or socket.
    pub inode: u64,
    /// The other end of an internet socket, where it is known.
    pub peer: Option<SocketAddr>,
    /// Name of the other end of a unix socket (`@…` for an abstract one).
    pub path: Option<String>,
    /// Bytes of this call, as asked for.
    pub length: u64,
    /// First bytes of this call, at most 256.
    pub data: Vec<u8>,
    /// Calls on this channel so far.
    pub calls: u64,
    /// Bytes on this channel so far.
    pub bytes: u64,
}

/// Reads records of the ring buffer.
#[derive(Clone, Debug)]
pub struct Decoder {
    /// Names of the variables that are kept. A name that ends in `*` stands for all that start so.
    pub env_allow: Vec<String>,
}

impl Decoder {
    /// Reads one record; none when it is not one (of this version). `boot` is the wall clock minus
    /// the time since boot, in nanoseconds.
    pub fn decode(&self, record: &[u8], boot: u64) -> Option<ProbeEvent> {
        let header: EventHeader = start_of(record)?;
        let kind = header.kind;
        let is = |wanted: EventKind| kind == wanted as u32;
        let what = if is(EventKind::Fork) {
            let fork: ForkEvent = start_of(record)?;
            What::Born {
                parent: ProcessIdentity {
                    tgid: fork.parent,
                    start_ns: fork.parent_start_ns,
                },
            }
        } else if is(EventKind::SmallExec) {
            What::Executed(Box::new(self.execution(record, 1024, 4096)?))
        } else if is(EventKind::LargeExec) {
            What::Executed(Box::new(self.execution(record, 8192, 32768)?))
        } else if is(EventKind::Exit) {
            let exit: ExitEvent = start_of(record)?;
            What::Exited {
                status: ExitStatus::from_wait(exit.status),
            }
        } else if is(EventKind::Connect) {
            let connect: ConnectEvent = start_of(record)?;
            What::Connected {
                peer: socket_addr(&connect.peer),
                protocol: connect.protocol,
                treatment: Treatment::from_number(connect.treatment)?,
            }
        } else if is(EventKind::Write) {
            What::Wrote(Box::new(write(&start_of(record)?)?))
        } else if is(EventKind::Restore) {
            let restore: RestoreEvent = start_of(record)?;
            What::Restoring {
                primitive: Primitive::from_number(restore.primitive)?,
                argument: restore.argument,
            }
        } else {
            return None;
        };
        Some(ProbeEvent {
            at: Timestamp(header.at_ns.saturating_add(boot)),
            process: ProcessIdentity {
                tgid: header.tgid,
                start_ns: header.start_ns,
            },
            agent: (header.agent != NO_AGENT).then_some(header.agent),
            what,
        })
    }

    /// Keeps what is allow-listed of an environment area.
    pub fn environment(&self, area: &[u8]) -> BTreeMap<String, String> {
        area.split(|&b| b == 0)
            .filter_map(|variable| {
                let cut = variable.iter().position(|&b| b == b'=')?;
                let name = std::str::from_utf8(variable.get(..cut)?).ok()?;
                if !self.allows(name) {
                    return None;
                }
                let value = String::from_utf8_lossy(variable.get(cut + 1..)?).into_owned();
                Some((name.to_owned(), value))
            })
            .collect()
    }

    fn allows(&self, name: &str) -> bool {
        self.env_allow
            .iter()
            .any(|allowed| match allowed.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == allowed,
            })
    }

    fn execution(&self, record: &[u8], args_room: usize, env_room: usize) -> Option<Execution> {
        let head: ExecHead = start_of(record)?;
        let filename_at = size_of::<ExecHead>();
        let cwd_at = filename_at + 256;
        let exe_at = cwd_at + PATH_ROOM;
        let args_at = exe_at + PATH_ROOM;
        let env_at = args_at + args_room;
        let part =
            |at: usize, kept: u32, room: usize| record.get(at..at + (kept as usize).min(room));
        let args = part(args_at, head.args_kept, args_room)?;
        let env = part(env_at, head.env_kept, env_room)?;
        // The last variable of an area that was cut is cut as well: leave it out.
        let env_truncated = head.env_kept < head.env_len;
        let whole = if env_truncated {
            let end = env.iter().rposition(|&b| b == 0).unwrap_or(0);
            env.get(..end)?
        } else {
            env
        };
        let filename = part(filename_at, head.filename_kept, 256)?;
        let place = |at, kept, unreadable, gone| {
            let names = part(at, kept, PATH_ROOM)?;
            let has = |flag| head.flags & flag != 0;
            Some((!has(unreadable)).then(|| path_of(names, has(gone))))
        };
        let cwd = place(
            cwd_at,
            head.cwd_kept,
            ExecFlags::CWD_UNREADABLE,
            ExecFlags::CWD_GONE,
        )?;
        let exe = place(
            exe_at,
            head.exe_kept,
            ExecFlags::EXE_UNREADABLE,
            ExecFlags::EXE_GONE,
        )?;
        Some(Execution {
            filename: String::from_utf8_lossy(filename).into_owned(),
            argv: split_texts(args),
            argv_truncated: head.args_kept < head.args_len,
            env: self.environment(whole),
            env_truncated: env_truncated || head.flags & ExecFlags::ENV_UNREADABLE != 0,
            uid: head.uid,
            gid: head.gid,
            cgroup_id: head.cgroup,
            cgroup: None,
            cwd,
            exe,
            netns: (head.netns != 0).then_some(u64::from(head.netns)),
        })
    }
}

/// An address as the kernel programs keep it.
pub fn socket_addr(endpoint: &Endpoint) -> SocketAddr {
    let ip = Ipv6Addr::from(endpoint.addr);
    let ip = match ip.to_ipv4_mapped() {
        Some(v4) => IpAddr::V4(v4),
        None => IpAddr::V6(ip),
    };
    SocketAddr::new(ip, endpoint.port)
}

/// The form in which the kernel programs keep an address.
pub fn endpoint(addr: SocketAddr) -> Endpoint {
    let ip = match addr.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    Endpoint {
        addr: ip.octets(),
        port: addr.port(),
        zero: 0,
    }
}

fn write(event: &WriteEvent) -> Option<Write> {
    let data = event.data.get(..event.data_kept as usize)?;
    let name = event.path.get(..event.path_kept as usize)?;
    Some(Write {
        channel: Channel::from_number(event.channel)?,
        fd: event.fd,
        inode: event.inode,
        peer: (event.peer.port != 0).then(|| socket_addr(&event.peer)),
        path: unix_name(name),
        length: event.length,
        data: data.to_vec(),
        calls: event.calls,
        bytes: event.bytes,
    })
}

/// The path of names that are listed from the last to the first; one that is gone is named as `/proc`
/// names it.
fn path_of(names: &[u8], gone: bool) -> String {
    let names = names.strip_suffix(&[0]).unwrap_or(names);
    let mut path = String::new();
    for name in names.split(|&b| b == 0).rev() {
        path.push('/');
        path.push_str(&String::from_utf8_lossy(name));
    }
    if gone {
        path.push_str(" (deleted)");
    }
    path
}

fn unix_name(name: &[u8]) -> Option<String> {
    match name.split_first() {
        None => None,
        Some((0, rest)) => Some(format!("@{}", String::from_utf8_lossy(rest))),
        Some(_) => {
            let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
            Some(String::from_utf8_lossy(name.get(..end)?).into_owned())
        }
    }
}

/// Reads a `T` from the start of a record.
pub(super) fn start_of<T: aya::Pod>(record: &[u8]) -> Option<T> {
    let bytes = record.get(..size_of::<T>())?;
    // SAFETY: `Pod` types are valid for every bit pattern, and there are enough bytes.
    Some(unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use acrfence_common::SmallExec;
    use proptest::prelude::*;

    use super::*;

    fn decoder() -> Decoder {
        Decoder {
            env_allow: vec!["HOME".into(), "LC_*".into()],
        }
    }

    fn bytes_of<T: aya::Pod>(value: &T) -> Vec<u8> {
        // SAFETY: plain bytes without padding.
        unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
            .to_vec()
    }

    fn exec(args: &[u8], env: &[u8], env_len: u32) -> Vec<u8> {
        let mut record = SmallExec {
            head: ExecHead {
                header: EventHeader {
                    kind: EventKind::SmallExec as u32,
                    agent: 3,
                    tgid: 7,
                    tid: 7,
                    start_ns: 11,
                    at_ns: 13,
                },
                args_len: args.len() as u32,
                args_kept: args.len() as u32,
                env_len,
                env_kept: env.len() as u32,
                filename_kept: 7,
                uid: 1000,
                ..ExecHead::default()
            },
            filename: [0; 256],
            cwd: [0; PATH_ROOM],
            exe: [0; PATH_ROOM],
            args: [0; 1024],
            env: [0; 4096],
        };
        record.filename[..7].copy_from_slice(b"/bin/sh");
        record.args[..args.len()].copy_from_slice(args);
        record.env[..env.len()].copy_from_slice(env);
        bytes_of(&record)
    }

    fn executed(record: &[u8]) -> Execution {
        match decoder().decode(record, 1000).unwrap().what {
            What::Executed(execution) => *execution,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_allow_listed_variables_are_kept() {
        let env = b"HOME=/root\0AWS_SECRET_ACCESS_KEY=hush\0LC_ALL=C\0HOMER=x\0=odd\0";
        let execution = executed(&exec(b"sh\0-c\0\0", env, env.len() as u32));
        assert_eq!(execution.argv, ["sh", "-c", ""]);
        assert_eq!(execution.filename, "/bin/sh");
        let names: Vec<_> = execution.env.keys().map(String::as_str).collect();
        assert_eq!(names, ["HOME", "LC_ALL"]);
        assert!(!execution.env_truncated && !execution.argv_truncated);
        assert!(!format!("{execution:?}").contains("hush"));
    }

    #[test]
    fn a_path_is_put_together_from_its_last_name_to_its_first() {
        assert_eq!(path_of(b"", false), "/");
        assert_eq!(path_of(b"etc\0", false), "/etc");
        assert_eq!(path_of(b"work\0of\0srv\0", false), "/srv/of/work");
        assert_eq!(path_of(b"x\0tmp\0", true), "/tmp/x (deleted)");
    }

    #[test]
    fn what_was_not_written_down_of_a_place_is_not_told() {
        let mut record = exec(b"sh\0", b"", 0);
        let execution = executed(&record);
        assert_eq!(execution.cwd.as_deref(), Some("/"));
        let flags = std::mem::offset_of!(ExecHead, flags);
        record[flags] = (ExecFlags::CWD_UNREADABLE | ExecFlags::EXE_GONE) as u8;
        let execution = executed(&record);
        assert_eq!(execution.cwd, None);
        assert_eq!(execution.exe.as_deref(), Some("/ (deleted)"));
        assert_eq!(execution.netns, None);
    }

    #[test]
    fn a_cut_environment_is_said_to_be_cut_and_loses_its_last_variable() {
        let env = b"HOME=/root\0LC_ALL=en_U";
        let execution = executed(&exec(b"sh\0", env, 9000));
        assert!(execution.env_truncated);
        assert_eq!(execution.env.len(), 1);
    }

    #[test]
    fn addresses_survive_both_ways() {
        for text in ["10.99.99.99:443", "[2001:db8::1]:80", "[::1]:65535"] {
            let addr: SocketAddr = text.parse().unwrap();
            assert_eq!(socket_addr(&endpoint(addr)), addr);
        }
    }

    #[test]
    fn wait_statuses() {
        assert_eq!(ExitStatus::from_wait(3 << 8), ExitStatus::Code(3));
        assert_eq!(ExitStatus::from_wait(9), ExitStatus::Signal(9));
        assert_eq!(ExitStatus::from_wait(11 | 0x80), ExitStatus::Signal(11));
    }

    proptest! {
        #[test]
        fn no_record_makes_it_panic(
            kind in 0u32..10,
            mut rest in proptest::collection::vec(any::<u8>(), 0..6000),
        ) {
            let mut record = kind.to_ne_bytes().to_vec();
            record.append(&mut rest);
            let _ = decoder().decode(&record, 0);
        }
    }
}
