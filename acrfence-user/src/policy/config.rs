//! The configuration file.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::opaque::AfterRestore;
use super::places::{Table, place};
use super::rule::{Rule, any_fits};
use super::units::{Duration, Size};
use crate::analyzer::LlmSettings;
use crate::boundary::process::commands;
use crate::boundary::process::gate::Ungated;
use crate::fence::{CompactedRule, Rules, SuspectRule, Unmatched};

/// The whole file. Every key has a default, so an empty file is a valid one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[fence]`: verdicts.
    pub fence: FencePolicy,
    /// `[after_restore]`: what a restored agent may do that cannot be fenced.
    pub after_restore: AfterRestore,
    /// `[boundary]`: what is read and recorded.
    pub boundary: BoundaryPolicy,
    /// `[upstream]`: the other side.
    pub upstream: UpstreamPolicy,
    /// `[probe]`: the kernel side.
    pub probe: ProbePolicy,
    /// `[gate]`: stdio servers and commands.
    pub gate: GatePolicy,
    /// `[log]`: the effect log.
    pub log: LogPolicy,
    /// `[analyzer]`: who reads prose that the comparison leaves open.
    pub analyzer: AnalyzerPolicy,
    /// `[[rule]]`: what calls are, first match wins; the shipped rules come after these.
    pub rule: Vec<Rule>,
}

/// Verdicts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FencePolicy {
    /// `enforce` stops calls, `observe` only logs what it would have done.
    pub mode: Mode,
    /// A call in a restored branch that nothing earlier resembles: `forward` or `block`.
    pub unmatched: Unmatched,
    /// An equivalent call where a restore is only suspected: `hold`, `replay` or `forward`.
    pub suspect: SuspectRule,
    /// An equivalent call of an effect that only a shortened history no longer shows: `hold` or
    /// `replay`.
    pub compacted: CompactedRule,
    /// How long the same opening counts as a suspected restore.
    pub suspect_window: Duration,
    /// Whether what agents keep about themselves is read where only words suggest a restore.
    pub own_stores: bool,
    /// How long a held call waits for a person before it gets the readable error.
    pub hold_timeout: Duration,
    /// What a restart of a known agent means when nothing else tells: `fence`, `observe` or `nothing`.
    pub on_restart: OnRestart,
    /// How far back a restart fences.
    pub restart_window: Duration,
}

/// Whether calls are stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Verdicts are carried out.
    #[default]
    Enforce,
    /// Verdicts are only logged; every call is sent.
    Observe,
}

/// What a restart of a known agent means when nothing else tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnRestart {
    /// A suspected restore that forgot the last `restart_window`.
    #[default]
    Fence,
    /// Only a note in the tree.
    Observe,
    /// Nothing.
    Nothing,
}

/// What is read and recorded at the boundary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct BoundaryPolicy {
    /// How much of a body is kept; longer ones are passed on whole and kept as a digest and a head.
    pub record_bound: Size,
    /// The longest request body that is accepted at all.
    pub request_limit: Size,
    /// Hosts whose TLS is passed on unopened (`*.example.com` matches below a domain). Not fenced.
    pub pass_through: Vec<String>,
    /// How long to wait for a client's first bytes before a connection counts as server-first.
    pub sniff_timeout: Duration,
    /// Connections of one agent at a time.
    pub connection_limit: usize,
}

/// The other side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct UpstreamPolicy {
    /// PEM files of further roots to trust (a company's own CA).
    pub extra_roots: Vec<PathBuf>,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long the first byte of a response may take; after that the effect is in doubt.
    pub response_timeout: Duration,
}

/// The kernel side.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbePolicy {
    /// What tracked processes may do while the daemon is down: `closed` (their connections fail) or `open`.
    pub daemon_down: DaemonDown,
    /// What becomes of connections that a restored process has open and that are not fenced: `cut` or
    /// `keep`.
    pub restored_connections: RestoredConnections,
    /// Environment variables that are kept of a process; all others are not read into the log.
    pub environment: Vec<String>,
}

/// What tracked processes may do while the daemon is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DaemonDown {
    /// Their connections fail.
    #[default]
    Closed,
    /// Their connections are not redirected and not fenced.
    Open,
}

/// What becomes of connections that a restored process has open and that are not fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RestoredConnections {
    /// They are closed before it runs, so that it connects anew, through the fence.
    #[default]
    Cut,
    /// They stay, and are said to be not fenced.
    Keep,
}

/// Stdio MCP servers and commands. Read at the daemon's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GatePolicy {
    /// Whether what an agent starts is stopped at exec, so that stdio servers and named commands are
    /// fenced.
    pub exec: bool,
    /// What becomes of a process that should be stopped and cannot be: `let_run` (it counts as not
    /// fenced) or `refuse`.
    pub ungated: Ungated,
    /// `[[gate.command]]`: which commands are gated; the first that fits decides, and the shipped
    /// ones come after these.
    pub command: Vec<commands::Rule>,
}

impl Default for GatePolicy {
    fn default() -> Self {
        Self {
            exec: true,
            ungated: Ungated::LetRun,
            command: Vec::new(),
        }
    }
}

/// Who reads prose that the comparison leaves open. Read at the daemon's start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AnalyzerPolicy {
    /// `none`: such calls are held for a person. `ollama`: a local model is asked first.
    pub kind: AnalyzerKind,
    /// Where Ollama listens.
    pub url: String,
    /// Which model.
    pub model: String,
    /// Longest wait for all answers about one call.
    pub timeout: Duration,
}

/// Who reads prose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnalyzerKind {
    /// Nobody.
    #[default]
    None,
    /// A model behind Ollama.
    Ollama,
}

impl Default for AnalyzerPolicy {
    fn default() -> Self {
        let usual = LlmSettings::default();
        Self {
            kind: AnalyzerKind::None,
            url: usual.url,
            model: usual.model,
            timeout: Duration(usual.timeout),
        }
    }
}

/// The effect log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogPolicy {
    /// Size of a journal segment.
    pub segment_size: Size,
    /// Bodies above this go into files of their own.
    pub inline_body: Size,
    /// Memory for the index. After a start it fills by itself with what look-ups of calls need.
    pub index_cache: Size,
    /// What is kept as a fingerprint only, besides what is known to be secret.
    pub redact: Redact,
}

/// What of a request is kept as a fingerprint only. `*` stands for any run of characters; letters are
/// the same in both cases.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Redact {
    /// Names of header fields.
    pub headers: Vec<String>,
    /// Names of environment variables of commands.
    pub environment: Vec<String>,
}

impl Redact {
    /// Whether a header field of this name is hidden.
    pub fn hides_header(&self, name: &str) -> bool {
        any_fits(&self.headers, name)
    }

    /// Whether a variable of this name is hidden.
    pub fn hides_variable(&self, name: &str) -> bool {
        any_fits(&self.environment, name)
    }
}

impl Default for FencePolicy {
    fn default() -> Self {
        Self {
            mode: Mode::Enforce,
            unmatched: Unmatched::Forward,
            suspect: SuspectRule::Hold,
            compacted: CompactedRule::Hold,
            suspect_window: Duration::secs(15 * 60),
            own_stores: true,
            hold_timeout: Duration::secs(20),
            on_restart: OnRestart::Fence,
            restart_window: Duration::secs(15 * 60),
        }
    }
}

impl FencePolicy {
    /// The part that the verdict looks at.
    pub fn rules(&self) -> Rules {
        Rules {
            unmatched: self.unmatched,
            suspect: self.suspect,
            compacted: self.compacted,
        }
    }
}

impl Default for BoundaryPolicy {
    fn default() -> Self {
        Self {
            record_bound: Size(1 << 20),
            request_limit: Size(4 << 30),
            pass_through: Vec::new(),
            sniff_timeout: Duration::secs(1),
            connection_limit: 1024,
        }
    }
}

impl Default for UpstreamPolicy {
    fn default() -> Self {
        Self {
            extra_roots: Vec::new(),
            connect_timeout: Duration::secs(10),
            response_timeout: Duration::secs(600),
        }
    }
}

impl Default for ProbePolicy {
    fn default() -> Self {
        let environment = [
            "HOME",
            "USER",
            "LOGNAME",
            "PWD",
            "SHELL",
            "LANG",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "INVOCATION_ID",
        ];
        Self {
            daemon_down: DaemonDown::Closed,
            restored_connections: RestoredConnections::Cut,
            environment: environment.map(String::from).to_vec(),
        }
    }
}

impl Default for LogPolicy {
    fn default() -> Self {
        Self {
            segment_size: Size(64 << 20),
            inline_body: Size(64 << 10),
            index_cache: Size(128 << 20),
            redact: Redact::default(),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration {}: {source}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file says something it cannot say. The message has line and column.
    #[error("the configuration {} is not valid:\n{message}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with the line.
        message: String,
    },
}

impl Config {
    /// Reads a file. A missing file at the default place is an empty one; a named one must exist.
    pub fn load(path: &Path, must_exist: bool) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|message| ConfigError::Invalid {
                path: path.into(),
                message,
            }),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !must_exist => {
                Ok(Self::default())
            }
            Err(source) => Err(ConfigError::Unreadable {
                path: path.into(),
                source,
            }),
        }
    }

    /// Which commands are gated.
    pub fn commands(&self) -> commands::Rules {
        // Rules that are none were refused when the file was read.
        commands::Rules::new(self.gate.command.clone())
            .unwrap_or_default()
            .before(commands::Rules::shipped())
    }

    /// Whether TLS for this host is passed on unopened.
    pub fn passes_through(&self, host: &str) -> bool {
        any_fits(&self.boundary.pass_through, host)
    }

    /// Reads a text. The error is a message with line and column.
    pub fn parse(text: &str) -> Result<Self, String> {
        let config: Self = toml::from_str(text).map_err(|e| e.to_string())?;
        for (n, rule) in config.rule.iter().enumerate() {
            rule.check()
                .map_err(|e| format!("{}rule {}: {e}", place(text, Table::Rule, n), n + 1))?;
        }
        config.after_restore.check()?;
        for (n, class) in config.after_restore.class.iter().enumerate() {
            class.check().map_err(|e| {
                let at = place(text, Table::Class, n);
                format!("{at}after_restore.class {}: {e}", n + 1)
            })?;
        }
        for (n, command) in config.gate.command.iter().enumerate() {
            commands::Rules::new(vec![command.clone()]).map_err(|e| {
                let at = place(text, Table::Command, n);
                format!("{at}gate.command {}: {e}", n + 1)
            })?;
        }
        Ok(config)
    }
}
