//! The daemon dies with processes at the gate.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use acrfence_user::boundary::process::gate::Warden;
use acrfence_user::probe::DaemonDown;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::fence::{Place, Puppet};
use crate::gate::Gate;
use crate::judge::Verdict;

/// A daemon in a process of its own, which is this test program in another role.
struct Daemon {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

fn role(name: &str, place: &Place, down: DaemonDown) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--ignored", "--nocapture", "--quiet"])
        .env("ACRFENCE_TEST_PINS", &place.pins)
        .env("ACRFENCE_TEST_CGROUP", &place.cgroup)
        .env(
            "ACRFENCE_TEST_OPEN",
            if down == DaemonDown::Open { "1" } else { "" },
        );
    command
}

fn place_of_role() -> Place {
    Place {
        cgroup: std::env::var_os("ACRFENCE_TEST_CGROUP").unwrap().into(),
        pins: std::env::var_os("ACRFENCE_TEST_PINS").unwrap().into(),
    }
}

impl Daemon {
    fn start(place: &Place, down: DaemonDown) -> Self {
        let mut child = role("death::as_daemon", place, down)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut daemon = Self {
            to: child.stdin.take().unwrap(),
            from: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        daemon.hear("ready");
        daemon
    }

    fn hear(&mut self, wanted: &str) {
        loop {
            let mut line = String::new();
            assert_ne!(
                self.from.read_line(&mut line).unwrap(),
                0,
                "the daemon is gone"
            );
            if line.trim_end() == wanted {
                return;
            }
        }
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
        self.hear("done");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

#[test]
#[ignore = "a role that other tests start"]
fn as_daemon() {
    let place = place_of_role();
    let down = match std::env::var("ACRFENCE_TEST_OPEN").unwrap().as_str() {
        "1" => DaemonDown::Open,
        _ => DaemonDown::Closed,
    };
    let mut warden = Command::new(env!("CARGO_BIN_EXE_acrfence"));
    warden.arg("gate-warden").arg("--pins").arg(&place.pins);
    let gate = Gate::at(place, down, |_| {});
    gate.keeper.take_over();
    let _warden = Warden::start(warden).unwrap();
    println!("\nready");
    for line in std::io::stdin().lines() {
        match line.unwrap().split_once(' ').unwrap() {
            ("track", pid) => {
                gate.probe.track(pid.parse().unwrap(), 1).unwrap();
                gate.probe
                    .gate_agent(1, acrfence_user::probe::GateWhy::ALL)
                    .unwrap();
            }
            ("hold", _) => gate.judge.next(Verdict::Hold(Arc::default())),
            other => panic!("{other:?}"),
        }
        println!("\ndone");
    }
}

/// Starts `pay`, which the daemon holds at the gate; gives when it stands there.
fn held(agent: &mut Puppet, daemon: &mut Daemon, pay: &std::path::Path) -> Pid {
    daemon.tell("hold it");
    let pid = agent.ok(&format!(
        "globals().update(p=subprocess.Popen(['{}'], stdin=-3, stdout=-1)) or p.pid",
        pay.display()
    ));
    let pid = Pid::from_raw(i32::try_from(pid.as_i64().unwrap()).unwrap());
    while !std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .unwrap()
        .contains(") T ")
    {
        std::thread::yield_now();
    }
    pid
}

fn agent(place: &Place, daemon: &mut Daemon) -> Puppet {
    let mut puppet = Puppet::new(&place.cgroup);
    puppet.ok("globals().update(subprocess=__import__('subprocess')) or 1");
    daemon.tell(&format!("track {}", puppet.pid()));
    puppet
}

fn pay(folder: &tempfile::TempDir) -> std::path::PathBuf {
    let path = folder.path().join("pay");
    std::fs::write(&path, "#!/bin/sh\necho paid\n").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&path, mode).unwrap();
    path
}

#[test]
fn nobody_is_left_at_the_gate_and_nobody_passes_it() {
    let folder = tempfile::tempdir().unwrap();
    let pay = pay(&folder);
    let place = Place::new();
    let mut daemon = Daemon::start(&place, DaemonDown::Closed);
    let mut agent = agent(&place, &mut daemon);
    held(&mut agent, &mut daemon, &pay);
    daemon.kill();
    let end = agent.ok("[p.stdout.read().decode(), p.wait()]");
    assert_eq!(end, serde_json::json!(["", -9]));
    // Without a daemon nobody gets in either, and nobody is stopped.
    let run = format!(
        "(lambda r: [r.stdout.decode(), r.returncode])(subprocess.run(['{}'], stdin=-3, stdout=-1))",
        pay.display()
    );
    if place.pins.join("exec_deny").exists() {
        assert_eq!(agent.errno(&run), "EPERM");
    } else {
        assert_eq!(agent.ok(&run), serde_json::json!(["", -9]));
    }
    let harmless = "subprocess.run(['true'], stdin=-3).returncode";
    assert_eq!(agent.ok(harmless), 0);
    // The next daemon finds everything in place.
    let next = Daemon::start(&place, DaemonDown::Closed);
    assert_eq!(agent.ok(&run), serde_json::json!(["paid\n", 0]));
    drop(agent);
    next.kill();
}

#[test]
fn an_open_gate_lets_everybody_run() {
    let folder = tempfile::tempdir().unwrap();
    let pay = pay(&folder);
    let place = Place::new();
    let mut daemon = Daemon::start(&place, DaemonDown::Open);
    let mut agent = agent(&place, &mut daemon);
    held(&mut agent, &mut daemon, &pay);
    daemon.kill();
    let end = agent.ok("[p.stdout.read().decode(), p.wait()]");
    assert_eq!(end, serde_json::json!(["paid\n", 0]));
    let run = format!(
        "subprocess.run(['{}'], stdin=-3, stdout=-1).returncode",
        pay.display()
    );
    assert_eq!(agent.ok(&run), 0);
}

#[test]
fn a_daemon_without_a_warden_leaves_them_to_the_next_one() {
    let folder = tempfile::tempdir().unwrap();
    let pay = pay(&folder);
    let place = Place::new();
    let mut daemon = Daemon::start(&place, DaemonDown::Closed);
    let mut agent = agent(&place, &mut daemon);
    let held = held(&mut agent, &mut daemon, &pay);
    for task in std::fs::read_dir(format!("/proc/{}/task", daemon.child.id())).unwrap() {
        let children = std::fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        for warden in children.split_whitespace() {
            kill(Pid::from_raw(warden.parse().unwrap()), Signal::SIGKILL).unwrap();
        }
    }
    daemon.kill();
    let stat = std::fs::read_to_string(format!("/proc/{held}/stat")).unwrap();
    assert!(stat.contains(") T "), "{stat}");
    let next = Daemon::start(&place, DaemonDown::Closed);
    let end = agent.ok("[p.stdout.read().decode(), p.wait()]");
    assert_eq!(end, serde_json::json!(["paid\n", 0]));
    drop(agent);
    next.kill();
}
