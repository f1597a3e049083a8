//! Tells the daemon whose connection it accepted: once a redirected socket has its own address,
//! and before the first packet leaves, that address is noted beside the original destination.

use acrfence_common::{Claim, ClientKey, DropReason, Endpoint, Sort};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::bindings::{
    BPF_EXIST, BPF_SOCK_OPS_STATE_CB, BPF_SOCK_OPS_STATE_CB_FLAG, BPF_SOCK_OPS_TCP_CONNECT_CB,
    BPF_TCP_CLOSE, BPF_TCP_CLOSING, BPF_TCP_FIN_WAIT1, BPF_TCP_FIN_WAIT2, BPF_TCP_TIME_WAIT,
};
use aya_ebpf::helpers::generated::bpf_get_socket_cookie;
use aya_ebpf::macros::sock_ops;
use aya_ebpf::programs::SockOpsContext;
use aya_log_ebpf::warn;

use crate::account;
use crate::connect::{address, mapped};
use crate::kernel;
use crate::maps::{CLIENTS, SOCKETS};

/// Events in the life of a TCP socket.
#[sock_ops]
pub fn tcp_life(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        BPF_SOCK_OPS_TCP_CONNECT_CB => begins(&ctx),
        BPF_SOCK_OPS_STATE_CB if ctx.arg(1) == BPF_TCP_CLOSE => ended(&ctx),
        _ => {}
    }
    1
}

#[inline(always)]
fn begins(ctx: &SockOpsContext) {
    // SAFETY: the context is valid.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let Some(record) = SOCKETS.get_ptr_mut(cookie) else {
        return;
    };
    account::seen(Sort::Establish);
    // SAFETY: the pointer comes from a map look-up.
    let record = unsafe { &mut *record };
    let local = Endpoint {
        addr: if record.family == 4 {
            mapped(ctx.local_ip4())
        } else {
            local6(ctx)
        },
        port: ctx.local_port() as u16,
        zero: 0,
    };
    let key = ClientKey {
        netns: record.netns,
        local,
        zero: 0,
    };
    let claim = Claim {
        cookie,
        start_ns: record.start_ns,
        tgid: record.tgid,
        agent: record.agent,
        original: record.original,
        claimed: 0,
        closed_ns: 0,
    };
    record.local = local;
    let agent = record.agent;
    // Its end must be seen, or the entries would stay.
    let watched = ctx.set_cb_flags(ctx.cb_flags() as i32 | BPF_SOCK_OPS_STATE_CB_FLAG as i32);
    if watched.is_err() || CLIENTS.insert(key, claim, 0).is_err() {
        // The daemon finds nobody behind the connection and drops it.
        account::dropped(Sort::Establish, DropReason::MapFull, agent);
        warn!(
            ctx,
            "no room to note whose connection from port {} is", local.port
        );
        return;
    }
    account::submitted(Sort::Establish);
}

#[inline(always)]
fn ended(ctx: &SockOpsContext) {
    // SAFETY: the context is valid.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    // SAFETY: values are plain bytes.
    let Some(record) = (unsafe { SOCKETS.get(cookie) }) else {
        return;
    };
    let key = ClientKey {
        netns: record.netns,
        local: record.local,
        zero: 0,
    };
    // In this order: a daemon that marks the claim just now finds the socket gone.
    let _ = SOCKETS.remove(cookie);
    // SAFETY: values are plain bytes.
    let Some(claim) = (unsafe { CLIENTS.get(key) }) else {
        return;
    };
    if claim.cookie != cookie {
        return;
    }
    // A client that sends, closes and goes is done before the daemon has accepted: what it sent is
    // still to be read, and its claim to be made.
    if claim.claimed == 0 && is_orderly(ctx.arg(0)) {
        let closed = Claim {
            closed_ns: kernel::now(),
            ..*claim
        };
        let _ = CLIENTS.insert(key, closed, u64::from(BPF_EXIST));
    } else {
        let _ = CLIENTS.remove(key);
    }
}

/// Whether a socket that was in this state and is closed now was closed by its own side first, and
/// was not reset.
#[inline(always)]
fn is_orderly(old_state: u32) -> bool {
    matches!(
        old_state,
        BPF_TCP_FIN_WAIT1 | BPF_TCP_FIN_WAIT2 | BPF_TCP_CLOSING | BPF_TCP_TIME_WAIT
    )
}

#[inline(always)]
fn local6(ctx: &SockOpsContext) -> [u8; 16] {
    // SAFETY: the context is valid; the verifier wants the address word by word.
    unsafe {
        address([
            (&raw const (*ctx.ops).local_ip6[0]).read_volatile(),
            (&raw const (*ctx.ops).local_ip6[1]).read_volatile(),
            (&raw const (*ctx.ops).local_ip6[2]).read_volatile(),
            (&raw const (*ctx.ops).local_ip6[3]).read_volatile(),
        ])
    }
}
