//! Damage is detected and located, never answered from, never a panic; a rolled back journal is
//! refused.

use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::answers::{open, small};
use super::power::{all_events, open_on};
use crate::effect::journal::simulated::SimulatedDisk;
use crate::effect::samples;
use crate::effect::{EffectLog, LogError, Store};
use crate::words::{EffectId, Outcome, Seq};

fn fill(store: &Store, count: u8) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    runtime.block_on(async {
        for n in 0..count {
            let size = if n % 6 == 0 { 6000 } else { 400 };
            let seq = store
                .append(samples::prepared(n, 1, &"x".repeat(size)))
                .await
                .unwrap();
            let outcome = Outcome::Completed(samples::response(n, "done"));
            store
                .append(samples::settled(EffectId(seq), outcome, n, 2))
                .await
                .unwrap();
        }
    });
}

fn is_log_file(path: &Path) -> bool {
    let path = path.to_string_lossy();
    path.contains("journal") && path.ends_with(".seg") || path.contains("bodies")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_flipped_bit_is_found_and_located(file in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), bit in 0..8u8) {
        let dir = tempfile::tempdir().unwrap();
        let config = small(dir.path());
        let disk = SimulatedDisk::default();
        let (store, _) = open_on(&disk, &config).unwrap();
        fill(&store, 40);
        drop(store);
        let files: Vec<PathBuf> = disk.paths().into_iter().filter(|p| is_log_file(p)).collect();
        let file = &files[file.index(files.len())];
        let bytes = disk.bytes(file);
        let at = at.index(bytes.len());
        disk.flip(file, at, bit);

        // The room behind the last record of the last segment holds nothing that could be damaged.
        let last_segment = files.iter().filter(|p| p.extension().is_some()).max().unwrap();
        let written = bytes.iter().rposition(|b| *b != 0).map_or(0, |n| n + 1);
        let in_spare_room = file == last_segment && at >= written;
        match open_on(&disk, &config) {
            Err(LogError::Corrupt { place, .. }) => {
                let name = file.file_name().unwrap().to_str().unwrap();
                prop_assert!(place.contains(name) || file.extension().is_none(), "{place}");
            }
            Err(other) => prop_assert!(false, "{other}"),
            // Only a restart that reads everything notices damage in an old record; a check must.
            Ok((store, report)) => {
                if in_spare_room {
                    prop_assert!(report.torn.is_some() || at == written, "{:?}", report);
                } else {
                    let checked = store.verify(&mut |_| {}).unwrap();
                    prop_assert!(!checked.faults.is_empty(), "{} at {at}", file.display());
                }
            }
        }
    }
}

#[test]
fn a_journal_older_than_its_anchor_is_refused_until_a_person_accepts_it() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    fill(&store, 3);
    drop(store);
    let backup = dir.path().join("backup");
    copy(&config.state_dir, &backup);
    let store = open(&config);
    fill(&store, 2);
    let last = store.head();
    drop(store);

    std::fs::remove_dir_all(&config.state_dir).unwrap();
    copy(&backup, &config.state_dir);
    let said = Store::open(&config, &mut |_| {}).err().unwrap();
    assert!(matches!(said, LogError::RolledBack { .. }), "{said}");
    assert!(said.to_string().contains("accept-rollback"), "{said}");

    let (store, report) = Store::accept_rollback(&config, "uid 0", &mut |_| {}).unwrap();
    assert!(report.accepted.is_some());
    assert_eq!(all_events(&store).len(), 6);
    // Positions that were used before are not used again.
    fill(&store, 1);
    assert!(store.unsettled().unwrap().is_empty());
    assert_eq!(
        all_events(&store).keys().filter(|seq| **seq > Seq(6)).min(),
        Some(&Seq(last.0 + 2))
    );
    drop(store);
    let store = open(&config);
    assert!(store.verify(&mut |_| {}).unwrap().faults.is_empty());
}

/// Damage in the middle of the part that is read at start: refused, and with a person's word the log
/// goes on from the last whole record, with everything behind it set aside.
#[test]
fn a_damaged_log_goes_on_only_when_a_person_accepts_the_loss() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    fill(&store, 20);
    drop(store);
    let anchor = std::fs::read(&config.anchor_file).unwrap();
    let store = open(&config);
    fill(&store, 200);
    let last = store.head();
    let whole = all_events(&store);
    drop(store);
    // An anchor that trails by some segments, as after a power loss.
    std::fs::write(&config.anchor_file, anchor).unwrap();
    let second = config.state_dir.join("journal/0000000002.seg");
    assert!(config.state_dir.join("journal/0000000003.seg").exists());
    let mut bytes = std::fs::read(&second).unwrap();
    bytes[9000] ^= 4;
    std::fs::write(&second, bytes).unwrap();

    let said = Store::open(&config, &mut |_| {}).err().unwrap();
    let LogError::Corrupt { place, .. } = &said else {
        panic!("{said}")
    };
    assert!(place.contains("0000000002.seg"), "{place}");
    let checked = Store::verify_closed(&config, &mut |_| {}).unwrap();
    assert!(
        checked.faults[0].place.contains("0000000002.seg"),
        "{checked:?}"
    );

    let (store, report) = Store::accept_rollback(&config, "uid 0", &mut |_| {}).unwrap();
    assert!(
        report.accepted.is_some() && report.index_rebuilt.is_some(),
        "{report:?}"
    );
    let left = all_events(&store);
    assert!(
        left.len() > 40
            && left
                .iter()
                .all(|(seq, event)| whole.get(seq) == Some(event))
    );
    fill(&store, 1);
    let new = *all_events(&store).keys().next_back().unwrap();
    assert!(new > last, "{new} was used before ({last})");
    assert_eq!(store.verify(&mut |_| {}).unwrap().faults, []);
    drop(store);
    drop(open(&config));
    let aside = std::fs::read_dir(config.state_dir.join("journal")).unwrap();
    let aside = aside.filter(|e| {
        e.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with("cut-")
    });
    assert!(aside.count() >= 2);
}

#[test]
fn an_empty_or_foreign_journal_beside_an_anchor_is_a_rollback() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    fill(&store, 2);
    drop(store);

    let other = tempfile::tempdir().unwrap();
    let mut foreign = small(other.path());
    foreign.key_file = config.key_file.clone();
    let store = open(&foreign);
    fill(&store, 9);
    drop(store);
    std::fs::remove_dir_all(&config.state_dir).unwrap();
    copy(&foreign.state_dir, &config.state_dir);
    let said = Store::open(&config, &mut |_| {}).err().unwrap();
    assert!(matches!(said, LogError::RolledBack { .. }), "{said}");

    std::fs::remove_dir_all(&config.state_dir).unwrap();
    let said = Store::open(&config, &mut |_| {}).err().unwrap();
    assert!(matches!(said, LogError::RolledBack { .. }), "{said}");

    std::fs::remove_file(&foreign.anchor_file).unwrap();
    let said = Store::open(&foreign, &mut |_| {}).err().unwrap();
    assert!(matches!(said, LogError::RolledBack { .. }), "{said}");
}

#[test]
fn a_second_daemon_and_loose_modes_are_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    let said = Store::open(&config, &mut |_| {}).err().unwrap().to_string();
    assert!(said.contains("in use by another process"), "{said}");
    drop(store);
    for path in [config.state_dir.clone(), config.state_dir.join("journal")] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o750)).unwrap();
        let said = Store::open(&config, &mut |_| {}).err().unwrap().to_string();
        assert!(said.contains("0750") && said.contains("chmod"), "{said}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    }
    let mut inside = config.clone();
    inside.anchor_file = config.state_dir.join("anchor");
    let said = Store::open(&inside, &mut |_| {}).err().unwrap().to_string();
    assert!(said.contains("inside the state directory"), "{said}");
    drop(open(&config));
}

#[test]
fn nothing_on_disk_shows_what_was_said() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path());
    let store = open(&config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let secret = "a-sentence-nobody-else-would-write";
    for n in 0..6 {
        let text = format!("{secret}{}", "x".repeat(if n % 2 == 0 { 6000 } else { 1 }));
        let seq = runtime
            .block_on(store.append(samples::prepared(n, 1, &text)))
            .unwrap();
        let outcome = Outcome::Failed {
            why: secret.into(),
            response: Some(samples::response(n, &text)),
        };
        runtime
            .block_on(store.append(samples::settled(EffectId(seq), outcome, n, 2)))
            .unwrap();
    }
    drop(store);
    let mut looked_at = 0;
    let mut dirs = vec![dir.path().to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            looked_at += bytes.len();
            for word in [secret, "host-0.test", "tool-1", "stdio-server"] {
                assert!(
                    !crate::effect::index::query::contains(&bytes, word.as_bytes()),
                    "{word} in {}",
                    path.display()
                );
            }
        }
    }
    assert!(looked_at > 100_000);
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    std::fs::set_permissions(to, std::fs::metadata(from).unwrap().permissions()).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), &target).unwrap();
        }
    }
}
