//! Containers as `runc` makes them: namespaces of their own, and the machine's programs inside.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cgroup::Cgroup;
use crate::client::plain;
use crate::criu;
use crate::process::run;

/// A container that is not started yet, or was and may be again. Dropping it ends it.
pub struct Container {
    dir: PathBuf,
    group: String,
    /// Its name as `runc` knows it; another one for every life.
    id: String,
    lives: u32,
}

impl Container {
    /// A container under `dir` for `command`, in which `shared` directories are what they are outside. It
    /// has pids, mounts and host names of its own, and the machine's network.
    pub fn new(dir: &Path, group: &Cgroup, command: &Command, shared: &[&Path]) -> Result<Self> {
        let root = dir.join("root");
        for sub in ["usr", "proc", "dev", "sys", "tmp", "etc"] {
            fs::create_dir_all(root.join(sub))?;
        }
        for sub in ["bin", "lib", "lib64"] {
            symlink(format!("usr/{sub}"), root.join(sub))?;
        }
        fs::copy("/etc/hosts", root.join("etc/hosts"))?;
        let mut mounts = vec![
            mount("proc", "proc", "/proc", &[]),
            mount("tmpfs", "tmpfs", "/dev", &["nosuid", "mode=755"]),
            mount("bind", "/usr", "/usr", &["bind", "ro"]),
        ];
        for path in shared {
            let path = path.to_str().context("a path that is not text")?;
            mounts.push(mount("bind", path, path, &["bind", "rw"]));
        }
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let group = group.path().file_name().context("a group without a name")?;
        let group = group.to_string_lossy().into_owned();
        let namespaces = ["pid", "ipc", "uts", "mount"].map(|kind| json!({ "type": kind }));
        let all = ["CAP_DAC_OVERRIDE", "CAP_KILL"];
        let config = json!({
            "ociVersion": "1.0.2",
            "process": {
                "terminal": false,
                "user": { "uid": 0, "gid": 0 },
                "args": words,
                "env": ["PATH=/usr/bin", "LANG=C.UTF-8"],
                "cwd": "/",
                "capabilities": { "bounding": all, "effective": all, "permitted": all },
                "noNewPrivileges": true,
            },
            "root": { "path": root, "readonly": false },
            "hostname": "inside",
            "mounts": mounts,
            "linux": { "namespaces": namespaces, "cgroupsPath": format!("/{group}/inside") },
        });
        fs::write(dir.join("config.json"), config.to_string())?;
        criu_for_runc(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            group,
            id: "never started".into(),
            lives: 0,
        })
    }

    /// A command that starts it and stays until it has ended.
    pub fn start(&mut self) -> Command {
        self.next_life();
        let mut command = self.runc(&["run"]);
        command.arg("--bundle").arg(&self.dir).arg(&self.id);
        command
    }

    /// Saves it into `images`, with `more` options; by itself that ends it.
    pub fn checkpoint(&self, images: &Path, more: &[&str]) -> Result<()> {
        let mut command = self.runc(&["checkpoint"]);
        command.arg("--image-path").arg(images);
        command.arg("--work-path").arg(self.dir.join("dump"));
        command.args(more).arg(&self.id);
        self.finish("checkpoint", command, "dump/dump.log")
    }

    /// Makes it anew from `images`; it goes on by itself. `enter` prepares the command.
    pub fn restore(
        &mut self,
        images: &Path,
        enter: impl FnOnce(&mut Command) -> Result<()>,
    ) -> Result<()> {
        self.end()?;
        self.next_life();
        let mut command = self.runc(&["restore", "--detach"]);
        command.arg("--image-path").arg(images);
        command.arg("--work-path").arg(self.dir.join("restore"));
        command.arg("--bundle").arg(&self.dir).arg(&self.id);
        enter(&mut command)?;
        self.finish("restore", command, "restore/restore.log")
    }

    /// What `runc` wrote down so far.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("runc.log")).unwrap_or_default()
    }

    /// Ends whatever runs in it and forgets it.
    pub fn end(&self) -> Result<()> {
        if self.lives > 0 {
            let mut command = self.runc(&["delete", "--force"]);
            run("runc delete", command.arg(&self.id))?;
        }
        Ok(())
    }

    fn next_life(&mut self) {
        self.lives += 1;
        self.id = format!("{}-{}", self.group, self.lives);
    }

    fn runc(&self, words: &[&str]) -> Command {
        let mut command = plain("runc");
        let path = std::env::var("PATH").unwrap_or_default();
        let own = self.dir.join("bin");
        command.env("PATH", format!("{}:{path}:/usr/sbin", own.display()));
        command.arg("--root").arg(self.dir.join("runc"));
        command.arg("--log").arg(self.dir.join("runc.log"));
        command.args(words);
        command
    }

    fn finish(&self, what: &str, mut command: Command, log: &str) -> Result<()> {
        let log = self.dir.join(log);
        // It opens its pipes again by their names when it restores, so it gets none.
        let null = || fs::OpenOptions::new().write(true).open("/dev/null");
        command.stdin(fs::File::open("/dev/null")?);
        command.stdout(null()?).stderr(null()?);
        let status = command.status().context("starting runc")?;
        let told = || {
            let text = fs::read_to_string(&log).unwrap_or_default();
            let lines: Vec<&str> = text.lines().filter(|l| l.contains("Error")).collect();
            format!("{}\n{}", self.log(), lines.join("\n"))
        };
        ensure!(status.success(), "runc {what}: {status}: {}", told());
        Ok(())
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if let Err(e) = self.end() {
            eprintln!("the container {} may be left behind: {e:#}", self.id);
        }
    }
}

fn mount(kind: &str, source: &str, to: &str, options: &[&str]) -> Value {
    json!({ "destination": to, "type": kind, "source": source, "options": options })
}

/// `runc` looks for a program of this name; ours lives in a folder of its own.
fn criu_for_runc(dir: &Path) -> Result<()> {
    let words = criu::words()?;
    let quoted: Vec<String> = words.iter().map(|word| format!("'{word}'")).collect();
    fs::create_dir_all(dir.join("bin"))?;
    let file = dir.join("bin/criu");
    fs::write(
        &file,
        format!("#!/bin/sh\nexec {} \"$@\"\n", quoted.join(" ")),
    )?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
