//! The exec gate: a tracked process of interest is stopped after its exec and before its first
//! instruction, and user space is told.
//!
//! Of interest is a process whose input and output are pipes or unix sockets that its parent made
//! for it (it may be a stdio server), one whose program policy names, and one whose environment
//! lacks the marker. All of that can be read just after a successful exec, and nothing can change
//! in between.
//!
//! Nobody is stopped who would not be let go: without a daemon that serves the gate, a process of
//! interest is killed or runs, as policy says. So is one that cannot be stopped at all: somebody traces
//! it, or a shell with job control started it. Where the kernel has LSM, [`crate::deny`] refuses the same
//! ones before that.

use core::ffi::c_void;

use acrfence_common::{
    DropReason, EXEMPT, EventKind, GateCause, GateConfig, GateEntry, GateEvent, GateOutcome,
    GateRefusal, GateWhy, ProgramName, Sort, Tracked,
};
use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel_str, bpf_probe_read_user_str, bpf_send_signal,
};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;

use crate::account;
use crate::command::{self, InMemory};
use crate::exec;
use crate::kernel::{self, Task, current_tgid, pointer, process_start, read};
use crate::maps::{GATE_AGENTS, GATE_CONFIG, GATE_QUEUE, GATE_SHELLS, GATE_TEXT, GATES, offset};

/// `sched_process_exec(task, old_pid, bprm)`: the new program is in place and has not run yet.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_gate(ctx: BtfTracePointContext) -> i32 {
    let Some(mine) = kernel::tracked() else {
        return 0;
    };
    if mine.agent == EXEMPT {
        return 0;
    }
    // SAFETY: the value is copied.
    let Some(bits) = (unsafe { GATE_AGENTS.get(mine.agent) }).copied() else {
        return 0;
    };
    let task: Task = ctx.arg(0);
    let done = passed(&mine);
    let is_job = is_job(task) == Some(true);
    let mut wanted = bits & GateWhy::ALL & !done;
    if mine.parent == 0 {
        // Where the agent begins: its own streams are those of whoever started it.
        wanted &= !GateWhy::STDIO;
    }
    if is_job {
        wanted &= GateWhy::COMMAND;
    }
    let mut why = 0;
    if wanted & GateWhy::STDIO != 0 && has_pipes_of_its_own(task) == Some(true) {
        why |= GateWhy::STDIO;
    }
    let mut group = 0;
    if wanted & GateWhy::COMMAND != 0
        && let Some(text) = GATE_TEXT.get_ptr_mut(0)
        && let Some(found) = command::named(ctx.arg(2), text.cast())
    {
        group = found;
        why |= GateWhy::COMMAND;
    }
    if wanted & GateWhy::ENVIRONMENT != 0 && lacks_marker(task) == Some(true) {
        why |= GateWhy::ENVIRONMENT;
    }
    let traced = is_traced(task);
    // Nobody can ask the rules about one that cannot be stopped: what none of them can mean runs.
    if (is_job || traced) && why & GateWhy::COMMAND != 0 && !may_be_meant(task, group) {
        why &= !GateWhy::COMMAND;
    }
    if why != 0 {
        let visit = Visit {
            why,
            done,
            is_job,
            traced,
            refuses_jobs: bits & GateWhy::REFUSE_JOBS != 0,
        };
        account::seen(Sort::Gate);
        match at_gate(task, &mine, &visit) {
            Ok(()) => account::submitted(Sort::Gate),
            Err(reason) => account::dropped(Sort::Gate, reason, mine.agent),
        }
    }
    0
}

/// What is known of a process of interest.
struct Visit {
    why: u32,
    done: u32,
    is_job: bool,
    traced: bool,
    refuses_jobs: bool,
}

/// The daemon has ended: nobody is stopped any more.
#[inline(always)]
pub fn unserved() {
    if let Some(config) = GATE_CONFIG.get_ptr_mut(0) {
        // SAFETY: array entries live as long as the map.
        unsafe { (*config).served = 0 };
    }
}

/// A tracked process has ended. Tells whether somebody may wait for it: it is a command whose outcome
/// is to be recorded, or a server.
#[inline(always)]
pub fn ended(tgid: u32) -> bool {
    // SAFETY: the value is copied.
    let Some(entry) = (unsafe { GATES.get(tgid) }).copied() else {
        return false;
    };
    let _ = GATES.remove(tgid);
    (entry.why | entry.done) & !GateWhy::ENVIRONMENT != 0
}

/// What the running process went through the gate for already, in a program before this one.
#[inline(always)]
pub fn passed(mine: &Tracked) -> u32 {
    // SAFETY: the value is copied.
    match unsafe { GATES.get(current_tgid()) } {
        Some(entry) if entry.start_ns == mine.start_ns => entry.done,
        _ => 0,
    }
}

/// Stops the running process, or does what policy says where that cannot be.
#[inline(always)]
fn at_gate(task: Task, mine: &Tracked, visit: &Visit) -> Result<(), DropReason> {
    let Some(config) = GATE_CONFIG.get(0) else {
        return Err(DropReason::Unreadable);
    };
    let cause = refused_for(
        config,
        visit.why,
        visit.traced,
        visit.is_job,
        visit.refuses_jobs,
    );
    if let Some(cause) = cause {
        // SAFETY: a number. Should it fail, nothing else could be done.
        unsafe { bpf_send_signal(SIGKILL) };
        let Some(mut entry) = GATE_QUEUE.reserve::<GateRefusal>(0) else {
            return Err(DropReason::RingFull);
        };
        let record = entry.as_mut_ptr();
        let event = event(task, mine, visit.why, GateOutcome::Refused, Some(cause));
        // SAFETY: the reservation holds a whole record, and every byte of it is written.
        unsafe { (&raw mut (*record).event).write(event) };
        match exec::areas(task) {
            Some(areas) => command::copy(InMemory::of(&areas), record),
            None => command::copy_nothing(record),
        }
        entry.submit(0);
        return Ok(());
    }
    let Some(mut entry) = GATE_QUEUE.reserve::<GateEvent>(0) else {
        // Not told of is not stopped: nobody would let it go.
        refuse(config.open_when_down, visit.why);
        return Err(DropReason::RingFull);
    };
    let mut event = event(task, mine, visit.why, GateOutcome::Passed, None);
    let outcome = if config.served == 0 {
        GateOutcome::Passed
    } else if visit.traced {
        GateOutcome::Traced
    } else if visit.is_job {
        GateOutcome::JobControl
    } else {
        stop(mine, visit.why, visit.done, event.header.at_ns)
    };
    event.outcome = outcome as u32;
    entry.write(event);
    entry.submit(0);
    Ok(())
}

/// Why a process of interest must not run without anybody being asked, if it must not.
#[inline(always)]
pub fn refused_for(
    config: &GateConfig,
    why: u32,
    traced: bool,
    is_job: bool,
    refuses_jobs: bool,
) -> Option<GateCause> {
    // One that lacks nothing but its environment is fenced all the same.
    if why & !GateWhy::ENVIRONMENT == 0 {
        return None;
    }
    let refuses = config.refuse_ungated != 0;
    if config.served == 0 {
        (config.open_when_down == 0).then_some(GateCause::Unserved)
    } else if is_job && (refuses || refuses_jobs) {
        Some(GateCause::Job)
    } else if traced && refuses {
        Some(GateCause::Traced)
    } else {
        None
    }
}

/// What user space is told of the running process.
#[inline(always)]
pub fn event(
    task: Task,
    mine: &Tracked,
    why: u32,
    outcome: GateOutcome,
    cause: Option<GateCause>,
) -> GateEvent {
    let parent = pointer(task, offset!(task_real_parent)).unwrap_or(core::ptr::null());
    GateEvent {
        header: kernel::header(EventKind::Gate, Some(mine)),
        parent_start_ns: process_start(parent).unwrap_or(0),
        parent: read(parent, offset!(task_tgid)).unwrap_or(0),
        why,
        outcome: outcome as u32,
        cause: cause.map_or(0, |cause| cause as u32),
    }
}

/// Whether a command line may be one that policy names. In doubt it may.
#[inline(always)]
fn may_be_meant(task: Task, group: u32) -> bool {
    match exec::areas(task) {
        Some(areas) => command::may_be_meant(group, InMemory::of(&areas)),
        None => true,
    }
}

/// Whether somebody traces a process.
#[inline(always)]
pub fn is_traced(task: Task) -> bool {
    read::<u32>(task, offset!(task_ptrace)).unwrap_or(0) != 0
}

#[inline(always)]
fn stop(mine: &Tracked, why: u32, done: u32, at_ns: u64) -> GateOutcome {
    let entry = GateEntry {
        start_ns: mine.start_ns,
        at_ns,
        agent: mine.agent,
        why,
        done,
        at_gate: 1,
    };
    // Noted before it stops: whoever comes after this daemon finds it.
    if GATES.insert(current_tgid(), entry, 0).is_ok() {
        // SAFETY: a number.
        if unsafe { bpf_send_signal(SIGSTOP) } == 0 {
            return GateOutcome::Stopped;
        }
        let _ = GATES.remove(current_tgid());
    }
    let open = GATE_CONFIG.get(0).map_or(0, |config| config.open_when_down);
    refuse(open, why)
}

/// Kills the running process, or lets it run where policy says so or nothing but its environment
/// was of interest.
#[inline(always)]
fn refuse(open: u32, why: u32) -> GateOutcome {
    if open != 0 || why == GateWhy::ENVIRONMENT {
        return GateOutcome::Passed;
    }
    // SAFETY: a number. Should it fail, nothing else could be done.
    unsafe { bpf_send_signal(SIGKILL) };
    GateOutcome::Killed
}

const SIGKILL: u32 = 9;
const SIGSTOP: u32 = 19;

/// Whether input and output are pipes or unix sockets, and others than its parent's own: then its
/// parent made them for it. A shell makes them for pipelines, which are not servers.
#[inline(always)]
pub fn has_pipes_of_its_own(task: Task) -> Option<bool> {
    let files = pointer(task, offset!(task_files))?;
    let input = channel(files, 0)?;
    let output = channel(files, 1)?;
    let parent = pointer(task, offset!(task_real_parent))?;
    if is_shell(parent) {
        return Some(false);
    }
    let files = pointer(parent, offset!(task_files)).unwrap_or(core::ptr::null());
    Some(file(files, 0) != input && file(files, 1) != output)
}

/// The open file of a descriptor that is a pipe or a unix socket.
#[inline(always)]
fn channel(files: *const c_void, number: usize) -> Option<*const c_void> {
    const S_IFMT: u16 = 0o170_000;
    const S_IFIFO: u16 = 0o010_000;
    const S_IFSOCK: u16 = 0o140_000;
    const AF_UNIX: u16 = 1;

    let file = file(files, number);
    let inode = pointer(file, offset!(file_inode))?;
    let format = read::<u16>(inode, offset!(inode_mode))? & S_IFMT;
    if format == S_IFIFO {
        return Some(file);
    }
    if format != S_IFSOCK {
        return None;
    }
    let socket = pointer(file, offset!(file_private_data))?;
    let sock = pointer(socket, offset!(socket_sk))?;
    (read::<u16>(sock, offset!(sock_family))? == AF_UNIX).then_some(file)
}

/// The open file of a descriptor; null when there is none.
#[inline(always)]
fn file(files: *const c_void, number: usize) -> *const c_void {
    let found = pointer(files, offset!(files_fdt)).and_then(|table| {
        if number as u32 >= read::<u32>(table, offset!(fdtable_max_fds))? {
            return None;
        }
        let slots = pointer(table, offset!(fdtable_fd))?;
        pointer(slots, number * size_of::<usize>())
    });
    // Not an option: comparing two of them, the compiler reads what the verifier takes for unset.
    found.unwrap_or(core::ptr::null())
}

/// Whether a shell with job control started the running process as a job of its own. The shell waits
/// for its jobs to stop as well, and would take the gate for the person at the terminal.
#[inline(always)]
pub fn is_job(task: Task) -> Option<bool> {
    const PROCESS_GROUP: usize = 2;

    let signal = pointer(task, offset!(task_signal))?;
    if pointer(signal, offset!(signal_tty)).is_none() {
        return Some(false);
    }
    let parent = pointer(task, offset!(task_real_parent))?;
    let group = offset!(signal_pids) + PROCESS_GROUP * size_of::<usize>();
    let own = pointer(signal, group)?;
    let parents = pointer(pointer(parent, offset!(task_signal))?, group)?;
    Some(own != parents && is_shell(parent))
}

#[inline(always)]
fn is_shell(task: Task) -> bool {
    let mut name = ProgramName { bytes: [0; 32] };
    let comm = task.cast::<u8>().wrapping_add(offset!(task_comm));
    // SAFETY: the helper checks the address; the destination holds 32 bytes, and `comm` 16.
    let length =
        unsafe { bpf_probe_read_kernel_str((&raw mut name.bytes).cast(), 16, comm.cast()) };
    length > 0 && GATE_SHELLS.get_ptr(name).is_some()
}

/// Whether no variable of the environment is the marker. Beyond [`MOST_VARIABLES`] it is not
/// looked for, and then taken to be there.
#[inline(always)]
fn lacks_marker(task: Task) -> Option<bool> {
    let text = GATE_TEXT.get_ptr_mut(0)?;
    let areas = exec::areas(task)?;
    let mut at = areas.env;
    let end = areas.env + areas.env_len;
    for _ in 0..MOST_VARIABLES {
        if at >= end {
            return Some(true);
        }
        // SAFETY: the helper checks the address; the text holds 4096 bytes.
        let length = unsafe { bpf_probe_read_user_str(text.cast(), 4096, at as *const c_void) };
        if length <= 0 {
            return None;
        }
        // SAFETY: a map value that only this CPU uses while the program runs.
        let bytes = unsafe { &*text };
        if bytes[..MARKER.len()] == MARKER {
            return Some(false);
        }
        at += length as u64;
    }
    Some(false)
}

const MOST_VARIABLES: usize = 256;
/// Start of the variable that says that the others are there.
const MARKER: [u8; 9] = *b"ACRFENCE=";
