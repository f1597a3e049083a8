//! `acrfence run --private-trust`: do programs that read no variable work behind the fence, is nothing of it
//! seen outside, and is it said where it cannot be?

use std::path::{Path, PathBuf};
use std::process::Command;

use acrfence_tests::authority::Authority;
use acrfence_tests::bank::{Bank, order, rewritten_order};
use acrfence_tests::client::{Client, bare_python, installed, plain, python};
use acrfence_tests::fence::{Fence, NOBODY, acrfence};
use acrfence_tests::process::{Ended, Running, run};
use anyhow::{Context as _, Result, ensure};

const TRANSFERS: &str = "/v1/transfers";
const SYSTEM: &str = "/etc/ssl/certs/ca-certificates.crt";
const PRIVATE: &[&str] = &["--private-trust"];
/// Otherwise the gate gives everybody the variables again, also whom they were taken from.
const NO_GATE: &str = "[gate]\nexec = false\n";
/// How much stands in front of the roots of a file.
const FRONT: usize = 4096;

/// curl, told nothing about certificates: it reads the system's file.
fn curl(url: &str, body: &str) -> Vec<String> {
    let mut words: Vec<String> = ["curl", "--silent", "--show-error", "--max-time", "30"]
        .map(String::from)
        .into();
    words.extend(["--output", "/dev/null", "--write-out", "%{http_code}\\n"].map(String::from));
    words.extend(["--header", "content-type: application/json", "--data"].map(String::from));
    words.extend([body.to_owned(), url.to_owned()]);
    words
}

/// The same as words for a shell.
fn quoted(words: &[String]) -> String {
    let quote = |word: &String| format!("'{}'", word.replace('\'', r"'\''"));
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

fn without_variables(words: &[String]) -> Command {
    let mut command = plain("env");
    command.args(["-i", "PATH=/usr/bin:/bin"]).args(words);
    command
}

fn trusting(file: &str, url: &str, body: &str, client: &str) -> Result<Command> {
    python("python-http", "trusts.py", &[file, url, body, client])
}

/// Programs that each pay in their own way, and read no variable for it.
fn programs(url: &str, body: &str) -> Result<Vec<(&'static str, Command)>> {
    let words = curl(url, body);
    let inner = format!("env -i PATH=/usr/bin:/bin {}; exit $?", quoted(&words));
    let outer = format!("cd / && {}", quoted(&["bash".into(), "-c".into(), inner]));
    let mut shells = plain("sh");
    shells.args(["-c", &format!("{outer}; exit $?")]);
    Ok(vec![
        ("requests", trusting("certifi", url, body, "requests")?),
        ("httpx", trusting("certifi", url, body, "httpx")?),
        ("bare", without_variables(&words)),
        ("static", bare_python("trusts.py", &[SYSTEM, url, body])?),
        ("grandchild", shells),
    ])
}

fn certifi() -> Result<PathBuf> {
    let lib = installed()?.join("python-http/lib");
    for version in std::fs::read_dir(&lib).context("the clients' environment")? {
        let file = version?.path().join("site-packages/certifi/cacert.pem");
        if file.is_file() {
            return Ok(file);
        }
    }
    anyhow::bail!("no certifi in {}", lib.display())
}

/// Nothing was said about trust; that there is no gate here, is.
fn quiet(ended: &Ended) -> Result<()> {
    let mut said = ended.stderr.lines();
    ensure!(
        said.all(|line| line.contains("[gate] exec = false")),
        "{ended:?}"
    );
    Ok(())
}

fn paid(ended: &Ended) -> Result<()> {
    ensure!(ended.ok() && ended.stdout.contains("201"), "{ended:?}");
    quiet(ended)
}

#[test]
fn programs_that_read_no_variable_pay_once() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let url = bank.url(TRANSFERS);
    let outside = [Path::new(SYSTEM).to_path_buf(), certifi()?];
    let before = outside.each_ref().map(std::fs::read);
    for number in 0..5 {
        let (name, command) = programs(&url, &order("alice", 7)?)?.swap_remove(number);
        let without = fence.run(name, &command)?;
        assert!(!without.stdout.contains("201"), "{name}: {without:?}");
        assert_eq!(bank.payments(), number, "{name}");
        fence.say(&["checkpoint", name, "before"])?;
        let pay = |command: &Command| {
            let mut launched = fence.launch_with(name, PRIVATE, command)?;
            paid(&run(name, &mut launched)?).with_context(|| name.to_owned())
        };
        pay(&command)?;
        assert_eq!(bank.payments(), number + 1, "{name}");
        // Restored, it pays again in other words, from a namespace of its own again.
        fence.say(&["restored", name, "--to", "before"])?;
        pay(&programs(&url, &rewritten_order("alice", 7)?)?[number].1)?;
        assert_eq!(bank.payments(), number + 1, "{name} paid twice");
        let effects = fence.effects(name)?;
        assert_eq!(effects.len(), 1, "{effects:?}");
        assert_eq!(effects[0]["status"], "completed");
    }
    let after = outside.each_ref().map(std::fs::read);
    for (before, after) in before.into_iter().zip(after) {
        assert_eq!(before?, after?);
    }
    Ok(())
}

/// What is mounted outside is seen inside, and nothing of what is mounted inside is seen outside: asked
/// where mounts are shared, as systemd shares them.
#[test]
fn nothing_is_seen_outside_and_nothing_is_left() -> Result<()> {
    let authority = Authority::new()?;
    let fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let scratch = fence.place().scratch().display().to_string();
    let run_dir = fence.place().run_dir();
    let listing = || -> Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(fence.place().run_dir())?;
        let mut all: Vec<_> = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<Result<_>>()?;
        all.sort();
        Ok(all)
    };
    let files = listing()?;
    let certifi = certifi()?;
    std::fs::copy(&certifi, fence.place().scratch().join("certifi.pem"))?;
    std::fs::copy(SYSTEM, fence.place().scratch().join("system.pem"))?;
    let python = installed()?.join("python-http/bin/python");
    // The agent names the environment in the words of a shell.
    let agent = format!(
        "test -x {python} && mount -t tmpfs theirs {scratch}/theirs && echo inside $(grep -c acrfence-trust /proc/self/mountinfo); \
         tail -c +{from} {certifi} | cmp - {scratch}/certifi.pem && tail -c +{from} {SYSTEM} | cmp - {scratch}/system.pem && echo kept; \
         head -c {FRONT} {SYSTEM} | grep -c 'BEGIN CERTIFICATE'; stat --format 'mode %a %U' {SYSTEM}; ls {run}; \
         cat {scratch}/go; cat {scratch}/in/file",
        python = python.display(),
        certifi = certifi.display(),
        from = FRONT + 1,
        run = run_dir.display(),
    );
    let mut shell = plain("unshare");
    shell.args(["--mount", "--propagation", "shared", "/bin/sh"]);
    fence.place().cgroup().enter(&mut shell)?;
    let mut outside = Running::start("outside", &mut shell)?;
    outside.tell("exec 2>&1")?;
    outside.tell(&format!(
        "mkdir {scratch}/in {scratch}/theirs; mkfifo {scratch}/go"
    ))?;
    let start = quoted(&[
        acrfence()?.display().to_string(),
        "--run-dir".into(),
        run_dir.display().to_string(),
        "run".into(),
        "--name".into(),
        "inner".into(),
        "--private-trust".into(),
        "--".into(),
        "sh".into(),
        "-c".into(),
        agent,
    ]);
    outside.tell(&format!("{start} &"))?;
    let inside: usize = outside.wait_for("inside ")?.parse()?;
    assert!(inside >= 2, "{inside} files are covered");
    outside.wait_for("kept")?;
    outside.wait_for("1")?;
    outside.wait_for("mode 644 root")?;
    // Nothing lies over the directory of the socket.
    outside.wait_for("control.sock")?;
    outside.tell("echo outside $(grep -c -e acrfence-trust -e theirs /proc/self/mountinfo)")?;
    assert_eq!(outside.wait_for("outside ")?, "0");
    outside.tell(&format!(
        "cmp {SYSTEM} {scratch}/system.pem && cmp {} {scratch}/certifi.pem && echo same",
        certifi.display()
    ))?;
    outside.wait_for("same")?;
    outside.tell(&format!(
        "mount -t tmpfs ours {scratch}/in && echo comes in > {scratch}/in/file; echo > {scratch}/go; wait; umount {scratch}/in; echo over"
    ))?;
    outside.wait_for("comes in")?;
    outside.wait_for("over")?;
    outside.close_stdin();
    assert_eq!(listing()?, files);
    Ok(())
}

/// Reads orders and pays each with a client of its own, without any variable.
fn shell_that_pays(url: &str) -> Command {
    let mut shell = plain("/bin/sh");
    let script = format!(
        "while read -r order; do env -i PATH=/usr/bin:/bin curl --silent --show-error --max-time 30 --output /dev/null \
         --header 'content-type: application/json' --data \"$order\" --write-out 'answer %{{http_code}}\\n' {url} 2>&1; done"
    );
    shell.args(["-c", &script]);
    shell
}

#[test]
fn a_rotation_of_the_ca_reaches_namespaces_of_running_agents() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let mut fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let url = bank.url(TRANSFERS);
    let shell = shell_that_pays(&url);
    let mut root = fence.launch_with("root", PRIVATE, &shell)?;
    let mut nobody = fence.launch_with("nobody", PRIVATE, &shell)?;
    nobody = fence.place().as_nobody(&nobody)?;
    let mut agents = [
        Running::start("root", &mut root)?,
        Running::start("nobody", &mut nobody)?,
    ];
    let mut amount = 0;
    let mut pay = |agents: &mut [Running; 2]| -> Result<()> {
        for agent in agents {
            amount += 1;
            agent.tell(&order("alice", amount)?)?;
            assert_eq!(agent.wait_for("answer ")?, "201");
        }
        Ok(())
    };
    pay(&mut agents)?;
    let state = fence.place().scratch().join("state");
    let state = state.to_str().context("a path of text")?;
    let old = std::fs::read(fence.place().run_dir().join("ca.pem"))?;
    fence.say(&["ca", "rotate", "--state", state])?;
    pay(&mut agents)?;
    fence.kill()?;
    fence.start_again()?;
    assert_ne!(std::fs::read(fence.place().run_dir().join("ca.pem"))?, old);
    pay(&mut agents).context("after the rotation")?;
    assert_eq!(bank.payments(), 6);
    Ok(())
}

#[test]
fn another_user_than_root_gets_one_as_well() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let url = bank.url(TRANSFERS);
    let words = curl(&url, &order("alice", 3)?);
    let script = format!(
        "echo is $(id -u) $(id -g); grep Cap /proc/self/status | sort -u -k 2 | wc -l; {}",
        quoted(&[&["env".to_owned(), "-i".to_owned()], &words[..]].concat())
    );
    let mut shell = plain("sh");
    shell.args(["-c", &script]);
    let launched = fence.launch_with("nobody", PRIVATE, &shell)?;
    let before = std::fs::read(SYSTEM)?;
    let ended = run("nobody", &mut fence.place().as_nobody(&launched)?)?;
    assert!(ended.ok(), "{ended:?}");
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert_eq!(
        lines.first(),
        Some(&format!("is {NOBODY} {NOBODY}").as_str())
    );
    assert_eq!(lines.last(), Some(&"201"));
    quiet(&ended)?;
    assert_eq!(bank.payments(), 1);
    assert_eq!(std::fs::read(SYSTEM)?, before);
    // Restored, and the user's own again.
    fence.say(&["restored", "nobody"])?;
    let words = curl(&url, &rewritten_order("alice", 3)?);
    let mut again = fence.launch_with("nobody", PRIVATE, &without_variables(&words))?;
    again = fence.place().as_nobody(&again)?;
    paid(&run("nobody", &mut again)?)?;
    assert_eq!(bank.payments(), 1);
    Ok(())
}

#[test]
fn where_it_cannot_be_it_is_said_and_the_variables_are_left() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let url = bank.url(TRANSFERS);
    // Root as in most containers: it may not mount.
    let bounded = |launched: Command| -> Result<Command> {
        let mut bounded = plain("setpriv");
        bounded.args(["--bounding-set", "-sys_admin"]);
        bounded
            .arg(launched.get_program())
            .args(launched.get_args());
        fence.place().cgroup().enter(&mut bounded)?;
        Ok(bounded)
    };
    let post = Client::Requests.post(&url, &order("alice", 1)?)?;
    let ended = run(
        "vars",
        &mut bounded(fence.launch_with("vars", PRIVATE, &post)?)?,
    )?;
    assert_eq!(Client::Requests.answer(&ended)?.status, 201);
    assert!(
        ended.stderr.contains("no private trust"),
        "{}",
        ended.stderr
    );
    assert!(
        ended.stderr.contains("acrfence ca install"),
        "{}",
        ended.stderr
    );
    let bare = without_variables(&curl(&url, &order("alice", 2)?));
    let ended = run(
        "bare",
        &mut bounded(fence.launch_with("bare", PRIVATE, &bare)?)?,
    )?;
    assert!(
        ended.stderr.contains("no private trust"),
        "{}",
        ended.stderr
    );
    // curl's code for a certificate that does not verify.
    assert_eq!(ended.code, Some(60), "{ended:?}");
    assert_eq!(bank.payments(), 1);
    Ok(())
}

/// A program with roots of its own somewhere is told about, and can be reached by name.
#[test]
fn a_bundle_that_was_not_found_is_diagnosed_and_can_be_named() -> Result<()> {
    let authority = Authority::new()?;
    let bank = Bank::start(&authority)?;
    let fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let url = bank.url(TRANSFERS);
    let own = fence.place().scratch().join("own.pem");
    std::fs::copy(certifi()?, &own)?;
    let own = own.to_str().context("a path of text")?;
    let program = bare_python("trusts.py", &[own, &url, &order("alice", 1)?])?;
    let ended = run(
        "pinned",
        &mut fence.launch_with("pinned", PRIVATE, &program)?,
    )?;
    assert!(
        ended.stdout.contains("CERTIFICATE_VERIFY_FAILED"),
        "{ended:?}"
    );
    let status = fence.say(&["status"])?;
    assert!(
        status.contains("does not trust the ACRFence CA"),
        "{status}"
    );
    assert!(status.contains("--trust-file"), "{status}");
    assert_eq!(bank.payments(), 0);
    let named = ["--private-trust", "--trust-file", own];
    paid(&run(
        "pinned",
        &mut fence.launch_with("pinned", &named, &program)?,
    )?)?;
    assert_eq!(bank.payments(), 1);
    // What is named must be there, and be roots.
    let missing = ["--private-trust", "--trust-file", "/nowhere.pem"];
    let ended = run(
        "pinned",
        &mut fence.launch_with("pinned", &missing, &program)?,
    )?;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("/nowhere.pem"), "{ended:?}");
    Ok(())
}

/// What is covered cannot be taken away from inside; what takes its place outside is seen inside, uncovered.
#[test]
fn a_covered_file_stays_until_somebody_outside_replaces_it() -> Result<()> {
    let authority = Authority::new()?;
    let fence = Fence::start_with(&[&authority.root()], NO_GATE)?;
    let environment = fence.place().scratch().join("environment");
    let package = environment.join("lib/python3.11/site-packages/certifi");
    std::fs::create_dir_all(&package)?;
    std::fs::write(environment.join("pyvenv.cfg"), "home = /usr/bin\n")?;
    let bundle = package.join("cacert.pem");
    std::fs::copy(certifi()?, &bundle)?;
    let file = bundle.display();
    let mut shell = plain("/bin/sh");
    shell.env("VIRTUAL_ENV", &environment);
    let mut agent = Running::start("agent", &mut fence.launch_with("agent", PRIVATE, &shell)?)?;
    agent.tell("exec 2>&1")?;
    agent.tell(&format!("echo front $(head -c 6 {file})"))?;
    assert_eq!(agent.wait_for("front ")?, "# The");
    agent.tell(&format!(
        "rm -f {file}; mv -f {file}.new {file}; echo tried"
    ))?;
    assert!(agent.wait_for("rm: ")?.contains("Device or resource busy"));
    agent.wait_for("tried")?;
    let new = package.join("new.pem");
    std::fs::write(&new, "theirs")?;
    std::fs::rename(&new, &bundle)?;
    agent.tell(&format!("echo now $(cat {file})"))?;
    assert_eq!(agent.wait_for("now ")?, "theirs");
    Ok(())
}
