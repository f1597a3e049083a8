//! Which command a process is about to run: whether policy names its program, and whether its words
//! may be meant.
//!
//! The rules themselves are asked in user space. Where nobody can be asked, a command line that has none
//! of the words that its program's rules want is none of theirs; any other may be.

use core::ffi::c_void;

use acrfence_common::{CommandWord, GateRefusal, ProgramName};
use aya_ebpf::helpers::generated::{
    bpf_probe_read_kernel_str, bpf_probe_read_user, bpf_probe_read_user_str,
};

use crate::exec::Areas;
use crate::kernel::pointer;
use crate::maps::{GATE_COMMANDS, GATE_TEXT, GATE_WORDS, offset};

/// The words of a command line, one after the other.
pub trait Words {
    /// Where the next one is; 0 behind the last. None when that cannot be told.
    fn next(&mut self) -> Option<u64>;
}

/// Words that lie one behind the other, as the kernel puts them into a new program's memory.
pub struct InMemory {
    at: u64,
    end: u64,
}

impl InMemory {
    #[inline(always)]
    pub fn of(areas: &Areas) -> Self {
        Self {
            at: areas.args,
            end: areas.args + areas.args_len,
        }
    }
}

impl Words for InMemory {
    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let at = self.at;
        if at >= self.end {
            return Some(0);
        }
        let text = GATE_TEXT.get_ptr_mut(0)?;
        // SAFETY: the helper checks the address; the text holds 4096 bytes.
        let length = unsafe { bpf_probe_read_user_str(text.cast(), 4096, at as *const c_void) };
        // What follows a word that is cut cannot be found.
        if length <= 0 || length >= 4096 {
            return None;
        }
        self.at = at + length as u64;
        Some(at)
    }
}

/// Words as a program hands them to `execve`: a list of pointers.
pub struct Listed {
    at: u64,
}

impl Listed {
    #[inline(always)]
    pub fn at(at: u64) -> Self {
        Self { at }
    }
}

impl Words for Listed {
    #[inline(always)]
    fn next(&mut self) -> Option<u64> {
        let mut word = 0u64;
        // SAFETY: the helper checks the address; the destination holds 8 bytes.
        let result =
            unsafe { bpf_probe_read_user((&raw mut word).cast(), 8, self.at as *const c_void) };
        self.at += 8;
        (result == 0).then_some(word)
    }
}

/// Whether policy names the program: by the name it was started by, or by that of its file (a link
/// may be called anything). Gives which words are asked for; 0 for none. `scratch` has room for
/// [`SCRATCH`] bytes.
#[inline(always)]
pub fn named(binprm: *const c_void, scratch: *mut u8) -> Option<u32> {
    let file = pointer(binprm, offset!(binprm_file))?;
    let dentry = pointer(file, offset!(file_dentry))?;
    if let Some(group) = group(pointer(dentry, offset!(dentry_name))?) {
        return Some(group);
    }
    let path = pointer(binprm, offset!(binprm_filename))?;
    let start = base_name(path, scratch)?;
    group(path.cast::<u8>().wrapping_add(start).cast())
}

/// Room for a path, and for a number.
pub const SCRATCH: usize = LONGEST_PATH + 8;

/// Where the last part of a path begins.
#[inline(always)]
fn base_name(path: *const c_void, scratch: *mut u8) -> Option<usize> {
    // SAFETY: the helper checks the address; the scratch holds more than that.
    let length = unsafe { bpf_probe_read_kernel_str(scratch.cast(), LONGEST_PATH as u32, path) };
    if length <= 0 {
        return None;
    }
    // SAFETY: nobody else uses the scratch while the program runs. The start is kept in it as well: of
    // what lies there the verifier believes nothing, and so need not follow the loop once for every
    // place where a slash may be.
    unsafe {
        let start = scratch.add(LONGEST_PATH).cast::<u16>();
        start.write_volatile(0);
        for at in 0..LONGEST_PATH {
            let byte = scratch.add(at).read();
            if byte == 0 {
                break;
            }
            if byte == b'/' {
                start.write_volatile(at as u16 + 1);
            }
        }
        Some(usize::from(start.read_volatile()) & (LONGEST_PATH - 1))
    }
}

#[inline(always)]
fn group(name: *const c_void) -> Option<u32> {
    let mut program = ProgramName { bytes: [0; 32] };
    // A longer name is cut; user space looks at the whole of it.
    // SAFETY: the helper checks the address; the destination holds 32 bytes.
    let length = unsafe { bpf_probe_read_kernel_str((&raw mut program.bytes).cast(), 32, name) };
    if length <= 0 {
        return None;
    }
    // SAFETY: the value is copied.
    unsafe { GATE_COMMANDS.get(program) }.copied()
}

const LONGEST_PATH: usize = 256;

/// Whether a command line may be one that a rule of its program means. In doubt it may.
#[inline(always)]
pub fn may_be_meant(group: u32, mut words: impl Words) -> bool {
    if group == 0 {
        return true;
    }
    for _ in 0..MOST_WORDS {
        match words.next() {
            Some(0) => return false,
            Some(at) => {
                let mut key = CommandWord {
                    word: ProgramName { bytes: [0; 32] },
                    group,
                };
                // SAFETY: the helper checks the address; the destination holds 32 bytes.
                let length = unsafe {
                    bpf_probe_read_user_str(
                        (&raw mut key.word.bytes).cast(),
                        32,
                        at as *const c_void,
                    )
                };
                if length <= 0 || GATE_WORDS.get_ptr(key).is_some() {
                    return true;
                }
            }
            None => return true,
        }
    }
    true
}

/// A command line with more words may be anything.
const MOST_WORDS: usize = 64;

/// Copies the first words of a command line.
#[inline(always)]
pub fn copy(mut words: impl Words, to: *mut GateRefusal) {
    // SAFETY: the record is whole, and each part that is written lies in it.
    unsafe {
        (&raw mut (*to).words).write([[0; GateRefusal::LONGEST]; GateRefusal::MOST]);
        (&raw mut (*to).zero).write(0);
        let mut count = 0u32;
        for n in 0..GateRefusal::MOST {
            let at = match words.next() {
                Some(0) => break,
                Some(at) => at,
                None => {
                    count = GateRefusal::MOST as u32 + 1;
                    break;
                }
            };
            let word = (&raw mut (*to).words)
                .cast::<[u8; GateRefusal::LONGEST]>()
                .add(n);
            bpf_probe_read_user_str(
                word.cast(),
                GateRefusal::LONGEST as u32,
                at as *const c_void,
            );
            count += 1;
        }
        if count == GateRefusal::MOST as u32 && words.next() != Some(0) {
            count += 1;
        }
        (&raw mut (*to).count).write(count);
    }
}

/// Says that the command line is not known.
#[inline(always)]
pub fn copy_nothing(to: *mut GateRefusal) {
    // SAFETY: as in [`copy`].
    unsafe {
        (&raw mut (*to).words).write([[0; GateRefusal::LONGEST]; GateRefusal::MOST]);
        (&raw mut (*to).count).write(0);
        (&raw mut (*to).zero).write(0);
    }
}
