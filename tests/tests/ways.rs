//! Other ways to a service than a connection of HTTP to it: through a proxy that the agent is configured with,
//! and over WebSocket. Real programs on both sides, unmodified.

use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, Options, order, rewritten_order};
use acrfence_tests::client::{Client, bare_python, python};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::Running;
use anyhow::{Context as _, Result};
use serde_json::Value;

/// The proxy, and its address as clients are told it.
fn proxy() -> Result<(Running, String)> {
    let mut proxy = Running::start("a proxy", &mut bare_python("proxy.py", &[])?)?;
    let port = proxy.wait_for("port ")?;
    Ok((proxy, format!("http://127.0.0.1:{port}")))
}

fn through(mut command: Command, proxy: &str) -> Command {
    // curl reads only the lower case for http.
    for name in ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"] {
        command.env(name, proxy);
    }
    command
}

#[test]
fn an_agent_behind_a_proxy_of_its_own_pays_once() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let clear = Bank::start_with(
        &authority,
        Options {
            clear: true,
            ..Options::default()
        },
    )?;
    let fence = Fence::start(&authority)?;
    for (client, name) in [
        (Client::Requests, "requests"),
        (Client::Httpx, "httpx"),
        (Client::Curl, "curl"),
    ] {
        for (bank, kind) in [(&bank, "https"), (&clear, "http")] {
            let (mut proxy, address) = proxy()?;
            let name = format!("{name}-{kind}");
            let url = bank.url("/v1/transfers");
            let before = bank.payments();
            let pay = |body: String| {
                let command = through(client.post(&url, &body)?, &address);
                client.answer(&fence.run(&name, &command)?)
            };
            let first = pay(order("alice", 9)?)?;
            assert_eq!(first.status, 201, "{name}: {first:?}");
            let expected = match kind {
                "https" => format!("CONNECT localhost:{} ", bank.port()),
                _ => format!("POST {url} "),
            };
            let asked = proxy.wait_for("asked ")?;
            assert!(asked.starts_with(&expected), "{name}: {asked}");
            fence.say(&["restored", &name])?;
            assert_eq!(pay(rewritten_order("alice", 9)?)?, first, "{name}");
            assert_eq!(bank.payments() - before, 1, "{name}");
            // The call is known by where it went, not by the proxy.
            let effects = fence.effects(&name)?;
            assert_eq!(effects.len(), 1, "{effects:?}");
            let told = effects[0].to_string();
            assert!(
                told.contains(&format!("localhost:{}", bank.port())),
                "{told}"
            );
            // Another one is refused, in words that the client shows.
            let other = pay(order("alice", 10)?)?;
            assert_eq!(other.status, 409, "{name}: {other:?}");
            assert_eq!(bank.payments() - before, 1, "{name}");
        }
    }
    Ok(())
}

#[test]
fn a_websocket_is_passed_on_counted_and_denied_where_policy_wants_it() -> Result<()> {
    let authority = Authority::new()?;
    let files = authority.server_files()?;
    let files = files.each_ref().map(String::as_str);
    let mut server = python("python-fastmcp", "websocket_server.py", &files)?;
    let mut server = Running::start("a WebSocket bank", &mut server)?;
    let url = format!("wss://localhost:{}/pay", server.wait_for("port ")?);
    let policy = "[after_restore]\nopaque = \"deny\"\n";
    let fence = Fence::start_with(&[&authority.root()], policy)?;
    let start = |words: &[&str]| -> Result<Running> {
        let arguments = [&[url.as_str()], words].concat();
        let agent = python("python-fastmcp", "websocket_agent.py", &arguments)?;
        Running::start("the agent", &mut fence.launch("agent", &agent)?)
    };
    let mut agent = start(&["alice 100", "bob 200"])?;
    assert_eq!(server.wait_for("opened ")?, "/pay");
    assert_eq!(agent.wait_for("answer ")?, "booked 1");
    assert_eq!(agent.wait_for("answer ")?, "booked 2");
    assert_eq!(agent.wait_for("turned ")?, "True");
    assert_eq!(agent.wait_for("pong ")?, "True");
    agent.wait_for("stays")?;
    for paid in ["alice 100", "bob 200"] {
        assert_eq!(server.wait_for("paid ")?, paid);
    }
    // It is shown as what it is.
    let status = fence.say(&["status"])?;
    assert!(status.contains("NOT FENCED agent: upgrade"), "{status}");
    let is_upgrade = |row: &&Value| row["class"] == "upgrade";
    let opaque = fence.ask(&["effects", "--opaque", "--agent", "agent"])?;
    assert!(opaque.iter().any(|row| is_upgrade(&row)), "{opaque:?}");

    // Restored while it is open: it is ended, and the next one reaches nobody.
    fence.say(&["restored", "agent"])?;
    agent.tell("dave 400")?;
    agent.wait_for("closed ")?;
    agent.finish()?;
    let mut agent = start(&["alice 100"])?;
    agent.wait_for("failed ")?;
    agent.finish()?;
    let status = fence.say(&["status"])?;
    assert!(status.contains("acrfence fork agent"), "{status}");
    fence.say(&["fork", "agent"])?;
    let mut agent = start(&["carol 300"])?;
    assert_eq!(server.wait_for("opened ")?, "/pay");
    assert_eq!(agent.wait_for("answer ")?, "booked 3");
    // What the bank heard of next is this, and nothing before it.
    assert_eq!(server.wait_for("paid ")?, "carol 300");
    agent.wait_for("stays").context("after the fork")?;
    Ok(())
}
