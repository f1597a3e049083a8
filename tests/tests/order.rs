//! The order in which a daemon talks to the disk and to the network, as the kernel saw it: a call is
//! on disk before its first byte goes upstream, and its outcome before the first byte of the response
//! goes to the agent.

use std::path::Path;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, Options, order};
use acrfence_tests::client::Client;
use acrfence_tests::fence::{Fence, Place};
use anyhow::{Context as _, Result, bail, ensure};

/// What matters of a trace, in the order in which it happened.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    /// A write of a record of this kind began.
    Record(u8),
    /// A sync of a segment returned.
    Synced,
    /// The first byte of the request went to the bank.
    Request,
    /// The first byte of the response went to the agent.
    Response,
}

/// Kinds of records, as in docs/effect-log.md.
const PREPARED: u8 = 6;
const SETTLED: u8 = 7;

/// Says what is out of order.
fn check(steps: &[Step]) -> Result<()> {
    for (kind, then) in [(PREPARED, Step::Request), (SETTLED, Step::Response)] {
        let sent = steps.iter().position(|step| *step == then);
        let sent = sent.with_context(|| format!("{then:?} was never sent"))?;
        let before = &steps[..sent];
        let Some(written) = before.iter().position(|s| *s == Step::Record(kind)) else {
            bail!("{then:?} went out before the record of kind {kind} was written");
        };
        ensure!(
            before[written..].contains(&Step::Synced),
            "{then:?} went out before the record of kind {kind} was synced"
        );
    }
    Ok(())
}

/// Reads what `strace -f -yy -xx` wrote. A call that other threads interrupt stands there twice: once
/// where it began and once where it returned.
fn read(trace: &str) -> Vec<Step> {
    let request = hex("POST /v1/transfers");
    let response = hex("HTTP/1.1 201");
    // Paths are in hexadecimal as well.
    let segment = format!("{}>", hex(".seg"));
    let mut syncing: Vec<&str> = Vec::new();
    let mut steps = Vec::new();
    for line in trace.lines() {
        let (thread, call) = line.split_once(' ').unwrap_or((line, ""));
        let call = call.trim_start();
        let is_open = call.ends_with("<unfinished ...>");
        if call.starts_with("fdatasync(") && call.contains(&segment) {
            if is_open {
                syncing.push(thread);
            } else {
                steps.push(Step::Synced);
            }
        } else if call.starts_with("<... fdatasync resumed>") {
            if let Some(at) = syncing.iter().position(|it| *it == thread) {
                syncing.remove(at);
                steps.push(Step::Synced);
            }
        } else if call.starts_with("pwrite64(") && call.contains(&segment) {
            // A record begins with AC FE, its version and its kind; a group with its first record.
            let kind = call
                .split_once("\"\\xac\\xfe\\x01\\x")
                .and_then(|(_, rest)| u8::from_str_radix(rest.get(..2)?, 16).ok());
            steps.extend(kind.map(Step::Record));
        } else if call.contains(&request) && !call.starts_with("read") && !call.starts_with("recv")
        {
            steps.push(Step::Request);
        } else if call.contains(&response) && !call.starts_with("read") && !call.starts_with("recv")
        {
            steps.push(Step::Response);
        }
    }
    steps
}

fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("\\x{byte:02x}")).collect()
}

/// A daemon that strace watches. The daemon stays the child of this test (`-D`).
fn traced(config: &str, trace: &Path) -> Result<Fence> {
    let wrapper = [
        "strace",
        "-D",
        "-f",
        "-yy",
        "-xx",
        "-s",
        "96",
        "-e",
        "trace=pwrite64,fdatasync,write,writev,sendto,sendmsg",
        "-o",
    ];
    let mut wrapper: Vec<String> = wrapper.map(String::from).to_vec();
    wrapper.push(trace.display().to_string());
    Fence::start_in(Place::new(&[], config)?.wrapped(wrapper))
}

#[test]
fn on_disk_before_the_first_byte_goes_either_way() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start_with(
        &authority,
        Options {
            clear: true,
            only_v4: true,
            ..Options::default()
        },
    )?;
    let dir = tempfile::tempdir()?;
    let trace = dir.path().join("trace");
    let fence = traced("", &trace)?;
    let client = Client::Requests.post(&bank.url("/v1/transfers"), &order("alice", 100)?)?;
    let answer = Client::Requests.answer(&fence.run("buyer", &client)?)?;
    assert_eq!(answer.status, 201, "{}", answer.body);
    // What the daemon wrote is in the trace once it ended and strace with it.
    drop(fence);
    let steps = read(&std::fs::read_to_string(&trace)?);
    check(&steps).with_context(|| format!("{steps:?}"))?;

    // The check sees it when it is otherwise: without the syncs, and with either message first.
    let without: Vec<Step> = steps
        .iter()
        .filter(|s| **s != Step::Synced)
        .cloned()
        .collect();
    assert!(check(&without).is_err());
    for early in [Step::Request, Step::Response] {
        let mut moved: Vec<Step> = steps.iter().filter(|s| **s != early).cloned().collect();
        let kind = if early == Step::Request {
            PREPARED
        } else {
            SETTLED
        };
        let written = moved
            .iter()
            .position(|s| *s == Step::Record(kind))
            .context("the record is in the trace")?;
        moved.insert(written + 1, early.clone());
        assert!(check(&moved).is_err(), "{moved:?}");
        moved.retain(|s| *s != early);
        moved.insert(0, early);
        assert!(check(&moved).is_err(), "{moved:?}");
    }
    Ok(())
}
