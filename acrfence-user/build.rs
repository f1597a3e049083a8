//! Puts the kernel programs, which `cargo xtask build` makes, where the library embeds them from.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs};

fn main() -> ExitCode {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={OVERRIDE}");
    match embed() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            println!("cargo::error={why}");
            ExitCode::FAILURE
        }
    }
}

/// Path of an object to embed instead.
const OVERRIDE: &str = "ACRFENCE_BPF_OBJECT";

fn embed() -> Result<(), String> {
    let out: PathBuf = env::var_os("OUT_DIR")
        .ok_or("cargo did not set OUT_DIR")?
        .into();
    let object = match env::var_os(OVERRIDE).filter(|path| !path.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => beside(&out)?,
    };
    println!("cargo::rerun-if-changed={}", object.display());
    let bytes = fs::read(&object).map_err(|e| {
        format!(
            "the kernel programs are not built ({}: {e}); run `cargo xtask build`, which builds them first",
            object.display()
        )
    })?;
    // `EM_BPF` in a little-endian ELF header; anything else would only fail at run time.
    if bytes.get(..4) != Some(b"\x7fELF") || bytes.get(18..20) != Some(&[247, 0]) {
        return Err(format!(
            "{} holds no kernel programs; run `cargo xtask build` to build them",
            object.display()
        ));
    }
    fs::write(out.join("acrfence.bpf.o"), bytes)
        .map_err(|e| format!("cannot write to {}: {e}", out.display()))
}

/// Where `cargo xtask build` puts the object: in the target directory that `out` lies in.
fn beside(out: &Path) -> Result<PathBuf, String> {
    // `TARGET_DIR/[TRIPLE/]PROFILE/build/PACKAGE/out`
    let ancestors: Vec<&Path> = out.ancestors().skip(4).take(2).collect();
    let candidate = |dir: &&Path| dir.join("ebpf").join("acrfence.bpf.o");
    ancestors
        .iter()
        .map(candidate)
        .find(|path| path.exists())
        .or_else(|| {
            let cross = env::var("TARGET") != env::var("HOST");
            ancestors.get(usize::from(cross)).map(candidate)
        })
        .ok_or_else(|| format!("{} is no place cargo builds in", out.display()))
}
