//! Many at once, and processes that do not wait to be gated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use acrfence_user::boundary::TroubleKind;
use acrfence_user::words::Ending;
use tokio::sync::Notify;

use crate::gate::Gate;
use crate::judge::Verdict;

#[test]
fn a_storm_of_programs_with_pipes() {
    let gate = Gate::new();
    let mut agent = gate.agent();
    agent.ok("__import__('resource').setrlimit(7, (8192, 8192)) or 1");
    agent.ok("globals().update(all=[subprocess.Popen(['cat'], stdin=-1, stdout=-1) for _ in range(500)]) or 1");
    let wrong = agent.ok("[n for n, p in enumerate(all) if p.communicate(str(n).encode())[0] != str(n).encode() or p.returncode]");
    assert_eq!(wrong, serde_json::json!([]));
    assert_eq!(gate.gated("stdio"), 500);
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
    assert_eq!(gate.probe.at_gate().unwrap(), []);
}

#[test]
fn a_storm_of_threads_each_with_commands() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\necho $1\n");
    let mut agent = gate.agent();
    let code = format!(
        "globals().update(out=[], run=lambda n: [out.append((n, i, subprocess.run(['{}', str((n, i))], stdin=-3, stdout=-1).stdout.decode().strip())) for i in range(10)]) or 1",
        pay.display()
    );
    agent.ok(&code);
    agent.ok("globals().update(t=[threading.Thread(target=run, args=(n,)) for n in range(20)]) or [x.start() for x in t] and [x.join() for x in t] and 1");
    assert_eq!(
        agent.ok("[o for o in out if str(o[:2]) != o[2]]"),
        serde_json::json!([])
    );
    assert_eq!(agent.ok("len(out)"), 200);
    let seen = gate.block_on(gate.judge.ended(200));
    assert_eq!(seen.len(), 200);
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
}

#[test]
fn a_thread_that_executes_a_command_takes_its_process_along() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\necho paid by $$\n");
    let mut agent = gate.agent();
    let script = format!(
        "import os, threading, time; [threading.Thread(target=time.sleep, args=(60,), daemon=True).start() for _ in range(5)]; threading.Thread(target=os.execv, args=('{0}', ['{0}'])).start(); time.sleep(60)",
        pay.display()
    );
    agent.ok(&format!(
        "globals().update(p=subprocess.Popen(['python3', '-Ic', {script:?}], stdin=-3, stdout=-1)) or 1"
    ));
    let said = agent.ok("p.stdout.read().decode()");
    assert_eq!(said, format!("paid by {}\n", agent.ok("p.pid")));
    assert_eq!(agent.ok("p.wait()"), 0);
    assert_eq!(gate.gated("command"), 1);
}

#[test]
fn a_program_with_more_rights_keeps_them_and_gets_no_environment() {
    let gate = Gate::new();
    let program = gate.folder.path().join("privileged");
    std::fs::copy("/usr/bin/env", &program).unwrap();
    std::os::unix::fs::chown(&program, Some(1234), None).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o4755);
    std::fs::set_permissions(&program, mode).unwrap();
    std::fs::set_permissions(
        gate.folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let mut agent = gate.agent();
    let text = agent.ok(&format!(
        "subprocess.run(['{}', 'sh', '-pc', 'id -u; env'], input=b'', stdout=-1, env={{'PATH': '/usr/bin:/bin'}}).stdout.decode()",
        program.display()
    ));
    // Its children have no more rights than it and are given the variables, as any.
    assert!(text.as_str().unwrap().starts_with("1234\n"), "{text}");
    assert_eq!(gate.gated("stdio"), 1);
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
}

#[test]
fn who_dies_while_a_person_thinks_did_nothing() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\ntouch \"$0.ran\"\n");
    let mut agent = gate.agent();
    let decided = Arc::new(Notify::new());
    gate.judge.next(Verdict::Hold(decided.clone()));
    agent.ok(&format!(
        "globals().update(p=subprocess.Popen(['{}'], stdin=-3)) or 1",
        pay.display()
    ));
    while gate.judge.seen().is_empty() {
        std::thread::yield_now();
    }
    assert_eq!(agent.ok("p.kill() or p.wait()"), -9);
    decided.notify_one();
    let seen = gate.block_on(gate.judge.ended(1));
    let Some(Ending::NotSent { why }) = &seen[0].ending else {
        panic!("{:?}", seen[0].ending);
    };
    assert!(why.contains("ended at the gate"), "{why}");
    assert!(!pay.with_extension("ran").exists());
}

#[test]
fn a_held_command_stays_longer_than_the_bound_of_others() {
    let gate = Gate::with(|settings| settings.bound = Duration::from_millis(50));
    let pay = gate.program("pay", "#!/bin/sh\necho paid\n");
    let mut agent = gate.agent();
    let decided = Arc::new(Notify::new());
    gate.judge.next(Verdict::Hold(decided.clone()));
    agent.ok(&format!(
        "globals().update(p=subprocess.Popen(['{}'], stdin=-3, stdout=-1)) or 1",
        pay.display()
    ));
    while gate.probe.at_gate().unwrap().is_empty() {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(gate.probe.at_gate().unwrap().len(), 1);
    decided.notify_one();
    assert_eq!(agent.ok("p.stdout.read().decode()"), "paid\n");
    assert_eq!(gate.ungated().get("overdue"), None);
}

#[test]
fn who_is_traced_runs_and_is_reported() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\necho paid\n");
    let mut agent = gate.agent();
    // A debugger in the agent's own tree.
    let said = agent.ok(&format!(
        "subprocess.run(['strace', '-f', '-o', '/dev/null', '{}'], stdin=-3, stdout=-1, env={{'ACRFENCE': '1', 'PATH': '/usr/bin:/bin'}}).stdout.decode()",
        pay.display()
    ));
    assert_eq!(said, "paid\n");
    let until = Instant::now() + Duration::from_secs(5);
    while gate.judge.troubles().is_empty() && Instant::now() < until {
        std::thread::yield_now();
    }
    let troubles = gate.judge.troubles();
    assert_eq!(troubles[0].kind, TroubleKind::NotGated);
    assert!(
        troubles[0].detail.contains("traces it"),
        "{}",
        troubles[0].detail
    );
    assert_eq!(gate.ungated().get("traced"), Some(&1));
}

/// A parent that waits for the exec of a child that borrows its memory.
#[test]
fn a_child_of_vfork_is_gated_and_its_parent_goes_on() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\necho paid $1\n");
    let mut agent = gate.agent();
    agent.ok("globals().update(os=__import__('os'), ctypes=__import__('ctypes')) or 1");
    // CPython uses vfork for this one as well; posix_spawn of the C library always does.
    let code = format!(
        "[(lambda r, w: (os.waitstatus_to_exitcode(os.waitpid(os.posix_spawn('{0}', ['{0}', str(n)], {{'PATH': '/usr/bin:/bin'}}, file_actions=[(os.POSIX_SPAWN_DUP2, w, 1), (os.POSIX_SPAWN_CLOSE, r)]), 0)[1]), os.close(w), os.read(r, 100).decode(), os.close(r))[::2])(*os.pipe()) for n in range(20)]",
        pay.display()
    );
    let said = agent.ok(&code);
    let wanted: Vec<_> = (0..20).map(|n| (0, format!("paid {n}\n"))).collect();
    assert_eq!(said, serde_json::json!(wanted));
    assert_eq!(gate.block_on(gate.judge.ended(20)).len(), 20);
    // A server that is started so is relayed.
    let code = "(lambda a, b: (os.posix_spawn('/bin/cat', ['cat'], {'ACRFENCE': '1'}, file_actions=[(os.POSIX_SPAWN_DUP2, a[0], 0), (os.POSIX_SPAWN_DUP2, b[1], 1)] + [(os.POSIX_SPAWN_CLOSE, fd) for fd in a + b]), os.write(a[1], b'through'), os.read(b[0], 100).decode(), [os.close(fd) for fd in a + b])[2])(os.pipe(), os.pipe())";
    assert_eq!(agent.ok(code), "through");
    assert_eq!(gate.gated("stdio"), 1);
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
}

/// The number of processes in a group is bounded; who multiplies there ends by it, and nobody is left
/// at the gate.
#[test]
fn a_fork_bomb_leaves_nobody_at_the_gate() {
    let gate = Gate::new();
    let bomb = gate.program(
        "bomb",
        "#!/bin/sh\nfor i in 1 2 3; do env -i PATH=/usr/bin:/bin \"$0\" & done\nwait\n",
    );
    let mut agent = gate.agent();
    let group = Pids::bound(agent.pid(), 200);
    agent.ok(&format!(
        "globals().update(p=subprocess.Popen(['{}'], stdin=-3, stdout=-3, stderr=-3)) or 1",
        bomb.display()
    ));
    let until = Instant::now() + Duration::from_secs(60);
    while gate.gated("environment") < 300 {
        assert!(Instant::now() < until, "only {}", gate.gated("environment"));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(group.processes() <= 200);
    gate.end_all();
    while !gate.probe.at_gate().unwrap().is_empty() {
        assert!(Instant::now() < until, "{:?}", gate.probe.at_gate());
        std::thread::sleep(Duration::from_millis(10));
    }
    let ungated = gate.ungated();
    assert!(ungated.keys().all(|why| *why == "gone"), "{ungated:?}");
    // The gate works on.
    let mut agent = gate.agent();
    assert_eq!(
        agent.ok("subprocess.run(['cat'], input=b'on', stdout=-1).stdout.decode()"),
        "on"
    );
}

/// A group of processes whose number is bounded, whichever generation of cgroups has the controller.
struct Pids(std::path::PathBuf);

impl Pids {
    fn bound(pid: u32, most: u32) -> Self {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let place = mounts
            .lines()
            .filter_map(|line| {
                let words: Vec<&str> = line.split(' ').collect();
                let place = std::path::PathBuf::from(words[1]);
                let has = match words[2] {
                    "cgroup" => words[3].split(',').any(|option| option == "pids"),
                    "cgroup2" => {
                        // For groups below the root; it may be so already.
                        let _ = std::fs::write(place.join("cgroup.subtree_control"), "+pids");
                        std::fs::read_to_string(place.join("cgroup.subtree_control"))
                            .is_ok_and(|has| has.contains("pids"))
                    }
                    _ => false,
                };
                has.then_some((place, words[2] == "cgroup2"))
            })
            .next();
        let (place, is_second) = place.expect("this kernel bounds processes in groups");
        let group = if is_second {
            // The process is in a group of the test's own there.
            let own = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap();
            let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
            place.join(own.unwrap())
        } else {
            let group = place.join(format!("acrfence-test-{}", std::process::id()));
            std::fs::create_dir(&group).unwrap();
            std::fs::write(group.join("cgroup.procs"), pid.to_string()).unwrap();
            group
        };
        std::fs::write(group.join("pids.max"), most.to_string()).unwrap();
        Self(group)
    }

    fn processes(&self) -> usize {
        let current = std::fs::read_to_string(self.0.join("pids.current")).unwrap();
        current.trim().parse().unwrap()
    }
}

impl Drop for Pids {
    fn drop(&mut self) {
        // That of the second generation is the test's, and goes with it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// What the gate costs, by itself: `cargo test --test process -- --ignored --nocapture cost`.
#[test]
#[ignore = "a measurement"]
fn cost_of_the_gate() {
    let gate = Gate::new();
    gate.program("pay", "#!/bin/true\n");
    let mut agent = gate.agent();
    agent.ok("globals().update(env={'ACRFENCE': '1', 'PATH': '/usr/bin:/bin'}) or 1");
    let pay = gate.folder.path().join("pay").display().to_string();
    let kinds = [
        (
            "no pipes (not of interest)",
            "subprocess.run(['/bin/true'], stdin=-3, stdout=-3, env=env)".to_owned(),
        ),
        (
            "pipes (stdio relay)",
            "subprocess.run(['/bin/true'], input=b'', stdout=-1, env=env)".to_owned(),
        ),
        (
            "environment",
            "subprocess.run(['/bin/true'], stdin=-3, stdout=-3, env={'PATH': '/bin'})".to_owned(),
        ),
        (
            "command (recorded)",
            format!("subprocess.run(['{pay}'], stdin=-3, stdout=-1, env=env)"),
        ),
    ];
    for (kind, code) in kinds {
        let timed = format!(
            "(lambda t: (sorted(f() for _ in range(200))[100]))([globals().update(f=lambda: (lambda a: ({code}, time.perf_counter() - a)[1])(time.perf_counter()))])"
        );
        let mut costs = [0.0f64; 2];
        for (index, why) in [0, acrfence_user::probe::GateWhy::ALL]
            .into_iter()
            .enumerate()
        {
            gate.probe.gate_agent(1, why).unwrap();
            costs[index] = agent.ok(&timed).as_f64().unwrap() * 1e6;
        }
        println!(
            "{kind}: {:.0} µs without, {:.0} µs with: {:+.0} µs",
            costs[0],
            costs[1],
            costs[1] - costs[0]
        );
    }
}
