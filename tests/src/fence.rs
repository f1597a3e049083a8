//! A daemon of a test's own: own state, own sockets, own pins, own control group.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;
use tempfile::TempDir;

use crate::authority::Authority;
use crate::cgroup::Cgroup;
use crate::client::plain;
use crate::process::{Ended, Running, run};

/// A user and a group without any rights.
pub const NOBODY: u32 = 65534;

/// A running daemon. Dropping it stops it and takes away everything it had.
pub struct Fence {
    // In the order in which they must go.
    daemon: Option<Running>,
    place: Place,
}

/// Where a daemon keeps its things, with or without a daemon that runs there.
pub struct Place {
    wrapper: Vec<String>,
    cgroup: Cgroup,
    pins: Pins,
    dir: TempDir,
}

impl Place {
    /// An empty place whose daemon will trust `roots` upstream and read `config` (TOML) besides.
    pub fn new(roots: &[&Path], config: &str) -> Result<Self> {
        let dir = tempfile::Builder::new()
            .prefix(&format!("acrfence-e2e-{}-", std::process::id()))
            .tempdir()
            .context("making a directory for a daemon")?;
        // The control socket is for everybody; who may do what is the daemon's business.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
        for sub in ["state", "run", "elsewhere"] {
            fs::create_dir(dir.path().join(sub))?;
        }
        let roots: Vec<Value> = roots
            .iter()
            .map(|root| root.to_string_lossy().into())
            .collect();
        let config = format!(
            "{config}\n[upstream]\nextra_roots = {}\n",
            Value::from(roots)
        );
        fs::write(dir.path().join("config.toml"), config)?;
        let cgroup = Cgroup::new()?;
        let pins = Pins::mount(dir.path().join("pins"))?;
        Ok(Self {
            wrapper: Vec::new(),
            cgroup,
            pins,
            dir,
        })
    }

    /// Makes daemons start here through `wrapper`, a command that ends by becoming its arguments.
    pub fn wrapped(self, wrapper: Vec<String>) -> Self {
        Self { wrapper, ..self }
    }

    /// The command that starts a daemon here. It starts inside the control group that its own
    /// programs watch: that its traffic is left alone must not depend on where it runs.
    pub fn daemon(&self) -> Result<Command> {
        let mut words = self.wrapper.iter().map(OsString::from).collect::<Vec<_>>();
        words.push(acrfence()?.into());
        let mut command = plain(&words[0]);
        command
            .args(&words[1..])
            .arg("daemon")
            .arg("--config")
            .arg(self.dir.path().join("config.toml"))
            .arg("--state")
            .arg(self.dir.path().join("state"))
            .arg("--run-dir")
            .arg(self.run_dir())
            .arg("--pin-dir")
            .arg(self.pins.path.join("acrfence"))
            .arg("--cgroup")
            .arg(self.cgroup.path())
            .arg("--key-file")
            .arg(self.dir.path().join("elsewhere/key"))
            .arg("--anchor")
            .arg(self.dir.path().join("elsewhere/anchor"));
        self.cgroup.enter(&mut command)?;
        Ok(command)
    }

    /// `command`, which comes from here and starts `acrfence`, as `nobody`: from a copy of the
    /// program, since a home directory with the build in it is closed to others.
    pub fn as_nobody(&self, command: &Command) -> Result<Command> {
        let copy = self.dir.path().join("acrfence");
        if !copy.exists() {
            // By another process: a descriptor that is open for writing here would be inherited by
            // whatever another thread starts meanwhile, and keep the copy from being run.
            let program = command.get_program();
            let copied = run("cp", plain("cp").arg("--").arg(program).arg(&copy))?;
            ensure!(copied.ok(), "copying {program:?}: {}", copied.stderr);
        }
        let mut command_of_nobody = plain(copy);
        command_of_nobody.args(command.get_args()).current_dir("/");
        self.cgroup.enter(&mut command_of_nobody)?;
        command_of_nobody.uid(NOBODY).gid(NOBODY);
        Ok(command_of_nobody)
    }

    /// Directory of the control socket.
    pub fn run_dir(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    /// A directory for the files of agents.
    pub fn scratch(&self) -> &Path {
        self.dir.path()
    }

    /// The control group in which agents start.
    pub fn cgroup(&self) -> &Cgroup {
        &self.cgroup
    }

    /// `acrfence ARGUMENTS…` against the daemon of this place.
    pub fn cli<S: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = S>) -> Result<Command> {
        let mut command = plain(acrfence()?);
        command.arg("--run-dir").arg(self.run_dir()).args(arguments);
        Ok(command)
    }
}

impl Fence {
    /// Starts a daemon that trusts the services of `authority`.
    pub fn start(authority: &Authority) -> Result<Self> {
        Self::start_with(&[&authority.root()], "")
    }

    /// Starts a daemon that trusts `roots` upstream and reads `config` (TOML) besides. Returns when
    /// it takes commands.
    pub fn start_with(roots: &[&Path], config: &str) -> Result<Self> {
        Self::start_in(Place::new(roots, config)?)
    }

    /// Starts a daemon in a place.
    pub fn start_in(place: Place) -> Result<Self> {
        let mut fence = Self {
            daemon: None,
            place,
        };
        fence.start_again()?;
        Ok(fence)
    }

    /// Its place.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Process id of the daemon.
    pub fn daemon_id(&self) -> Result<u32> {
        let daemon = self.daemon.as_ref().context("no daemon runs here")?;
        Ok(daemon.id())
    }

    /// `kill -9` of the daemon.
    pub fn kill(&mut self) -> Result<()> {
        let mut daemon = self.daemon.take().context("no daemon runs here")?;
        daemon.kill()
    }

    /// Starts the daemon in the same place, after [`Self::kill`].
    pub fn start_again(&mut self) -> Result<()> {
        ensure!(self.daemon.is_none(), "a daemon runs here already");
        let mut daemon = Running::start("the daemon", &mut self.place.daemon()?)?;
        daemon.wait_for("ready")?;
        self.daemon = Some(daemon);
        Ok(())
    }

    /// `command` as an agent called `name`, by way of `acrfence run`, with the same environment.
    pub fn launch(&self, name: &str, command: &Command) -> Result<Command> {
        self.launch_with(name, &[], command)
    }

    /// The same, with more options of `acrfence run`.
    pub fn launch_with(&self, name: &str, options: &[&str], command: &Command) -> Result<Command> {
        let mut launched = self.place.cli(["run", "--name", name])?;
        launched.args(options).arg("--");
        launched.arg(command.get_program()).args(command.get_args());
        launched.env_clear();
        if let Some(directory) = command.get_current_dir() {
            launched.current_dir(directory);
        }
        for (variable, value) in command.get_envs() {
            if let Some(value) = value {
                launched.env(variable, value);
            }
        }
        self.place.cgroup.enter(&mut launched)?;
        Ok(launched)
    }

    /// Runs `command` as an agent called `name` to its end.
    pub fn run(&self, name: &str, command: &Command) -> Result<Ended> {
        run(name, &mut self.launch(name, command)?)
    }

    /// Says something to the daemon that must succeed; returns what the command printed.
    pub fn say(&self, arguments: &[&str]) -> Result<String> {
        let ended = self.try_say(arguments)?;
        if !ended.ok() {
            bail!(
                "`acrfence {}` failed ({:?}): {}{}",
                arguments.join(" "),
                ended.code,
                ended.stdout,
                ended.stderr
            );
        }
        Ok(ended.stdout)
    }

    /// Says something to the daemon, whatever comes of it.
    pub fn try_say(&self, arguments: &[&str]) -> Result<Ended> {
        run(
            format!("acrfence {}", arguments.join(" ")),
            &mut self.place.cli(arguments)?,
        )
    }

    /// Asks with `--json`; returns the objects of the answer.
    pub fn ask(&self, arguments: &[&str]) -> Result<Vec<Value>> {
        let said = self.say(&[arguments, &["--json"]].concat())?;
        said.lines()
            .filter(|line| !line.is_empty())
            .map(|line| {
                serde_json::from_str(line)
                    .with_context(|| format!("`acrfence {}` printed: {line}", arguments.join(" ")))
            })
            .collect()
    }

    /// Why each branch of `agent` was opened: `start`, `restore`, `fork`.
    pub fn branches(&self, agent: &str) -> Result<Vec<String>> {
        let tree = self.ask(&["tree", agent])?;
        let threads = tree[0]["threads"].as_array().context("a tree of threads")?;
        let branches = threads.iter().filter_map(|t| t["branches"].as_array());
        Ok(branches
            .flatten()
            .filter_map(|branch| Some(branch["branch"]["cause"].as_str()?.to_owned()))
            .collect())
    }

    /// Effects of `agent`, oldest first.
    pub fn effects(&self, agent: &str) -> Result<Vec<Value>> {
        let mut effects = self.ask(&["effects", "--agent", agent])?;
        effects.sort_by_key(|effect| {
            effect["id"]
                .as_str()
                .and_then(|id| id.trim_start_matches('e').parse::<u64>().ok())
        });
        Ok(effects)
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take()
            && let Err(e) = daemon.stop()
        {
            eprintln!("{e:#}");
        }
    }
}

/// A BPF file system for the pins of one daemon. Unmounting it releases them all.
struct Pins {
    path: PathBuf,
}

impl Pins {
    fn mount(path: PathBuf) -> Result<Self> {
        fs::create_dir(&path)?;
        mount("bpf", &path, "bpf", MountFlags::empty(), None)
            .with_context(|| format!("mounting a BPF file system at {}", path.display()))?;
        Ok(Self { path })
    }
}

impl Drop for Pins {
    fn drop(&mut self) {
        if let Err(e) = unmount(&self.path, UnmountFlags::DETACH) {
            eprintln!("{} stays mounted: {e}", self.path.display());
        }
    }
}

/// The program under test: `ACRFENCE_BIN`, or the one that was built beside this test.
pub fn acrfence() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("ACRFENCE_BIN") {
        return Ok(named.into());
    }
    let own = std::env::current_exe().context("finding this program's own file")?;
    own.ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join("acrfence"))
        .find(|file| file.is_file())
        .with_context(|| {
            format!(
                "there is no `acrfence` beside {}: `cargo xtask build` builds it",
                own.display()
            )
        })
}
