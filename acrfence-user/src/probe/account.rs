//! What was seen, what was reported, what was lost.

use std::collections::BTreeMap;

use acrfence_common::{Channel, DropReason, Sort, TrafficKey};
use serde::Serialize;

use super::{Probe, ProbeError};
use crate::words::ProcessIdentity;

/// The accounts of one sort of report. `seen == submitted + aggregated + dropped`, always.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Account {
    /// `fork`, `exec`, …
    pub sort: &'static str,
    /// Times a hook had something to report.
    pub seen: u64,
    /// Reports that got through.
    pub submitted: u64,
    /// Writes that only count in the totals of their channel, by design.
    pub aggregated: u64,
    /// Reports that were lost, by reason.
    pub dropped: BTreeMap<&'static str, u64>,
}

/// Reports about one agent that were lost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Loss {
    /// `fork`, `exec`, …
    pub sort: &'static str,
    /// Why.
    pub reason: &'static str,
    /// How many.
    pub count: u64,
}

/// Calls and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Total {
    /// Calls.
    pub calls: u64,
    /// Bytes, as asked for.
    pub bytes: u64,
}

impl Probe {
    /// The accounts, one a sort.
    pub fn accounts(&self) -> Result<Vec<Account>, ProbeError> {
        Sort::ALL
            .into_iter()
            .map(|sort| {
                let counters = self.maps.counters(sort as u32)?;
                let dropped = DropReason::ALL
                    .into_iter()
                    .zip(counters.dropped)
                    .filter(|&(_, count)| count > 0)
                    .map(|(reason, count)| (reason_name(reason), count))
                    .collect();
                Ok(Account {
                    sort: sort_name(sort),
                    seen: counters.seen,
                    submitted: counters.submitted,
                    aggregated: counters.aggregated,
                    dropped,
                })
            })
            .collect()
    }

    /// What was lost about one agent.
    pub fn losses(&self, agent: u32) -> Result<Vec<Loss>, ProbeError> {
        let mut losses: Vec<_> = self
            .maps
            .drops
            .entries()?
            .into_iter()
            .filter(|(key, _)| key.agent == agent)
            .filter_map(|(key, count)| {
                let sort = *Sort::ALL.get(usize::from(key.sort))?;
                let reason = *DropReason::ALL.get(usize::from(key.reason))?;
                Some(Loss {
                    sort: sort_name(sort),
                    reason: reason_name(reason),
                    count,
                })
            })
            .collect();
        losses.sort_by(|a, b| (a.sort, a.reason).cmp(&(b.sort, b.reason)));
        Ok(losses)
    }

    /// The same in words, as `Origin::gaps` wants it; empty when nothing was lost.
    pub fn gaps(&self, agent: u32) -> String {
        match self.losses(agent) {
            Ok(losses) => losses
                .iter()
                .map(|loss| {
                    format!(
                        "{} {} events dropped ({})",
                        loss.count, loss.sort, loss.reason
                    )
                })
                .collect::<Vec<_>>()
                .join(", "),
            Err(error) => format!("what was dropped cannot be told: {error}"),
        }
    }

    /// What an agent wrote across boundaries that are not fenced, by channel, ended processes
    /// included.
    pub fn traffic(&self, agent: u32) -> Result<BTreeMap<&'static str, Total>, ProbeError> {
        // Held over both, so that nothing is gathered in between and counted twice.
        let past = self.past_traffic.lock();
        let mut totals: BTreeMap<&'static str, Total> = BTreeMap::new();
        let mut add = |channel: u32, more: Total| {
            if let Some(channel) = Channel::from_number(channel) {
                let total = totals.entry(channel_name(channel)).or_default();
                total.calls += more.calls;
                total.bytes += more.bytes;
            }
        };
        for (&(_, channel), &total) in past.iter().filter(|((owner, _), _)| *owner == agent) {
            add(channel, total);
        }
        for (key, traffic) in self.maps.traffic.entries()? {
            if traffic.agent == agent {
                let total = Total {
                    calls: traffic.calls,
                    bytes: traffic.bytes,
                };
                add(key.channel, total);
            }
        }
        Ok(totals)
    }

    /// Adds the channels of processes that are gone to the totals and takes them out of the
    /// kernel's table.
    pub(super) fn gather_traffic(&self) -> Result<(), ProbeError> {
        let tracked = self.maps.tracked.entries()?;
        let mut past = self.past_traffic.lock();
        for (key, traffic) in self.maps.traffic.entries()? {
            let TrafficKey { tgid, channel, .. } = key;
            let lives = tracked
                .get(&tgid)
                .is_some_and(|entry| entry.start_ns == traffic.start_ns);
            if !lives && self.maps.traffic.remove(&key)? {
                let total = past.entry((traffic.agent, channel)).or_default();
                total.calls += traffic.calls;
                total.bytes += traffic.bytes;
            }
        }
        Ok(())
    }

    /// Processes the kernel tracks, with their agent. After a take-over these are the daemon's
    /// that is gone.
    pub fn tracked(&self) -> Result<BTreeMap<ProcessIdentity, u32>, ProbeError> {
        Ok(self
            .maps
            .tracked
            .entries()?
            .into_iter()
            .filter(|(_, entry)| entry.agent != acrfence_common::EXEMPT)
            .map(|(tgid, entry)| {
                let identity = ProcessIdentity {
                    tgid,
                    start_ns: entry.start_ns,
                };
                (identity, entry.agent)
            })
            .collect())
    }
}

fn sort_name(sort: Sort) -> &'static str {
    match sort {
        Sort::Fork => "fork",
        Sort::Exec => "exec",
        Sort::Exit => "exit",
        Sort::Connect => "connect",
        Sort::Redirect => "redirect",
        Sort::Establish => "establish",
        Sort::Write => "write",
        Sort::Restore => "restore",
        Sort::Gate => "gate",
    }
}

fn reason_name(reason: DropReason) -> &'static str {
    match reason {
        DropReason::RingFull => "ring buffer full",
        DropReason::MapFull => "table full",
        DropReason::Unreadable => "memory not readable",
    }
}

/// `pipe`, `unix`, …
pub fn channel_name(channel: Channel) -> &'static str {
    match channel {
        Channel::Pipe => "pipe",
        Channel::Unix => "unix",
        Channel::Tcp => "tcp",
        Channel::Udp => "udp",
        Channel::Inet => "inet",
    }
}
