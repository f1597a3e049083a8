//! Finds the descendants of a process in a snapshot and what parents have ended since. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use acrfence_common::{Parentage, SnapshotRow};

use crate::words::ProcessIdentity;

/// Every descendant of `roots`, without the roots.
///
/// `rows` are processes with the parent they have now, `parents` tell whose child some were when
/// that parent ended, also of those parents themselves.
/// A process that `stop` names is left out, and so are its descendants unless they are reached
/// another way.
pub fn descendants(
    roots: &HashSet<ProcessIdentity>,
    rows: &[SnapshotRow],
    parents: &HashMap<u32, Parentage>,
    stop: impl Fn(ProcessIdentity) -> bool,
) -> BTreeSet<ProcessIdentity> {
    let now: HashMap<u32, u64> = rows.iter().map(|row| (row.tgid, row.start_ns)).collect();
    let mut children: HashMap<ProcessIdentity, Vec<ProcessIdentity>> = HashMap::new();
    for row in rows {
        let Some(&start_ns) = now.get(&row.parent) else {
            continue;
        };
        // A parent that is younger than its child has taken over the pid of the real one.
        if start_ns <= row.start_ns && row.parent != row.tgid {
            let parent = identity(row.parent, start_ns);
            children
                .entry(parent)
                .or_default()
                .push(identity(row.tgid, row.start_ns));
        }
    }
    for (&tgid, noted) in parents {
        children
            .entry(identity(noted.parent, noted.parent_start_ns))
            .or_default()
            .push(identity(tgid, noted.start_ns));
    }

    let mut found = BTreeSet::new();
    let mut open: Vec<ProcessIdentity> = roots.iter().copied().collect();
    while let Some(parent) = open.pop() {
        for &child in children.get(&parent).into_iter().flatten() {
            if !roots.contains(&child) && !stop(child) && found.insert(child) {
                open.push(child);
            }
        }
    }
    found
}

/// Reads the rows that the snapshot program wrote.
pub fn rows(bytes: &[u8]) -> Vec<SnapshotRow> {
    bytes
        .chunks_exact(size_of::<SnapshotRow>())
        .map(|chunk| {
            // SAFETY: plain numbers, and the chunk has exactly as many bytes.
            unsafe { chunk.as_ptr().cast::<SnapshotRow>().read_unaligned() }
        })
        .collect()
}

fn identity(tgid: u32, start_ns: u64) -> ProcessIdentity {
    ProcessIdentity { tgid, start_ns }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn row(tgid: u32, parent: u32) -> SnapshotRow {
        SnapshotRow {
            start_ns: u64::from(tgid) * 10,
            tgid,
            parent,
            flags: 0,
            zero: 0,
        }
    }

    fn pid(tgid: u32) -> ProcessIdentity {
        identity(tgid, u64::from(tgid) * 10)
    }

    fn tgids(found: &BTreeSet<ProcessIdentity>) -> Vec<u32> {
        found.iter().map(|p| p.tgid).collect()
    }

    #[test]
    fn orphans_of_processes_that_ended_meanwhile_are_found() {
        // 5 was made by 4, which was made by 3 and has ended: 5 is a child of 1 now.
        let rows = [row(1, 0), row(2, 1), row(3, 2), row(5, 1), row(6, 5)];
        let noted = |parent: u32| Parentage {
            start_ns: 0,
            parent_start_ns: u64::from(parent) * 10,
            parent,
            zero: 0,
        };
        let parents = HashMap::from([
            (
                4,
                Parentage {
                    start_ns: 40,
                    ..noted(3)
                },
            ),
            (
                5,
                Parentage {
                    start_ns: 50,
                    ..noted(4)
                },
            ),
        ]);
        let found = descendants(&HashSet::from([pid(2)]), &rows, &parents, |_| false);
        assert_eq!(tgids(&found), [3, 4, 5, 6]);
        let without = descendants(&HashSet::from([pid(2)]), &rows, &HashMap::new(), |_| false);
        assert_eq!(tgids(&without), [3]);
    }

    #[test]
    fn a_reused_pid_is_no_parent() {
        let young = SnapshotRow {
            start_ns: 999,
            ..row(2, 1)
        };
        let rows = [row(1, 0), young, row(3, 2)];
        let found = descendants(
            &HashSet::from([identity(2, 999)]),
            &rows,
            &HashMap::new(),
            |_| false,
        );
        assert!(found.is_empty());
    }

    #[test]
    fn processes_of_another_agent_stay_with_it() {
        let rows = [row(1, 0), row(2, 1), row(3, 2), row(4, 3)];
        let found = descendants(&HashSet::from([pid(1)]), &rows, &HashMap::new(), |p| {
            p == pid(3)
        });
        assert_eq!(tgids(&found), [2]);
    }

    proptest! {
        #[test]
        fn exactly_the_reachable_are_found(parents in proptest::collection::vec(0u32..40, 40)) {
            // Process n (1..) has parent `parents[n] % n`, so it is a forest without cycles.
            let rows: Vec<_> = (1..40u32).map(|n| row(n, parents[n as usize] % n)).collect();
            let found = descendants(&HashSet::from([pid(1)]), &rows, &HashMap::new(), |_| false);
            for n in 2..40u32 {
                let mut at = n;
                while at > 1 {
                    at = parents[at as usize] % at;
                }
                prop_assert_eq!(found.contains(&pid(n)), at == 1, "process {}", n);
            }
        }
    }
}
