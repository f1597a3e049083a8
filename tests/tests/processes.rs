//! Who belongs to an agent, who does not, and what each of them sees.

use std::path::PathBuf;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::Bank;
use acrfence_tests::client::{bare_python, plain, trusting};
use acrfence_tests::fence::{Fence, NOBODY};
use acrfence_tests::process::{Running, run};
use anyhow::{Context as _, Result};
use serde_json::Value;

const CONNECTION: &str = "/v1/connection";

fn reports(stdout: &str) -> Result<Vec<Value>> {
    stdout
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(|line| serde_json::from_str(line).with_context(|| line.to_owned()))
        .collect()
}

fn descendant_is_fenced(kind: &str) -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let command = bare_python("family.py", &[kind, &bank.url(CONNECTION)])?;
    let ended = fence.run("family", &command)?;
    assert!(ended.ok(), "{}", ended.stderr);
    let reports = reports(&ended.stdout)?;
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0]["redirected"], true, "{}", reports[0]);
    assert!(reports[0]["orphan"].as_bool().unwrap_or(true));
    Ok(())
}

#[test]
fn a_grandchild_is_fenced() -> Result<()> {
    descendant_is_fenced("grandchild")
}

#[test]
fn a_daemon_that_left_its_parents_is_fenced() -> Result<()> {
    descendant_is_fenced("double-fork")
}

#[test]
fn a_thread_is_fenced() -> Result<()> {
    descendant_is_fenced("thread")
}

#[test]
fn an_agent_sees_its_real_peer() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    for (host, peer) in [
        ("127.0.0.1", format!("127.0.0.1:{}", bank.port())),
        ("[::1]", format!("[::1]:{}", bank.port())),
    ] {
        let url = bank.url(CONNECTION).replace("localhost", host);
        let ended = fence.run("looker", &bare_python("connection.py", &[&url])?)?;
        assert!(ended.ok(), "{}", ended.stderr);
        let report = &reports(&ended.stdout)?[0];
        assert_eq!(report["redirected"], true, "{report}");
        assert_eq!(report["peer"], peer, "{report}");
    }
    Ok(())
}

/// The daemon runs in the control group that its programs watch; were its traffic redirected, the
/// bank would never see it.
#[test]
fn the_daemons_own_traffic_is_left_alone() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let group = std::fs::read_to_string(fence.place().cgroup().path().join("cgroup.procs"))?;
    let daemon = fence.daemon_id()?.to_string();
    assert!(group.lines().any(|pid| pid == daemon), "{group}");
    let command = bare_python("connection.py", &[&bank.url(CONNECTION)])?;
    let ended = fence.run("looker", &command)?;
    assert!(ended.ok(), "{}", ended.stderr);
    assert_eq!(reports(&ended.stdout)?[0]["redirected"], true);
    assert_eq!(bank.requests(), 1);
    Ok(())
}

#[test]
fn a_process_that_is_no_agent_is_never_redirected() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(CONNECTION);
    // An agent lives beside it in the same control group.
    let mut agent = Running::start(
        "an agent",
        &mut fence.launch("agent", &bare_python("kept_open.py", &[&url])?)?,
    )?;
    agent.wait_for("open")?;
    let mut outside = trusting(bare_python("connection.py", &[&url])?, &authority.root());
    fence.place().cgroup().enter(&mut outside)?;
    let ended = run("an outsider", &mut outside)?;
    assert!(ended.ok(), "{}", ended.stderr);
    assert_eq!(reports(&ended.stdout)?[0]["redirected"], false);
    // While the agent's are: whatever does not redirect anything is no proof.
    let ended = fence.run("other", &bare_python("connection.py", &[&url])?)?;
    assert_eq!(reports(&ended.stdout)?[0]["redirected"], true);
    Ok(())
}

#[test]
fn another_users_agent_stays_that_users_and_is_fenced() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let mut command = plain("/bin/sh");
    let script =
        r#"id -u; exec curl --silent --show-error --write-out ' %{local_ip}:%{local_port}' "$1""#;
    command.args([
        "-c",
        script,
        "sh",
        &bank.url(CONNECTION).replace("localhost", "127.0.0.1"),
    ]);
    let mut launched = fence
        .place()
        .as_nobody(&fence.launch("nobodys", &command)?)?;
    let ended = run("nobody's agent", &mut launched)?;
    assert!(ended.ok(), "{}", ended.stderr);
    let (uid, rest) = ended.stdout.split_once('\n').context("it said one line")?;
    assert_eq!(uid, NOBODY.to_string());
    let (seen, own) = rest.rsplit_once(' ').context("curl told no address")?;
    assert!(!seen.contains(own), "{own} was seen as {seen}");
    assert!(seen.contains("127.0.0.1:"), "{seen}");
    // It can be looked at and decided about by its user and by root, not by the rest.
    let agents = fence.ask(&["agents"])?;
    assert_eq!(agents[0]["uid"], NOBODY, "{agents:?}");
    fence.run("roots", &plain("true"))?;
    let nosy = fence.place().cli(["fork", "roots"])?;
    let ended = run("a nosy user", &mut fence.place().as_nobody(&nosy)?)?;
    // Nor learns that there is one.
    assert_eq!(ended.code, Some(5), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(fence.branches("roots")?, ["start"]);
    Ok(())
}

#[test]
fn a_child_that_starts_during_an_attach_is_fenced() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let mut command = bare_python("family.py", &["spawner", &bank.url(CONNECTION)])?;
    command = trusting(command, &roots(&authority, &fence)?);
    fence.place().cgroup().enter(&mut command)?;
    let mut spawner = Running::start("a spawner", &mut command)?;
    spawner.wait_for("forking")?;
    fence.say(&["attach", &spawner.id().to_string(), "--name", "spawner"])?;
    let ended = spawner.finish()?;
    assert!(ended.ok(), "{}", ended.stderr);
    let reports = reports(&ended.stdout)?;
    assert!(reports.len() >= 10, "only {} children", reports.len());
    for report in reports {
        assert_eq!(report["redirected"], true, "{report}");
    }
    Ok(())
}

#[test]
fn a_connection_older_than_the_attach_is_cut_when_asked() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url(CONNECTION);
    let roots = roots(&authority, &fence)?;
    let start = || -> Result<Running> {
        let mut command = trusting(bare_python("kept_open.py", &[&url])?, &roots);
        fence.place().cgroup().enter(&mut command)?;
        let mut running = Running::start("an old connection", &mut command)?;
        running.wait_for("open")?;
        Ok(running)
    };

    // Left alone, it goes on, and the fence says that it does not see it.
    let mut kept = start()?;
    let said = fence.say(&["attach", &kept.id().to_string(), "--name", "kept"])?;
    assert!(said.contains(&bank.port().to_string()), "{said}");
    kept.tell("go on")?;
    assert!(kept.finish()?.stdout.contains("still the same connection"));

    // Cut, it comes back through the fence.
    let mut cut = start()?;
    fence.say(&["attach", &cut.id().to_string(), "--name", "cut", "--cut"])?;
    cut.tell("go on")?;
    let ended = cut.finish()?;
    assert!(ended.ok(), "{}", ended.stderr);
    assert_eq!(reports(&ended.stdout)?[0]["redirected"], true);
    Ok(())
}

/// Roots for an agent that runs before it is attached to: the bank's own and the daemon's.
fn roots(authority: &Authority, fence: &Fence) -> Result<PathBuf> {
    let mut roots = std::fs::read_to_string(authority.root())?;
    let ca = fence.ask(&["ca", "bundle"])?;
    let bundle = ca[0]["bundle"].as_str().context("no bundle was named")?;
    roots.push_str(&std::fs::read_to_string(bundle)?);
    let path = fence.place().scratch().join("roots.pem");
    std::fs::write(&path, roots)?;
    Ok(path)
}
