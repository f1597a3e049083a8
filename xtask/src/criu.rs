//! Installs CRIU, with which the tests save and restore processes.
//!
//! The one of Debian 12 cannot restore on newer kernels, so it is a later Debian's, whatever Debian this
//! is: downloaded with package lists of its own and unpacked into a folder of its own, with the loader
//! and the libraries that it wants. Nothing of the system is changed.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail, ensure};

use crate::debian::Source;
use crate::toolchain::output;

/// What the tests were tried with: version, package, suite. Since Linux 6.16 only the first can save
/// sockets, and it may be gone from its suite one day; the other one stays.
const TRIED: [(&str, &str, &str); 2] = [
    ("4.2.1", "criu=4.2.1-1", "forky"),
    ("4.1.1", "criu=4.1.1-1", "trixie"),
];

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
    let source = Source::open(root, &[suite], None)?;
    source.unpack_with_dependencies(&[package], root)?;
    ensure!(
        root.join("usr/sbin/criu").exists(),
        "{package} was unpacked and has no usr/sbin/criu"
    );
    source.close()
}
