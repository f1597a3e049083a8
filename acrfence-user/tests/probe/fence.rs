//! What every test needs: hooks on a cgroup of its own, pins of its own, and processes that do as
//! they are told.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use acrfence_common::{Claim, ClientKey, Config, SocketRecord};
use acrfence_user::probe::{
    Account, Claimed, Events, Listeners, Probe, ProbeEvent, Received, Settings,
};
use aya::maps::{Array, HashMap, Map, MapData};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::Value;

/// Hooks on a cgroup, and listeners in the daemon's place. Everything is taken out at the end.
pub struct Fence {
    probe: Option<Probe>,
    pub place: Place,
    pub v4: TcpListener,
    pub v6: TcpListener,
}

impl Fence {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(tweak: impl FnOnce(&mut Settings)) -> Self {
        Self::at(Place::new(), tweak)
    }

    pub fn at(place: Place, tweak: impl FnOnce(&mut Settings)) -> Self {
        assert!(
            nix::unistd::geteuid().is_root(),
            "these tests attach hooks to the kernel and need root: run `cargo xtask test` as root"
        );
        let v4 = TcpListener::bind("127.0.0.1:0").unwrap();
        let v6 = TcpListener::bind("[::1]:0").unwrap();
        let mut settings = place.settings();
        settings.listeners = Listeners {
            v4: Some(v4.local_addr().unwrap().port()),
            v6: Some(v6.local_addr().unwrap().port()),
        };
        tweak(&mut settings);
        let probe = Probe::attach(settings).unwrap_or_else(|e| panic!("{e}"));
        Self {
            probe: Some(probe),
            place,
            v4,
            v6,
        }
    }

    pub fn probe(&self) -> &Probe {
        self.probe.as_ref().unwrap()
    }

    /// A process in the cgroup, not tracked.
    pub fn puppet(&self) -> Puppet {
        Puppet::new(&self.place.cgroup)
    }

    /// A process in the cgroup that is agent 1.
    pub fn agent(&self) -> Puppet {
        let puppet = self.puppet();
        self.probe().track(puppet.pid(), 1).unwrap();
        puppet
    }

    /// Answers `count` connections to a listener with "hook" and whose they are, in the order in
    /// which they come.
    pub fn serve<T: Send>(
        &self,
        listener: &TcpListener,
        count: usize,
        meanwhile: impl FnOnce() -> T,
    ) -> (T, Vec<Option<Claimed>>) {
        std::thread::scope(|scope| {
            let server = scope.spawn(move || {
                (0..count)
                    .map(|_| {
                        let (mut stream, from) = accept(listener);
                        let claim = self.probe().claim(from);
                        let _ = stream.write_all(b"hook\n");
                        claim
                    })
                    .collect::<Vec<_>>()
            });
            let result = meanwhile();
            (result, server.join().unwrap())
        })
    }

    /// The accounts of one sort.
    pub fn account(&self, sort: &str) -> Account {
        let accounts = self.probe().accounts().unwrap();
        accounts.into_iter().find(|a| a.sort == sort).unwrap()
    }

    /// What the kernel is told, past the probe.
    pub fn config_map(&self) -> Array<MapData, Config> {
        let map = MapData::from_pin(self.place.pins.join("CONFIG")).unwrap();
        Array::try_from(Map::Array(map)).unwrap()
    }

    /// Writes into a kernel table, past the probe.
    pub fn put<K: aya::Pod, V: aya::Pod>(&self, name: &str, key: &K, value: &V) {
        let map = MapData::from_pin(self.place.pins.join(name)).unwrap();
        let mut table = HashMap::<_, K, V>::try_from(Map::HashMap(map)).unwrap();
        table.insert(key, value, 0).unwrap();
    }

    /// How many entries a kernel table of sockets has.
    pub fn entries(&self, name: &str) -> usize {
        let map = MapData::from_pin(self.place.pins.join(name)).unwrap();
        let map = Map::HashMap(map);
        if name == "SOCKETS" {
            let table = HashMap::<_, u64, SocketRecord>::try_from(map).unwrap();
            table.keys().count()
        } else {
            let table = HashMap::<_, ClientKey, Claim>::try_from(map).unwrap();
            table.keys().count()
        }
    }

    /// Takes the hooks out.
    pub fn release(mut self) -> Place {
        self.probe.take().unwrap().release().unwrap();
        std::mem::replace(&mut self.place, Place::none())
    }

    /// Leaves the hooks in place, as a crash would.
    pub fn abandon(mut self) -> Place {
        drop(self.probe.take());
        std::mem::replace(&mut self.place, Place::none())
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some(probe) = self.probe.take() {
            let released = probe.release();
            if !std::thread::panicking() {
                released.unwrap();
            }
        }
    }
}

/// A cgroup and a pin directory. Removed at the end, with every process and hook in it.
pub struct Place {
    pub cgroup: PathBuf,
    pub pins: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        static TIDY: std::sync::Once = std::sync::Once::new();
        TIDY.call_once(clear_leftovers);
        let name = format!(
            "acrfence-test-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let cgroup = cgroup2().join(&name);
        std::fs::create_dir(&cgroup)
            .unwrap_or_else(|e| panic!("cannot make a cgroup (root is needed): {e}"));
        Self {
            cgroup,
            pins: Path::new("/sys/fs/bpf").join(name),
        }
    }

    pub fn none() -> Self {
        Self {
            cgroup: PathBuf::new(),
            pins: PathBuf::new(),
        }
    }

    pub fn settings(&self) -> Settings {
        Settings {
            cgroup: Some(self.cgroup.clone()),
            pin_directory: self.pins.clone(),
            ring_bytes: 1 << 20,
            ..Settings::default()
        }
    }
}

impl Place {
    /// Ends everything in the cgroup.
    pub fn kill(&self) {
        let _ = std::fs::write(self.cgroup.join("cgroup.kill"), "1");
        // The kernel says when the last one is gone.
        let Ok(events) = std::fs::File::open(self.cgroup.join("cgroup.events")) else {
            return;
        };
        while std::fs::read_to_string(self.cgroup.join("cgroup.events"))
            .is_ok_and(|text| text.contains("populated 1"))
        {
            let mut fds = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
            if poll(&mut fds, PollTimeout::from(5000u16)) == Ok(0) {
                return;
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.cgroup.as_os_str().is_empty() {
            return;
        }
        let _ = Probe::remove_pins(&self.pins);
        self.kill();
        let _ = std::fs::remove_dir(&self.cgroup);
    }
}

/// A process that does what it is told. Killed at the end.
pub struct Puppet {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Puppet {
    pub fn new(cgroup: &Path) -> Self {
        let procs = cgroup.join("cgroup.procs");
        let mut command = Command::new("python3");
        command
            .args(["-c", include_str!("puppet.py")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: writing a file is all that happens between fork and exec.
        unsafe {
            command.pre_exec(move || std::fs::write(&procs, "0"));
        }
        let mut child = command
            .spawn()
            .expect("these tests need python3 (`apt-get install python3`)");
        let mut puppet = Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()),
            child,
        };
        assert_eq!(puppet.ok("1 + 1"), 2);
        puppet
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Runs some Python; gives `{"ok": …}` or `{"errno": "EPERM"}`.
    pub fn run(&mut self, code: &str) -> Value {
        self.start(code);
        self.answer()
    }

    /// Runs some Python without waiting for its answer.
    pub fn start(&mut self, code: &str) {
        writeln!(self.stdin, "{}", serde_json::to_string(code).unwrap()).unwrap();
    }

    pub fn answer(&mut self) -> Value {
        let mut line = String::new();
        wait_readable(self.stdout.get_ref().as_fd(), "an answer");
        self.stdout.read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert!(answer.get("error").is_none(), "{answer}");
        answer
    }

    /// Runs some Python that must work.
    pub fn ok(&mut self, code: &str) -> Value {
        let mut answer = self.run(code);
        assert!(answer.get("ok").is_some(), "{code}: {answer}");
        answer["ok"].take()
    }

    /// Runs some Python that must fail; gives the error's name.
    pub fn errno(&mut self, code: &str) -> String {
        let answer = self.run(code);
        answer["errno"]
            .as_str()
            .unwrap_or_else(|| panic!("{code}: {answer}"))
            .to_owned()
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that is no daemon: says "target" to everyone who connects.
pub struct Target {
    pub addr: SocketAddr,
    stop: Option<mpsc::Sender<()>>,
}

impl Target {
    pub fn new(on: &str) -> Self {
        let listener = TcpListener::bind(on).unwrap();
        let addr = listener.local_addr().unwrap();
        let (stop, stopped) = mpsc::channel::<()>();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if !matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                    return;
                }
                if let Ok(mut stream) = stream {
                    let _ = stream.write_all(b"target\n");
                    // Stays open until the other end closes.
                    std::thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
                }
            }
        });
        Self {
            addr,
            stop: Some(stop),
        }
    }

    /// Python for its host and port.
    pub fn python(&self) -> String {
        format!("'{}', {}", self.addr.ip(), self.addr.port())
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        drop(self.stop.take());
        let _ = TcpStream::connect(self.addr);
    }
}

/// Takes out what runs left that were killed: hooks stay in the kernel until somebody does.
fn clear_leftovers() {
    let is_dead = |name: &str| {
        name.strip_prefix("acrfence-test-")
            .and_then(|rest| rest.split('-').next())
            .is_some_and(|pid| !Path::new("/proc").join(pid).exists())
    };
    for folder in [Path::new("/sys/fs/bpf"), &cgroup2()] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if is_dead(&name) {
                drop(Place {
                    cgroup: cgroup2().join(&name),
                    pins: Path::new("/sys/fs/bpf").join(&name),
                });
            }
        }
    }
}

fn cgroup2() -> PathBuf {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    mounts
        .lines()
        .find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let place = fields.next()?;
            (fields.next()? == "cgroup2").then(|| place.into())
        })
        .expect("no cgroup2 hierarchy is mounted")
}

/// Events without what was missed, which must not happen in these tests.
pub trait EventsExt {
    fn try_event(&mut self) -> Option<ProbeEvent>;
}

impl EventsExt for Events {
    fn try_event(&mut self) -> Option<ProbeEvent> {
        match self.try_next()? {
            Received::Event(event) => Some((*event).clone()),
            Received::Missed(count) => panic!("missed {count} events"),
        }
    }
}

/// Accepts the connection that must come now.
pub fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    wait_readable(listener.as_fd(), "a connection");
    listener.accept().unwrap()
}

fn wait_readable(fd: BorrowedFd<'_>, what: &str) {
    let mut fds = [PollFd::new(fd, PollFlags::POLLIN)];
    let ready = poll(&mut fds, PollTimeout::from(30_000u16)).unwrap();
    assert_eq!(ready, 1, "waited in vain for {what}");
}

/// Waits for something the kernel does in its own time, and tells nobody when.
pub fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    wait_for_some(what, || done().then_some(()));
}

/// The same for something that yields a value.
pub fn wait_for_some<T>(what: &str, mut done: impl FnMut() -> Option<T>) -> T {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        if let Some(value) = done() {
            return value;
        }
        assert!(
            std::time::Instant::now() < limit,
            "waited in vain for {what}"
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}
