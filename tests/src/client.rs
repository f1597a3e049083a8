//! Clients as people have them: unmodified, and started with nothing but what they need.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::authority;
use crate::process::Ended;

/// A client that can post JSON over HTTPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    /// Python, requests.
    Requests,
    /// Python, httpx.
    Httpx,
    /// curl, HTTP/2.
    Curl,
    /// Node, its own fetch.
    Fetch,
}

/// What a client got.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// HTTP version that the client spoke.
    pub http: String,
    /// Body, as text.
    pub body: String,
}

impl Client {
    /// A command that posts `json` to `url` and prints an [`Answer`].
    pub fn post(self, url: &str, json: &str) -> Result<Command> {
        Ok(match self {
            Self::Requests => python("python-http", "pay_requests.py", &[url, json])?,
            Self::Httpx => python("python-http", "pay_httpx.py", &[url, json])?,
            Self::Fetch => {
                let mut command = plain(find("node")?);
                command.arg(program("pay_fetch.mjs")).args([url, json]);
                command
            }
            Self::Curl => {
                // curl quotes the body for JSON itself: %{json} has no body, so it goes to its own line.
                let mut command = plain(find("curl")?);
                command
                    .args(["--silent", "--show-error", "--http2", "--max-time", "60"])
                    .args(["--header", "content-type: application/json"])
                    .args(["--data-binary", json])
                    .args(["--write-out", "\n%{http_version} %{http_code}"])
                    .arg(url);
                command
            }
        })
    }

    /// What the client that ended so got.
    pub fn answer(self, ended: &Ended) -> Result<Answer> {
        ensure!(
            ended.ok(),
            "{self:?} failed ({:?}, signal {:?}):\n{}\n{}",
            ended.code,
            ended.signal,
            ended.stdout,
            ended.stderr
        );
        if self != Self::Curl {
            return serde_json::from_str(&ended.stdout)
                .with_context(|| format!("{self:?} said: {}", ended.stdout));
        }
        let (body, rest) = ended
            .stdout
            .rsplit_once('\n')
            .with_context(|| format!("curl said: {}", ended.stdout))?;
        let (http, status) = rest.split_once(' ').context("curl told no status")?;
        Ok(Answer {
            status: status.parse()?,
            http: http.into(),
            body: body.into(),
        })
    }
}

/// A command that posts `bodies` to `url`, one after the other, in one process that pauses for nothing.
pub fn post_all(url: &str, bodies: &[&str]) -> Result<Command> {
    python("python-http", "pay_requests.py", &[&[url], bodies].concat())
}

/// What [`post_all`] got.
pub fn answers(ended: &Ended) -> Result<Vec<Answer>> {
    ensure!(ended.ok(), "{}\n{}", ended.stdout, ended.stderr);
    ended
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).with_context(|| format!("it said: {line}")))
        .collect()
}

/// Makes `command` trust the roots in `bundle`, as somebody without ACRFence would.
pub fn trusting(mut command: Command, bundle: &Path) -> Command {
    command.envs(authority::trust(bundle));
    command
}

/// A command that runs one of the Python programs here with the packages of `environment`, a file
/// name in `tests/clients` without its ending.
pub fn python(environment: &str, script: &str, arguments: &[&str]) -> Result<Command> {
    let python = installed()?.join(environment).join("bin/python");
    ensure!(
        python.exists(),
        "{} is missing: `cargo xtask environment` installs the clients that the tests use",
        python.display()
    );
    let mut command = plain(python);
    command.arg("-B").arg(program(script)).args(arguments);
    Ok(command)
}

/// A command that calls MCP tools over HTTP and prints a JSON line for each: `URL TOOL ARGUMENTS …`.
/// `client` is `rmcp-initialize` or `rmcp-discover` (the official SDK of Rust, in a lifecycle of its),
/// or an environment in `tests/clients`: the official SDK of TypeScript or Python, or fastmcp.
pub fn mcp_client(client: &str, arguments: &[&str]) -> Result<Command> {
    if let Some(lifecycle) = client.strip_prefix("rmcp-") {
        let own = std::env::current_exe().context("finding this program's own file")?;
        let agent = own
            .ancestors()
            .skip(1)
            .take(2)
            .map(|dir| dir.join("acrfence-rmcp-agent"))
            .find(|file| file.is_file())
            .context("cargo builds `acrfence-rmcp-agent` beside the tests; it is not there")?;
        let mut command = plain(agent);
        command.arg(lifecycle).args(arguments);
        return Ok(command);
    }
    if !client.starts_with("node") {
        return python(client, "call_tool.py", arguments);
    }
    let mut command = plain(find("node")?);
    command.arg(program("call_tool.mjs"));
    command.arg(node_packages(client)?).args(arguments);
    Ok(command)
}

/// The folder of an environment of Node packages.
pub fn node_packages(environment: &str) -> Result<PathBuf> {
    let folder = installed()?.join(environment);
    ensure!(
        folder.join("node_modules").is_dir(),
        "{} is missing: `cargo xtask environment` installs the clients that the tests use",
        folder.display()
    );
    Ok(folder)
}

/// A command that runs one of the Python programs here that need no packages.
pub fn bare_python(script: &str, arguments: &[&str]) -> Result<Command> {
    let system = PathBuf::from("/usr/bin/python3");
    let mut command = plain(if system.exists() {
        system
    } else {
        find("python3")?
    });
    command.arg("-B").arg(program(script)).args(arguments);
    Ok(command)
}

/// A command with a small environment: what this machine's variables say about certificates must
/// not reach the client.
pub fn plain(exe: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(exe);
    command.env_clear();
    for name in ["PATH", "HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    command.env("LANG", "C.UTF-8");
    command
}

/// Where `cargo xtask environment` puts the clients.
pub fn installed() -> Result<PathBuf> {
    let cache = std::env::var_os("ACRFENCE_CLIENTS").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    cache
        .or_else(|| {
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
            Some(cache.or_else(home)?.join("acrfence/clients"))
        })
        .context("neither ACRFENCE_CLIENTS, XDG_CACHE_HOME nor HOME says where the clients are")
}

fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}

fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    std::env::split_paths(&path)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
        .with_context(|| {
            format!("{name} is not installed: `cargo xtask environment` installs the clients that the tests use")
        })
}
