//! Real peers that are neither REST nor MCP, unmodified: gRPC and git over HTTPS.

use std::path::{Path, PathBuf};
use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::client::{bare_python, plain, python};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::{Ended, Running, run};
use anyhow::{Result, ensure};
use serde_json::Value;

fn strings(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[test]
fn grpc_pays_once_and_says_why_it_was_stopped() -> Result<()> {
    let authority = Authority::new()?;
    let files = authority.server_files()?;
    let mut command = python("python-grpc", "grpc_bank.py", &strings(&files))?;
    let mut bank = Running::start("a gRPC bank", &mut command)?;
    let target = format!("localhost:{}", bank.wait_for("port ")?);
    let fence = Fence::start(&authority)?;
    let buyer = |calls: &[&str]| -> Result<Vec<Value>> {
        let arguments = [&[target.as_str()], calls].concat();
        let ended = fence.run(
            "buyer",
            &python("python-grpc", "grpc_agent.py", &arguments)?,
        )?;
        ensure!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
        let lines = ended.stdout.lines();
        lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    let first = buyer(&[
        "alice",
        "100",
        "r-1",
        "statement",
        "closed-account",
        "5",
        "r-2",
    ])?;
    assert_eq!(first[0]["said"], "tr_000001", "{first:?}");
    assert_eq!(first[0]["trailers"]["x-books"], "1", "{first:?}");
    let pages = serde_json::json!(["page 0", "page 1", "page 2"]);
    assert_eq!(first[1]["said"], pages, "{first:?}");
    assert_eq!(first[2]["details"], "the account is closed");
    assert_eq!(bank.wait_for("paid ")?, "alice 100 r-1");
    let status = |effect: &Value| effect["status"].clone();
    let statuses: Vec<Value> = fence.effects("buyer")?.iter().map(status).collect();
    assert_eq!(statuses, ["completed", "completed", "failed"]);

    fence.say(&["restored", "buyer"])?;
    let second = buyer(&["alice", "250", "r-3", "alice", "100", "r-1"])?;
    // The status comes where gRPC looks for it, with words for whoever reads the log.
    assert_eq!(second[0]["code"], "FAILED_PRECONDITION", "{second:?}");
    let details = second[0]["details"].as_str().unwrap_or_default();
    assert!(details.contains("acrfence fork"), "{details}");
    assert_eq!(second[1], first[0]);

    fence.say(&["fork", "buyer"])?;
    let third = buyer(&["alice", "250", "r-4"])?;
    assert_eq!(third[0]["said"], "tr_000002", "{third:?}");
    // The next that the bank booked: it never heard of what came between.
    assert_eq!(bank.wait_for("paid ")?, "alice 250 r-4");
    Ok(())
}

/// A message of gRPC is bytes to the fence, which knows no descriptor: what is worded anew is not
/// taken for the same, and not sent either.
#[test]
fn grpc_that_is_worded_anew_is_stopped() -> Result<()> {
    let authority = Authority::new()?;
    let files = authority.server_files()?;
    let mut command = python("python-grpc", "grpc_bank.py", &strings(&files))?;
    let mut bank = Running::start("a gRPC bank", &mut command)?;
    let target = format!("localhost:{}", bank.wait_for("port ")?);
    let fence = Fence::start(&authority)?;
    let buyer = |name: &str, reference: &str| -> Result<Ended> {
        let arguments = [target.as_str(), "alice", "100", reference];
        fence.run(name, &python("python-grpc", "grpc_agent.py", &arguments)?)
    };
    buyer("buyer", "r-1")?;
    assert_eq!(bank.wait_for("paid ")?, "alice 100 r-1");
    fence.say(&["restored", "buyer"])?;
    let again = buyer("buyer", "r-2")?;
    assert!(again.stdout.contains("FAILED_PRECONDITION"), "{again:?}");
    buyer("other", "r-3")?;
    assert_eq!(bank.wait_for("paid ")?, "alice 100 r-3");
    Ok(())
}

/// Streams, after a restore: one that the bank answered is answered again, message by message and with its
/// trailers; one in which both sides spoke in turn is never played back, and never sent again.
#[test]
fn grpc_streams_happen_once() -> Result<()> {
    let authority = Authority::new()?;
    let files = authority.server_files()?;
    let mut command = python("python-grpc", "grpc_bank.py", &strings(&files))?;
    let mut bank = Running::start("a gRPC bank", &mut command)?;
    let target = format!("localhost:{}", bank.wait_for("port ")?);
    let fence = Fence::start(&authority)?;
    let call = |name: &str, calls: &str| -> Result<Vec<Value>> {
        let words: Vec<&str> = [target.as_str()]
            .into_iter()
            .chain(calls.split(' '))
            .collect();
        let ended = fence.run(name, &python("python-grpc", "grpc_agent.py", &words)?)?;
        ensure!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
        let lines = ended.stdout.lines();
        lines.map(|line| Ok(serde_json::from_str(line)?)).collect()
    };
    let settle = "settle alice 10 r-1";
    let batch = "batch 2 bob 20 r-2 carol 30 r-3";
    let haggle = "haggle 2 dave 40 r-4 erin 50 r-5";
    let all = [settle, batch, haggle].join(" ");
    let first = call("buyer", &all)?;
    let stages = serde_json::json!([
        "booked tr_000001",
        "on its way tr_000001",
        "settled tr_000001"
    ]);
    assert_eq!(first[0]["said"], stages, "{first:?}");
    assert_eq!(first[0]["trailers"]["x-books"], "1", "{first:?}");
    assert_eq!(first[1]["said"], "tr_000002 tr_000003", "{first:?}");
    let answers = serde_json::json!(["tr_000004", "tr_000005"]);
    assert_eq!(first[2]["said"], answers, "{first:?}");
    for paid in [
        "alice 10 r-1",
        "bob 20 r-2",
        "carol 30 r-3",
        "dave 40 r-4",
        "erin 50 r-5",
    ] {
        assert_eq!(bank.wait_for("paid ")?, paid);
    }
    let effects = fence.effects("buyer")?;
    assert!(
        effects.iter().all(|effect| effect["status"] == "completed"),
        "{effects:?}"
    );
    assert_eq!(effects.len(), 3);

    fence.say(&["restored", "buyer"])?;
    let second = call("buyer", &all)?;
    assert_eq!(second[..2], first[..2]);
    assert_ne!(second[2]["code"], "OK", "{second:?}");
    assert_eq!(second[2]["said"], serde_json::json!([]));
    assert!(
        second[2]["details"]
            .as_str()
            .is_some_and(|why| why.contains("ACRFence")),
        "{second:?}"
    );

    // Other ones are stopped, wherever in the stream the difference is.
    fence.say(&["restored", "buyer"])?;
    let other = call(
        "buyer",
        "settle alice 11 r-1 batch 2 bob 20 r-2 carol 31 r-3",
    )?;
    for stopped in &other {
        assert_eq!(stopped["code"], "FAILED_PRECONDITION", "{other:?}");
        assert_eq!(stopped["said"], serde_json::json!([]));
    }
    // The next that the bank hears of is somebody else's.
    call("other", "zoe 1 r-9")?;
    assert_eq!(bank.wait_for("paid ")?, "zoe 1 r-9");
    Ok(())
}

/// A bare repository behind git's own HTTP server.
struct Host {
    server: Running,
    url: String,
    repository: PathBuf,
}

impl Host {
    fn start(authority: &Authority, folder: &Path) -> Result<Self> {
        let repository = folder.join("repository.git");
        let name = repository.to_string_lossy().into_owned();
        git(folder, &["init", "--quiet", "--bare", &name])?;
        git(&repository, &["config", "core.logAllRefUpdates", "true"])?;
        let mut files = authority.server_files()?.to_vec();
        files.push(folder.to_string_lossy().into_owned());
        let mut command = bare_python("git_host.py", &strings(&files))?;
        let mut server = Running::start("a git host", &mut command)?;
        let port = server.wait_for("port ")?;
        Ok(Self {
            server,
            url: format!("https://localhost:{port}/repository.git"),
            repository,
        })
    }

    /// How often `main` was changed, by the repository's own log.
    fn pushes(&self) -> usize {
        let log = self.repository.join("logs/refs/heads/main");
        std::fs::read_to_string(log).map_or(0, |log| log.lines().count())
    }
}

fn git(folder: &Path, arguments: &[&str]) -> Result<Ended> {
    let mut command = plain("git");
    command.current_dir(folder).args(arguments);
    let ended = run(format!("git {arguments:?}"), &mut command)?;
    ensure!(ended.ok(), "git {arguments:?}: {}", ended.stderr);
    Ok(ended)
}

/// What a coding agent does: a change, a commit, a push.
fn work(folder: &Path, when: &str, push: &str) -> Command {
    let mut shell = plain("/bin/sh");
    shell
        .args(["-c", "echo fixed > file; git add file; git commit --quiet --message fix; exec git push $PUSH"])
        .current_dir(folder)
        .env("PUSH", push)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0");
    for who in ["AUTHOR", "COMMITTER"] {
        shell
            .env(format!("GIT_{who}_NAME"), "agent")
            .env(format!("GIT_{who}_EMAIL"), "agent@example.org")
            .env(format!("GIT_{who}_DATE"), when);
    }
    shell
}

/// Does what a coding agent does, in a folder that is restored to before it each time.
struct Coder<'a> {
    fence: &'a Fence,
    folder: PathBuf,
    url: String,
}

impl Coder<'_> {
    fn restore(&self) -> Result<()> {
        if self.folder.exists() {
            std::fs::remove_dir_all(&self.folder)?;
        }
        std::fs::create_dir(&self.folder)?;
        let folder = &self.folder;
        git(folder, &["init", "--quiet", "--initial-branch", "main"])?;
        git(folder, &["remote", "add", "origin", &self.url])?;
        Ok(())
    }

    fn works(&self, when: &str, push: &str) -> Result<Ended> {
        self.fence.run("coder", &work(&self.folder, when, push))
    }
}

const MONDAY: &str = "2026-01-05T00:00:00Z";
const TUESDAY: &str = "2026-01-06T00:00:00Z";

#[test]
fn a_git_push_over_https_happens_once() -> Result<()> {
    let authority = Authority::new()?;
    let fence = Fence::start(&authority)?;
    let scratch = fence.place().scratch();
    let mut host = Host::start(&authority, scratch)?;
    let coder = Coder {
        fence: &fence,
        folder: scratch.join("work"),
        url: host.url.clone(),
    };
    coder.restore()?;
    let ended = coder.works(MONDAY, "origin main")?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    host.server.wait_for("push ")?;
    assert_eq!(host.pushes(), 1);
    // One intent: what the command did inside, the request among it, hangs below it.
    let effects = fence.effects("coder")?;
    let roots = effects.iter().filter(|e| e["parent"].is_null());
    assert_eq!(roots.count(), 1, "{effects:?}");
    assert!(effects.iter().any(|e| e["transport"] == "http"));

    // The work is done anew, at another time; its push is answered from the record.
    coder.restore()?;
    fence.say(&["restored", "coder"])?;
    let ended = coder.works(TUESDAY, "origin main")?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(host.pushes(), 1);

    // A push by force would take the first one away.
    coder.restore()?;
    fence.say(&["restored", "coder"])?;
    let ended = coder.works(TUESDAY, "--force origin main")?;
    assert_eq!(ended.code, Some(126), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("acrfence fork"), "{}", ended.stderr);
    assert_eq!(host.pushes(), 1);

    fence.say(&["fork", "coder"])?;
    let ended = coder.works(TUESDAY, "--force origin main")?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(host.pushes(), 2);
    Ok(())
}

/// The same where commands are not gated: then the request is the effect.
#[test]
fn a_git_push_is_fenced_on_the_wire_as_well() -> Result<()> {
    let authority = Authority::new()?;
    let fence = Fence::start_with(&[&authority.root()], "[gate]\nexec = false\n")?;
    let scratch = fence.place().scratch();
    let host = Host::start(&authority, scratch)?;
    let coder = Coder {
        fence: &fence,
        folder: scratch.join("work"),
        url: host.url.clone(),
    };
    coder.restore()?;
    let ended = coder.works(MONDAY, "origin main")?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    let effects = fence.effects("coder")?;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0]["transport"], "http");

    // What git asks first is no effect: the very same commit is there already, and it sees that.
    coder.restore()?;
    fence.say(&["restored", "coder"])?;
    let ended = coder.works(MONDAY, "origin main")?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(host.pushes(), 1);

    coder.restore()?;
    fence.say(&["restored", "coder"])?;
    let ended = coder.works(TUESDAY, "--force origin main")?;
    assert!(!ended.ok(), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("409"), "{}", ended.stderr);
    assert_eq!(host.pushes(), 1);

    fence.say(&["fork", "coder"])?;
    let ended = coder.works(TUESDAY, "--force origin main")?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(host.pushes(), 2);
    Ok(())
}
