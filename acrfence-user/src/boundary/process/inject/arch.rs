//! What differs between processors: where registers lie and how a system call is made.
//!
//! Every architecture is compiled everywhere, so that its parts are tested everywhere; [`Native`]
//! is the one of this machine.

/// The general registers of a stopped process, as `PTRACE_GETREGSET` gives them.
pub(super) trait Registers: Copy + Send {
    /// The instruction that enters the kernel.
    const SYSCALL: &'static [u8];
    /// Instructions begin at multiples of this.
    const STEP: usize;

    /// Registers that are all zero.
    fn zero() -> Self;
    /// The words in the order of the kernel.
    fn words(&mut self) -> &mut [u64];
    /// Where it would go on.
    fn instruction(&self) -> u64;
    /// Its stack pointer.
    fn stack(&self) -> u64;
    /// The same registers with another stack pointer.
    fn with_stack(self, stack: u64) -> Self;
    /// Registers that make a system call when the process goes on at `at`, where a
    /// [`Self::SYSCALL`] stands.
    fn call(self, at: u64, number: u64, arguments: [u64; 6]) -> Self;
    /// What a system call gave back: negative error numbers as the kernel has them.
    fn result(&self) -> i64;
    /// Whether the process runs in the 64-bit mode of this architecture.
    fn is_native_mode(&self) -> bool;
}

/// Registers of this machine's architecture.
#[cfg(target_arch = "x86_64")]
pub(super) type Native = X86_64;
/// Registers of this machine's architecture.
#[cfg(target_arch = "aarch64")]
pub(super) type Native = Aarch64;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the exec gate knows x86-64 and aarch64 only; teach inject/arch.rs this one");

/// `struct user_regs_struct` of x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct X86_64([u64; 27]);

/// `struct user_pt_regs` of aarch64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(target_arch = "aarch64"), allow(dead_code))]
pub(super) struct Aarch64([u64; 34]);

impl X86_64 {
    const R10: usize = 7;
    const R9: usize = 8;
    const R8: usize = 9;
    const RAX: usize = 10;
    const RDX: usize = 12;
    const RSI: usize = 13;
    const RDI: usize = 14;
    const ORIG_RAX: usize = 15;
    const RIP: usize = 16;
    const CS: usize = 17;
    const RSP: usize = 19;
    /// Code segment of 64-bit user mode.
    const USER_CS: u64 = 0x33;
}

impl Registers for X86_64 {
    const SYSCALL: &'static [u8] = &[0x0f, 0x05];
    const STEP: usize = 1;

    fn zero() -> Self {
        Self([0; 27])
    }

    fn words(&mut self) -> &mut [u64] {
        &mut self.0
    }

    fn instruction(&self) -> u64 {
        self.0[Self::RIP]
    }

    fn stack(&self) -> u64 {
        self.0[Self::RSP]
    }

    fn with_stack(mut self, stack: u64) -> Self {
        self.0[Self::RSP] = stack;
        self
    }

    fn call(mut self, at: u64, number: u64, arguments: [u64; 6]) -> Self {
        let [a, b, c, d, e, f] = arguments;
        self.0[Self::RIP] = at;
        self.0[Self::RAX] = number;
        // Not inside a system call: the kernel must not try to restart one on the way out.
        self.0[Self::ORIG_RAX] = u64::MAX;
        self.0[Self::RDI] = a;
        self.0[Self::RSI] = b;
        self.0[Self::RDX] = c;
        self.0[Self::R10] = d;
        self.0[Self::R8] = e;
        self.0[Self::R9] = f;
        self
    }

    fn result(&self) -> i64 {
        self.0[Self::RAX].cast_signed()
    }

    fn is_native_mode(&self) -> bool {
        self.0[Self::CS] == Self::USER_CS
    }
}

impl Aarch64 {
    /// Register of the system call number.
    const X8: usize = 8;
    const SP: usize = 31;
    const PC: usize = 32;
    const PSTATE: usize = 33;
    /// `PSR_MODE32_BIT`: set while 32-bit code runs.
    const MODE32: u64 = 0x10;
}

impl Registers for Aarch64 {
    // svc #0, little-endian.
    const SYSCALL: &'static [u8] = &[0x01, 0x00, 0x00, 0xd4];
    const STEP: usize = 4;

    fn zero() -> Self {
        Self([0; 34])
    }

    fn words(&mut self) -> &mut [u64] {
        &mut self.0
    }

    fn instruction(&self) -> u64 {
        self.0[Self::PC]
    }

    fn stack(&self) -> u64 {
        self.0[Self::SP]
    }

    fn with_stack(mut self, stack: u64) -> Self {
        self.0[Self::SP] = stack;
        self
    }

    fn call(mut self, at: u64, number: u64, arguments: [u64; 6]) -> Self {
        self.0[..6].copy_from_slice(&arguments);
        self.0[Self::X8] = number;
        self.0[Self::PC] = at;
        self
    }

    fn result(&self) -> i64 {
        self.0[0].cast_signed()
    }

    fn is_native_mode(&self) -> bool {
        self.0[Self::PSTATE] & Self::MODE32 == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_call_changes_what_it_must<R: Registers + PartialEq + std::fmt::Debug>(
        arguments: [usize; 6],
        number: usize,
        pc: usize,
        untouched: &[usize],
    ) {
        let mut before = R::zero();
        for (i, word) in before.words().iter_mut().enumerate() {
            *word = 1000 + i as u64;
        }
        let mut after = before.call(0x7f00, 293, [11, 12, 13, 14, 15, 16]);
        for (i, register) in arguments.into_iter().enumerate() {
            assert_eq!(after.words()[register], 11 + i as u64);
        }
        assert_eq!(after.words()[number], 293);
        assert_eq!(after.words()[pc], 0x7f00);
        assert_eq!(after.instruction(), 0x7f00);
        for &register in untouched {
            assert_eq!(after.words()[register], 1000 + register as u64);
        }
        assert_eq!(after.stack(), before.stack());
        assert_eq!(after.with_stack(4096).stack(), 4096);
        assert_eq!(after.with_stack(before.stack()), after);
    }

    #[test]
    fn x86_64_calls_as_its_abi_says() {
        a_call_changes_what_it_must::<X86_64>(
            [14, 13, 12, 7, 9, 8],
            10,
            16,
            &[
                0, 1, 2, 3, 4, 5, 6, 11, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26,
            ],
        );
        let call = X86_64::zero().call(1, 2, [0; 6]);
        assert_eq!(call.0[X86_64::ORIG_RAX], u64::MAX);
        let mut result = X86_64::zero();
        result.words()[10] = (-9_i64).cast_unsigned();
        assert_eq!(result.result(), -9);
        let mut mode = X86_64::zero();
        mode.words()[17] = 0x33;
        assert!(mode.is_native_mode());
        mode.words()[17] = 0x23;
        assert!(!mode.is_native_mode());
    }

    #[test]
    fn aarch64_calls_as_its_abi_says() {
        let untouched: Vec<usize> = [6, 7].into_iter().chain(9..=31).chain([33]).collect();
        a_call_changes_what_it_must::<Aarch64>([0, 1, 2, 3, 4, 5], 8, 32, &untouched);
        let mut result = Aarch64::zero();
        result.words()[0] = (-9_i64).cast_unsigned();
        assert_eq!(result.result(), -9);
        assert!(Aarch64::zero().is_native_mode());
        let mut mode = Aarch64::zero();
        mode.words()[33] = 0x10;
        assert!(!mode.is_native_mode());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn the_layout_is_the_one_of_the_c_library() {
        use std::mem::offset_of;
        type C = libc::user_regs_struct;
        assert_eq!(size_of::<C>(), size_of::<X86_64>());
        for (word, offset) in [
            (X86_64::R10, offset_of!(C, r10)),
            (X86_64::R9, offset_of!(C, r9)),
            (X86_64::R8, offset_of!(C, r8)),
            (X86_64::RAX, offset_of!(C, rax)),
            (X86_64::RDX, offset_of!(C, rdx)),
            (X86_64::RSI, offset_of!(C, rsi)),
            (X86_64::RDI, offset_of!(C, rdi)),
            (X86_64::ORIG_RAX, offset_of!(C, orig_rax)),
            (X86_64::RIP, offset_of!(C, rip)),
            (X86_64::CS, offset_of!(C, cs)),
            (X86_64::RSP, offset_of!(C, rsp)),
        ] {
            assert_eq!(word * 8, offset);
        }
    }
}
