//! What cannot be fenced: is it seen, named, counted, and refused after a restore where policy wants it?

use std::net::{TcpListener, UdpSocket};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use acrfence_tests::client::bare_python;
use acrfence_tests::fence::Fence;
use acrfence_tests::process::{PATIENCE, Running};
use anyhow::{Context as _, Result, bail};
use serde_json::Value;

/// How PostgreSQL's clients begin.
const POSTGRES: &str = "0000000804d2162f";
/// `POST / HTTP/1.1`, to host `x`, with one byte, and then an end.
const HTTP: &str = "504f5354202f20485454502f312e310d0a486f73743a20780d0a436f6e74656e742d4c656e6774683a20310d0a0d0a61";

/// Sends back what it gets, and counts who came.
struct Echo {
    port: u16,
    connections: Arc<AtomicUsize>,
}

impl Echo {
    fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let port = listener.local_addr()?.port();
        let connections = Arc::new(AtomicUsize::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || echo(stream));
            }
        });
        Ok(Self { port, connections })
    }

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn echo(mut stream: impl std::io::Read + std::io::Write) {
    let mut bytes = [0; 4096];
    while let Ok(n) = stream.read(&mut bytes)
        && n > 0
        && stream.write_all(&bytes[..n]).is_ok()
    {}
}

fn agent(fence: &Fence, name: &str) -> Result<Running> {
    let command = bare_python("opaque.py", &[])?;
    let mut agent = Running::start(name, &mut fence.launch(name, &command)?)?;
    agent.wait_for("ready")?;
    Ok(agent)
}

fn does(agent: &mut Running, line: &str) -> Result<String> {
    agent.tell(line)?;
    agent.wait_for("so ")
}

/// Observations of `agent`, once one fits. They are written down beside the traffic, not before it.
fn seen(fence: &Fence, agent: &str, fits: impl Fn(&Value) -> bool) -> Result<Value> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = fence.ask(&["effects", "--opaque", "--agent", agent])?;
        if let Some(found) = all.iter().find(|seen| fits(seen)) {
            return Ok(found.clone());
        }
        if Instant::now() > deadline {
            bail!("no observation fits; there are: {all:#?}");
        }
    }
}

fn counted(fence: &Fence, agent: &str) -> Result<Vec<Value>> {
    let status = fence.ask(&["status"])?;
    let agents = status[0]["agents"].as_array().context("agents")?;
    let found = agents.iter().find(|a| a["name"] == agent);
    let found = found.with_context(|| format!("{agent} in {agents:?}"))?;
    Ok(found["not_fenced"].as_array().cloned().unwrap_or_default())
}

fn digest(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    hex::encode(sha2::Sha256::digest(bytes))
}

#[test]
fn a_database_a_unix_socket_and_datagrams_are_seen_and_are_no_effects() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let database = Echo::start()?;
    let path = fence.place().scratch().join("elsewhere.sock");
    let listener = UnixListener::bind(&path)?;
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            echo(stream);
        }
    });
    let datagrams = UdpSocket::bind("127.0.0.1:0")?;
    datagrams.set_read_timeout(Some(PATIENCE))?;

    let mut agent = agent(&fence, "opaque")?;
    let pid = agent.id();
    let port = database.port;
    let told = does(&mut agent, &format!("tcp 127.0.0.1 {port} {POSTGRES}"))?;
    assert_eq!(told, format!("got {POSTGRES}"));
    let told = does(&mut agent, &format!("unix {} 6869", path.display()))?;
    assert_eq!(told, "got 6869");
    let udp = datagrams.local_addr()?;
    let told = does(
        &mut agent,
        &format!("udp 127.0.0.1 {} 7564702121", udp.port()),
    )?;
    assert_eq!(told, "sent 5");
    let mut got = [0; 16];
    assert_eq!(datagrams.recv(&mut got)?, 5);

    let peer = format!("127.0.0.1:{port}");
    let ended = seen(&fence, "opaque", |s| {
        s["peer"] == *peer && s["step"] == "ended"
    })?;
    assert_eq!(ended["class"], "database", "{ended}");
    assert_eq!(ended["why"], "PostgreSQL", "{ended}");
    assert_eq!((&ended["sent"], &ended["received"]), (&8.into(), &8.into()));
    let bytes = [0, 0, 0, 8, 4, 0xd2, 0x16, 0x2f];
    assert_eq!(ended["digest"], digest(&bytes), "{ended}");
    assert_eq!(ended["origin"]["process"]["tgid"], pid, "{ended}");
    assert!(
        ended["origin"]["argv"].to_string().contains("opaque.py"),
        "{ended}"
    );

    let unix = seen(&fence, "opaque", |s| s["class"] == "unix")?;
    assert_eq!(unix["peer"], path.display().to_string(), "{unix}");
    assert_eq!(unix["sent"], 2, "{unix}");
    assert_eq!(unix["digest"], digest(b"hi"), "{unix}");
    let sent = seen(&fence, "opaque", |s| {
        s["class"] == "udp" && s["peer"] == format!("udp {udp}")
    })?;
    assert_eq!(sent["digest"], digest(b"udp!!"), "{sent}");

    let counted = counted(&fence, "opaque")?;
    for class in ["database", "unix", "udp"] {
        assert!(counted.iter().any(|c| c["class"] == class), "{counted:?}");
    }
    assert!(fence.effects("opaque")?.is_empty());
    let shown = fence.say(&["status"])?;
    assert!(
        shown.contains(&format!("NOT FENCED opaque: database, {peer}")),
        "{shown}"
    );
    Ok(())
}

#[test]
fn quic_is_refused_and_that_is_said() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let mut agent = agent(&fence, "quick")?;
    let told = does(&mut agent, "udp 127.0.0.1 443 00")?;
    assert!(told.starts_with("failed"), "{told}");
    let refused = seen(&fence, "quick", |s| s["step"] == "refused")?;
    assert_eq!(refused["peer"], "udp 127.0.0.1:443", "{refused}");
    let counted = counted(&fence, "quick")?;
    let quic = counted.iter().find(|c| c["refused"] == 1);
    assert_eq!(quic.context("a refusal")?["flows"], 0, "{counted:?}");
    Ok(())
}

#[test]
fn after_a_restore_policy_denies_what_cannot_be_compared_until_somebody_forks() -> Result<()> {
    let database = Echo::start()?;
    let allowed = Echo::start()?;
    let config = format!(
        "[after_restore]\nopaque = \"deny\"\n[[after_restore.class]]\nport = [{}]\nopaque = \"allow\"\n",
        allowed.port
    );
    let fence = Fence::start_with(&[], &config)?;
    let mut agent = agent(&fence, "restored")?;
    let (port, other) = (database.port, allowed.port);
    let ask = format!("tcp 127.0.0.1 {port} {POSTGRES}");
    let ask_other = format!("tcp 127.0.0.1 {other} {POSTGRES}");
    let got = format!("got {POSTGRES}");

    // Nobody was restored: nothing is denied.
    assert_eq!(does(&mut agent, &ask)?, got);
    for kept in [port, other] {
        let told = does(&mut agent, &format!("keep 127.0.0.1 {kept} {POSTGRES}"))?;
        assert_eq!(told, got);
    }
    assert_eq!(database.connections(), 2);

    fence.say(&["restored", "restored"])?;
    // What was open is ended too, but for what policy allows.
    let told = does(&mut agent, &format!("listen {port}"))?;
    assert!(told == "closed" || told.contains("reset"), "{told}");
    assert_eq!(
        does(&mut agent, &format!("again {other} 6869"))?,
        "got 6869"
    );
    let told = does(&mut agent, &ask)?;
    assert!(!told.starts_with("got"), "{told}");
    assert_eq!(database.connections(), 2, "it was never reached");
    assert_eq!(does(&mut agent, &ask_other)?, got);
    let refused = seen(&fence, "restored", |s| s["step"] == "refused")?;
    assert_eq!(refused["class"], "database", "{refused}");
    let status = fence.ask(&["status"])?;
    let troubles = status[0]["troubles"].as_array().context("troubles")?;
    let denied = troubles.iter().find(|t| t["kind"] == "opaque_denied");
    let detail = denied.context("a trouble")?["detail"].to_string();
    assert!(
        detail.contains("acrfence fork restored") && detail.contains("after_restore.opaque"),
        "{detail}"
    );

    // HTTP is fenced, so nothing of it is denied: also where the agent takes longer than a second to
    // begin, and nobody can tell yet what it will be.
    let late = format!("late 127.0.0.1 {port} 2 {HTTP}");
    does(&mut agent, &late)?;
    assert_eq!(fence.effects("restored")?.len(), 1);
    let status = fence.ask(&["status"])?;
    let troubles = status[0]["troubles"].as_array().context("troubles")?;
    let denied = troubles.iter().filter(|t| t["kind"] == "opaque_denied");
    assert_eq!(denied.count(), 2, "{troubles:?}");

    let before = database.connections();
    fence.say(&["fork", "restored"])?;
    assert_eq!(does(&mut agent, &ask)?, got);
    assert_eq!(database.connections(), before + 1);
    Ok(())
}
