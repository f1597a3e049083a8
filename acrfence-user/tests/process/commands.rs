//! Commands that policy names.

use acrfence_user::words::{Body, Ending, ExecResponse, Request, Response};

use crate::gate::Gate;
use crate::judge::{Seen, Verdict};

/// Pays, says so on both outputs, and ends with 3.
const PAY: &str = "#!/bin/sh\necho paid $1 >> \"$(dirname \"$0\")/ledger\"\necho receipt $1\necho careful >&2\nexit 3\n";

/// Runs `pay 5` from the agent; gives output, error output and status.
fn pay(agent: &mut crate::fence::Puppet, gate: &Gate, extra: &str) -> serde_json::Value {
    let pay = gate.folder.path().join("pay");
    agent.ok(&format!(
        "(lambda r: [r.stdout.decode(), r.stderr.decode(), r.returncode])(subprocess.run(['{}', '5'], stdout=-1, stderr=-1{extra}))",
        pay.display()
    ))
}

fn response(seen: &Seen) -> ExecResponse {
    match seen.ending.clone().unwrap() {
        Ending::Response(Response::Exec(response)) => response,
        other => panic!("{other:?}"),
    }
}

fn ledger(gate: &Gate) -> usize {
    std::fs::read_to_string(gate.folder.path().join("ledger"))
        .unwrap_or_default()
        .lines()
        .count()
}

#[test]
fn a_command_is_recorded_replayed_and_refused() {
    let gate = Gate::new();
    gate.program("pay", PAY);
    let mut agent = gate.agent();
    let paid = serde_json::json!(["receipt 5\n", "careful\n", 3]);
    assert_eq!(
        pay(
            &mut agent,
            &gate,
            ", stdin=-3, env={'PAY_TO': 'bob', 'PATH': '/usr/bin:/bin'}"
        ),
        paid
    );
    let seen = gate.block_on(gate.judge.ended(1));
    let recorded = response(&seen[0]);
    assert_eq!(
        recorded,
        ExecResponse {
            exit: 3,
            stdout: Body::whole("receipt 5\n"),
            stderr: Body::whole("careful\n"),
        }
    );
    let Request::Exec(request) = &seen[0].call.request else {
        panic!("{:?}", seen[0].call);
    };
    let path = gate.folder.path().join("pay").display().to_string();
    assert_eq!(request.argv, [path, "5".to_owned()]);
    assert_eq!(request.env, [("PAY_TO".to_owned(), "bob".to_owned())]);
    assert_eq!(request.stdin, None);
    assert_eq!(ledger(&gate), 1);

    gate.judge.next(Verdict::Replay(Response::Exec(recorded)));
    assert_eq!(pay(&mut agent, &gate, ", stdin=-3"), paid);
    gate.judge.next(Verdict::Refuse);
    let refused = pay(&mut agent, &gate, ", stdin=-3");
    assert_eq!((&refused[0], &refused[2]), (&"".into(), &126.into()));
    assert!(
        refused[1].as_str().unwrap().contains("It differs"),
        "{refused}"
    );
    assert_eq!(ledger(&gate), 1);
    assert_eq!(gate.gated("command"), 3);
    assert!(gate.ungated().is_empty(), "{:?}", gate.ungated());
}

#[test]
fn what_it_reads_is_known_before_it_runs() {
    let gate = Gate::new();
    gate.program("pay", "#!/bin/sh\ncat\n");
    let mut agent = gate.agent();
    let got = pay(&mut agent, &gate, ", input=b'to: bob'");
    assert_eq!(got, serde_json::json!(["to: bob", "", 0]));
    // Longer than a pipe.
    let got = pay(&mut agent, &gate, ", input=b'x' * 300000");
    assert_eq!(got[0].as_str().unwrap().len(), 300_000);
    let seen = gate.block_on(gate.judge.ended(2));
    let stdin = |seen: &Seen| match &seen.call.request {
        Request::Exec(request) => request.stdin.clone().unwrap(),
        other => panic!("{other:?}"),
    };
    assert_eq!(stdin(&seen[0]), Body::whole("to: bob"));
    assert_eq!(stdin(&seen[1]).len, 300_000);
}

#[test]
fn a_shell_that_becomes_the_command_is_gated_for_it() {
    let gate = Gate::new();
    gate.program("pay", PAY);
    let mut agent = gate.agent();
    // The shell's own pipes are relayed, and it then executes the command in its own process.
    let path = gate.folder.path().join("pay");
    let got = agent.ok(&format!(
        "(lambda r: [r.stdout.decode(), r.returncode])(subprocess.run('exec {} 7', shell=True, input=b'', capture_output=True))",
        path.display()
    ));
    assert_eq!(got, serde_json::json!(["receipt 7\n", 3]));
    assert_eq!(gate.gated("stdio"), 1);
    assert_eq!(gate.gated("command"), 1);
    assert_eq!(
        response(&gate.block_on(gate.judge.ended(1))[0]).stdout,
        Body::whole("receipt 7\n")
    );
}

#[test]
fn output_into_files_and_nowhere() {
    let gate = Gate::new();
    gate.program("pay", PAY);
    let mut agent = gate.agent();
    let path = gate.folder.path().join("pay");
    agent.ok(&format!(
        "subprocess.run('{0} 8 >> {0}.out 2>&1; {0} 9 > /dev/null', shell=True, stdin=-3, stderr=-3).returncode",
        path.display()
    ));
    let seen = gate.block_on(gate.judge.ended(2));
    assert_eq!(
        response(&seen[0]).stdout,
        Body::whole("receipt 8\ncareful\n")
    );
    assert_eq!(response(&seen[0]).stderr, Body::empty());
    assert_eq!(response(&seen[1]).stdout, Body::empty());
    let out = std::fs::read_to_string(gate.folder.path().join("pay.out")).unwrap();
    assert_eq!(out, "receipt 8\ncareful\n");
}

#[test]
fn a_terminal_is_left_alone_and_its_command_not_played_back() {
    let gate = Gate::new();
    gate.program("pay", "#!/bin/sh\ntest -t 1 && echo at a terminal\n");
    let mut agent = gate.agent();
    let path = gate.folder.path().join("pay");
    let got = agent.ok(&format!(
        "(lambda m, s: (subprocess.run(['{}'], stdin=s, stdout=s, stderr=s), __import__('os').close(s), __import__('os').read(m, 100).decode())[2])(*__import__('os').openpty())",
        path.display()
    ));
    assert_eq!(got, "at a terminal\r\n");
    let seen = gate.block_on(gate.judge.ended(1));
    assert_eq!(response(&seen[0]).exit, 0);
    assert!(!Response::Exec(response(&seen[0])).is_whole());
}

#[test]
fn a_command_that_a_signal_ends_is_in_doubt() {
    let gate = Gate::new();
    gate.program("pay", "#!/bin/sh\necho half; kill -TERM $$\n");
    let mut agent = gate.agent();
    let got = pay(&mut agent, &gate, ", stdin=-3");
    assert_eq!(got, serde_json::json!(["half\n", "", -15]));
    let seen = gate.block_on(gate.judge.ended(1));
    let Ending::Broken { why, partial } = seen[0].ending.clone().unwrap() else {
        panic!("{:?}", seen[0].ending);
    };
    assert_eq!(why, "signal 15 ended it");
    let Some(Response::Exec(partial)) = partial else {
        panic!("nothing of it is known");
    };
    assert_eq!((partial.exit, partial.stdout), (143, Body::whole("half\n")));
}

#[test]
fn a_grandchild_that_keeps_the_pipe_does_not_keep_the_record_back() {
    let gate = Gate::new();
    gate.program(
        "pay",
        "#!/bin/sh\n(read x < \"$0.go\"; echo later) &\necho now\n",
    );
    let fifo = gate.folder.path().join("pay.go");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut agent = gate.agent();
    let path = gate.folder.path().join("pay");
    agent.ok(&format!(
        "globals().update(p=subprocess.Popen(['{}'], stdin=-3, stdout=-1)) or p.wait()",
        path.display()
    ));
    let seen = gate.block_on(gate.judge.ended(1));
    assert_eq!(response(&seen[0]).stdout, Body::whole("now\n"));
    std::fs::write(&fifo, "go\n").unwrap();
    assert_eq!(agent.ok("p.stdout.read().decode()"), "now\nlater\n");
}
