//! What the exec gate costs: a whole daemon, an agent that is attached to, and beside it a process
//! that is not, which is the floor. Needs root.
//!
//! `cargo bench -p acrfence-user --bench gate`, or `cargo xtask bench gate`.

#![allow(
    clippy::expect_used,
    reason = "a measurement that cannot go on should fail at once"
)]

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How often each kind is started in a round.
const IN_A_ROUND: usize = 100;
/// Rounds: floor and ours take turns, so that what else happens on the machine meets both.
const ROUNDS: usize = 20;

/// A kind of start: its name, what the gate does with it, and the most that it may cost.
const KINDS: [(&str, &str, Option<Duration>); 4] = [
    (
        "plain",
        "not of interest: nothing is stopped",
        Some(Duration::from_micros(30)),
    ),
    (
        "environment",
        "stopped, given the CA's variables",
        Some(Duration::from_millis(1)),
    ),
    (
        "pipes",
        "stopped, its pipes replaced by a relay",
        Some(Duration::from_millis(1)),
    ),
    (
        "command",
        "stopped, decided, recorded: two syncs of the log",
        None,
    ),
];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|word| word == "--spawner") {
        return spawner(Path::new(&arguments[at + 1]));
    }
    if arguments.iter().any(|word| word == "--test") {
        return;
    }
    let lab = Lab::start();
    let mut floor = Spawner::start(&lab);
    let mut ours = Spawner::start(&lab);
    lab.attach(&ours);
    println!(
        "{IN_A_ROUND} starts of {} a round, {ROUNDS} rounds of floor and ours in turn; medians and 99th percentiles",
        lab.program().display()
    );
    println!(
        "the log's disk: {:.0} µs for 4 KiB and fdatasync\n",
        micros(lab.sync())
    );
    println!(
        "{:<12} {:>17} {:>17} {:>9}  what the gate does",
        "kind", "floor µs", "ours µs", "cost µs"
    );
    let mut is_slow = false;
    for (kind, what, most) in KINDS {
        let (mut without, mut with) = (Vec::new(), Vec::new());
        // One round of each warms up.
        for round in 0..=ROUNDS {
            let (a, b) = (floor.round(kind), ours.round(kind));
            if round > 0 {
                without.extend(a);
                with.extend(b);
            }
        }
        let (a, b) = (Spread::of(without), Spread::of(with));
        let cost = b.median.saturating_sub(a.median);
        let verdict = match most {
            Some(most) if cost > most => {
                is_slow = true;
                format!("; MORE than {:.0} µs", micros(most))
            }
            Some(most) => format!("; within {:.0} µs", micros(most)),
            None => String::new(),
        };
        println!(
            "{kind:<12} {:>8.0} {:>8.0} {:>8.0} {:>8.0} {:>9.0}  {what}{verdict}",
            micros(a.median),
            micros(a.late),
            micros(b.median),
            micros(b.late),
            micros(cost)
        );
    }
    drop((floor, ours));
    println!("\n{}", lab.counts());
    drop(lab);
    assert!(!is_slow, "the gate costs more than it may");
}

struct Spread {
    median: Duration,
    late: Duration,
}

impl Spread {
    fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self {
            median: times[times.len() / 2],
            late: times[times.len() * 99 / 100],
        }
    }
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// A daemon with everything of its own.
struct Lab {
    dir: PathBuf,
    cgroup: PathBuf,
    daemon: Child,
}

impl Lab {
    fn start() -> Self {
        let name = format!("acrfence-bench-{}", std::process::id());
        let dir = std::env::temp_dir().join(&name);
        for sub in ["state", "run", "elsewhere", "pins"] {
            std::fs::create_dir_all(dir.join(sub)).expect("a directory");
        }
        std::fs::copy("/bin/true", dir.join("pay")).expect("a copy of /bin/true");
        std::fs::write(
            dir.join("config.toml"),
            "[[gate.command]]\nprogram = ['pay']\nwith = ['--now']\n",
        )
        .expect("a configuration");
        must(
            Command::new("mount")
                .args(["-t", "bpf", "bpf"])
                .arg(dir.join("pins")),
        );
        let cgroup = cgroup2().join(&name);
        std::fs::create_dir(&cgroup).expect("a control group (root is needed)");
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_acrfence"))
            .arg("daemon")
            .arg("--config")
            .arg(dir.join("config.toml"))
            .arg("--state")
            .arg(dir.join("state"))
            .arg("--run-dir")
            .arg(dir.join("run"))
            .arg("--pin-dir")
            .arg(dir.join("pins/acrfence"))
            .arg("--cgroup")
            .arg(&cgroup)
            .arg("--key-file")
            .arg(dir.join("elsewhere/key"))
            .arg("--anchor")
            .arg(dir.join("elsewhere/anchor"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let stdout = daemon.stdout.take().expect("its standard output");
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        Self {
            dir,
            cgroup,
            daemon,
        }
    }

    fn program(&self) -> PathBuf {
        self.dir.join("pay")
    }

    fn say(&self, words: &[&str]) -> String {
        let said = Command::new(env!("CARGO_BIN_EXE_acrfence"))
            .arg("--run-dir")
            .arg(self.dir.join("run"))
            .args(words)
            .output()
            .expect("the command line runs");
        assert!(said.status.success(), "{said:?}");
        String::from_utf8_lossy(&said.stdout).into_owned()
    }

    fn attach(&self, spawner: &Spawner) {
        let pid = spawner.child.id().to_string();
        self.say(&["attach", &pid, "--name", "bench"]);
    }

    /// What the daemon says it did at the gate.
    fn counts(&self) -> String {
        let status = self.say(&["status"]);
        let line = status.lines().find(|line| line.contains("at exec"));
        line.unwrap_or("the daemon gated nothing").trim().to_owned()
    }

    /// The median of 50 small writes with `fdatasync` where the log is.
    fn sync(&self) -> Duration {
        let path = self.dir.join("state/floor");
        let mut file = std::fs::File::create(&path).expect("a file");
        let times = (0..50).map(|_| {
            let began = Instant::now();
            file.write_all(&[7; 4096]).expect("a write");
            file.sync_data().expect("a sync");
            began.elapsed()
        });
        let spread = Spread::of(times.collect());
        let _ = std::fs::remove_file(path);
        spread.median
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let pid = self.daemon.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.daemon.wait();
        let _ = Command::new("umount")
            .arg("-l")
            .arg(self.dir.join("pins"))
            .status();
        if let Err(e) = std::fs::remove_dir(&self.cgroup) {
            eprintln!("{} is left behind: {e}", self.cgroup.display());
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

fn must(command: &mut Command) {
    let status = command.status().expect("the command starts");
    assert!(status.success(), "{command:?}: {status}");
}

fn cgroup2() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let mut found = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ');
        let (_, place, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(place))
    });
    found.next().expect("cgroup2 is mounted")
}

/// A process in the control group that starts programs and says how long each took.
struct Spawner {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Spawner {
    fn start(lab: &Lab) -> Self {
        let procs = lab.cgroup.join("cgroup.procs");
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command
            .arg("--spawner")
            .arg(lab.program())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: a write to a file and nothing else; this program has one thread.
        unsafe {
            command.pre_exec(move || std::fs::write(&procs, "0"));
        }
        let mut child = command.spawn().expect("a spawner");
        Self {
            stdin: child.stdin.take().expect("its input"),
            stdout: BufReader::new(child.stdout.take().expect("its output")),
            child,
        }
    }

    fn round(&mut self, kind: &str) -> Vec<Duration> {
        writeln!(self.stdin, "{kind}").expect("it listens");
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("it answers");
        line.split_whitespace()
            .map(|nanos| Duration::from_nanos(nanos.parse().expect("a number")))
            .collect()
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other side: from before the fork until the end of the child was seen, and its output with it.
fn spawner(program: &Path) {
    for line in std::io::stdin().lines() {
        let kind = line.expect("a line");
        let times: Vec<String> = (0..IN_A_ROUND)
            .map(|_| once(program, &kind).as_nanos().to_string())
            .collect();
        println!("{}", times.join(" "));
    }
}

fn once(program: &Path, kind: &str) -> Duration {
    let is_command = kind == "command";
    // The copy has the name of a command; the kernel has nothing to ask about the other.
    let mut command = Command::new(if is_command {
        program
    } else {
        Path::new("/bin/true")
    });
    command
        .args(is_command.then_some("--now"))
        .env_clear()
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if kind != "environment" {
        // What an agent's children inherit once the first of them has it.
        command.env("ACRFENCE", "1");
    }
    if kind == "pipes" {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    }
    let began = Instant::now();
    let mut child = command.spawn().expect("a program");
    drop(child.stdin.take());
    let output = child.wait_with_output().expect("its end");
    let took = began.elapsed();
    assert!(output.status.success(), "{kind}: {}", output.status);
    took
}
