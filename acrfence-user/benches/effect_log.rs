//! The effect log measured: `cargo bench -p acrfence-user --bench effect_log -- [--effects N]
//! [--ten-million] [--seconds S] [--dir DIR] [--index-cache MIB]`.
//!
//! What is filled in is what a long-lived machine has: a thread and its branch for every 200 effects,
//! one call in a hundred refused, one in a thousand replayed, one in a thousand in doubt.
//!
//! Appends are measured beside the raw append + fdatasync of the same disk in the same run: the disk
//! of a virtual machine changes its mind by a factor of forty.

#![expect(
    clippy::expect_used,
    reason = "a measurement that cannot be made ends the run"
)]

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use acrfence_user::effect::{
    EffectFilter, EffectLog, Event, Harvest, Prepared, Store, StoreConfig,
};
use acrfence_user::words::{
    Body, Branch, BranchId, Cause, EffectId, Fingerprint, ForkPoint, Grade, Header, HttpRequest,
    HttpResponse, Origin, Outcome, ProcessIdentity, Refusal, RefusalCode, Request, Response, Seq,
    Status, Thread, ThreadId, Timestamp, ToolCall, ToolKey,
};

struct Options {
    /// Only open this log and say how that went.
    open: Option<PathBuf>,
    effects: u64,
    seconds: u64,
    dir: Option<PathBuf>,
    /// Bytes of memory for the index; the usual ones when none are given.
    index_cache: Option<u64>,
}

fn main() {
    let options = options();
    if let Some(dir) = &options.open {
        return start(dir, &options);
    }
    let temporary = tempfile::tempdir_in(options.dir.as_deref().unwrap_or(Path::new("/var/tmp")))
        .expect("a place to write");
    let dir = temporary.path();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");

    println!(
        "## appends ({} s each, records of 2 KiB)\n",
        options.seconds
    );
    println!("| what | a second | times the floor | mean group | p50 ms | p99 ms |");
    println!("|---|---|---|---|---|---|");
    let time = Duration::from_secs(options.seconds);
    let floor = raw_floor(&dir.join("floor"), time);
    println!("| raw append + fdatasync, one thread | {floor:.0} | 1 | 1 | | |");
    for writers in [1, 8, 64] {
        let config = layout(&dir.join(format!("append-{writers}")), &options);
        let store = Arc::new(open(&config));
        let (rate, group, p50, p99) = runtime.block_on(appends(&store, writers, time));
        println!(
            "| journal, {writers} writers | {rate:.0} | {:.2} | {group:.1} | {p50:.2} | {p99:.2} |",
            rate / floor
        );
    }
    let floor = raw_floor(&dir.join("floor"), time);
    println!("| raw append + fdatasync again | {floor:.0} | | | | |");

    let config = layout(&dir.join("large"), &options);
    let store = Arc::new(open(&config));
    let began = Instant::now();
    runtime.block_on(fill(&store, options.effects));
    let filled = began.elapsed();
    store.catch_up();
    let applied = began.elapsed();
    println!(
        "\n## {} effects (call and response, 1 KiB together)\n",
        options.effects
    );
    println!("| what | figure |\n|---|---|");
    println!(
        "| filled | {} effects a second |",
        rate(options.effects, filled)
    );
    println!(
        "| filled and indexed | {} effects a second |",
        rate(options.effects, applied)
    );
    println!("| memory after filling | {} MiB |", resident() >> 20);
    look_ups(&store, options.effects);
    first_pages(&store);
    println!(
        "| journal a effect | {} bytes |",
        size(&config.state_dir.join("journal")) / options.effects
    );
    let began = Instant::now();
    drop(store);
    println!(
        "| clean end | {:.0} ms |",
        began.elapsed().as_secs_f64() * 1e3
    );
    println!(
        "| index a effect | {} bytes |",
        size(&config.index_dir()) / options.effects
    );

    forget_cached(&config.state_dir);
    print!("| start, nothing of the log in memory | ");
    start_in_a_process_of_its_own(dir, &options);
    print!("| start, index in the page cache | ");
    start_in_a_process_of_its_own(dir, &options);
    forget_cached(&config.state_dir);
    let store = open(&config);
    cold_reads(&config.index_dir().join("db"));
    look_ups(&store, options.effects);
    read_ahead(&store);
    look_ups(&store, options.effects);
    first_pages(&store);
    drop(store);
    std::fs::remove_dir_all(config.index_dir()).expect("the index to go");
    let began = Instant::now();
    let (store, report) = Store::open(&config, &mut |progress| {
        eprint!(
            "\r{:?} {}/{}   ",
            progress.phase, progress.done, progress.total
        );
    })
    .expect("a log");
    eprintln!();
    assert!(
        report.index_rebuilt.is_some(),
        "the index was to be rebuilt"
    );
    println!(
        "| rebuild of the index | {} effects a second |",
        rate(options.effects, began.elapsed())
    );
    if options.effects <= 1_000_000 {
        let began = Instant::now();
        let found = store.verify(&mut |_| {}).expect("a check");
        assert!(found.faults.is_empty(), "{:?}", found.faults);
        println!(
            "| verify | {} records a second |",
            rate(found.records, began.elapsed())
        );
    }
    println!("| memory at the end | {} MiB |", resident() >> 20);
}

/// What a daemon does at its start: opens the log, folds the lineage, looks for what was left running
/// or in doubt.
fn start(dir: &Path, options: &Options) {
    let config = config(&dir.join("large"), options);
    let began = Instant::now();
    let (store, report) = Store::open(&config, &mut |_| {}).expect("a log");
    let opened = began.elapsed();
    assert_eq!(report.index_rebuilt, None);
    assert_eq!(report.caught_up, 0);
    let mut lineage = acrfence_user::lineage::Lineage::default();
    let events = store.lineage_events().expect("the lineage");
    for (seq, event) in &events {
        lineage.apply(*seq, event);
    }
    let unsettled = store.unsettled().expect("the unsettled").len();
    let mut in_doubt = EffectFilter {
        status: Some(Status::InDoubt),
        limit: Some(1000),
        ..EffectFilter::default()
    };
    let mut doubts = 0;
    loop {
        let page = store.effects(&in_doubt).expect("a page");
        doubts += page.items.len();
        in_doubt.after = page.next;
        if page.next.is_none() {
            break;
        }
    }
    print!(
        "{:.0} ms (of it opening {:.0}; {} records folded, {unsettled} unsettled, {doubts} in doubt), {} MiB; ",
        began.elapsed().as_secs_f64() * 1e3,
        opened.as_secs_f64() * 1e3,
        events.len(),
        resident() >> 20
    );
    drop((lineage, events));
    let took = read_ahead(&store);
    println!(
        "read ahead {:.1} s later, {} MiB |",
        took.as_secs_f64(),
        resident() >> 20
    );
}

/// Waits until what look-ups need is in memory; gives how long that took.
fn read_ahead(store: &Store) -> Duration {
    let began = Instant::now();
    store.read_ahead();
    while !store.stats().expect("statistics").index.read_ahead {
        std::thread::sleep(Duration::from_millis(20));
    }
    began.elapsed()
}

fn start_in_a_process_of_its_own(dir: &Path, options: &Options) {
    use std::io::Write as _;
    std::io::stdout().flush().expect("a place to print");
    let mut this = std::process::Command::new(std::env::current_exe().expect("this program"));
    this.arg("--open").arg(dir);
    if let Some(bytes) = options.index_cache {
        this.args(["--index-cache", &(bytes >> 20).to_string()]);
    }
    let status = this.status().expect("a process");
    assert!(status.success(), "the log did not open");
}

/// Takes the files below a directory out of the page cache.
fn forget_cached(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            forget_cached(&path);
        } else if let Ok(file) = File::open(&path) {
            file.sync_all().expect("a sync");
            let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
            nix::fcntl::posix_fadvise(&file, 0, 0, advice).expect("advice taken");
        }
    }
}

/// One thread that appends 2 KiB and syncs, to a file that grows.
fn raw_floor(path: &Path, time: Duration) -> f64 {
    let mut file = File::create(path).expect("a file");
    let record = [7; 2048];
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < time {
        file.write_all(&record).expect("a write");
        file.sync_data().expect("a sync");
        count += 1;
    }
    let rate = f64::from(count) / began.elapsed().as_secs_f64();
    file.write_all_at(&[0], 0).expect("a write");
    let _ = std::fs::remove_file(path);
    rate
}

async fn appends(store: &Arc<Store>, writers: u64, time: Duration) -> (f64, f64, f64, f64) {
    let before = store.stats().expect("stats").journal;
    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let (store, stop) = (store.clone(), stop.clone());
            tokio::spawn(async move {
                let mut taken = Vec::new();
                let mut n = writer;
                while !stop.load(Ordering::Relaxed) {
                    let one = Instant::now();
                    let seq = store.append(prepared(n, 1200)).await.expect("an append");
                    taken.push(one.elapsed());
                    let two = Instant::now();
                    store
                        .append(completed(EffectId(seq), n, 1400))
                        .await
                        .expect("an append");
                    taken.push(two.elapsed());
                    n += writers;
                }
                taken
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    let mut taken = Vec::new();
    for task in tasks {
        taken.extend(task.await.expect("a writer"));
    }
    let rate = taken.len() as f64 / began.elapsed().as_secs_f64();
    let after = store.stats().expect("stats").journal;
    let group = (after.records - before.records) as f64 / (after.groups - before.groups) as f64;
    taken.sort();
    (rate, group, at(&taken, 0.5) * 1e3, at(&taken, 0.99) * 1e3)
}

async fn fill(store: &Arc<Store>, effects: u64) {
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..256)
        .map(|_| {
            let (store, next) = (store.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    if n >= effects {
                        return;
                    }
                    for event in around(n) {
                        store.append(event).await.expect("an append");
                    }
                    let seq = store.append(prepared(n, 300)).await.expect("an append");
                    let ended = if n % 1000 == 999 {
                        in_doubt(EffectId(seq), n)
                    } else {
                        completed(EffectId(seq), n, 300)
                    };
                    store.append(ended).await.expect("an append");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("a writer");
    }
}

fn look_ups(store: &Store, effects: u64) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut taken = Vec::new();
    let mut found = 0;
    for _ in 0..20_000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let n = state % effects;
        let one = Instant::now();
        let rows = store
            .candidates(thread(n), &tool(n), Seq(u64::MAX))
            .expect("candidates");
        taken.push(one.elapsed());
        found += rows.len();
    }
    taken.sort();
    println!(
        "| candidates: p50 / p99 / worst ({:.1} found on average) | {:.0} / {:.0} / {:.0} µs |",
        found as f64 / taken.len() as f64,
        at(&taken, 0.5) * 1e6,
        at(&taken, 0.99) * 1e6,
        at(&taken, 1.0) * 1e6
    );
}

/// The floor of a look-up that finds nothing in memory.
fn cold_reads(file: &Path) {
    use std::os::unix::fs::OpenOptionsExt as _;
    const PAGE: usize = 4096;
    let direct = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(nix::libc::O_DIRECT)
        .open(file)
        .expect("the index");
    let pages = direct.metadata().expect("its size").len() / PAGE as u64;
    let mut room = vec![0; 2 * PAGE];
    let start = room.as_ptr().align_offset(PAGE);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut taken = Vec::new();
    for _ in 0..5000 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let one = Instant::now();
        direct
            .read_exact_at(&mut room[start..start + PAGE], state % pages * PAGE as u64)
            .expect("a page");
        taken.push(one.elapsed());
    }
    taken.sort();
    println!(
        "| floor: one read of 4 KiB from the disk, p50 / p99 / worst | {:.0} / {:.0} / {:.0} µs |",
        at(&taken, 0.5) * 1e6,
        at(&taken, 0.99) * 1e6,
        at(&taken, 1.0) * 1e6
    );
}

fn first_pages(store: &Store) {
    let all = EffectFilter::default();
    let pages = [
        ("newest", all.clone()),
        (
            "of an agent",
            EffectFilter {
                agent: Some(agent(3)),
                ..all.clone()
            },
        ),
        (
            "of a host, oldest first",
            EffectFilter {
                host: Some("host-5.test".into()),
                oldest_first: true,
                ..all.clone()
            },
        ),
        (
            "in doubt",
            EffectFilter {
                status: Some(Status::InDoubt),
                ..all.clone()
            },
        ),
        (
            "tool contains `tool-11`, of a pid",
            EffectFilter {
                tool: Some("tool-11".into()),
                pid: Some(1003),
                ..all.clone()
            },
        ),
        (
            "in the first second",
            EffectFilter {
                until: Some(Timestamp(1_000)),
                ..all.clone()
            },
        ),
        (
            "with a text",
            EffectFilter {
                text: Some("effect 77".into()),
                ..all
            },
        ),
    ];
    for (what, filter) in pages {
        let one = Instant::now();
        let page = store.effects(&filter).expect("a page");
        println!(
            "| first page {what} ({} rows) | {:.1} ms |",
            page.items.len(),
            one.elapsed().as_secs_f64() * 1e3
        );
    }
}

fn thread(n: u64) -> ThreadId {
    ThreadId(Seq(n / 200 + 1))
}

fn tool(n: u64) -> ToolKey {
    ToolKey(format!("POST host-{}.test /v1/tool-{}", n % 50, n % 20))
}

fn agent(n: u64) -> acrfence_user::words::AgentName {
    format!("agent-{}", n % 10).parse().expect("a name")
}

fn prepared(n: u64, size: usize) -> Event {
    Event::Prepared(Box::new(Prepared {
        key: tool(n),
        thread: thread(n),
        branch: BranchId(Seq(n / 200 + 1)),
        parent: None,
        co_parents: Vec::new(),
        call: ToolCall {
            at: Timestamp(n),
            request: Request::Http(HttpRequest {
                method: "POST".into(),
                url: format!("https://host-{}.test/v1/tool-{}", n % 50, n % 20),
                headers: vec![Header::new("content-type", "application/json")],
                body: text(n, size),
                rpc: Vec::new(),
            }),
            origin: Origin {
                agent: agent(n),
                incarnation: 1,
                process: ProcessIdentity {
                    tgid: 1000 + (n % 100) as u32,
                    start_ns: 1,
                },
                exe: "/usr/bin/agent".into(),
                argv: vec!["agent".into(), "--run".into()],
                cwd: "/home/agent".into(),
                uid: 1000,
                connection: None,
                gaps: String::new(),
            },
        },
        presented: vec![Fingerprint([(n % 50) as u8; 16])],
        values: (0..4)
            .map(|k| n.wrapping_mul(0x9e37_79b9).wrapping_add(k))
            .collect(),
        retry_of: None,
    }))
}

/// Records that are no effects, of a machine that lives long.
fn around(n: u64) -> Vec<Event> {
    let mut events = Vec::new();
    let at = Timestamp(n);
    if n.is_multiple_of(200) {
        events.push(Event::ThreadOpened(Thread {
            id: thread(n),
            agent: agent(n),
            title: "main".into(),
            at,
        }));
        events.push(Event::BranchOpened(Branch {
            id: BranchId(Seq(0)),
            thread: thread(n),
            parent: None,
            fork_point: ForkPoint::At(Seq(0)),
            cause: Cause::Start,
            grade: Grade::Certain,
            note: String::new(),
            at,
            absent: None,
            wide: false,
        }));
    }
    let Event::Prepared(like) = prepared(n, 300) else {
        return events;
    };
    let branch = BranchId(Seq(n / 200 + 1));
    if n % 100 == 50 {
        events.push(Event::Refused {
            branch,
            call: Box::new(like.call.clone()),
            refusal: Refusal {
                code: RefusalCode::Diverged,
                title: "It differs from an earlier effect.".into(),
                detail: "Nothing was sent.".into(),
                effect: Some(EffectId(Seq(n / 2))),
                fields: Vec::new(),
                hold: None,
            },
            enforced: true,
            at,
        });
    }
    if n % 1000 == 500 {
        events.push(Event::Replayed {
            effect: EffectId(Seq(n / 2)),
            branch,
            call: Box::new(like.call),
            why: None,
            at,
        });
    }
    events
}

fn in_doubt(effect: EffectId, n: u64) -> Event {
    Event::Settled {
        effect,
        outcome: Outcome::InDoubt {
            why: "the connection was reset".into(),
            response: None,
        },
        at: Timestamp(n),
        harvest: Harvest::default(),
    }
}

fn completed(effect: EffectId, n: u64, size: usize) -> Event {
    Event::Settled {
        effect,
        outcome: Outcome::Completed(Response::Http(HttpResponse {
            status: 201,
            headers: vec![Header::new("content-type", "application/json")],
            body: text(n, size),
            trailers: Vec::new(),
        })),
        at: Timestamp(n),
        harvest: Harvest {
            issued: Vec::new(),
            values: (0..4)
                .map(|k| n.wrapping_mul(0x85eb_ca6b).wrapping_add(k))
                .collect(),
        },
    }
}

fn text(n: u64, size: usize) -> Body {
    let mut text = format!("effect {n} ");
    while text.len() < size {
        text.push_str("lorem ipsum dolor ");
    }
    text.truncate(size);
    Body::whole(text)
}

fn layout(dir: &Path, options: &Options) -> StoreConfig {
    std::fs::create_dir(dir).expect("a directory");
    config(dir, options)
}

fn config(dir: &Path, options: &Options) -> StoreConfig {
    let mut config = StoreConfig::new(dir.join("state"), dir.join("key"), dir.join("anchor"));
    if let Some(bytes) = options.index_cache {
        config.index_cache = bytes;
    }
    config
}

fn open(config: &StoreConfig) -> Store {
    Store::open(config, &mut |_| {}).expect("a log").0
}

fn at(sorted: &[Duration], part: f64) -> f64 {
    let last = sorted.len() - 1;
    sorted[(last as f64 * part) as usize].as_secs_f64()
}

fn rate(count: u64, time: Duration) -> u64 {
    (count as f64 / time.as_secs_f64()) as u64
}

/// Bytes that a directory takes on the disk.
fn size(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::read_dir(dir).map_or(0, |entries| {
        entries
            .filter_map(Result::ok)
            .map(|entry| match entry.metadata() {
                Ok(meta) if meta.is_dir() => size(&entry.path()),
                Ok(meta) => meta.blocks() * 512,
                Err(_) => 0,
            })
            .sum()
    })
}

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status
        .lines()
        .find(|line| line.starts_with("VmRSS:"))
        .unwrap_or("");
    let kib: u64 = line
        .split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(0);
    kib << 10
}

fn options() -> Options {
    let mut options = Options {
        open: None,
        effects: 1_000_000,
        seconds: 3,
        dir: None,
        index_cache: None,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().unwrap_or_else(|| panic!("{arg} needs a value"));
        match arg.as_str() {
            "--effects" => options.effects = value().parse().expect("a number"),
            "--ten-million" => options.effects = 10_000_000,
            "--seconds" => options.seconds = value().parse().expect("a number"),
            "--open" => options.open = Some(value().into()),
            "--dir" => options.dir = Some(value().into()),
            "--index-cache" => {
                options.index_cache = Some(value().parse::<u64>().expect("a number") << 20);
            }
            // What `cargo bench` adds.
            "--bench" => {}
            other => panic!("unknown option {other}"),
        }
    }
    options
}
