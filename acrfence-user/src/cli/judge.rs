//! `acrfence judge`: verdicts on a corpus of pairs. Needs no daemon and no root.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use crate::analyzer::baseline::{BASELINES, Baseline};
use crate::analyzer::judge::{self, JudgedField, Judgement, Stage};
use crate::analyzer::pairs::{self, Pair, PairVerdict};
use crate::analyzer::report::Report;
use crate::analyzer::{Llm, LlmSettings, Settled};
use crate::words::FieldClass;

/// Judge pairs of recorded and restored calls, one JSON object a line.
#[derive(Args, Clone, Debug)]
pub struct JudgeArgs {
    /// Corpus of pairs, one JSON object a line; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    pub pairs: PathBuf,

    /// Who settles free text that the comparison leaves open.
    #[arg(long, value_enum, default_value_t = AnalyzerChoice::None)]
    pub analyzer: AnalyzerChoice,

    /// Model of the analyzer.
    #[arg(long, default_value_t = LlmSettings::default().model)]
    pub model: String,

    /// Where Ollama listens.
    #[arg(long, value_name = "URL", default_value_t = LlmSettings::default().url)]
    pub ollama_url: String,

    /// Longest wait for the model's answers about one pair, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = LlmSettings::default().timeout.as_secs())]
    pub timeout: u64,

    /// Print one JSON object a line (the global `--json`).
    #[arg(skip)]
    pub json: bool,

    /// Print confusion matrix, figures per tag and transport, and every unsafe verdict at the end
    /// (on standard error together with `--json`).
    #[arg(long)]
    pub report: bool,

    /// Add simpler methods to the report, for comparison.
    #[arg(long, requires = "report")]
    pub baselines: bool,

    /// Add the model alone, shown both calls without a comparison. Slow: one long question a pair.
    #[arg(long, requires = "report")]
    pub model_alone: bool,

    /// Add the verdicts of another method to the report: a file of objects with `id` and `verdict`,
    /// one a line. May be given several times.
    #[arg(long, value_name = "NAME=FILE", requires = "report", value_parser = other_method)]
    pub verdicts: Vec<OtherMethod>,
}

/// Verdicts that another method gave.
#[derive(Clone, Debug)]
pub struct OtherMethod {
    name: String,
    verdicts: HashMap<String, PairVerdict>,
}

fn other_method(argument: &str) -> Result<OtherMethod, String> {
    #[derive(serde::Deserialize)]
    struct Line {
        id: String,
        verdict: PairVerdict,
    }
    let (name, file) = argument
        .split_once('=')
        .ok_or("give the name of the method and its file, like `embeddings=FILE`")?;
    let text = std::fs::read_to_string(file).map_err(|e| format!("cannot read {file}: {e}"))?;
    let verdicts = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| serde_json::from_str(line).map(|l: Line| (l.id, l.verdict)))
        .collect::<Result<_, _>>()
        .map_err(|e| format!("{file} holds something else than verdicts: {e}"))?;
    Ok(OtherMethod {
        name: name.to_owned(),
        verdicts,
    })
}

/// Who settles free text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AnalyzerChoice {
    /// Nobody: it is held.
    None,
    /// A model behind Ollama.
    Ollama,
}

/// Judges every pair and prints the verdicts to `out` as they come.
pub async fn run(args: JudgeArgs, out: &mut (impl Write + ?Sized)) -> anyhow::Result<()> {
    let name = args.pairs.display().to_string();
    let mut input: Box<dyn BufRead> = if args.pairs.as_os_str() == "-" {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        Box::new(BufReader::new(File::open(&args.pairs).with_context(
            || format!("cannot read the pairs in {name}; give a file with one JSON object a line"),
        )?))
    };
    let llm = match args.analyzer {
        AnalyzerChoice::None => None,
        AnalyzerChoice::Ollama => Some(
            Llm::new(LlmSettings {
                url: args.ollama_url.clone(),
                model: args.model.clone(),
                timeout: Duration::from_secs(args.timeout.max(1)),
                ..LlmSettings::default()
            })
            .map_err(anyhow::Error::msg)?,
        ),
    };
    let heading = match &llm {
        None => format!("{name}, no model"),
        Some(_) => format!("{name}, {}", args.model),
    };
    let mut report = Report::new(heading);
    let rules: &[Baseline] = if args.baselines { &BASELINES } else { &[] };
    let mut others: Vec<Report> = rules.iter().map(|(name, _)| Report::new(*name)).collect();
    others.extend(args.verdicts.iter().map(|m| Report::new(m.name.clone())));
    let mut alone = Report::new(format!("{} alone, without a comparison", args.model));
    if args.model_alone && llm.is_none() {
        bail!("--model-alone asks a model; add --analyzer ollama");
    }
    let (mut number, mut judged, mut unreadable, mut troubles) = (0usize, 0usize, 0usize, 0usize);
    let mut line = Vec::new();
    loop {
        line.clear();
        number += 1;
        let limit = pairs::LONGEST_LINE as u64 + 2;
        let read = std::io::Read::take(&mut input, limit)
            .read_until(b'\n', &mut line)
            .with_context(|| format!("cannot read on in {name} at line {number}"))?;
        if read == 0 {
            break;
        }
        if read as u64 == limit {
            bail!(
                "line {number} of {name} is longer than {} bytes; split the file into one pair a line",
                pairs::LONGEST_LINE
            );
        }
        let text = String::from_utf8_lossy(&line);
        if text.trim().is_empty() {
            continue;
        }
        let judgement = match pairs::read(text.trim()) {
            Ok(pair) => {
                judged += 1;
                let began = Instant::now();
                let judgement = judge_pair(&pair, llm.as_ref(), &mut troubles).await;
                report.add(&pair, &judgement, began.elapsed());
                let given = args.verdicts.iter().map(|method| {
                    // A method that says nothing has held the call.
                    let verdict = method.verdicts.get(&pair.id).copied();
                    verdict.unwrap_or(PairVerdict::Hold)
                });
                let verdicts = rules.iter().map(|(_, rule)| rule(&pair)).chain(given);
                for (report, verdict) in others.iter_mut().zip(verdicts) {
                    report.count(&pair, verdict, "");
                }
                if let Some(llm) = llm.as_ref().filter(|_| args.model_alone) {
                    let began = Instant::now();
                    let verdict = llm.alone(&pair).await;
                    alone.count(&pair, verdict, "");
                    alone.time(began.elapsed());
                }
                judgement
            }
            Err(why) => {
                unreadable += 1;
                held(&text, number, &why)
            }
        };
        write_verdict(out, &args, &judgement)?;
    }
    if args.report {
        let mut text = report.to_string();
        if args.model_alone {
            others.push(alone);
        }
        others.iter().for_each(|r| text.push_str(&r.summary()));
        text.push_str(&compared(&report, &others));
        if args.json {
            eprint!("{text}")
        } else {
            write!(out, "{text}")?
        }
    }
    if troubles > 0 {
        eprintln!(
            "the model gave no usable answer for {troubles} of {judged} pairs; they are held"
        );
    }
    if unreadable > 0 {
        bail!(
            "{unreadable} of {} lines of {name} are no readable pairs and were held; see their reasons above",
            judged + unreadable
        );
    }
    Ok(())
}

/// One line a method.
fn compared(report: &Report, others: &[Report]) -> String {
    if others.is_empty() {
        return String::new();
    }
    let mut text = format!("== in one table\n{}\n", Report::LINE_HEADING);
    for report in std::iter::once(report).chain(others) {
        text.push_str(&report.line());
        text.push('\n');
    }
    text
}

async fn judge_pair(pair: &Pair, llm: Option<&Llm>, troubles: &mut usize) -> Judgement {
    let examination = judge::examine_pair(pair);
    let settled = match llm {
        Some(llm) => llm.settle(examination).await,
        None => Settled::without_model(examination),
    };
    *troubles += usize::from(settled.trouble.is_some());
    judge::conclude(pair, &settled)
}

/// A line that is no pair is held, under its id where it has one.
fn held(text: &str, number: usize, why: &str) -> Judgement {
    let id = serde_json::from_str::<serde_json::Value>(text)
        .ok()
        .and_then(|v| v.get("id").and_then(|id| id.as_str()).map(str::to_owned))
        .unwrap_or_else(|| format!("line {number}"));
    Judgement {
        id,
        verdict: PairVerdict::Hold,
        stage: Stage::Compare,
        fields: vec![JudgedField {
            path: String::new(),
            class: FieldClass::Unknown,
            reason: format!("the pair cannot be read: {why}"),
        }],
    }
}

fn write_verdict(
    out: &mut (impl Write + ?Sized),
    args: &JudgeArgs,
    judgement: &Judgement,
) -> anyhow::Result<()> {
    if args.json {
        serde_json::to_writer(&mut *out, judgement)?;
        out.write_all(b"\n")?;
    } else if !args.report {
        writeln!(out, "{}: {}", judgement.id, judgement.verdict.as_str())?;
        for field in &judgement.fields {
            writeln!(out, "  {} ({}): {}", field.path, field.class, field.reason)?;
        }
    }
    out.flush()?;
    Ok(())
}
