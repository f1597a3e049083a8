//! Packages of any Debian suite and architecture, without touching the system: downloaded with package
//! lists of their own, and unpacked into a folder.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::build::succeed;
use crate::toolchain::output;

const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Where packages come from, and a folder for what apt keeps of them.
pub struct Source {
    apt: PathBuf,
    architecture: Option<&'static str>,
}

impl Source {
    /// Fetches the package lists of these suites into `root`, which is made anew. One whose name ends in
    /// `-security` comes from the archive of security updates.
    pub fn open(root: &Path, suites: &[&str], architecture: Option<&'static str>) -> Result<Self> {
        ensure!(
            output(Command::new("apt-get").arg("--version")).is_some(),
            "there is no apt-get here"
        );
        if root.exists() {
            fs::remove_dir_all(root)
                .with_context(|| format!("cannot remove {}", root.display()))?;
        }
        let apt = root.join("apt");
        for dir in ["lists/partial", "archives/partial"] {
            fs::create_dir_all(apt.join(dir))?;
        }
        fs::write(apt.join("status"), "")?;
        let mut sources = String::new();
        for suite in suites {
            let archive = match suite.ends_with("-security") {
                true => "debian-security",
                false => "debian",
            };
            let line = format!(
                "deb [signed-by={KEYRING}] {} {suite} main\n",
                mirror(archive)?
            );
            sources.push_str(&line);
        }
        fs::write(apt.join("sources.list"), sources)?;
        let source = Self { apt, architecture };
        succeed(source.tool("apt-get").arg("update"))?;
        Ok(source)
    }

    /// Unpacks packages, with everything that they depend on, into `root`.
    pub fn unpack_with_dependencies(&self, packages: &[&str], root: &Path) -> Result<()> {
        succeed(
            self.tool("apt-get")
                .args(["--download-only", "install"])
                .args(packages),
        )?;
        self.unpack(&self.apt.join("archives"), root)
    }

    /// Unpacks packages, and nothing else, into `root`.
    pub fn unpack_alone(&self, packages: &[&str], root: &Path) -> Result<()> {
        let alone = self.apt.join("alone");
        fs::create_dir_all(&alone)?;
        succeed(
            self.tool("apt-get")
                .arg("download")
                .args(packages)
                .current_dir(&alone),
        )?;
        self.unpack(&alone, root)
    }

    /// The first package that another one depends on.
    pub fn first_dependency(&self, package: &str) -> Result<String> {
        let mut show = self.tool("apt-cache");
        show.args(["show", "--no-all-versions", package])
            .stdout(Stdio::piped());
        let shown = output(&mut show).with_context(|| format!("there is no package {package}"))?;
        let depends = shown
            .lines()
            .find_map(|line| line.strip_prefix("Depends: "));
        let first = depends.and_then(|depends| depends.split([' ', ',', '(']).next());
        first
            .map(str::to_owned)
            .with_context(|| format!("{package} depends on nothing"))
    }

    /// Takes away what apt kept.
    pub fn close(self) -> Result<()> {
        Ok(fs::remove_dir_all(&self.apt)?)
    }

    fn unpack(&self, archives: &Path, root: &Path) -> Result<()> {
        for entry in fs::read_dir(archives)? {
            let package = entry?.path();
            if package.extension().is_some_and(|ending| ending == "deb") {
                succeed(Command::new("dpkg").arg("-x").arg(&package).arg(root))?;
            }
        }
        Ok(())
    }

    fn tool(&self, name: &str) -> Command {
        let place = |name: &str, file: &str| format!("{name}={}", self.apt.join(file).display());
        let mut tool = Command::new(name);
        tool.args(["--quiet=2", "-o", "APT::Get::Assume-Yes=true"])
            .args(["-o", &place("Dir::Etc::sourcelist", "sources.list")])
            .args(["-o", "Dir::Etc::sourceparts=-"])
            .args(["-o", &place("Dir::State::lists", "lists")])
            .args(["-o", &place("Dir::State::status", "status")])
            .args(["-o", &place("Dir::Cache", "")])
            .args(["-o", "APT::Install-Recommends=false"])
            .args(["-o", "APT::Sandbox::User=root"])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(architecture) = self.architecture {
            tool.args(["-o", &format!("APT::Architecture={architecture}")])
                .args(["-o", &format!("APT::Architectures::={architecture}")]);
        }
        tool
    }
}

/// The name of this machine's Debian release; none when it is none.
pub fn release() -> Option<String> {
    let text = fs::read_to_string("/etc/os-release").ok()?;
    let field = |name: &str| {
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.map(|value| value.trim_matches('"').to_owned())
    };
    (field("ID=")? == "debian").then(|| field("VERSION_CODENAME="))?
}

/// The mirror that this machine takes an archive of Debian from.
fn mirror(archive: &str) -> Result<String> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(parts) = fs::read_dir("/etc/apt/sources.list.d") {
        files.extend(parts.filter_map(|part| Some(part.ok()?.path())));
    }
    files.sort();
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
    let is_it = |word: &String| {
        let path = word.trim_end_matches('/');
        word.starts_with("http") && path.ends_with(&format!("/{archive}"))
    };
    words.into_iter().find(is_it).with_context(|| {
        format!("no mirror of {archive} was found in /etc/apt/sources.list or /etc/apt/sources.list.d; name one there")
    })
}
