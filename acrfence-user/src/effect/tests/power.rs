//! Power loss at every operation, with every kind of half-written state: nothing acknowledged is
//! missing, nothing prepared is forgotten, and the log opens again.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;

use super::answers::small;
use crate::effect::index::ordered::MemoryHome;
use crate::effect::journal::Acceptance;
use crate::effect::journal::seal::Record;
use crate::effect::journal::simulated::SimulatedDisk;
use crate::effect::samples;
use crate::effect::{EffectLog, Event, LogError, OpenReport, Store, StoreConfig};
use crate::words::{EffectId, Seq, Status};

pub fn open_on(
    disk: &SimulatedDisk,
    config: &StoreConfig,
) -> Result<(Store, OpenReport), LogError> {
    Store::open_on(
        Arc::new(disk.clone()),
        Arc::new(MemoryHome::default()),
        config,
        &mut |_| {},
        Acceptance::Nothing,
        "",
    )
}

/// Everything in the journal.
pub fn all_events(store: &Store) -> BTreeMap<Seq, Event> {
    let mut events = BTreeMap::new();
    store
        .visit(Seq(0), &mut |seq, record| {
            if let Record::Event(event) = record {
                events.insert(seq, event);
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    events
}

/// What was asked of a store and what it promised.
#[derive(Default)]
struct Promises {
    submitted: Vec<Event>,
    kept: BTreeMap<Seq, Event>,
}

/// Writes until the work is done or the disk fails; several calls are under way at a time.
async fn work(store: &Store, promises: &mut Promises, rounds: usize, salt: u8) {
    for round in 0..rounds {
        let n = salt.wrapping_add(round as u8);
        let size = if n.is_multiple_of(5) { 6000 } else { 300 };
        let calls: Vec<Event> = (0..3u8)
            .map(|k| samples::prepared(n.wrapping_add(k), 7, &"x".repeat(size)))
            .collect();
        promises.submitted.extend(calls.iter().cloned());
        let done =
            futures_util::future::join_all(calls.iter().map(|e| store.append(e.clone()))).await;
        let mut effects = Vec::new();
        for (event, done) in calls.into_iter().zip(done) {
            let Ok(seq) = done else { continue };
            promises.kept.insert(seq, event.at_position(seq));
            effects.push(EffectId(seq));
        }
        let note = Event::Observed {
            thread: crate::words::ThreadId(Seq(1)),
            harvest: samples::harvest(n),
            at: crate::words::Timestamp(1),
        };
        promises.submitted.push(note.clone());
        store.note(note);
        // One effect in three stays without an outcome.
        for effect in effects.into_iter().skip(1) {
            let outcome = crate::words::Outcome::Completed(samples::response(n, &"y".repeat(size)));
            let event = samples::settled(effect, outcome, n, 9);
            promises.submitted.push(event.clone());
            if let Ok(seq) = store.append(event.clone()).await {
                promises.kept.insert(seq, event);
            }
        }
        if store.stats().is_ok_and(|stats| stats.stopped.is_some()) {
            return;
        }
    }
}

/// Opens what power loss left and compares it with the promises.
fn check(disk: &SimulatedDisk, config: &StoreConfig, promises: &Promises) -> Store {
    let (store, _) = open_on(disk, config).unwrap_or_else(|e| panic!("it must open again: {e}"));
    let events = all_events(&store);
    for (seq, event) in &promises.kept {
        assert_eq!(
            events.get(seq),
            Some(event),
            "record {seq} was acknowledged"
        );
    }
    let submitted: Vec<Event> = promises.submitted.clone();
    for (seq, event) in &events {
        let known = submitted
            .iter()
            .any(|e| e.clone().at_position(*seq) == *event);
        assert!(known, "record {seq} was never written");
    }
    let mut settled = BTreeMap::new();
    for event in events.values() {
        if let Event::Settled { effect, .. } = event {
            settled.insert(*effect, ());
        }
    }
    let unsettled = store.unsettled().unwrap();
    for (seq, event) in &events {
        if matches!(event, Event::Prepared(_)) {
            let id = EffectId(*seq);
            assert_eq!(unsettled.contains(&id), !settled.contains_key(&id), "{id}");
            assert!(store.effect(id).unwrap().is_some());
        }
    }
    store
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
}

/// A small stream of coin tosses.
fn tosses(seed: u64) -> impl FnMut() -> bool {
    let mut state = seed | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state & 4 == 0
    }
}

fn layout(dir: &Path) -> StoreConfig {
    let mut config = small(dir);
    config.segment_size = 48 << 10;
    config
}

#[test]
fn power_loss_at_every_operation() {
    let dir = tempfile::tempdir().unwrap();
    let config = layout(dir.path());
    let rounds = 6;
    let whole = SimulatedDisk::default();
    let (store, _) = open_on(&whole, &config).unwrap();
    runtime().block_on(work(&store, &mut Promises::default(), rounds, 3));
    drop(store);
    let operations = whole.operations();
    assert!(
        operations > 60,
        "the work should touch the disk often: {operations}"
    );

    for n in 0..operations {
        let disk = SimulatedDisk::default();
        disk.lose_power_at(n);
        let mut promises = Promises::default();
        if let Ok((store, _)) = open_on(&disk, &config) {
            runtime().block_on(work(&store, &mut promises, rounds, 3));
            drop(store);
        }
        drop(check(
            &disk.after_power_loss(&mut || false),
            &config,
            &promises,
        ));
        drop(check(
            &disk.after_power_loss(&mut || true),
            &config,
            &promises,
        ));
        for seed in 1..4 {
            let left = disk.after_power_loss(&mut tosses(n * 31 + seed * 0x9e37_79b9));
            drop(check(&left, &config, &promises));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 50, ..ProptestConfig::default() })]

    #[test]
    fn power_loss_again_and_again(
        lives in proptest::collection::vec((0..200u64, any::<u64>(), any::<u8>(), 1..12usize), 1..6),
    ) {
        let dir = tempfile::tempdir().unwrap();
        let config = layout(dir.path());
        let mut disk = SimulatedDisk::default();
        let mut promises = Promises::default();
        for (lose_at, seed, salt, rounds) in lives {
            disk.lose_power_at(disk.operations() + lose_at);
            if let Ok((store, _)) = open_on(&disk, &config) {
                runtime().block_on(work(&store, &mut promises, rounds, salt));
                drop(store);
            }
            disk = disk.after_power_loss(&mut tosses(seed));
            let store = check(&disk, &config, &promises);
            // What was there once is there for ever, acknowledged or not: a person saw it.
            for (seq, event) in all_events(&store) {
                promises.kept.insert(seq, event);
            }
            drop(store);
        }
    }
}

/// An answer says that the record is on the disk: whatever was not synced may be lost right then.
#[test]
fn the_sync_returns_before_the_answer() {
    let dir = tempfile::tempdir().unwrap();
    let config = layout(dir.path());
    let disk = SimulatedDisk::default();
    let (store, _) = open_on(&disk, &config).unwrap();
    runtime().block_on(async {
        for n in 0..25u8 {
            let call = samples::prepared(n, 1, &"z".repeat(if n % 4 == 0 { 7000 } else { 900 }));
            let seq = store.append(call.clone()).await.unwrap();
            // Now the first byte would go upstream.
            let (left, _) = open_on(&disk.after_power_loss(&mut || false), &config).unwrap();
            assert_eq!(left.unsettled().unwrap().last(), Some(&EffectId(seq)));
            drop(left);
            let outcome = crate::words::Outcome::Completed(samples::response(n, "done"));
            store
                .append(samples::settled(EffectId(seq), outcome, n, 2))
                .await
                .unwrap();
            // Now the first byte would go to the agent.
            let (left, _) = open_on(&disk.after_power_loss(&mut || false), &config).unwrap();
            let effect = left.effect(EffectId(seq)).unwrap().unwrap();
            assert_eq!(effect.status, Status::Completed);
            assert!(effect.outcome.is_some());
            // One effect in four stays unsettled, for the `last` above.
        }
    });
}

#[test]
fn a_failed_sync_stops_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let config = layout(dir.path());
    let disk = SimulatedDisk::default();
    let (store, _) = open_on(&disk, &config).unwrap();
    runtime().block_on(async {
        let seq = store
            .append(samples::prepared(1, 1, "before"))
            .await
            .unwrap();
        disk.fail_syncs();
        for _ in 0..3 {
            let said = store.append(samples::prepared(2, 1, "after")).await;
            assert!(matches!(said, Err(LogError::Stopped { .. })), "{said:?}");
        }
        // What was there can still be read.
        assert!(store.effect(EffectId(seq)).unwrap().is_some());
        assert!(store.stats().unwrap().stopped.is_some());
    });
}
