//! What crosses a boundary that is not fenced: writes of tracked processes to pipes, unix sockets
//! and internet sockets that are not redirected.
//!
//! Every call adds to the totals of its channel (process and pipe or socket). The first call on a
//! channel, and the first after a quiet time (`Config::resample_ns`), is reported with its first
//! bytes. Files, terminals and redirected connections are not looked at. Not seen: writes through
//! io_uring, and through shared memory.

use core::ffi::c_void;

use acrfence_common::{
    Captures, Channel, DropReason, EXEMPT, Endpoint, EventKind, Sort, Tracked, Traffic, TrafficKey,
    WriteEvent,
};
use aya_ebpf::macros::tracepoint;
use aya_ebpf::programs::TracePointContext;

use crate::account;
use crate::connect::mapped;
use crate::kernel::{self, pointer, read, read_user};
use crate::maps::{EVENTS, LOUDLY, SOCKETS, TRAFFIC, config, offset};

/// `write(fd, buf, count)`
#[tracepoint(category = "syscalls", name = "sys_enter_write")]
pub fn sys_write(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Plain)
}

/// `writev(fd, iov, count)`
#[tracepoint(category = "syscalls", name = "sys_enter_writev")]
pub fn sys_writev(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Vector)
}

/// `sendto(fd, buf, len, flags, addr, addrlen)`
#[tracepoint(category = "syscalls", name = "sys_enter_sendto")]
pub fn sys_sendto(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Sendto)
}

/// `sendmsg(fd, msg, flags)`
#[tracepoint(category = "syscalls", name = "sys_enter_sendmsg")]
pub fn sys_sendmsg(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Message)
}

/// `sendmmsg(fd, vec, count, flags)`: its first message stands for all.
#[tracepoint(category = "syscalls", name = "sys_enter_sendmmsg")]
pub fn sys_sendmmsg(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Message)
}

/// `sendfile(out, in, offset, count)`: only the length is known.
#[tracepoint(category = "syscalls", name = "sys_enter_sendfile64")]
pub fn sys_sendfile(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Sendfile)
}

/// `splice(in, off_in, out, off_out, len, flags)`: only the length is known.
#[tracepoint(category = "syscalls", name = "sys_enter_splice")]
pub fn sys_splice(ctx: TracePointContext) -> u32 {
    observe(&ctx, Shape::Splice)
}

/// How a call says what to write.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Plain,
    Vector,
    Sendto,
    Message,
    Sendfile,
    Splice,
}

/// Where the bytes of a call are, and where they go if the call says so.
struct Payload {
    length: u64,
    first: u64,
    first_len: u64,
    name: u64,
    name_len: u64,
}

/// `struct iovec`
#[repr(C)]
#[derive(Clone, Copy)]
struct IoVector {
    base: u64,
    len: u64,
}

/// `struct user_msghdr`
#[repr(C)]
#[derive(Clone, Copy)]
struct Message {
    name: u64,
    name_len: u32,
    pad: u32,
    vectors: u64,
    count: u64,
}

/// What a descriptor stands for.
struct Target {
    channel: Channel,
    inode: u64,
    /// `struct sock *`, null for a pipe.
    sock: *const c_void,
    family: u16,
}

#[inline(always)]
fn observe(ctx: &TracePointContext, shape: Shape) -> u32 {
    let Some(mine) = kernel::tracked() else {
        return 0;
    };
    let Some(config) = config() else {
        return 0;
    };
    if mine.agent == EXEMPT || config.captures == 0 {
        return 0;
    }
    let fd = match shape {
        Shape::Splice => argument(ctx, 2),
        _ => argument(ctx, 0),
    } as i32;
    let Some(target) = target(fd, config.captures) else {
        return 0;
    };
    account::seen(Sort::Write);
    let payload = payload(ctx, shape);
    account(&mine, fd, &target, &payload, config.resample_ns);
    0
}

#[inline(always)]
fn account(mine: &Tracked, fd: i32, target: &Target, payload: &Payload, resample_ns: u64) {
    let now = kernel::now();
    let key = TrafficKey {
        inode: target.inode,
        tgid: kernel::current_tgid(),
        channel: target.channel as u32,
    };
    let (calls, bytes);
    match TRAFFIC.get_ptr_mut(key) {
        // SAFETY (all of this arm): the pointer comes from a map look-up.
        Some(traffic) if unsafe { (*traffic).start_ns } == mine.start_ns => unsafe {
            account::add(&raw mut (*traffic).calls);
            account::add_many(&raw mut (*traffic).bytes, payload.length);
            if now.wrapping_sub((*traffic).sampled_ns) < resample_ns {
                account::aggregated(Sort::Write);
                return;
            }
            (*traffic).sampled_ns = now;
            (*traffic).fd = fd;
            calls = (*traffic).calls;
            bytes = (*traffic).bytes;
        },
        _ => {
            let traffic = Traffic {
                bytes: payload.length,
                calls: 1,
                sampled_ns: now,
                start_ns: mine.start_ns,
                agent: mine.agent,
                fd,
            };
            if TRAFFIC.insert(key, traffic, 0).is_err() {
                account::dropped(Sort::Write, DropReason::MapFull, mine.agent);
                return;
            }
            calls = 1;
            bytes = payload.length;
        }
    }
    let Some(mut entry) = EVENTS.reserve::<WriteEvent>(0) else {
        account::dropped(Sort::Write, DropReason::RingFull, mine.agent);
        return;
    };
    let record = entry.as_mut_ptr();
    // SAFETY: the reservation holds a whole record; only the parts said to be filled are read.
    unsafe {
        (&raw mut (*record).header).write(kernel::header(EventKind::Write, Some(mine)));
        (*record).inode = target.inode;
        (*record).length = payload.length;
        (*record).calls = calls;
        (*record).bytes = bytes;
        (*record).fd = fd;
        (*record).channel = target.channel as u32;
        (&raw mut (*record).peer).write(peer(target, payload));
        (*record).path_kept = path(target, payload, &raw mut (*record).path);
        (*record).data_kept =
            read_user(&raw mut (*record).data, payload.first, payload.first_len).unwrap_or(0);
        (*record).zero = 0;
    }
    entry.submit(LOUDLY);
    account::submitted(Sort::Write);
}

/// What `fd` of the running process stands for; none when it is of no interest.
#[inline(always)]
fn target(fd: i32, captures: u32) -> Option<Target> {
    const S_IFMT: u16 = 0o170_000;
    const S_IFIFO: u16 = 0o010_000;
    const S_IFSOCK: u16 = 0o140_000;

    let files = pointer(kernel::current_task(), offset!(task_files))?;
    let table = pointer(files, offset!(files_fdt))?;
    if fd < 0 || fd as u32 >= read::<u32>(table, offset!(fdtable_max_fds))? {
        return None;
    }
    let slots = pointer(table, offset!(fdtable_fd))?;
    let file = pointer(slots, fd as usize * size_of::<usize>())?;
    let inode = pointer(file, offset!(file_inode))?;
    let format = read::<u16>(inode, offset!(inode_mode))? & S_IFMT;
    if format == S_IFIFO {
        return (captures & Captures::PIPE != 0).then_some(Target {
            channel: Channel::Pipe,
            inode: read(inode, offset!(inode_ino))?,
            sock: core::ptr::null(),
            family: 0,
        });
    }
    if format != S_IFSOCK {
        return None;
    }
    let socket = pointer(file, offset!(file_private_data))?;
    let sock = pointer(socket, offset!(socket_sk))?;
    let family: u16 = read(sock, offset!(sock_family))?;
    let channel = match family {
        AF_UNIX if captures & Captures::UNIX != 0 => Channel::Unix,
        AF_INET | AF_INET6 if captures & Captures::INET != 0 => {
            let cookie: u64 = read(sock, offset!(sock_cookie))?;
            if cookie != 0 && SOCKETS.get_ptr(cookie).is_some() {
                return None;
            }
            match read::<u16>(sock, offset!(sock_protocol))? {
                6 | 262 => Channel::Tcp,
                17 => Channel::Udp,
                _ => Channel::Inet,
            }
        }
        _ => return None,
    };
    Some(Target {
        channel,
        inode: read(inode, offset!(inode_ino))?,
        sock,
        family,
    })
}

const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

#[inline(always)]
fn payload(ctx: &TracePointContext, shape: Shape) -> Payload {
    let mut payload = Payload {
        length: 0,
        first: 0,
        first_len: 0,
        name: 0,
        name_len: 0,
    };
    match shape {
        Shape::Plain | Shape::Sendto => {
            payload.first = argument(ctx, 1);
            payload.first_len = argument(ctx, 2);
            payload.length = payload.first_len;
            if shape == Shape::Sendto {
                payload.name = argument(ctx, 4);
                payload.name_len = argument(ctx, 5);
            }
        }
        Shape::Vector => vectors(&mut payload, argument(ctx, 1), argument(ctx, 2)),
        Shape::Message => {
            if let Some(message) = user::<Message>(argument(ctx, 1)) {
                payload.name = message.name;
                payload.name_len = u64::from(message.name_len);
                vectors(&mut payload, message.vectors, message.count);
            }
        }
        Shape::Sendfile => payload.length = argument(ctx, 3),
        Shape::Splice => payload.length = argument(ctx, 4),
    }
    payload
}

/// Sums up a vector of buffers. Beyond [`MOST_VECTORS`] buffers the length falls short.
#[inline(always)]
fn vectors(payload: &mut Payload, from: u64, count: u64) {
    let mut vectors = [IoVector { base: 0, len: 0 }; MOST_VECTORS];
    let kept = if count < MOST_VECTORS as u64 {
        count as usize
    } else {
        MOST_VECTORS
    };
    let bytes: *mut [u8; MOST_VECTORS * size_of::<IoVector>()] = (&raw mut vectors).cast();
    if read_user(bytes, from, (kept * size_of::<IoVector>()) as u64).is_none() {
        return;
    }
    for vector in vectors {
        if payload.first_len == 0 {
            payload.first = vector.base;
            payload.first_len = vector.len;
        }
        payload.length = payload.length.wrapping_add(vector.len);
    }
}

const MOST_VECTORS: usize = 8;

/// The other end of an internet socket.
#[inline(always)]
fn peer(target: &Target, payload: &Payload) -> Endpoint {
    let mut peer = Endpoint {
        addr: [0; 16],
        port: 0,
        zero: 0,
    };
    if target.family != AF_INET && target.family != AF_INET6 {
        return peer;
    }
    if payload.name != 0 && payload.name_len >= 16 {
        // `sockaddr_in` and the start of `sockaddr_in6`
        let Some((family, port, ip4)) = user::<(u16, u16, u32)>(payload.name)
            .map(|(family, port, ip4)| (family, u16::from_be(port), ip4))
        else {
            return peer;
        };
        peer.port = port;
        peer.addr = match family {
            AF_INET6 => user::<[u8; 16]>(payload.name + 8).unwrap_or([0; 16]),
            _ => mapped(ip4),
        };
        return peer;
    }
    peer.port = u16::from_be(read(target.sock, offset!(sock_dport)).unwrap_or(0));
    if peer.port != 0 {
        peer.addr = if target.family == AF_INET {
            mapped(read(target.sock, offset!(sock_daddr)).unwrap_or(0))
        } else {
            read(target.sock, offset!(sock_v6_daddr)).unwrap_or([0; 16])
        };
    }
    peer
}

/// The name of the other end of a unix socket; gives its length.
#[inline(always)]
fn path(target: &Target, payload: &Payload, to: *mut [u8; 128]) -> u32 {
    if target.family != AF_UNIX {
        return 0;
    }
    // Both kinds of address start with the family.
    if payload.name != 0 && payload.name_len > 2 {
        return read_user(to, payload.name + 2, payload.name_len - 2).unwrap_or(0);
    }
    kernel_path(target.sock, to).unwrap_or(0)
}

#[inline(always)]
fn kernel_path(sock: *const c_void, to: *mut [u8; 128]) -> Option<u32> {
    let other = pointer(sock, offset!(unix_peer))?;
    let address = pointer(other, offset!(unix_addr))?;
    let length = read::<i32>(address, offset!(unix_address_len))?;
    if !(3..=126).contains(&length) {
        return None;
    }
    let name = offset!(unix_address_name) + 2;
    // The name is at most 108 bytes long and lives in an allocation that holds all of it, but may
    // end before 128: read what is there.
    let length = length as u32 - 2;
    // SAFETY: the helper checks the address; the destination holds 128 bytes.
    let result = unsafe {
        aya_ebpf::helpers::generated::bpf_probe_read_kernel(
            to.cast(),
            length & 127,
            address.cast::<u8>().wrapping_add(name).cast(),
        )
    };
    (result == 0).then_some(length & 127)
}

/// Reads a `T` from the running process's memory.
#[inline(always)]
fn user<T: Copy>(from: u64) -> Option<T> {
    // SAFETY: the helper checks the address; all `T` here are plain numbers.
    unsafe { aya_ebpf::helpers::bpf_probe_read_user(from as *const T) }.ok()
}

/// The `n`th argument of the system call. The tracepoint's record is: 8 bytes common to all, the
/// call's number (8 bytes), six arguments.
#[inline(always)]
fn argument(ctx: &TracePointContext, n: usize) -> u64 {
    // SAFETY: within the record.
    unsafe { ctx.read_at(16 + 8 * n) }.unwrap_or(0)
}
