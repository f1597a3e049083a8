//! Runs `acrfence judge` over the corpora with a real small model, where no Ollama can be installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::environment::python_environment;
use crate::local_model::{LocalModel, Uses};
use crate::toolchain::cache_dir;

/// What is judged, and by whom.
#[derive(clap::Args)]
pub struct JudgeOptions {
    /// Judge: the corpora (default: all in `acrfence-user/testdata/corpus`).
    #[arg(long = "pairs", value_name = "FILE")]
    corpora: Vec<PathBuf>,
    /// Judge: use this model or none, instead of the largest that can be had.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Judge: threads of the model.
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
}

/// Judges the corpora; `arguments` go to `acrfence judge` as they are.
pub fn run(options: &JudgeOptions, arguments: &[String]) -> Result<()> {
    // Verdicts do not depend on optimisation; `bench compare` measures the speed.
    build::run(&build::Options::default())?;
    let cache = cache_dir()?;
    let tools = workspace().join("acrfence-user/tests/ollama_front");
    let python = python_environment(&cache.join("judge"), &tools.join("python.txt"));
    let corpora = match &options.corpora[..] {
        [] => all_corpora()?,
        named => named.to_vec(),
    };
    let model = LocalModel::start(options.model.as_deref(), options.threads, Uses::Judging)?;
    println!(
        "=== the model is {}, with {} threads, behind a test server that is not Ollama",
        model.name, options.threads
    );
    for corpus in corpora {
        println!("\n=== {}", corpus.display());
        let near = python
            .as_ref()
            .map_err(|e| format!("{e:#}"))
            .and_then(|python| {
                embeddings(python, &tools, &cache, &corpus).map_err(|e| format!("{e:#}"))
            });
        let mut judge = Command::new(target_dir().join("debug/acrfence"));
        judge
            .args(["judge", "--analyzer", "ollama", "--report", "--baselines"])
            // A machine that does other things as well may be ten times slower.
            .args(["--timeout", "600"])
            .args(["--ollama-url", &model.url, "--model", model.name])
            .arg("--pairs")
            .arg(&corpus);
        match &near {
            Ok(verdicts) => {
                let mut value =
                    std::ffi::OsString::from("embedding similarity (all-MiniLM-L6-v2)=");
                value.push(verdicts);
                judge.arg("--verdicts").arg(value);
            }
            Err(why) => println!("SKIPPED: embedding similarity, because {why}"),
        }
        succeed(judge.args(arguments).stdin(Stdio::null()))?;
    }
    Ok(())
}

fn all_corpora() -> Result<Vec<PathBuf>> {
    let folder = workspace().join("acrfence-user/testdata/corpus");
    let mut files: Vec<PathBuf> = fs::read_dir(&folder)
        .with_context(|| format!("cannot read {}", folder.display()))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "jsonl"))
        .collect();
    files.sort();
    ensure!(!files.is_empty(), "{} holds no corpus", folder.display());
    Ok(files)
}

/// The verdicts that the similarity of embeddings gives.
fn embeddings(python: &Path, tools: &Path, cache: &Path, corpus: &Path) -> Result<PathBuf> {
    let folder = cache.join("embeddings");
    let output = Command::new(python)
        .arg(tools.join("embeddings.py"))
        .arg("--pairs")
        .arg(corpus)
        .arg("--folder")
        .arg(&folder)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run embeddings.py")?;
    ensure!(output.status.success(), "embeddings.py failed");
    let name = corpus.file_stem().context("a corpus without a name")?;
    let verdicts = folder.join(name).with_extension("verdicts.jsonl");
    fs::write(&verdicts, output.stdout)
        .with_context(|| format!("cannot write {}", verdicts.display()))?;
    Ok(verdicts)
}
