//! The few ptrace requests that the gate makes, each as a safe function.
//!
//! ptrace belongs to a *thread*: only the one that seized a process may make requests about it,
//! which [`super::Held`] ensures by not being `Send`.

use std::mem::MaybeUninit;

use nix::errno::Errno;
use nix::unistd::Pid;

use super::arch::{Native, Registers};

/// Why a traced process reports to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// At the entry or the exit of a system call.
    Syscall,
    /// A trap of ptrace itself: interrupted, or in group-stop.
    Event,
    /// A signal is about to be delivered.
    Signal(i32),
}

/// The process ended (and, as far as we are concerned, was reaped) instead of stopping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ended;

/// The process dies with the thread that traces it, instead of running on half changed.
pub(super) const EXIT_KILL: i32 = libc::PTRACE_O_EXITKILL;
/// Stops at system calls are told from signals.
pub(super) const MARK_SYSCALLS: i32 = libc::PTRACE_O_TRACESYSGOOD;
/// Its seccomp filters sleep while it is traced.
pub(super) const SUSPEND_SECCOMP: i32 = libc::PTRACE_O_SUSPEND_SECCOMP;

/// Becomes its tracer without stopping it.
pub(super) fn seize(pid: Pid, options: i32) -> nix::Result<()> {
    plain(libc::PTRACE_SEIZE, pid, 0, options as usize)
}

/// Makes it stop at the next chance, without a signal.
pub(super) fn interrupt(pid: Pid) -> nix::Result<()> {
    plain(libc::PTRACE_INTERRUPT, pid, 0, 0)
}

/// Lets it run up to the next entry or exit of a system call, swallowing the signal it stopped for.
pub(super) fn run_to_syscall(pid: Pid) -> nix::Result<()> {
    plain(libc::PTRACE_SYSCALL, pid, 0, 0)
}

/// Lets it go.
pub(super) fn detach(pid: Pid) -> nix::Result<()> {
    plain(libc::PTRACE_DETACH, pid, 0, 0)
}

/// Its general registers; none where it runs in another mode (a 32-bit program).
pub(super) fn registers(pid: Pid) -> nix::Result<Option<Native>> {
    let mut registers = Native::zero();
    let whole = size_of_val(registers.words());
    let mut window = libc::iovec {
        iov_base: registers.words().as_mut_ptr().cast(),
        iov_len: whole,
    };
    // SAFETY: the kernel writes at most `iov_len` bytes into `registers`, which outlives the call,
    // and every bit pattern is a valid u64.
    unsafe {
        request(
            libc::PTRACE_GETREGSET,
            pid,
            libc::NT_PRSTATUS as usize,
            (&raw mut window).cast(),
        )
    }?;
    Ok((window.iov_len == whole && registers.is_native_mode()).then_some(registers))
}

/// Sets its general registers.
pub(super) fn set_registers(pid: Pid, mut registers: Native) -> nix::Result<()> {
    let mut window = libc::iovec {
        iov_len: size_of_val(registers.words()),
        iov_base: registers.words().as_mut_ptr().cast(),
    };
    // SAFETY: the kernel reads `iov_len` bytes out of `registers`, which outlives the call.
    unsafe {
        request(
            libc::PTRACE_SETREGSET,
            pid,
            libc::NT_PRSTATUS as usize,
            (&raw mut window).cast(),
        )
    }
}

/// Its mask of blocked signals.
pub(super) fn signal_mask(pid: Pid) -> nix::Result<u64> {
    let mut mask = 0u64;
    // SAFETY: the kernel writes the eight bytes that we say are there.
    unsafe {
        request(
            libc::PTRACE_GETSIGMASK as _,
            pid,
            size_of::<u64>(),
            (&raw mut mask).cast(),
        )
    }?;
    Ok(mask)
}

/// Sets its mask of blocked signals.
pub(super) fn set_signal_mask(pid: Pid, mut mask: u64) -> nix::Result<()> {
    // SAFETY: the kernel reads the eight bytes that we say are there.
    unsafe {
        request(
            libc::PTRACE_SETSIGMASK as _,
            pid,
            size_of::<u64>(),
            (&raw mut mask).cast(),
        )
    }
}

/// The word of its memory at `address`, also where it may only execute.
pub(super) fn peek(pid: Pid, address: u64) -> nix::Result<u64> {
    let mut word = 0u64;
    // SAFETY: the system call (unlike its wrapper in the C library) stores the word where `data`
    // points to, which is eight bytes of ours.
    let done = unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            libc::PTRACE_PEEKTEXT,
            pid.as_raw(),
            address,
            &raw mut word,
        )
    };
    Errno::result(done).map(|_| word)
}

/// Sets the word of its memory at `address`, also where it may not write itself.
pub(super) fn poke(pid: Pid, address: u64, word: u64) -> nix::Result<()> {
    plain(libc::PTRACE_POKETEXT, pid, address as usize, word as usize)
}

/// What is known of the signal it stopped for.
pub(super) fn signal_info(pid: Pid) -> nix::Result<libc::siginfo_t> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: the kernel fills in one siginfo_t.
    unsafe { request(libc::PTRACE_GETSIGINFO, pid, 0, info.as_mut_ptr().cast()) }?;
    // SAFETY: the kernel filled it in, and all-zero bytes are a valid siginfo_t anyway.
    Ok(unsafe { info.assume_init() })
}

/// Numbers of the signals that wait for the whole process (at most 32 of them).
pub(super) fn waiting_signals(pid: Pid) -> nix::Result<Vec<i32>> {
    const AT_ONCE: usize = 32;
    /// `PTRACE_PEEKSIGINFO_SHARED` of `linux/ptrace.h`, which the libc crate has for some processors only.
    const SHARED: u32 = 1;
    let mut which = libc::ptrace_peeksiginfo_args {
        off: 0,
        flags: SHARED,
        nr: AT_ONCE as i32,
    };
    let mut infos = [const { MaybeUninit::<libc::siginfo_t>::zeroed() }; AT_ONCE];
    // SAFETY: `which` is read; at most `nr` entries are written into `infos`.
    let found = unsafe {
        libc::ptrace(
            libc::PTRACE_PEEKSIGINFO as _,
            pid.as_raw(),
            &raw mut which,
            infos.as_mut_ptr(),
        )
    };
    let found = usize::try_from(found).map_err(|_| Errno::last())?;
    Ok(infos
        .iter()
        .take(found)
        // SAFETY: the kernel filled in `found` of them, and zeroed ones are valid too.
        .map(|info| unsafe { info.assume_init_ref() }.si_signo)
        .collect())
}

/// Waits until it stops or ends.
pub(super) fn wait(pid: Pid) -> Result<Stop, Ended> {
    loop {
        let mut status = 0;
        // SAFETY: `status` is one integer for the kernel to write.
        let who = unsafe {
            libc::waitpid(
                pid.as_raw(),
                &raw mut status,
                libc::__WALL | libc::__WNOTHREAD,
            )
        };
        if who == -1 {
            match Errno::last() {
                Errno::EINTR => continue,
                // ECHILD: it is gone and somebody else has reaped it.
                _ => return Err(Ended),
            }
        }
        if !libc::WIFSTOPPED(status) {
            return Err(Ended);
        }
        return Ok(match (libc::WSTOPSIG(status), status >> 16) {
            (signal, 0) if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
            (signal, 0) => Stop::Signal(signal),
            (_, _) => Stop::Event,
        });
    }
}

fn plain(what: libc::c_uint, pid: Pid, address: usize, data: usize) -> nix::Result<()> {
    // SAFETY: used for requests whose arguments are numbers only.
    unsafe { request(what, pid, address, std::ptr::without_provenance_mut(data)) }
}

/// # Safety
///
/// `data` must be what `what` wants: a number, or a pointer to as many bytes as the kernel will
/// read or write.
unsafe fn request(
    what: libc::c_uint,
    pid: Pid,
    address: usize,
    data: *mut libc::c_void,
) -> nix::Result<()> {
    // SAFETY: upheld by the caller.
    let done = unsafe { libc::ptrace(what as _, pid.as_raw(), address, data) };
    Errno::result(done).map(drop)
}
