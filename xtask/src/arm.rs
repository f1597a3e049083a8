//! Checks that library and binary compile for aarch64, where none of it can be run.
//!
//! rustup's compiler does it where its `aarch64-unknown-linux-gnu` is installed. Debian's needs the standard
//! library of another architecture's package, and a C compiler for the crates that have C in them; both are
//! unpacked into the user's cache directory.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::debian::{self, Source};
use crate::toolchain::{cache_dir, output};

const TARGET: &str = "aarch64-unknown-linux-gnu";

/// What it takes to compile for the other architecture.
pub struct Cross {
    /// Where Debian's things were unpacked; none when rustup has all that is needed.
    root: Option<PathBuf>,
}

/// Finds it, or sets it up. An error says what is missing.
pub fn set_up() -> Result<Cross> {
    let has_target = output(Command::new("rustup").args(["target", "list", "--installed"]))
        .is_some_and(|all| all.lines().any(|one| one == TARGET));
    if has_target && output(Command::new("aarch64-linux-gnu-gcc").arg("--version")).is_some() {
        return Ok(Cross { root: None });
    }
    let version = output(Command::new("dpkg-query").args(["-W", "-f=${Version}", "rustc-web"]))
        .filter(|version| !version.is_empty())
        .with_context(|| {
            format!("neither rustup's {TARGET} with gcc-aarch64-linux-gnu nor Debian's rustc-web is installed")
        })?;
    let release = debian::release().context("this is no Debian")?;
    let root = cache_dir()?.join("aarch64");
    // Written last, so that what is there is whole.
    let stamp = root.join("installed.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == version) {
        return Ok(Cross { root: Some(root) });
    }
    eprintln!(
        "installing a standard library and a C compiler for aarch64 into {}",
        root.display()
    );
    let security = format!("{release}-security");
    let suites = [release.as_str(), security.as_str()];
    let source = Source::open(&root, &suites, Some("arm64"))?;
    source.unpack_alone(
        &[&format!("libstd-rust-web-dev={version}")],
        &root.join("sysroot"),
    )?;
    source.close()?;
    let standard = root.join("sysroot/usr/lib/rustlib").join(TARGET);
    ensure!(
        standard.is_dir(),
        "libstd-rust-web-dev {version} has no standard library for {TARGET}"
    );
    // Its own package lists, of this machine's architecture, in a folder of its own.
    let native = root.join("native");
    let source = Source::open(&native, &suites, None)?;
    source
        .unpack_with_dependencies(&["gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross"], &native)?;
    source.close()?;
    for tool in ["gcc", "ar"] {
        wrapper(&native, tool, &root)?;
    }
    fs::write(stamp, version)?;
    Ok(Cross { root: Some(root) })
}

/// A script that starts a tool of the unpacked compiler with the libraries that were unpacked with it.
fn wrapper(native: &Path, tool: &str, root: &Path) -> Result<()> {
    let name = format!("aarch64-linux-gnu-{tool}");
    let real = native.join("usr/bin").join(&name);
    ensure!(real.exists(), "{name} is missing in {}", native.display());
    let script = format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH={0}/usr/lib/x86_64-linux-gnu\nexport PATH={0}/usr/bin:$PATH\nexec {1} \"$@\"\n",
        native.display(),
        real.display()
    );
    let path = root.join(name);
    fs::write(&path, script)?;
    Ok(fs::set_permissions(
        &path,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// Checks library and binary; warnings are errors.
pub fn check(cross: &Cross) -> Result<()> {
    // Read at compile time; its instructions are the same for every architecture.
    let object = build::kernel_programs(None)?;
    let mut flags = "-Dwarnings".to_owned();
    let mut cargo = match &cross.root {
        None => Command::new(env!("CARGO")),
        Some(root) => {
            let sysroot = root.join("sysroot/usr");
            flags.push_str(&format!(" --sysroot={}", sysroot.display()));
            let tool = |name: &str| root.join(format!("aarch64-linux-gnu-{name}"));
            let mut cargo = Command::new("/usr/bin/cargo");
            cargo
                .env("RUSTC", "/usr/bin/rustc")
                .env("CC_aarch64_unknown_linux_gnu", tool("gcc"))
                .env("AR_aarch64_unknown_linux_gnu", tool("ar"));
            cargo
        }
    };
    cargo
        .current_dir(workspace())
        .env("ACRFENCE_BPF_OBJECT", object)
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS", flags)
        // Another compiler than that of the rest.
        .env("CARGO_TARGET_DIR", target_dir().join("aarch64"))
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .args([
            "check",
            "--locked",
            "--quiet",
            "--package",
            "acrfence-user",
            "--target",
            TARGET,
        ]);
    succeed(&mut cargo)
}
