//! The store answers like the model, whatever was written, closed, opened or still on its way.

use std::path::Path;

use proptest::prelude::*;
use proptest::sample::Index as Pick;

use crate::effect::model::Model;
use crate::effect::samples::{self, Step};
use crate::effect::{EffectFilter, EffectLog, Store, StoreConfig};
use crate::words::{BranchId, EffectId, Seq, Status, ThreadId, Timestamp, ToolKey};

/// A layout with small segments and bounds, so that rotation and body files are common.
pub fn small(dir: &Path) -> StoreConfig {
    let mut config = StoreConfig::new(dir.join("state"), dir.join("log.key"), dir.join("anchor"));
    config.segment_size = 64 << 10;
    config.body_inline_max = 4 << 10;
    config.outcome_room = 8 << 10;
    config.index_cache = 8 << 20;
    config
}

pub fn open(config: &StoreConfig) -> Store {
    Store::open(config, &mut |_| {}).unwrap().0
}

/// Compares every answer.
pub fn same_answers(store: &Store, model: &Model, filters: &[EffectFilter]) {
    let last = model.events.lock().len() as u64;
    for id in 0..=last + 1 {
        let id = EffectId(Seq(id));
        assert_eq!(store.effect(id).unwrap(), model.effect(id).unwrap(), "{id}");
    }
    for thread in (0..4).map(|n| ThreadId(Seq(n))) {
        for tool in (0..5).map(|n| ToolKey(format!("tool-{n}"))) {
            for before in [0, last / 2, last + 1].map(Seq) {
                assert_eq!(
                    store.candidates(thread, &tool, before).unwrap(),
                    model.candidates(thread, &tool, before).unwrap()
                );
            }
        }
        for value in (0..12).chain(1_000..1_012).chain(2_000..2_014) {
            assert_eq!(
                store.first_seen(thread, value).unwrap(),
                model.first_seen(thread, value).unwrap(),
                "value {value} in {thread}"
            );
        }
    }
    for fingerprint in (0..7).map(samples::fingerprint) {
        assert_eq!(
            store.credential(fingerprint).unwrap(),
            model.credential(fingerprint).unwrap()
        );
    }
    assert_eq!(
        store.lineage_events().unwrap(),
        model.lineage_events().unwrap()
    );
    for after in [0, last / 2, last].map(Seq) {
        for limit in [3, usize::MAX] {
            assert_eq!(
                store.refusals(after, limit).unwrap(),
                model.refusals(after, limit).unwrap()
            );
        }
    }
    for effect in (0..4).map(|n| EffectId(Seq(n))) {
        assert_eq!(
            store.history(effect).unwrap(),
            model.history(effect).unwrap(),
            "{effect}"
        );
    }
    assert_eq!(store.unsettled().unwrap(), model.unsettled().unwrap());
    for filter in filters {
        let mut filter = filter.clone();
        let mut theirs = filter.clone();
        let (mut got, mut wanted) = (Vec::new(), Vec::new());
        loop {
            let page = store.effects(&filter).unwrap();
            assert!(page.items.len() <= filter.limit.unwrap_or(50));
            got.extend(page.items);
            filter.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        loop {
            let page = model.effects(&theirs).unwrap();
            wanted.extend(page.items);
            theirs.after = page.next;
            if page.next.is_none() {
                break;
            }
        }
        assert_eq!(got, wanted, "{filter:?}");
    }
}

/// Follows the store up to its end, and compares with what the model tells.
fn same_changes(store: &Store, model: &Model, after: Seq, filters: &[EffectFilter]) {
    let last = Seq(model.events.lock().len() as u64);
    for filter in filters {
        // A text is looked for in what is recorded now.
        let filter = &EffectFilter {
            text: None,
            ..filter.clone()
        };
        let mut rows = Vec::new();
        let mut reached = after;
        let (_, mut more) = store.follow();
        while reached < last {
            let (next, to) = store.changes(reached, filter).unwrap();
            rows.extend(next);
            if to == reached {
                // Noted only: its turn at the disk comes.
                more.blocking_recv().unwrap();
            }
            reached = to;
        }
        assert_eq!(rows, model.changes(after, filter).unwrap().0, "{filter:?}");
    }
}

fn filter() -> impl Strategy<Value = EffectFilter> {
    let one_of = |all: &[&str]| {
        let all: Vec<String> = all.iter().map(|s| (*s).to_owned()).collect();
        proptest::option::weighted(0.2, proptest::sample::select(all))
    };
    let some = |n: std::ops::Range<u64>| proptest::option::weighted(0.2, n);
    (
        (
            some(0..3),
            some(0..4),
            some(0..4),
            one_of(&["tool", "tool-1", "-2", "none"]),
        ),
        (
            one_of(&["host-0.test", "host-2.test", "nowhere"]),
            some(0..4),
            some(100..106),
            some(0..7),
        ),
        (
            some(0..5000),
            some(0..5000),
            one_of(&["needle", "resolved"]),
            any::<bool>(),
            1..8usize,
        ),
    )
        .prop_map(
            |(
                (agent, thread, branch, tool),
                (host, status, pid, credential),
                (since, until, text, oldest_first, limit),
            )| {
                EffectFilter {
                    agent: agent.map(|n| samples::agent(n as u8)),
                    thread: thread.map(|n| ThreadId(Seq(n))),
                    branch: branch.map(|n| BranchId(Seq(n))),
                    tool,
                    host,
                    status: status.map(|n| {
                        [
                            Status::Prepared,
                            Status::Completed,
                            Status::Failed,
                            Status::InDoubt,
                        ][n as usize]
                    }),
                    pid: pid.map(|n| n as u32),
                    credential: credential.map(|n| samples::fingerprint(n as u8)),
                    since: since.map(Timestamp),
                    until: until.map(Timestamp),
                    text,
                    oldest_first,
                    after: None,
                    limit: Some(limit),
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_store_answers_like_the_model(
        steps in proptest::collection::vec(samples::step(), 1..120),
        filters in proptest::collection::vec(filter(), 6),
        check_at in any::<Pick>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path());
        let model = Model::new();
        let mut store = open(&config);
        let mut opened_at = Seq(0);
        let mut effects: Vec<EffectId> = Vec::new();
        let check_at = check_at.index(steps.len());
        for (number, step) in steps.iter().enumerate() {
            match step {
                Step::Reopen => {
                    drop(store);
                    store = open(&config);
                    opened_at = Seq(model.events.lock().len() as u64);
                }
                Step::CatchUp => store.catch_up(),
                other => {
                    let Some(event) = other.event(&effects, 100 + number as u64) else { continue };
                    let is_effect = matches!(event, crate::effect::Event::Prepared(_));
                    let expected = model.push(event.clone());
                    if matches!(other, Step::Note(_) | Step::Settle { note: true, .. }) {
                        store.note(event);
                    } else {
                        let seq = runtime.block_on(store.append(event)).unwrap();
                        prop_assert_eq!(seq, expected);
                    }
                    if is_effect {
                        effects.push(EffectId(expected));
                    }
                }
            }
            if number == check_at {
                same_answers(&store, &model, &filters);
            }
        }
        same_answers(&store, &model, &filters);
        same_changes(&store, &model, opened_at, &filters[..2]);
        drop(store);
        let store = open(&config);
        same_answers(&store, &model, &filters);
        drop(store);
        // Without its index the journal alone gives the same answers.
        std::fs::remove_dir_all(config.index_dir()).unwrap();
        let (store, report) = Store::open(&config, &mut |_| {}).unwrap();
        prop_assert_eq!(report.index_rebuilt.is_some(), !model.events.lock().is_empty());
        same_answers(&store, &model, &filters);
    }
}

/// One agent's few effects lie far apart among another's, so that most of what is read for a page does
/// not fit, and differently many of each tool.
#[test]
fn a_page_stops_reading_and_the_next_one_goes_on_where_it_stopped() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (store, model) = (open(&small(dir.path())), Model::new());
    for n in 0..240_u64 {
        // Agent 1 has every 17th; else agent 0, whose tools come in runs.
        let kind = if n % 17 == 0 {
            [1, 4, 7, 10][(n / 17 % 4) as usize]
        } else {
            [0, 3, 6, 9][(n / 60) as usize]
        };
        let event = samples::prepared(kind, n, "text");
        let seq = runtime.block_on(store.append(event.clone())).unwrap();
        assert_eq!(seq, model.push(event));
    }
    let mut empty = 0;
    for oldest_first in [false, true] {
        for tool in ["tool-", "-1"] {
            let filter = EffectFilter {
                agent: Some(samples::agent(1)),
                tool: Some(tool.to_owned()),
                oldest_first,
                ..EffectFilter::default()
            };
            let wanted = model.effects(&filter).unwrap().items;
            let mut asked = filter.clone();
            let mut got = Vec::new();
            loop {
                let page = store.effects(&asked).unwrap();
                empty += usize::from(page.items.is_empty());
                got.extend(page.items);
                assert_ne!(page.next, asked.after, "it does not get on: {filter:?}");
                asked.after = page.next;
                if page.next.is_none() {
                    break;
                }
            }
            assert_eq!(got, wanted, "{filter:?}");
        }
    }
    assert!(empty > 0, "every page was full");
}

/// Records that come in meanwhile are applied, and reading ahead comes to its end all the same.
#[test]
fn after_a_start_look_ups_are_read_ahead_for_while_records_come_in() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (config, model) = (small(dir.path()), Model::new());
    let add = |store: &Store, n: u64| {
        let event = samples::prepared((n % 5) as u8, n, "text");
        let seq = runtime.block_on(store.append(event.clone())).unwrap();
        assert_eq!(seq, model.push(event));
    };
    let store = open(&config);
    (0..200).for_each(|n| add(&store, n));
    drop(store);
    let store = open(&config);
    store.read_ahead();
    let began = std::time::Instant::now();
    let mut n = 200;
    while !store.stats().unwrap().index.read_ahead || n < 220 {
        add(&store, n);
        n += 1;
        assert!(
            began.elapsed().as_secs() < 30,
            "it does not come to its end"
        );
    }
    store.catch_up();
    same_answers(&store, &model, &[]);
}
