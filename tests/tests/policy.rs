//! The configuration: is it checked, does it say what it makes of a call, and is it read again without
//! losing anything?

use std::fs;
use std::time::Instant;

use acrfence_tests::client::{bare_python, plain};
use acrfence_tests::fence::{Fence, acrfence};
use acrfence_tests::process::{Ended, PATIENCE, Running, run};
use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

const POLICY: &str = r#"
[boundary]
pass_through = ["*.pinned.example"]

[[rule]]
match = { host = "api.example.com", method = "POST", path = "/search*" }
as = "read_only"
note = "searches change nothing"

[[rule]]
match = { server = "https://mcp.example.com/*" }
as = "trust_hints"

[[gate.command]]
program = ["git"]
argument = ["scratch"]
gate = false

[[after_restore.class]]
kind = ["database"]
opaque = "deny"
"#;

fn policy(words: &[&str]) -> Result<Ended> {
    let mut command = plain(acrfence()?);
    command.arg("policy").args(words);
    run(format!("acrfence policy {}", words.join(" ")), &mut command)
}

fn file(text: &str) -> Result<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), text)?;
    Ok(file)
}

fn test(config: &str, words: &[&str]) -> Result<Value> {
    let ended = policy(&[&["test", "--json", "--config", config], words].concat())?;
    ensure!(ended.ok(), "{words:?}: {}", ended.stderr);
    Ok(serde_json::from_str(&ended.stdout)?)
}

#[test]
fn a_file_is_checked_and_each_rule_says_what_it_does() -> Result<()> {
    let good = file(POLICY)?;
    let path = good.path().display().to_string();
    let ended = policy(&["check", &path])?;
    assert!(ended.ok(), "{}", ended.stderr);
    for says in [
        "is valid",
        "rule 1",
        "host=api.example.com method=POST path=/search*",
        "read_only: passed on, not logged",
        "searches change nothing",
        "gate.command 1",
        "runs, not fenced",
        "kind=database",
        "deny: refused after a restore, until a fork",
        "host=*.pinned.example",
    ] {
        assert!(ended.stdout.contains(says), "{says}: {}", ended.stdout);
    }
    for (text, place, says) in [
        ("[fence]\nunmatchd = 1\n", "line 2, column 1", "unmatchd"),
        ("[fence\n", "line 1", "fence"),
        (
            "\n\n[[rule]]\nmatch = {}\nas = \"effect\"\n",
            "line 3, column 1",
            "everything",
        ),
        (
            "[[after_restore.class]]\nkind = [\"unix\"]\nopaque = \"deny\"\n",
            "line 1, column 1",
            "does not go through the hook",
        ),
    ] {
        let bad = file(text)?;
        let ended = policy(&["check", &bad.path().display().to_string()])?;
        assert_eq!(ended.code, Some(1), "{text}");
        assert!(
            ended.stderr.contains(place) && ended.stderr.contains(says),
            "{text}: {}",
            ended.stderr
        );
    }
    assert_eq!(policy(&["check", "/nowhere/at/all"])?.code, Some(1));
    Ok(())
}

#[test]
fn a_call_is_told_what_it_would_be() -> Result<()> {
    let good = file(POLICY)?;
    let config = good.path().display().to_string();
    let search = "https://api.example.com/search/all";
    let said = test(&config, &["POST", search])?;
    assert_eq!(
        (&said["kind"], &said["rule"]),
        (&"read_only".into(), &1.into())
    );
    assert!(
        said["because"]
            .to_string()
            .contains("searches change nothing")
    );
    let said = test(&config, &["POST", "https://api.example.com/pay"])?;
    assert_eq!(
        (&said["kind"], &said["rule"]),
        (&"effect".into(), &Value::Null)
    );
    assert_eq!(said["fenced"], true);
    assert_eq!(test(&config, &["GET", search])?["kind"], "read_only");
    let pinned = test(&config, &["POST", "https://a.pinned.example/"])?;
    assert_eq!(pinned["fenced"], false, "{pinned}");

    let server = "https://mcp.example.com/mcp";
    let said = test(&config, &["--mcp", server, "look"])?;
    assert_eq!(
        (&said["kind"], &said["rule"]),
        (&"effect".into(), &2.into())
    );
    let said = test(&config, &["--mcp", "--read-only-hint", server, "look"])?;
    assert_eq!(said["kind"], "read_only");

    let said = test(&config, &["--", "git", "push", "origin", "main"])?;
    assert_eq!(
        (&said["kind"], &said["fenced"]),
        (&"effect".into(), &true.into())
    );
    let said = test(&config, &["--", "git", "push", "scratch"])?;
    assert_eq!(said["fenced"], false, "{said}");
    assert_eq!(test(&config, &["--", "ls"])?["fenced"], false);

    for (call, kind) in [
        (
            r#"{"method": "POST", "url": "https://api.example.com/search"}"#,
            "read_only",
        ),
        (
            r#"{"server": "https://x.example/mcp", "tool": "pay", "arguments": {"a": 1}}"#,
            "effect",
        ),
        (r#"{"argv": ["git", "push"]}"#, "effect"),
        (
            r#"{"method": "POST", "url": "http://localhost:1/v1/messages", "body": {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}}"#,
            "model",
        ),
    ] {
        assert_eq!(test(&config, &[call])?["kind"], kind, "{call}");
    }
    let ended = policy(&["test", "--config", &config, r#"{"neither": 1}"#])?;
    assert_eq!(ended.code, Some(1));
    assert!(ended.stderr.contains("\"argv\""), "{}", ended.stderr);
    Ok(())
}

fn mode(fence: &Fence) -> Result<String> {
    let status = fence.ask(&["status"])?;
    Ok(status[0]["mode"].as_str().context("a mode")?.to_owned())
}

/// Asks over the socket, as a person with curl would; gives status and body.
fn reload(fence: &Fence) -> Result<(String, String)> {
    let mut curl = plain("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--max-time",
        "20",
        "--request",
        "POST",
    ])
    .args(["--write-out", "\n%{http_code}", "--unix-socket"])
    .arg(fence.place().run_dir().join("control.sock"))
    .arg("http://acrfence/v1/reload");
    let ended = run("curl", &mut curl)?;
    ensure!(ended.ok(), "{}", ended.stderr);
    let (body, status) = ended.stdout.rsplit_once('\n').context("a status")?;
    Ok((status.to_owned(), body.to_owned()))
}

fn hang_up(fence: &Fence) -> Result<()> {
    let pid = fence.daemon_id()?.to_string();
    let ended = run("kill", plain("/bin/kill").args(["-HUP", &pid]))?;
    ensure!(ended.ok(), "{}", ended.stderr);
    Ok(())
}

#[test]
fn a_reload_loses_no_connection_and_a_bad_file_replaces_nothing() -> Result<()> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut back = stream.try_clone()?;
                std::io::copy(&mut &stream, &mut back)
            });
        }
    });
    let fence = Fence::start_with(&[], "")?;
    let command = bare_python("opaque.py", &[])?;
    let mut agent = Running::start("an agent", &mut fence.launch("kept", &command)?)?;
    agent.wait_for("ready")?;
    let mut does = |line: &str| -> Result<String> {
        agent.tell(line)?;
        agent.wait_for("so ")
    };
    assert_eq!(does(&format!("keep 127.0.0.1 {port} 0001"))?, "got 0001");
    assert_eq!(mode(&fence)?, "enforce");

    let path = fence.place().scratch().join("config.toml");
    let before = fs::read_to_string(&path)?;
    let observing = format!("[fence]\nmode = \"observe\"\n{before}");
    fs::write(&path, &observing)?;
    assert_eq!(reload(&fence)?.0, "200");
    assert_eq!(mode(&fence)?, "observe");
    assert_eq!(does(&format!("again {port} 0002"))?, "got 0002");

    fs::write(&path, format!("{observing}\n[fence]\nmode = \"enforce\"\n"))?;
    let (status, body) = reload(&fence)?;
    assert_eq!(status, "400", "{body}");
    assert!(body.contains("line") && body.contains("was kept"), "{body}");
    hang_up(&fence)?;
    assert_eq!(mode(&fence)?, "observe");
    assert_eq!(does(&format!("again {port} 0003"))?, "got 0003");

    fs::write(&path, &before)?;
    hang_up(&fence)?;
    let deadline = Instant::now() + PATIENCE;
    while mode(&fence)? != "enforce" {
        ensure!(Instant::now() < deadline, "the file was never read again");
    }
    assert_eq!(does(&format!("again {port} 0004"))?, "got 0004");
    Ok(())
}
