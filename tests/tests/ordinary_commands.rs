//! What is nobody's business behaves under the exec gate as without it: the same words, the same
//! statuses, the same screen.

use std::path::Path;

use acrfence_tests::attached::{Attached, Ran};
use acrfence_tests::authority::Authority;
use acrfence_tests::client::{bare_python, plain};
use acrfence_tests::fence::Fence;
use acrfence_tests::process::run;
use acrfence_tests::rounds;
use anyhow::{Context as _, Result, ensure};

/// Runs a command twice: by an agent that nobody attached to, and by one that somebody did. Both
/// start in a folder of their own that `prepare` filled.
fn same(fence: &Fence, prepare: &str, command: &str) -> Result<Ran> {
    let bare = bare_python("shell_agent.py", &[])?;
    let mut without = Attached::start(fence, bare)?;
    let mut with = Attached::with_shell(fence, "ordinary")?;
    let mut runs = Vec::new();
    for agent in [&mut without, &mut with] {
        let dir = tempfile::tempdir()?;
        let mut shell = plain("/bin/sh");
        shell.args(["-ec", prepare]).current_dir(dir.path());
        let prepared = run("the preparation", &mut shell)?;
        ensure!(prepared.ok(), "{}{}", prepared.stdout, prepared.stderr);
        let place = dir.path().display().to_string();
        let mut ran = agent.sh(&format!("cd {place}\n{command}"))?;
        for text in [&mut ran.stdout, &mut ran.stderr] {
            *text = text.replace(&place, "HERE");
        }
        runs.push(ran);
    }
    assert_eq!(runs[0], runs[1], "without the fence and with it");
    assert!(fence.effects("ordinary")?.is_empty());
    with.kill()?;
    runs.pop().context("it ran")
}

const REPOSITORY: &str = "git init --quiet --initial-branch main .
    git config user.name tester
    git config user.email tester@example.invalid
    for i in 1 2 3; do GIT_COMMITTER_DATE=2001-02-03T04:05:0${i}Z git commit --quiet --allow-empty --date 2001-02-03T04:05:0${i}Z --message work-$i; done";

#[test]
fn many_short_commands() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let count = rounds(1000);
    let script = format!(
        "for i in $(seq {count}); do /bin/true || echo bad; done; \
         for i in $(seq {count}); do x=$(/bin/echo $i) && test $x = $i || echo bad $i; done; \
         for i in $(seq 200); do (exit $((i % 50))); test $? = $((i % 50)) || echo bad; done; echo done"
    );
    assert_eq!(same(&fence, "true", &script)?.stdout, "done\n");
    Ok(())
}

/// The children of Python have pipes of their own and an environment without our variables: each of
/// them stands at the gate.
#[test]
fn many_short_commands_that_are_gated() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let script = format!(
        "python3 -Ic 'import subprocess
out = [subprocess.run([\"/bin/cat\"], input=str(i).encode(), stdout=-1, stderr=-1, env={{}}) for i in range({})]
print(all(ran.stdout == str(i).encode() and ran.returncode == 0 for i, ran in enumerate(out)))'",
        rounds(1000)
    );
    assert_eq!(same(&fence, "true", &script)?.stdout, "True\n");
    let status = fence.ask(&["status"])?;
    let relayed = status[0]["gate"]["gated"]["stdio"].as_u64().unwrap_or(0);
    assert!(relayed >= rounds(1000) as u64, "{status:?}");
    Ok(())
}

#[test]
fn make_with_many_jobs() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let prepare = r#"{
        echo 'all: $(shell seq -f t%g 100)'
        echo 't%:; @test -n "$(MAKEFLAGS)" && echo made > $@'
        echo 'fails:; @exit 3'
        } > Makefile"#;
    let ran = same(
        &fence,
        prepare,
        "make -s -j 8 all && cat t* | sort | uniq -c; make -s -j 8 fails",
    )?;
    assert_eq!((ran.status, ran.stdout.trim()), (2, "100 made"), "{ran:?}");
    Ok(())
}

#[test]
fn a_cargo_build() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let prepare = r#"mkdir src
        printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n' > Cargo.toml
        printf 'fn main() { println!("built: {}", env!("WHEN")); }\n' > src/main.rs
        printf 'fn main() { println!("cargo:rustc-env=WHEN=now"); }\n' > build.rs"#;
    let cargo = Path::new(env!("CARGO")).display();
    let command =
        format!("{cargo} build --offline --quiet --target-dir target && ./target/debug/small");
    let ran = same(&fence, prepare, &command)?;
    assert_eq!(
        (ran.status, ran.stdout.as_str()),
        (0, "built: now\n"),
        "{ran:?}"
    );
    Ok(())
}

#[test]
fn a_terminal_with_job_control() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs/terminal.py");
    let command = format!("/usr/bin/python3 -B {} .", program.display());
    let ran = same(&fence, REPOSITORY, &command)?;
    assert_eq!(ran.status, 0, "{ran:?}");
    for stood in ["status 7", "Stopped", "status 130", "work-3", "exit 5"] {
        assert!(ran.stdout.contains(stood), "{stood}: {}", ran.stdout);
    }
    Ok(())
}

#[test]
fn a_tmux_session() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let script = r#"tmux() { command tmux -f /dev/null -S ./socket "$@"; }
        tmux new-session -d -x 80 -y 24 'env PS1="> " bash --norc --noprofile -i'
        type() { tmux send-keys "$1; tmux -S ./socket wait-for -S typed" Enter; tmux wait-for typed; }
        type 'echo one | tr o 0'
        type '/bin/sh -c "exit 9"; echo status $?'
        type 'git log --oneline | wc -l'
        tmux split-window -d 'sleep 1000'
        tmux list-panes -F '#{pane_index} #{pane_dead}'
        tmux capture-pane -p | grep -v wait-for | grep .
        tmux kill-server"#;
    let ran = same(&fence, REPOSITORY, script)?;
    assert_eq!(ran.status, 0, "{ran:?}");
    assert!(ran.stdout.contains("status 9"), "{ran:?}");
    Ok(())
}

#[test]
fn a_pager_behind_a_pipe() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let ran = same(
        &fence,
        REPOSITORY,
        "git log --oneline | less | tail -n 1; echo ${PIPESTATUS[@]}",
    )?;
    assert!(ran.stdout.contains("work-1\n0 0 0"), "{ran:?}");
    Ok(())
}

#[test]
fn background_jobs_signals_and_redirections() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let script = r#"sleep 1000 & kill -TERM $!; wait $!; echo killed $?
        trap 'echo caught' USR1; kill -USR1 $$; echo after
        (echo out; echo err >&2) > file 2>&1; cat file
        yes | head -n 3; echo ${PIPESTATUS[@]}
        timeout 0.2 sleep 1000; echo timed out $?
        setsid sh -c 'echo detached' | cat
        /nonexistent; echo missing $?
        cat < /dev/null | wc -c"#;
    let ran = same(&fence, "true", script)?;
    for line in [
        "killed 143",
        "caught",
        "141 0",
        "timed out 124",
        "missing 127",
    ] {
        assert!(ran.stdout.contains(line), "{line}: {ran:?}");
    }
    Ok(())
}
