//! Configurations on disk: where programs keep them, and changing one without ever leaving half of
//! it behind.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::codex::{servers_in_toml, toml_string};
use super::wrap::{self, Relay, Server, State, json_string, servers_in_json};

/// A configuration as it is on disk.
#[derive(Debug)]
pub(super) struct Configuration {
    pub(super) path: PathBuf,
    text: String,
    servers: Vec<Server>,
    language: Language,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Json,
    Toml,
}

/// What a change did to a configuration.
#[derive(Debug)]
pub(super) struct Change {
    /// The servers that were changed.
    pub(super) servers: Vec<String>,
    /// The changed lines, as `diff -u` shows them.
    pub(super) diff: String,
    /// Where the text from before is kept; none when nothing was written.
    pub(super) backup: Option<PathBuf>,
}

/// A larger file is no configuration of this kind.
const LARGEST: u64 = 256 << 20;

/// The files in which known programs keep stdio servers, of the user whose home is `home` and of
/// the project in `here`, as far as they exist.
pub(super) fn known(home: Option<&Path>, here: &Path) -> Vec<PathBuf> {
    let of_project = [".mcp.json", ".cursor/mcp.json", ".vscode/mcp.json"];
    let of_user = [
        ".claude.json",
        ".config/Claude/claude_desktop_config.json",
        ".cursor/mcp.json",
        ".config/Code/User/mcp.json",
        ".config/Code/User/settings.json",
        ".codeium/windsurf/mcp_config.json",
        ".gemini/settings.json",
    ];
    let codex = std::env::var_os("CODEX_HOME")
        .map(PathBuf::from)
        .or_else(|| home.map(|home| home.join(".codex")))
        .map(|home| home.join("config.toml"));
    let mut files: Vec<PathBuf> = of_project
        .iter()
        .map(|name| here.join(name))
        .chain(
            home.into_iter()
                .flat_map(|home| of_user.map(|name| home.join(name))),
        )
        .chain(codex)
        .filter(|path| path.is_file())
        .collect();
    let mut seen = std::collections::HashSet::new();
    files.retain(|path| seen.insert(path.canonicalize().ok()));
    files
}

impl Configuration {
    /// Reads a configuration.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        // A link stays a link: the file behind it is changed.
        let path = path
            .canonicalize()
            .with_context(|| format!("{} cannot be found", path.display()))?;
        let about = path.metadata()?;
        if !about.is_file() || about.len() > LARGEST {
            bail!("{} is no configuration file", path.display());
        }
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("{} cannot be read as text", path.display()))?;
        let language = match path.extension().and_then(|ext| ext.to_str()) {
            Some("toml") => Language::Toml,
            _ => Language::Json,
        };
        let servers = match language {
            Language::Json => servers_in_json(&text).map_err(anyhow::Error::from),
            Language::Toml => servers_in_toml(&text).map_err(anyhow::Error::from),
        }
        .with_context(|| format!("{} was left as it is: it cannot be read", path.display()))?;
        Ok(Self {
            path,
            text,
            servers,
            language,
        })
    }

    /// Its servers, each with its state.
    pub(super) fn servers(&self) -> impl Iterator<Item = (&str, State)> {
        self.servers
            .iter()
            .map(|server| (server.name.as_str(), server.state))
    }

    /// Puts the relay in front of every stdio server. With `write`, on disk.
    pub(super) fn wrap(&self, relay: &Relay, write: bool) -> anyhow::Result<Change> {
        let quote = match self.language {
            Language::Json => json_string,
            Language::Toml => toml_string,
        };
        let (text, servers) = wrap::wrapped(&self.text, &self.servers, relay, quote);
        self.change(&text, servers, write)
    }

    /// Takes the relay away from every server that has it. With `write`, on disk.
    pub(super) fn unwrap(&self, write: bool) -> anyhow::Result<Change> {
        let (text, servers) = wrap::unwrapped(&self.text, &self.servers);
        self.change(&text, servers, write)
    }

    fn change(&self, text: &str, servers: Vec<String>, write: bool) -> anyhow::Result<Change> {
        let diff = difference(&self.path, &self.text, text);
        let backup = if write && text != self.text {
            Some(rewrite(&self.path, &self.text, text)?)
        } else {
            None
        };
        Ok(Change {
            servers,
            diff,
            backup,
        })
    }
}

/// What changes in a file, for a person.
pub(in crate::cli) fn difference(path: &Path, before: &str, after: &str) -> String {
    let name = path.display().to_string();
    similar::TextDiff::from_lines(before, after)
        .unified_diff()
        .context_radius(1)
        .header(&name, &name)
        .to_string()
}

/// Replaces a file as a whole, after keeping what it was; the place of the latter.
pub(in crate::cli) fn rewrite(path: &Path, before: &str, after: &str) -> anyhow::Result<PathBuf> {
    let about = path.metadata()?;
    let beside = |ending: &str| {
        let mut name = path.to_path_buf().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    };
    let backup = beside(".before-acrfence");
    let new = beside(".acrfence-new");
    place(&backup, before, &about)?;
    place(&new, after, &about)?;
    // Claude Code rewrites its file while it runs.
    let now = std::fs::read_to_string(path).unwrap_or_default();
    if now != before {
        let _ = std::fs::remove_file(&new);
        bail!(
            "{} was changed by another program just now; run the command again, best while that program does not run",
            path.display()
        );
    }
    std::fs::rename(&new, path)
        .with_context(|| format!("{} cannot be replaced", path.display()))?;
    Ok(backup)
}

/// Writes a file with the owner and the mode of another one.
fn place(path: &Path, text: &str, like: &std::fs::Metadata) -> anyhow::Result<()> {
    let cannot = || format!("{} cannot be written", path.display());
    // What may hold keys is never readable by more people than it was, not even for a moment.
    let _ = std::fs::remove_file(path);
    let mut file = std::os::unix::fs::OpenOptionsExt::mode(
        std::fs::OpenOptions::new().write(true).create_new(true),
        0o600,
    )
    .open(path)
    .with_context(cannot)?;
    file.write_all(text.as_bytes()).with_context(cannot)?;
    let _ = std::os::unix::fs::fchown(&file, Some(like.uid()), Some(like.gid()));
    let mode = std::fs::Permissions::from_mode(like.permissions().mode());
    file.set_permissions(mode).with_context(cannot)?;
    file.sync_all().with_context(cannot)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay() -> Relay {
        Relay {
            program: "/usr/bin/acrfence".to_owned(),
            options: Vec::new(),
        }
    }

    #[test]
    fn a_change_is_shown_kept_and_taken_back() {
        let home = tempfile::tempdir().unwrap();
        let (real, link) = (home.path().join("dot"), home.path().join(".claude.json"));
        let text = "{\"mcpServers\":{\"bank\":{\n\"command\":\"npx\",\n\"args\":[\"x\"]}}}\n";
        std::fs::write(&real, text).unwrap();
        std::fs::set_permissions(&real, std::fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let nowhere = home.path().join("nowhere");
        assert_eq!(known(Some(home.path()), &nowhere), [link.as_path()]);

        let seen = Configuration::read(&link).unwrap();
        let dry = seen.wrap(&relay(), false).unwrap();
        assert_eq!(dry.backup, None);
        assert_eq!(std::fs::read_to_string(&real).unwrap(), text);
        let change = seen.wrap(&relay(), true).unwrap();
        assert_eq!(change.servers, ["mcpServers.bank"]);
        assert!(
            change.diff.contains("-\"command\":\"npx\",\n"),
            "{}",
            change.diff
        );
        assert!(
            change
                .diff
                .contains("+\"command\":\"/usr/bin/acrfence\",\n"),
            "{}",
            change.diff
        );
        let backup = change.backup.unwrap();
        assert_eq!(std::fs::read_to_string(&backup).unwrap(), text);
        for path in [&real, &backup] {
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
        }
        assert!(link.is_symlink());

        // A second time there is nothing to do; a stale view does not overwrite.
        let again = Configuration::read(&link).unwrap();
        assert_eq!(
            again.servers().collect::<Vec<_>>(),
            [("mcpServers.bank", State::Wrapped)]
        );
        assert_eq!(again.wrap(&relay(), true).unwrap().backup, None);
        assert!(
            seen.wrap(&relay(), true)
                .unwrap_err()
                .to_string()
                .contains("another program")
        );

        again.unwrap(true).unwrap();
        assert_eq!(std::fs::read_to_string(&real).unwrap(), text);
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        std::fs::write(&path, "{\"mcpServers\":").unwrap();
        let error = format!("{:#}", Configuration::read(&path).unwrap_err());
        assert!(
            error.contains("left as it is") && error.contains("line 1"),
            "{error}"
        );
        assert!(Configuration::read(dir.path()).is_err());
        assert!(Configuration::read(&dir.path().join("none")).is_err());
    }
}
