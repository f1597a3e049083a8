//! Sends the TCP connections of tracked processes to the daemon.
//!
//! A destination is rewritten only after the original one is stored under the socket's cookie.
//! Where that cannot be, or where there is nobody to send it to, the call is refused (`EPERM`):
//! an error, never a silent bypass. `getpeername` answers with the original destination.

use acrfence_common::{
    ConnectEvent, DropReason, EXEMPT, Endpoint, EventKind, SocketRecord, Sort, Tracked, Treatment,
};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::bpf_sock_addr;
use aya_ebpf::helpers::generated::{bpf_get_netns_cookie, bpf_get_socket_cookie};
use aya_ebpf::macros::{cgroup_sock, cgroup_sock_addr};
use aya_ebpf::programs::{SockAddrContext, SockContext};
use aya_log_ebpf::{debug, warn};

use crate::account;
use crate::kernel;
use crate::maps::{EVENTS, LISTENERS, LOUDLY, PASSES, SOCKETS, config};

/// IPv4 `connect`.
#[cgroup_sock_addr(connect4)]
pub fn tcp_connect4(ctx: SockAddrContext) -> i32 {
    let Some(mine) = kernel::tracked() else {
        return ALLOW;
    };
    let destination = destination4(&ctx);
    connect(&ctx, &mine, destination, Family::V4)
}

/// IPv6 `connect`, also to IPv4 addresses mapped into IPv6.
#[cgroup_sock_addr(connect6)]
pub fn tcp_connect6(ctx: SockAddrContext) -> i32 {
    let Some(mine) = kernel::tracked() else {
        return ALLOW;
    };
    let destination = destination6(&ctx);
    let family = if is_mapped(&destination.addr) {
        Family::Mapped
    } else {
        Family::V6
    };
    connect(&ctx, &mine, destination, family)
}

/// A datagram to a named IPv4 destination.
#[cgroup_sock_addr(sendmsg4)]
pub fn udp_sendmsg4(ctx: SockAddrContext) -> i32 {
    let Some(mine) = kernel::tracked() else {
        return ALLOW;
    };
    let destination = destination4(&ctx);
    datagram(&ctx, &mine, destination)
}

/// A datagram to a named IPv6 destination.
#[cgroup_sock_addr(sendmsg6)]
pub fn udp_sendmsg6(ctx: SockAddrContext) -> i32 {
    let Some(mine) = kernel::tracked() else {
        return ALLOW;
    };
    let destination = destination6(&ctx);
    datagram(&ctx, &mine, destination)
}

/// `getpeername` on an IPv4 socket.
#[cgroup_sock_addr(getpeername4)]
pub fn tcp_getpeername4(ctx: SockAddrContext) -> i32 {
    if let Some(original) = original(&ctx) {
        let [.., a, b, c, d] = original.addr;
        // SAFETY: the context is valid, and the verifier allows these fields to be written.
        unsafe {
            (&raw mut (*ctx.sock_addr).user_ip4).write_volatile(u32::from_ne_bytes([a, b, c, d]));
            (&raw mut (*ctx.sock_addr).user_port).write_volatile(u32::from(original.port.to_be()));
        }
    }
    ALLOW
}

/// `getpeername` on an IPv6 socket.
#[cgroup_sock_addr(getpeername6)]
pub fn tcp_getpeername6(ctx: SockAddrContext) -> i32 {
    if let Some(original) = original(&ctx) {
        set_destination6(ctx.sock_addr, words(&original.addr), original.port);
    }
    ALLOW
}

/// A socket is closed that never got as far as sending anything.
#[cgroup_sock(sock_release)]
pub fn sock_release(ctx: SockContext) -> i32 {
    // SAFETY: the context is valid.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // SAFETY: values are plain bytes.
    if let Some(record) = unsafe { SOCKETS.get(cookie) }
        && record.local.port == 0
    {
        let _ = SOCKETS.remove(cookie);
    }
    ALLOW
}

/// An IPv4 address (network order) mapped into IPv6.
#[inline(always)]
pub fn mapped(ip4: u32) -> [u8; 16] {
    let [a, b, c, d] = ip4.to_ne_bytes();
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// An IPv6 address from its words (network order).
#[inline(always)]
pub fn address(words: [u32; 4]) -> [u8; 16] {
    // SAFETY: same size, every bit pattern is valid.
    unsafe { core::mem::transmute(words) }
}

const ALLOW: i32 = 1;
const DENY: i32 = 0;

const SOCK_STREAM: u32 = 1;
const IPPROTO_TCP: u32 = 6;
const IPPROTO_UDP: u32 = 17;
const IPPROTO_MPTCP: u32 = 262;
const QUIC_PORT: u16 = 443;

#[derive(Clone, Copy, PartialEq)]
enum Family {
    V4,
    V6,
    /// IPv4 on an IPv6 socket.
    Mapped,
}

#[inline(always)]
fn connect(ctx: &SockAddrContext, mine: &Tracked, destination: Endpoint, family: Family) -> i32 {
    if mine.agent == EXEMPT {
        return ALLOW;
    }
    // SAFETY: the context is valid.
    let (kind, protocol) = unsafe { ((*ctx.sock_addr).type_, (*ctx.sock_addr).protocol) };
    if protocol == IPPROTO_UDP {
        return datagram(ctx, mine, destination);
    }
    if kind != SOCK_STREAM || (protocol != IPPROTO_TCP && protocol != IPPROTO_MPTCP) {
        return report(mine, &destination, protocol, Treatment::NotTcp, ALLOW);
    }
    // SAFETY: the context is valid.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(config) = config() else {
        return DENY;
    };
    if config.passes != 0 && is_passed(&destination) {
        // What an earlier, failed attempt of this socket left.
        let _ = SOCKETS.remove(cookie);
        return report(mine, &destination, protocol, Treatment::Passed, ALLOW);
    }
    if config.daemon_alive == 0 {
        if config.open_when_down == 0 {
            let refused = Treatment::RefusedDaemonDown;
            return report(mine, &destination, protocol, refused, DENY);
        }
        let _ = SOCKETS.remove(cookie);
        return report(
            mine,
            &destination,
            protocol,
            Treatment::PassedDaemonDown,
            ALLOW,
        );
    }
    // SAFETY: the context is valid.
    let netns = unsafe { bpf_get_netns_cookie(ctx.as_ptr()) };
    // SAFETY: values are plain bytes.
    let Some(&listener) = (unsafe { LISTENERS.get(netns) }) else {
        return report(
            mine,
            &destination,
            protocol,
            Treatment::RefusedNoListener,
            DENY,
        );
    };
    let port = match family {
        Family::V4 | Family::Mapped => listener.v4_port,
        Family::V6 => listener.v6_port,
    };
    if port == 0 {
        return report(
            mine,
            &destination,
            protocol,
            Treatment::RefusedNoListener,
            DENY,
        );
    }
    if (destination.port == listener.v4_port || destination.port == listener.v6_port)
        && is_this_host(&destination.addr)
    {
        return report(
            mine,
            &destination,
            protocol,
            Treatment::RefusedListener,
            DENY,
        );
    }

    account::seen(Sort::Redirect);
    let record = SocketRecord {
        start_ns: mine.start_ns,
        netns,
        tgid: kernel::current_tgid(),
        agent: mine.agent,
        original: destination,
        local: Endpoint {
            addr: [0; 16],
            port: 0,
            zero: 0,
        },
        family: if family == Family::V6 { 6 } else { 4 },
        zero: 0,
    };
    if SOCKETS.insert(cookie, record, 0).is_err() {
        account::dropped(Sort::Redirect, DropReason::MapFull, mine.agent);
        warn!(
            ctx,
            "no room to store where process {} connects to: refused", record.tgid
        );
        return report(mine, &destination, protocol, Treatment::RefusedNoRoom, DENY);
    }
    match family {
        Family::V4 => {
            let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
            // SAFETY: the context is valid, and the verifier allows these fields to be written.
            unsafe {
                (&raw mut (*ctx.sock_addr).user_ip4).write_volatile(loopback);
                (&raw mut (*ctx.sock_addr).user_port).write_volatile(u32::from(port.to_be()));
            }
        }
        Family::Mapped => {
            let loopback = u32::from_ne_bytes([127, 0, 0, 1]);
            set_destination6(ctx.sock_addr, [0, 0, 0xffff_u32.to_be(), loopback], port);
        }
        Family::V6 => set_destination6(ctx.sock_addr, [0, 0, 0, 1_u32.to_be()], port),
    }
    account::submitted(Sort::Redirect);
    debug!(ctx, "process {} redirected", record.tgid);
    ALLOW
}

/// QUIC is refused, so that the client falls back to TCP; other datagrams pass.
#[inline(always)]
fn datagram(_ctx: &SockAddrContext, mine: &Tracked, destination: Endpoint) -> i32 {
    if mine.agent == EXEMPT || destination.port != QUIC_PORT {
        return ALLOW;
    }
    report(
        mine,
        &destination,
        IPPROTO_UDP,
        Treatment::RefusedQuic,
        DENY,
    )
}

/// Tells user space what became of a call that was not redirected.
#[inline(always)]
fn report(
    mine: &Tracked,
    peer: &Endpoint,
    protocol: u32,
    treatment: Treatment,
    verdict: i32,
) -> i32 {
    account::seen(Sort::Connect);
    let Some(mut entry) = EVENTS.reserve::<ConnectEvent>(0) else {
        account::dropped(Sort::Connect, DropReason::RingFull, mine.agent);
        return verdict;
    };
    entry.write(ConnectEvent {
        header: kernel::header(EventKind::Connect, Some(mine)),
        peer: *peer,
        treatment: treatment as u32,
        protocol,
        zero: 0,
    });
    entry.submit(LOUDLY);
    account::submitted(Sort::Connect);
    verdict
}

/// Whether the pass-through list names the destination, its address with any port, or its port
/// with any address.
#[inline(always)]
fn is_passed(destination: &Endpoint) -> bool {
    let any_port = Endpoint {
        port: 0,
        ..*destination
    };
    let any_address = Endpoint {
        addr: [0; 16],
        ..*destination
    };
    PASSES.get_ptr(destination).is_some()
        || PASSES.get_ptr(any_port).is_some()
        || PASSES.get_ptr(any_address).is_some()
}

/// Whether the address is where the listener is, or means "this host".
#[inline(always)]
fn is_this_host(addr: &[u8; 16]) -> bool {
    let [a, b, c, d] = words(addr);
    let v4 = a == 0 && b == 0 && c == 0xffff_u32.to_be();
    if v4 {
        return d == 0 || d == u32::from_ne_bytes([127, 0, 0, 1]);
    }
    a == 0 && b == 0 && c == 0 && (d == 0 || d == 1_u32.to_be())
}

#[inline(always)]
fn is_mapped(addr: &[u8; 16]) -> bool {
    let [a, b, c, _] = words(addr);
    a == 0 && b == 0 && c == 0xffff_u32.to_be()
}

#[inline(always)]
fn original(ctx: &SockAddrContext) -> Option<Endpoint> {
    // SAFETY: the context is valid; values are plain bytes.
    unsafe {
        let cookie = bpf_get_socket_cookie(ctx.as_ptr());
        SOCKETS.get(cookie).map(|record| record.original)
    }
}

#[inline(always)]
fn destination4(ctx: &SockAddrContext) -> Endpoint {
    // SAFETY: the context is valid.
    let (ip, port) = unsafe { ((*ctx.sock_addr).user_ip4, (*ctx.sock_addr).user_port) };
    Endpoint {
        addr: mapped(ip),
        port: u16::from_be(port as u16),
        zero: 0,
    }
}

#[inline(always)]
fn destination6(ctx: &SockAddrContext) -> Endpoint {
    let at = ctx.sock_addr;
    // SAFETY: the context is valid; the verifier wants the address word by word.
    unsafe {
        let ip = [
            (&raw const (*at).user_ip6[0]).read_volatile(),
            (&raw const (*at).user_ip6[1]).read_volatile(),
            (&raw const (*at).user_ip6[2]).read_volatile(),
            (&raw const (*at).user_ip6[3]).read_volatile(),
        ];
        Endpoint {
            addr: address(ip),
            port: u16::from_be((*at).user_port as u16),
            zero: 0,
        }
    }
}

#[inline(always)]
fn set_destination6(at: *mut bpf_sock_addr, ip: [u32; 4], port: u16) {
    // SAFETY: the context is valid; the verifier wants the address word by word.
    unsafe {
        (&raw mut (*at).user_ip6[0]).write_volatile(ip[0]);
        (&raw mut (*at).user_ip6[1]).write_volatile(ip[1]);
        (&raw mut (*at).user_ip6[2]).write_volatile(ip[2]);
        (&raw mut (*at).user_ip6[3]).write_volatile(ip[3]);
        (&raw mut (*at).user_port).write_volatile(u32::from(port.to_be()));
    }
}

#[inline(always)]
fn words(addr: &[u8; 16]) -> [u32; 4] {
    // SAFETY: same size, every bit pattern is valid.
    unsafe { core::mem::transmute(*addr) }
}
