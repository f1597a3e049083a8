//! Which program a tracked process starts, where, and with what arguments and environment.
//!
//! The reader needs to know no more than this and is not hurried, unless something did not fit and it
//! has to look while the process is there, or the process lives in a network namespace without a hook.
//!
//! Arguments and environment are read from the new program's own memory just after a successful `execve` or `execveat`: the
//! kernel copied it there a moment ago, so it is present, and nothing can change it in between.

use core::ffi::c_void;

use acrfence_common::{
    DropReason, EXEMPT, EventKind, ExecEvent, ExecFlags, ExecHead, PATH_ROOM, Sort, Tracked,
};
use aya_ebpf::helpers::generated::{
    bpf_get_current_cgroup_id, bpf_get_current_uid_gid, bpf_probe_read_kernel_str,
};
use aya_ebpf::macros::btf_tracepoint;
use aya_ebpf::programs::BtfTracePointContext;

use crate::account;
use crate::kernel::{self, Task, pointer, read, read_user};
use crate::maps::{EVENTS, LISTENERS, in_good_time, offset};
use crate::path::{self, Walked};

/// `sched_process_exec(task, old_pid, bprm)`: the new program is in place and has not run yet.
#[btf_tracepoint(function = "sched_process_exec")]
pub fn process_exec(ctx: BtfTracePointContext) -> i32 {
    let Some(mine) = kernel::tracked() else {
        return 0;
    };
    if mine.agent == EXEMPT {
        return 0;
    }
    account::seen(Sort::Exec);
    match report(ctx.arg(0), ctx.arg(2), &mine) {
        Ok(()) => account::submitted(Sort::Exec),
        Err(reason) => account::dropped(Sort::Exec, reason, mine.agent),
    }
    0
}

pub struct Areas {
    pub args: u64,
    pub args_len: u64,
    pub env: u64,
    pub env_len: u64,
}

#[inline(always)]
fn report(task: Task, binprm: *const c_void, mine: &Tracked) -> Result<(), DropReason> {
    let areas = areas(task).ok_or(DropReason::Unreadable)?;
    if areas.args_len <= 1024 && areas.env_len <= 4096 {
        fill::<1024, 4096>(EventKind::SmallExec, task, &areas, binprm, mine)
    } else {
        fill::<8192, 32768>(EventKind::LargeExec, task, &areas, binprm, mine)
    }
}

#[inline(always)]
pub fn areas(task: Task) -> Option<Areas> {
    let mm = pointer(task, offset!(task_mm))?;
    let args: u64 = read(mm, offset!(mm_arg_start))?;
    let args_end: u64 = read(mm, offset!(mm_arg_end))?;
    let env: u64 = read(mm, offset!(mm_env_start))?;
    let env_end: u64 = read(mm, offset!(mm_env_end))?;
    Some(Areas {
        args,
        args_len: args_end.saturating_sub(args),
        env,
        env_len: env_end.saturating_sub(env),
    })
}

#[inline(always)]
fn fill<const ARGS: usize, const ENV: usize>(
    kind: EventKind,
    task: Task,
    areas: &Areas,
    binprm: *const c_void,
    mine: &Tracked,
) -> Result<(), DropReason> {
    let Some(mut entry) = EVENTS.reserve::<ExecEvent<ARGS, ENV>>(0) else {
        return Err(DropReason::RingFull);
    };
    let record = entry.as_mut_ptr();
    let mut flags = 0;
    let urgent;
    let filename = pointer(binprm, offset!(binprm_filename)).unwrap_or(core::ptr::null());
    // SAFETY: the reservation holds a whole record; only the parts said to be filled are read.
    unsafe {
        let args_kept = match read_user(&raw mut (*record).args, areas.args, areas.args_len) {
            Some(kept) => kept,
            None => {
                flags |= ExecFlags::ARGS_UNREADABLE;
                0
            }
        };
        let env_kept = match read_user(&raw mut (*record).env, areas.env, areas.env_len) {
            Some(kept) => kept,
            None => {
                flags |= ExecFlags::ENV_UNREADABLE;
                0
            }
        };
        let length = bpf_probe_read_kernel_str((&raw mut (*record).filename).cast(), 256, filename);
        let ids = bpf_get_current_uid_gid();
        let kept = &raw mut (*record).head.cwd_kept;
        let cwd = written(working_directory(task), &raw mut (*record).cwd, kept);
        flags |= match cwd {
            Some(Walked::Whole) => 0,
            Some(Walked::Gone) => ExecFlags::CWD_GONE,
            None => ExecFlags::CWD_UNREADABLE,
        };
        let cwd_kept = kept.read_volatile();
        let kept = &raw mut (*record).head.exe_kept;
        let exe = written(executable(task), &raw mut (*record).exe, kept);
        flags |= match exe {
            Some(Walked::Whole) => 0,
            Some(Walked::Gone) => ExecFlags::EXE_GONE,
            None => ExecFlags::EXE_UNREADABLE,
        };
        let exe_kept = kept.read_volatile();
        let (netns, has_hook) = network(task).unwrap_or((0, false));
        urgent = flags & !(ExecFlags::CWD_GONE | ExecFlags::EXE_GONE) != 0
            || u64::from(args_kept) < areas.args_len
            || u64::from(env_kept) < areas.env_len
            || !has_hook;
        (&raw mut (*record).head).write(ExecHead {
            header: kernel::header(kind, Some(mine)),
            cgroup: bpf_get_current_cgroup_id(),
            uid: ids as u32,
            gid: (ids >> 32) as u32,
            args_len: clamp(areas.args_len),
            env_len: clamp(areas.env_len),
            args_kept,
            env_kept,
            // The length counts the closing zero byte.
            filename_kept: if length > 0 { length as u32 - 1 } else { 0 },
            flags,
            netns,
            cwd_kept,
            exe_kept,
            zero: 0,
        });
    }
    entry.submit(in_good_time(urgent));
    Ok(())
}

/// Writes a `struct path *` into a record.
///
/// # Safety
///
/// As for [`path::walk`].
#[inline(always)]
unsafe fn written(
    path: Option<*const c_void>,
    to: *mut [u8; PATH_ROOM],
    kept: *mut u32,
) -> Option<Walked> {
    // SAFETY: the caller's promise.
    unsafe {
        kept.write_volatile(0);
        path::walk(path?, to, kept)
    }
}

/// A `struct path *`.
#[inline(always)]
fn working_directory(task: Task) -> Option<*const c_void> {
    let fs = pointer(task, offset!(task_fs))?;
    Some(fs.cast::<u8>().wrapping_add(offset!(fs_pwd)).cast())
}

/// A `struct path *`.
#[inline(always)]
fn executable(task: Task) -> Option<*const c_void> {
    let file = pointer(pointer(task, offset!(task_mm))?, offset!(mm_exe_file))?;
    Some(file.cast::<u8>().wrapping_add(offset!(file_path)).cast())
}

/// Inode number of its network namespace, and whether there is a hook in there.
#[inline(always)]
fn network(task: Task) -> Option<(u32, bool)> {
    let net = pointer(pointer(task, offset!(task_nsproxy))?, offset!(nsproxy_net))?;
    let cookie = read::<u64>(net, offset!(net_cookie))?;
    let number = read(net, offset!(net_inum))?;
    Some((number, LISTENERS.get_ptr(cookie).is_some()))
}

#[inline(always)]
fn clamp(length: u64) -> u32 {
    if length > u32::MAX as u64 {
        u32::MAX
    } else {
        length as u32
    }
}
