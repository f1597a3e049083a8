//! Reading what the running kernel keeps, at the offsets its BTF told.

use core::arch::asm;
use core::ffi::c_void;

use acrfence_common::{EventHeader, EventKind, NO_AGENT, Tracked};
use aya_ebpf::helpers::{
    bpf_get_current_pid_tgid, bpf_probe_read_kernel,
    generated::{bpf_get_current_task, bpf_ktime_get_boot_ns, bpf_probe_read_user},
};

use crate::maps::{TRACKED, offset};

/// A `struct task_struct *`.
pub type Task = *const c_void;

/// Reads a `T` at `base + offset`; none when there is nothing.
#[inline(always)]
pub fn read<T>(base: *const c_void, offset: usize) -> Option<T> {
    // SAFETY: the helper checks the address.
    unsafe { bpf_probe_read_kernel(base.cast::<u8>().wrapping_add(offset).cast::<T>()) }.ok()
}

/// Reads a pointer at `base + offset`; none when it is null.
#[inline(always)]
pub fn pointer(base: *const c_void, offset: usize) -> Option<*const c_void> {
    read::<*const c_void>(base, offset).filter(|pointer| !pointer.is_null())
}

/// Reads up to `N` bytes of the current process's memory; gives how many.
#[inline(always)]
pub fn read_user<const N: usize>(to: *mut [u8; N], from: u64, length: u64) -> Option<u32> {
    if length == 0 {
        return Some(0);
    }
    let bounded = at_most::<N>(length) as u32;
    // SAFETY: the helper checks the address; the destination holds `N` bytes.
    let result = unsafe { bpf_probe_read_user(to.cast(), bounded, from as *const c_void) };
    (result == 0).then_some(bounded)
}

/// The smaller of `number` and `N`, in a way that verifiers of all kernels follow: the register
/// that is compared is the one that is used.
#[inline(always)]
pub fn at_most<const N: usize>(number: u64) -> u64 {
    let mut bounded = number;
    // SAFETY: only touches the register.
    unsafe {
        asm!(
            "if {number} <= {most} goto +1",
            "{number} = {most}",
            number = inout(reg) bounded,
            most = const N,
            options(nostack, nomem, pure),
        );
    }
    bounded
}

/// The running thread's process.
#[inline(always)]
pub fn current_tgid() -> u32 {
    (bpf_get_current_pid_tgid() >> 32) as u32
}

/// The running thread.
#[inline(always)]
pub fn current_tid() -> u32 {
    bpf_get_current_pid_tgid() as u32
}

/// The running thread, as the kernel knows it.
#[inline(always)]
pub fn current_task() -> Task {
    // SAFETY: no arguments.
    unsafe { bpf_get_current_task() as Task }
}

/// Nanoseconds since boot.
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: no arguments.
    unsafe { bpf_ktime_get_boot_ns() }
}

/// Start time of the process that `task` is a thread of.
#[inline(always)]
pub fn process_start(task: Task) -> Option<u64> {
    let leader = pointer(task, offset!(task_group_leader))?;
    read(leader, offset!(task_start_boottime))
}

/// The tgid that the process of `task` has in the innermost of its pid namespaces.
#[inline(always)]
pub fn innermost_tgid(task: Task) -> Option<u32> {
    // The kernel allows no deeper nesting.
    const DEEPEST: u32 = 32;
    let leader = pointer(task, offset!(task_group_leader))?;
    let pid = pointer(leader, offset!(task_thread_pid))?;
    let level = read::<u32>(pid, offset!(pid_level)).filter(|level| *level <= DEEPEST)?;
    let number = offset!(pid_numbers) + level as usize * offset!(upid_size);
    read(pid, number + offset!(upid_nr))
}

/// The agent of the running process; none (after one look-up) when it belongs to none.
///
/// An entry of an earlier process with the same pid is taken out.
#[inline(always)]
pub fn tracked() -> Option<Tracked> {
    let tgid = current_tgid();
    let tracked = *unsafe { TRACKED.get(tgid) }?;
    if process_start(current_task())? != tracked.start_ns {
        let _ = TRACKED.remove(tgid);
        return None;
    }
    Some(tracked)
}

/// The header of a record about the running process.
#[inline(always)]
pub fn header(kind: EventKind, tracked: Option<&Tracked>) -> EventHeader {
    EventHeader {
        kind: kind as u32,
        agent: tracked.map_or(NO_AGENT, |t| t.agent),
        tgid: current_tgid(),
        tid: current_tid(),
        start_ns: match tracked {
            Some(t) => t.start_ns,
            None => process_start(current_task()).unwrap_or(0),
        },
        at_ns: now(),
    }
}
