//! The systemd unit gives the daemon what it needs.

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, rewritten_order};
use acrfence_tests::client::Client;
use acrfence_tests::fence::{Fence, Place};
use acrfence_tests::process::run;
use anyhow::{Context as _, Result};

const UNIT: &str = include_str!("../../packaging/acrfence.service");

/// With no other capabilities than those of the unit, the daemon does what it is there for.
#[test]
fn the_units_capabilities_are_enough() -> Result<()> {
    let capabilities = UNIT
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .context("the unit bounds no capabilities")?;
    let mut bounding = "-all".to_owned();
    for capability in capabilities.split(' ') {
        let name = capability
            .strip_prefix("CAP_")
            .context("an odd capability")?;
        bounding.push_str(&format!(",+{}", name.to_lowercase()));
    }
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let wrapper = ["setpriv", "--no-new-privs", "--bounding-set", &bounding]
        .map(String::from)
        .to_vec();
    let place = Place::new(&[&authority.root()], "")?.wrapped(wrapper);
    let fence = Fence::start_in(place)?;
    // A container may lack some of them to begin with; more than them it must not hold.
    let held = effective(&fence.daemon_id()?.to_string())?;
    assert!(held.count_ones() as usize <= capabilities.split(' ').count());
    assert_ne!(held, effective("self")?);

    let url = bank.url("/v1/transfers");
    let pay = |body: String| {
        let command = Client::Curl.post(&url, &body)?;
        Client::Curl.answer(&fence.run("buyer", &command)?)
    };
    let first = pay(order("alice", 100)?)?;
    assert_eq!(first.status, 201, "{}", first.body);
    fence.say(&["restored", "buyer"])?;
    assert_eq!(pay(rewritten_order("alice", 100)?)?, first);
    assert_eq!(bank.payments(), 1);
    assert_eq!(fence.effects("buyer")?[0]["gaps"], "");
    Ok(())
}

/// With the unit's umask, what agents of other users must read can be read by them.
#[test]
fn the_units_umask_keeps_nothing_from_agents_of_other_users() -> Result<()> {
    let umask = UNIT.lines().find_map(|line| line.strip_prefix("UMask="));
    let script = format!(
        "umask {}; exec \"$@\"",
        umask.context("the unit sets no umask")?
    );
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let wrapper = ["sh", "-c", &script, "sh"].map(String::from).to_vec();
    let place = Place::new(&[&authority.root()], "")?.wrapped(wrapper);
    let fence = Fence::start_in(place)?;
    let pay = Client::Curl.post(&bank.url("/v1/transfers"), &order("alice", 100)?)?;
    let launched = fence.launch("buyer", &pay)?;
    let ended = run("buyer", &mut fence.place().as_nobody(&launched)?)?;
    assert_eq!(Client::Curl.answer(&ended)?.status, 201);
    assert_eq!(fence.effects("buyer")?.len(), 1);
    Ok(())
}

/// The capabilities in force of a process.
fn effective(pid: &str) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let held = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = held.context("no capabilities in /proc")?;
    Ok(u64::from_str_radix(held.trim(), 16)?)
}
