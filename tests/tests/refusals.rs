//! What a person is told when something cannot be: one clear sentence, and a code that says no.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order};
use acrfence_tests::client::{Client, plain, trusting};
use acrfence_tests::fence::{Fence, Place, acrfence};
use acrfence_tests::process::{Ended, run};
use anyhow::Result;

/// It failed on purpose, with the exit status that `docs/cli.md` promises, and says why in words that
/// hold `part`.
fn refuses(ended: &Ended, status: i32, part: &str) {
    assert!(
        ended.code == Some(status),
        "not {status}: code {:?}, signal {:?}: {}{}",
        ended.code,
        ended.signal,
        ended.stdout,
        ended.stderr
    );
    let said = ended.stderr.trim();
    assert!(said.contains(part), "`{part}` is not in: {said}");
    assert!(!said.contains("panicked"), "{said}");
    assert!(!ended.stdout.contains("ready"), "{}", ended.stdout);
}

#[test]
fn a_second_daemon_on_the_same_state() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    refuses(
        &run("a second daemon", &mut fence.place().daemon()?)?,
        1,
        "in use by another process",
    );
    // The first one does not mind.
    fence.say(&["status"])?;
    Ok(())
}

#[test]
fn a_daemon_without_root() -> Result<()> {
    let place = Place::new(&[], "")?;
    let mut command = place.as_nobody(&place.daemon()?)?;
    refuses(&run("a daemon of nobody", &mut command)?, 1, "root");
    Ok(())
}

#[test]
fn a_kernel_without_type_information() -> Result<()> {
    let place = Place::new(&[], "")?;
    let mut command = place.daemon()?;
    // SAFETY: plain system calls on constant paths, in the child alone.
    unsafe {
        command.pre_exec(hide_btf);
    }
    refuses(&run("a daemon without BTF", &mut command)?, 1, "BTF");
    Ok(())
}

#[test]
fn a_process_that_does_not_exist() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    // Beyond the largest pid that the kernel gives.
    let ended = fence.try_say(&["attach", "4194305", "--name", "nobody"])?;
    refuses(&ended, 5, "4194305");
    Ok(())
}

#[test]
fn an_agent_that_nobody_knows() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    for words in [
        &["restored", "nobody"][..],
        &["fork", "nobody"],
        &["tree", "nobody"],
        &["detach", "nobody"],
        &["checkpoint", "nobody"],
    ] {
        refuses(&fence.try_say(words)?, 5, "nobody");
    }
    refuses(&fence.try_say(&["show", "e999999"])?, 5, "e999999");
    Ok(())
}

#[test]
fn a_command_without_a_daemon() -> Result<()> {
    let place = Place::new(&[], "")?;
    for words in [&["status"][..], &["run", "--name", "a", "--", "true"]] {
        let ended = run("a command", &mut place.cli(words)?)?;
        refuses(&ended, 3, "acrfence daemon");
    }
    Ok(())
}

#[test]
fn a_program_that_does_not_exist() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let ended = fence.run("a", &plain("/nonexistent/program"))?;
    refuses(&ended, 1, "/nonexistent/program");
    Ok(())
}

#[test]
fn a_program_keeps_its_exit_code_and_its_arguments() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let mut command = plain("sh");
    command.args([
        "-c",
        "printf '%s|' \"$@\"; exit 42",
        "sh",
        "--json",
        "-- a",
        "",
    ]);
    let ended = fence.run("a", &command)?;
    assert_eq!(ended.code, Some(42), "{}", ended.stderr);
    assert_eq!(ended.stdout, "--json|-- a||");
    Ok(())
}

#[test]
fn an_upstream_that_nobody_vouches_for() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    // The daemon does not trust the bank's authority.
    let fence = Fence::start_with(&[], "")?;
    let url = bank.url("/v1/transfers");
    let command = Client::Requests.post(&url, &order("alice", 100)?)?;
    let got = Client::Requests.answer(&fence.run("buyer", &command)?)?;
    assert_eq!(got.status, 502, "{}", got.body);
    assert!(got.body.contains("certificate"), "{}", got.body);
    assert_eq!(bank.payments(), 0);
    // Certainly not sent, so nothing is in doubt and nothing will be held.
    for effect in fence.effects("buyer")? {
        assert_eq!(effect["status"], "failed", "{effect}");
    }
    Ok(())
}

#[test]
fn an_agent_that_does_not_trust_the_fence() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url("/v1/transfers");
    // Its own opinion of whom to trust comes after the one that `run` handed it.
    let mut command = plain("env");
    let curl = Client::Curl.post(&url, &order("alice", 100)?)?;
    command
        .arg(format!("CURL_CA_BUNDLE={}", authority.root().display()))
        .arg(format!("SSL_CERT_FILE={}", authority.root().display()))
        .arg(curl.get_program())
        .args(curl.get_args());
    let ended = fence.run("sceptic", &command)?;
    assert_eq!(ended.code, Some(60), "curl: {}", ended.stderr);
    assert_eq!(bank.payments(), 0);
    let status = fence.say(&["status"])?;
    for part in ["sceptic", "does not trust the ACRFence CA"] {
        assert!(status.contains(part), "`{part}` is not in: {status}");
    }
    Ok(())
}

#[test]
fn an_agent_cannot_allow_itself_what_was_stopped() -> Result<()> {
    let fence = Fence::start_with(&[], "")?;
    let mut command: Command = plain(acrfence()?);
    command
        .arg("--run-dir")
        .arg(fence.place().run_dir())
        .args(["fork", "cheat"]);
    let ended = fence.run("cheat", &command)?;
    refuses(&ended, 4, "tracked agent");
    assert_eq!(fence.branches("cheat")?, ["start"]);
    Ok(())
}

#[test]
fn a_broken_configuration() -> Result<()> {
    let place = Place::new(&[], "[fence]\nhold_timeout = \"17 bananas\"")?;
    refuses(&run("a daemon", &mut place.daemon()?)?, 1, "17 bananas");
    let place = Place::new(&[], "[fence]\nno_such_setting = true")?;
    refuses(
        &run("a daemon", &mut place.daemon()?)?,
        1,
        "no_such_setting",
    );
    Ok(())
}

/// Covers the kernel's type information in a mount namespace of this process's own.
fn hide_btf() -> std::io::Result<()> {
    use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    // SAFETY: the child has one thread, and shares no file system state with anybody afterwards.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS)? };
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    mount(
        "none",
        "/sys/kernel/btf",
        "tmpfs",
        MountFlags::empty(),
        None,
    )?;
    Ok(())
}

#[test]
fn trust_in_the_bank_alone_is_what_the_sceptic_has() -> Result<()> {
    // The same command works without the fence, so what the test above sees is the fence.
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let url = bank.url("/v1/transfers");
    let curl = Client::Curl.post(&url, &order("alice", 100)?)?;
    let ended = run("curl", &mut trusting(curl, &authority.root()))?;
    assert_eq!(Client::Curl.answer(&ended)?.status, 201);
    Ok(())
}
