//! `acrfence log`.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use super::Global;
use super::output::{json, line};
use crate::control::{Client, ClientError, CollectGarbage, KeyRotated, LogStats};
use crate::effect::{GcReport, Progress, Store, StoreConfig, Verification};
use crate::policy::{Duration, Size};
use crate::words::{AgentName, BranchId, EffectId, ThreadId, Timestamp};

#[derive(Debug, Args)]
pub(super) struct Log {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Prove the log whole: every record, every body, the chain and the index. Works with the daemon
    /// running and, on the files themselves, without.
    Verify(Place),
    /// Print records, one JSON object a line.
    Export(Export),
    /// Remove old records of agents that do not run.
    Gc(Gc),
    /// Show numbers about the log.
    Stats,
    /// Seal new records with a fresh key, which is added to the key file. Works with the daemon running
    /// and without. Old records need the old keys: keep a copy of the whole file.
    RotateKey(Place),
    /// Go on with a log that was rolled back or is damaged at its end, when the newest one is lost.
    /// Effects that were lost can then happen twice. The daemon must not run.
    AcceptRollback(AcceptRollback),
}

#[derive(Debug, Args)]
struct Place {
    /// The daemon's state directory.
    #[arg(long, default_value = "/var/lib/acrfence", value_name = "DIR")]
    state: PathBuf,
    /// The key of the log.
    #[arg(long, default_value_os_t = crate::effect::usual_key_file(), value_name = "FILE")]
    key_file: PathBuf,
    /// The second record of the log's head.
    #[arg(
        long,
        default_value = "/var/lib/acrfence-anchor/anchor",
        value_name = "FILE"
    )]
    anchor: PathBuf,
}

#[derive(Debug, Args)]
struct Export {
    /// Only this agent's.
    #[arg(long)]
    agent: Option<AgentName>,
    /// Only this thread's.
    #[arg(long)]
    thread: Option<ThreadId>,
    /// Only this branch's.
    #[arg(long)]
    branch: Option<BranchId>,
    /// Only those that speak of this effect.
    #[arg(long)]
    effect: Option<EffectId>,
    /// Only of this kind (prepared, settled, replayed, refused, …); may be given several times.
    #[arg(long)]
    kind: Vec<String>,
    /// Only those at or after this time.
    #[arg(long)]
    since: Option<Timestamp>,
    /// Only those before this time.
    #[arg(long)]
    until: Option<Timestamp>,
    /// Show what the records say, bodies included, not just that they are there.
    #[arg(long)]
    decrypt: bool,
}

#[derive(Debug, Args)]
struct Gc {
    /// Remove what is older than this (30d, 12h).
    #[arg(long, value_name = "AGE", required_unless_present = "max_size")]
    older_than: Option<Duration>,
    /// Remove the oldest until the log is no larger than this (2GiB).
    #[arg(long, value_name = "SIZE")]
    max_size: Option<Size>,
}

#[derive(Debug, Args)]
struct AcceptRollback {
    #[command(flatten)]
    place: Place,
    /// Who takes on that lost effects can happen twice; written into the log.
    #[arg(long, value_name = "NAME")]
    by: String,
}

pub(super) async fn run(client: &Client, global: &Global, args: Log) -> anyhow::Result<()> {
    match args.command {
        Command::Verify(place) => verify(client, global, &place).await,
        Command::Export(args) => export(client, args).await,
        Command::Gc(args) => collect(client, global, args).await,
        Command::Stats => stats(client, global).await,
        Command::RotateKey(place) => rotate_key(client, global, &place).await,
        Command::AcceptRollback(args) => accept_rollback(&args),
    }
}

impl Place {
    fn config(&self) -> StoreConfig {
        StoreConfig::new(self.state.join("log"), &self.key_file, &self.anchor)
    }
}

async fn verify(client: &Client, global: &Global, place: &Place) -> anyhow::Result<()> {
    let found: Verification = match client.post("/v1/log/verify", &serde_json::json!({})).await {
        Err(ClientError::Unreachable { .. }) => {
            let mut bar = Bar::default();
            Store::verify_closed(&place.config(), &mut |progress| bar.show(progress))?
        }
        answered => answered?,
    };
    if global.json {
        json(&found)?;
    } else {
        line(&format!(
            "{} records, {} effects, {} segments, {} body files; the last record is {}.",
            found.records, found.effects, found.segments, found.bodies, found.last
        ))?;
        for fault in &found.faults {
            line(&format!("DAMAGED at {}: {}", fault.place, fault.detail))?;
        }
    }
    match found.faults.first() {
        None if global.json => Ok(()),
        None => line("The log is whole."),
        Some(first) => anyhow::bail!(
            "the log is damaged, first at {}; docs/effect-log.md says what to do",
            first.place
        ),
    }
}

async fn export(client: &Client, args: Export) -> anyhow::Result<()> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            query.append_pair(name, &value);
        }
    };
    add("agent", args.agent.map(|v| v.to_string()));
    add("thread", args.thread.map(|v| v.to_string()));
    add("branch", args.branch.map(|v| v.to_string()));
    add("effect", args.effect.map(|v| v.to_string()));
    add(
        "kinds",
        (!args.kind.is_empty()).then(|| args.kind.join(",")),
    );
    add("since", args.since.map(|v| v.to_string()));
    add("until", args.until.map(|v| v.to_string()));
    add("decrypt", args.decrypt.then(|| "true".to_owned()));
    let path = format!("/v1/log/export?{}", query.finish());
    Ok(client
        .lines(&path, |text| line(text).map_err(std::io::Error::other))
        .await?)
}

async fn collect(client: &Client, global: &Global, args: Gc) -> anyhow::Result<()> {
    let now = jiff::Timestamp::now().as_nanosecond();
    let older_than = args
        .older_than
        .map(|age| u64::try_from(now.saturating_sub(i128::from(age.nanos()))).map(Timestamp))
        .transpose()
        .context("the age reaches back before 1970")?;
    let wanted = CollectGarbage {
        older_than,
        max_bytes: args.max_size.map(|s| s.0),
    };
    let report: GcReport = client.post("/v1/log/gc", &wanted).await?;
    if global.json {
        return json(&report);
    }
    line(&format!(
        "{} records removed ({} effects), {} kept in the {} segments looked at; {} body files removed, {} bytes freed.",
        report.removed, report.effects, report.kept, report.segments, report.bodies, report.freed
    ))
}

async fn stats(client: &Client, global: &Global) -> anyhow::Result<()> {
    let s: LogStats = client.get("/v1/log/stats").await?;
    if global.json {
        return json(&s);
    }
    line(&format!(
        "last record     {} (anchored up to {})",
        s.last, s.anchored
    ))?;
    line(&format!("segments        {}", s.segments))?;
    line(&format!(
        "effects         {} running, {} in doubt, {} failed",
        s.prepared, s.in_doubt, s.failed
    ))?;
    line(&format!(
        "index           {} MiB, {} facts waiting, {}{}",
        s.index_bytes >> 20,
        s.index_waiting,
        if s.read_ahead {
            "read ahead"
        } else {
            "reading ahead"
        },
        match s.index_rebuilds {
            0 => String::new(),
            times => format!(", rebuilt {times} times since the start"),
        }
    ))?;
    if s.notes_dropped > 0 {
        line(&format!("! {} observations found no room", s.notes_dropped))?;
    }
    for trouble in [&s.stopped, &s.anchor_trouble].into_iter().flatten() {
        line(&format!("! {trouble}"))?;
    }
    Ok(())
}

async fn rotate_key(client: &Client, global: &Global, place: &Place) -> anyhow::Result<()> {
    let nothing = serde_json::json!({});
    let rotated: KeyRotated = match client.post("/v1/log/rotate-key", &nothing).await {
        Err(ClientError::Unreachable { .. }) => KeyRotated {
            key: Store::rotate_key_closed(&place.config())?,
            key_file: place.key_file.display().to_string(),
        },
        answered => answered?,
    };
    if global.json {
        return json(&rotated);
    }
    line(&format!(
        "New records are sealed with key {}. Copy {} to where you keep its copy: without the file the log cannot be read.",
        rotated.key, rotated.key_file
    ))
}

fn accept_rollback(args: &AcceptRollback) -> anyhow::Result<()> {
    let mut bar = Bar::default();
    let (store, report) =
        Store::accept_rollback(&args.place.config(), &args.by, &mut |progress| {
            bar.show(progress)
        })?;
    store.close();
    match report.accepted {
        Some(lost) => line(&format!(
            "The log goes on at record {}. Accepted as lost by {}: {lost}",
            report.last, args.by
        )),
        None => line("The log is the newest one known; nothing had to be accepted."),
    }
}

/// A progress bar for a person; nothing when standard error is no terminal.
#[derive(Default)]
struct Bar(Option<ProgressBar>);

impl Bar {
    fn show(&mut self, progress: Progress) {
        let bar = self.0.get_or_insert_with(|| {
            let style = ProgressStyle::with_template("{msg} {bar:40} {pos}/{len}")
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(progress.total).with_style(style)
        });
        bar.set_message(format!("{:?}", progress.phase));
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
