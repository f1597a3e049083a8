//! The demo tells the truth, and leaves nothing behind.

use std::fs;

use acrfence_tests::client::plain;
use acrfence_tests::process::{Running, run};
use anyhow::{Context as _, Result};
use serde_json::Value;

fn demo() -> std::process::Command {
    let mut demo = plain(env!("CARGO_BIN_EXE_acrfence-demo"));
    if let Some(acrfence) = std::env::var_os("ACRFENCE_BIN") {
        demo.env("ACRFENCE_BIN", acrfence);
    }
    demo
}

/// What a demo of that process id would have left.
fn left_by(pid: u32) -> Result<Vec<String>> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let mut left: Vec<String> = mounts
        .lines()
        .filter(|line| line.contains(&format!("acrfence-e2e-{pid}-")))
        .map(String::from)
        .collect();
    for mount in mounts.lines().filter(|line| line.contains(" cgroup2 ")) {
        let point = mount.split(' ').nth(1).unwrap_or_default();
        for entry in fs::read_dir(point)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if name.starts_with(&format!("acrfence-e2e-{pid}-")) {
                left.push(name);
            }
        }
    }
    Ok(left)
}

#[test]
fn it_measures_what_it_says() -> Result<()> {
    let running = Running::start("the demo", demo().arg("--json"))?;
    let pid = running.id();
    let ended = running.finish()?;
    assert!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
    let last = ended.stdout.lines().last().context("it said nothing")?;
    let measured: Value = serde_json::from_str(last)?;
    for (name, value) in [
        ("payments_without_fence", Value::from(2)),
        ("payments_with_fence", Value::from(1)),
        ("answer_replayed", Value::from(true)),
        ("diverged_blocked", Value::from(true)),
        ("payments_after_fork", Value::from(2)),
        ("credential_refused", Value::from(true)),
        ("deletions_without_fence", Value::from(2)),
        ("deletions_with_fence", Value::from(1)),
    ] {
        assert_eq!(measured[name], value, "{name} in {last}");
    }
    assert!(ended.stdout.contains("$ acrfence effects"));
    assert!(ended.stdout.contains("$ acrfence tree buyer"));
    assert_eq!(left_by(pid)?, Vec::<String>::new());
    Ok(())
}

#[test]
fn an_interrupt_takes_everything_down() -> Result<()> {
    let mut running = Running::start("the demo", &mut demo())?;
    let pid = running.id();
    running.wait_for("2  With the fence")?;
    assert!(run("kill", plain("kill").args(["-INT", &pid.to_string()]))?.ok());
    let ended = running.finish()?;
    assert_eq!(ended.code, Some(1), "{:?} {}", ended.signal, ended.stderr);
    assert!(ended.stderr.contains("interrupted"), "{}", ended.stderr);
    assert_eq!(left_by(pid)?, Vec::<String>::new());
    Ok(())
}
