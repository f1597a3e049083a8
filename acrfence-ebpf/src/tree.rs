//! Who belongs to an agent: a child belongs to the agent of the process that made it, whatever
//! becomes of that process afterwards. Threads belong to their process.

use core::ffi::c_void;

use acrfence_common::{
    DropReason, EXEMPT, EventHeader, EventKind, ExitEvent, ForkEvent, Parentage, RESTORED,
    Restorable, SnapshotRow, Sort, Tracked,
};
use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::generated::bpf_seq_write;
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;
use aya_log_ebpf::warn;

use crate::account;
use crate::gate;
use crate::kernel::{self, Task, current_tgid, current_tid, pointer, process_start, read};
use crate::maps::{CONFIG, EVENTS, PARENTS, RESTORABLE, TRACKED, config, in_good_time, offset};

/// `sched_process_fork(parent, child)`: the child exists and has not run yet.
#[btf_tracepoint(function = "sched_process_fork")]
pub fn process_fork(ctx: BtfTracePointContext) -> i32 {
    let child: Task = ctx.arg(1);
    let parent = current_tgid();

    let Some(mine) = kernel::tracked() else {
        return 0;
    };
    if mine.agent == EXEMPT {
        return 0;
    }
    let (Some(tgid), Some(start_ns)) = (
        read::<u32>(child, offset!(task_tgid)),
        read::<u64>(child, offset!(task_start_boottime)),
    ) else {
        return 0;
    };
    if tgid == parent {
        return 0;
    }
    account::seen(Sort::Fork);
    let inherited = Tracked {
        start_ns,
        agent: mine.agent,
        parent,
    };
    if TRACKED.insert(tgid, inherited, 0).is_err() {
        account::dropped(Sort::Fork, DropReason::MapFull, mine.agent);
        warn!(
            &ctx,
            "no room to track process {}, child of {}", tgid, parent
        );
        return 0;
    }
    let Some(mut entry) = EVENTS.reserve::<ForkEvent>(0) else {
        account::dropped(Sort::Fork, DropReason::RingFull, mine.agent);
        return 0;
    };
    entry.write(ForkEvent {
        header: EventHeader {
            kind: EventKind::Fork as u32,
            agent: mine.agent,
            tgid,
            tid: current_tid(),
            start_ns,
            at_ns: kernel::now(),
        },
        parent_start_ns: mine.start_ns,
        parent,
        zero: 0,
    });
    entry.submit(in_good_time(false));
    account::submitted(Sort::Fork);
    0
}

/// `sched_process_exit(task)`: a thread ends; the last one takes the process with it.
#[btf_tracepoint(function = "sched_process_exit")]
pub fn process_exit(ctx: BtfTracePointContext) -> i32 {
    let task: Task = ctx.arg(0);
    let tgid = current_tgid();
    if config().is_some_and(|c| c.walking != 0) && is_last_thread(task) {
        note_orphans(task, tgid);
    }
    let Some(mine) = kernel::tracked() else {
        return 0;
    };
    if !is_last_thread(task) {
        return 0;
    }
    // Two threads that end together both see the end of the group; one of them gets the entry.
    if TRACKED.remove(tgid).is_err() {
        return 0;
    }
    if mine.agent == EXEMPT {
        if let Some(config) = CONFIG.get_ptr_mut(0) {
            // SAFETY: array entries live as long as the map.
            unsafe { (*config).daemon_alive = 0 };
        }
        gate::unserved();
        return 0;
    }
    let is_awaited = gate::ended(tgid);
    // What it was before it was restored stands there already.
    if mine.agent != RESTORED
        && let Some(pid) = kernel::innermost_tgid(task)
    {
        let was = Restorable {
            start_ns: mine.start_ns,
            agent: mine.agent,
            zero: 0,
        };
        // Full, it forgets the oldest.
        let _ = RESTORABLE.insert(pid, was, 0);
    }
    account::seen(Sort::Exit);
    let Some(mut entry) = EVENTS.reserve::<ExitEvent>(0) else {
        account::dropped(Sort::Exit, DropReason::RingFull, mine.agent);
        return 0;
    };
    entry.write(ExitEvent {
        header: kernel::header(EventKind::Exit, Some(&mine)),
        status: exit_status(task),
        zero: 0,
    });
    entry.submit(in_good_time(is_awaited));
    account::submitted(Sort::Exit);
    0
}

/// `struct bpf_iter__task`, part of the kernel's promise to user space.
#[repr(C)]
pub struct TaskIteration {
    meta: *const IterationMeta,
    task: Task,
}

#[repr(C)]
struct IterationMeta {
    seq: *mut c_void,
}

/// Writes one [`SnapshotRow`] a process. `/proc` rounds start times; this does not.
#[unsafe(no_mangle)]
#[unsafe(link_section = "iter/task")]
pub fn process_snapshot(ctx: *mut TaskIteration) -> i32 {
    // SAFETY: the kernel hands out a valid context.
    let (meta, task) = unsafe { ((*ctx).meta, (*ctx).task) };
    if task.is_null() {
        return 0;
    }
    let _ = write_row(meta, task);
    0
}

#[inline(always)]
fn write_row(meta: *const IterationMeta, task: Task) -> Option<()> {
    let tgid: u32 = read(task, offset!(task_tgid))?;
    if read::<u32>(task, offset!(task_pid))? != tgid {
        return None;
    }
    let parent = pointer(task, offset!(task_real_parent))?;
    let row = SnapshotRow {
        start_ns: read(task, offset!(task_start_boottime))?,
        tgid,
        parent: read(parent, offset!(task_tgid))?,
        flags: read(task, offset!(task_flags))?,
        zero: 0,
    };
    // SAFETY: `meta` is valid; the helper copies the row.
    unsafe {
        bpf_seq_write(
            (*meta).seq.cast(),
            (&raw const row).cast_mut().cast(),
            size_of::<SnapshotRow>() as u32,
        )
    };
    Some(())
}

#[inline(always)]
fn is_last_thread(task: Task) -> bool {
    pointer(task, offset!(task_signal)).and_then(|signal| read::<i32>(signal, offset!(signal_live)))
        == Some(0)
}

/// What `wait` will report.
#[inline(always)]
fn exit_status(task: Task) -> i32 {
    const SIGNAL_GROUP_EXIT: u32 = 4;
    let Some(signal) = pointer(task, offset!(task_signal)) else {
        return 0;
    };
    if read::<u32>(signal, offset!(signal_flags)).unwrap_or(0) & SIGNAL_GROUP_EXIT != 0 {
        return read(signal, offset!(signal_group_exit_code)).unwrap_or(0);
    }
    pointer(task, offset!(task_group_leader))
        .and_then(|leader| read(leader, offset!(task_exit_code)))
        .unwrap_or(0)
}

/// A process ends: note whose child it was, and whose its children were before they get another
/// parent.
#[inline(always)]
fn note_orphans(task: Task, parent: u32) {
    let Some(parent_start_ns) = process_start(task) else {
        return;
    };
    if let Some(grandparent) = pointer(task, offset!(task_real_parent))
        && let Some(tgid) = read::<u32>(grandparent, offset!(task_tgid))
        && let Some(start_ns) = process_start(grandparent)
    {
        let parentage = Parentage {
            start_ns: parent_start_ns,
            parent_start_ns: start_ns,
            parent: tgid,
            zero: 0,
        };
        // What was noted when its first parent ended counts more.
        let _ = PARENTS.insert(parent, parentage, u64::from(BPF_NOEXIST));
    }
    let head = task.cast::<u8>().wrapping_add(offset!(task_children)) as *const c_void;
    let mut node = pointer(head, 0);
    for _ in 0..MOST_ORPHANS {
        let Some(sibling) = node.filter(|&n| n != head) else {
            return;
        };
        let child = sibling.cast::<u8>().wrapping_sub(offset!(task_sibling)) as Task;
        if let (Some(tgid), Some(start_ns)) = (
            read::<u32>(child, offset!(task_tgid)),
            read::<u64>(child, offset!(task_start_boottime)),
        ) {
            let parentage = Parentage {
                start_ns,
                parent_start_ns,
                parent,
                zero: 0,
            };
            if PARENTS.insert(tgid, parentage, 0).is_err() {
                break;
            }
        }
        node = pointer(sibling, 0);
    }
    account::seen(Sort::Fork);
    account::dropped(Sort::Fork, DropReason::MapFull, acrfence_common::NO_AGENT);
}

/// A process with more children than this that ends while a tree is walked is accounted as a drop.
const MOST_ORPHANS: u32 = 256;
