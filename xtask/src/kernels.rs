//! Runs tests inside stock Debian kernels, in software emulation: what this machine's kernel refuses (LSM)
//! or is not.
//!
//! The machine inside has no disk and no network. Its files are an archive in memory: the test programs,
//! and the few programs of this system that they start, each where it is here.

mod archive;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::build::{self, succeed, target_dir, workspace};
use crate::debian::{self, Source};
use crate::toolchain::{cache_dir, is_root, output};

/// A kernel, and how it is started.
struct Kernel {
    /// What it is called here.
    name: &'static str,
    /// Debian's suite that has it.
    suite: &'static str,
    /// Its list of LSMs.
    lsm: &'static str,
    /// Whether an exec can be denied there.
    denies: bool,
}

const WITH_BPF: &str = "lockdown,capability,landlock,bpf";
const KERNELS: [Kernel; 3] = [
    Kernel {
        name: "6.1",
        suite: "bookworm",
        lsm: WITH_BPF,
        denies: true,
    },
    Kernel {
        name: "6.12",
        suite: "trixie",
        lsm: WITH_BPF,
        denies: true,
    },
    Kernel {
        name: "6.12 without BPF in its list of LSMs",
        suite: "trixie",
        lsm: "lockdown,capability,landlock",
        denies: false,
    },
];
const PACKAGE: &str = "linux-image-cloud-amd64";

/// What is run, of which package, with which filters.
///
/// A processor in software is slow, so it is what depends on the kernel: who is tracked, what is redirected,
/// the gate and its second line, and one agent with a daemon of its own.
const TESTS: [(&str, &str, &[&str]); 3] = [
    ("acrfence-user", "probe", &["exec::", "redirect::"]),
    (
        "acrfence-user",
        "process",
        &[
            "deny::",
            "typed::",
            "a_command_is_recorded",
            "calls_to_a_server",
            "nobody_is_left",
        ],
    ),
    ("acrfence-tests", "interactive", &["a_push_that_is_typed"]),
];

/// Programs that the tests start.
const PROGRAMS: [&str; 38] = [
    "bash",
    "cat",
    "chmod",
    "chown",
    "cp",
    "date",
    "dd",
    "echo",
    "env",
    "false",
    "git",
    "git-receive-pack",
    "git-upload-pack",
    "grep",
    "head",
    "id",
    "kill",
    "ln",
    "ls",
    "mkdir",
    "mount",
    "mv",
    "printf",
    "python3",
    "rm",
    "sed",
    "seq",
    "setsid",
    "sh",
    "sleep",
    "sort",
    "strace",
    "tail",
    "touch",
    "tr",
    "true",
    "umount",
    "wc",
];

/// Longest that one kernel may take.
const LIMIT: Duration = Duration::from_secs(25 * 60);

/// Which kernels.
#[derive(clap::Args, Default)]
pub struct Options {
    /// Only those whose name begins so (`6.1`, `6.12`).
    #[arg(long, value_name = "VERSION")]
    only: Option<String>,
    /// Only the tests with this in their names.
    #[arg(long, value_name = "TEXT")]
    test: Option<String>,
}

/// What it takes to start them.
pub struct Kernels {
    cache: PathBuf,
}

/// `cargo xtask kernels`.
pub fn run(options: &Options) -> Result<()> {
    set_up()?.test(options)
}

/// Installs the emulator, the kernels and a shell. An error says why that cannot be.
pub fn set_up() -> Result<Kernels> {
    ensure!(
        std::env::consts::ARCH == "x86_64",
        "the kernels are x86-64's, and so must the test programs be"
    );
    let cache = cache_dir()?.join("kernels");
    emulator()?;
    let shell = cache.join("busybox");
    if !shell.join("bin/busybox").exists() && !shell.join("usr/bin/busybox").exists() {
        let release = debian::release().context("this is no Debian")?;
        let source = Source::open(&shell, &[&release], None)?;
        source.unpack_alone(&["busybox-static"], &shell)?;
        source.close()?;
    }
    for kernel in &KERNELS {
        let root = cache.join(kernel.suite);
        if image(&root).is_ok() {
            continue;
        }
        eprintln!(
            "installing a kernel of Debian {} into {}",
            kernel.suite,
            root.display()
        );
        let source = Source::open(&root, &[kernel.suite], None)?;
        let package = source.first_dependency(PACKAGE)?;
        source.unpack_alone(&[&package], &root)?;
        source.close()?;
        // Nothing in the archive needs a module.
        for modules in ["lib/modules", "usr/lib/modules"] {
            match fs::remove_dir_all(root.join(modules)) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e.into()),
                _ => {}
            }
        }
        image(&root)?;
    }
    Ok(Kernels { cache })
}

fn emulator() -> Result<()> {
    if output(Command::new(EMULATOR).arg("--version")).is_some() {
        return Ok(());
    }
    ensure!(
        is_root() && output(Command::new("apt-get").arg("--version")).is_some(),
        "{EMULATOR} is not installed"
    );
    eprintln!("installing qemu-system-x86");
    succeed(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "--yes", "--no-install-recommends", "--quiet=2"])
            .arg("qemu-system-x86")
            .stdin(Stdio::null())
            .stdout(Stdio::null()),
    )
}

const EMULATOR: &str = "qemu-system-x86_64";

/// The kernel in an unpacked package.
fn image(root: &Path) -> Result<PathBuf> {
    let boot = root.join("boot");
    let files = fs::read_dir(&boot).with_context(|| format!("no {}", boot.display()))?;
    let names = files.filter_map(|file| Some(file.ok()?.path()));
    let is_kernel = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().starts_with("vmlinuz-")
    };
    let mut kernels = names.filter(is_kernel);
    kernels
        .next()
        .with_context(|| format!("no kernel in {}", boot.display()))
}

impl Kernels {
    /// Runs the tests in every kernel; fails when one of them fails anywhere.
    pub fn test(&self, options: &Options) -> Result<()> {
        build::run(&build::Options::default())?;
        let archive = self.archive(options)?;
        let mut failed = Vec::new();
        for kernel in &KERNELS {
            let wanted = options.only.as_ref();
            if wanted.is_some_and(|only| kernel.name.split(' ').next() != Some(only)) {
                continue;
            }
            println!("\n--- Linux {}", kernel.name);
            let began = Instant::now();
            match self.boot(kernel, &archive) {
                Ok(()) => println!(
                    "--- Linux {}: ok, {} s",
                    kernel.name,
                    began.elapsed().as_secs()
                ),
                Err(e) => {
                    println!("--- Linux {}: {e:#}", kernel.name);
                    failed.push(kernel.name);
                }
            }
        }
        ensure!(failed.is_empty(), "failed in Linux {}", failed.join(", "));
        Ok(())
    }

    /// The archive that the machine inside starts from.
    fn archive(&self, options: &Options) -> Result<PathBuf> {
        let place = target_dir().join("kernels");
        let mut root = archive::Root::new(&place.join("root"))?;
        let busybox = ["bin/busybox", "usr/bin/busybox"];
        let mut busybox = busybox.iter().map(|at| self.cache.join("busybox").join(at));
        let busybox = busybox.find(|at| at.exists()).context("no busybox")?;
        root.put(&busybox, Path::new("/busybox"))?;
        for program in PROGRAMS {
            root.add_program(program)?;
        }
        root.add_python()?;
        root.add_folder(Path::new("/usr/lib/git-core"))?;
        root.add_folder(Path::new("/usr/share/git-core/templates"))?;
        root.add_folder(&workspace().join("tests/programs"))?;
        root.add_stripped(&target_dir().join("debug/acrfence"))?;
        let mut lines = Vec::new();
        for (package, test, filters) in TESTS {
            let program = built(package, test)?;
            root.add_stripped(&program)?;
            let filters = match &options.test {
                Some(text) => text.clone(),
                None => filters.join(" "),
            };
            lines.push(format!(
                "{} --test-threads 2 {filters}; echo \"{RESULT}{test} $?\"",
                program.display()
            ));
        }
        root.write(
            "/etc/passwd",
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        )?;
        root.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")?;
        let acrfence = target_dir().join("debug/acrfence");
        let script = include_str!("kernels/init.sh")
            .replace("@BINARY@", &acrfence.display().to_string())
            .replace("@TESTS@", &lines.join("\n"));
        root.write_program("/init", &script)?;
        root.pack(&busybox, &place.join("archive.cpio"))
    }

    fn boot(&self, kernel: &Kernel, archive: &Path) -> Result<()> {
        let image = image(&self.cache.join(kernel.suite))?;
        let denies = if kernel.denies { "1" } else { "0" };
        let line = format!(
            "console=ttyS0 quiet panic=-1 lsm={} ACRFENCE_EXPECT_LSM={denies}",
            kernel.lsm
        );
        // One thread for both processors: with one each, a kernel that patches itself as it starts may
        // trip over the other processor's old instructions.
        let mut machine = Command::new(EMULATOR)
            .args([
                "-accel",
                "tcg,thread=single",
                "-cpu",
                "max",
                "-smp",
                "2",
                "-m",
                "4096",
            ])
            .args(["-nographic", "-no-reboot", "-nic", "none", "-append", &line])
            .arg("-kernel")
            .arg(image)
            .arg("-initrd")
            .arg(archive)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {EMULATOR}"))?;
        let out = machine.stdout.take().context("no output")?;
        let (tell, told) = std::sync::mpsc::channel();
        let reading = std::thread::spawn(move || {
            // What a terminal says need not be UTF-8.
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end().to_owned();
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        let outcome = follow(&told, Instant::now() + LIMIT);
        // It has ended by itself, or must.
        let _ = machine.kill();
        machine.wait()?;
        let _ = reading.join();
        outcome
    }
}

/// Begins a line that says how a test program ended.
const RESULT: &str = "KERNELS-RESULT ";

/// Shows what the machine says, and judges it.
fn follow(told: &std::sync::mpsc::Receiver<String>, until: Instant) -> Result<()> {
    let mut wanted: Vec<&str> = TESTS.iter().map(|(_, test, _)| *test).collect();
    let mut failed = Vec::new();
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let line = match told.recv_timeout(left) {
            Ok(line) => line,
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => break,
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                bail!("it took longer than {} s", LIMIT.as_secs())
            }
        };
        println!("    {line}");
        let Some((test, status)) = line
            .strip_prefix(RESULT)
            .and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        wanted.retain(|name| *name != test);
        if status != "0" {
            failed.push(test.to_owned());
        }
    }
    ensure!(wanted.is_empty(), "it ended before {}", wanted.join(", "));
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// Builds a test program; gives its file.
fn built(package: &str, test: &str) -> Result<PathBuf> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(workspace())
        .args([
            "test",
            "--no-run",
            "--message-format=json",
            "--package",
            package,
            "--test",
            test,
        ])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit());
    let done = cargo.output().context("cannot run cargo")?;
    ensure!(done.status.success(), "the test {test} cannot be built");
    let text = String::from_utf8_lossy(&done.stdout);
    let messages = text
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let mut programs = messages.filter_map(|message| {
        let is_it = message["target"]["name"] == test && message["target"]["kind"][0] == "test";
        is_it.then(|| message["executable"].as_str().map(PathBuf::from))?
    });
    programs
        .next()
        .with_context(|| format!("cargo does not say where the test {test} is"))
}
