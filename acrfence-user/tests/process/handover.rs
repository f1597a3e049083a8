//! `acrfence mcp -- SERVER`, for where exec cannot be gated.

use acrfence_user::boundary::process::gate::Door;
use acrfence_user::probe::GateWhy;

use crate::fence::Puppet;
use crate::gate::Gate;
use crate::judge::{Verdict, mcp};

const SERVER: &str = r#"#!/usr/bin/python3 -I
import sys, json, os
for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "end":
        sys.exit(7)
    if message.get("method") == "die":
        os.kill(os.getpid(), 9)
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {}}) + "\n")
    sys.stdout.flush()
"#;

/// Starts `acrfence mcp ARGUMENTS -- server` from the agent, as `s`.
fn start(gate: &Gate, agent: &mut Puppet, arguments: &[&str]) {
    let server = gate.program("server", SERVER).display().to_string();
    let socket = gate.folder.path().join("door").display().to_string();
    let mut all = vec!["--socket", &socket];
    all.extend_from_slice(arguments);
    all.extend(["--", &server, "--bank"]);
    let program = env!("CARGO_BIN_EXE_acrfence");
    agent.ok(&format!(
        "globals().update(s=subprocess.Popen(['{program}', 'mcp', *{}], stdin=-1, stdout=-1, stderr=-1)) or 1",
        serde_json::to_string(&all).unwrap()
    ));
    agent.ok("globals().update(tell=lambda line: (s.stdin.write((line + '\\n').encode()), s.stdin.flush())[1], ask=lambda line: (tell(line), s.stdout.readline().decode())[1]) or 1");
}

const HELLO: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}"#;
const CALL: &str =
    r#"{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"pay","arguments":{}}}"#;

#[test]
fn a_server_behind_the_relay_is_fenced_and_ends_as_it_would() {
    let gate = Gate::new();
    let _door = Door::open(&gate.folder.path().join("door"), &gate.keeper).unwrap();
    for (end, code) in [("end", 7), ("die", -9)] {
        let mut agent = gate.agent_for(0);
        start(&gate, &mut agent, &[]);
        assert_eq!(
            agent.ok(&format!("ask('{HELLO}')")),
            "{\"jsonrpc\": \"2.0\", \"id\": 0, \"result\": {}}\n"
        );
        agent.ok(&format!("ask('{CALL}')"));
        gate.judge.next(Verdict::Refuse);
        let refused = agent.ok(&format!("ask('{CALL}')"));
        assert!(
            refused.as_str().unwrap().contains("It differs"),
            "{refused}"
        );
        agent.ok(&format!(
            "tell('{{\"jsonrpc\":\"2.0\",\"method\":\"{end}\"}}') or 1"
        ));
        assert_eq!(
            agent.ok("[s.stdout.read().decode(), s.wait()]"),
            serde_json::json!(["", code])
        );
        let seen = gate.judge.seen();
        let last = seen.last().unwrap();
        let server = gate.folder.path().join("server");
        assert_eq!(mcp(last).0, format!("{} --bank", server.display()));
        assert_eq!(last.call.origin.process.tgid, agent.pid());
        gate.probe.untrack(1).unwrap();
    }
    assert_eq!(gate.gated("handed_over"), 2);
}

#[test]
fn the_gate_and_the_relay_do_not_fence_a_call_twice() {
    let gate = Gate::new();
    let _door = Door::open(&gate.folder.path().join("door"), &gate.keeper).unwrap();
    let mut agent = gate.agent_for(GateWhy::STDIO);
    start(&gate, &mut agent, &[]);
    agent.ok(&format!("ask('{HELLO}')"));
    agent.ok(&format!("ask('{CALL}')"));
    assert_eq!(gate.block_on(gate.judge.ended(1)).len(), 1);
    assert_eq!(gate.gated("stdio"), 0);
    assert_eq!(
        agent.ok("[s.stdin.close(), s.stdout.read().decode(), s.wait()]"),
        serde_json::json!([null, "", 0])
    );
}

#[test]
fn signals_reach_the_server() {
    let gate = Gate::new();
    let _door = Door::open(&gate.folder.path().join("door"), &gate.keeper).unwrap();
    let mut agent = gate.agent_for(0);
    start(&gate, &mut agent, &[]);
    agent.ok(&format!("ask('{HELLO}')"));
    assert_eq!(
        agent.ok("[s.terminate(), s.stdout.read().decode(), s.wait()]"),
        serde_json::json!([null, "", -15])
    );
}

#[test]
fn without_a_daemon_or_an_agent_the_server_does_not_start() {
    let gate = Gate::new();
    let mut agent = gate.agent_for(0);
    start(&gate, &mut agent, &[]);
    let end = agent.ok("[s.stdout.read().decode(), s.wait(), s.stderr.read().decode()]");
    assert_eq!((&end[0], &end[1]), (&"".into(), &1.into()));
    assert!(
        end[2]
            .as_str()
            .unwrap()
            .contains("the daemon cannot be reached"),
        "{end}"
    );
    // Told to, it runs all the same.
    start(&gate, &mut agent, &["--unfenced", "run"]);
    assert!(
        agent
            .ok(&format!("ask('{CALL}')"))
            .as_str()
            .unwrap()
            .contains("result")
    );
    agent.ok("[s.stdin.close(), s.stdout.read().decode(), s.wait()]");
    assert!(gate.judge.seen().is_empty());

    let _door = Door::open(&gate.folder.path().join("door"), &gate.keeper).unwrap();
    gate.probe.untrack(1).unwrap();
    start(&gate, &mut agent, &[]);
    let end = agent.ok("[s.stdout.read().decode(), s.wait(), s.stderr.read().decode()]");
    assert!(
        end[2].as_str().unwrap().contains("belongs to no agent"),
        "{end}"
    );
}
