//! What this kernel allows, and what is lost where it does not.

use std::path::Path;

use serde::Serialize;

use super::maps::Maps;
use super::{Settings, hooks, mounts};

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it is.
    pub state: State,
    /// What was found.
    pub found: String,
    /// What is lost, or what to do; empty when nothing is.
    pub consequence: String,
}

/// How a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// As it should be.
    Good,
    /// ACRFence works, with less.
    Limited,
    /// ACRFence cannot work.
    Missing,
}

/// Everything that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// In the order in which it matters.
    pub checks: Vec<Check>,
}

impl Report {
    /// The worst of all.
    pub fn state(&self) -> State {
        self.checks
            .iter()
            .map(|check| check.state)
            .max()
            .unwrap_or(State::Good)
    }
}

/// Looks at this machine. Loads the programs so that the kernel checks them, attaches for a moment the one
/// that can deny an exec, to nobody's process, and leaves nothing behind.
pub fn doctor() -> Report {
    let mut checks = vec![root(), kernel()];
    let layout = hooks::kernel_layout();
    checks.push(match &layout {
        Ok(_) => good("type information", "/sys/kernel/btf/vmlinux is understood"),
        Err(error) => missing("type information", "not usable", &error.to_string()),
    });
    checks.push(match mounts::cgroup2() {
        Some(place) => good("cgroup2", &format!("mounted at {}", place.display())),
        None => missing(
            "cgroup2",
            "not mounted",
            "connections cannot be redirected; `mount -t cgroup2 none /sys/fs/cgroup/unified`",
        ),
    });
    checks.push(file_system("bpffs", bpffs(), mounts::BPFFS));
    let tracing = Path::new("/sys/kernel/tracing");
    checks.push(file_system(
        "tracefs",
        mounts::tracefs().is_some() || tracing.join("events").is_dir(),
        "/sys/kernel/tracing",
    ));
    checks.push(match may_trace() {
        Ok(()) => good("tracing", "allowed"),
        Err(why) => limited(
            "tracing",
            &why,
            "stdio servers and commands of agents are not fenced",
        ),
    });
    if layout.is_ok() && nix::unistd::geteuid().is_root() {
        checks.extend(programs());
    }
    Report { checks }
}

/// Whether this kernel lets root trace other processes at all, which the exec gate needs.
pub fn may_trace() -> Result<(), String> {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if scope.trim() == "3" {
        return Err(
            "nobody may trace a process here until the next boot (kernel.yama.ptrace_scope is 3)"
                .into(),
        );
    }
    Ok(())
}

fn root() -> Check {
    if nix::unistd::geteuid().is_root() {
        good("root", "yes")
    } else {
        missing(
            "root",
            "no",
            "the daemon needs root; what depends on it was not looked at, run `sudo acrfence doctor`",
        )
    }
}

fn kernel() -> Check {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|digits| digits.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= OLDEST {
        good("kernel", release)
    } else {
        Check {
            name: "kernel".into(),
            state: State::Limited,
            found: release.into(),
            consequence: format!(
                "kernels before {}.{} are not tested; hooks may be refused",
                OLDEST.0, OLDEST.1
            ),
        }
    }
}

/// The oldest kernel that is tested.
const OLDEST: (u32, u32) = (6, 1);

fn bpffs() -> bool {
    super::sys::is_bpffs(Path::new(mounts::BPFFS)).unwrap_or(false)
}

fn file_system(name: &str, mounted: bool, place: &str) -> Check {
    if mounted {
        good(name, "mounted")
    } else if Path::new(place).is_dir() {
        good(
            name,
            &format!("not mounted; the daemon mounts it at {place}"),
        )
    } else {
        missing(
            name,
            "not there",
            &format!("this kernel does not offer it at {place}; hooks cannot be attached"),
        )
    }
}

fn programs() -> Vec<Check> {
    let settings = Settings {
        ring_bytes: 4096,
        ..Settings::default()
    };
    let loaded = hooks::load(&settings, None).and_then(|ebpf| Ok((ebpf, hooks::kernel_btf()?)));
    let (mut ebpf, btf) = match loaded {
        Ok(both) => both,
        Err(error) => return vec![missing("hooks", "not loadable", &error.to_string())],
    };
    let mut checks: Vec<Check> = hooks::HOOKS
        .iter()
        .map(|hook| {
            let name = format!("hook {}", hook.program);
            match (hooks::load_one(&mut ebpf, hook, &btf), hook.lost) {
                (Ok(()), _) => good(&name, "allowed"),
                (Err(why), Some(lost)) => limited(&name, &why, lost),
                (Err(why), None) => missing(&name, &why, "nothing works without it"),
            }
        })
        .collect();
    checks.push(match hooks::load_snapshot(&mut ebpf, &btf) {
        Ok(()) => good("process snapshot", "allowed"),
        Err(why) => missing(
            "process snapshot",
            &why,
            "running agents cannot be attached to",
        ),
    });
    let denies = Maps::take(&mut ebpf)
        .map_err(|error| error.to_string())
        .and_then(|(maps, _)| hooks::second_line(&mut ebpf, &btf, None, || maps.exec_seen()));
    // Not needed, so their absence costs little or nothing.
    checks.push(good("LSM programs", &match denies {
        Ok(()) => "allowed; commands that must not run and cannot be stopped are denied".to_owned(),
        Err(why) => format!("refused ({why}); commands that must not run and cannot be stopped are killed as they begin"),
    }));
    let found = match hooks::load_feature(&mut ebpf, "feature_fentry", &btf) {
        Ok(()) => "allowed".to_owned(),
        Err(why) => format!("refused ({why}); nothing needs it, tracepoints are used instead"),
    };
    checks.push(good("fentry", &found));
    checks
}

fn good(name: &str, found: &str) -> Check {
    check(name, State::Good, found, "")
}

fn limited(name: &str, found: &str, lost: &str) -> Check {
    check(name, State::Limited, found, lost)
}

fn missing(name: &str, found: &str, consequence: &str) -> Check {
    check(name, State::Missing, found, consequence)
}

fn check(name: &str, state: State, found: &str, consequence: &str) -> Check {
    Check {
        name: name.into(),
        state,
        found: found.into(),
        consequence: consequence.into(),
    }
}
