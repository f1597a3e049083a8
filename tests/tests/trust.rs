//! The local certificate authority over its life: does an agent work through a rotation, or learn what
//! to do?

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order};
use acrfence_tests::client::{Client, bare_python, plain};
use acrfence_tests::fence::{Fence, acrfence};
use acrfence_tests::process::Running;
use anyhow::{Context as _, Result};

const TRANSFERS: &str = "/v1/transfers";

fn state(fence: &Fence) -> String {
    let state = fence.place().scratch().join("state");
    state.to_string_lossy().into_owned()
}

#[test]
fn an_agent_that_runs_over_a_rotation_works_or_is_told_what_to_do() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start(&authority)?;
    let url = bank.url(TRANSFERS);
    let steady = bare_python("steady.py", &[&url])?;
    let mut steady = Running::start("steady", &mut fence.launch("steady", &steady)?)?;
    steady.wait_for("started")?;
    // Starts a client anew for each call, as coding agents do.
    let mut shell = plain("/bin/sh");
    let script = format!(
        "while read -r order; do curl --silent --show-error --max-time 30 --output /dev/null \
         --header 'content-type: application/json' --data \"$order\" --write-out 'answer %{{http_code}}\\n' {url} 2>&1; done"
    );
    shell.args(["-c", &script]);
    let mut starting = Running::start("starting", &mut fence.launch("starting", &shell)?)?;
    steady.tell(&order("alice", 1)?)?;
    steady.wait_for("answer 201")?;
    starting.tell(&order("alice", 2)?)?;
    starting.wait_for("answer 201")?;

    let said = fence.say(&["ca", "rotate", "--state", &state(&fence)])?;
    assert!(said.contains("Start the daemon again"), "{said}");
    // Until the daemon starts again, everything stays as it was, also for agents that start now.
    steady.tell(&order("alice", 3)?)?;
    steady.wait_for("answer 201")?;
    let new = fence.run(
        "between",
        &Client::Requests.post(&url, &order("alice", 4)?)?,
    )?;
    assert_eq!(Client::Requests.answer(&new)?.status, 201);

    fence.kill()?;
    fence.start_again()?;
    starting.tell(&order("alice", 5)?)?;
    starting.wait_for("answer 201")?;
    let new = fence.run("after", &Client::Requests.post(&url, &order("alice", 6)?)?)?;
    assert_eq!(Client::Requests.answer(&new)?.status, 201);
    assert_eq!(bank.payments(), 6);
    // What has read the old CA and nothing else fails, before anything is sent, and `status` says why.
    steady.tell(&order("alice", 7)?)?;
    let why = steady.wait_for("failed ")?;
    assert!(why.to_lowercase().contains("certificate"), "{why}");
    let status = fence.say(&["status"])?;
    assert!(
        status.contains("`acrfence ca rotate`, start it again"),
        "{status}"
    );
    assert_eq!(bank.payments(), 6);
    Ok(())
}

/// A machine of its own as far as the system's store goes: programs that read no variable trust the CA
/// through it, before and after a rotation.
#[test]
fn the_systems_store_of_a_private_mount_namespace_carries_the_ca() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    // Nobody gets variables here: neither by `acrfence run` (see below) nor at the gate.
    let mut fence = Fence::start_with(&[&authority.root()], "[gate]\nexec = false\n")?;
    let url = bank.url(TRANSFERS);
    let store = || std::fs::read("/etc/ssl/certs/ca-certificates.crt");
    let before = store()?;
    let mut shell = plain("unshare");
    shell.args(["--mount", "--propagation", "private", "/bin/sh"]);
    fence.place().cgroup().enter(&mut shell)?;
    let mut place = Running::start("a mount namespace", &mut shell)?;
    let copies = fence.place().scratch().join("store");
    std::fs::create_dir(&copies)?;
    let copies = copies.display();
    place.tell("set -e; exec 2>&1")?;
    place.tell(&format!(
        "cp -a /etc/ssl/certs {copies}/certs; mkdir {copies}/local; \
         mount --bind {copies}/certs /etc/ssl/certs; mount --bind {copies}/local /usr/local/share/ca-certificates; \
         set +e; echo private"
    ))?;
    place.wait_for("private")?;
    let program = acrfence()?;
    let program = program.display();
    let state = state(&fence);
    let run_dir = fence.place().run_dir();
    let pay = |amount: u64| -> Result<String> {
        Ok(format!(
            "{program} --run-dir {} run --name plain{amount} -- env -i PATH=\"$PATH\" curl --silent --show-error \
             --max-time 30 --output /dev/null --header 'content-type: application/json' --data '{}' \
             --write-out 'answer %{{http_code}}\\n' {url}; echo ended $?",
            run_dir.display(),
            order("alice", amount)?
        ))
    };
    place.tell(&pay(1)?)?;
    // curl's code for a certificate that does not verify.
    assert_eq!(place.wait_for("ended ")?, "60");
    assert_eq!(bank.payments(), 0);
    place.tell(&format!(
        "{program} ca install --state {state} >/dev/null; echo installed $?"
    ))?;
    assert_eq!(place.wait_for("installed ")?, "0");
    place.tell(&pay(2)?)?;
    place.wait_for("answer 201")?;
    assert_eq!(place.wait_for("ended ")?, "0");

    place.tell(&format!(
        "{program} ca rotate --state {state}; echo rotated $?"
    ))?;
    place.wait_for("It took the place of the old one in the system's store.")?;
    assert_eq!(place.wait_for("rotated ")?, "0");
    fence.kill()?;
    fence.start_again()?;
    place.tell(&pay(3)?)?;
    place.wait_for("answer 201").context("after the rotation")?;
    assert_eq!(place.wait_for("ended ")?, "0");
    assert_eq!(bank.payments(), 2);
    place.tell(&format!(
        "{program} ca uninstall --state {state} >/dev/null; echo gone $?"
    ))?;
    assert_eq!(place.wait_for("gone ")?, "0");
    place.tell(&pay(4)?)?;
    assert_eq!(place.wait_for("ended ")?, "60");
    // The machine's own store was never touched.
    assert_eq!(store()?, before);
    Ok(())
}
