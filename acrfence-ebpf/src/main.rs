//! The kernel side of ACRFence. One file a hook family:
//!
//! - [`tree`]: who belongs to an agent (fork, exit), and the snapshot of all processes
//! - [`exec`]: which program a tracked process starts
//! - [`command`]: which command that is
//! - [`gate`]: stops a tracked process between exec and its first instruction
//! - [`deny`]: the second line of the gate, where the kernel has LSM
//! - [`connect`]: sends tracked connections to the daemon
//! - [`establish`]: tells the daemon whose connection it accepted
//! - [`write`]: what crosses a boundary that is not fenced
//! - [`restore`]: use of the kernel's restore primitives
//! - [`feature`]: programs that only show what this kernel allows
//!
//! A hook on a process that belongs to no agent costs one look-up and returns.
#![no_std]
#![no_main]
// Inline assembly for BPF is not stable yet; aya-ebpf needs it as well.
#![feature(asm_experimental_arch)]

mod account;
mod command;
mod connect;
mod deny;
mod establish;
mod exec;
mod feature;
mod gate;
mod kernel;
mod maps;
mod path;
mod restore;
mod tree;
mod write;

// Several helpers are open to GPL-compatible programs only.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The verifier rejects programs in which this could be reached.
    loop {}
}
