//! `acrfence doctor`.

use super::Global;
use super::output::{json, line};
use crate::probe::{State, doctor};

/// Says what this machine gives. Needs no daemon; without root it can say little.
pub(super) fn run(global: &Global) -> anyhow::Result<()> {
    let report = doctor();
    if global.json {
        report.checks.iter().try_for_each(json)?;
    } else {
        for check in &report.checks {
            let mark = match check.state {
                State::Good => "ok     ",
                State::Limited => "LIMITED",
                State::Missing => "MISSING",
            };
            line(&format!("{mark}  {}: {}", check.name, check.found))?;
            if !check.consequence.is_empty() {
                line(&format!("         {}", check.consequence))?;
            }
        }
    }
    if report.state() == State::Missing {
        anyhow::bail!("ACRFence cannot work on this machine as it is");
    }
    Ok(())
}
