//! Finds and reads what one process keeps about its conversations. Blocks; bounded in bytes and time.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::claude_code::{self, is_session};
use super::codex::{self, Rollout};
use super::reach::Reach;
use super::sqlite::{self, Copy};
use super::story::{Keeper, Story, Tied, Wanted};
use super::wal;
use crate::words::ProcessIdentity;

/// How long a call or a model request waits for a store at most. Unit tests run side by side on however
/// few processors there are, and what they ask is not how fast that machine is.
pub const TIME: Duration = Duration::from_millis(if cfg!(test) { 5_000 } else { 300 });

/// Most bytes of session files that are read in one look.
const MOST_SESSIONS: usize = 16 << 20;

/// Most directories that are searched for a session.
const MOST_DIRECTORIES: usize = 64;

/// Most sessions beside the one that is asked for.
const MOST_OTHERS: usize = 16;

/// Most databases of one process.
const MOST_DATABASES: usize = 16;

/// What was found of one process.
#[derive(Debug, Default)]
pub struct Found {
    /// What its stores tell.
    pub stories: Vec<Story>,
    /// Stores that are there and could not be read, and why.
    pub troubles: Vec<String>,
}

/// Reads what the process keeps of the conversation that `session` names, if it names one.
pub fn read(
    process: ProcessIdentity,
    session: Option<&str>,
    wanted: &Wanted,
    deadline: Instant,
) -> Found {
    let mut found = Found::default();
    let reach = match Reach::of(process, deadline) {
        Ok(reach) => reach,
        Err(e) => {
            found
                .troubles
                .push(format!("process {} cannot be looked at: {e}", process.tgid));
            return found;
        }
    };
    let session = session.filter(|id| is_session(id));
    found.take(
        "Claude Code's transcripts",
        transcripts(&reach, session, wanted),
    );
    found.take("Codex's rollouts", rollouts(&reach, session, wanted));
    let open = databases(&reach, wanted, &mut found).map(|()| Vec::new());
    found.take("open files", open);
    found
}

impl Found {
    fn take(&mut self, what: &str, told: io::Result<Vec<Story>>) {
        match told {
            Ok(stories) => self.stories.extend(stories),
            Err(e) if is_absent(&e) => {}
            Err(e) => self.troubles.push(format!("{what}: {e}")),
        }
    }
}

fn transcripts(reach: &Reach, named: Option<&str>, wanted: &Wanted) -> io::Result<Vec<Story>> {
    let Some(home) = home(reach, "CLAUDE_CONFIG_DIR", ".claude")? else {
        return Ok(Vec::new());
    };
    let projects = reach.list(&home.join("projects"))?;
    let session = match named {
        Some(session) => session.to_owned(),
        None => match running(reach, &home) {
            Some(session) => session,
            None => return Ok(Vec::new()),
        },
    };
    let name = format!("{session}.jsonl");
    let mut found = None;
    for project in projects.into_iter().take(MOST_DIRECTORIES) {
        let place = home.join("projects").join(project.name);
        match reach.file(&place.join(&name)) {
            Ok((file, _)) => {
                found = Some((place, file));
                break;
            }
            // Not in this project, or no directory.
            Err(e) if is_absent(&e) => {}
            Err(e) => return Err(e),
        }
    }
    let Some((place, mut file)) = found else {
        return Ok(Vec::new());
    };
    let mut left = MOST_SESSIONS;
    let text = take(reach, &mut file, &mut left)?;
    let told = claude_code::transcript(&session, &text, wanted);
    let Some(head) = told.steps.last().map(|step| step.key.clone()) else {
        return Ok(Vec::new());
    };
    let mut steps = told.steps;
    let others = reach.list(&place)?.into_iter();
    let others = others.filter(|e| e.name != name && e.name.ends_with(".jsonl"));
    for other in others.take(MOST_OTHERS) {
        let text = reach
            .file(&place.join(&other.name))
            .and_then(|(mut file, _)| take(reach, &mut file, &mut left));
        // One that cannot be read is missing; what the others tell stands.
        let Ok(text) = text else {
            continue;
        };
        let id = other.name.trim_end_matches(".jsonl");
        steps.extend(claude_code::transcript(id, &text, wanted).steps);
    }
    Ok(vec![Story {
        keeper: Keeper::ClaudeCode,
        name: claude_code::name(&session, told.title.as_deref()),
        tied: Tied::Session,
        steps,
        head,
    }])
}

/// The session that the process says it runs.
fn running(reach: &Reach, home: &Path) -> Option<String> {
    let pid = reach.process().innermost_pid().ok()?;
    let start = reach.process().stat().ok()?.start_ticks;
    let path = home.join("sessions").join(format!("{pid}.json"));
    let (mut file, _) = reach.file(&path).ok()?;
    let text = reach.read(&mut file, 64 << 10).ok()?;
    claude_code::running(&text, pid, start)
}

fn rollouts(reach: &Reach, named: Option<&str>, wanted: &Wanted) -> io::Result<Vec<Story>> {
    let (Some(home), Some(session)) = (home(reach, "CODEX_HOME", ".codex")?, named) else {
        return Ok(Vec::new());
    };
    let days = days(reach, &home.join("sessions"))?;
    let mut left = MOST_SESSIONS;
    let mut told: Vec<Rollout> = Vec::new();
    let mut next = Some(session.to_owned());
    while let Some(id) = next.take().filter(|_| told.len() < MOST_OTHERS) {
        let Some(mut file) = rollout(reach, &days, &id) else {
            break;
        };
        let text = take(reach, &mut file, &mut left)?;
        let one = codex::rollout(&text, wanted);
        next = one
            .base
            .as_ref()
            .map(|(base, _)| base.to_string())
            .filter(|base| is_session(base) && told.iter().all(|known| *known.id != **base));
        told.push(one);
    }
    let (steps, head) = codex::steps(&told);
    let story = head.map(|head| Story {
        keeper: Keeper::Codex,
        name: session.to_owned(),
        tied: Tied::Session,
        steps,
        head,
    });
    Ok(story.into_iter().collect())
}

/// Directories of days, the newest first.
fn days(reach: &Reach, sessions: &Path) -> io::Result<Vec<PathBuf>> {
    let mut level = vec![sessions.to_path_buf()];
    for _ in ["year", "month", "day"] {
        let mut below: Vec<PathBuf> = Vec::new();
        for place in level {
            let mut names: Vec<String> = reach
                .list(&place)?
                .into_iter()
                .map(|entry| entry.name)
                .filter(|name| name.bytes().all(|b| b.is_ascii_digit()))
                .collect();
            names.sort_unstable_by(|a, b| b.cmp(a));
            below.extend(names.iter().map(|name| place.join(name)));
            if below.len() >= MOST_DIRECTORIES {
                break;
            }
        }
        below.truncate(MOST_DIRECTORIES);
        level = below;
    }
    Ok(level)
}

fn rollout(reach: &Reach, days: &[PathBuf], id: &str) -> Option<File> {
    let end = format!("-{id}.jsonl");
    days.iter().find_map(|day| {
        let entries = reach.list(day).ok()?;
        let found = entries.into_iter().find(|e| e.name.ends_with(&end))?;
        Some(reach.file(&day.join(found.name)).ok()?.0)
    })
}

fn databases(reach: &Reach, wanted: &Wanted, found: &mut Found) -> io::Result<()> {
    let open = reach.open_files()?;
    let mut seen: Vec<&Path> = Vec::new();
    for (number, path) in &open {
        if seen.contains(&path.as_path()) || seen.len() == MOST_DATABASES {
            continue;
        }
        let Ok((mut file, _)) = reach.open_file(number) else {
            continue;
        };
        let mut begin = [0; 100];
        if file.read_exact(&mut begin).is_err() || !begin.starts_with(sqlite::MAGIC) {
            continue;
        }
        seen.push(path);
        let log = with_suffix(path, "-wal");
        let log = open.iter().find(|(_, open)| *open == log);
        let copy = copy(reach, number, log.map(|(number, _)| &**number));
        let told = copy.and_then(|copy| {
            let told = sqlite::checkpoints(copy, wanted, reach.deadline());
            told.map_err(io::Error::other)
        });
        // One that cannot be read does not hide the others.
        let told = told.map(|story| story.into_iter().collect());
        found.take(&path.display().to_string(), told);
    }
    Ok(())
}

/// A file and its log as they stood at one moment: neither was begun anew or folded into the other
/// while they were read.
fn copy(reach: &Reach, number: &str, log: Option<&str>) -> io::Result<Copy> {
    loop {
        let (mut file, about) = reach.open_file(number)?;
        let begin = |log: &str| -> io::Result<Vec<u8>> {
            let mut begin = Vec::new();
            let head = wal::HEADER as u64;
            reach.open_file(log)?.0.take(head).read_to_end(&mut begin)?;
            Ok(begin)
        };
        let before = log.map(begin).transpose()?;
        let bytes = reach.read(&mut file, sqlite::LARGEST)?;
        let pages = match log.filter(|_| sqlite::has_log(&bytes)) {
            Some(log) => {
                let left = sqlite::LARGEST - bytes.len();
                reach.read(&mut reach.open_file(log)?.0, left)?
            }
            None => Vec::new(),
        };
        let now = file.metadata()?;
        let is_same = now.len() == about.len()
            && now.modified()? == about.modified()?
            && log.map(begin).transpose()? == before;
        if is_same {
            return Ok(Copy {
                file: bytes,
                log: pages,
            });
        }
        reach.in_time()?;
    }
}

fn is_absent(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// All of a file, as far as there is room left.
fn take(reach: &Reach, file: &mut File, left: &mut usize) -> io::Result<Vec<u8>> {
    let text = reach.read(file, *left)?;
    *left -= text.len();
    Ok(text)
}

/// Where the process keeps what is its own, absolute; none when it does not say.
fn home(reach: &Reach, moved: &str, usual: &str) -> io::Result<Option<PathBuf>> {
    let place = match reach.variable(moved)? {
        Some(place) => Some(PathBuf::from(place)),
        None => reach
            .variable("HOME")?
            .map(|home| Path::new(&home).join(usual)),
    };
    Ok(place.filter(|place| place.is_absolute()))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
