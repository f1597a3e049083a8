//! Reads checkpoints out of a copy of a SQLite file. The copy lives in memory: the agent's own file is
//! never locked, and nothing of it comes to lie on a disk.

use std::time::Instant;

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, params};

use super::langgraph::{self, Row};
use super::story::{Story, Wanted};
use super::wal;

/// What every such file begins with.
pub(super) const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Longest file, with its log, that is read.
pub(super) const LARGEST: usize = 64 << 20;

/// Most checkpoints of a thread that are looked at, the newest.
const MOST_ROWS: usize = 1024;

/// Most bytes of them together.
const MOST_STATE: usize = 64 << 20;

/// Steps of SQLite's machine between two looks at the clock.
const STEPS: i32 = 1000;

/// A file with its write-ahead log, as they stood at one moment.
pub(super) struct Copy {
    /// The file.
    pub(super) file: Vec<u8>,
    /// Its write-ahead log; empty when it has none.
    pub(super) log: Vec<u8>,
}

/// Whether a file with this beginning has a write-ahead log.
pub(super) fn has_log(begin: &[u8]) -> bool {
    begin.get(18..20) == Some(&[2, 2])
}

/// What a copy holds of LangGraph, if anything: the thread that was written to last.
///
/// Whoever wrote the file may be hostile: nothing in its schema is run, and it has until `deadline`.
pub(super) fn checkpoints(
    copy: Copy,
    wanted: &Wanted,
    deadline: Instant,
) -> Result<Option<Story>, String> {
    let Copy { mut file, log } = copy;
    if !wal::overlay(&mut file, &log, LARGEST) {
        return Err("its write-ahead log is not one".into());
    }
    // In memory there is no log beside it.
    if let Some(versions) = file.get_mut(18..20) {
        versions.fill(1);
    }
    read(&file, wanted, deadline).map_err(|e| e.to_string())
}

fn read(file: &[u8], wanted: &Wanted, deadline: Instant) -> rusqlite::Result<Option<Story>> {
    let mut db = Connection::open_in_memory()?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_VIEW, false)?;
    let longest = i32::try_from(LARGEST).unwrap_or(i32::MAX);
    db.set_limit(Limit::SQLITE_LIMIT_LENGTH, longest)?;
    db.set_limit(Limit::SQLITE_LIMIT_ATTACHED, 0)?;
    db.progress_handler(STEPS, Some(move || Instant::now() > deadline))?;
    db.deserialize_read_exact("main", file, file.len(), true)?;
    if !is_table(&db)? {
        return Ok(None);
    }
    let mut newest = db.prepare(
        "SELECT thread_id, checkpoint_ns, checkpoint_id FROM checkpoints ORDER BY rowid DESC LIMIT 1",
    )?;
    let newest = newest.query_row([], |row| {
        Ok((
            row.get::<_, String>(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
        ))
    });
    let (thread, graph, id) = match newest {
        Err(rusqlite::Error::QueryReturnedNoRows) => return Ok(None),
        other => other?,
    };
    let mut rows = db.prepare(
        "SELECT checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint FROM checkpoints \
         WHERE thread_id = ?1 ORDER BY checkpoint_id DESC LIMIT ?2",
    )?;
    let mut rows = rows.query(params![thread, MOST_ROWS as i64])?;
    let mut steps = Vec::new();
    let mut left = MOST_STATE;
    while let Some(row) = rows.next()? {
        let state = match row.get_ref(3)? {
            ValueRef::Blob(bytes) | ValueRef::Text(bytes) => bytes,
            _ => &[],
        };
        // What is not read is not known either: the story begins later.
        let Some(rest) = left.checked_sub(state.len()) else {
            break;
        };
        left = rest;
        let row = Row {
            graph: row.get_ref(0)?.as_str()?,
            id: row.get_ref(1)?.as_str()?,
            parent: row.get_ref(2)?.as_str_or_null()?,
            state,
        };
        steps.push(langgraph::step(&row, wanted));
    }
    Ok(langgraph::story(&thread, Some((&graph, &id)), steps))
}

/// Whether `checkpoints` is a plain table.
fn is_table(db: &Connection) -> rusqlite::Result<bool> {
    let mut found = db.prepare(
        "SELECT count(*) FROM sqlite_schema WHERE name = 'checkpoints' AND type = 'table' \
         AND sql LIKE 'CREATE TABLE%' AND sql LIKE '%parent_checkpoint_id%'",
    )?;
    found
        .query_row([], |row| row.get::<_, i64>(0))
        .map(|n| n == 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hints::story::{Forgotten, confirm};
    use crate::words::{EffectId, Seq, Timestamp};

    const CALL: &str = "call_6eee4c458b204036b9894f6f67ee46ac";

    /// As `SqliteSaver.setup` makes it.
    const SCHEMA: &str = "PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=0;
        CREATE TABLE IF NOT EXISTS checkpoints (
            thread_id TEXT NOT NULL, checkpoint_ns TEXT NOT NULL DEFAULT '', checkpoint_id TEXT NOT NULL,
            parent_checkpoint_id TEXT, type TEXT, checkpoint BLOB, metadata BLOB,
            PRIMARY KEY (thread_id, checkpoint_ns, checkpoint_id));
        CREATE TABLE IF NOT EXISTS writes (thread_id TEXT NOT NULL);";

    fn wanted() -> Wanted {
        Wanted {
            forgotten: vec![Forgotten {
                effect: EffectId(Seq(9)),
                calls: vec![CALL.into()],
            }],
            since: Timestamp(0),
        }
    }

    fn in_time() -> Instant {
        Instant::now() + Duration::from_secs(20)
    }

    fn put(db: &Connection, thread: &str, id: &str, parent: Option<&str>, state: &str) {
        let row = params![thread, id, parent, state.as_bytes()];
        db.execute(
            "INSERT OR REPLACE INTO checkpoints VALUES (?1, '', ?2, ?3, 'msgpack', ?4, NULL)",
            row,
        )
        .unwrap();
    }

    const A: &str = "1f1ed2ff-15fb-608a-8000-62363a90bdb9";
    const B: &str = "1f1ed2ff-1601-63d4-8001-a132bbfdd1fc";
    const C: &str = "1f1ed2ff-28db-671b-8001-829ed25abea5";

    fn copy(path: &std::path::Path) -> Copy {
        let log = path.with_file_name("c.db-wal");
        Copy {
            file: std::fs::read(path).unwrap(),
            log: std::fs::read(log).unwrap_or_default(),
        }
    }

    #[test]
    fn what_is_only_in_the_log_counts_and_the_file_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch(SCHEMA).unwrap();
        put(&db, "1", A, None, "asked");
        put(&db, "1", B, Some(A), CALL);
        let told = |at| {
            confirm(
                &wanted(),
                &checkpoints(copy(at), &wanted(), in_time()).unwrap()?,
            )
        };
        assert_eq!(told(&path), None);
        // A transaction that is not committed does not count, and nobody waits for it.
        db.execute_batch("BEGIN IMMEDIATE").unwrap();
        put(&db, "1", C, Some(A), "asked");
        assert_eq!(told(&path), None);
        db.execute_batch("COMMIT").unwrap();
        let before = copy(&path);
        let main = std::fs::read(&path).unwrap();
        assert!(
            !main.windows(C.len()).any(|w| w == C.as_bytes()),
            "it must be in the log alone"
        );
        let found = told(&path).unwrap();
        assert_eq!(found.effects, [EffectId(Seq(9))]);
        let after = copy(&path);
        assert!(before.file == after.file && before.log == after.log);
        // And the same once the log is folded into the file.
        db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        assert!(copy(&path).log.is_empty());
        assert_eq!(told(&path), Some(found));
        // Another thread that was written to since: which one the request is of is not known.
        put(
            &db,
            "2",
            "1f1ed300-0000-6000-8000-000000000000",
            None,
            "asked",
        );
        assert_eq!(told(&path), None);
    }

    #[test]
    fn a_torn_log_counts_up_to_where_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch(SCHEMA).unwrap();
        put(&db, "1", A, None, "asked");
        put(&db, "1", B, Some(A), CALL);
        let whole = copy(&path).log.len();
        put(&db, "1", C, Some(A), "asked");
        for cut in [whole + 7, whole, copy(&path).log.len() - 1] {
            let mut torn = copy(&path);
            torn.log.truncate(cut);
            let story = checkpoints(torn, &wanted(), in_time()).unwrap().unwrap();
            assert_eq!(&*story.head, B, "cut at {cut}");
        }
        let mut flipped = copy(&path);
        let at = flipped.log.len() - 100;
        flipped.log[at] ^= 1;
        let story = checkpoints(flipped, &wanted(), in_time()).unwrap().unwrap();
        assert_eq!(&*story.head, B);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(300))]
        /// A file that was written to by a hostile hand is read to an end, or not at all; a log that was
        /// is never read beyond where it is whole.
        #[test]
        fn spoilt_files_are_read_to_an_end(
            spoils in proptest::collection::vec((0usize..200_000, proptest::prelude::any::<u8>()), 1..12),
            in_log in proptest::prelude::any::<bool>(),
        ) {
            static WHOLE: std::sync::OnceLock<(Vec<u8>, Vec<u8>)> = std::sync::OnceLock::new();
            let (file, log) = WHOLE.get_or_init(|| {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("c.db");
                let db = Connection::open(&path).unwrap();
                db.execute_batch(SCHEMA).unwrap();
                put(&db, "1", A, None, "asked");
                put(&db, "1", B, Some(A), &CALL.repeat(300));
                db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
                put(&db, "1", C, Some(A), "asked");
                let Copy { file, log } = copy(&path);
                (file, log)
            });
            let mut spoilt = Copy { file: file.clone(), log: log.clone() };
            let bytes = if in_log { &mut spoilt.log } else { &mut spoilt.file };
            for (at, byte) in spoils {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
            let is_whole = spoilt.log == *log;
            let told = checkpoints(spoilt, &wanted(), in_time());
            if in_log {
                let head = told.unwrap().unwrap().head;
                proptest::prop_assert_eq!(&*head, if is_whole { C } else { B });
            }
        }
    }

    #[test]
    fn other_files_and_hostile_ones_say_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, sql: &str| {
            let path = dir.path().join(name);
            let db = Connection::open(&path).unwrap();
            db.execute_batch(sql).unwrap();
            drop(db);
            let log = Vec::new();
            let file = std::fs::read(&path).unwrap();
            Copy { file, log }
        };
        let ask = |copy| checkpoints(copy, &wanted(), in_time());
        assert_eq!(ask(file("other", "CREATE TABLE t (a)")), Ok(None));
        // A view that never ends, in place of the table.
        let endless = "CREATE VIEW checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id) AS
            WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i, i, i, i FROM n";
        assert_eq!(ask(file("view", endless)), Ok(None));
        let wrong = "CREATE TABLE checkpoints (thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, checkpoint);
            INSERT INTO checkpoints VALUES (x'ff', 7, NULL, 1.5, NULL)";
        assert!(ask(file("wrong", wrong)).is_err());
        let mut cut = file("cut", SCHEMA);
        cut.file.truncate(5000);
        assert!(ask(cut).is_err());
        let garbage = |file: &[u8]| Copy {
            file: file.to_vec(),
            log: vec![0x37; 500],
        };
        assert!(ask(garbage(b"SQLite format 3\0garbage")).is_err());
        assert!(ask(garbage(&[MAGIC.as_slice(), &[0xff; 8000]].concat())).is_err());
    }

    #[test]
    fn a_long_answer_ends_at_the_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.db");
        let db = Connection::open(&path).unwrap();
        db.execute_batch(SCHEMA).unwrap();
        db.execute_batch(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000)
             INSERT INTO checkpoints SELECT '1', '', i, i - 1, 'json', 'x', NULL FROM n",
        )
        .unwrap();
        let late = Instant::now();
        let told = checkpoints(copy(&path), &wanted(), late);
        assert_eq!(told, Err("interrupted".into()));
    }
}
