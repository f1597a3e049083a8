//! Reading the stores of a real process: a child that holds a database open and has a home.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;
use crate::hints::story::{Forgotten, confirm};
use crate::probe::proc::{ProcDir, clock_ticks};
use crate::words::{EffectId, Seq, Timestamp};

const FIRST: &str = "11111111-1111-4111-8111-111111111111";
const SECOND: &str = "22222222-2222-4222-8222-222222222222";

/// A process with a home of its own, which ends with the test.
struct Agent {
    child: Child,
    identity: ProcessIdentity,
}

impl Agent {
    fn start(home: &Path, opens: Option<&Path>) -> Self {
        let mut shell = Command::new("/bin/sh");
        let open = opens.map_or(String::new(), |path| {
            format!("exec 7<'{}';", path.display())
        });
        shell
            .args(["-c", &format!("{open} echo ready; read end")])
            .env_clear()
            .env("HOME", home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready)
            .unwrap();
        assert_eq!(ready, "ready\n");
        let ticks = ProcDir::open(child.id())
            .unwrap()
            .stat()
            .unwrap()
            .start_ticks;
        let identity = ProcessIdentity {
            tgid: child.id(),
            start_ns: ticks * (1_000_000_000 / clock_ticks()),
        };
        Self { child, identity }
    }

    fn ask(&self, session: Option<&str>) -> Found {
        read(self.identity, session, &wanted(), in_time())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

fn in_time() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

fn wanted() -> Wanted {
    Wanted {
        forgotten: vec![Forgotten {
            effect: EffectId(Seq(11)),
            calls: vec!["toolu_01Em0mlqbA390r6PYWYfclrvVQ".into()],
        }],
        since: Timestamp(0),
    }
}

fn confirmed(found: &Found) -> Option<String> {
    let mut all = found.stories.iter().filter_map(|s| confirm(&wanted(), s));
    all.next().map(|one| one.why)
}

/// A project in which the second session was cut from the first before its call.
fn project(home: &Path) {
    let place = home.join(".claude/projects/-tmp-x");
    fs::create_dir_all(&place).unwrap();
    let asked = r#"{"parentUuid":null,"isSidechain":false,"message":{"content":"pay"},"uuid":"a"}"#;
    let paid = r#"{"parentUuid":"a","isSidechain":false,"message":{"content":[{"id":"toolu_01Em0mlqbA390r6PYWYfclrvVQ","type":"tool_use"}]},"uuid":"b"}"#;
    let again =
        r#"{"parentUuid":"a","isSidechain":false,"message":{"content":"continue"},"uuid":"c"}"#;
    fs::write(
        place.join(format!("{FIRST}.jsonl")),
        format!("{asked}\n{paid}\n"),
    )
    .unwrap();
    fs::write(
        place.join(format!("{SECOND}.jsonl")),
        format!("{asked}\n{again}\n"),
    )
    .unwrap();
}

#[test]
fn the_session_that_a_request_names_is_read_from_the_process_s_home() {
    let home = tempfile::tempdir().unwrap();
    project(home.path());
    let agent = Agent::start(home.path(), None);
    let why = confirmed(&agent.ask(Some(SECOND))).unwrap();
    assert!(why.contains(SECOND) && why.contains(FIRST), "{why}");
    assert_eq!(confirmed(&agent.ask(Some(FIRST))), None);
    // Nothing names it, until the process's own file does.
    assert_eq!(confirmed(&agent.ask(None)), None);
    let pid = agent.child.id();
    fs::create_dir(home.path().join(".claude/sessions")).unwrap();
    fs::write(
        home.path().join(format!(".claude/sessions/{pid}.json")),
        format!(r#"{{"pid":{pid},"sessionId":"{SECOND}"}}"#),
    )
    .unwrap();
    assert!(confirmed(&agent.ask(None)).is_some());
}

#[test]
fn another_process_with_the_same_number_is_not_looked_at() {
    let home = tempfile::tempdir().unwrap();
    project(home.path());
    let agent = Agent::start(home.path(), None);
    let other = ProcessIdentity {
        start_ns: agent.identity.start_ns + 1_000_000_000,
        ..agent.identity
    };
    let found = read(other, Some(SECOND), &wanted(), in_time());
    assert!(found.stories.is_empty());
    assert_eq!(found.troubles.len(), 1);
}

#[test]
fn pipes_large_files_and_links_that_lead_nowhere_say_nothing_and_nobody_waits() {
    let home = tempfile::tempdir().unwrap();
    project(home.path());
    let place = home.path().join(".claude/projects/-tmp-x");
    let file = place.join(format!("{SECOND}.jsonl"));
    let agent = Agent::start(home.path(), None);
    let refused = |found: Found| {
        assert!(found.stories.is_empty(), "{found:?}");
    };

    fs::remove_file(&file).unwrap();
    nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(agent.ask(Some(SECOND)));

    fs::remove_file(&file).unwrap();
    symlink(&file, &file).unwrap();
    refused(agent.ask(Some(SECOND)));

    fs::remove_file(&file).unwrap();
    symlink("/proc/self/environ", &file).unwrap();
    refused(agent.ask(Some(SECOND)));

    fs::remove_file(&file).unwrap();
    let large = fs::File::create(&file).unwrap();
    large.set_len(MOST_SESSIONS as u64 + 1).unwrap();
    let found = agent.ask(Some(SECOND));
    assert_eq!(found.troubles.len(), 1, "{found:?}");
    refused(found);

    // A name that is a path is no name.
    refused(agent.ask(Some("../../../../../etc/passwd")));

    // Time is up.
    let found = read(agent.identity, Some(FIRST), &wanted(), Instant::now());
    assert!(!found.troubles.is_empty());
    refused(found);
}

#[test]
fn a_file_of_another_user_is_not_read() {
    let home = tempfile::tempdir().unwrap();
    project(home.path());
    let agent = Agent::start(home.path(), None);
    assert!(confirmed(&agent.ask(Some(SECOND))).is_some());
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let file = home
        .path()
        .join(format!(".claude/projects/-tmp-x/{SECOND}.jsonl"));
    std::os::unix::fs::chown(&file, Some(65534), None).unwrap();
    assert_eq!(confirmed(&agent.ask(Some(SECOND))), None);
}

#[test]
fn a_database_that_the_process_has_open_is_found_by_its_descriptor() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("c.db");
    let db = rusqlite::Connection::open(&path).unwrap();
    db.execute_batch(
        "CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint_id TEXT, parent_checkpoint_id TEXT,
            checkpoint BLOB);
         INSERT INTO checkpoints VALUES ('1', '', '1f1ed2ff-15fb-608a-8000-62363a90bdb9', NULL, 'pay');
         INSERT INTO checkpoints VALUES ('1', '', '1f1ed2ff-1601-63d4-8001-a132bbfdd1fc',
            '1f1ed2ff-15fb-608a-8000-62363a90bdb9', 'toolu_01Em0mlqbA390r6PYWYfclrvVQ');
         INSERT INTO checkpoints VALUES ('1', '', '1f1ed2ff-28db-671b-8001-829ed25abea5',
            '1f1ed2ff-15fb-608a-8000-62363a90bdb9', 'pay');",
    )
    .unwrap();
    drop(db);
    assert_eq!(confirmed(&Agent::start(home.path(), None).ask(None)), None);
    let agent = Agent::start(home.path(), Some(&path));
    assert!(confirmed(&agent.ask(None)).is_some());
    // One that cannot be read hides no other.
    let broken = home.path().join("broken.db");
    fs::write(&broken, [sqlite::MAGIC.as_slice(), &[0xff; 4096]].concat()).unwrap();
    let opened = format!("{}'; exec 6<'{}", broken.display(), path.display());
    let found = Agent::start(home.path(), Some(Path::new(&opened))).ask(None);
    assert_eq!(found.troubles.len(), 1, "{found:?}");
    assert!(confirmed(&found).is_some());
    // Also when it has no name any more.
    fs::remove_file(&path).unwrap();
    assert!(confirmed(&agent.ask(None)).is_some());
}
