//! Loads the programs, attaches them, and pins what must outlive the daemon.
//!
//! In the pin directory lie the maps (upper case) and one link a hook (lower case). A daemon that
//! finds them takes them over: it keeps the maps, so that nobody leaves the fence meanwhile, and
//! puts its own programs into the links. [`remove`] takes everything out of the kernel.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use acrfence_common::{ABI, Config, Layout};
use aya::maps::{MapData, MapInfo};
use aya::programs::links::FdLink;
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader};

mod second_line;

pub use second_line::second_line;

use super::btf::Btf;
use super::{ProbeError, Settings, layout, maps, sys};

/// A hook and where it goes.
pub struct Hook {
    /// Name of the program, and of its pinned link.
    pub program: &'static str,
    point: Point,
    /// What is lost without it; none when nothing works without it.
    pub lost: Option<&'static str>,
    /// Only for watching what crosses boundaries that are not fenced.
    pub watches_writes: bool,
}

/// Everything that is attached.
pub const HOOKS: &[Hook] = &[
    required("process_fork", Point::Btf("sched_process_fork")),
    required("process_exec", Point::Btf("sched_process_exec")),
    required("process_exit", Point::Btf("sched_process_exit")),
    Hook {
        program: "process_gate",
        point: Point::Btf("sched_process_exec"),
        lost: Some("stdio servers and commands of agents are not fenced"),
        watches_writes: false,
    },
    required("tcp_life", Point::Cgroup(3)),
    required("sock_release", Point::Cgroup(34)),
    required("tcp_getpeername4", Point::Cgroup(29)),
    required("tcp_getpeername6", Point::Cgroup(30)),
    required("udp_sendmsg4", Point::Cgroup(14)),
    required("udp_sendmsg6", Point::Cgroup(15)),
    required("tcp_connect4", Point::Cgroup(10)),
    required("tcp_connect6", Point::Cgroup(11)),
    write("sys_write", "sys_enter_write"),
    write("sys_writev", "sys_enter_writev"),
    write("sys_sendto", "sys_enter_sendto"),
    write("sys_sendmsg", "sys_enter_sendmsg"),
    write("sys_sendmmsg", "sys_enter_sendmmsg"),
    write("sys_sendfile", "sys_enter_sendfile64"),
    write("sys_splice", "sys_enter_splice"),
    restore("sys_clone3", Point::Syscall("sys_enter_clone3")),
    restore("sys_prctl", Point::Syscall("sys_enter_prctl")),
    restore("sys_ptrace", Point::Syscall("sys_enter_ptrace")),
    restore("sys_setsockopt", Point::Syscall("sys_enter_setsockopt")),
    restore("sysctl_write", Point::Cgroup(18)),
];

/// Where a program is attached.
#[derive(Clone, Copy)]
enum Point {
    /// A BTF tracepoint.
    Btf(&'static str),
    /// A system call's tracepoint.
    Syscall(&'static str),
    /// A cgroup hook, by its number in `enum bpf_attach_type`.
    Cgroup(u32),
    /// A hook for Linux security modules.
    Lsm(&'static str),
}

const fn required(program: &'static str, point: Point) -> Hook {
    Hook {
        program,
        point,
        lost: None,
        watches_writes: false,
    }
}

const fn write(program: &'static str, call: &'static str) -> Hook {
    Hook {
        program,
        point: Point::Syscall(call),
        lost: Some("what crosses boundaries that are not fenced is seen only in part"),
        watches_writes: true,
    }
}

const fn restore(program: &'static str, point: Point) -> Hook {
    Hook {
        program,
        point,
        lost: Some("a restore by CRIU and what builds on it is not noticed from the kernel"),
        watches_writes: false,
    }
}

/// The programs, as `cargo xtask build` made them.
pub static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/acrfence.bpf.o"));

/// Reads the kernel's own type information and finds what the programs need in it.
pub fn kernel_layout() -> Result<Layout, ProbeError> {
    let place = "/sys/kernel/btf/vmlinux";
    let bytes = fs::read(place).map_err(|e| ProbeError::NoBtf(format!("{place}: {e}")))?;
    let btf = Btf::parse(&bytes).map_err(|e| ProbeError::NoBtf(format!("{place}: {e}")))?;
    layout::read(&btf).map_err(|e| ProbeError::UnknownLayout(e.to_string()))
}

/// Parses the object and creates its maps, or opens them where they are pinned. Nothing runs yet.
pub fn load(settings: &Settings, pin_directory: Option<&Path>) -> Result<Ebpf, ProbeError> {
    let layout = kernel_layout()?;
    let log_level = settings.kernel_log_level;
    let mut loader = EbpfLoader::new();
    loader
        .override_global("LAYOUT", &layout, true)
        .override_global(aya_log::LEVEL, &log_level, false)
        .map_max_entries("EVENTS", settings.ring_bytes)
        .map_max_entries("SOCKETS", settings.most_connections)
        .map_max_entries("CLIENTS", settings.most_connections)
        .map_max_entries("TRACKED", most_processes());
    if let Some(directory) = pin_directory {
        check_version(directory)?;
        for name in maps::PINNED {
            let path = directory.join(name);
            // A map that is there keeps its size; the loader has to know it.
            if let Some(size) = pinned_size(&path) {
                loader.map_max_entries(name, size);
            }
            loader.map_pin_path(name, path);
        }
    }
    loader
        .load(OBJECT)
        .map_err(|error| ProbeError::Object(chain(&error)))
}

/// Loads every program that `settings` ask for and attaches or replaces it. Gives the hooks that
/// this kernel refuses but that can be done without, with the reason.
pub fn attach(
    ebpf: &mut Ebpf,
    settings: &Settings,
    pin_directory: &Path,
    cgroup: &Path,
    same_cgroup: bool,
) -> Result<Vec<(&'static str, String)>, ProbeError> {
    let cgroup = fs::File::open(cgroup).map_err(|source| ProbeError::System {
        what: format!("cannot open the cgroup {}", cgroup.display()),
        source,
    })?;
    let btf = kernel_btf()?;
    let mut refused = vec![];
    for hook in HOOKS {
        let pin = pin_directory.join(hook.program);
        if hook.watches_writes && settings.captures == 0 {
            unpin(&pin)?;
            continue;
        }
        let done = load_one(ebpf, hook, &btf)
            .and_then(|()| attach_one(ebpf, hook, &pin, cgroup.as_fd(), same_cgroup));
        match done {
            Ok(()) => {}
            Err(why) if hook.lost.is_some() => {
                tracing::warn!(hook = hook.program, why, "the kernel refuses a hook");
                unpin(&pin)?;
                refused.push((hook.program, why));
            }
            Err(why) => {
                return Err(ProbeError::Refused {
                    hook: hook.program.into(),
                    why,
                });
            }
        }
    }
    load_snapshot(ebpf, &btf).map_err(|why| ProbeError::Refused {
        hook: SNAPSHOT.into(),
        why,
    })?;
    Ok(refused)
}

/// Loads one program, so that the kernel checks it.
pub fn load_one(ebpf: &mut Ebpf, hook: &Hook, btf: &aya::Btf) -> Result<(), String> {
    match (program(ebpf, hook.program)?, hook.point) {
        (Program::BtfTracePoint(program), Point::Btf(name)) => program.load(name, btf),
        (Program::TracePoint(program), Point::Syscall(_)) => program.load(),
        (Program::CgroupSockAddr(program), Point::Cgroup(_)) => program.load(),
        (Program::CgroupSock(program), Point::Cgroup(_)) => program.load(),
        (Program::CgroupSysctl(program), Point::Cgroup(_)) => program.load(),
        (Program::SockOps(program), Point::Cgroup(_)) => program.load(),
        (Program::Lsm(program), Point::Lsm(hook)) => program.load(hook, btf),
        _ => return Err("the program is of another kind than its hook".into()),
    }
    .map_err(|error| why(&error))
}

/// Loads the program behind [`snapshot`].
pub fn load_snapshot(ebpf: &mut Ebpf, btf: &aya::Btf) -> Result<(), String> {
    match program(ebpf, SNAPSHOT)? {
        Program::Iter(program) => program.load("task", btf).map_err(|error| why(&error)),
        _ => Err("the program is of another kind than its hook".into()),
    }
}

/// Loads one of the programs that only show what the kernel allows.
pub fn load_feature(ebpf: &mut Ebpf, name: &str, btf: &aya::Btf) -> Result<(), String> {
    match program(ebpf, name)? {
        Program::FEntry(program) => program.load("do_exit", btf),
        _ => return Err("no feature program".into()),
    }
    .map_err(|error| why(&error))
}

/// Runs the process snapshot; gives its raw rows.
pub fn snapshot(ebpf: &mut Ebpf) -> Result<Vec<u8>, ProbeError> {
    let failed = |what: String| ProbeError::System {
        what: "the processes cannot be listed".into(),
        source: io::Error::other(what),
    };
    let program = match program(ebpf, SNAPSHOT).map_err(failed)? {
        Program::Iter(program) => program,
        _ => {
            return Err(failed(
                "the program is of another kind than its hook".into(),
            ));
        }
    };
    let link = program
        .attach()
        .and_then(|id| program.take_link(id))
        .map_err(|e| failed(why(&e)))?;
    let mut file = link.into_file().map_err(|e| failed(chain(&e)))?;
    let mut rows = Vec::new();
    io::Read::read_to_end(&mut file, &mut rows).map_err(|source| ProbeError::System {
        what: "the processes cannot be listed".into(),
        source,
    })?;
    Ok(rows)
}

/// The kernel's type information in aya's form.
pub fn kernel_btf() -> Result<aya::Btf, ProbeError> {
    aya::Btf::from_sys_fs().map_err(|error| ProbeError::NoBtf(chain(&error)))
}

/// Takes every hook and map of a pin directory out of the kernel, and the directory with them;
/// also those of other versions.
pub fn remove(pin_directory: &Path) -> Result<(), ProbeError> {
    let failed = |source| ProbeError::System {
        what: format!("cannot remove {}", pin_directory.display()),
        source,
    };
    let entries = match fs::read_dir(pin_directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    let mut pins = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(failed)?;
    // Hooks (lower case) first: a hook without its maps could not say what it does.
    pins.sort_by(|a, b| b.file_name().cmp(&a.file_name()));
    for pin in pins {
        if let Ok(object) = sys::open_pin(&pin) {
            detach(&pin, object.as_fd())?;
        }
        unpin(&pin)?;
    }
    fs::remove_dir(pin_directory).map_err(failed)
}

/// Ends the name of a link that has not taken its place yet.
const FRESH: &str = "_new";
const SNAPSHOT: &str = "process_snapshot";

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, String> {
    ebpf.program_mut(name)
        .ok_or_else(|| format!("the program {name} is missing"))
}

fn attach_one(
    ebpf: &mut Ebpf,
    hook: &Hook,
    pin: &Path,
    cgroup: std::os::fd::BorrowedFd<'_>,
    same_cgroup: bool,
) -> Result<(), String> {
    match (program(ebpf, hook.program)?, hook.point) {
        (program, Point::Cgroup(kind)) => {
            let fd = program.fd().map_err(|error| why(&error))?.as_fd();
            let old = sys::open_pin(pin).ok();
            if let Some(link) = old.as_ref().filter(|_| same_cgroup) {
                return sys::replace_program(link.as_fd(), fd)
                    .map_err(|e| format!("its program cannot be replaced: {e}"));
            }
            let link: OwnedFd = sys::cgroup_link(fd, cgroup, kind).map_err(|e| e.to_string())?;
            name_link(pin, |path| sys::pin(link.as_fd(), path))?;
            match old {
                Some(old) => detach(pin, old.as_fd()).map_err(|e| e.to_string()),
                None => Ok(()),
            }
        }
        _ => pin_link(traced_link(ebpf, hook)?, pin),
    }
}

/// Attaches a program that is no cgroup hook.
fn traced_link(ebpf: &mut Ebpf, hook: &Hook) -> Result<FdLink, String> {
    match (program(ebpf, hook.program)?, hook.point) {
        (Program::BtfTracePoint(program), _) => {
            let link = program.attach().and_then(|id| program.take_link(id));
            link.map(FdLink::from).map_err(|error| why(&error))
        }
        (Program::Lsm(program), _) => {
            let link = program.attach().and_then(|id| program.take_link(id));
            link.map(FdLink::from).map_err(|error| why(&error))
        }
        (Program::TracePoint(program), Point::Syscall(call)) => {
            let link = program
                .attach("syscalls", call)
                .and_then(|id| program.take_link(id))
                .map_err(|error| why(&error))?;
            FdLink::try_from(link)
                .map_err(|_| "this kernel cannot keep it without the daemon".to_owned())
        }
        _ => Err("the program is of another kind than its hook".into()),
    }
}

fn pin_link(link: FdLink, pin: &Path) -> Result<(), String> {
    let mut link = Some(link);
    name_link(pin, |path| {
        let link = link.take().ok_or(io::ErrorKind::InvalidInput)?;
        link.pin(path)
            .map(drop)
            .map_err(|error| io::Error::other(chain(&error)))
    })
}

/// Gives a link its name, in the place of the one that has it. For a moment both are attached.
fn name_link(pin: &Path, give: impl FnOnce(&Path) -> io::Result<()>) -> Result<(), String> {
    // A bpffs takes no dots in names.
    let mut fresh = pin.as_os_str().to_owned();
    fresh.push(FRESH);
    let fresh = Path::new(&fresh);
    let _ = fs::remove_file(fresh);
    give(fresh)
        .and_then(|()| fs::rename(fresh, pin))
        .map_err(|e| format!("it cannot be pinned at {}: {e}", pin.display()))
}

/// Takes a cgroup hook off at once; what is no cgroup hook is left to [`unpin`].
fn detach(pin: &Path, object: std::os::fd::BorrowedFd<'_>) -> Result<(), ProbeError> {
    match sys::detach(object) {
        Err(source) if !matches!(source.raw_os_error(), Some(libc::EINVAL | libc::EOPNOTSUPP)) => {
            Err(ProbeError::System {
                what: format!("cannot detach {}", pin.display()),
                source,
            })
        }
        _ => Ok(()),
    }
}

fn unpin(path: &Path) -> Result<(), ProbeError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(ProbeError::System {
            what: format!("cannot unpin {}", path.display()),
            source,
        }),
        _ => Ok(()),
    }
}

/// Refuses maps that a different version left.
fn check_version(directory: &Path) -> Result<(), ProbeError> {
    let path = directory.join("CONFIG");
    if !path.exists() {
        return Ok(());
    }
    let other = |found| ProbeError::OtherVersion {
        directory: directory.into(),
        found,
    };
    let info = MapInfo::from_pin(&path).map_err(|_| other(0))?;
    if info.value_size() as usize != size_of::<Config>() {
        return Err(other(0));
    }
    let map = MapData::from_pin(&path).map_err(|_| other(0))?;
    let array = aya::maps::Array::<_, Config>::try_from(aya::maps::Map::Array(map))
        .map_err(|_| other(0))?;
    let config = array.get(&0, 0).map_err(|_| other(0))?;
    // Zero: a daemon died before it had written anything, and nothing was tracked.
    if config.abi == ABI || config.abi == 0 {
        Ok(())
    } else {
        Err(other(config.abi))
    }
}

fn pinned_size(path: &Path) -> Option<u32> {
    MapInfo::from_pin(path).ok().map(|info| info.max_entries())
}

/// No more processes than this can exist, so the table of tracked ones never runs full.
fn most_processes() -> u32 {
    const CEILING: u32 = 1 << 20;
    let limit = |name: &str| -> u32 {
        fs::read_to_string(format!("/proc/sys/kernel/{name}"))
            .ok()
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(CEILING)
    };
    limit("pid_max")
        .min(limit("threads-max"))
        .clamp(1024, CEILING)
}

/// What the kernel said, in one line: the last thing the verifier complained about, if it did.
fn why(error: &ProgramError) -> String {
    if let ProgramError::LoadError {
        io_error,
        verifier_log,
    } = error
    {
        let log = verifier_log.to_string();
        let complaint = log
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty() && !is_statistics(line));
        return match complaint {
            Some(line) => format!("{io_error}; {}", line.trim()),
            None => io_error.to_string(),
        };
    }
    chain(error)
}

fn is_statistics(line: &str) -> bool {
    [
        "processed ",
        "verification time",
        "stack depth",
        "peak_states",
    ]
    .iter()
    .any(|start| line.starts_with(start))
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
