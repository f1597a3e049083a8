//! Finds a Rust toolchain that can build for the kernel, or sets one up.
//!
//! The usual one is nightly with `rust-src`, and `bpf-linker` in PATH. Debian ships another whole
//! set: a compiler with a ready-made `core` for the BPF target and the LLVM it was built with; only
//! `bpf-linker` has to be built against that LLVM, once, into the user's cache directory.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::build::succeed;

/// A toolchain that can build for `bpfel-unknown-none`.
pub enum Toolchain {
    /// rustup's nightly with `rust-src`, and a `bpf-linker` in PATH.
    Nightly,
    /// Debian's packages, and the folder with a `bpf-linker` built against their LLVM.
    Debian {
        /// Where `bpf-linker` is.
        linker: PathBuf,
    },
}

impl Toolchain {
    /// The cargo of this toolchain, ready to be told what to do.
    pub fn cargo(&self) -> Command {
        match self {
            Self::Nightly => {
                let mut cargo = Command::new("rustup");
                cargo.args(["run", "nightly", "cargo"]);
                cargo.env_remove("RUSTUP_TOOLCHAIN");
                cargo
            }
            Self::Debian { linker } => {
                let mut cargo = Command::new("/usr/bin/cargo");
                cargo.env("PATH", path_with(&[linker, Path::new("/usr/bin")]));
                cargo.env("RUSTC", "/usr/bin/rustc");
                // aya-ebpf uses inline assembly for BPF, which is not stable yet.
                cargo.env("RUSTC_BOOTSTRAP", "1");
                cargo
            }
        }
    }

    /// Whether `core` has to be built along.
    pub fn needs_build_std(&self) -> bool {
        matches!(self, Self::Nightly)
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nightly => f.write_str("nightly and its rust-src"),
            Self::Debian { .. } => f.write_str("Debian's rustc-web"),
        }
    }
}

/// Finds a toolchain, or sets up Debian's where that is possible.
pub fn find_or_set_up() -> Result<Toolchain> {
    if nightly_is_complete() {
        return Ok(Toolchain::Nightly);
    }
    let missing: Vec<_> = PACKAGES.into_iter().filter(|p| !is_installed(p)).collect();
    if !missing.is_empty() {
        install(&missing)?;
    }
    let linker = linker()?;
    Ok(Toolchain::Debian { linker })
}

const LLVM: &str = "/usr/lib/llvm-22";
const LINKER_VERSION: &str = "0.13.0";
const PACKAGES: [&str; 5] = [
    "rustc-web",
    "cargo-web",
    "rust-web-src",
    "libstd-rust-web-dev-bpf",
    "llvm-22-dev",
];
const WAYS: &str = "install rustup's nightly with its `rust-src` component and `cargo install \
     bpf-linker`, or build on Debian 12 or 13 as root, where `cargo xtask build` installs what it needs";

fn nightly_is_complete() -> bool {
    let Some(sysroot) =
        output(Command::new("rustup").args(["run", "nightly", "rustc", "--print", "sysroot"]))
    else {
        return false;
    };
    let core = Path::new(sysroot.trim()).join("lib/rustlib/src/rust/library/core/Cargo.toml");
    core.exists() && output(Command::new("bpf-linker").arg("--version")).is_some()
}

fn is_installed(package: &str) -> bool {
    output(Command::new("dpkg-query").args(["-W", "-f=${db:Status-Status}", package]))
        .is_some_and(|status| status == "installed")
}

fn install(missing: &[&str]) -> Result<()> {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let field = |name: &str| {
        release
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix('='))
            .unwrap_or_default()
            .trim_matches('"')
            .to_owned()
    };
    let known = field("ID") == "debian" && ["12", "13"].contains(&field("VERSION_ID").as_str());
    if !known {
        bail!("no Rust toolchain here can build for the kernel: {WAYS}");
    }
    if !is_root() {
        bail!(
            "the kernel programs need Debian's {0}; run `sudo apt-get install {0}` (or `cargo xtask build` once as root), then build again",
            missing.join(" ")
        );
    }
    eprintln!(
        "installing Debian's {} (a compiler for the kernel's instruction set)",
        missing.join(", ")
    );
    let attempt = |quiet: bool| {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "--yes", "--no-install-recommends", "--quiet=2"])
            .args(missing)
            .stdin(Stdio::null());
        if quiet {
            apt.stdout(Stdio::null()).stderr(Stdio::null());
        }
        succeed(&mut apt)
    };
    // Fresh machines have no package lists, old ones have stale ones.
    if attempt(true).is_ok() {
        return Ok(());
    }
    succeed(Command::new("apt-get").args(["update", "--quiet=2"]))
        .context("the package lists could not be fetched; check the network and /etc/apt")?;
    attempt(false).context(
        "Debian's compiler packages could not be installed; they are in the main and security archives of Debian 12 and 13",
    )
}

/// The folder with a `bpf-linker` that uses Debian's LLVM, built on first use.
fn linker() -> Result<PathBuf> {
    let root = cache_dir()?.join(format!("bpf-linker-{LINKER_VERSION}-llvm-22"));
    let bin = root.join("bin");
    // It fails to start when its LLVM was removed or replaced.
    if output(Command::new(bin.join("bpf-linker")).arg("--version")).is_some() {
        return Ok(bin);
    }
    ensure!(
        Path::new(LLVM).is_dir(),
        "Debian's llvm-22-dev is installed but {LLVM} is missing; reinstall it with `apt-get install --reinstall llvm-22-dev`"
    );
    eprintln!("building bpf-linker {LINKER_VERSION} once, about a minute");
    let llvm_bin = Path::new(LLVM).join("bin");
    let build_dir = root.with_extension("build");
    let mut cargo = Command::new("/usr/bin/cargo");
    cargo
        .env("LLVM_PREFIX", LLVM)
        .env("PATH", path_with(&[&llvm_bin, Path::new("/usr/bin")]))
        .env("RUSTC", "/usr/bin/rustc")
        .env("CARGO_TARGET_DIR", &build_dir)
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .current_dir("/")
        .args(["install", "bpf-linker", "--quiet", "--locked", "--force"])
        .args(["--version", LINKER_VERSION])
        .args(["--no-default-features", "--features", "llvm-22", "--root"])
        .arg(&root);
    succeed(&mut cargo)
        .context("bpf-linker could not be built; the registry must be reachable and a C++ compiler installed (`apt-get install g++`)")?;
    // Hundreds of megabytes that nobody needs again.
    if let Err(error) = fs::remove_dir_all(&build_dir) {
        eprintln!("{} can be removed ({error})", build_dir.display());
    }
    Ok(bin)
}

/// Where things are kept that are built once for a user.
pub fn cache_dir() -> Result<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value: &OsString| !value.is_empty());
    let base = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME is set; set one, bpf-linker is built into it")?;
    Ok(base.join("acrfence"))
}

fn path_with(first: &[&Path]) -> OsString {
    let rest = std::env::var_os("PATH").unwrap_or_default();
    let all = first
        .iter()
        .map(|p| p.to_path_buf())
        .chain(std::env::split_paths(&rest));
    // Only fails when a folder holds a colon; then the short list has to do.
    std::env::join_paths(all).unwrap_or_else(|_| "/usr/bin:/bin".into())
}

/// Whether this is the superuser.
pub fn is_root() -> bool {
    output(Command::new("id").arg("-u")).is_some_and(|uid| uid.trim() == "0")
}

/// What a command printed; none when it cannot be run or fails.
pub fn output(command: &mut Command) -> Option<String> {
    let done = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    done.status
        .success()
        .then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}
