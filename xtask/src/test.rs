//! Runs every check that a change must pass, in the order in which they fail fastest.

use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Result, ensure};

use crate::agents;
use crate::arm;
use crate::build::{self, workspace};
use crate::environment;
use crate::kernels;
use crate::licences;
use crate::toolchain::is_root;

/// Which checks to run.
#[derive(clap::Args)]
pub struct Options {
    /// Repeat ten times as often what only sometimes goes wrong.
    #[arg(long)]
    full: bool,
    /// Only run what needs no root: format, lints and unit tests.
    #[arg(long, conflicts_with = "full")]
    unprivileged: bool,
}

/// Runs them all, also after one failed, and says at the end what failed.
pub fn run(options: &Options) -> Result<()> {
    ensure!(
        options.unprivileged || is_root(),
        "the end-to-end tests load programs into the kernel and need root: run `sudo -E cargo xtask test`, or `cargo xtask test --unprivileged` for the rest"
    );
    let mut report = Report::new();
    report.step("format", || cargo(&["fmt", "--all", "--check"]));
    report.step("format of the kernel programs", || {
        cargo(&[
            "fmt",
            "--manifest-path",
            "acrfence-ebpf/Cargo.toml",
            "--check",
        ])
    });
    report.step("licences", || licences::run(&licences::Options {}));
    let built = report.step("build", || build::run(&build::Options::default()));
    if built {
        report.step("lints", || {
            cargo(&[
                "clippy",
                "--workspace",
                "--all-targets",
                "--quiet",
                "--",
                "-D",
                "warnings",
            ])
        });
    }
    // Some of the crates' own tests talk through the clients as well.
    let equipped = built
        && (options.unprivileged
            || report.step("clients", || environment::run(&clients(options)?)));
    if equipped {
        report.step("unit tests", || {
            cargo(&[
                "test",
                "--workspace",
                "--exclude",
                "acrfence-tests",
                "--no-fail-fast",
            ])
        });
    }
    if equipped && options.full {
        // Installs them into the user's cache first.
        report.step("real stdio servers", || {
            cargo(&[
                "test",
                "--package",
                "acrfence-user",
                "--test",
                "process",
                "--",
                "--ignored",
                "real_servers",
            ])
        });
    }
    if equipped && !options.unprivileged {
        report.step("end-to-end tests", || {
            let mut tests = command(&["test", "--package", "acrfence-tests", "--no-fail-fast"]);
            if options.full {
                tests.env("ACRFENCE_FULL", "1");
            }
            build::succeed(&mut tests)
        });
    }
    if options.full {
        report.optional("aarch64", arm::set_up, |cross| arm::check(&cross));
    }
    if equipped && options.full {
        report.optional("other kernels", kernels::set_up, |kernels| {
            kernels.test(&kernels::Options::default())
        });
    }
    report.end()
}

/// What the tests talk through: every agent, unless none is run.
fn clients(options: &Options) -> Result<environment::Options> {
    let agents = match options.unprivileged {
        true => Vec::new(),
        false => agents::names()?,
    };
    Ok(environment::Options::with_agents(agents))
}

struct Report {
    began: Instant,
    lines: Vec<String>,
    failed: Vec<&'static str>,
}

impl Report {
    fn new() -> Self {
        Self {
            began: Instant::now(),
            lines: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Runs a check and notes how it went; true when it passed.
    fn step(&mut self, name: &'static str, check: impl FnOnce() -> Result<()>) -> bool {
        println!("\n=== {name}");
        let began = Instant::now();
        let outcome = check();
        let word = if outcome.is_ok() { "ok" } else { "FAILED" };
        let seconds = began.elapsed().as_secs();
        self.lines
            .push(format!("{name:<30} {word:<7} {seconds:>4} s"));
        if let Err(e) = &outcome {
            self.failed.push(name);
            println!("{name}: {e:#}");
        }
        outcome.is_ok()
    }

    /// The same for a check that not every machine can make: where it cannot be set up, it is skipped
    /// and says why.
    fn optional<T>(
        &mut self,
        name: &'static str,
        set_up: impl FnOnce() -> Result<T>,
        check: impl FnOnce(T) -> Result<()>,
    ) {
        match set_up() {
            Ok(ready) => {
                self.step(name, || check(ready));
            }
            Err(e) => {
                println!("\n=== {name}\nskipped: {e:#}");
                self.lines.push(format!("{name:<30} skipped: {e:#}"));
            }
        }
    }

    fn end(self) -> Result<()> {
        println!("\n=== summary");
        for line in &self.lines {
            println!("{line}");
        }
        println!("{:<30} {:>12} s", "in all", self.began.elapsed().as_secs());
        ensure!(
            self.failed.is_empty(),
            "failed: {}; what needs it was not run",
            self.failed.join(", ")
        );
        println!("all checks passed");
        Ok(())
    }
}

fn cargo(words: &[&str]) -> Result<()> {
    build::succeed(&mut command(words))
}

fn command(words: &[&str]) -> Command {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(workspace())
        .args(words)
        .stdin(Stdio::null());
    cargo
}
