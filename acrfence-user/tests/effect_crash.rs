//! `kill -9` of a process that writes the effect log: at every step that belongs to the log, and at
//! random under load. Nothing acknowledged may be missing, nothing prepared forgotten.
//!
//! The test binary starts itself as the victim. `ACRFENCE_FULL=1` runs thousands of random kills.

#![expect(clippy::unwrap_used, reason = "a test: what fails ends it")]

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::ops::{Bound, ControlFlow};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use acrfence_user::effect::index::ordered::{Change, Home, IndexFault, Ordered};
use acrfence_user::effect::index::sled::SledHome;
use acrfence_user::effect::journal::Acceptance;
use acrfence_user::effect::journal::disk::{Disk, DiskFile, OsDisk};
use acrfence_user::effect::{
    EffectLog, Event, GcKeep, GcPolicy, Harvest, OpenReport, Prepared, Store, StoreConfig,
};
use acrfence_user::words::{
    Body, BranchId, EffectId, HttpRequest, HttpResponse, Origin, Outcome, ProcessIdentity, Request,
    Response, Seq, Status, ThreadId, Timestamp, ToolCall, ToolKey,
};

/// Where the victim finds its log.
const DIR: &str = "ACRFENCE_CRASH_DIR";
/// At which step it dies: `name#count`, or nothing.
const POINT: &str = "ACRFENCE_CRASH_POINT";
/// What it does: `load`, `steps`, `rebuild`.
const ROLE: &str = "ACRFENCE_CRASH_ROLE";
/// Effects of this thread are never removed by garbage collection.
const KEPT: ThreadId = ThreadId(Seq(1));
/// Effects of this thread may be.
const LET_GO: ThreadId = ThreadId(Seq(2));

/// Steps at which the victim is killed, in the words of its log.
const STEPS: &[&str] = &[
    "before prepared",
    "after prepared",
    "after completed",
    // A commit group.
    "before write segment",
    "half write segment",
    "after write segment",
    "before sync segment",
    "after sync segment",
    // A body file.
    "before create body",
    "half write body",
    "after write body",
    "after sync body",
    "before rename body",
    "after rename body",
    "after sync dir body",
    // Rotation.
    "before create spare",
    "after create spare",
    "after allocate spare",
    "after sync spare",
    "after write spare",
    "before rename spare",
    "after rename spare",
    "after sync dir journal",
    // The anchor.
    "before create anchor",
    "after create anchor",
    "before write anchor",
    "after write anchor",
    "after sync anchor",
    "before rename anchor",
    "after rename anchor",
    // The index.
    "before mark index",
    "after mark index",
    "before apply index",
    "half apply index",
    "after apply index",
    "before flush index",
    "after flush index",
    // Garbage collection.
    "before create compacted",
    "half write compacted",
    "after write compacted",
    "after sync compacted",
    "before rename compacted",
    "after rename compacted",
    "before remove body",
    "after remove body",
];

#[test]
fn killed_at_every_step() {
    let counts: &[u64] = if full() {
        &[1, 2, 3, 5, 8, 13]
    } else {
        &[1, 3]
    };
    let mut missed = Vec::new();
    for step in STEPS {
        for count in counts {
            let dir = tempfile::tempdir().unwrap();
            let killed = kill_at(dir.path(), "steps", &format!("{step}#{count}"));
            if !killed && *count == 1 {
                missed.push(*step);
            }
        }
    }
    assert!(missed.is_empty(), "the victim never came to: {missed:?}");
}

#[test]
fn killed_while_the_index_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    // A log to rebuild the index of.
    assert!(!kill_at(dir.path(), "steps", ""));
    for step in [
        "before mark index",
        "after mark index",
        "before apply index",
        "half apply index",
        "after apply index",
        "after wipe index",
    ] {
        for count in 1..=2 {
            let killed = kill_at(dir.path(), "rebuild", &format!("{step}#{count}"));
            assert!(killed || count > 1, "{step}");
        }
    }
}

#[test]
fn killed_at_random_under_load() {
    let rounds = if full() { 3000 } else { 200 };
    let dir = tempfile::tempdir().unwrap();
    let config = layout(dir.path());
    let mut witness = Witness::default();
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let (mut torn, mut rebuilt) = (0, 0);
    for round in 0..rounds {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let from = witness.last();
        // Most die while they write, some while they open, some while they rebuild.
        let role = if round % 10 == 9 { "rebuild" } else { "load" };
        let mut child = start(dir.path(), role, "");
        let out = BufReader::new(child.stdout.take().unwrap());
        let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        let delay = Duration::from_micros(state % 60_000);
        let (opened, is_open) = std::sync::mpsc::channel::<()>();
        let early = round % 4 == 3;
        let killer = std::thread::spawn(move || {
            if !early {
                // It ends with a message, or with the victim.
                let _ = is_open.recv();
            }
            let until = Instant::now() + delay;
            while let Some(left) = until.checked_duration_since(Instant::now()) {
                std::thread::park_timeout(left);
            }
            // Not waited for yet, so the pid is still the victim's.
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        });
        for line in out.lines() {
            let line = line.unwrap();
            if line.ends_with("the log is open") {
                let _ = opened.send(());
            }
            witness.hear(&line);
        }
        drop(opened);
        killer.join().unwrap();
        let status = child.wait().unwrap();
        assert!(status.signal() == Some(9) || witness.ended, "{status}");
        let report = witness.check(&config, from);
        torn += u32::from(report.torn.is_some());
        rebuilt += u32::from(report.index_rebuilt.is_some());
    }
    witness.check(&config, EffectId(Seq(0)));
    let store = Store::open(&config, &mut |_| {}).unwrap().0;
    let found = store.verify(&mut |_| {}).unwrap();
    assert_eq!(found.faults, []);
    println!(
        "{rounds} kills, {} effects acknowledged, {torn} torn ends, {rebuilt} index rebuilds, {} records",
        witness.effects.len(),
        found.records
    );
    assert!(
        witness.effects.len() > rounds,
        "the load was too light to mean anything"
    );
}

/// Not a test of its own: what the victim runs.
#[test]
fn victim() {
    let (Some(dir), Ok(role)) = (std::env::var_os(DIR), std::env::var(ROLE)) else {
        return;
    };
    let dir = PathBuf::from(dir);
    let config = layout(&dir);
    let fuse = Fuse::from_env();
    if role == "rebuild" {
        let _ = std::fs::remove_dir_all(config.index_dir());
    }
    OsDisk.create_dir(&config.state_dir).unwrap();
    let home = FusedHome(
        SledHome::new(config.index_dir(), config.index_cache),
        fuse.clone(),
    );
    let (store, _) = Store::open_on(
        Arc::new(FusedDisk(fuse.clone())),
        Arc::new(home),
        &config,
        &mut |_| {},
        Acceptance::Nothing,
        "",
    )
    .unwrap();
    say("the log is open");
    let store = Arc::new(store);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    match role.as_str() {
        "load" => runtime.block_on(load(&store, &fuse)),
        _ => runtime.block_on(steps(&store, &fuse)),
    }
}

/// Writes from twelve tasks until it is killed.
async fn load(store: &Arc<Store>, fuse: &Arc<Fuse>) {
    let tasks: Vec<_> = (0..12u64)
        .map(|task| {
            let (store, fuse) = (store.clone(), fuse.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    one_effect(&store, &fuse, task * 1_000_000 + n, KEPT).await;
                }
            })
        })
        .collect();
    futures_util::future::join_all(tasks).await;
}

/// Goes through everything a log does, once.
async fn steps(store: &Store, fuse: &Fuse) {
    for n in 0..60 {
        let thread = if n % 2 == 0 { KEPT } else { LET_GO };
        one_effect(store, fuse, n, thread).await;
    }
    store.catch_up();
    let policy = GcPolicy {
        older_than: Some(Timestamp(u64::MAX)),
        max_bytes: None,
    };
    let mut keep = GcKeep::default();
    keep.threads.insert(KEPT);
    store.gc(&policy, &keep).unwrap();
    for n in 60..64 {
        one_effect(store, fuse, n, KEPT).await;
    }
    store.close();
    say("e 0");
}

async fn one_effect(store: &Store, fuse: &Fuse, n: u64, thread: ThreadId) {
    fuse.at("before prepared");
    let seq = store.append(prepared(n, thread)).await.unwrap();
    say(&format!("p {seq} {n} {}", thread.0));
    fuse.at("after prepared");
    let effect = EffectId(seq);
    store.note(Event::Observed {
        thread,
        harvest: Harvest {
            issued: Vec::new(),
            values: vec![n],
        },
        at: Timestamp(n),
    });
    store.append(completed(effect, n)).await.unwrap();
    say(&format!("c {seq} {n} {}", thread.0));
    fuse.at("after completed");
}

/// One write, so that a line is there or not.
fn say(line: &str) {
    let mut out = io::stdout().lock();
    out.write_all(format!("{line}\n").as_bytes()).unwrap();
    out.flush().unwrap();
}

fn padded(n: u64) -> String {
    let len = if n.is_multiple_of(9) { 6000 } else { 500 };
    format!("effect {n} {}", "x".repeat(len))
}

fn prepared(n: u64, thread: ThreadId) -> Event {
    Event::Prepared(Box::new(Prepared {
        key: ToolKey(format!("tool {}", n % 7)),
        thread,
        branch: BranchId(Seq(3)),
        parent: None,
        co_parents: Vec::new(),
        call: ToolCall {
            at: Timestamp(n),
            request: Request::Http(HttpRequest {
                method: "POST".into(),
                url: "https://bank.test/pay".into(),
                headers: Vec::new(),
                body: Body::whole(padded(n)),
                rpc: Vec::new(),
            }),
            origin: Origin {
                agent: "victim".parse().unwrap(),
                incarnation: 1,
                process: ProcessIdentity {
                    tgid: 1,
                    start_ns: 1,
                },
                exe: String::new(),
                argv: Vec::new(),
                cwd: String::new(),
                uid: 0,
                connection: None,
                gaps: String::new(),
            },
        },
        presented: Vec::new(),
        values: vec![n],
        retry_of: None,
    }))
}

fn completed(effect: EffectId, n: u64) -> Event {
    Event::Settled {
        effect,
        outcome: Outcome::Completed(Response::Http(HttpResponse {
            status: 201,
            headers: Vec::new(),
            body: Body::whole(padded(n)),
            trailers: Vec::new(),
        })),
        at: Timestamp(n),
        harvest: Harvest::default(),
    }
}

fn layout(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir.join("state"), dir.join("key"), dir.join("anchor"));
    config.segment_size = 96 << 10;
    config.body_inline_max = 4 << 10;
    config.outcome_room = 8 << 10;
    config.index_cache = 16 << 20;
    config
}

fn full() -> bool {
    std::env::var_os("ACRFENCE_FULL").is_some()
}

/// What victims said of their effects.
#[derive(Default)]
struct Witness {
    /// Number, thread and whether it completed.
    effects: BTreeMap<EffectId, (u64, ThreadId, bool)>,
    ended: bool,
}

impl Witness {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["e", _] => self.ended = true,
            [what @ ("p" | "c"), seq, n, thread] => {
                let id = EffectId(Seq(seq.parse().unwrap()));
                let thread = ThreadId(Seq(thread.parse().unwrap()));
                let number = n.parse().unwrap();
                let entry = self.effects.entry(id).or_insert((number, thread, false));
                entry.2 |= what == "c";
            }
            _ => {}
        }
    }

    /// Opens what is left and compares. Effects nobody finished are settled as a restarted daemon
    /// would.
    fn check(&self, config: &StoreConfig, from: EffectId) -> OpenReport {
        let (store, report) = Store::open(config, &mut |_| {}).unwrap();
        for (id, (n, thread, done)) in self.effects.range(from..) {
            let Some(effect) = store.effect(*id).unwrap() else {
                assert_eq!(
                    *thread, LET_GO,
                    "effect {id} was acknowledged and is not there"
                );
                continue;
            };
            let Request::Http(request) = &effect.call.request else {
                panic!("{id} is another call")
            };
            assert_eq!(request.body.kept, padded(*n).as_bytes(), "{id}");
            if *done {
                assert_eq!(effect.status, Status::Completed, "{id} was acknowledged");
            }
            if effect.status == Status::Completed {
                let response = effect.outcome.as_ref().and_then(Outcome::response);
                let Some(Response::Http(response)) = response else {
                    panic!("{id} has no response")
                };
                assert_eq!(response.body.kept, padded(*n).as_bytes(), "{id}");
            }
            let candidates = store
                .candidates(*thread, &effect.key, Seq(u64::MAX))
                .unwrap();
            let found = candidates.iter().find(|row| row.id == *id);
            assert_eq!(found.map(|row| row.status), Some(effect.status));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        for id in store.unsettled().unwrap() {
            assert!(!self.effects.get(&id).is_some_and(|(_, _, done)| *done));
            let event = Event::Settled {
                effect: id,
                outcome: Outcome::InDoubt {
                    why: "the daemon died".into(),
                    response: None,
                },
                at: Timestamp(1),
                harvest: Harvest::default(),
            };
            runtime.block_on(store.append(event)).unwrap();
        }
        report
    }

    fn last(&self) -> EffectId {
        let last = self.effects.keys().next_back().copied();
        last.unwrap_or(EffectId(Seq(0)))
    }
}

fn start(dir: &Path, role: &str, point: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(ROLE, role)
        .env(POINT, point)
        .env("RUST_BACKTRACE", "0")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Whether the victim died at the point; what it left is checked either way.
fn kill_at(dir: &Path, role: &str, point: &str) -> bool {
    let mut witness = Witness::default();
    let mut child = start(dir, role, point);
    let out = BufReader::new(child.stdout.take().unwrap());
    for line in out.lines() {
        witness.hear(&line.unwrap());
    }
    let status = child.wait().unwrap();
    let killed = status.signal() == Some(9);
    assert!(
        killed || witness.ended,
        "{point}: the victim failed by itself: {status}"
    );
    let config = layout(dir);
    witness.check(&config, EffectId(Seq(0)));
    let store = Store::open(&config, &mut |_| {}).unwrap().0;
    let found = store.verify(&mut |_| {}).unwrap();
    assert_eq!(found.faults, [], "{point}");
    killed
}

/// Counts down to the end of this process.
struct Fuse {
    name: String,
    left: AtomicU64,
}

impl Fuse {
    fn from_env() -> Arc<Self> {
        let point = std::env::var(POINT).unwrap_or_default();
        let (name, count) = point.split_once('#').unwrap_or(("", "0"));
        Arc::new(Self {
            name: name.to_owned(),
            left: AtomicU64::new(count.parse().unwrap_or(0)),
        })
    }

    /// The victim is at a step.
    fn at(&self, step: &str) {
        if self.name == step && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let me = nix::unistd::Pid::this();
            let _ = nix::sys::signal::kill(me, nix::sys::signal::Signal::SIGKILL);
            loop {
                std::thread::park();
            }
        }
    }

    fn around<T>(&self, step: &str, operation: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        self.at(&format!("before {step}"));
        let done = operation();
        self.at(&format!("after {step}"));
        done
    }
}

/// What kind of file a path is, in the names of steps.
fn kind(path: &Path) -> &'static str {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    let text = path.to_string_lossy();
    if name.ends_with(".seg") {
        "segment"
    } else if name.starts_with("spare-") {
        "spare"
    } else if name.starts_with("compact-") {
        "compacted"
    } else if name.starts_with("anchor") {
        "anchor"
    } else if text.contains("bodies") {
        "body"
    } else if text.ends_with("journal") {
        "journal"
    } else {
        "other"
    }
}

struct FusedDisk(Arc<Fuse>);

struct FusedFile {
    inner: Arc<dyn DiskFile>,
    kind: &'static str,
    /// A spare becomes a segment when records are written behind its header.
    has_records: AtomicBool,
    fuse: Arc<Fuse>,
}

impl FusedDisk {
    fn wrap(&self, path: &Path, inner: Arc<dyn DiskFile>) -> Arc<dyn DiskFile> {
        Arc::new(FusedFile {
            inner,
            kind: kind(path),
            has_records: AtomicBool::new(false),
            fuse: self.0.clone(),
        })
    }
}

impl Disk for FusedDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        OsDisk.create_dir(path)
    }
    fn check_private(&self, path: &Path) -> io::Result<()> {
        OsDisk.check_private(path)
    }
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let step = format!("create {}", kind(path));
        let made = self.0.around(&step, || OsDisk.create(path))?;
        Ok(self.wrap(path, made))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.wrap(path, OsDisk.open(path)?))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsDisk.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let step = format!("rename {}", kind(from));
        self.0.around(&step, || OsDisk.rename(from, to))
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        let step = format!("remove {}", kind(path));
        self.0.around(&step, || OsDisk.remove(path))
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let step = format!("sync dir {}", kind(dir));
        self.0.around(&step, || OsDisk.sync_dir(dir))
    }
}

impl FusedFile {
    fn kind(&self) -> &'static str {
        if self.kind == "spare" && self.has_records.load(Ordering::SeqCst) {
            "segment"
        } else {
            self.kind
        }
    }
}

impl DiskFile for FusedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.inner.read_at(buffer, offset)
    }
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        if offset > 0 {
            self.has_records.store(true, Ordering::SeqCst);
        }
        let step = format!("write {}", self.kind());
        if self.fuse.name == format!("half {step}") {
            // What a kill leaves in the page cache ends at a page.
            let page = (4096 - offset % 4096) as usize;
            let half = if bytes.len() > page { page } else { 0 };
            self.inner.write_at(&bytes[..half], offset)?;
            self.fuse.at(&format!("half {step}"));
        }
        self.fuse
            .around(&step, || self.inner.write_at(bytes, offset))
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        let step = format!("allocate {}", self.kind);
        self.fuse.around(&step, || self.inner.allocate(len))
    }
    fn sync(&self) -> io::Result<()> {
        let step = format!("sync {}", self.kind());
        self.fuse.around(&step, || self.inner.sync())
    }
    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }
}

struct FusedHome(SledHome, Arc<Fuse>);

struct FusedIndex(Arc<dyn Ordered>, Arc<Fuse>);

impl Home for FusedHome {
    fn open(&self) -> Result<Arc<dyn Ordered>, IndexFault> {
        Ok(Arc::new(FusedIndex(self.0.open()?, self.1.clone())))
    }
    fn wipe(&self) -> Result<(), IndexFault> {
        self.1.at("before wipe index");
        let done = self.0.wipe();
        self.1.at("after wipe index");
        done
    }
    fn mark_clean(&self, clean: bool) -> Result<(), IndexFault> {
        self.1.at("before mark index");
        let done = self.0.mark_clean(clean);
        self.1.at("after mark index");
        done
    }
    fn fold(&self) -> Result<(), IndexFault> {
        self.0.fold()
    }
    fn trusted(&self) -> bool {
        self.0.trusted()
    }
}

impl Ordered for FusedIndex {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault> {
        self.0.get(key)
    }
    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), IndexFault> {
        self.0.scan(from, to, reverse, visit)
    }
    fn apply(&self, mut changes: Vec<Change>) -> Result<(), IndexFault> {
        self.1.at("before apply index");
        if self.1.name == "half apply index" {
            let rest = changes.split_off(changes.len() / 2);
            self.0.apply(changes)?;
            self.0.flush(false)?;
            self.1.at("half apply index");
            changes = rest;
        }
        self.0.apply(changes)?;
        self.1.at("after apply index");
        Ok(())
    }
    fn flush(&self, sync: bool) -> Result<(), IndexFault> {
        self.1.at("before flush index");
        let done = self.0.flush(sync);
        self.1.at("after flush index");
        done
    }
    fn size(&self) -> u64 {
        self.0.size()
    }
}
