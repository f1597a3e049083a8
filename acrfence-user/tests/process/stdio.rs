//! Programs whose input and output are pipes.

use crate::gate::Gate;
use crate::judge::{Verdict, mcp};

#[test]
fn an_ordinary_command_notices_nothing() {
    let gate = Gate::new();
    let mut agent = gate.agent();
    let got = agent.ok("(lambda r: [r.stdout.decode(), r.stderr.decode(), r.returncode])(subprocess.run(['sh', '-c', 'tr a-z A-Z; echo bad >&2; exit 3'], input=b'hello', capture_output=True))");
    assert_eq!(got, serde_json::json!(["HELLO", "bad\n", 3]));
    assert_eq!(gate.gated("stdio"), 1);
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
}

/// A server that echoes tool calls and says in which process it runs.
const SERVER: &str = r#"#!/usr/bin/python3 -I
import sys, json
for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = {"echo": message.get("params")}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}) + "\n")
        sys.stdout.flush()
"#;

/// Starts the server from the agent, as `s`.
fn started(gate: &Gate, agent: &mut crate::fence::Puppet) {
    let server = gate.program("server", SERVER);
    agent.ok(&format!(
        "globals().update(s=subprocess.Popen(['{}', '--bank', 'a b'], stdin=-1, stdout=-1)) or 1",
        server.display()
    ));
    agent.ok("globals().update(ask=lambda line: (s.stdin.write((line + '\\n').encode()), s.stdin.flush(), s.stdout.readline().decode())[2]) or 1");
    let hello = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
    let answer = agent.ok(&format!("ask('{hello}')"));
    assert!(answer.as_str().unwrap().contains("\"id\": 0"), "{answer}");
}

const CALL: &str = r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{"amount":5},"_meta":{"claudecode/toolUseId":"toolu_1"}}}"#;

#[test]
fn calls_to_a_server_are_fenced_without_any_configuration() {
    let gate = Gate::new();
    let mut agent = gate.agent();
    started(&gate, &mut agent);
    let answer = agent.ok(&format!("ask('{CALL}')"));
    assert!(
        answer.as_str().unwrap().contains("\"amount\": 5"),
        "{answer}"
    );
    let seen = gate.block_on(gate.judge.ended(1));
    let (server, name, arguments) = mcp(&seen[0]);
    // The kernel puts a script's interpreter before it.
    let path = gate.folder.path().join("server");
    assert_eq!(
        server,
        format!("/usr/bin/python3 -I {} --bank 'a b'", path.display())
    );
    assert_eq!(
        (name.as_str(), arguments.as_str()),
        ("pay", r#"{"amount":5}"#)
    );
    assert_eq!(seen[0].call.origin.process.tgid, agent.pid());
    let inside = agent.ok("s.pid").as_u64().unwrap();
    assert_eq!(u64::from(seen[0].inside.unwrap().tgid), inside);

    gate.judge.next(Verdict::Refuse);
    let answer = agent.ok(&format!("ask('{CALL}')"));
    assert!(
        answer
            .as_str()
            .unwrap()
            .contains("It differs from what was done"),
        "{answer}"
    );
    let code = agent.ok("(s.stdin.close(), s.stdout.read().decode(), s.wait())[1:]");
    assert_eq!(code, serde_json::json!(["", 0]));
}

#[test]
fn a_server_that_is_killed_looks_killed() {
    let gate = Gate::new();
    let mut agent = gate.agent();
    started(&gate, &mut agent);
    let code = agent.ok("(s.kill(), s.stdout.read().decode(), s.wait())[1:]");
    assert_eq!(code, serde_json::json!(["", -9]));
}

#[test]
fn the_environment_reaches_children_that_were_given_none() {
    let gate = Gate::new();
    let mut agent = gate.agent();
    let env = "(lambda e: [e.get('ACRFENCE'), e.get('SSL_CERT_FILE'), e.get('PATH')])(dict(l.split('=', 1) for l in subprocess.run(['env'], stdout=-1, stdin=-3, env=ENV).stdout.decode().splitlines()))";
    let got = agent.ok(&env.replace("ENV", "{'PATH': '/usr/bin:/bin'}"));
    let bundle = gate.folder.path().join("bundle.pem");
    assert_eq!(got, serde_json::json!(["1", bundle, "/usr/bin:/bin"]));
    // What it has stays.
    let got = agent.ok(&env.replace("ENV", "{'PATH': '/usr/bin:/bin', 'SSL_CERT_FILE': '/own'}"));
    assert_eq!(got[1], "/own");
    assert_eq!(gate.gated("environment"), 2);
    // Its children inherit it, and are not stopped for it again.
    let got = agent.ok("subprocess.run(['sh', '-c', 'env; true'], stdout=-1, stdin=-3, env={'PATH': '/usr/bin:/bin'}).stdout.decode()");
    assert!(got.as_str().unwrap().contains("SSL_CERT_FILE"), "{got}");
    assert_eq!(gate.gated("environment"), 3);
}

#[test]
fn a_pipeline_of_a_shell_is_not_gated() {
    let gate = Gate::new();
    let mut agent = gate.agent_for(acrfence_user::probe::GateWhy::STDIO);
    let got = agent.ok(
        "subprocess.run('echo a | cat | cat', shell=True, stdout=-1, stdin=-3).stdout.decode()",
    );
    assert_eq!(got, "a\n");
    // What inherits its parent's pipes has none of its own.
    let got = agent.ok("subprocess.run(['python3', '-c', 'import subprocess; subprocess.run([\"cat\"])'], input=b'x', stdout=-1).stdout.decode()");
    assert_eq!(got, "x");
    assert_eq!(gate.gated("stdio"), 1);
}
