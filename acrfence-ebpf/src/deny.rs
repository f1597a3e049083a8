//! The second line of the exec gate, where the kernel has LSM: an exec that policy says must not run, and
//! that the gate could not hold, is denied before the program that asks for it is gone. It gets an
//! error that it can read (`EPERM`), and nothing is killed.
//!
//! Whatever passes here meets the gate. So in doubt it passes.

use core::ffi::c_void;

use acrfence_common::{EXEMPT, GateOutcome, GateRefusal, GateWhy, Sort};
use aya_ebpf::macros::{lsm, tracepoint};
use aya_ebpf::programs::{LsmContext, TracePointContext};

use crate::account;
use crate::command::{self, Listed};
use crate::gate;
use crate::kernel::{self, current_tid};
use crate::maps::{EXEC_SEEN, GATE_AGENTS, GATE_CONFIG, GATE_LISTS, GATE_QUEUE};

/// `bprm_check_security(bprm)`: asked for the program, and for each interpreter of it.
#[lsm(hook = "bprm_check_security")]
pub fn exec_deny(ctx: LsmContext) -> i32 {
    // A kernel takes such a program and never asks it, when its own list of LSMs leaves BPF out.
    if let Some(seen) = EXEC_SEEN.get_ptr_mut(0) {
        // SAFETY: array entries live as long as the map.
        unsafe {
            if *seen == 0 {
                *seen = 1;
            }
        }
    }
    match denied(ctx.arg(0)) {
        true => EPERM,
        false => 0,
    }
}

const EPERM: i32 = -1;

#[inline(always)]
fn denied(binprm: *const c_void) -> bool {
    let Some(mine) = kernel::tracked() else {
        return false;
    };
    if mine.agent == EXEMPT {
        return false;
    }
    // SAFETY: the value is copied.
    let Some(bits) = (unsafe { GATE_AGENTS.get(mine.agent) }).copied() else {
        return false;
    };
    let Some(config) = GATE_CONFIG.get(0) else {
        return false;
    };
    let task = kernel::current_task();
    let is_job = gate::is_job(task) == Some(true);
    let traced = gate::is_traced(task);
    let refuses_jobs = bits & GateWhy::REFUSE_JOBS != 0;
    let mut wanted = bits & (GateWhy::STDIO | GateWhy::COMMAND) & !gate::passed(&mine);
    if mine.parent == 0 {
        wanted &= !GateWhy::STDIO;
    }
    if is_job {
        wanted &= GateWhy::COMMAND;
    }
    if gate::refused_for(config, wanted, traced, is_job, refuses_jobs).is_none() {
        return false;
    }
    // Scratch that no other task can be using: this program may be preempted.
    let Some(mut entry) = GATE_QUEUE.reserve::<GateRefusal>(0) else {
        return false;
    };
    let record = entry.as_mut_ptr();
    let mut why = 0;
    if wanted & GateWhy::STDIO != 0 && gate::has_pipes_of_its_own(task) == Some(true) {
        why |= GateWhy::STDIO;
    }
    // Not an option: older verifiers refuse a copy of one that is none.
    // SAFETY: the value is copied.
    let list = unsafe { GATE_LISTS.get(current_tid()) }
        .copied()
        .unwrap_or(0);
    if wanted & GateWhy::COMMAND != 0
        // SAFETY: the words of a record are more than the scratch that is wanted.
        && let Some(group) = command::named(binprm, unsafe { (&raw mut (*record).words).cast() })
        && is_meant(group, list, is_job || traced)
    {
        why |= GateWhy::COMMAND;
    }
    let Some(cause) = gate::refused_for(config, why, traced, is_job, refuses_jobs) else {
        entry.discard(0);
        return false;
    };
    account::seen(Sort::Gate);
    let event = gate::event(task, &mine, why, GateOutcome::Denied, Some(cause));
    // SAFETY: the reservation holds a whole record, and every byte of it is written.
    unsafe { (&raw mut (*record).event).write(event) };
    if list != 0 {
        command::copy(Listed::at(list), record);
    } else {
        command::copy_nothing(record);
    }
    entry.submit(0);
    account::submitted(Sort::Gate);
    true
}

const _: () = assert!(command::SCRATCH <= GateRefusal::MOST * GateRefusal::LONGEST);

/// Whether a command line is, as far as can be seen here, one that policy names.
#[inline(always)]
fn is_meant(group: u32, list: u64, look: bool) -> bool {
    if group == 0 || !look {
        return true;
    }
    // Without the words the gate decides, which sees them.
    list != 0 && command::may_be_meant(group, Listed::at(list))
}

/// `execve(filename, argv, envp)`: where the words of the command line are, until the exec is over.
#[tracepoint(category = "syscalls", name = "sys_enter_execve")]
pub fn sys_execve(ctx: TracePointContext) -> u32 {
    note_list(&ctx, 1)
}

/// `execveat(dfd, filename, argv, envp, flags)`
#[tracepoint(category = "syscalls", name = "sys_enter_execveat")]
pub fn sys_execveat(ctx: TracePointContext) -> u32 {
    note_list(&ctx, 2)
}

#[inline(always)]
fn note_list(ctx: &TracePointContext, argument: usize) -> u32 {
    let Some(mine) = kernel::tracked() else {
        return 0;
    };
    if mine.agent != EXEMPT
        // SAFETY: the tracepoint's record holds the arguments as 8-byte words behind 16 bytes.
        && let Ok(list) = unsafe { ctx.read_at::<u64>(16 + 8 * argument) }
    {
        // Without room for it the gate looks at the words.
        let _ = GATE_LISTS.insert(current_tid(), list, 0);
    }
    0
}
