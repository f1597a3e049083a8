//! The exec gate, as user space sees it: what is stopped, and who stands there.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use acrfence_common::{
    CommandWord, GateCause, GateConfig, GateEntry, GateEvent, GateOutcome, GateRefusal, ProgramName,
};
use aya::maps::{Array, Map, MapData, RingBuf};

use super::{DaemonDown, Probe, ProbeError, Settings};
use crate::words::ProcessIdentity;

/// A program whose commands are stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedProgram<'a> {
    /// Its name, without directory.
    pub name: &'a str,
    /// What one of its words must be; none when any command line of it is stopped. Looked at only
    /// where a process cannot be stopped, so that the rules could be asked.
    pub words: Option<Vec<&'a str>>,
}

impl<'a> From<&'a str> for NamedProgram<'a> {
    fn from(name: &'a str) -> Self {
        Self { name, words: None }
    }
}

/// A process that the kernel refused to let run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub cause: GateCause,
    /// The first words of its command line; cut ones end in `…`. Empty when they are not known.
    pub argv: Vec<String>,
}

/// A process that the kernel found to be of interest at its exec.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gated {
    /// The process.
    pub process: ProcessIdentity,
    /// The agent's index.
    pub agent: u32,
    /// Its parent.
    pub parent: ProcessIdentity,
    /// Why: [`GateWhy`](super::GateWhy) bits.
    pub why: u32,
    /// What the kernel did with it.
    pub outcome: GateOutcome,
    /// When (nanoseconds since boot).
    pub at_ns: u64,
    /// What more is known when it was refused.
    pub refusal: Option<Refusal>,
}

/// A process that stands at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standing {
    /// The process.
    pub process: ProcessIdentity,
    /// The agent's index.
    pub agent: u32,
    /// Why: [`GateWhy`](super::GateWhy) bits.
    pub why: u32,
    /// Since when (nanoseconds since boot).
    pub since_ns: u64,
}

/// What the kernel tells of processes of interest, in order.
pub struct GateQueue(RingBuf<MapData>);

impl GateQueue {
    /// The next, if there is one. Wait for more by polling the descriptor.
    pub fn try_next(&mut self) -> Option<Gated> {
        loop {
            let record = self.0.next()?;
            match read(&record) {
                Some(gated) => return Some(gated),
                None => tracing::error!(
                    bytes = record.len(),
                    "the gate reported something unknown; are hooks of another version in place?"
                ),
            }
        }
    }
}

impl AsFd for GateQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Probe {
    /// Hands out the queue of the gate; from now on processes of interest are stopped. Once only:
    /// an error when the kernel refuses the hook, or when somebody has the queue already.
    pub fn serve_gate(&self) -> Result<GateQueue, ProbeError> {
        let unusable = |why: &str| ProbeError::System {
            what: "the exec gate cannot be served".into(),
            source: io::Error::other(why.to_owned()),
        };
        if let Some((_, why)) = self
            .refused
            .iter()
            .find(|(program, _)| *program == "process_gate")
        {
            return Err(unusable(why));
        }
        let queue = self
            .maps
            .gate_queue
            .lock()
            .take()
            .ok_or_else(|| unusable("it is served already"))?;
        self.configure_gate(true)?;
        Ok(GateQueue(queue))
    }

    /// From now on nobody is stopped: processes of interest run or are killed, as
    /// [`DaemonDown`] says.
    pub fn leave_gate(&self) -> Result<(), ProbeError> {
        self.configure_gate(false)
    }

    /// Says what processes of an agent are stopped for ([`GateWhy`](super::GateWhy) bits).
    pub fn gate_agent(&self, agent: u32, why: u32) -> Result<(), ProbeError> {
        if why == 0 {
            return self.maps.gate_agents.remove(&agent).map(drop);
        }
        self.maps.gate_agents.set(&agent, &why)
    }

    /// Replaces the names of programs that are stopped as commands. Gives those that are too long
    /// to be known.
    pub fn gate_commands<'a>(
        &self,
        programs: impl IntoIterator<Item = impl Into<NamedProgram<'a>>>,
    ) -> Result<Vec<String>, ProbeError> {
        let (mut names, mut words, mut too_long) = (HashMap::new(), HashMap::new(), Vec::new());
        for (n, program) in programs.into_iter().enumerate() {
            let program: NamedProgram<'a> = program.into();
            let Some(name) = ProgramName::new(program.name) else {
                too_long.push(program.name.to_owned());
                continue;
            };
            let wanted = program.words.and_then(|wanted| {
                let wanted = wanted.into_iter().map(ProgramName::new);
                wanted.collect::<Option<Vec<_>>>()
            });
            // A word that the kernel cannot know cannot be asked for.
            let group = match wanted {
                Some(_) => u32::try_from(n + 1).unwrap_or(0),
                None => 0,
            };
            names.insert(name, group);
            for word in wanted.unwrap_or_default() {
                words.insert(CommandWord { word, group }, 1);
            }
        }
        // At no moment is a program there whose words are missing.
        let stale = self.maps.gate_words.entries()?;
        for (word, value) in &words {
            self.maps.gate_words.set(word, value)?;
        }
        replace(&self.maps.gate_commands, &names)?;
        for old in stale.into_keys().filter(|old| !words.contains_key(old)) {
            self.maps.gate_words.remove(&old)?;
        }
        Ok(too_long)
    }

    /// Replaces the names of programs whose children are not stopped for their pipes.
    pub fn gate_shells<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Result<Vec<String>, ProbeError> {
        let (mut known, mut too_long) = (HashMap::new(), Vec::new());
        for name in names {
            match ProgramName::new(name) {
                Some(name) => {
                    known.insert(name, 1);
                }
                None => too_long.push(name.to_owned()),
            }
        }
        replace(&self.maps.gate_shells, &known)?;
        Ok(too_long)
    }

    /// Whether an exec that must not run is denied before it begins (LSM), where it could not be stopped;
    /// otherwise it is killed as it begins.
    pub fn denies_exec(&self) -> bool {
        self.denies_exec.is_ok()
    }

    /// A process has left the gate: it runs, and is not stopped again for `done`.
    pub fn gate_passed(&self, process: ProcessIdentity, done: u32) -> Result<(), ProbeError> {
        let Some(entry) = self.maps.gates.get(&process.tgid)? else {
            return Ok(());
        };
        if entry.start_ns != process.start_ns {
            return Ok(());
        }
        let entry = GateEntry {
            done: entry.done | done,
            at_gate: 0,
            ..entry
        };
        self.maps.gates.set(&process.tgid, &entry)?;
        // It may have ended meanwhile, and then nobody takes the entry out again.
        if self.maps.tracked.get(&process.tgid)?.is_none() {
            self.maps.gates.remove(&process.tgid)?;
        }
        Ok(())
    }

    /// Everybody who stands at the gate.
    pub fn at_gate(&self) -> Result<Vec<Standing>, ProbeError> {
        let mut standing: Vec<Standing> = self
            .maps
            .gates
            .entries()?
            .into_iter()
            .filter_map(|(tgid, entry)| standing(tgid, &entry))
            .collect();
        standing.sort_by_key(|standing| standing.since_ns);
        Ok(standing)
    }

    fn configure_gate(&self, served: bool) -> Result<(), ProbeError> {
        self.maps.configure_gate(self.settings.gate(served))
    }
}

/// The gate of a daemon that is gone: what hooks and maps below a pin directory still hold.
pub struct Abandoned {
    config: Array<MapData, GateConfig>,
    gates: aya::maps::HashMap<MapData, u32, GateEntry>,
}

impl Abandoned {
    /// Opens it. Do so while the daemon lives: afterwards its pins may be taken away.
    pub fn open(pin_directory: &Path) -> Result<Self, ProbeError> {
        let open = |name: &str| {
            MapData::from_pin(pin_directory.join(name)).map_err(|error| ProbeError::System {
                what: format!("the gate's map {name} cannot be opened"),
                source: io::Error::other(error.to_string()),
            })
        };
        let unusable = |error: aya::maps::MapError| ProbeError::Object(error.to_string());
        Ok(Self {
            config: Array::try_from(Map::Array(open("GATE_CONFIG")?)).map_err(unusable)?,
            gates: aya::maps::HashMap::try_from(Map::HashMap(open("GATES")?)).map_err(unusable)?,
        })
    }

    /// Whether a daemon serves the gate.
    pub fn is_served(&self) -> bool {
        self.config
            .get(&0, 0)
            .is_ok_and(|config| config.served != 0)
    }

    /// Whether processes of interest run while nobody serves the gate.
    pub fn is_open(&self) -> bool {
        self.config
            .get(&0, 0)
            .is_ok_and(|config| config.open_when_down != 0)
    }

    /// Everybody who stands at the gate.
    pub fn at_gate(&self) -> Vec<Standing> {
        self.gates
            .iter()
            .filter_map(Result::ok)
            .filter_map(|(tgid, entry)| standing(tgid, &entry))
            .collect()
    }

    /// A process has left the gate.
    pub fn left(&mut self, process: ProcessIdentity) {
        // Gone with its process, if not by us.
        let _ = self.gates.remove(&process.tgid);
    }
}

fn standing(tgid: u32, entry: &GateEntry) -> Option<Standing> {
    (entry.at_gate != 0).then_some(Standing {
        process: ProcessIdentity {
            tgid,
            start_ns: entry.start_ns,
        },
        agent: entry.agent,
        why: entry.why,
        since_ns: entry.at_ns,
    })
}

impl Settings {
    /// How the gate works.
    pub(super) fn gate(&self, served: bool) -> GateConfig {
        GateConfig {
            served: u32::from(served),
            open_when_down: u32::from(self.daemon_down == DaemonDown::Open),
            refuse_ungated: u32::from(self.refuse_ungated),
            zero: 0,
        }
    }
}

/// Makes a table what is wanted. New ones first: at no moment is one missing that stays.
fn replace(
    table: &super::maps::Table<ProgramName, u32>,
    wanted: &HashMap<ProgramName, u32>,
) -> Result<(), ProbeError> {
    for (name, value) in wanted {
        table.set(name, value)?;
    }
    for old in table.entries()?.into_keys() {
        if !wanted.contains_key(&old) {
            table.remove(&old)?;
        }
    }
    Ok(())
}

fn read(record: &[u8]) -> Option<Gated> {
    let event: GateEvent = super::event::start_of(record)?;
    Some(Gated {
        process: ProcessIdentity {
            tgid: event.header.tgid,
            start_ns: event.header.start_ns,
        },
        agent: event.header.agent,
        parent: ProcessIdentity {
            tgid: event.parent,
            start_ns: event.parent_start_ns,
        },
        why: event.why,
        outcome: GateOutcome::from_number(event.outcome)?,
        at_ns: event.header.at_ns,
        refusal: GateCause::from_number(event.cause).map(|cause| Refusal {
            cause,
            argv: super::event::start_of(record).map_or_else(Vec::new, |refusal| words(&refusal)),
        }),
    })
}

fn words(refusal: &GateRefusal) -> Vec<String> {
    let count = usize::try_from(refusal.count).unwrap_or(usize::MAX);
    let kept = refusal.words.iter().take(count).map(|word| {
        let end = word.iter().position(|&byte| byte == 0);
        let text = String::from_utf8_lossy(&word[..end.unwrap_or(word.len())]);
        // One that fills its place may be longer.
        match end {
            Some(end) if end + 1 < word.len() => text.into_owned(),
            _ => format!("{}…", text.trim_end_matches(char::REPLACEMENT_CHARACTER)),
        }
    });
    let more = (count > GateRefusal::MOST).then(|| "…".to_owned());
    kept.chain(more).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_another_kind_are_none() {
        assert_eq!(read(&[0; 20]), None);
        assert_eq!(read(&[0; 56]), None);
    }

    #[test]
    fn a_command_line_is_read_as_far_as_it_was_kept() {
        let line = |said: &[&str]| {
            let mut refusal = GateRefusal {
                event: GateEvent::default(),
                words: [[0; GateRefusal::LONGEST]; GateRefusal::MOST],
                count: u32::try_from(said.len().min(GateRefusal::MOST + 1)).unwrap(),
                zero: 0,
            };
            for (place, word) in refusal.words.iter_mut().zip(said) {
                // As the kernel copies it: cut, with a zero at the end.
                let length = word.len().min(GateRefusal::LONGEST - 1);
                place[..length].copy_from_slice(&word.as_bytes()[..length]);
            }
            words(&refusal)
        };
        assert_eq!(line(&["git", "", "push"]), ["git", "", "push"]);
        assert!(line(&[]).is_empty());
        let long = "ä".repeat(40);
        let cut = line(&["psql", &long]);
        assert!(cut[1].ends_with("ä…") && cut[1].len() < 70, "{cut:?}");
        assert_eq!(line(&["x"; 9]).last().unwrap(), "…");
        assert_eq!(line(&["x"; 8]).last().unwrap(), "x");
    }
}
