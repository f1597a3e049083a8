//! The kernel's restore primitives are noticed, whoever uses them.

use acrfence_common::RESTORED;
use acrfence_user::probe::{Membership, Primitive, Restored, What};
use acrfence_user::words::ProcessIdentity;
use serde_json::Value;

use crate::fence::{EventsExt as _, Fence, Puppet, Target, wait_for_some};

#[test]
fn every_restore_primitive_is_noticed() {
    let fence = Fence::new();
    let mut outsider = fence.puppet();
    let mut events = fence.probe().events();
    // A pid that is free: that of a child that has just ended.
    let free = outsider.ok("run(['/bin/true'])")[0].as_u64().unwrap();
    outsider.ok(&format!("clone_at({free}, ['/bin/true'])"));
    outsider.ok("write_last_pid()");
    outsider.ok("set_mm()");
    outsider.ok("tcp_repair()");
    fence.probe().drain();
    let seen: Vec<_> = std::iter::from_fn(|| events.try_event())
        .filter(|event| event.process.tgid == outsider.pid())
        .filter_map(|event| match event.what {
            What::Restoring {
                primitive,
                argument,
            } => {
                assert_eq!(event.agent, None);
                Some((primitive, argument))
            }
            _ => None,
        })
        .collect();
    let expected = [
        (Primitive::SetTid, free),
        (Primitive::LastPid, 0),
        (Primitive::SetMm, 8),
        (Primitive::TcpRepair, 1),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn ordinary_use_of_the_same_calls_is_not() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    agent.ok("[run(['/bin/true']), ordinary_calls()] and None");
    // Others on this machine may restore something meanwhile; this process must not show up.
    let mut events = fence.probe().events();
    fence.probe().drain();
    let seen = std::iter::from_fn(|| events.try_event())
        .filter(|e| e.process.tgid == agent.pid() && matches!(e.what, What::Restoring { .. }))
        .count();
    assert_eq!(seen, 0);
}

/// A process of agent 1 that has ended; gives its pid.
fn dead_process(agent: &mut Puppet) -> u32 {
    let pid = agent.ok("sleeper()").as_u64().unwrap() as u32;
    agent.ok(&format!("end({pid})"));
    pid
}

fn identity(fence: &Fence, pid: u32) -> ProcessIdentity {
    match fence.probe().membership(pid).unwrap() {
        Membership::Inside { process, agent } => {
            assert_eq!(agent, RESTORED);
            process
        }
        other => panic!("{other:?}"),
    }
}

/// Lets a puppet run code that makes it, or a process that it relays to, a restored one; waits until
/// that is stopped, and lets it go on. Gives it, and what the code gave.
fn restores(fence: &Fence, puppet: &mut Puppet, code: &str) -> (Restored, Value) {
    puppet.start(code);
    let restored = wait_for_some("a restored process that is stopped", || {
        let restored = fence.probe().restored().unwrap();
        restored.into_iter().find(|one| {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", one.process.tgid));
            stat.is_ok_and(|stat| stat.rsplit_once(") ").is_some_and(|s| s.1.starts_with('T')))
        })
    });
    fence.probe().go_on(restored.process).unwrap();
    (restored, puppet.answer())
}

#[test]
fn a_restored_process_is_fenced_before_it_runs_and_then_adopted() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let mut agent = fence.agent();
    let mut outsider = fence.puppet();
    let pid = dead_process(&mut agent);
    outsider.ok(&format!("relay_child({pid})"));
    let told_to = |code: &str| format!("relay({code:?})");
    let call = format!("tcp({})", target.python());
    // The pid alone means nothing.
    assert_eq!(fence.probe().membership(pid).unwrap(), Membership::Outside);
    assert_eq!(outsider.ok(&told_to(&call))["heard"], "target");

    let mut events = fence.probe().events();
    let (restored, answer) = restores(&fence, &mut outsider, &told_to("set_mm_map()"));
    assert_eq!(answer["ok"], 0);
    fence.probe().drain();
    let told = std::iter::from_fn(|| events.try_event())
        .filter(|event| event.process.tgid == pid)
        .find_map(|event| match event.what {
            What::Restoring {
                primitive,
                argument,
            } => Some((event.agent, primitive, argument)),
            _ => None,
        });
    assert_eq!(told, Some((Some(RESTORED), Primitive::Restored, 1)));
    let process = identity(&fence, pid);
    let expected = Restored {
        process,
        was: Some(1),
        pid,
    };
    assert_eq!(restored, expected);
    let mut relay = |code: &str| outsider.ok(&told_to(code));
    let (answer, claims) = fence.serve(&fence.v4, 1, || relay(&call));
    assert_eq!(answer["heard"], "hook");
    assert_eq!(claims[0].unwrap().agent, RESTORED);

    // What it makes meanwhile comes along, also when the one between is gone.
    let child = relay("sleeper()").as_u64().unwrap() as u32;
    let orphan = relay("orphan_now()").as_u64().unwrap() as u32;
    assert_eq!(identity(&fence, orphan).tgid, orphan);
    let adopted = fence.probe().adopt(process, 7).unwrap();
    let mut adopted: Vec<u32> = adopted.iter().map(|p| p.tgid).collect();
    adopted.sort_unstable();
    let mut expected = [pid, child, orphan];
    expected.sort_unstable();
    assert_eq!(adopted, expected);
    assert_eq!(fence.probe().restored().unwrap(), []);
    let late = relay("sleeper()").as_u64().unwrap() as u32;
    assert!(matches!(
        fence.probe().membership(late).unwrap(),
        Membership::Inside { agent: 7, .. }
    ));
    let (_, claims) = fence.serve(&fence.v4, 1, || relay(&call));
    assert_eq!(claims[0].unwrap().agent, 7);
    assert!(
        fence
            .probe()
            .process(process)
            .unwrap()
            .exe
            .contains("python")
    );
    for pid in [child, late] {
        relay(&format!("end({pid})"));
    }
}

#[test]
fn the_same_call_by_others_is_no_restore() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let mut outsider = fence.puppet();
    assert_eq!(outsider.ok("set_mm_map()"), 0);
    assert_eq!(
        fence.probe().membership(outsider.pid()).unwrap(),
        Membership::Outside
    );
    // A process that was dumped and goes on is itself.
    let Membership::Inside { process, .. } = fence.probe().membership(agent.pid()).unwrap() else {
        panic!("not tracked");
    };
    fence
        .probe()
        .expect_restore(agent.pid(), process.start_ns, 1)
        .unwrap();
    assert_eq!(agent.ok("set_mm_map()"), 0);
    assert!(matches!(
        fence.probe().membership(agent.pid()).unwrap(),
        Membership::Inside { agent: 1, .. }
    ));
    assert_eq!(fence.probe().restored().unwrap(), []);
}

#[test]
fn in_another_pid_namespace_the_innermost_pid_counts() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let mut outsider = fence.puppet();
    let pid = dead_process(&mut agent);
    outsider.ok("unshare_pid()");
    // The first of the namespace, and below it the restored one.
    outsider.ok("relay_child()");
    assert_eq!(outsider.ok(&format!("relay('relay_child({pid})')")), pid);
    // Without an executable it may be anybody with this small number.
    assert_eq!(outsider.ok("relay(\"relay('set_mm_map()')\")"), 0);
    assert_eq!(fence.probe().restored().unwrap(), []);
    // The kernel refuses another executable while this one is mapped; who asks is a restorer.
    let code = "relay('relay(\"set_mm_map(\\'/bin/true\\')\")')";
    let (restored, _) = restores(&fence, &mut outsider, code);
    assert_eq!((restored.pid, restored.was), (pid, Some(1)));
    assert_ne!(restored.process.tgid, pid);
    // It was somebody else's after all.
    fence.probe().let_go(restored.process).unwrap();
    assert_eq!(fence.probe().restored().unwrap(), []);
    assert_eq!(
        fence.probe().membership(restored.process.tgid).unwrap(),
        Membership::Outside
    );
}

#[test]
fn a_dump_is_noticed_as_it_begins() {
    let fence = Fence::new();
    let mut agent = fence.agent();
    let mut outsider = fence.puppet();
    let child = agent.ok("sleeper()").as_u64().unwrap();
    // Tracers end before whom they trace: only they can wait for it.
    let nobody = fence.puppet();
    let mut stranger = fence.puppet();
    let mut events = fence.probe().events();
    outsider.ok(&format!("seize({child})"));
    outsider.ok(&format!("seize({})", agent.pid()));
    // Nobody's.
    stranger.ok(&format!("seize({})", nobody.pid()));
    fence.probe().drain();
    let seen: Vec<_> = std::iter::from_fn(|| events.try_event())
        .filter_map(|event| match event.what {
            What::Restoring {
                primitive: Primitive::Seize,
                argument,
            } => Some((event.process.tgid, argument)),
            _ => None,
        })
        .collect();
    let expected = [child, u64::from(agent.pid())].map(|pid| (outsider.pid(), pid));
    assert_eq!(seen, expected);
}
