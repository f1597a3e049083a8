//! A daemon that crashes does not open the fence, and the next one takes over.

use std::process::{Command, Stdio};

use acrfence_common::ABI;
use acrfence_user::probe::{Membership, Probe, ProbeError};

use crate::fence::{Fence, Place, Puppet, Target};

/// Not a test of its own: a daemon that attaches, tracks a process and dies on the spot.
#[test]
fn daemon_that_crashes() {
    let Ok(arguments) = std::env::var("ACRFENCE_TEST_CRASH") else {
        return;
    };
    let fields: Vec<&str> = arguments.split(' ').collect();
    let place = Place {
        cgroup: fields[0].into(),
        pins: fields[1].into(),
    };
    let fence = Fence::at(place, |_| {});
    fence.probe().track(fields[2].parse().unwrap(), 5).unwrap();
    fence.probe().name_agent(5, "buyer").unwrap();
    // As a kill would: nothing is released, nothing dropped.
    std::process::abort();
}

/// Runs that daemon until it is dead.
fn crash(place: &Place, agent: u32) {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "takeover::daemon_that_crashes", "--nocapture"])
        .env(
            "ACRFENCE_TEST_CRASH",
            format!(
                "{} {} {agent}",
                place.cgroup.display(),
                place.pins.display()
            ),
        )
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert!(
        std::os::unix::process::ExitStatusExt::signal(&status).is_some(),
        "{status}"
    );
}

#[test]
fn after_a_crash_the_fence_stays_closed_and_the_next_daemon_takes_over() {
    let place = Place::new();
    let target = Target::new("127.0.0.1:0");
    let call = format!("tcp({})", target.python());
    let mut agent = Puppet::new(&place.cgroup);
    let mut outsider = Puppet::new(&place.cgroup);
    crash(&place, agent.pid());

    assert_eq!(agent.errno(&call), "EPERM");
    assert_eq!(outsider.ok(&call)["heard"], "target");
    // Also for what is born while there is no daemon.
    let orphan = agent.ok(&format!("in_daemon(lambda: {call})"));
    assert_eq!(orphan["errno"], "EPERM");
    let child = agent.ok("sleeper()").as_u64().unwrap() as u32;

    let fence = Fence::at(place, |_| {});
    let tracked = fence.probe().tracked().unwrap();
    let tgids: Vec<u32> = tracked.keys().map(|p| p.tgid).collect();
    assert_eq!(tgids.len(), 2, "{tgids:?}");
    assert!(tgids.contains(&agent.pid()) && tgids.contains(&child));
    assert!(tracked.values().all(|&index| index == 5));
    assert_eq!(fence.probe().agent_names().unwrap()[&5], "buyer");
    let (answer, claims) = fence.serve(&fence.v4, 1, || agent.ok(&call));
    assert_eq!(answer["heard"], "hook");
    let claim = claims[0].unwrap();
    assert_eq!((claim.original, claim.agent), (target.addr, 5));
    assert_eq!(outsider.ok(&call)["heard"], "target");
    // The process is known although its start was reported to nobody.
    let process = fence.probe().process(claim.process).unwrap();
    assert!(process.exe.contains("python"), "{process:?}");
    // So is what it starts from now on, before it has executed anything.
    let young = agent.ok("sleeper()").as_u64().unwrap() as u32;
    let processes = fence.probe().processes(5);
    let young = processes.iter().find(|p| p.identity.tgid == young).unwrap();
    assert!(young.exe.contains("python"), "{young:?}");
    // Each hook is there once: one report a birth.
    let before = fence.account("fork").seen;
    agent.ok("run(['/bin/true'])");
    assert_eq!(fence.account("fork").seen - before, 1);
}

#[test]
fn a_second_daemon_on_the_same_hooks_is_refused() {
    let fence = Fence::new();
    let error = Probe::attach(fence.place.settings()).err().unwrap();
    assert!(matches!(error, ProbeError::Busy(_)), "{error}");
    // And the first one goes on.
    let mut agent = fence.agent();
    let (answer, _) = fence.serve(&fence.v4, 1, || agent.ok("tcp('10.99.99.99', 443)"));
    assert_eq!(answer["heard"], "hook");
}

#[test]
fn hooks_of_another_version_are_not_taken_over() {
    let fence = Fence::new();
    let mut map = fence.config_map();
    let mut config = map.get(&0, 0).unwrap();
    config.abi = ABI + 1;
    map.set(0, config, 0).unwrap();
    let place = fence.abandon();
    let error = Probe::attach(place.settings()).err().unwrap();
    assert!(
        matches!(error, ProbeError::OtherVersion { found, .. } if found == ABI + 1),
        "{error}"
    );
}

#[test]
fn release_leaves_nothing_behind() {
    let target = Target::new("127.0.0.1:0");
    let place = Place::new();
    let pins = place.pins.clone();
    let mut agent = Puppet::new(&place.cgroup);
    let fence = Fence::at(place, |_| {});
    fence.probe().track(agent.pid(), 1).unwrap();
    let place = fence.release();
    assert!(!pins.exists());
    assert_eq!(
        agent.ok(&format!("tcp({})", target.python()))["heard"],
        "target"
    );

    // What a dead daemon left can be taken out without one.
    crash(&place, agent.pid());
    assert_eq!(agent.errno(&format!("tcp({})", target.python())), "EPERM");
    Probe::remove_pins(&place.pins).unwrap();
    assert_eq!(
        agent.ok(&format!("tcp({})", target.python()))["heard"],
        "target"
    );
    assert!(!pins.exists());
    // Doing it twice is no error.
    Probe::remove_pins(&place.pins).unwrap();
}

#[test]
fn the_next_daemon_can_attach_to_another_cgroup() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let old = fence.abandon();
    let elsewhere = Place::new();
    let moved = Place {
        cgroup: elsewhere.cgroup.clone(),
        pins: old.pins.clone(),
    };
    let fence = Fence::at(moved, |_| {});
    assert!(matches!(
        fence.probe().membership(agent.pid()).unwrap(),
        Membership::Inside { agent: 1, .. }
    ));
    // Its sockets belong to the old cgroup, where no hook is any more.
    let target = Target::new("127.0.0.1:0");
    assert_eq!(
        agent.ok(&format!("tcp({})", target.python()))["heard"],
        "target"
    );
    let mut other = Puppet::new(&elsewhere.cgroup);
    fence.probe().track(other.pid(), 2).unwrap();
    let (answer, _) = fence.serve(&fence.v4, 1, || {
        other.ok(&format!("tcp({})", target.python()))
    });
    assert_eq!(answer["heard"], "hook");
}
