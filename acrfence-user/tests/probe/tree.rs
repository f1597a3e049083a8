//! Who belongs to an agent.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use acrfence_common::Tracked;
use acrfence_user::probe::{Membership, What};
use acrfence_user::words::{ExitStatus, ProcessIdentity};
use serde_json::json;

use crate::fence::{EventsExt as _, Fence, Target, wait_for};

#[test]
fn children_daemons_and_threads_belong_to_the_agent() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let mut agent = fence.agent();
    let call = format!("tcp({})", target.python());
    for code in [
        format!("in_child(lambda: {call})"),
        format!("in_child(lambda: in_child(lambda: {call}))['ok']"),
        format!("in_daemon(lambda: {call})"),
        format!("in_child(lambda: in_daemon(lambda: {call}))['ok']"),
        format!("in_thread(lambda: {call})"),
        format!("in_daemon(lambda: in_thread(lambda: {call}))['ok']"),
    ] {
        let (answer, claims) = fence.serve(&fence.v4, 1, || agent.ok(&code));
        assert_eq!(answer["ok"]["heard"], "hook", "{code}");
        let claim = claims[0].unwrap();
        assert_eq!(claim.agent, 1);
        if let Some(pid) = answer["pid"].as_u64() {
            assert_eq!(u64::from(claim.process.tgid), pid);
        }
        if code.starts_with("in_thread") {
            assert_eq!(claim.process.tgid, agent.pid(), "a thread is its process");
        }
    }
}

#[test]
fn an_existing_tree_is_found_whole() {
    let fence = Fence::new();
    let mut root = fence.puppet();
    root.ok("[sleeper() for _ in range(20)]");
    root.ok("in_child(lambda: [sleeper() for _ in range(3)])");
    let mut outsider = fence.puppet();
    outsider.ok("sleeper()");
    let found = fence.probe().track(root.pid(), 7).unwrap();
    assert_eq!(found[0].tgid, root.pid(), "the oldest comes first");
    // Three of them lost their parent before anybody looked: nothing tells whose they are.
    assert_eq!(found.len(), 21);
    let tracked = fence.probe().tracked().unwrap();
    assert_eq!(tracked.len(), 21);
    assert!(tracked.values().all(|&agent| agent == 7));
    let process = fence.probe().process(found[0]).unwrap();
    assert!(process.exe.contains("python"), "{process:?}");
    assert_eq!(process.argv[1], "-c");
    assert_eq!(
        fence.probe().membership(outsider.pid()).unwrap(),
        Membership::Outside
    );
}

#[test]
fn orphans_made_during_the_walk_are_not_missed() {
    // Each makes a family below an undiscovered process ready, and then an orphan.
    for (ready, make) in [
        ("None", "orphan_now()"),
        ("parent_waits()", "parent_acts('sleeper')"),
        ("parent_waits(child=True)", "parent_acts('end')"),
    ] {
        let fence = Fence::new();
        let mut root = fence.puppet();
        root.ok("relay_child()");
        root.ok(&format!("relay(\"{ready}\")"));
        let mut orphan = None;
        let pid = root.pid();
        fence
            .probe()
            .track_while(pid, 1, || {
                orphan = root.ok(&format!("relay(\"{make}\")")).as_u64()
            })
            .unwrap();
        let orphan = orphan.unwrap() as u32;
        let membership = fence.probe().membership(orphan).unwrap();
        assert!(
            matches!(membership, Membership::Inside { agent: 1, .. }),
            "{make}: {membership:?}"
        );
    }
}

#[test]
fn nobody_born_during_the_walk_is_missed() {
    let fence = Fence::new();
    let config = fence.config_map();
    let mut born_during = 0;
    // As many walks as it takes to have births inside of them, within bounds.
    for round in 0..150 {
        if round >= 15 && born_during > 0 {
            break;
        }
        let mut root = fence.puppet();
        let pipes = root.ok("storm(3, 60)");
        let (go, told) = (&pipes[0], &pipes[1]);
        root.ok(&format!("os.write({go}, b'xxx')"));
        let over = AtomicBool::new(false);
        let (began, ended) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    if config.get(&0, 0).unwrap().walking == 1 {
                        return Some(since_boot());
                    }
                }
                None
            });
            fence.probe().track(root.pid(), 1).unwrap();
            let ended = since_boot();
            over.store(true, Ordering::Relaxed);
            (watcher.join().unwrap(), ended)
        });
        let orphans = root.ok(&format!("orphans({told}, 3)"));
        for orphan in orphans.as_array().unwrap() {
            let (before_birth, pid) = (orphan[0].as_u64().unwrap(), orphan[1].as_u64().unwrap());
            // Whoever lost its parent before the walk began belongs to nobody.
            if began.is_none_or(|began| before_birth < began) {
                continue;
            }
            born_during += u32::from(before_birth < ended);
            let membership = fence.probe().membership(pid as u32).unwrap();
            assert!(
                matches!(membership, Membership::Inside { agent: 1, .. }),
                "round {round}: {pid} is {membership:?}, born {} us into a walk of {} us",
                (before_birth - began.unwrap()) / 1000,
                (ended - began.unwrap()) / 1000,
            );
        }
        fence.place.kill();
        fence.probe().untrack(1).unwrap();
    }
    assert!(born_during > 0, "nobody was born during a walk");
    eprintln!("{born_during} born during a walk");
}

fn since_boot() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).unwrap();
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

#[test]
fn exit_takes_a_process_out_and_says_how_it_ended() {
    let fence = Fence::new();
    let mut events = fence.probe().events();
    let mut agent = fence.agent();
    let [first, second] = [
        agent.ok("run(['/bin/sh', '-c', 'exit 3'])"),
        agent.ok("run(['/bin/sh', '-c', 'kill -9 $$'])"),
    ]
    .map(|run| run[0].as_u64().unwrap() as u32);
    wait_for("both to leave", || {
        fence.probe().tracked().unwrap().len() == 1
    });
    fence.probe().drain();
    let mut ends = vec![];
    while let Some(event) = events.try_event() {
        if let What::Exited { status } = event.what {
            ends.push((event.process.tgid, status));
        }
    }
    assert_eq!(
        ends,
        [
            (first, ExitStatus::Code(3)),
            (second, ExitStatus::Signal(9))
        ]
    );
    assert_eq!(fence.probe().membership(first).unwrap(), Membership::Gone);
    // It is remembered for a while.
    let processes = fence.probe().processes(1);
    let ended: Vec<_> = processes.iter().filter(|p| p.exited.is_some()).collect();
    assert_eq!(ended.len(), 2);
}

#[test]
fn a_process_with_threads_ends_with_the_last_of_them() {
    let fence = Fence::new();
    let mut events = fence.probe().events();
    let mut agent = fence.agent();
    // The first thread ends; another one goes on and connects.
    let code = "lone_thread(lambda: tcp('10.99.99.99', 443))";
    let (status, claims) = fence.serve(&fence.v4, 1, || agent.ok(code));
    assert_eq!(status, 7 << 8);
    let process = claims[0].unwrap().process;
    wait_for("the process to leave", || {
        !fence.probe().tracked().unwrap().contains_key(&process)
    });
    fence.probe().drain();
    let ends: Vec<_> = std::iter::from_fn(|| events.try_event())
        .filter(|e| e.process == process)
        .filter_map(|e| match e.what {
            What::Exited { status } => Some(status),
            _ => None,
        })
        .collect();
    assert_eq!(ends, [ExitStatus::Code(7)]);
}

#[test]
fn a_process_that_gets_a_used_pid_is_not_taken_for_the_old_one() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let mut agent = fence.agent();
    let pid = agent.ok("sleeper()").as_u64().unwrap() as u32;
    let old = match fence.probe().membership(pid).unwrap() {
        Membership::Inside { process, .. } => process,
        other => panic!("{other:?}"),
    };
    agent.ok(&format!("end({pid})"));

    // Somebody outside gets the pid.
    let mut outsider = fence.puppet();
    assert_eq!(
        outsider.ok(&format!("clone_at({pid}, ['/bin/sleep', '60'])")),
        json!(pid)
    );
    assert_eq!(fence.probe().membership(pid).unwrap(), Membership::Outside);
    assert!(fence.probe().process(old).unwrap().exited.is_some());

    // Even when the end of the old one went unnoticed.
    let stale = Tracked {
        start_ns: old.start_ns,
        agent: 1,
        parent: 0,
    };
    fence.put("TRACKED", &pid, &stale);
    fence.put("TRACKED", &outsider.pid(), &stale);
    assert_eq!(fence.probe().membership(pid).unwrap(), Membership::Outside);
    let answer = outsider.ok(&format!("tcp({})", target.python()));
    assert_eq!(answer["heard"], "target");
    let young = ProcessIdentity {
        tgid: pid,
        start_ns: 1,
    };
    assert!(fence.probe().process(young).is_none());
}

#[test]
fn an_agent_may_have_several_trees_and_a_failed_attach_takes_none_of_them() {
    let fence = Fence::new();
    let first = fence.agent();
    let second = fence.puppet();
    assert_eq!(fence.probe().track(second.pid(), 1).unwrap().len(), 2);
    let third = fence.puppet();
    let gone = third.pid();
    drop(third);
    assert!(fence.probe().track(gone, 1).is_err());
    assert!(fence.probe().track(first.pid(), 1).is_err());
    let tracked = fence.probe().tracked().unwrap();
    let tgids: BTreeSet<u32> = tracked.keys().map(|p| p.tgid).collect();
    assert_eq!(tgids, BTreeSet::from([first.pid(), second.pid()]));
}

#[test]
fn what_a_root_leaves_that_ends_during_the_walk_is_the_agents() {
    let fence = Fence::new();
    let mut keeper = fence.puppet();
    keeper.ok("parent_waits(child=True)");
    let root = keeper.ok("parent_pipes[0]").as_u64().unwrap() as u32;
    let mut orphan = None;
    let found = fence
        .probe()
        .track_while(root, 1, || {
            orphan = keeper.ok("parent_acts('end')").as_u64()
        })
        .unwrap();
    let tgids: Vec<u32> = found.iter().map(|p| p.tgid).collect();
    assert_eq!(tgids, [orphan.unwrap() as u32]);
}

#[test]
fn a_tree_that_is_let_go_is_free() {
    let fence = Fence::new();
    let target = Target::new("127.0.0.1:0");
    let mut agent = fence.agent();
    agent.ok("[sleeper() for _ in range(5)]");
    let mut other = fence.puppet();
    fence.probe().track(other.pid(), 2).unwrap();
    fence.probe().untrack(1).unwrap();
    let left: BTreeSet<u32> = fence.probe().tracked().unwrap().into_values().collect();
    assert_eq!(left, BTreeSet::from([2]));
    assert!(fence.probe().processes(1).is_empty());
    let call = format!("in_child(lambda: tcp({}))", target.python());
    assert_eq!(agent.ok(&call)["ok"]["heard"], "target");
    let (answer, _) = fence.serve(&fence.v4, 1, || other.ok(&call));
    assert_eq!(answer["ok"]["heard"], "hook");
}

#[test]
fn processes_below_that_belong_to_another_agent_stay_with_it() {
    let fence = Fence::new();
    let mut root = fence.puppet();
    let child = root.ok("sleeper()").as_u64().unwrap() as u32;
    fence.probe().track(child, 1).unwrap();
    let found = fence.probe().track(root.pid(), 2).unwrap();
    assert_eq!(found.len(), 1);
    assert!(matches!(
        fence.probe().membership(child).unwrap(),
        Membership::Inside { agent: 1, .. }
    ));
}
