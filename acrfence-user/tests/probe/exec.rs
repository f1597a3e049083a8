//! Program starts: what is told about them, and what must not be.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

use acrfence_user::probe::{Execution, What};

use crate::fence::{EventsExt as _, Fence};

/// Runs `code` in an agent; gives the programs it started.
fn executions(fence: &Fence, code: &str) -> Vec<Execution> {
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    agent.ok(code);
    fence.probe().drain();
    std::iter::from_fn(|| events.try_event())
        .filter_map(|event| match event.what {
            What::Executed(execution) => Some(*execution),
            _ => None,
        })
        .collect()
}

fn fence() -> Fence {
    Fence::with(|settings| settings.env_allow = vec!["HOME".into(), "LC_*".into(), "LAST".into()])
}

#[test]
fn arguments_are_told_and_only_allow_listed_variables() {
    let fence = fence();
    let started = executions(
        &fence,
        "run(['sh', '-c', 'exit 0', 'a b', '', 'ü'], \
         {'HOME': '/nowhere', 'LC_ALL': 'C', 'AWS_SECRET_ACCESS_KEY': 'hush'}, '/bin/sh')",
    );
    assert_eq!(started.len(), 1);
    let sh = &started[0];
    assert_eq!(sh.filename, "/bin/sh");
    assert_eq!(sh.argv, ["sh", "-c", "exit 0", "a b", "", "ü"]);
    assert!(!sh.argv_truncated && !sh.env_truncated);
    let env: Vec<_> = sh.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
    assert_eq!(env, ["HOME=/nowhere", "LC_ALL=C"]);
    assert_eq!(sh.uid, 0);
    let kept = format!("{:?}", fence.probe().processes(1));
    assert!(kept.contains("/nowhere") && !kept.contains("hush"));
}

#[test]
fn long_ones_are_cut_and_said_to_be_cut() {
    let fence = fence();
    // Longer than what the small record holds, then longer than any record holds.
    let started = executions(
        &fence,
        "[run(['/bin/true', 'x' * 5000], {'LAST': 'y' * 20000}), \
          run(['/bin/true', 'x' * 20000], {'A': 'z' * 60000, 'LAST': 'y'})]",
    );
    assert_eq!(started.len(), 2);
    assert_eq!(started[0].argv[1].len(), 5000);
    assert!(!started[0].argv_truncated && !started[0].env_truncated);
    assert_eq!(started[0].env["LAST"].len(), 20000);
    assert!(started[1].argv_truncated && started[1].env_truncated);
    assert!(started[1].argv[1].len() > 8000);
    assert!(!started[1].env.contains_key("LAST"));
}

#[test]
fn what_was_cut_is_read_whole_while_the_process_runs() {
    let fence = fence();
    let mut agent = fence.agent();
    agent.start("run(['/bin/sh', '-c', 'read x', 'x' * 20000], {'A': 'z' * 60000, 'LAST': 'y'})");
    let process = crate::fence::wait_for_some("the program to start", || {
        let processes = fence.probe().processes(1);
        processes
            .into_iter()
            .find(|p| p.argv.get(2).is_some_and(|a| a == "read x"))
    });
    assert_eq!(process.argv[3].len(), 20000);
    assert!(!process.argv_truncated && !process.env_truncated);
    assert_eq!(process.env["LAST"], "y");
    assert!(process.exe.starts_with('/') && process.cwd.starts_with('/'));
    assert_eq!(process.parent.unwrap().tgid, agent.pid());
    let group = fence.place.cgroup.file_name().unwrap().to_str().unwrap();
    assert!(process.cgroup.ends_with(group), "{}", process.cgroup);
}

#[test]
fn programs_that_cannot_be_started_are_not_reported() {
    let fence = fence();
    let started = executions(&fence, "run(['/nonexistent/program', 'x'])");
    assert!(started.is_empty());
}

#[test]
fn exec_by_a_thread_keeps_the_identity() {
    let fence = fence();
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    let status = agent.ok("exec_by_thread(['/bin/sh', '-c', 'exit 5'])");
    assert_eq!(status, 5 << 8);
    fence.probe().drain();
    let all: Vec<_> = std::iter::from_fn(|| events.try_event()).collect();
    let born = all
        .iter()
        .find(|e| matches!(e.what, What::Born { .. }))
        .unwrap();
    let exec = all
        .iter()
        .find(|e| matches!(e.what, What::Executed(_)))
        .unwrap();
    let exit = all
        .iter()
        .find(|e| matches!(e.what, What::Exited { .. }))
        .unwrap();
    assert_eq!(born.process, exec.process);
    assert_eq!(born.process, exit.process);
}

#[test]
fn where_a_program_began_is_told_when_it_is_long_gone() {
    let fence = fence();
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().canonicalize().unwrap();
    let script = dir.join("script");
    std::fs::write(&script, "#!/bin/sh\nexit 0\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut agent = fence.agent();
    let mut events = fence.probe().events();
    // Each is gone before anybody looks. A file system of its own lies in the middle of the path.
    agent.ok(&format!(
        "run_in('{0}', ['/bin/true', 'here']), run_in('/', ['/bin/true', 'root']), \
         run_in('{0}', ['{0}/script']), run_in_removed('{0}/gone', ['/bin/true', 'removed']), \
         run_mounted('{0}/mounted', 'a/b', ['/bin/true', 'mounted'])",
        dir.display()
    ));
    fence.probe().drain();
    let started: Vec<Execution> = std::iter::from_fn(|| events.try_event())
        .filter_map(|event| match event.what {
            What::Executed(execution) => Some(*execution),
            _ => None,
        })
        .collect();
    let begun = |word: &str| {
        let found = started.iter().find(|e| e.argv.iter().any(|a| a == word));
        found.unwrap_or_else(|| panic!("{word} in {started:#?}"))
    };
    let at = |name: &str| Some(dir.join(name).display().to_string());
    assert_eq!(begun("here").cwd, Some(dir.display().to_string()));
    assert_eq!(begun("root").cwd.as_deref(), Some("/"));
    assert_eq!(
        begun("removed").cwd,
        Some(format!("{} (deleted)", dir.join("gone").display()))
    );
    assert_eq!(begun("mounted").cwd, at("mounted/a/b"));
    let program = |path: &str| Some(std::fs::canonicalize(path).unwrap().display().to_string());
    assert_eq!(begun("here").exe, program("/bin/true"));
    assert_eq!(begun(&script.display().to_string()).exe, program("/bin/sh"));
    let own = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    assert_eq!(begun("here").netns, Some(own));
}

#[test]
fn a_place_too_deep_for_the_kernels_report_is_looked_up() {
    let fence = fence();
    let dir = tempfile::tempdir().unwrap();
    let deep = dir.path().canonicalize().unwrap().join("d/".repeat(60));
    let long = dir.path().canonicalize().unwrap().join("n".repeat(250));
    let long = (0..4).fold(long, |path, _| path.join("n".repeat(250)));
    for (dir, name) in [(deep, "deep"), (long, "long")] {
        std::fs::create_dir_all(&dir).unwrap();
        let mut agent = fence.agent();
        agent.start(&format!(
            "run_in('{}', ['/bin/sh', '-c', 'read x', '{name}'])",
            dir.display()
        ));
        let process = crate::fence::wait_for_some("the program to start", || {
            let processes = fence.probe().processes(1);
            let is = |p: &acrfence_user::probe::Process| p.argv.get(3).is_some_and(|a| a == name);
            processes.into_iter().find(is)
        });
        assert_eq!(
            process.cwd,
            dir.display().to_string().trim_end_matches('/'),
            "{name}"
        );
    }
}
