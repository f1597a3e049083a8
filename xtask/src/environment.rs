//! Installs what the end-to-end tests talk through: curl, Node, Python environments with pinned
//! packages, and CRIU. Everything that is there already is left as it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::agents;
use crate::build::{succeed, workspace};
use crate::criu;
use crate::toolchain::{cache_dir, is_root, output};

/// What to install besides the clients.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Real agents as well, by the names of the folders in `tests/agents`, or `all`.
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    agents: Vec<String>,
}

impl Options {
    /// The clients, and these agents.
    pub fn with_agents(agents: Vec<String>) -> Self {
        Self { agents }
    }
}

/// Installs the clients that are missing, and says what it installs.
pub fn run(options: &Options) -> Result<()> {
    debian_packages()?;
    let clients = clients()?;
    fs::create_dir_all(&clients).with_context(|| format!("cannot create {}", clients.display()))?;
    // Two runs at once must not build the same environment.
    let lock = File::create(clients.join(".lock"))?;
    lock.lock()
        .with_context(|| format!("cannot lock {}", clients.display()))?;
    for requirements in requirements()? {
        python_environment(&clients, &requirements)?;
    }
    for folder in node_environments()? {
        let name = folder.file_name().context("a folder without a name")?;
        agents::install_one(&folder, &clients.join(name))
            .with_context(|| format!("cannot install {}", folder.display()))?;
    }
    criu::install(&clients)?;
    let all = options.agents.iter().any(|name| name == "all");
    let agents = if all {
        agents::names()?
    } else {
        options.agents.clone()
    };
    agents::install(&clients, &agents)
}

/// Where the clients are installed; `ACRFENCE_CLIENTS` moves it.
pub fn clients() -> Result<PathBuf> {
    match std::env::var_os("ACRFENCE_CLIENTS") {
        Some(named) => Ok(named.into()),
        None => Ok(cache_dir()?.join("clients")),
    }
}

/// The system's own Python: another one in PATH may be a wrapper of a version manager, which is one
/// more process than the tests mean.
pub const PYTHON: &str = "/usr/bin/python3";

/// A program, what proves that it is good enough, and the Debian package that brings it.
const PROGRAMS: [(&str, &[&str], &str, &str); 13] = [
    ("curl", &["--version"], "HTTP2", "curl"),
    ("node", &["--print", "typeof fetch"], "function", "nodejs"),
    ("npm", &["--version"], "", "npm"),
    (
        PYTHON,
        &["-c", "import venv, ensurepip; print('complete')"],
        "complete",
        "python3-venv",
    ),
    ("git", &["--version"], "git version", "git"),
    ("ssh", &["-V"], "", "openssh-client"),
    ("psql", &["--version"], "PostgreSQL", "postgresql-client"),
    (
        "/bin/sh",
        &["-c", "ls /usr/lib/postgresql/*/bin/initdb"],
        "initdb",
        "postgresql",
    ),
    ("make", &["--version"], "GNU Make", "make"),
    ("less", &["--version"], "less", "less"),
    ("tmux", &["-V"], "tmux", "tmux"),
    ("bwrap", &["--version"], "bubblewrap", "bubblewrap"),
    (
        "/bin/sh",
        &["-c", "PATH=$PATH:/usr/sbin runc --version"],
        "runc version",
        "runc",
    ),
];

fn debian_packages() -> Result<()> {
    let good = |(program, arguments, proof, _): &(&str, &[&str], &str, &str)| {
        output(Command::new(program).args(*arguments)).is_some_and(|said| said.contains(proof))
    };
    let missing: Vec<&str> = PROGRAMS
        .iter()
        .filter(|program| !good(program))
        .map(|(.., package)| *package)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.join(" ");
    if !is_root() || output(Command::new("apt-get").arg("--version")).is_none() {
        bail!(
            "the tests talk through programs that are missing here; install {packages} (Debian's names)"
        );
    }
    eprintln!("installing Debian's {packages} (clients that the tests talk through)");
    let apt = |arguments: &[&str]| {
        succeed(
            Command::new("apt-get")
                .env("DEBIAN_FRONTEND", "noninteractive")
                .args(["--quiet=2", "--yes"])
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null()),
        )
    };
    apt(&["update"])?;
    apt(&[&["install", "--no-install-recommends"], &missing[..]].concat())?;
    match PROGRAMS.iter().find(|program| !good(program)) {
        None => Ok(()),
        Some((program, .., package)) => bail!(
            "{program} is still not good enough after installing Debian's {package}; is another one before it in PATH?"
        ),
    }
}

/// `tests/clients/*.txt`: one Python environment each.
fn requirements() -> Result<Vec<PathBuf>> {
    named_clients(|path| path.extension().is_some_and(|ending| ending == "txt"))
}

/// `tests/clients/*/package-lock.json`: one folder of Node packages each.
fn node_environments() -> Result<Vec<PathBuf>> {
    named_clients(|path| path.join("package-lock.json").is_file())
}

fn named_clients(wanted: impl Fn(&Path) -> bool) -> Result<Vec<PathBuf>> {
    let folder = workspace().join("tests/clients");
    let mut found = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        if wanted(&path) {
            found.push(path);
        }
    }
    ensure!(!found.is_empty(), "{} names no clients", folder.display());
    found.sort();
    Ok(found)
}

/// Builds the environment that `requirements` describes, unless it is there; gives its Python.
pub fn python_environment(clients: &Path, requirements: &Path) -> Result<PathBuf> {
    let name = requirements.file_stem().context("a file without a name")?;
    let folder = clients.join(name);
    let wanted = fs::read(requirements)?;
    // Written last, so that an environment is either whole or built anew.
    let stamp = folder.join("installed.txt");
    let python = folder.join("bin/python");
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted)
        && output(Command::new(&python).arg("--version")).is_some()
    {
        return Ok(python);
    }
    eprintln!(
        "installing the Python packages of {} into {}",
        requirements.display(),
        folder.display()
    );
    if folder.exists() {
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove the old {}", folder.display()))?;
    }
    succeed(
        Command::new(PYTHON)
            .args(["-m", "venv"])
            .arg(&folder)
            .stdin(Stdio::null()),
    )?;
    succeed(
        Command::new(&python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--no-input",
                "--requirement",
            ])
            .arg(requirements)
            .stdin(Stdio::null()),
    )?;
    fs::write(&stamp, wanted)?;
    Ok(python)
}
