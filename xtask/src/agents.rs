//! Installs the real agents that the end-to-end tests and the evaluation drive, each into a folder of
//! its own and at the versions that are locked in `tests/agents/NAME`. An agent that cannot be
//! installed is no error: why not is written down, and whoever wants to run it reports that.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{succeed, workspace};
use crate::environment::PYTHON;
use crate::toolchain::output;

/// The file that says why an agent is not there.
const REASON: &str = "skipped.txt";

/// The file that says what is there: a copy of the lock.
const STAMP: &str = "installed.txt";

/// Which agents there are: the folders in `tests/agents` with a lock.
pub fn names() -> Result<Vec<String>> {
    let folder = workspace().join("tests/agents");
    let mut names = Vec::new();
    for entry in
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?
    {
        let path = entry?.path();
        if lock(&path).is_some() {
            let name = path.file_name().context("a folder without a name")?;
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Installs `wanted` under `clients`, and says what could not be installed.
pub fn install(clients: &Path, wanted: &[String]) -> Result<()> {
    let known = names()?;
    for name in wanted {
        ensure!(
            known.contains(name),
            "there is no agent {name} in tests/agents; there are {}",
            known.join(", ")
        );
        let source = workspace().join("tests/agents").join(name);
        let folder = clients.join("agents").join(name);
        if let Err(why) = install_one(&source, &folder) {
            eprintln!("{name} is skipped: {why:#}");
            fs::create_dir_all(&folder)
                .with_context(|| format!("cannot create {}", folder.display()))?;
            fs::write(folder.join(REASON), format!("{why:#}\n"))?;
        }
    }
    Ok(())
}

/// What pins the versions of the agent whose driver is in `source`, and with which installer.
fn lock(source: &Path) -> Option<(PathBuf, Installer)> {
    let pip = source.join("requirements.txt");
    let npm = source.join("package-lock.json");
    if pip.is_file() {
        Some((pip, Installer::Pip))
    } else if npm.is_file() {
        Some((npm, Installer::Npm))
    } else {
        None
    }
}

#[derive(Clone, Copy)]
enum Installer {
    Pip,
    Npm,
}

/// Installs what the lock in `source` names into `folder`, unless it is there.
pub fn install_one(source: &Path, folder: &Path) -> Result<()> {
    let (lock, installer) = lock(source).context("nothing pins its versions")?;
    let wanted = fs::read(&lock)?;
    let stamp = folder.join(STAMP);
    if fs::read(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    eprintln!("installing {} into {}", source.display(), folder.display());
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("cannot remove the old {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    match installer {
        Installer::Pip => pip(&lock, folder)?,
        Installer::Npm => npm(source, folder)?,
    }
    // Written last, so that an agent is either whole or installed anew.
    fs::write(&stamp, wanted)?;
    Ok(())
}

fn pip(lock: &Path, folder: &Path) -> Result<()> {
    succeed(
        Command::new(PYTHON)
            .args(["-m", "venv"])
            .arg(folder)
            .stdin(Stdio::null()),
    )?;
    succeed(
        Command::new(folder.join("bin/python"))
            .args(["-m", "pip", "install", "--quiet", "--no-input"])
            .args(["--require-hashes", "--requirement"])
            .arg(lock)
            .stdin(Stdio::null()),
    )
}

fn npm(source: &Path, folder: &Path) -> Result<()> {
    if output(Command::new("npm").arg("--version")).is_none() {
        bail!("npm is not installed");
    }
    for file in ["package.json", "package-lock.json"] {
        fs::copy(source.join(file), folder.join(file))?;
    }
    succeed(
        Command::new("npm")
            .args(["ci", "--no-audit", "--no-fund", "--silent"])
            .current_dir(folder)
            .stdin(Stdio::null()),
    )
}
