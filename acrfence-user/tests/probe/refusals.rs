//! What cannot be done is refused with a sentence that says so.

use acrfence_user::probe::{ProbeError, State, doctor};

use crate::fence::Fence;

#[test]
fn what_is_no_agent_is_refused() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    fence.probe().name_agent(1, "buyer").unwrap();
    let probe = fence.probe();
    let pid = agent.pid();
    let error = |pid| probe.track(pid, 2).unwrap_err().to_string();

    let again = error(pid);
    assert!(
        again.contains("already belongs") && again.contains("`buyer`"),
        "{again}"
    );
    let child = agent.ok("sleeper()").as_u64().unwrap() as u32;
    assert!(error(child).contains("already belongs"));
    let thread = agent.ok("waiting_thread()").as_u64().unwrap() as u32;
    assert!(matches!(
        probe.track(thread, 2),
        Err(ProbeError::Thread { tid, tgid }) if tid == thread && tgid == pid
    ));
    let init = probe.track(1, 2);
    assert!(matches!(init, Err(ProbeError::Init)), "{init:?}");
    assert!(matches!(
        probe.track(2, 2),
        Err(ProbeError::KernelThread(2))
    ));
    let me = std::process::id();
    assert!(matches!(probe.track(me, 2), Err(ProbeError::Exempt(p)) if p == me));
    let gone = agent.ok("run(['/bin/true'])")[0].as_u64().unwrap() as u32;
    assert!(matches!(probe.track(gone, 2), Err(ProbeError::NoSuchProcess(p)) if p == gone));
    assert!(matches!(
        probe.track(0, 2),
        Err(ProbeError::NoSuchProcess(0))
    ));
    assert!(matches!(
        probe.track(pid, u32::MAX),
        Err(ProbeError::AgentIndex(_))
    ));
    // A process that has ended but was not waited for is no agent either.
    let zombie = agent.ok("zombie()").as_u64().unwrap() as u32;
    assert!(matches!(
        probe.track(zombie, 2),
        Err(ProbeError::NoSuchProcess(_))
    ));
}

#[test]
fn a_pin_directory_outside_a_bpffs_is_refused() {
    let place = crate::fence::Place::new();
    let mut settings = place.settings();
    let directory = tempfile::tempdir().unwrap();
    settings.pin_directory = directory.path().join("pins");
    let error = acrfence_user::probe::Probe::attach(settings).err().unwrap();
    assert!(matches!(error, ProbeError::NoBpffs(_)), "{error}");
}

#[test]
fn the_doctor_finds_this_machine_fit() {
    let report = doctor();
    let find = |name: &str| {
        report
            .checks
            .iter()
            .find(|check| check.name == name)
            .unwrap_or_else(|| panic!("{name}: {report:?}"))
    };
    for name in [
        "root",
        "kernel",
        "type information",
        "cgroup2",
        "hook tcp_connect4",
        "process snapshot",
    ] {
        assert_eq!(find(name).state, State::Good, "{:?}", find(name));
    }
    assert!(report.state() < State::Missing, "{report:?}");
    find("fentry");
    find("LSM programs");
}
