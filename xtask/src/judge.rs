//! Runs `acrfence judge` over the corpora with a real small model, where no Ollama can be installed.
//!
//! Weights, server and Python environment are kept in the user's cache; their digests and versions
//! stand in `acrfence-user/tests/ollama_front`. The server in front is not Ollama and says so.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::environment::python_environment;
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

/// Models by preference: the name they are asked for by, and the name of their weights.
const MODELS: [(&str, &str); 3] = [
    ("qwen2.5-coder:1.5b", "qwen2.5-coder-1.5b"),
    ("qwen2.5-coder:0.5b", "qwen2.5-coder-0.5b"),
    ("smollm2:135m", "smollm2-135m"),
];

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
    let (name, weights) = weights(options.model.as_deref(), &cache, &tools, &python)?;
    let llama = llama_server(&cache, &tools)?;
    let front = Front::start(&tools, &llama, &weights, name, options.threads)?;
    println!(
        "=== the model is {name}, with {} threads, behind a test server that is not Ollama",
        options.threads
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
            .args(["--ollama-url", &front.url, "--model", name])
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

/// The best model that can be had, or the one that was asked for.
fn weights(
    wanted: Option<&str>,
    cache: &Path,
    tools: &Path,
    python: &Result<PathBuf>,
) -> Result<(&'static str, PathBuf)> {
    let folder = cache.join("models");
    let mut troubles = Vec::new();
    for (name, file) in MODELS {
        if wanted.is_some_and(|wanted| wanted != name) {
            continue;
        }
        match model(file, &folder, tools, python) {
            Ok(weights) => return Ok((name, weights)),
            Err(e) => {
                eprintln!("NO {name}: {e:#}");
                troubles.push(name);
            }
        }
    }
    if troubles.is_empty() {
        let known: Vec<&str> = MODELS.iter().map(|(name, _)| *name).collect();
        bail!("no such model; there are {}", known.join(", "));
    }
    bail!("no model could be had: {}", troubles.join(", "))
}

fn model(file: &str, folder: &Path, tools: &Path, python: &Result<PathBuf>) -> Result<PathBuf> {
    let weights = folder.join(format!("{file}.gguf"));
    if !weights.exists() {
        let python = python
            .as_ref()
            .map_err(|e| anyhow::anyhow!("there is no Python to download it with: {e:#}"))?;
        eprintln!(
            "downloading the weights of {file} into {}",
            folder.display()
        );
        succeed(
            Command::new(python)
                .arg(tools.join("fetch_model.py"))
                .arg(file)
                .arg(folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null()),
        )?;
    }
    Ok(weights)
}

/// The folder with llama-server in it.
fn llama_server(cache: &Path, tools: &Path) -> Result<PathBuf> {
    let folder = cache.join("llama");
    // Written last, so that a download that was cut off is begun anew.
    let stamp = folder.join("complete");
    if !stamp.exists() {
        eprintln!(
            "unpacking llama-server of Debian sid into {}, beside the system",
            folder.display()
        );
        succeed(
            Command::new("sh")
                .arg(tools.join("fetch_llama_server.sh"))
                .arg(&folder)
                .stdin(Stdio::null())
                .stdout(Stdio::null()),
        )?;
        fs::write(&stamp, "")?;
    }
    Ok(folder)
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

/// The test server in front of llama-server. Both end when the pipe to it closes.
struct Front {
    child: Child,
    url: String,
}

impl Front {
    fn start(
        tools: &Path,
        llama: &Path,
        weights: &Path,
        name: &str,
        threads: usize,
    ) -> Result<Self> {
        let mut child = Command::new("python3")
            .arg(tools.join("front.py"))
            .arg("--llama")
            .arg(llama)
            .arg("--model")
            .arg(weights)
            .args(["--name", name, "--port", "0", "--until-stdin-ends"])
            .args(["--threads", &threads.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start front.py; is python3 installed?")?;
        let said = child.stdout.take().context("front.py has no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let url = line.trim().strip_prefix("ready on ").map(str::to_owned);
        let mut front = Self {
            child,
            url: String::new(),
        };
        front.url = url.context("the model's server did not start; its words stand above")?;
        Ok(front)
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(e) = self.child.wait() {
            eprintln!("the model's server may still run: {e}");
        }
    }
}
