//! Work on a process that is stopped between exec and its first instruction: system calls in its
//! name, more environment, or an end before it began.
//!
//! What happens in the few hundred microseconds of that:
//!
//! - The process is *seized*, not attached to, so no signal is sent; the stop that the kernel gate
//!   caused (`SIGSTOP`) is swallowed or lifted at the end.
//! - A system call is made at an instruction of the vDSO and stopped at its entry and exit, so the
//!   program's own pages stay as they are, and no breakpoint signal can disturb a program that
//!   ignores or blocks it.
//! - Its signals are blocked meanwhile. Those that come stay in its queue; one that was already
//!   being delivered is put back with all that is known of it.
//! - Should this daemon die, the kernel kills the process (`PTRACE_O_EXITKILL`): it never runs on
//!   half changed.

mod arch;
mod descriptors;
mod error;
mod stack;
mod trace;

#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;

use nix::errno::Errno;
use nix::sys::uio::{RemoteIoVec, process_vm_readv, process_vm_writev};
use nix::unistd::Pid;

use self::arch::{Native, Registers as _};
use self::stack::{InitialStack, Read};
use self::trace::Stop;
use super::pinned::Process;

pub use self::descriptors::{Direction, Interposed, Kind, Place, Standard};
pub use self::error::GateError;

/// A process held at its first instruction.
///
/// Ends with [`Self::release`], [`Self::exit`] or [`Self::stand`]; dropped without either, the process is killed.
/// Bound to the thread that seized it, as ptrace is.
#[derive(Debug)]
pub struct Held<'p> {
    process: &'p Process,
    registers: Native,
    stack: InitialStack,
    mask: u64,
    call_at: u64,
    /// The word of its program that a system call instruction stands in for.
    covered: Option<u64>,
    meanwhile: Vec<libc::siginfo_t>,
    over: bool,
    bound_to_thread: PhantomData<*const ()>,
}

impl<'p> Held<'p> {
    /// Takes hold of a process that is stopping or stopped at its first instruction.
    pub fn seize(process: &'p Process) -> Result<Self, GateError> {
        Self::seize_and(process, true)
    }

    fn seize_and(process: &'p Process, use_vdso: bool) -> Result<Self, GateError> {
        let pid = process.pid();
        attach(pid)?;
        look(pid, process, use_vdso).inspect_err(|error| {
            if matches!(error, GateError::Gone { .. }) {
                reap(pid);
            } else {
                // Its stop may have been swallowed already. Failures mean that it is gone.
                let _ = process.signal(libc::SIGSTOP);
                let _ = trace::detach(pid);
            }
        })
    }

    /// Whether it runs with more rights than the one who started it (a setuid program).
    pub fn is_privileged(&self) -> bool {
        self.stack.auxiliary(stack::AT_SECURE).unwrap_or(1) != 0
    }

    /// Adds variables (`NAME=value`) to its environment.
    pub fn add_environment(&mut self, variables: &[&[u8]]) -> Result<(), GateError> {
        let pid = self.process.pid();
        let at = self.registers.stack();
        let Some(rebuilt) = self.stack.with_environment(at, variables) else {
            return Err(GateError::NoRoom { pid: pid.as_raw() });
        };
        self.write(rebuilt.stack, &rebuilt.bytes)?;
        self.registers = self.registers.with_stack(rebuilt.stack);
        if let Read::Whole(new) = InitialStack::read(&rebuilt.bytes) {
            self.stack = new;
        }
        Ok(())
    }

    /// Lets it run its program.
    pub fn release(mut self) -> Result<(), GateError> {
        self.requeue_signals()?;
        let pid = self.process.pid();
        // SIGCONT, which lifts our stop, also takes stop signals out of the queue that somebody
        // else meant (Ctrl-Z in this very millisecond): they are sent again.
        let stops: Vec<i32> = trace::waiting_signals(pid)
            .map_err(|why| self.lost("ptrace", why))?
            .into_iter()
            .filter(|s| [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU].contains(s))
            .collect();
        self.uncover()?;
        trace::set_registers(pid, self.registers).map_err(|why| self.lost("ptrace", why))?;
        trace::set_signal_mask(pid, self.mask).map_err(|why| self.lost("ptrace", why))?;
        self.let_go(&stops)
    }

    /// Puts it back where it was: stopped, and traced by nobody.
    pub fn stand(mut self) -> Result<(), GateError> {
        self.requeue_signals()?;
        let pid = self.process.pid();
        self.uncover()?;
        trace::set_registers(pid, self.registers).map_err(|why| self.lost("ptrace", why))?;
        trace::set_signal_mask(pid, self.mask).map_err(|why| self.lost("ptrace", why))?;
        let _ = self.process.signal(libc::SIGSTOP);
        trace::detach(pid).map_err(|why| self.lost("ptrace", why))?;
        self.over = true;
        Ok(())
    }

    /// Ends it with an exit status; its program never runs.
    pub fn exit(mut self, status: u8) -> Result<(), GateError> {
        let number = libc::SYS_exit_group.cast_unsigned();
        let last = self
            .registers
            .call(self.call_at, number, [status.into(), 0, 0, 0, 0, 0]);
        trace::set_registers(self.process.pid(), last).map_err(|why| self.lost("ptrace", why))?;
        self.let_go(&[])
    }

    /// Makes a system call in its name.
    fn call(
        &mut self,
        what: &'static str,
        number: libc::c_long,
        arguments: [u64; 6],
    ) -> Result<u64, GateError> {
        let pid = self.process.pid();
        let registers = self
            .registers
            .call(self.call_at, number.cast_unsigned(), arguments);
        trace::set_registers(pid, registers).map_err(|why| self.lost(what, why))?;
        // Entry, then exit.
        for _ in 0..2 {
            self.run_to_syscall(what)?;
        }
        let result = trace::registers(pid)
            .map_err(|why| self.lost(what, why))?
            .map_or(-i64::from(libc::ENOEXEC), |r| r.result());
        u64::try_from(result).map_err(|_| GateError::Failed {
            pid: pid.as_raw(),
            what,
            why: Errno::from_raw(i32::try_from(-result).unwrap_or(libc::EINVAL)),
        })
    }

    fn run_to_syscall(&mut self, what: &'static str) -> Result<(), GateError> {
        let pid = self.process.pid();
        loop {
            trace::run_to_syscall(pid).map_err(|why| self.lost(what, why))?;
            match trace::wait(pid) {
                Ok(Stop::Syscall) => return Ok(()),
                Ok(Stop::Event) => {}
                Ok(Stop::Signal(signal)) => note_signal(pid, signal, &mut self.meanwhile)
                    .map_err(|why| self.lost(what, why))?,
                Err(trace::Ended) => {
                    self.over = true;
                    return Err(GateError::Gone { pid: pid.as_raw() });
                }
            }
        }
    }

    /// Puts signals back that were being delivered when it was seized.
    fn requeue_signals(&mut self) -> Result<(), GateError> {
        for info in std::mem::take(&mut self.meanwhile) {
            // Only to itself may a process send a signal with everything that is known of it.
            let itself = self.call("getpid", libc::SYS_getpid, [0; 6])?;
            // SAFETY: a siginfo_t is plain bytes, all of them initialised by the kernel.
            let bytes = unsafe {
                std::slice::from_raw_parts(
                    (&raw const info).cast::<u8>(),
                    size_of::<libc::siginfo_t>(),
                )
            };
            let at = self.scratch();
            self.write(at, bytes)?;
            let signal = u64::from(info.si_signo.unsigned_abs());
            self.call(
                "rt_sigqueueinfo",
                libc::SYS_rt_sigqueueinfo,
                [itself, signal, at, 0, 0, 0],
            )?;
        }
        Ok(())
    }

    /// Memory below its stack that nobody uses yet.
    fn scratch(&self) -> u64 {
        (self.registers.stack() - 1024) & !15
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Result<(), GateError> {
        let pid = self.process.pid();
        let there = RemoteIoVec {
            base: usize::try_from(at).unwrap_or_default(),
            len: bytes.len(),
        };
        match process_vm_writev(pid, &[IoSlice::new(bytes)], &[there]) {
            Ok(written) if written == bytes.len() => Ok(()),
            Ok(_) => Err(self.lost("writing its memory", Errno::EFAULT)),
            Err(why) => Err(self.lost("writing its memory", why)),
        }
    }

    /// Takes the system call instruction out of its program again, where one was put in.
    fn uncover(&mut self) -> Result<(), GateError> {
        if let Some(word) = self.covered.take() {
            trace::poke(self.process.pid(), self.call_at, word)
                .map_err(|why| self.lost("ptrace", why))?;
        }
        Ok(())
    }

    /// Lifts the stop, puts back stop signals that this takes away, and ends the tracing.
    fn let_go(&mut self, stops: &[i32]) -> Result<(), GateError> {
        let pid = self.process.pid();
        // Before detaching: after it the process would stop again until we come by, and stay
        // stopped for ever should we die in between.
        let _ = self.process.signal(libc::SIGCONT);
        for &stop in stops {
            let _ = self.process.signal(stop);
        }
        trace::detach(pid).map_err(|why| self.lost("ptrace", why))?;
        self.over = true;
        Ok(())
    }

    /// What an error of ptrace means: a process that was killed is no longer there to trace.
    fn lost(&self, what: &'static str, why: Errno) -> GateError {
        let pid = self.process.pid().as_raw();
        match why {
            Errno::ESRCH => GateError::Gone { pid },
            why => GateError::Failed { pid, what, why },
        }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        // It may be half changed.
        let _ = self.process.signal(libc::SIGKILL);
        reap(self.process.pid());
    }
}

/// Takes note of the death of a process we trace; until then its parent cannot reap it.
fn reap(pid: Pid) {
    while trace::wait(pid).is_ok() {}
}

/// Becomes the tracer of `pid` and asks it to stop.
fn attach(pid: Pid) -> Result<(), GateError> {
    let options = trace::EXIT_KILL | trace::MARK_SYSCALLS;
    let seized = match trace::seize(pid, options | trace::SUSPEND_SECCOMP) {
        // Either the kernel cannot suspend filters, or we may not trace it at all.
        Err(Errno::EPERM | Errno::EINVAL) => {
            let status = Status::of(pid);
            if status.is_over {
                return Err(GateError::Gone { pid: pid.as_raw() });
            }
            if status.tracer == 0 && status.seccomp != 0 {
                return Err(GateError::Seccomp { pid: pid.as_raw() });
            }
            trace::seize(pid, options)
        }
        other => other,
    };
    seized.and_then(|()| trace::interrupt(pid)).map_err(|why| {
        let (status, pid) = (Status::of(pid), pid.as_raw());
        match status.tracer {
            // A zombie is refused with EPERM as well.
            _ if why == Errno::ESRCH || status.is_over => GateError::Gone { pid },
            0 => GateError::Refused { pid, why },
            tracer => GateError::Traced { pid, tracer },
        }
    })
}

/// Waits for the stop and makes sure that it is the one at the gate.
fn look<'p>(pid: Pid, process: &'p Process, use_vdso: bool) -> Result<Held<'p>, GateError> {
    let raw = pid.as_raw();
    let failed = |why| match why {
        Errno::ESRCH => GateError::Gone { pid: raw },
        why => GateError::Failed {
            pid: raw,
            what: "ptrace",
            why,
        },
    };
    let mut meanwhile = Vec::new();
    match trace::wait(pid) {
        Ok(Stop::Signal(signal)) => note_signal(pid, signal, &mut meanwhile).map_err(failed)?,
        Ok(_) => {}
        Err(trace::Ended) => return Err(GateError::Gone { pid: raw }),
    }
    let result = (|| {
        let Some(registers) = trace::registers(pid).map_err(failed)? else {
            return Err(GateError::OtherArchitecture { pid: raw });
        };
        let stack = read_stack(pid, registers.stack())
            .filter(|stack| first_instruction(pid, stack) == Some(registers.instruction()))
            .ok_or(GateError::PastGate { pid: raw })?;
        let mask = trace::signal_mask(pid).map_err(failed)?;
        let vdso = stack
            .auxiliary(stack::AT_SYSINFO_EHDR)
            .filter(|_| use_vdso)
            .and_then(|base| syscall_in_vdso(pid, base));
        let (call_at, covered) = match vdso {
            Some(at) => (at, None),
            None => {
                let at = registers.instruction();
                let word = trace::peek(pid, at).map_err(failed)?;
                trace::poke(pid, at, with_syscall(word)).map_err(failed)?;
                (at, Some(word))
            }
        };
        trace::set_signal_mask(pid, u64::MAX).map_err(failed)?;
        Ok(Held {
            process,
            registers,
            stack,
            mask,
            call_at,
            covered,
            meanwhile: std::mem::take(&mut meanwhile),
            over: false,
            bound_to_thread: PhantomData,
        })
    })();
    if result.is_err() {
        for info in meanwhile {
            // It is not ours to keep: the program gets it, if not from whom it came.
            let _ = process.signal(info.si_signo);
        }
    }
    result
}

/// Keeps a signal that was about to be delivered. The gate's own `SIGSTOP` has done its work.
fn note_signal(pid: Pid, signal: i32, meanwhile: &mut Vec<libc::siginfo_t>) -> nix::Result<()> {
    if signal != libc::SIGSTOP {
        meanwhile.push(trace::signal_info(pid)?);
    }
    Ok(())
}

/// Where a program with this stack begins to run.
fn first_instruction(pid: Pid, stack: &InitialStack) -> Option<u64> {
    match stack.auxiliary(stack::AT_BASE).filter(|&base| base != 0) {
        None => stack.auxiliary(stack::AT_ENTRY),
        Some(base) => {
            let mut header = [0; 32];
            let elf = read(pid, base, &mut header) == header.len() && header[..4] == *b"\x7fELF";
            let entry = u64::from_le_bytes(header[24..32].try_into().ok()?);
            elf.then(|| base.checked_add(entry)).flatten()
        }
    }
}

fn read_stack(pid: Pid, at: u64) -> Option<InitialStack> {
    let mut size = 8 << 10;
    while size <= stack::LONGEST {
        let mut bytes = vec![0; size];
        let length = read(pid, at, &mut bytes);
        match InitialStack::read(&bytes[..length]) {
            Read::Whole(stack) => return Some(stack),
            Read::Odd => return None,
            Read::More if length < size => return None,
            Read::More => size *= 4,
        }
    }
    None
}

/// Address of a system call instruction in the kernel's own page.
fn syscall_in_vdso(pid: Pid, base: u64) -> Option<u64> {
    let mut bytes = [0; 16 << 10];
    let length = read(pid, base, &mut bytes);
    let instruction = Native::SYSCALL;
    (0..length.saturating_sub(instruction.len()))
        .step_by(Native::STEP)
        .find(|&at| bytes[at..].starts_with(instruction))
        .map(|at| base + at as u64)
}

/// A word of program text that begins with a system call.
fn with_syscall(word: u64) -> u64 {
    let mut bytes = word.to_le_bytes();
    bytes[..Native::SYSCALL.len()].copy_from_slice(Native::SYSCALL);
    u64::from_le_bytes(bytes)
}

/// Reads memory of a process; the number of bytes that were there.
fn read(pid: Pid, at: u64, into: &mut [u8]) -> usize {
    const PAGE: usize = 4096;
    let Ok(start) = usize::try_from(at) else {
        return 0;
    };
    // A transfer does not split an element, so each one ends at a page.
    let mut done = 0;
    while done < into.len() {
        let mut there = Vec::new();
        let mut planned = done;
        while planned < into.len() && there.len() < 512 {
            let base = start + planned;
            let len = (PAGE - base % PAGE).min(into.len() - planned);
            there.push(RemoteIoVec { base, len });
            planned += len;
        }
        let mut here = [IoSliceMut::new(&mut into[done..planned])];
        match process_vm_readv(pid, &mut here, &there) {
            Ok(length) if length > 0 => done += length,
            _ => break,
        }
        if done < planned {
            break;
        }
    }
    done
}

/// What `/proc/PID/status` says about tracing.
struct Status {
    /// A zombie, or gone altogether.
    is_over: bool,
    tracer: i32,
    seccomp: u32,
}

impl Status {
    fn of(pid: Pid) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let field = |name: &str| {
            text.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        Self {
            is_over: field("State:").is_none_or(|state| state.starts_with(['Z', 'X'])),
            tracer: field("TracerPid:")
                .and_then(|v| v.parse().ok())
                .unwrap_or(0),
            seccomp: field("Seccomp:").and_then(|v| v.parse().ok()).unwrap_or(0),
        }
    }
}
