//! `acrfence effects`, `show`.

use clap::Args;

use super::output::{json, line, short, table, time};
use super::{Global, opaque};
use crate::control::{Client, EffectDetail, Explained, OpaqueQuery};
use crate::effect::{EffectFilter, EffectRow, Page};
use crate::words::{
    AgentName, Body, BranchId, EffectId, Fingerprint, Header, Request, Response, Seq, Status,
    ThreadId, Timestamp,
};

#[derive(Debug, Args)]
pub(super) struct Effects {
    /// Only this agent's.
    #[arg(long)]
    agent: Option<AgentName>,
    /// Only this thread's.
    #[arg(long)]
    thread: Option<ThreadId>,
    /// Only those executed in this branch.
    #[arg(long)]
    branch: Option<BranchId>,
    /// Only those whose tool key contains this text.
    #[arg(long)]
    tool: Option<String>,
    /// Only those sent to this host.
    #[arg(long)]
    host: Option<String>,
    /// Only those with this status: prepared, completed, failed, in_doubt.
    #[arg(long, value_parser = status)]
    status: Option<Status>,
    /// Only those of this process.
    #[arg(long)]
    pid: Option<u32>,
    /// Only those that presented or were issued the credential with this fingerprint.
    #[arg(long, value_parser = fingerprint)]
    credential: Option<Fingerprint>,
    /// Only those at or after this time (2031-02-03T09:12:04Z).
    #[arg(long)]
    since: Option<Timestamp>,
    /// Only those before this time.
    #[arg(long)]
    until: Option<Timestamp>,
    /// Only those whose request or response contains this text.
    #[arg(long)]
    text: Option<String>,
    /// Oldest first.
    #[arg(long)]
    oldest_first: bool,
    /// Start after this effect (e17) or position (17), as the page before says.
    #[arg(long, value_parser = position)]
    after: Option<Seq>,
    /// How many at most.
    #[arg(long, default_value_t = 50)]
    limit: usize,
    /// List what was seen and not fenced instead: unix sockets, datagrams, databases, SSH. Takes `--agent`,
    /// `--since` and `--limit`; the newest come last.
    #[arg(long, conflicts_with_all = [
        "thread", "branch", "tool", "host", "status", "pid", "credential", "until", "text",
        "oldest_first", "after", "follow",
    ])]
    opaque: bool,
    /// List programs that the agent ran and that no rule names instead: they are not fenced, but for what
    /// they send over TLS. Takes `--agent`, `--since` and `--limit`; the newest come last.
    #[arg(long, conflicts_with_all = [
        "opaque", "thread", "branch", "tool", "host", "status", "pid", "credential", "until",
        "text", "oldest_first", "after", "follow",
    ])]
    commands: bool,
    /// Print effects as they are made and again whenever their status changes, until interrupted. From
    /// now on, or from `--after`.
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Args)]
pub(super) struct Id {
    /// The effect, like e17.
    id: EffectId,
}

pub(super) async fn list(client: &Client, global: &Global, args: Effects) -> anyhow::Result<()> {
    if args.opaque || args.commands {
        let asked = OpaqueQuery {
            agent: args.agent,
            since: args.since,
            limit: Some(args.limit),
        };
        return if args.commands {
            opaque::commands(client, global, &asked).await
        } else {
            opaque::list(client, global, &asked).await
        };
    }
    let follow = args.follow;
    let filter = EffectFilter {
        agent: args.agent,
        thread: args.thread,
        branch: args.branch,
        tool: args.tool,
        host: args.host,
        status: args.status,
        pid: args.pid,
        credential: args.credential,
        since: args.since,
        until: args.until,
        text: args.text,
        oldest_first: args.oldest_first,
        after: args.after,
        limit: Some(args.limit),
    };
    if follow {
        let query = query(&filter)?;
        let show = |text: &str| -> std::io::Result<()> {
            let printed = if global.json {
                line(text)
            } else {
                serde_json::from_str(text)
                    .map_err(Into::into)
                    .and_then(|row: EffectRow| line(&row_line(&row)))
            };
            printed.map_err(std::io::Error::other)
        };
        return Ok(client
            .lines(&format!("/v1/effects/follow?{query}"), show)
            .await?);
    }
    let page = page(client, filter).await?;
    if global.json {
        return page.items.iter().try_for_each(json);
    }
    let rows = page
        .items
        .iter()
        .map(|r| {
            vec![
                r.id.to_string(),
                time(r.at),
                r.agent.to_string(),
                r.branch.to_string(),
                r.status.to_string(),
                r.code.map(|c| c.to_string()).unwrap_or_default(),
                match r.parent {
                    Some(outer) => short(&format!("in {outer}: {}", r.key), 60),
                    None => short(&r.key.0, 60),
                },
                short(&r.why, 60),
            ]
        })
        .collect();
    table(
        &[
            "EFFECT", "AT", "AGENT", "BRANCH", "STATUS", "CODE", "WHAT", "",
        ],
        rows,
        "No effect matches.",
    )?;
    if let Some(next) = page.next {
        line(&format!("There are more: --after {next}"))?;
    }
    Ok(())
}

/// A whole page: the daemon looks at a bounded number of effects a time, and may answer with a part.
async fn page(client: &Client, mut filter: EffectFilter) -> anyhow::Result<Page<EffectRow>> {
    let limit = filter.limit.unwrap_or_default();
    let mut whole = Page {
        items: Vec::new(),
        next: None,
    };
    loop {
        filter.limit = Some(limit.saturating_sub(whole.items.len()).max(1));
        let path = format!("/v1/effects?{}", query(&filter)?);
        let part: Page<EffectRow> = client.get(&path).await?;
        whole.items.extend(part.items);
        whole.next = part.next;
        if part.next.is_none() || whole.items.len() >= limit {
            return Ok(whole);
        }
        filter.after = part.next;
    }
}

fn row_line(r: &EffectRow) -> String {
    let code = r.code.map(|c| format!(" {c}")).unwrap_or_default();
    let inside = r
        .parent
        .map(|outer| format!(" in {outer}:"))
        .unwrap_or_default();
    format!(
        "{} {} {} {} {}{code}{inside} {} {}",
        r.id,
        time(r.at),
        r.agent,
        r.branch,
        r.status,
        r.key,
        r.why
    )
    .trim_end()
    .to_owned()
}

/// The filter as a query string. Every field is a string, a number or a boolean.
pub(super) fn query(filter: &impl serde::Serialize) -> anyhow::Result<String> {
    let serde_json::Value::Object(fields) = serde_json::to_value(filter)? else {
        return Ok(String::new());
    };
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in fields {
        match value {
            serde_json::Value::Null => {}
            serde_json::Value::String(text) => drop(query.append_pair(&name, &text)),
            other => drop(query.append_pair(&name, &other.to_string())),
        }
    }
    Ok(query.finish())
}

pub(super) async fn show(client: &Client, global: &Global, args: Id) -> anyhow::Result<()> {
    let detail: EffectDetail = client.get(&format!("/v1/effects/{}", args.id)).await?;
    if global.json {
        return json(&detail);
    }
    let e = &detail.effect;
    line(&format!("{}  {}  {}", e.id, e.status, e.key))?;
    line(&format!(
        "  agent      {} (life {}, thread {}, branch {})",
        e.call.origin.agent, e.call.origin.incarnation, e.thread, e.branch
    ))?;
    line(&format!(
        "  process    {} {} (uid {}, cwd {})",
        e.call.origin.process.tgid,
        short(&e.call.origin.argv.join(" "), 100),
        e.call.origin.uid,
        e.call.origin.cwd
    ))?;
    if let Some(c) = &e.call.origin.connection {
        let name = c.sni.as_deref().unwrap_or("no server name");
        line(&format!(
            "  connection {} → {} ({name}, {}{})",
            c.local,
            c.peer,
            if c.tls { "TLS, " } else { "" },
            c.protocol
        ))?;
    }
    line(&format!("  at         {}", e.call.at))?;
    if let Some(ended) = e.ended {
        line(&format!("  ended      {ended}"))?;
    }
    if e.parent.is_some() {
        let of: Vec<_> = e.outer().map(|id| id.to_string()).collect();
        line(&format!("  inside     {}", of.join(" or ")))?;
    }
    if !detail.children.is_empty() {
        line(&format!(
            "  inside it  {}",
            named(&detail.children).join("\n             ")
        ))?;
    }
    if !detail.replayed_into.is_empty() {
        let into: Vec<_> = detail
            .replayed_into
            .iter()
            .map(ToString::to_string)
            .collect();
        line(&format!("  replayed   into {}", into.join(", ")))?;
    }
    for (what, list) in [("presented", &e.presented), ("issued", &e.issued)] {
        if !list.is_empty() {
            let list: Vec<_> = list.iter().map(ToString::to_string).collect();
            line(&format!("  {what:<10} credentials {}", list.join(", ")))?;
        }
    }
    if !e.call.origin.gaps.is_empty() {
        line(&format!("  gaps       {}", e.call.origin.gaps))?;
    }
    line("")?;
    show_request(&e.call.request)?;
    match &e.outcome {
        None => line("(no outcome yet)"),
        Some(outcome) => {
            use crate::words::Outcome::{Completed, Failed, InDoubt};
            match outcome {
                Completed(_) => {}
                Failed { why, .. } => line(&format!("failed: {why}"))?,
                InDoubt { why, .. } => line(&format!("in doubt: {why}"))?,
            }
            outcome.response().map_or(Ok(()), show_response)
        }
    }
}

pub(super) async fn explain(client: &Client, global: &Global, args: Id) -> anyhow::Result<()> {
    let all: Vec<Explained> = client
        .get(&format!("/v1/effects/{}/explain", args.id))
        .await?;
    if global.json {
        return all.iter().try_for_each(json);
    }
    let detail: EffectDetail = client.get(&format!("/v1/effects/{}", args.id)).await?;
    if let Some(first) = detail.effect.parent {
        let of: Vec<_> = detail.effect.outer().map(|id| id.to_string()).collect();
        line(&format!(
            "{} was made inside {} and stands or falls with it: `acrfence explain {first}`.",
            args.id,
            of.join(" or ")
        ))?;
    }
    if !detail.children.is_empty() {
        line(&format!(
            "Made inside {}, decided with it: {}.",
            args.id,
            named(&detail.children).join(", ")
        ))?;
    }
    if all.is_empty() {
        return line(&format!("No call was decided against {}.", args.id));
    }
    for explained in &all {
        line(&format!("{} · {}", time(explained.at), explained.verdict))?;
        explained
            .words
            .lines()
            .try_for_each(|l| line(&format!("  {}", escape(l))))?;
    }
    Ok(())
}

/// Effects of a list with what they did.
fn named(rows: &[EffectRow]) -> Vec<String> {
    rows.iter()
        .map(|row| format!("{} {} {}", row.id, row.status, short(&row.key.0, 80)))
        .collect()
}

fn show_request(request: &Request) -> anyhow::Result<()> {
    match request {
        Request::Http(r) => {
            line(&format!("> {} {}", r.method, r.url))?;
            show_headers('>', &r.headers)?;
            show_body('>', &r.body)
        }
        Request::Mcp(r) => {
            line(&format!("> {} · {}", r.server, r.name))?;
            line(&format!("> {}", r.arguments))
        }
        Request::Exec(r) => line(&format!("> {}  (in {})", r.argv.join(" "), r.cwd)),
    }
}

fn show_response(response: &Response) -> anyhow::Result<()> {
    match response {
        Response::Http(r) => {
            line(&format!("< {}", r.status))?;
            show_headers('<', &r.headers)?;
            show_body('<', &r.body)
        }
        Response::Mcp(r) => line(&format!("< {}", r.answer)),
        Response::Exec(r) => {
            line(&format!("< exit status {}", r.exit))?;
            show_body('<', &r.stdout)?;
            show_body('!', &r.stderr)
        }
    }
}

fn show_headers(mark: char, headers: &[Header]) -> anyhow::Result<()> {
    headers
        .iter()
        .try_for_each(|h| line(&format!("{mark} {}: {}", h.name, h.value.escape_ascii())))
}

fn show_body(mark: char, body: &Body) -> anyhow::Result<()> {
    if body.len == 0 {
        return Ok(());
    }
    match std::str::from_utf8(&body.kept) {
        Ok(text) => text
            .lines()
            .try_for_each(|l| line(&format!("{mark} {}", escape(l))))?,
        Err(_) => line(&format!(
            "{mark} ({} bytes that are no text, sha256 {})",
            body.len, body.digest
        ))?,
    }
    if !body.is_whole() {
        line(&format!(
            "{mark} (… {} of {} bytes were kept, sha256 of all {})",
            body.kept.len(),
            body.len,
            body.digest
        ))?;
    }
    Ok(())
}

/// Keeps what an agent sent from driving the terminal of the person who looks at it.
fn escape(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_control() && c != '\t' {
                c.escape_default().collect::<Vec<_>>()
            } else {
                vec![c]
            }
        })
        .collect()
}

fn status(given: &str) -> Result<Status, String> {
    serde_json::from_value(given.into())
        .map_err(|_| "one of prepared, completed, failed, in_doubt".to_owned())
}

fn position(given: &str) -> Result<Seq, String> {
    let number = given.strip_prefix('e').unwrap_or(given);
    number
        .parse()
        .map(Seq)
        .map_err(|_| "an effect, like e17, or a position, like 17".to_owned())
}

fn fingerprint(given: &str) -> Result<Fingerprint, String> {
    serde_json::from_value(given.into()).map_err(|e| e.to_string())
}
