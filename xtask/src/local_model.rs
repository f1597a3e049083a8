//! A real small model on this machine, where no Ollama can be installed.
//!
//! Weights, server and Python environment are kept in the user's cache; their digests and versions
//! stand in `acrfence-user/tests/ollama_front`. The server in front is not Ollama and says so.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::build::{succeed, workspace};
use crate::environment::python_environment;
use crate::toolchain::cache_dir;

/// Models by preference: the name they are asked for by, and the name of their weights.
const MODELS: [(&str, &str); 3] = [
    ("qwen2.5-coder:1.5b", "qwen2.5-coder-1.5b"),
    ("qwen2.5-coder:0.5b", "qwen2.5-coder-0.5b"),
    ("smollm2:135m", "smollm2-135m"),
];

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

/// What a model is for.
#[derive(Clone, Copy, PartialEq)]
pub enum Uses {
    /// Short questions with short answers.
    Judging,
    /// An agent's conversation, with tools.
    Agents,
}

/// A model with a test server in front. Both end when the pipe to it closes.
pub struct LocalModel {
    /// The name it is asked for by.
    pub name: &'static str,
    /// URL of Ollama's `/api` and, for agents, of OpenAI's and Anthropic's `/v1`.
    pub url: String,
    child: Child,
}

impl LocalModel {
    /// Gets weights and server if they are not there, and starts the server.
    pub fn start(wanted: Option<&str>, threads: usize, uses: Uses) -> Result<Self> {
        let cache = cache_dir()?;
        let tools = workspace().join("acrfence-user/tests/ollama_front");
        let python = python_environment(&cache.join("judge"), &tools.join("python.txt"));
        let (name, weights) = weights(wanted, &cache, &tools, &python)?;
        let llama = llama_server(&cache, &tools)?;
        let mut child = Command::new("python3")
            .arg(tools.join("front.py"))
            .arg("--llama")
            .arg(&llama)
            .arg("--model")
            .arg(&weights)
            .args(["--name", name, "--port", "0", "--until-stdin-ends"])
            .args(["--threads", &threads.to_string()])
            .args((uses == Uses::Agents).then_some("--agents"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start front.py; is python3 installed?")?;
        let said = child.stdout.take().context("front.py has no output")?;
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let url = line.trim().strip_prefix("ready on ").map(str::to_owned);
        let mut model = Self {
            name,
            url: String::new(),
            child,
        };
        model.url = url.context("the model's server did not start; its words stand above")?;
        Ok(model)
    }
}

impl Drop for LocalModel {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        if let Err(e) = self.child.wait() {
            eprintln!("the model's server may still run: {e}");
        }
    }
}
