//! A real PostgreSQL with its own data, reachable through a unix socket only.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use tempfile::TempDir;

use crate::client::plain;
use crate::fence::NOBODY;
use crate::process::{Running, run};

/// A running server. Dropping it ends it and removes its data.
pub struct Postgres {
    // In the order in which they must go.
    _server: Running,
    programs: PathBuf,
    dir: TempDir,
}

impl Postgres {
    /// Makes a cluster and starts a server for it, as a user without rights: as root it refuses.
    pub fn start() -> Result<Self> {
        let programs = programs()?;
        let dir = tempfile::Builder::new()
            .prefix("acrfence-testbed-pg-")
            .tempdir()
            .context("making a directory for PostgreSQL")?;
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755))?;
        chown(dir.path(), Some(NOBODY), Some(NOBODY))?;
        let data = dir.path().join("data");
        let mut initdb = of_nobody(&programs.join("initdb"), dir.path());
        initdb
            .args([
                "--username=bank",
                "--auth=trust",
                "--no-sync",
                "--locale=C",
                "--pgdata",
            ])
            .arg(&data);
        let made = run("initdb", &mut initdb)?;
        ensure!(made.ok(), "initdb: {}{}", made.stdout, made.stderr);
        // It says on standard error when it takes connections.
        let mut server = of_nobody(Path::new("/bin/sh"), dir.path());
        server
            .args(["-c", r#"exec "$0" "$@" 2>&1"#])
            .arg(programs.join("postgres"))
            .args([
                "-c",
                "listen_addresses=",
                "-c",
                "log_line_prefix=",
                "-c",
                "fsync=off",
            ])
            .arg("-k")
            .arg(dir.path())
            .arg("-D")
            .arg(&data);
        let mut server = Running::start("PostgreSQL", &mut server)?;
        server.wait_for("LOG:  database system is ready to accept connections")?;
        let postgres = Self {
            _server: server,
            programs,
            dir,
        };
        postgres.ask("CREATE TABLE ledger (id serial, payee text, amount int, reference text)")?;
        Ok(postgres)
    }

    /// The words that lead `psql` here.
    pub fn address(&self) -> String {
        format!(
            "--host {} --username bank --no-psqlrc postgres",
            self.dir.path().display()
        )
    }

    /// What the server answers, from outside of every fence.
    pub fn ask(&self, sql: &str) -> Result<String> {
        let mut psql = plain(self.programs.join("psql"));
        psql.args(self.address().split(' ')).args(["-Atc", sql]);
        let ended = run("psql", &mut psql)?;
        ensure!(ended.ok(), "psql: {}{}", ended.stdout, ended.stderr);
        Ok(ended.stdout)
    }
}

fn of_nobody(program: &Path, dir: &Path) -> Command {
    let mut command = plain(program);
    command.current_dir(dir).uid(NOBODY).gid(NOBODY);
    command
}

/// Where Debian keeps the programs of the newest version.
fn programs() -> Result<PathBuf> {
    let version = |dir: &PathBuf| dir.file_name()?.to_str()?.parse::<u32>().ok();
    std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .max_by_key(version)
        .map(|dir| dir.join("bin"))
        .context(
            "PostgreSQL is not installed: `cargo xtask environment` installs what the tests use",
        )
}
