//! Installs CRIU, with which the tests save and restore processes.
//!
//! The one of Debian 12 cannot restore on newer kernels, so it is a later Debian's, whatever Debian this
//! is: downloaded with package lists of its own and unpacked into a folder of its own, with the loader
//! and the libraries that it wants. Nothing of the system is changed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::succeed;
use crate::toolchain::output;

/// What the tests were tried with: version, package, suite. Since Linux 6.16 only the first can save
/// sockets, and it may be gone from its suite one day; the other one stays.
const TRIED: [(&str, &str, &str); 2] = [
    ("4.2.1", "criu=4.2.1-1", "forky"),
    ("4.1.1", "criu=4.1.1-1", "trixie"),
];
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Puts it into `clients/criu`, unless it is there.
pub fn install(clients: &Path) -> Result<()> {
    let root = clients.join("criu");
    // Written last, so that what is there is whole. Says whether the system's own is meant.
    let stamp = root.join("installed.txt");
    if stamp.exists() {
        return Ok(());
    }
    let own = output(Command::new("/usr/sbin/criu").arg("--version"));
    if own.is_some_and(|said| TRIED.iter().any(|(version, ..)| said.contains(version))) {
        fs::create_dir_all(&root)?;
        fs::write(stamp, "system\n")?;
        return Ok(());
    }
    if output(Command::new("apt-get").arg("--version")).is_none() {
        bail!("the tests restore processes with CRIU 4.2; install it as /usr/sbin/criu");
    }
    for (_, package, suite) in TRIED {
        eprintln!(
            "installing {package} of Debian {suite} into {}",
            root.display()
        );
        match unpack(&root, package, suite) {
            Ok(()) => return Ok(fs::write(stamp, format!("{package} of Debian {suite}\n"))?),
            Err(e) => eprintln!("{package} of Debian {suite} could not be installed: {e:#}"),
        }
    }
    bail!("no CRIU that the tests can use could be installed")
}

fn unpack(root: &Path, package: &str, suite: &str) -> Result<()> {
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    let apt = root.join("apt");
    for dir in ["lists/partial", "archives/partial"] {
        fs::create_dir_all(apt.join(dir))?;
    }
    fs::write(apt.join("status"), "")?;
    let sources = format!("deb [signed-by={KEYRING}] {} {suite} main\n", mirror()?);
    fs::write(apt.join("sources.list"), sources)?;
    let get = |arguments: &[&str]| {
        let place = |name: &str, file: &str| format!("{name}={}", apt.join(file).display());
        succeed(
            Command::new("apt-get")
                .args(["--quiet=2", "--yes"])
                .args(["-o", &place("Dir::Etc::sourcelist", "sources.list")])
                .args(["-o", "Dir::Etc::sourceparts=-"])
                .args(["-o", &place("Dir::State::lists", "lists")])
                .args(["-o", &place("Dir::State::status", "status")])
                .args(["-o", &place("Dir::Cache", "")])
                .args(["-o", "APT::Install-Recommends=false"])
                .args(["-o", "APT::Sandbox::User=root"])
                .args(arguments)
                .stdin(Stdio::null())
                .stdout(Stdio::null()),
        )
    };
    get(&["update"])?;
    get(&["--download-only", "install", package])?;
    for entry in fs::read_dir(apt.join("archives"))? {
        let package = entry?.path();
        if package.extension().is_some_and(|ending| ending == "deb") {
            succeed(Command::new("dpkg").arg("-x").arg(&package).arg(root))?;
        }
    }
    ensure!(
        root.join("usr/sbin/criu").exists(),
        "{package} was unpacked and has no usr/sbin/criu"
    );
    Ok(fs::remove_dir_all(&apt)?)
}

/// The mirror that this machine takes Debian from.
fn mirror() -> Result<String> {
    let files = [
        "/etc/apt/sources.list",
        "/etc/apt/sources.list.d/debian.sources",
    ];
    let texts = files
        .iter()
        .filter_map(|file| fs::read_to_string(file).ok());
    let words: Vec<String> = texts
        .flat_map(|text| {
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines
                .flat_map(str::split_whitespace)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    words
        .into_iter()
        .find(|word| word.starts_with("http") && word.trim_end_matches('/').ends_with("/debian"))
        .context("no mirror of Debian was found in /etc/apt/sources.list or /etc/apt/sources.list.d/debian.sources; name one there")
}
