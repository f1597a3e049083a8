//! Commands typed into an interactive shell: its jobs cannot be stopped.

use acrfence_user::boundary::process::gate::Ungated;
use acrfence_user::probe::GateWhy;
use acrfence_user::words::{Ending, ExecResponse, Request, Response};

use crate::fence::Puppet;
use crate::gate::Gate;

/// Lets the agent open a terminal with an interactive shell. `typed(line)` gives what the screen says up
/// to the next prompt.
fn open_terminal(agent: &mut Puppet) {
    let code = r#"
import os, pty, select
pid, terminal = pty.fork()
if pid == 0:
    os.execve('/bin/bash', ['bash', '--norc', '--noprofile', '--noediting', '-i'], {'PATH': '/usr/bin:/bin', 'PS1': 'PROMPT> ', 'TERM': 'dumb'})
def until_prompt():
    global seen
    while b'PROMPT> ' not in seen:
        if not select.select([terminal], [], [], 60)[0]:
            raise TimeoutError(seen)
        seen += os.read(terminal, 65536)
    # What nobody typed may stand behind it.
    said, _, seen = seen.partition(b'PROMPT> ')
    return said.decode()
def typed(line):
    os.write(terminal, line.encode() + b'\n')
    return until_prompt()
seen = b''
until_prompt()
"#;
    agent.ok(&format!("exec({code:?}, globals()) or 1"));
}

fn typed(agent: &mut Puppet, line: &str) -> String {
    let line = serde_json::to_string(line).unwrap();
    let screen = agent.ok(&format!("typed({line})"));
    screen.as_str().unwrap().to_owned()
}

#[test]
fn it_runs_and_is_recorded() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\necho paid $1\nexit 3\n");
    let mut agent = gate.agent();
    open_terminal(&mut agent);
    let screen = typed(&mut agent, &format!("{} 7; echo status $?", pay.display()));
    assert!(
        screen.contains("paid 7\r\n") && screen.contains("status 3"),
        "{screen}"
    );
    assert!(!screen.contains("Stopped"), "{screen}");
    let seen = gate.block_on(gate.judge.ended(1));
    let Request::Exec(command) = &seen[0].call.request else {
        panic!("{:?}", seen[0].call.request);
    };
    assert_eq!(command.argv, [pay.display().to_string(), "7".to_owned()]);
    // What went to the terminal is nobody's to play back.
    let Some(Ending::Response(Response::Exec(ExecResponse { exit, stdout, .. }))) = &seen[0].ending
    else {
        panic!("{:?}", seen[0].ending);
    };
    assert_eq!(*exit, 3);
    assert!(!stdout.is_whole());
    assert_eq!(gate.ungated().get("job_control"), Some(&1));
    assert!(gate.judge.unasked().is_empty());
}

#[test]
fn it_is_refused_where_the_kernel_was_told_to() {
    let gate = Gate::new();
    let pay = gate.program("pay", "#!/bin/sh\ntouch \"$0.ran\"\n");
    let mut agent = gate.agent();
    open_terminal(&mut agent);
    gate.probe
        .gate_agent(1, GateWhy::ALL | GateWhy::REFUSE_JOBS)
        .unwrap();
    let line = format!("{} '\u{1b}[2Jseven'; echo status $?", pay.display());
    let mut screen = typed(&mut agent, &line);
    let denies = gate.probe.denies_exec();
    let status = if denies { "status 126" } else { "status 137" };
    assert!(screen.contains(status), "{screen}");
    // The word of ours comes when the shell has long gone on.
    while !screen.contains("ACRFence: ") {
        screen = typed(&mut agent, "true");
    }
    assert!(screen.contains("was not run"), "{screen}");
    assert!(screen.contains("acrfence fork agent"), "{screen}");
    assert!(!screen.contains("\u{1b}[2J"), "{screen:?}");
    assert!(!pay.with_extension("ran").exists());
    let unasked = gate.judge.unasked();
    assert!(unasked[0].refused, "{unasked:?}");
    assert_eq!(unasked[0].origin.argv[0], pay.display().to_string());
    assert_eq!(gate.ungated().get("job_control_and_refused"), Some(&1));

    // What no rule can mean runs, whatever the program's name; what is not typed is asked about.
    let git = gate.program("git", "#!/bin/sh\necho said $*\n");
    let screen = typed(&mut agent, &format!("{} status", git.display()));
    assert!(screen.contains("said status"), "{screen}");
    let screen = typed(&mut agent, &format!("{} push; echo", git.display()));
    assert!(!screen.contains("said push"), "{screen}");
    let line = format!("sh -c '{} push; exit $?'", git.display());
    let screen = typed(&mut agent, &line);
    assert!(screen.contains("said push"), "{screen}");
    let seen = gate.block_on(gate.judge.ended(1));
    assert!(matches!(&seen[0].call.request, Request::Exec(c) if c.argv[1] == "push"));
    gate.probe.gate_agent(1, GateWhy::ALL).unwrap();
    let screen = typed(&mut agent, &format!("{} push", git.display()));
    assert!(screen.contains("said push"), "{screen}");
    assert_eq!(gate.probe.at_gate().unwrap(), []);
}

#[test]
fn it_is_refused_where_nothing_may_run_ungated() {
    let gate = Gate::with(|settings| settings.ungated = Ungated::Refuse);
    let pay = gate.program("pay", "#!/bin/sh\ntouch \"$0.ran\"\n");
    let mut agent = gate.agent();
    open_terminal(&mut agent);
    let mut screen = typed(&mut agent, &pay.display().to_string());
    while !screen.contains("ACRFence: ") {
        screen = typed(&mut agent, "true");
    }
    assert!(screen.contains("gate.ungated"), "{screen}");
    assert!(!pay.with_extension("ran").exists());
}
