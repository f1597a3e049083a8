//! Use of the kernel's restore primitives, by anyone: a tool that restores an agent is usually not
//! part of the agent. A process that is an agent's restored one is tracked from here on.

use acrfence_common::{
    DropReason, EXEMPT, EventKind, Primitive, RESTORED, RestoreEvent, Sort, Tracked,
};
use aya_ebpf::EbpfContext as _;
use aya_ebpf::helpers::generated::{bpf_send_signal, bpf_sysctl_get_name};
use aya_ebpf::macros::{cgroup_sysctl, tracepoint};
use aya_ebpf::programs::{SysctlContext, TracePointContext};

use crate::account;
use crate::kernel;
use crate::maps::{DUMPED, EVENTS, LOUDLY, RESTORABLE, TRACKED, config, offset};

/// `clone3(args, size)` with `set_tid`: a process is made under a chosen pid.
#[tracepoint(category = "syscalls", name = "sys_enter_clone3")]
pub fn sys_clone3(ctx: TracePointContext) -> u32 {
    // `struct clone_args`: `set_tid` and `set_tid_size` came with its second version.
    const SET_TID: u64 = 64;
    const SECOND_VERSION: u64 = 80;
    let (args, size) = (argument(&ctx, 0), argument(&ctx, 1));
    if size < SECOND_VERSION {
        return 0;
    }
    let Some([set_tid, count]) = user::<[u64; 2]>(args + SET_TID) else {
        return 0;
    };
    if count != 0 && set_tid != 0 {
        let wanted = user::<u32>(set_tid).unwrap_or(0);
        report(Primitive::SetTid, u64::from(wanted));
    }
    0
}

/// `prctl(PR_SET_MM, what, …)`: a process is given another one's memory layout. A restorer does it from
/// within the process that it puts together, before that runs anything of its own.
#[tracepoint(category = "syscalls", name = "sys_enter_prctl")]
pub fn sys_prctl(ctx: TracePointContext) -> u32 {
    const PR_SET_MM: u64 = 35;
    const PR_SET_MM_MAP: u64 = 14;
    if argument(&ctx, 0) != PR_SET_MM {
        return 0;
    }
    let field = argument(&ctx, 1);
    if field == PR_SET_MM_MAP
        && let Some(was) = take_in(argument(&ctx, 2))
    {
        // What was restored with it (connections that are alive) could leave before the daemon has seen
        // to it. It stops at the end of this call and goes on when the daemon says so. One that its
        // restorer traces (runc asks CRIU for that) does not: the restorer would see a stop that it did
        // not ask for, and give up. What it sends is dropped all the same until it is adopted.
        let task = kernel::current_task();
        let is_traced = kernel::read::<u32>(task, offset!(task_ptrace)).unwrap_or(0) != 0;
        if report(Primitive::Restored, u64::from(was))
            && !is_traced
            && config().is_some_and(|config| config.daemon_alive != 0)
        {
            const SIGSTOP: u32 = 19;
            // SAFETY: a signal to the running process.
            unsafe { bpf_send_signal(SIGSTOP) };
        }
    } else {
        report(Primitive::SetMm, field);
    }
    0
}

/// Tracks the running process if it has the pid of one that was an agent's. Gives which agent's.
#[inline(always)]
fn take_in(map: u64) -> Option<u32> {
    // `struct prctl_mm_map`.
    const EXE_FD: u64 = 100;
    const NO_EXE: u32 = u32::MAX;
    if kernel::tracked().is_some_and(|mine| mine.agent == EXEMPT) {
        return None;
    }
    let task = kernel::current_task();
    let (pid, tgid) = (kernel::innermost_tgid(task)?, kernel::current_tgid());
    // SAFETY: values are plain numbers.
    let was = unsafe { DUMPED.get(pid) };
    // SAFETY: as above.
    let was = *was.or_else(|| unsafe { RESTORABLE.get(pid) })?;
    let start_ns = kernel::process_start(task)?;
    if was.start_ns == start_ns {
        // The very process that was dumped, and goes on.
        return None;
    }
    // Pids of other namespaces are small and often the same, and service managers set their names
    // this way; only a restorer gives the process another executable as well.
    if pid != tgid && user::<u32>(map + EXE_FD) == Some(NO_EXE) {
        return None;
    }
    let entry = Tracked {
        start_ns,
        agent: RESTORED,
        parent: 0,
    };
    if TRACKED.insert(tgid, entry, 0).is_err() {
        account::seen(Sort::Restore);
        account::dropped(Sort::Restore, DropReason::MapFull, was.agent);
        return None;
    }
    Some(was.agent)
}

/// `ptrace(PTRACE_SEIZE, pid, …)` of a tracked process: so begins a dump. Threads other than the first
/// have no entry, so it is one report a process.
#[tracepoint(category = "syscalls", name = "sys_enter_ptrace")]
pub fn sys_ptrace(ctx: TracePointContext) -> u32 {
    const PTRACE_SEIZE: u64 = 0x4206;
    if argument(&ctx, 0) != PTRACE_SEIZE {
        return 0;
    }
    let pid = argument(&ctx, 1) as u32;
    // SAFETY: values are plain numbers.
    if unsafe { TRACKED.get(pid) }.is_some_and(|tracked| tracked.agent != EXEMPT) {
        report(Primitive::Seize, u64::from(pid));
    }
    0
}

/// `setsockopt(fd, SOL_TCP, TCP_REPAIR, mode, …)`: a connection is taken apart or put together.
#[tracepoint(category = "syscalls", name = "sys_enter_setsockopt")]
pub fn sys_setsockopt(ctx: TracePointContext) -> u32 {
    const SOL_TCP: u64 = 6;
    const TCP_REPAIR: u64 = 19;
    if argument(&ctx, 1) == SOL_TCP && argument(&ctx, 2) == TCP_REPAIR {
        let mode = user::<u32>(argument(&ctx, 3)).unwrap_or(0);
        report(Primitive::TcpRepair, u64::from(mode));
    }
    0
}

/// A write to `/proc/sys/kernel/ns_last_pid`: the next process gets a chosen pid.
#[cgroup_sysctl]
pub fn sysctl_write(ctx: SysctlContext) -> i32 {
    // SAFETY: the context is valid.
    if unsafe { (*ctx.sysctl).write } != 0 {
        const NAME: &[u8; 19] = b"kernel/ns_last_pid\0";
        let mut name = [0u8; 32];
        // SAFETY: the helper fills at most the length it is given.
        let length =
            unsafe { bpf_sysctl_get_name(ctx.as_ptr().cast(), name.as_mut_ptr().cast(), 32, 0) };
        if length == NAME.len() as i64 - 1 && name[..19] == *NAME {
            report(Primitive::LastPid, 0);
        }
    }
    1
}

/// Gives whether user space will hear of it.
#[inline(always)]
fn report(primitive: Primitive, argument: u64) -> bool {
    let mine = kernel::tracked();
    if mine.is_some_and(|mine| mine.agent == EXEMPT) {
        return false;
    }
    account::seen(Sort::Restore);
    let header = kernel::header(EventKind::Restore, mine.as_ref());
    let Some(mut entry) = EVENTS.reserve::<RestoreEvent>(0) else {
        account::dropped(Sort::Restore, DropReason::RingFull, header.agent);
        return false;
    };
    entry.write(RestoreEvent {
        header,
        argument,
        primitive: primitive as u32,
        zero: 0,
    });
    entry.submit(LOUDLY);
    account::submitted(Sort::Restore);
    true
}

#[inline(always)]
fn user<T: Copy>(from: u64) -> Option<T> {
    // SAFETY: the helper checks the address; all `T` here are plain numbers.
    unsafe { aya_ebpf::helpers::bpf_probe_read_user(from as *const T) }.ok()
}

/// The `n`th argument of the system call (see `write.rs`).
#[inline(always)]
fn argument(ctx: &TracePointContext, n: usize) -> u64 {
    // SAFETY: within the record.
    unsafe { ctx.read_at(16 + 8 * n) }.unwrap_or(0)
}
