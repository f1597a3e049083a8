//! Builds the kernel programs and the binary that embeds them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};

use crate::toolchain;

/// What to build.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Build the binary with optimisations.
    #[arg(long)]
    pub release: bool,
    /// Build for this target instead of this machine (`aarch64-unknown-linux-gnu`, …).
    #[arg(long, value_name = "TRIPLE")]
    pub target: Option<String>,
    /// Only build the kernel programs.
    #[arg(long)]
    pub kernel_only: bool,
}

/// Builds the kernel programs if they are out of date, then the binary.
pub fn run(options: &Options) -> Result<()> {
    let object = kernel_programs(options.target.as_deref())?;
    if options.kernel_only {
        println!("{}", object.display());
        return Ok(());
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(workspace())
        .args(["build", "--package", "acrfence-user"]);
    if options.release {
        cargo.arg("--release");
    }
    if let Some(target) = &options.target {
        cargo.args(["--target", target]);
    }
    succeed(&mut cargo)
}

/// Builds the kernel programs if they are out of date; gives the path of the object.
pub fn kernel_programs(target: Option<&str>) -> Result<PathBuf> {
    let target_dir = target_dir();
    let folder = target_dir.join("ebpf");
    let object = folder.join("acrfence.bpf.o");
    let arch = bpf_arch(target)?;
    // The object remembers what it was built for; everything else is a matter of time stamps.
    let stamp = folder.join("built-for");
    let built_for = format!("{arch}\n");
    if is_current(&object)? && fs::read_to_string(&stamp).is_ok_and(|s| s == built_for) {
        return Ok(object);
    }

    let toolchain = toolchain::find_or_set_up()?;
    eprintln!("building the kernel programs with {toolchain}");
    let crate_dir = workspace().join("acrfence-ebpf");
    let build_dir = folder.join("build");
    let flags = [
        &format!("--cfg=bpf_target_arch=\"{arch}\""),
        "-Cdebuginfo=2",
        "-Clinker=bpf-linker",
        "-Clink-arg=--btf",
    ]
    .join("\x1f");
    let mut cargo = toolchain.cargo();
    cargo
        .current_dir(&crate_dir)
        .env("CARGO_ENCODED_RUSTFLAGS", flags)
        .env("CARGO_TARGET_DIR", &build_dir)
        // What the outer cargo exported describes the outer toolchain.
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("RUSTDOC")
        .env_remove("CARGO")
        .env_remove("RUSTFLAGS")
        .args(["build", "--release", "--locked", "--target", TARGET]);
    if toolchain.needs_build_std() {
        cargo.args(["-Z", "build-std=core"]);
    }
    succeed(&mut cargo)?;

    let built = build_dir.join(TARGET).join("release").join("acrfence");
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    // Appear whole or not at all, and do not look newer than the binary when nothing changed.
    if fs::read(&built).ok() != fs::read(&object).ok() {
        let partial = folder.join("acrfence.bpf.o.partial");
        fs::copy(&built, &partial).with_context(|| format!("cannot copy {}", built.display()))?;
        fs::rename(&partial, &object)?;
    } else {
        fs::File::options()
            .append(true)
            .open(&object)?
            .set_modified(SystemTime::now())?;
    }
    fs::write(&stamp, built_for)?;
    Ok(object)
}

/// The folder that holds the main workspace.
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_path_buf()
}

/// Runs `command` and fails with its command line if it fails.
pub fn succeed(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run {}", shown(command)))?;
    ensure!(status.success(), "`{}` failed ({status})", shown(command));
    Ok(())
}

const TARGET: &str = "bpfel-unknown-none";

fn shown(command: &Command) -> String {
    let words: Vec<_> = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect();
    words.join(" ")
}

/// Where cargo puts what it builds.
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .filter(|dir: &OsString| !dir.is_empty())
        // A relative one is relative to where cargo was called.
        .map(|dir| std::path::absolute(&dir).unwrap_or_else(|_| dir.into()))
        .unwrap_or_else(|| workspace().join("target"))
}

/// aya's name for the architecture of the machine that will run the programs.
fn bpf_arch(target: Option<&str>) -> Result<&str> {
    let arch = match target {
        Some(triple) => triple.split('-').next().unwrap_or_default(),
        None => std::env::consts::ARCH,
    };
    match arch {
        "x86_64" | "aarch64" => Ok(arch),
        other => {
            bail!("ACRFence knows x86-64 and aarch64, not `{other}`; build on or for one of these")
        }
    }
}

/// Whether the object is newer than everything it is made of.
fn is_current(object: &Path) -> Result<bool> {
    let Ok(built) = fs::metadata(object).and_then(|meta| meta.modified()) else {
        return Ok(false);
    };
    let root = workspace();
    let sources = [
        "acrfence-ebpf/src",
        "acrfence-ebpf/Cargo.toml",
        "acrfence-ebpf/Cargo.lock",
        "acrfence-common/src",
        "acrfence-common/Cargo.toml",
        "xtask/src/build.rs",
        "xtask/src/toolchain.rs",
    ];
    for source in sources {
        let path = root.join(source);
        let newest = newest(&path).with_context(|| format!("cannot look at {}", path.display()))?;
        if newest > built {
            return Ok(false);
        }
    }
    Ok(true)
}

fn newest(path: &Path) -> std::io::Result<SystemTime> {
    let meta = fs::metadata(path)?;
    let mut time = meta.modified()?;
    if meta.is_dir() {
        for entry in fs::read_dir(path)? {
            time = time.max(newest(&entry?.path())?);
        }
    }
    Ok(time)
}
