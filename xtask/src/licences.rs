//! Checks that every package the workspace depends on may be shipped with it.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use crate::build::workspace;

/// Nothing to choose.
#[derive(clap::Args)]
pub struct Options {}

/// Licences that ask for no more than a notice.
const ALLOWED: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    // Lists of certificate authorities.
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Packages whose manifest names a file instead of a licence; what that file says.
const READ_BY_HAND: [(&str, &str); 1] = [("ollama-rs", "MIT")];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
}

/// Fails with the list of packages that may not be shipped.
pub fn run(_: &Options) -> Result<()> {
    let mut refused = Vec::new();
    let mut count = 0;
    for manifest in ["Cargo.toml", "acrfence-ebpf/Cargo.toml"] {
        for package in packages(manifest)? {
            count += 1;
            if let Err(why) = allowed(&package) {
                refused.push(format!("{} {}: {why}", package.name, package.version));
            }
        }
    }
    ensure!(
        refused.is_empty(),
        "these packages cannot be shipped; choose others, or allow their licence in xtask/src/licences.rs:\n{}",
        refused.join("\n")
    );
    println!("{count} packages, all under licences that ask for no more than a notice");
    Ok(())
}

fn packages(manifest: &str) -> Result<Vec<Package>> {
    let output = Command::new(env!("CARGO"))
        .current_dir(workspace())
        .args(["metadata", "--format-version=1", "--locked"])
        .args(["--manifest-path", manifest])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo metadata")?;
    ensure!(
        output.status.success(),
        "cargo metadata failed for {manifest}"
    );
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    Ok(metadata.packages)
}

/// Whether some choice of the package's licences is allowed; if not, why.
fn allowed(package: &Package) -> Result<(), String> {
    let by_hand = READ_BY_HAND.iter().find(|(name, _)| *name == package.name);
    let Some(licence) = package.license.as_deref().or(by_hand.map(|(_, l)| *l)) else {
        return Err("its manifest names no licence".into());
    };
    let expression =
        Expression::parse_mode(licence, ParseMode::LAX).map_err(|e| e.reason.to_string())?;
    // An exception (`WITH …`) only ever adds permissions.
    let fits = expression.evaluate(|wanted| {
        ALLOWED
            .iter()
            .any(|name| wanted.license.id().is_some_and(|id| id.name == *name))
    });
    if fits { Ok(()) } else { Err(licence.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(licence: &str) -> Package {
        Package {
            name: "some".into(),
            version: "1.0.0".into(),
            license: Some(licence.into()),
        }
    }

    #[test]
    fn one_allowed_choice_is_enough_and_all_parts_must_be_allowed() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            assert_eq!(allowed(&package(good)), Ok(()), "{good}");
        }
        for bad in ["GPL-3.0-only", "MIT AND AGPL-3.0-only", "Proprietary", ""] {
            assert!(allowed(&package(bad)).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_package_without_a_licence_is_refused() {
        let unknown = Package {
            license: None,
            ..package("")
        };
        assert!(allowed(&unknown).is_err());
    }
}
