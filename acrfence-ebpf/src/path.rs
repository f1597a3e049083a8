//! Where a file lies, walked up name by name: what `/proc/PID/cwd` would say, without anybody having to
//! ask before the process is gone.

use core::ffi::c_void;

use acrfence_common::{PATH_NAME, PATH_ROOM};
use aya_ebpf::helpers::generated::bpf_probe_read_kernel_str;

use crate::kernel::{at_most, pointer, read};
use crate::maps::offset;

/// What became of a walk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Walked {
    /// It reached the root.
    Whole,
    /// It did, and the file is not there any more.
    Gone,
}

/// Writes the names of a `struct path *`, the last one first and each ended by a zero byte, and how many
/// bytes that are; `kept` must be 0. None when it is too long, too deep, or not below the root of a
/// tree of mounts.
///
/// How far it got is kept in the record, not in a register: what is read back from there can be anything,
/// so that a verifier finds every turn of the loop alike whatever way led to it.
///
/// # Safety
///
/// Both pointers must lie in a record that was reserved.
#[inline(always)]
pub unsafe fn walk(
    path: *const c_void,
    to: *mut [u8; PATH_ROOM],
    kept: *mut u32,
) -> Option<Walked> {
    let mut dentry = pointer(path, offset!(path_dentry))?;
    let mut seen = pointer(path, offset!(path_mnt))?;
    let first = dentry;
    for _ in 0..DEEPEST {
        let parent = pointer(dentry, offset!(dentry_parent))?;
        if dentry == pointer(seen, offset!(vfsmount_root))? {
            let mount = seen.cast::<u8>().wrapping_sub(offset!(mount_mnt)) as *const c_void;
            let below = pointer(mount, offset!(mount_parent))?;
            if below == mount {
                return Some(if is_gone(first) {
                    Walked::Gone
                } else {
                    Walked::Whole
                });
            }
            dentry = pointer(mount, offset!(mount_mountpoint))?;
            seen = below.cast::<u8>().wrapping_add(offset!(mount_mnt)) as *const c_void;
            continue;
        }
        // SAFETY: the caller's promise.
        let so_far = unsafe { kept.read_volatile() };
        // The root of a file system that is mounted nowhere.
        if dentry == parent || so_far > LAST_START as u32 {
            return None;
        }
        let start = at_most::<LAST_START>(u64::from(so_far)) as usize;
        let name = pointer(dentry, offset!(dentry_name))?;
        // SAFETY: the helper checks the address; behind `start` there is room for a name.
        let length = unsafe {
            bpf_probe_read_kernel_str(
                to.cast::<u8>().wrapping_add(start).cast(),
                PATH_NAME as u32,
                name,
            )
        };
        if length <= 0 {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { kept.write_volatile(so_far.wrapping_add(length as u32)) };
        dentry = parent;
    }
    None
}

#[inline(always)]
fn is_gone(dentry: *const c_void) -> bool {
    pointer(dentry, offset!(dentry_parent)).is_some_and(|parent| parent != dentry)
        && read::<usize>(dentry, offset!(dentry_pprev)) == Some(0)
}

/// Where the last name may begin.
const LAST_START: usize = PATH_ROOM - PATH_NAME;
/// Names and mounts on the way up.
const DEEPEST: u32 = 32;
