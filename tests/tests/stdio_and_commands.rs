//! Agents that are only attached to, with no configuration: their stdio MCP servers and their
//! commands act once.

use std::path::Path;
use std::time::Instant;

use acrfence_tests::attached::{Attached, Ran, stdio_agent};
use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, reference, rewritten_order};
use acrfence_tests::client::{bare_python, python};
use acrfence_tests::fence::Fence;
use acrfence_tests::postgres::Postgres;
use acrfence_tests::process::{PATIENCE, Running};
use acrfence_tests::repository::Repository;
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

const GENERATIONS: [&str; 2] = ["python-mcp1", "python-mcp2"];

fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).map_or(0, |text| text.lines().count())
}

fn transfer(amount: u32) -> Value {
    json!({"to": "alice", "amount": amount})
}

/// The effect in a listing that an outer one caused, and the outer one.
fn nested(effects: &[Value]) -> Result<(&Value, &Value)> {
    let child = effects.iter().find(|effect| effect["parent"].is_string());
    let child = child.with_context(|| format!("none has a parent: {effects:?}"))?;
    let outer = effects
        .iter()
        .find(|effect| effect["id"] == child["parent"]);
    Ok((child, outer.context("the parent is in the list")?))
}

#[test]
fn without_a_fence_a_stdio_bank_pays_twice() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let books = dir.path().join("books");
    for environment in GENERATIONS {
        let server = python(
            environment,
            "stdio_bank.py",
            &["books", &books.display().to_string()],
        )?;
        let before = lines(&books);
        for _ in 0..2 {
            let mut agent = Running::start("an agent", &mut stdio_agent(environment, &server)?)?;
            agent.wait_for("ready")?;
            agent.tell(&json!({"tool": "transfer", "arguments": transfer(100)}).to_string())?;
            agent.wait_for("answer ")?;
            agent.kill()?;
        }
        assert_eq!(lines(&books), before + 2, "{environment}");
    }
    Ok(())
}

fn a_stdio_bank_pays_once(environment: &str) -> Result<()> {
    let authority = Authority::new()?;
    let fence = Fence::start(&authority)?;
    let books = fence.place().scratch().join("books");
    // The command line names the server, and has a secret on it.
    let key = "of-nobody-but-the-bank";
    let server = python(
        environment,
        "stdio_bank.py",
        &["books", &books.display().to_string(), "--api-key", key],
    )?;
    let start = || Attached::attach(&fence, "buyer", stdio_agent(environment, &server)?);
    let mut agent = start()?;
    let paid = agent.tool("transfer", transfer(100))?;
    assert!(!paid.is_error && paid.text.starts_with("paid"), "{paid:?}");
    agent.kill()?;

    let mut agent = start()?;
    fence.say(&["restored", "buyer"])?;
    let other = agent.tool("transfer", transfer(250))?;
    assert!(
        other.is_error && other.text.contains("acrfence fork"),
        "{other:?}"
    );
    assert_eq!(agent.tool("transfer", transfer(100))?, paid);
    assert_eq!(lines(&books), 1);
    // It has paid once more in its own time, and means it.
    let again = agent.tool("transfer", transfer(100))?;
    assert_ne!(again, paid);
    assert_eq!(lines(&books), 2);
    agent.kill()?;

    let mut agent = start()?;
    fence.say(&["restored", "buyer"])?;
    fence.say(&["fork", "buyer"])?;
    let other = agent.tool("transfer", transfer(250))?;
    assert!(!other.is_error, "{other:?}");
    assert_eq!(lines(&books), 3);
    let effects = fence.effects("buyer")?;
    let transports: Vec<&Value> = effects.iter().map(|effect| &effect["transport"]).collect();
    assert_eq!(transports, ["mcp"; 3], "{effects:?}");
    let shown = fence.say(&["effects", "--agent", "buyer", "--json"])?;
    let first = effects[0]["id"].as_str().context("an id")?;
    let shown = shown + &fence.say(&["show", first])?;
    assert!(
        shown.contains("--api-key") && !shown.contains(key),
        "{shown}"
    );
    Ok(())
}

#[test]
fn a_stdio_bank_of_the_first_generation_pays_once() -> Result<()> {
    a_stdio_bank_pays_once("python-mcp1")
}

#[test]
fn a_stdio_bank_of_the_second_generation_pays_once() -> Result<()> {
    a_stdio_bank_pays_once("python-mcp2")
}

/// The server is itself a client of an HTTPS bank, and its SDK gives it six variables. What it does
/// inside a call belongs to the call.
fn what_a_server_pays_over_https_is_inside_its_call(environment: &str) -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let server = python(
        environment,
        "stdio_bank.py",
        &["pays", &bank.url("/v1/transfers")],
    )?;
    let start = || Attached::attach(&fence, "buyer", stdio_agent(environment, &server)?);
    let mut agent = start()?;
    let paid = agent.tool("transfer", transfer(100))?;
    assert!(!paid.is_error, "{paid:?}");
    assert_eq!(bank.payments(), 1);
    let effects = fence.effects("buyer")?;
    assert_eq!(effects.len(), 2, "{effects:?}");
    let (child, outer) = nested(&effects)?;
    assert_eq!(
        (&child["transport"], &outer["transport"]),
        (&json!("http"), &json!("mcp"))
    );
    let outer = outer["id"].as_str().context("an id")?;
    let shown = fence.say(&["show", outer])?;
    assert!(
        shown.contains(child["id"].as_str().context("an id")?),
        "{shown}"
    );
    let child = child["id"].as_str().context("an id")?;
    for told in [
        fence.say(&["show", child])?,
        fence.say(&["explain", child])?,
    ] {
        assert!(
            told.contains(&format!("inside {outer}"))
                || told.contains(&format!("inside     {outer}")),
            "{told}"
        );
    }
    agent.kill()?;

    let mut agent = start()?;
    fence.say(&["restored", "buyer"])?;
    let other = agent.tool("transfer", transfer(250))?;
    assert!(other.is_error, "{other:?}");
    assert_eq!(agent.tool("transfer", transfer(100))?.text, paid.text);
    assert_eq!(bank.payments(), 1);
    fence.say(&["fork", "buyer"])?;
    // Decided at the tool: inside, another payment does not meet the one of before.
    let other = agent.tool("transfer", transfer(250))?;
    assert!(!other.is_error, "{other:?}");
    assert_eq!(bank.payments(), 2);
    Ok(())
}

#[test]
fn inside_a_call_of_the_first_generation() -> Result<()> {
    what_a_server_pays_over_https_is_inside_its_call("python-mcp1")
}

#[test]
fn inside_a_call_of_the_second_generation() -> Result<()> {
    what_a_server_pays_over_https_is_inside_its_call("python-mcp2")
}

/// The money is gone and the server says that it failed: nobody may try again unasked.
#[test]
fn a_server_that_says_it_failed_after_it_paid_is_in_doubt() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], "[fence]\nhold_timeout = \"1s\"")?;
    let url = bank.url("/v1/transfers");
    let server = python("python-mcp1", "stdio_bank.py", &["stumbles", &url])?;
    let start = || Attached::attach(&fence, "buyer", stdio_agent("python-mcp1", &server)?);
    let mut agent = start()?;
    let failed = agent.tool("transfer", transfer(100))?;
    assert!(
        failed.is_error && failed.text.contains("printer"),
        "{failed:?}"
    );
    agent.kill()?;

    let mut agent = start()?;
    fence.say(&["restored", "buyer"])?;
    let again = agent.tool("transfer", transfer(100))?;
    assert!(
        again.is_error && again.text.contains("ACRFence"),
        "{again:?}"
    );
    assert_eq!(bank.payments(), 1);
    let effects = fence.effects("buyer")?;
    let (_, outer) = nested(&effects)?;
    assert_eq!(outer["status"], "in_doubt", "{effects:?}");
    Ok(())
}

/// The agent dies while its server waits for the bank.
#[test]
fn a_payment_that_its_agent_did_not_live_to_see_happens_once() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let url = bank.url("/v1/transfers");
    let server = python("python-mcp2", "stdio_bank.py", &["pays", &url])?;
    let start = || Attached::attach(&fence, "buyer", stdio_agent("python-mcp2", &server)?);
    let mut agent = start()?;
    bank.hold_answers();
    agent.call("transfer", transfer(100))?;
    bank.wait_for_orders(1)?;
    agent.kill()?;
    bank.release_answers();

    let mut agent = start()?;
    fence.say(&["restored", "buyer"])?;
    let again = agent.tool("transfer", transfer(100))?;
    assert!(again.text.contains("tr_000001"), "{again:?}");
    assert_eq!(bank.payments(), 1);
    Ok(())
}

/// A server of rmcp's, the SDK for Rust.
#[test]
fn an_rmcp_server_says_the_same_bytes_with_and_without() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let talk = bare_python("talk.py", &[])?;
    let own = std::env::current_exe()?;
    let mut places = own.ancestors().skip(1).take(2);
    let server = places
        .find_map(|place| Some(place.join("acrfence-stdio-service")).filter(|file| file.is_file()))
        .context("the server is built beside the tests")?;
    let mut heard = Vec::new();
    for with in [false, true] {
        let agent = bare_python("shell_agent.py", &[])?;
        let mut agent = match with {
            true => Attached::attach(&fence, "buyer", agent)?,
            false => Attached::start(&fence, agent)?,
        };
        let books = tempfile::tempdir()?;
        let words = std::iter::once(talk.get_program()).chain(talk.get_args());
        let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
        let (server, books) = (server.display(), books.path().display());
        let ran = agent.sh(&format!(
            "{} {server} bank --books {books}",
            words.join(" ")
        ))?;
        assert_eq!((ran.status, ran.stderr.as_str()), (0, ""), "{ran:?}");
        heard.push(ran.stdout);
    }
    assert!(
        heard[0].contains("booked") && heard[0].len() > 1000,
        "{}",
        heard[0]
    );
    assert!(heard[0].ends_with(" 0\n"), "{}", heard[0]);
    assert_eq!(heard[0], heard[1], "without the fence and with it");
    // It was not past the fence that it said the same.
    let tools: Vec<Value> = fence.effects("buyer")?;
    assert!(
        tools.iter().all(|effect| effect["transport"] == "mcp"),
        "{tools:#?}"
    );
    assert_eq!(tools.len(), 4, "{tools:#?}");
    Ok(())
}

/// A restored agent with a shell: `first` and `again` mean the same, `different` does not. `count`
/// tells how often it happened outside.
struct Command<'a> {
    first: &'a str,
    again: &'a str,
    different: &'a str,
    count: &'a dyn Fn() -> Result<usize>,
}

fn happens_once(fence: &Fence, name: &str, command: &Command<'_>) -> Result<()> {
    let mut agent = Attached::with_shell(fence, name)?;
    let before = (command.count)()?;
    let first = agent.sh(command.first)?;
    assert_eq!(first.status, 0, "{first:?}");
    assert_eq!((command.count)()?, before + 1, "{first:?}");
    agent.kill()?;

    let mut agent = Attached::with_shell(fence, name)?;
    fence.say(&["restored", name])?;
    let different = agent.sh(command.different)?;
    refused(&different);
    assert_eq!((command.count)()?, before + 1, "{different:?}");
    let again = agent.sh(command.again)?;
    assert_eq!(
        (again.status, &again.stdout),
        (0, &first.stdout),
        "{again:?}"
    );
    assert_eq!((command.count)()?, before + 1, "{again:?}");
    fence.say(&["fork", name])?;
    let different = agent.sh(command.different)?;
    assert_eq!(different.status, 0, "{different:?}");
    assert_eq!((command.count)()?, before + 2, "{different:?}");
    agent.kill()
}

/// As the shell has it for a command that cannot be executed, with words for the model.
fn refused(ran: &Ran) {
    assert_eq!(ran.status, 126, "{ran:?}");
    assert!(ran.stderr.contains("acrfence fork"), "{ran:?}");
    assert_eq!(ran.stdout, "");
}

#[test]
fn a_push_to_a_file_happens_once() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let repository = Repository::new()?;
    let push = "git push --force ../remote main";
    happens_once(
        &fence,
        "coder",
        &Command {
            first: &repository.works_and(push),
            again: &repository.works_and(push),
            different: &repository.works_and("git push --force ../remote main:release"),
            count: &|| Ok(repository.pushes()),
        },
    )
}

/// Programs that no rule names are written down with what became of them; a push is an effect, and is not among
/// them.
#[test]
fn every_other_program_is_logged_as_not_fenced() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let repository = Repository::new()?;
    let mut agent = Attached::with_shell(&fence, "coder")?;
    let dir = repository.dir().canonicalize()?;
    let commands = format!(
        "cd {} && sh -c 'exit 3'; sh -c 'kill -9 $$'; sh -c 'exec env true of-another'; {}; env true the-last",
        dir.display(),
        repository.works_and("git push --force ../remote main")
    );
    agent.sh(&commands)?;
    assert_eq!(repository.pushes(), 1);
    let deadline = Instant::now() + PATIENCE;
    let ran = loop {
        let ran = fence.ask(&[
            "effects",
            "--commands",
            "--agent",
            "coder",
            "--limit",
            "1000",
        ])?;
        let is_last = |ran: &Value| ran["origin"]["argv"] == json!(["true", "the-last"]);
        if ran.iter().any(is_last) {
            break ran;
        }
        ensure!(
            Instant::now() < deadline,
            "the last one is missing: {ran:#?}"
        );
    };
    let found = |argv: Value| {
        let found = ran.iter().find(|ran| ran["origin"]["argv"] == argv);
        found.with_context(|| format!("{argv} in {ran:#?}"))
    };
    let three = found(json!(["sh", "-c", "exit 3"]))?;
    assert_eq!(three["end"], json!({"exited": {"code": 3}}), "{three}");
    assert_eq!(three["origin"]["cwd"], dir.display().to_string(), "{three}");
    assert!(three["parent"]["tgid"].is_u64(), "{three}");
    let killed = found(json!(["sh", "-c", "kill -9 $$"]))?;
    assert_eq!(killed["end"], json!({"exited": {"signal": 9}}), "{killed}");
    // One process, three programs.
    let first = found(json!(["sh", "-c", "exec env true of-another"]))?;
    assert_eq!(first["end"], "replaced", "{first}");
    let second = found(json!(["env", "true", "of-another"]))?;
    assert_eq!(second["end"], "replaced", "{second}");
    let last = found(json!(["true", "of-another"]))?;
    assert_eq!(last["end"], json!({"exited": {"code": 0}}), "{last}");
    assert_eq!(first["origin"]["process"], last["origin"]["process"]);
    let is_push = |ran: &&Value| ran["origin"]["argv"][1] == "push";
    assert!(ran.iter().find(is_push).is_none(), "{ran:#?}");
    let shown = fence.say(&["status"])?;
    assert!(
        shown.contains("NOT FENCED coder:") && shown.contains("effects --commands"),
        "{shown}"
    );
    Ok(())
}

#[test]
fn a_push_over_ssh_happens_once() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let repository = Repository::new()?;
    let dir = repository.dir().display().to_string();
    let mut host = Running::start(
        "an SSH host",
        &mut python("python-ssh", "ssh_host.py", &[&dir])?,
    )?;
    let port = host.wait_for("listening ")?;
    let ssh = format!(
        "ssh -F none -i {dir}/client -o UserKnownHostsFile={dir}/known_hosts -o IdentitiesOnly=yes -o BatchMode=yes -p {port}"
    );
    let push = |what: &str| {
        repository.works_and(&format!(
            "GIT_SSH_COMMAND='{ssh}' git push --force ssh://git@127.0.0.1:{port}{dir}/remote {what}"
        ))
    };
    happens_once(
        &fence,
        "coder",
        &Command {
            first: &push("main"),
            again: &push("main"),
            different: &push("main:release"),
            count: &|| Ok(repository.pushes()),
        },
    )?;
    // The `ssh` that git starts is gated too, and inside the push.
    let effects = fence.effects("coder")?;
    let (child, outer) = nested(&effects)?;
    let key = |effect: &Value| effect["key"].as_str().unwrap_or_default().to_owned();
    assert!(
        key(child).contains("ssh") && key(outer).contains("git"),
        "{effects:?}"
    );
    Ok(())
}

#[test]
fn an_insert_happens_once() -> Result<()> {
    let fence = Fence::start(&Authority::new()?)?;
    let postgres = Postgres::start()?;
    let insert = |amount: u32| -> Result<String> {
        Ok(format!(
            "psql {} -c \"INSERT INTO ledger (payee, amount, reference) VALUES ('alice', {amount}, '{}')\"",
            postgres.address(),
            reference()?
        ))
    };
    let count = || -> Result<usize> { Ok(postgres.ask("SELECT count(*) FROM ledger")?.parse()?) };
    happens_once(
        &fence,
        "clerk",
        &Command {
            first: &insert(100)?,
            again: &insert(100)?,
            different: &insert(250)?,
            count: &count,
        },
    )?;
    // Reading is nobody's business.
    let before = fence.effects("clerk")?.len();
    let mut agent = Attached::with_shell(&fence, "clerk")?;
    let read = agent.sh(&format!(
        "psql {} -Atc 'SELECT sum(amount) FROM ledger'",
        postgres.address()
    ))?;
    assert_eq!((read.status, read.stdout.trim()), (0, "350"), "{read:?}");
    assert_eq!(fence.effects("clerk")?.len(), before);
    Ok(())
}

#[test]
fn a_post_by_curl_happens_once() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start(&authority)?;
    let post = |order: String| {
        format!(
            "curl --silent --show-error --fail-with-body --json '{order}' {}",
            bank.url("/v1/transfers")
        )
    };
    let first = post(order("alice", 100)?);
    let mut agent = Attached::with_shell(&fence, "buyer")?;
    let paid = agent.sh(&first)?;
    assert_eq!(paid.status, 0, "{paid:?}");
    agent.kill()?;
    let mut agent = Attached::with_shell(&fence, "buyer")?;
    fence.say(&["restored", "buyer"])?;
    // It is the call that is fenced, not the command: curl tells of it as of any other answer.
    let different = agent.sh(&post(order("alice", 250)?))?;
    assert_eq!(different.status, 22, "{different:?}");
    assert!(different.stdout.contains("acrfence fork"), "{different:?}");
    let again = agent.sh(&post(rewritten_order("alice", 100)?))?;
    assert_eq!(
        (again.status, &again.stdout),
        (0, &paid.stdout),
        "{again:?}"
    );
    assert_eq!(bank.payments(), 1);
    fence.say(&["fork", "buyer"])?;
    let different = agent.sh(&post(order("alice", 250)?))?;
    assert_eq!(different.status, 0, "{different:?}");
    assert_eq!(bank.payments(), 2);
    Ok(())
}
