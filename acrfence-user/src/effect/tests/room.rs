//! A full disk: new effects are refused before they are sent, outcomes never fail.

use super::answers::small;
use super::power::open_on;
use crate::effect::journal::simulated::SimulatedDisk;
use crate::effect::samples;
use crate::effect::{EffectLog, LogError};
use crate::words::{EffectId, Outcome, Status};

#[tokio::test]
async fn a_full_disk_refuses_new_effects_and_takes_every_outcome() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(dir.path());
    config.segment_size = 80 << 10;
    let disk = SimulatedDisk::default();
    disk.limit(4 * config.segment_size);
    let (store, _) = open_on(&disk, &config).unwrap();
    let mut running = Vec::new();
    let said = loop {
        match store
            .append(samples::prepared(1, 1, &"x".repeat(200)))
            .await
        {
            Ok(seq) => running.push(EffectId(seq)),
            Err(e) => break e,
        }
        assert!(running.len() < 10_000, "it must get full");
    };
    assert!(matches!(said, LogError::Full { .. }), "{said}");
    assert!(running.len() > 5, "{}", running.len());
    // Refusing is not sticky, and costs nobody anything.
    let again = store.append(samples::prepared(1, 1, "x")).await;
    assert!(matches!(again, Err(LogError::Full { .. })), "{again:?}");

    for (n, effect) in running.iter().enumerate() {
        // As long as what was promised room for, and far longer.
        let len = if n % 2 == 0 { 7_000 } else { 200_000 };
        let outcome = Outcome::Completed(samples::response(3, &"y".repeat(len)));
        store
            .append(samples::settled(*effect, outcome, 1, 2))
            .await
            .unwrap();
        let effect = store.effect(*effect).unwrap().unwrap();
        assert_eq!(effect.status, Status::Completed);
        let Some(crate::words::Response::Http(http)) =
            effect.outcome.as_ref().and_then(Outcome::response)
        else {
            panic!("the response is gone")
        };
        assert_eq!(http.body.len, len as u64);
        assert_eq!(http.body.is_whole(), n % 2 == 0);
    }
    drop(store);
    let (store, _) = open_on(&disk, &config).unwrap();
    assert!(store.unsettled().unwrap().is_empty());
}

#[tokio::test]
async fn an_answer_too_long_to_keep_leaves_the_effect_in_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let disk = SimulatedDisk::default();
    disk.limit(2 * config.segment_size);
    let (store, _) = open_on(&disk, &config).unwrap();
    let effect = EffectId(store.append(samples::prepared(1, 1, "x")).await.unwrap());
    // The text of an MCP answer cannot be cut, and there is no room for a body file.
    let outcome = Outcome::Completed(samples::response(1, &"y".repeat(90_000)));
    store
        .append(samples::settled(effect, outcome, 1, 2))
        .await
        .unwrap();
    let effect = store.effect(effect).unwrap().unwrap();
    assert_eq!(effect.status, Status::InDoubt);
}

/// A call whose task is dropped while its record is on the way was never sent, and nothing waits for
/// its outcome.
#[tokio::test]
async fn a_caller_that_goes_away_leaves_nothing_running() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let (store, _) = open_on(&SimulatedDisk::default(), &config).unwrap();
    let (_, mut follow) = store.follow();
    let taken = || store.stats().unwrap().journal.records;
    let mut abandoned = 0;
    for n in 0.. {
        if abandoned == 10 {
            break;
        }
        let before = taken();
        let mut append = Box::pin(store.append(samples::prepared(n, 1, "x")));
        // One poll: the record is taken and not answered, unless room had to be made first.
        let polled = futures_util::poll!(&mut append);
        drop(append);
        let records = taken() - before;
        let mut last = 0;
        for _ in 0..records {
            last = follow.recv().await.unwrap().0;
        }
        if records == 0 {
            // Room is being made: that wait is somebody else's.
            store.append(samples::prepared(1, 1, "y")).await.unwrap();
            follow.recv().await.unwrap();
        }
        if polled.is_pending() && records > 0 {
            assert_eq!(records, 2, "the call, and that it was not sent");
            let effect = EffectId(crate::words::Seq(last - 1));
            let effect = store.effect(effect).unwrap().unwrap();
            assert_eq!(effect.status, Status::Failed);
            abandoned += 1;
        }
    }
    assert_eq!(
        store.stats().unwrap().journal.running as usize,
        store.unsettled().unwrap().len()
    );
}

/// The real thing: a small file system that fills up.
#[tokio::test]
async fn a_full_tmpfs() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("mount");
    std::fs::create_dir(&state).unwrap();
    let mounted = nix::mount::mount(
        Some("acrfence-test"),
        &state,
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some("size=600k,mode=0700"),
    );
    if let Err(e) = mounted {
        // Only root may mount; the simulated disk above covers the rest.
        eprintln!("not run: a tmpfs cannot be mounted here ({e})");
        return;
    }
    struct Mounted<'a>(&'a std::path::Path);
    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            let _ = nix::mount::umount2(self.0, nix::mount::MntFlags::MNT_DETACH);
        }
    }
    let _mounted = Mounted(&state);
    let mut config = small(dir.path());
    config.state_dir = state.join("state");
    let disk = std::sync::Arc::new(crate::effect::journal::disk::OsDisk);
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .create(&config.state_dir)
        .unwrap();
    let home = std::sync::Arc::new(crate::effect::index::ordered::MemoryHome::default());
    let accept = crate::effect::journal::Acceptance::Nothing;
    let (store, _) =
        crate::effect::Store::open_on(disk, home, &config, &mut |_| {}, accept, "").unwrap();
    let mut running = Vec::new();
    let said = loop {
        match store
            .append(samples::prepared(0, 1, &"x".repeat(2000)))
            .await
        {
            Ok(seq) => running.push(EffectId(seq)),
            Err(e) => break e,
        }
    };
    assert!(matches!(said, LogError::Full { .. }), "{said}");
    for effect in &running {
        let outcome = Outcome::Completed(samples::response(3, &"y".repeat(7_000)));
        store
            .append(samples::settled(*effect, outcome, 1, 2))
            .await
            .unwrap();
    }
    assert!(store.unsettled().unwrap().is_empty());
    drop(store);
}
