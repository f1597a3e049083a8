//! Saving and restoring processes with CRIU, as `cargo xtask environment` installed it.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::client::{installed, plain};
use crate::process::run;

/// A command that is CRIU. A system may have a good one installed; elsewhere it lives in a folder of its own, with
/// its own loader and libraries.
fn criu() -> Result<Command> {
    let root = installed()?.join("criu");
    if !root.join("installed.txt").exists() {
        bail!(
            "{} is missing: `cargo xtask environment` installs CRIU",
            root.display()
        );
    }
    let own = fs::read_to_string(root.join("installed.txt"))?;
    if own.trim() == "system" {
        return Ok(plain("/usr/sbin/criu"));
    }
    let lib = fs::read_dir(root.join("usr/lib"))?
        .flatten()
        .map(|entry| entry.path())
        .find(|path| path.to_string_lossy().ends_with("-linux-gnu"))
        .context("no libraries beside CRIU")?;
    let loader = loader(&root)?;
    let mut command = plain(loader);
    command
        .arg("--library-path")
        .arg(lib)
        .arg(root.join("usr/sbin/criu"));
    Ok(command)
}

fn loader(root: &Path) -> Result<PathBuf> {
    let names = [
        "usr/lib64/ld-linux-x86-64.so.2",
        "usr/lib/ld-linux-aarch64.so.1",
    ];
    let mut all = names.iter().map(|name| root.join(name));
    all.find(|path| path.exists())
        .context("no loader beside CRIU")
}

/// `criu dump` of a process and all below it into `images`, with `more` options. `enter` prepares the
/// command, for example by moving it to a control group.
pub fn dump(
    pid: u32,
    images: &Path,
    more: &[&str],
    enter: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<()> {
    fs::create_dir_all(images)?;
    let mut command = criu()?;
    command.args(["dump", "-t", &pid.to_string()]);
    finish(command, "dump", images, more, enter)
}

/// `criu restore` from `images`; the process goes on by itself.
pub fn restore(
    images: &Path,
    more: &[&str],
    enter: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<()> {
    let mut command = criu()?;
    command.args(["restore", "-d"]);
    finish(command, "restore", images, more, enter)
}

/// The words with which CRIU is called.
pub fn words() -> Result<Vec<String>> {
    let command = criu()?;
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    Ok(words
        .map(|word| word.to_string_lossy().into_owned())
        .collect())
}

/// The command line of such a restore, to be started by somebody else.
pub fn restore_words(images: &Path, more: &[&str]) -> Result<Vec<String>> {
    let mut command = criu()?;
    command.args(["restore", "-d", "-D"]).arg(images);
    command.args(["--shell-job", "-v4", "-o", "restore.log"]);
    command.args(more);
    let word = |word: &OsStr| word.to_string_lossy().into_owned();
    let mut words = vec![word(command.get_program())];
    words.extend(command.get_args().map(word));
    Ok(words)
}

fn finish(
    mut command: Command,
    what: &str,
    images: &Path,
    more: &[&str],
    enter: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<()> {
    let log = format!("{what}.log");
    command.arg("-D").arg(images);
    command.args(["--shell-job", "-v4", "-o", &log]).args(more);
    enter(&mut command)?;
    let ended = run(format!("criu {what}"), &mut command)?;
    let told = || {
        let text = fs::read_to_string(images.join(&log)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    };
    ensure!(
        ended.ok(),
        "criu {what} failed ({:?}): {}\n{}",
        ended.code,
        ended.stderr,
        told()
    );
    Ok(())
}
