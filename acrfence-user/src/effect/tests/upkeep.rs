//! Garbage collection, verification, export, key rotation, and an index that goes wrong.

use std::collections::HashSet;
use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::answers::{open, same_answers, small};
use super::power::{all_events, open_on};
use crate::effect::index::ordered::{Change, Home, IndexFault, MemoryHome, Ordered};
use crate::effect::journal::Acceptance;
use crate::effect::journal::anchor::now;
use crate::effect::journal::disk::OsDisk;
use crate::effect::journal::simulated::SimulatedDisk;
use crate::effect::model::Model;
use crate::effect::samples;
use crate::effect::{
    Content, EffectFilter, EffectLog, Event, ExportFilter, GcKeep, GcPolicy, Harvest, LogError,
    Prepared, Store,
};
use crate::words::{
    BranchId, EffectId, Outcome, Resolution, Seq, Status, ThreadId, Timestamp, ToolKey,
};

/// An effect of a thread that presents nothing and is completed with `len` bytes.
async fn effect(store: &Store, thread: u64, len: usize) -> EffectId {
    let prepared = Event::Prepared(Box::new(Prepared {
        key: ToolKey("t".into()),
        thread: ThreadId(Seq(thread)),
        branch: BranchId(Seq(thread)),
        parent: None,
        co_parents: Vec::new(),
        call: samples::call(0, thread, "a"),
        presented: Vec::new(),
        values: vec![thread],
        retry_of: None,
    }));
    let id = EffectId(store.append(prepared).await.unwrap());
    let outcome = Outcome::Completed(samples::response(0, &"y".repeat(len)));
    let settled = Event::Settled {
        effect: id,
        outcome,
        at: Timestamp(thread),
        harvest: Harvest::default(),
    };
    store.append(settled).await.unwrap();
    id
}

fn keep(threads: &[u64]) -> GcKeep {
    GcKeep {
        threads: threads.iter().map(|t| ThreadId(Seq(*t))).collect(),
        branches: HashSet::new(),
    }
}

fn everything_old() -> GcPolicy {
    GcPolicy {
        older_than: Some(now()),
        max_bytes: None,
    }
}

fn ids(store: &Store) -> HashSet<EffectId> {
    let mut filter = EffectFilter {
        limit: Some(1000),
        ..EffectFilter::default()
    };
    let mut all = HashSet::new();
    loop {
        let page = store.effects(&filter).unwrap();
        all.extend(page.items.into_iter().map(|row| row.id));
        filter.after = page.next;
        if page.next.is_none() {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_removes_what_nobody_needs_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    let mut dead = Vec::new();
    let mut alive = Vec::new();
    for round in 0..60 {
        dead.push(effect(&store, 1, if round % 5 == 0 { 9000 } else { 900 }).await);
        alive.push(effect(&store, 2, if round % 7 == 0 { 9000 } else { 900 }).await);
    }
    // In the dead thread: one in doubt, one that spent an issued credential, one unsettled.
    let unsettled = EffectId(store.append(samples::prepared(0, 1, "u")).await.unwrap());
    let lineage = Event::ThreadOpened(crate::words::Thread {
        id: ThreadId(Seq(0)),
        agent: samples::agent(1),
        title: "dead".into(),
        at: Timestamp(1),
    });
    let lineage = store.append(lineage).await.unwrap();
    let issuer = Event::Observed {
        thread: ThreadId(Seq(1)),
        harvest: Harvest {
            issued: vec![samples::fingerprint(77)],
            values: vec![5],
        },
        at: Timestamp(1),
    };
    let issuer = store.append(issuer).await.unwrap();
    let plain = Event::Observed {
        thread: ThreadId(Seq(1)),
        harvest: samples::harvest(4),
        at: Timestamp(1),
    };
    let plain = store.append(plain).await.unwrap();
    let Event::Prepared(mut spender) = samples::prepared(0, 1, "s") else {
        unreachable!()
    };
    spender.thread = ThreadId(Seq(1));
    spender.presented = vec![samples::fingerprint(77)];
    let spender = EffectId(store.append(Event::Prepared(spender)).await.unwrap());
    let outcome = Outcome::Completed(samples::response(0, "spent"));
    store
        .append(samples::settled(spender, outcome, 200, 1))
        .await
        .unwrap();
    let Event::Prepared(mut doubted) = samples::prepared(0, 1, "d") else {
        unreachable!()
    };
    doubted.presented.clear();
    let doubtful = EffectId(store.append(Event::Prepared(doubted)).await.unwrap());
    let in_doubt = Event::Settled {
        effect: doubtful,
        outcome: Outcome::InDoubt {
            why: "reset".into(),
            response: None,
        },
        at: Timestamp(1),
        harvest: Harvest::default(),
    };
    store.append(in_doubt).await.unwrap();
    // What follows pushes everything above out of the segment in use.
    for _ in 0..60 {
        effect(&store, 3, 2000).await;
    }

    let before = all_events(&store);
    let report = store.gc(&everything_old(), &keep(&[2, 3])).unwrap();
    assert_eq!(report.effects, 60, "{report:?}");
    assert!(report.bodies >= 12 && report.freed > 100_000, "{report:?}");
    let after = all_events(&store);
    for (seq, event) in &after {
        assert_eq!(
            before.get(seq),
            Some(event),
            "what stays is what was written"
        );
    }
    assert!(after.contains_key(&lineage) && after.contains_key(&issuer));
    assert!(!after.contains_key(&plain));
    let left = ids(&store);
    assert!(dead.iter().all(|id| !left.contains(id)));
    assert!(alive.iter().all(|id| left.contains(id)));
    for id in [unsettled, spender, doubtful].iter().chain(&alive) {
        assert!(store.effect(*id).unwrap().is_some(), "{id}");
    }
    assert!(dead.iter().all(|id| store.effect(*id).unwrap().is_none()));
    assert_eq!(
        store
            .credential(samples::fingerprint(77))
            .unwrap()
            .presented,
        [(spender, Status::Completed)]
    );
    assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);

    // Later words about old effects still find them.
    let resolved = Event::Resolved {
        effect: doubtful,
        resolution: Resolution::DidNotHappen,
        by: "uid 0".into(),
        at: Timestamp(9),
    };
    store.append(resolved).await.unwrap();
    assert_eq!(
        store.effect(doubtful).unwrap().unwrap().status,
        Status::Failed
    );
    // And now it may go; a second pass works on what the first left.
    let report = store.gc(&everything_old(), &keep(&[2, 3])).unwrap();
    assert_eq!(report.effects, 1, "{report:?}");
    assert!(store.effect(doubtful).unwrap().is_none());
    assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);
    let left = ids(&store);
    drop(store);

    let (store, report) = Store::open(&config, &mut |_| {}).unwrap();
    assert_eq!(report.index_rebuilt, None);
    assert_eq!(ids(&store), left);
    drop(store);
    std::fs::remove_dir_all(config.index_dir()).unwrap();
    let store = open(&config);
    assert_eq!(ids(&store), left, "the journal alone says the same");
    assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);
    drop(store);
    assert_eq!(
        Store::verify_closed(&config, &mut |_| {}).unwrap().faults,
        []
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn gc_by_size_stops_when_it_is_small_enough() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    for _ in 0..150 {
        effect(&store, 1, 2000).await;
    }
    let before = ids(&store).len();
    let policy = GcPolicy {
        older_than: None,
        max_bytes: Some(200 << 10),
    };
    store.gc(&policy, &GcKeep::default()).unwrap();
    let after = ids(&store).len();
    assert!(after < before && after > 10, "{before} {after}");
    assert_eq!(
        store
            .gc(&GcPolicy::default(), &GcKeep::default())
            .unwrap()
            .segments,
        0
    );
    assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);
}

/// A compacted segment from which one more record is taken away does not pass.
#[tokio::test]
async fn a_record_missing_from_a_compacted_segment_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let disk = SimulatedDisk::default();
    let (store, _) = open_on(&disk, &config).unwrap();
    for _ in 0..60 {
        effect(&store, 1, 900).await;
        effect(&store, 2, 900).await;
    }
    store.gc(&everything_old(), &keep(&[2])).unwrap();
    drop(store);
    let first = config.state_dir.join("journal/0000000001.seg");
    let bytes = disk.bytes(&first);
    let len = crate::effect::journal::frame::read(&bytes[512..])
        .unwrap()
        .payload
        .len();
    let whole = crate::effect::journal::frame::length(len);
    let cut: Vec<u8> = bytes[..512]
        .iter()
        .chain(&bytes[512 + whole..])
        .copied()
        .collect();
    crate::effect::journal::disk::Disk::remove(&disk, &first).unwrap();
    let file = crate::effect::journal::disk::Disk::create(&disk, &first).unwrap();
    file.write_at(&cut, 0).unwrap();
    let (store, _) = open_on(&disk, &config).unwrap();
    let found = store.verify(&mut |_| {}).unwrap();
    assert!(
        found
            .faults
            .iter()
            .any(|f| f.place.contains("0000000001.seg")),
        "{found:?}"
    );
}

#[test]
fn gc_survives_power_loss_at_every_operation() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let full = SimulatedDisk::default();
    let (store, _) = open_on(&full, &config).unwrap();
    runtime.block_on(async {
        for round in 0..30 {
            effect(
                &store,
                1 + round % 2,
                if round % 5 == 0 { 9000 } else { 3000 },
            )
            .await;
        }
    });
    drop(store);
    let start = full.after_power_loss(&mut || true);
    let gc = |store: &Store| store.gc(&everything_old(), &keep(&[2]));
    let probe = start.after_power_loss(&mut || true);
    let (store, _) = open_on(&probe, &config).unwrap();
    let opened = probe.operations();
    let before = ids(&store);
    gc(&store).unwrap();
    let done = probe.operations();
    let after = ids(&store);
    assert!(after.len() < before.len());
    drop(store);
    for n in opened..done {
        let disk = start.after_power_loss(&mut || true);
        disk.lose_power_at(n);
        if let Ok((store, _)) = open_on(&disk, &config) {
            let _ = gc(&store);
            drop(store);
        }
        let mut toss = n;
        for left in [
            disk.after_power_loss(&mut || false),
            disk.after_power_loss(&mut || {
                toss = toss.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                toss >> 63 == 1
            }),
        ] {
            let (store, _) = open_on(&left, &config).unwrap();
            let now = ids(&store);
            assert!(after.is_subset(&now) && now.is_subset(&before));
            for id in &now {
                assert!(store.effect(*id).unwrap().is_some());
            }
            assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);
            // And it can be done again.
            gc(&store).unwrap();
            assert_eq!(ids(&store), after);
        }
    }
}

#[tokio::test]
async fn export_shows_content_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    let one = effect(&store, 1, 10).await;
    effect(&store, 2, 9000).await;
    let lines = |filter: &ExportFilter, content| {
        let mut out = Vec::new();
        let count = store.export(filter, content, &mut out).unwrap();
        let lines: Vec<serde_json::Value> = String::from_utf8(out)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(count, lines.len() as u64);
        lines
    };
    let sealed = lines(&ExportFilter::default(), Content::Sealed);
    assert_eq!(sealed.len(), 4);
    assert!(sealed.iter().all(|line| line.get("event").is_none()));
    assert_eq!(sealed[0]["kind"], "prepared");
    assert!(sealed[3]["body"].is_string() && sealed[2]["body"].is_null());

    let of_thread = ExportFilter {
        thread: Some(ThreadId(Seq(1))),
        ..ExportFilter::default()
    };
    let open = lines(&of_thread, Content::Open);
    assert_eq!(open.len(), 2);
    assert_eq!(open[1]["event"]["settled"]["effect"], one.to_string());
    let event: Event = serde_json::from_value(open[0]["event"].clone()).unwrap();
    assert!(matches!(event, Event::Prepared(_)));
    for (filter, count) in [
        (
            ExportFilter {
                kinds: vec!["settled".into()],
                ..ExportFilter::default()
            },
            2,
        ),
        (
            ExportFilter {
                effect: Some(one),
                ..ExportFilter::default()
            },
            2,
        ),
        (
            ExportFilter {
                from: Some(Seq(2)),
                to: Some(Seq(3)),
                ..ExportFilter::default()
            },
            2,
        ),
        (
            ExportFilter {
                since: Some(Timestamp(2)),
                ..ExportFilter::default()
            },
            2,
        ),
        (
            ExportFilter {
                agent: Some(samples::agent(2)),
                ..ExportFilter::default()
            },
            0,
        ),
    ] {
        assert_eq!(lines(&filter, Content::Sealed).len(), count, "{filter:?}");
    }
}

#[tokio::test]
async fn records_of_a_rotated_key_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    let secret = store.secret("fingerprints");
    let old = effect(&store, 1, 9000).await;
    store.rotate_key().unwrap();
    let new = effect(&store, 1, 9000).await;
    assert_eq!(store.secret("fingerprints"), secret);
    drop(store);
    let store = open(&config);
    assert_eq!(store.secret("fingerprints"), secret);
    for id in [old, new] {
        assert_eq!(store.effect(id).unwrap().unwrap().status, Status::Completed);
    }
    assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);
    let mut out = Vec::new();
    store
        .export(&ExportFilter::default(), Content::Sealed, &mut out)
        .unwrap();
    let keys: HashSet<String> = String::from_utf8(out)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["key"].to_string())
        .collect();
    assert_eq!(keys.len(), 2);
    drop(store);
    // Without the old key the log says which one is missing.
    let text = std::fs::read_to_string(&config.key_file).unwrap();
    let without: Vec<&str> = text
        .lines()
        .filter(|l| !l.starts_with("acrfence-key-1"))
        .chain(text.lines().last())
        .collect();
    std::fs::write(&config.key_file, without.join("\n")).unwrap();
    let said = Store::open(&config, &mut |_| {}).err().unwrap().to_string();
    assert!(said.contains("not in the key file"), "{said}");
    std::fs::remove_file(&config.key_file).unwrap();
    let said = Store::open(&config, &mut |_| {}).err().unwrap().to_string();
    assert!(said.contains("is missing"), "{said}");
    assert!(
        !config.key_file.exists(),
        "no new key in place of a lost one"
    );
}

/// An index that fails, panics or lies when told to.
#[derive(Clone, Default)]
struct Moody {
    inner: MemoryHome,
    fails: Arc<AtomicBool>,
    lies: Arc<AtomicBool>,
    wiped: Arc<AtomicUsize>,
}

struct MoodyKeys(Arc<dyn Ordered>, Moody);

impl Home for Moody {
    fn open(&self) -> Result<Arc<dyn Ordered>, IndexFault> {
        Ok(Arc::new(MoodyKeys(self.inner.open()?, self.clone())))
    }
    fn wipe(&self) -> Result<(), IndexFault> {
        self.wiped.fetch_add(1, Ordering::SeqCst);
        self.fails.store(false, Ordering::SeqCst);
        self.lies.store(false, Ordering::SeqCst);
        self.inner.wipe()
    }
    fn mark_clean(&self, clean: bool) -> Result<(), IndexFault> {
        self.inner.mark_clean(clean)
    }
    fn fold(&self) -> Result<(), IndexFault> {
        self.inner.fold()
    }
    fn trusted(&self) -> bool {
        true
    }
}

impl MoodyKeys {
    fn mood(&self) -> Result<(), IndexFault> {
        if self.1.fails.load(Ordering::SeqCst) {
            return Err(IndexFault("it is in a mood".into()));
        }
        Ok(())
    }
}

impl Ordered for MoodyKeys {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, IndexFault> {
        self.mood()?;
        let found = self.0.get(key)?;
        if self.1.lies.load(Ordering::SeqCst) {
            return Ok(found.map(|mut value| {
                value.iter_mut().for_each(|b| *b ^= 1);
                value
            }));
        }
        Ok(found)
    }
    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        reverse: bool,
        visit: &mut dyn FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), IndexFault> {
        self.mood()?;
        self.0.scan(from, to, reverse, visit)
    }
    fn apply(&self, changes: Vec<Change>) -> Result<(), IndexFault> {
        self.mood()?;
        self.0.apply(changes)
    }
    fn flush(&self, sync: bool) -> Result<(), IndexFault> {
        self.0.flush(sync)
    }
    fn size(&self) -> u64 {
        0
    }
}

#[tokio::test]
async fn an_index_that_fails_or_lies_is_rebuilt_and_loses_nothing() {
    for lie in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path());
        let home = Moody::default();
        std::fs::DirBuilder::new()
            .create(&config.state_dir)
            .unwrap();
        let (store, _) = Store::open_on(
            Arc::new(OsDisk),
            Arc::new(home.clone()),
            &config,
            &mut |_| {},
            Acceptance::Nothing,
            "",
        )
        .unwrap();
        let model = Model::new();
        let mut first = None;
        for n in 0..40u8 {
            let event = samples::prepared(n, u64::from(n), "x");
            let id = EffectId(model.push(event.clone()));
            store.append(event).await.unwrap();
            first.get_or_insert(id);
        }
        store.catch_up();
        let wiped = home.wiped.load(Ordering::SeqCst);
        let mood = if lie { &home.lies } else { &home.fails };
        mood.store(true, Ordering::SeqCst);
        let said = store.effect(first.unwrap());
        assert!(
            matches!(said, Err(LogError::Unusable(_))),
            "never a wrong answer: {said:?}"
        );
        // Records keep coming in while it is rebuilt.
        for n in 40..60u8 {
            let event = samples::prepared(n, u64::from(n), "x");
            model.push(event.clone());
            store.append(event).await.unwrap();
        }
        while store
            .stats()
            .map_or(true, |stats| stats.index.rebuilds == 0)
        {
            tokio::task::yield_now().await;
        }
        assert!(home.wiped.load(Ordering::SeqCst) > wiped);
        same_answers(&store, &model, &[EffectFilter::default()]);
    }
}

/// sled's own files damaged in any way: the answers stay right.
#[tokio::test]
async fn damaged_sled_files_are_noticed_or_harmless() {
    for round in 0..12u64 {
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path());
        let store = open(&config);
        let model = Model::new();
        for n in 0..50u8 {
            let event = samples::prepared(n, u64::from(n), "x");
            let id = EffectId(model.push(event.clone()));
            store.append(event).await.unwrap();
            let event = samples::settled(id, Outcome::Completed(samples::response(n, "y")), n, 3);
            model.push(event.clone());
            store.append(event).await.unwrap();
        }
        drop(store);
        let db = config.index_dir().join("db");
        let mut bytes = std::fs::read(&db).unwrap();
        let at = (round as usize * 7919 + 13) % bytes.len();
        match round % 3 {
            0 => bytes[at..].iter_mut().step_by(97).for_each(|b| *b ^= 0x55),
            1 => bytes.truncate(at),
            _ => bytes[at] ^= 1,
        }
        std::fs::write(&db, bytes).unwrap();
        let store = open(&config);
        same_answers(&store, &model, &[EffectFilter::default()]);
    }
}
