//! The second line of the exec gate, where the kernel has LSM: what must not run and cannot be stopped is
//! denied.

use std::path::Path;

use aya::Ebpf;

use super::{Hook, Point, load_one, pin_link, traced_link, unpin};
use crate::probe::{ProbeError, sys};

/// The second line of the exec gate: what tells the words of a command line, and what denies an exec.
const SECOND_LINE: [Hook; 3] = [
    second("sys_execve", Point::Syscall("sys_enter_execve")),
    second("sys_execveat", Point::Syscall("sys_enter_execveat")),
    second("exec_deny", Point::Lsm("bprm_check_security")),
];

const fn second(program: &'static str, point: Point) -> Hook {
    Hook {
        program,
        point,
        lost: Some("commands that must not run are killed as they begin instead of denied"),
        watches_writes: false,
    }
}

/// Puts the second line of the exec gate in place below `pin_directory`. Without one, only the program that
/// denies an exec is attached, and for a moment: then the answer says whether this kernel would let it
/// work. `is_asked` tells whether that program was ever asked.
///
/// An error says why there is none. Everything else works without it.
pub fn second_line(
    ebpf: &mut Ebpf,
    btf: &aya::Btf,
    pin_directory: Option<&Path>,
    is_asked: impl FnOnce() -> Result<bool, ProbeError>,
) -> Result<(), String> {
    let pin = |hook: &Hook| pin_directory.map(|directory| directory.join(hook.program));
    let attached = (|| {
        let mut links = Vec::new();
        for hook in &SECOND_LINE {
            load_one(ebpf, hook, btf)?;
            match pin(hook) {
                Some(pin) => pin_link(traced_link(ebpf, hook)?, &pin)?,
                None if matches!(hook.point, Point::Lsm(_)) => {
                    links.push(traced_link(ebpf, hook)?);
                }
                None => {}
            }
        }
        sys::try_exec().map_err(|e| format!("it cannot be tried: {e}"))?;
        if is_asked().map_err(|e| e.to_string())? {
            return Ok(());
        }
        Err(
            "the kernel never asks it: `bpf` is not in its list of LSMs (boot parameter `lsm=`)"
                .to_owned(),
        )
    })();
    if attached.is_err() {
        for hook in &SECOND_LINE {
            if let Some(pin) = pin(hook) {
                unpin(&pin).map_err(|e| e.to_string())?;
            }
        }
    }
    attached
}
