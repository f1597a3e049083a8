//! `acrfence policy`.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};

use super::Global;
use super::output::{json, line, table};
use crate::fence::tool_key;
use crate::lineage::conversation::{may_be_model, recognise};
use crate::policy::{Config, Kind, Matcher, Opaqueness, RuleKind, ToolHints};
use crate::words::{
    AgentName, Body, ExecRequest, Header, HttpRequest, McpRequest, Origin, ProcessIdentity,
    Request, Timestamp, ToolCall,
};

#[derive(Debug, Args)]
pub(super) struct Policy {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Read a configuration as the daemon would, and list what each rule does.
    Check {
        /// The file.
        #[arg(default_value = DEFAULT, value_name = "FILE")]
        file: PathBuf,
    },
    /// Say which rule matches a call, and what the call would be.
    Test(Test),
}

const DEFAULT: &str = "/etc/acrfence/config.toml";

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  acrfence policy test POST https://api.example.com/payments
  acrfence policy test --mcp https://mcp.example.com/mcp pay
  acrfence policy test -- git push origin main
  acrfence policy test '{\"method\": \"POST\", \"url\": \"https://api.example.com/\", \"body\": \"{}\"}'")]
struct Test {
    /// The configuration; the one at the default place may be missing.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Which agent asks.
    #[arg(long, default_value = "agent")]
    agent: AgentName,
    /// The words are an MCP server (its URL or its command line) and a tool.
    #[arg(long)]
    mcp: bool,
    /// The MCP server says of the tool that it only reads.
    #[arg(long)]
    read_only_hint: bool,
    /// METHOD URL, SERVER TOOL, a command with its arguments, or a call in JSON (`-` reads it from
    /// standard input).
    #[arg(required = true, trailing_var_arg = true, value_name = "REQUEST")]
    request: Vec<String>,
}

/// A call as a person writes it.
#[derive(Debug, Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum Written {
    Http {
        method: String,
        url: String,
        #[serde(default)]
        headers: std::collections::BTreeMap<String, String>,
        #[serde(default)]
        body: Option<serde_json::Value>,
    },
    Mcp {
        server: String,
        tool: String,
        #[serde(default)]
        arguments: Option<serde_json::Value>,
    },
    Command {
        argv: Vec<String>,
    },
}

/// What `policy test` says with `--json`.
#[derive(Serialize)]
struct Said {
    kind: Kind,
    because: String,
    /// Number of the rule that decided; none for shipped rules.
    rule: Option<usize>,
    key: String,
    fenced: bool,
    notes: Vec<String>,
}

/// What `policy check` says of a rule with `--json`.
#[derive(Serialize)]
struct Listed {
    table: &'static str,
    number: usize,
    matches: String,
    does: String,
    note: String,
}

pub(super) fn run(global: &Global, args: Policy) -> anyhow::Result<()> {
    match args.command {
        Command::Check { file } => check(global, &file),
        Command::Test(args) => test(global, args),
    }
}

fn check(global: &Global, file: &Path) -> anyhow::Result<()> {
    let config = Config::load(file, true)?;
    let listed = list(&config);
    if global.json {
        return listed.iter().try_for_each(json);
    }
    line(&format!("{} is valid.", file.display()))?;
    let rows = listed
        .into_iter()
        .map(|l| {
            vec![
                format!("{} {}", l.table, l.number),
                l.matches,
                l.does,
                l.note,
            ]
        })
        .collect();
    table(
        &["RULE", "MATCHES", "DOES", "NOTE"],
        rows,
        "It has no rules of its own; the shipped ones count.",
    )
}

fn list(config: &Config) -> Vec<Listed> {
    let rules = config.rule.iter().enumerate().map(|(n, rule)| {
        let does = match rule.kind {
            RuleKind::Effect => "effect: logged and fenced",
            RuleKind::ReadOnly => "read_only: passed on, not logged",
            RuleKind::Model => "model: passed on, read for the conversation",
            RuleKind::TrustHints => "trust_hints: read_only where the server says so, else effect",
        };
        let asks = match &rule.in_doubt {
            Some(_) => "; in doubt, the other side is asked",
            None => "",
        };
        Listed {
            table: "rule",
            number: n + 1,
            matches: in_words(&rule.matcher),
            does: format!("{does}{asks}"),
            note: rule.note.clone(),
        }
    });
    let commands = config.gate.command.iter().enumerate().map(|(n, rule)| {
        let mut words = vec![rule.program.join("|")];
        for (name, values) in [
            ("subcommand", &rule.subcommand),
            ("except", &rule.except),
            ("word", &rule.word),
            ("argument", &rule.argument),
            ("with", &rule.with),
            ("unless", &rule.unless),
        ] {
            if !values.is_empty() {
                words.push(format!("{name}={}", values.join("|")));
            }
        }
        let does = match rule.gate {
            Some(false) => "runs, not fenced",
            _ => "effect: gated at exec",
        };
        Listed {
            table: "gate.command",
            number: n + 1,
            matches: words.join(" "),
            does: does.into(),
            note: String::new(),
        }
    });
    let classes = config.after_restore.class.iter().enumerate().map(|(n, c)| {
        let kinds: Vec<_> = c.kind.iter().map(|k| k.as_str()).collect();
        let ports: Vec<_> = c.port.iter().map(u16::to_string).collect();
        let host = c.host.clone().unwrap_or_default();
        let words = [
            ("kind", kinds.join("|")),
            ("host", host),
            ("port", ports.join("|")),
        ];
        let words = words.iter().filter(|(_, value)| !value.is_empty());
        let words: Vec<_> = words
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        let does = match c.opaque {
            Opaqueness::Allow => "allow: let through after a restore, not fenced",
            Opaqueness::Deny => "deny: refused after a restore, until a fork",
        };
        Listed {
            table: "after_restore.class",
            number: n + 1,
            matches: words.join(" "),
            does: does.into(),
            note: String::new(),
        }
    });
    let passes = config.boundary.pass_through.iter().enumerate();
    let passes = passes.map(|(n, host)| Listed {
        table: "boundary.pass_through",
        number: n + 1,
        matches: format!("host={host}"),
        does: "TLS is passed on unopened, not fenced".into(),
        note: String::new(),
    });
    rules.chain(commands).chain(classes).chain(passes).collect()
}

fn in_words(matcher: &Matcher) -> String {
    let port = matcher.port.map(|port| port.to_string());
    let words = [
        ("agent", &matcher.agent),
        ("host", &matcher.host),
        ("port", &port),
        ("method", &matcher.method),
        ("path", &matcher.path),
        ("server", &matcher.server),
        ("tool", &matcher.tool),
        ("argv", &matcher.argv),
    ];
    let words = words
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    words.collect::<Vec<_>>().join(" ")
}

fn test(global: &Global, args: Test) -> anyhow::Result<()> {
    let (file, must_exist) = match &args.config {
        Some(file) => (file.clone(), true),
        None => (PathBuf::from(DEFAULT), false),
    };
    let config = Config::load(&file, must_exist)?;
    let call = ToolCall {
        at: Timestamp(0),
        request: request(&args)?,
        origin: Origin {
            agent: args.agent,
            incarnation: 1,
            process: ProcessIdentity {
                tgid: 0,
                start_ns: 0,
            },
            exe: String::new(),
            argv: Vec::new(),
            cwd: String::new(),
            uid: 0,
            connection: None,
            gaps: String::new(),
        },
    };
    let said = judge(&config, &call, args.read_only_hint);
    if global.json {
        return json(&said);
    }
    let kind = match said.kind {
        Kind::Effect if said.fenced => "effect: logged and fenced",
        Kind::Effect => "effect, and not fenced",
        Kind::ReadOnly => "read_only: passed on, not logged",
        Kind::Model => "model: passed on, read for the conversation",
    };
    line(&format!("{kind}\n  because  {}", said.because))?;
    line(&format!("  key      {}", said.key))?;
    said.notes
        .iter()
        .try_for_each(|note| line(&format!("  note     {note}")))
}

fn judge(config: &Config, call: &ToolCall, read_only: bool) -> Said {
    let is_conversation = match &call.request {
        Request::Http(http) if may_be_model(&http.method, &http.url) => {
            recognise(&http.method, &http.url, &http.body.kept, false).is_some()
        }
        _ => false,
    };
    let treatment = config.classify(call, is_conversation, ToolHints { read_only });
    let rule = config.rule.iter().position(|r| r.matcher.matches(call));
    let mut notes = Vec::new();
    let mut fenced = treatment.kind == Kind::Effect;
    match &call.request {
        Request::Http(http) => {
            let url = url::Url::parse(&http.url).ok();
            let host = url.as_ref().and_then(|u| u.host_str()).unwrap_or_default();
            let is_tls = url.as_ref().is_some_and(|u| u.scheme() == "https");
            if is_tls && config.passes_through(host) {
                fenced = false;
                notes.push(format!(
                    "`boundary.pass_through` names {host}: its TLS is not opened, so no rule sees the call"
                ));
            }
        }
        Request::Exec(exec) => match config.commands().gating(&exec.argv) {
            Some(rule) => notes.push(format!(
                "gated at exec, by the rule for {}",
                rule.program.join(", ")
            )),
            None => {
                fenced = false;
                notes.push("no rule gates it at exec: it runs, and what it sends is decided at the boundary it crosses".into());
            }
        },
        Request::Mcp(_) => {}
    }
    if let Some((n, _)) = config.in_doubt(call) {
        notes.push(format!("in doubt, rule {n} says how to ask the other side"));
    }
    Said {
        kind: treatment.kind,
        because: treatment.because,
        rule: rule.map(|n| n + 1),
        key: tool_key(&call.request).0,
        fenced,
        notes,
    }
}

fn request(args: &Test) -> anyhow::Result<Request> {
    match args.request.as_slice() {
        [server, tool] if args.mcp => Ok(mcp(server.clone(), tool.clone(), None)),
        _ if args.mcp => bail!("--mcp wants a server and a tool"),
        [from] if from == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .take(16 << 20)
                .read_to_string(&mut text)
                .context("cannot read standard input")?;
            written(&text)
        }
        [text] if text.trim_start().starts_with('{') => written(text),
        [method, url] if url.contains("://") => http(method, url, Vec::new(), None),
        argv => Ok(command(argv.to_vec())),
    }
}

fn written(text: &str) -> anyhow::Result<Request> {
    let read: Written = serde_json::from_str(text).map_err(|e| {
        anyhow::anyhow!(
            "this is no call: write {{\"method\", \"url\", \"headers\", \"body\"}}, {{\"server\", \"tool\", \"arguments\"}} or {{\"argv\"}} ({e})"
        )
    })?;
    match read {
        Written::Http {
            method,
            url,
            headers,
            body,
        } => {
            let headers = headers
                .into_iter()
                .map(|(name, value)| Header::new(name, value))
                .collect();
            http(&method, &url, headers, body)
        }
        Written::Mcp {
            server,
            tool,
            arguments,
        } => Ok(mcp(server, tool, arguments)),
        Written::Command { argv } => Ok(command(argv)),
    }
}

fn http(
    method: &str,
    url: &str,
    headers: Vec<Header>,
    body: Option<serde_json::Value>,
) -> anyhow::Result<Request> {
    let parsed = url::Url::parse(url).with_context(|| format!("`{url}` is no URL"))?;
    if parsed.host_str().is_none() {
        bail!("`{url}` names no host");
    }
    let body = match body {
        None => String::new(),
        Some(serde_json::Value::String(text)) => text,
        Some(other) => other.to_string(),
    };
    Ok(Request::Http(HttpRequest {
        method: method.to_owned(),
        url: url.to_owned(),
        headers,
        body: Body::whole(body),
        rpc: Vec::new(),
    }))
}

fn mcp(server: String, name: String, arguments: Option<serde_json::Value>) -> Request {
    Request::Mcp(McpRequest {
        server,
        name,
        arguments: arguments.map_or_else(|| "{}".into(), |a| a.to_string()),
        meta: None,
        extra: None,
        headers: Vec::new(),
    })
}

fn command(argv: Vec<String>) -> Request {
    Request::Exec(ExecRequest {
        argv,
        cwd: String::new(),
        env: Vec::new(),
        stdin: None,
    })
}
