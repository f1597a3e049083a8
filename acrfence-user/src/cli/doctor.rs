//! `acrfence doctor`.

use std::path::PathBuf;

use clap::Args;

use super::Global;
use super::output::{json, line};
use crate::analyzer::{Llm, LlmHealth, LlmSettings};
use crate::policy::{AnalyzerKind, Config};
use crate::probe::{Check, State, doctor};

#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// Configuration file; the one at the default place may be missing.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Let Ollama fetch the analyzer's model if it lacks it.
    #[arg(long)]
    pull: bool,
}

/// Says what this machine gives. Needs no daemon; without root it can say little.
pub(super) async fn run(global: &Global, args: Doctor) -> anyhow::Result<()> {
    let mut report = doctor();
    let path = args
        .config
        .clone()
        .unwrap_or_else(|| "/etc/acrfence/config.toml".into());
    match Config::load(&path, args.config.is_some()) {
        Ok(config) => report
            .checks
            .push(reader_of_prose(&config, args.pull).await),
        Err(e) => report.checks.push(check(
            "configuration",
            State::Missing,
            "not usable",
            e.to_string(),
        )),
    }
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

/// How the analyzer LLM is. Without it everything works; what it would have read is held.
async fn reader_of_prose(config: &Config, pull: bool) -> Check {
    let name = "analyzer LLM";
    let held = "calls that differ only in wording are held for a person";
    if config.analyzer.kind == AnalyzerKind::None {
        return check(name, State::Good, "none wanted", String::new());
    }
    let settings = LlmSettings {
        url: config.analyzer.url.clone(),
        model: config.analyzer.model.clone(),
        timeout: config.analyzer.timeout.0,
        ..LlmSettings::default()
    };
    let model = settings.model.clone();
    let llm = match Llm::new(settings) {
        Ok(llm) => llm,
        Err(why) => {
            return check(
                name,
                State::Limited,
                "cannot be asked",
                format!("{why}; {held}"),
            );
        }
    };
    let mut health = llm.health().await;
    if pull && matches!(health, LlmHealth::ModelMissing { .. }) {
        if let Err(why) = llm.pull().await {
            return check(
                name,
                State::Limited,
                "the model cannot be fetched",
                format!("{why}; {held}"),
            );
        }
        health = llm.health().await;
    }
    match health {
        LlmHealth::Ready { version, per_text } if per_text > config.analyzer.timeout.0 => check(
            name,
            State::Limited,
            &format!("{model}, Ollama {version}, but slow: {per_text:.1?} for one text"),
            format!(
                "the time limit is {:?} for all texts of a call; raise `timeout` of [analyzer] or use a smaller model; until then {held}",
                config.analyzer.timeout.0
            ),
        ),
        LlmHealth::Ready { version, per_text } => check(
            name,
            State::Good,
            &format!("{model}, Ollama {version}, {per_text:.1?} for one text"),
            String::new(),
        ),
        LlmHealth::ModelMissing { has } => check(
            name,
            State::Limited,
            &format!(
                "{model} is not there; the server has {}",
                if has.is_empty() {
                    "none".into()
                } else {
                    has.join(", ")
                }
            ),
            format!("`acrfence doctor --pull` fetches it; until then {held}"),
        ),
        LlmHealth::Unfit(why) => check(
            name,
            State::Limited,
            &format!("{model} does not answer as it must"),
            format!("{why}; {held}"),
        ),
        LlmHealth::Unreachable(why) => check(
            name,
            State::Limited,
            "not reachable",
            format!("{why}; {held}"),
        ),
    }
}

fn check(name: &str, state: State, found: &str, consequence: String) -> Check {
    Check {
        name: name.into(),
        state,
        found: found.into(),
        consequence,
    }
}
