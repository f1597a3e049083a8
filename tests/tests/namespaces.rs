//! Agents in network namespaces of their own: are they fenced there, and does a sandbox stay one?

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, rewritten_order};
use acrfence_tests::client::{Client, plain};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::{Running, run};
use anyhow::{Result, ensure};

/// A network namespace joined to this one by a pair of interfaces. Dropping it removes both.
struct Joined {
    name: String,
    /// This machine's end: `10.213.N.1`.
    outside: String,
    /// The end inside: `10.213.N.2`.
    inside: String,
}

impl Joined {
    fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = std::process::id() % 60 * 4 + COUNT.fetch_add(1, Ordering::SeqCst) % 4;
        let joined = Self {
            name: format!("acrf{n}"),
            outside: format!("10.213.{n}.1"),
            inside: format!("10.213.{n}.2"),
        };
        let (name, outside, inside) = (&joined.name, &joined.outside, &joined.inside);
        let (near, far) = (format!("acrfn{n}"), format!("acrff{n}"));
        for words in [
            format!("netns add {name}"),
            format!("link add {near} type veth peer name {far} netns {name}"),
            format!("address add {outside}/24 dev {near}"),
            format!("link set {near} up"),
            format!("-n {name} address add {inside}/24 dev {far}"),
            format!("-n {name} link set {far} up"),
            format!("-n {name} link set lo up"),
        ] {
            ip(&words)?;
        }
        Ok(joined)
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        // The pair of interfaces goes with the end that is inside.
        if let Err(e) = ip(&format!("netns delete {}", self.name)) {
            eprintln!("{e:#}");
        }
    }
}

fn ip(words: &str) -> Result<()> {
    let mut ip = plain("/usr/sbin/ip");
    ip.args(words.split(' '));
    let done = run(format!("ip {words}"), &mut ip)?;
    ensure!(done.ok(), "ip {words}: {}", done.stderr);
    Ok(())
}

/// A payment that is made until it gets an answer.
fn post(url: &str) -> String {
    // The first connection may be refused, as long as the namespace has no hook; it is never passed.
    format!(
        "curl --silent --show-error --retry 40 --retry-delay 1 --retry-all-errors --max-time 20 \
         --data pay=1 --write-out '\\n%{{http_code}}\\n' {url}"
    )
}

fn shell(script: &str) -> Command {
    let mut command = plain("/bin/sh");
    command.args(["-c", script]);
    command
}

/// A plain HTTP service that answers every request and says whom it saw.
fn service(address: &str) -> Result<(Running, u16)> {
    let script = r#"
import http.server, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        print("paid", self.client_address[0], flush=True)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *words): pass
server = http.server.ThreadingHTTPServer((sys.argv[1], 0), Answer)
print("port", server.server_port, flush=True)
server.serve_forever()
"#;
    let mut python = plain("/usr/bin/python3");
    python.args(["-B", "-c", script, address]);
    let mut service = Running::start("a service", &mut python)?;
    let port = service.wait_for("port ")?.parse()?;
    Ok((service, port))
}

#[test]
fn an_agent_that_enters_a_namespace_is_fenced_there_and_leaves_from_there() -> Result<()> {
    let joined = Joined::new()?;
    let fence = Fence::start_with(&[], "")?;
    let (mut service, port) = service(&joined.outside)?;
    let url = format!("http://{}:{port}/pay", joined.outside);
    let inside = format!("ip netns exec {} {}", joined.name, post(&url));
    let ended = fence.run("boxed", &shell(&inside))?;
    assert!(ended.ok(), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.ends_with("ok\n200"), "{}", ended.stdout);
    // Dialled from inside: the service saw the namespace's own address.
    let from = service.wait_for("paid ")?;
    assert_eq!(from, joined.inside);
    let effects = fence.effects("boxed")?;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0]["status"], "completed");
    // And so the same call of a restored agent is answered from the record.
    fence.say(&["restored", "boxed"])?;
    let ended = fence.run("boxed", &shell(&inside))?;
    assert!(
        ended.stdout.ends_with("ok\n200"),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    assert_eq!(fence.effects("boxed")?.len(), 1);
    Ok(())
}

#[test]
fn loopback_inside_a_namespace_is_not_the_machines_own() -> Result<()> {
    let joined = Joined::new()?;
    let fence = Fence::start_with(&[], "")?;
    // The machine has a service at an address that nobody has inside.
    let (_service, port) = service("127.0.0.1")?;
    let script = format!(
        "ip netns exec {} sh -c 'curl --silent --max-time 20 --retry 3 --retry-delay 1 --retry-all-errors \
         --data x=1 http://127.0.0.1:{port}/; echo ended $?'",
        joined.name
    );
    let ended = fence.run("boxed", &shell(&script))?;
    assert!(!ended.stdout.contains("ok"), "{}", ended.stdout);
    let effects = fence.effects("boxed")?;
    assert!(!effects.is_empty(), "it never came through the hook");
    for effect in effects {
        assert_eq!(effect["status"], "failed", "{effect}");
    }
    Ok(())
}

#[test]
fn a_sandbox_without_a_network_is_left_alone() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let (_service, port) = service("127.0.0.1")?;
    let script = format!(
        "unshare --net sh -c 'echo works; curl --silent --max-time 20 --data x=1 http://127.0.0.1:{port}/; echo ended $?'"
    );
    let ended = fence.run("alone", &shell(&script))?;
    assert!(ended.ok(), "{}", ended.stderr);
    assert!(ended.stdout.starts_with("works\n"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("ok"), "{}", ended.stdout);
    assert!(fence.effects("alone")?.is_empty());
    // Nothing to complain of.
    let status = fence.ask(&["status"])?;
    let no_hook = |t: &&serde_json::Value| t["kind"] == "no_hook";
    let troubles = status[0]["troubles"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    assert!(!troubles.iter().any(|t| no_hook(&t)), "{troubles:?}");
    Ok(())
}

/// As coding agents sandbox their commands: namespaces for everything but the network.
#[test]
fn a_sandbox_that_shares_the_network_is_fenced_as_without_it() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let pay = |body: &str| -> Result<Command> {
        let curl = Client::Curl.post(&bank.url("/v1/transfers"), body)?;
        let mut boxed = plain("bwrap");
        boxed
            .args(["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"])
            .args(["--unshare-user", "--unshare-pid", "--unshare-ipc"])
            .args(["--unshare-uts", "--new-session", "--die-with-parent"])
            .arg(curl.get_program())
            .args(curl.get_args());
        Ok(boxed)
    };
    let first = Client::Curl.answer(&fence.run("boxed", &pay(&order("alice", 100)?)?)?)?;
    assert_eq!(first.status, 201, "{}", first.body);
    fence.say(&["restored", "boxed"])?;
    let again = fence.run("boxed", &pay(&rewritten_order("alice", 100)?)?)?;
    assert_eq!(Client::Curl.answer(&again)?, first);
    assert_eq!(bank.payments(), 1);
    assert_eq!(fence.effects("boxed")?.len(), 1);
    Ok(())
}

/// The sandbox has a loopback interface of its own, and nothing else.
#[test]
fn a_sandbox_without_a_network_has_only_itself() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let (_service, port) = service("127.0.0.1")?;
    let script = format!(
        "bwrap --dev-bind / / --unshare-net --die-with-parent sh -c 'echo works; \
         curl --silent --max-time 20 --data x=1 http://127.0.0.1:{port}/; \
         curl --silent --max-time 20 --data x=1 http://10.99.99.99/; echo ended $?'"
    );
    let ended = fence.run("alone", &shell(&script))?;
    assert!(ended.ok(), "{}", ended.stderr);
    assert!(ended.stdout.starts_with("works\n"), "{}", ended.stdout);
    assert!(!ended.stdout.contains("ok"), "{}", ended.stdout);
    for effect in fence.effects("alone")? {
        assert_eq!(effect["status"], "failed", "{effect}");
    }
    Ok(())
}
