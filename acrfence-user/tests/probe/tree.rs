//! Who belongs to an agent.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use acrfence_common::Tracked;
use acrfence_user::probe::{ExitStatus, Membership, What};
use acrfence_user::words::ProcessIdentity;
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
    assert_eq!(found[0].tgid, root.pid());
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
fn nobody_born_during_the_walk_is_missed() {
    let fence = Fence::new();
    let config = fence.config_map();
    let mut during = 0;
    let mut rounds = 0;
    // A walk takes a few milliseconds: not every storm falls into one.
    while during < 5 && rounds < 100 {
        rounds += 1;
        let mut root = fence.puppet();
        let pid = root.pid();
        let pipes = root.ok("storm(6, 12)");
        let (go, done) = (&pipes[0], &pipes[1]);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (watching, is_watching) = std::sync::mpsc::channel();
            let (over, config) = (&over, &config);
            // The storm breaks when the walk has begun.
            let storm = scope.spawn(move || {
                watching.send(()).unwrap();
                let mut walking = false;
                while !walking && !over.load(Ordering::Relaxed) {
                    walking = config.get(&0, 0).unwrap().walking == 1;
                }
                root.ok(&format!("os.write({go}, b'xxxxxx')"));
                root.ok(&format!("[len(os.read({done}, 1)) for _ in range(6)]"));
                (root, walking)
            });
            is_watching.recv().unwrap();
            fence.probe().track(pid, 1).unwrap();
            over.store(true, Ordering::Relaxed);
            let (_root, walking) = storm.join().unwrap();
            during += u32::from(walking);

            let everybody = fence.place.pids();
            assert!(everybody.len() > 6 * 12, "{}", everybody.len());
            let missed: Vec<_> = everybody
                .iter()
                .filter(|&&pid| {
                    let membership = fence.probe().membership(pid);
                    !matches!(membership, Ok(Membership::Inside { agent: 1, .. }))
                })
                .collect();
            assert!(
                missed.is_empty(),
                "round {rounds}: {missed:?} of {}",
                everybody.len()
            );
        });
        fence.place.kill();
        fence.probe().untrack(1).unwrap();
    }
    assert!(during > 0, "no storm fell into a walk");
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
