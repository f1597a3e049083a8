//! The second line: what must not run and cannot be stopped is denied where the kernel has LSM, and killed
//! before its first instruction elsewhere.

use acrfence_user::boundary::process::gate::Ungated;

use crate::gate::Gate;

/// `cargo xtask kernels` sets the variable where it knows what the kernel must be able to do.
#[test]
fn it_is_there_where_it_must_be() {
    let gate = Gate::new();
    match std::env::var("ACRFENCE_EXPECT_LSM").as_deref() {
        Ok("1") => assert!(gate.probe.denies_exec()),
        Ok(_) => assert!(!gate.probe.denies_exec()),
        Err(_) => {}
    }
}

#[test]
fn who_is_traced_does_not_run_where_policy_refuses_it() {
    let gate = Gate::with(|settings| settings.ungated = Ungated::Refuse);
    let pay = gate.program("pay", "#!/bin/sh\ntouch \"$0.ran\"\n");
    let git = gate.program("git", "#!/bin/sh\ntouch \"$0.$1\"\n");
    let mut agent = gate.agent();
    // A debugger in the agent's own tree.
    let mut traced = |line: String| {
        agent.ok(&format!(
            "subprocess.run('strace -f -o /dev/null {line}'.split(), stdin=-3, stdout=-1, stderr=-2, env={{'ACRFENCE': '1', 'PATH': '/usr/bin:/bin'}}).returncode"
        ))
    };
    let status = traced(pay.display().to_string());
    if gate.probe.denies_exec() {
        assert_eq!(status, 1);
    } else {
        assert_eq!(status, -9);
    }
    assert!(!pay.with_extension("ran").exists());
    assert_ne!(traced(format!("{} push", git.display())), 0);
    assert!(!git.with_extension("push").exists());
    // No rule means this one, so nothing is wrong with it.
    assert_eq!(traced(format!("{} status", git.display())), 0);
    assert!(git.with_extension("status").exists());
    while gate.judge.unasked().len() < 2 {
        std::thread::yield_now();
    }
    let unasked = gate.judge.unasked();
    assert!(unasked.iter().all(|one| one.refused && one.why == "traced"));
    assert_eq!(
        unasked[1].origin.argv,
        [git.display().to_string(), "push".to_owned()]
    );
    assert_eq!(gate.ungated().get("traced_and_refused"), Some(&2));
}
