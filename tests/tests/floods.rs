//! Agents that take all they can get: does the daemon stay small, and is everybody else served?

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::process::Command;

use acrfence_tests::client::{bare_python, plain};
use acrfence_tests::fence::{Fence, Place};
use acrfence_tests::process::Running;
use anyhow::{Context as _, Result};

/// What a daemon may have in memory under any of these, in MiB.
const BOUND: u64 = 320;

/// Reads requests whole, says how long they were, and answers.
fn service() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || answer(stream));
        }
    });
    Ok(port)
}

fn answer(mut stream: std::net::TcpStream) -> Result<()> {
    let mut buffer = vec![0; 256 << 10];
    let mut head = Vec::new();
    let end = loop {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        head.extend_from_slice(&buffer[..n]);
        if let Some(at) = head.windows(4).position(|w| w == b"\r\n\r\n") {
            break at + 4;
        }
    };
    let text = String::from_utf8_lossy(&head[..end]).to_ascii_lowercase();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .and_then(|length| length.trim().parse::<u64>().ok())
        .unwrap_or(0);
    let mut got = (head.len() - end) as u64;
    while got < length {
        let n = stream.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        got += n as u64;
    }
    if let Some(mib) = wanted(&text) {
        return give(stream, mib);
    }
    let body = format!("took {got}");
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )?;
    Ok(())
}

/// How many MiB are asked for: `POST /down/MIB`.
fn wanted(head: &str) -> Option<u64> {
    let (_, rest) = head.lines().next()?.split_once(" /down/")?;
    rest.split(' ').next()?.parse().ok()
}

/// Writes as fast as it is read.
fn give(mut stream: std::net::TcpStream, mib: u64) -> Result<()> {
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        mib << 20
    )?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..mib {
        stream.write_all(&zeros)?;
    }
    Ok(())
}

/// Most memory that the daemon ever had, in MiB.
fn peak(fence: &Fence) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", fence.daemon_id()?))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    Ok(kib.context("VmHWM")?.trim().parse::<u64>()? / 1024)
}

fn pay(port: u16) -> Command {
    let mut curl = plain("curl");
    curl.args([
        "--silent",
        "--show-error",
        "--max-time",
        "30",
        "--data",
        "x=1",
    ])
    .arg(format!("http://127.0.0.1:{port}/pay"));
    curl
}

fn others_are_served_during_a_flood(fence: &Fence, connections: &str) -> Result<()> {
    let port = service()?;
    let flood = bare_python("flood.py", &["127.0.0.1", &port.to_string(), connections])?;
    let mut flood = Running::start("a flood", &mut fence.launch("flood", &flood)?)?;
    let open: usize = flood.wait_for("flooding ")?.parse()?;
    assert!(open > 0);
    flood.wait_for("kept up")?;
    for n in 0..5 {
        // Each its own agent: one that starts again is taken for one that may have been restored.
        let name = format!("other{n}");
        let ended = fence.run(&name, &pay(port))?;
        assert_eq!(ended.stdout, "took 3", "{}", ended.stderr);
        assert_eq!(fence.effects(&name)?.len(), 1);
    }
    assert!(fence.effects("flood")?.is_empty(), "no request was whole");
    let peak = peak(fence)?;
    println!("{open} connections: the daemon had at most {peak} MiB");
    assert!(peak < BOUND, "{peak} MiB");
    Ok(())
}

#[test]
fn slow_requests_of_one_agent_leave_the_others_served() -> Result<()> {
    others_are_served_during_a_flood(&Fence::start_with(&[], "")?, "1000")
}

#[test]
fn a_flood_at_the_limit_of_open_files_leaves_the_others_served() -> Result<()> {
    let limited = ["prlimit", "--nofile=448:448"].map(str::to_owned).to_vec();
    let fence = Fence::start_in(Place::new(&[], "")?.wrapped(limited))?;
    others_are_served_during_a_flood(&fence, "400")
}

/// How much is large, in MiB.
fn large() -> u64 {
    let full = acrfence_tests::rounds(1) > 1;
    if full { 2048 } else { 192 }
}

#[test]
fn a_large_download_is_passed_on_as_it_comes() -> Result<()> {
    let mib = large();
    let fence = Fence::start_with(&[], "")?;
    let port = service()?;
    let mut download = plain("curl");
    download
        .args(["--silent", "--show-error", "--max-time", "300"])
        .args(["--data", "x=1", "--output", "/dev/null"])
        .args(["--write-out", "got %{size_download}\n"])
        .arg(format!("http://127.0.0.1:{port}/down/{mib}"));
    let mut large = Running::start("a download", &mut fence.launch("large", &download)?)?;
    let ended = fence.run("other", &pay(port))?;
    assert_eq!(ended.stdout, "took 3", "{}", ended.stderr);
    let got = large.wait_for("got ")?;
    assert_eq!(got, (mib << 20).to_string());
    let effects = fence.effects("large")?;
    assert_eq!(effects.len(), 1, "{effects:?}");
    assert_eq!(effects[0]["status"], "completed");
    let peak = peak(&fence)?;
    println!("a download of {mib} MiB: the daemon had at most {peak} MiB");
    assert!(peak < BOUND, "{peak} MiB");
    // It was not kept whole, so it cannot be given again; nor is it asked for again.
    fence.say(&["restored", "large"])?;
    let again = fence.run("large", &download)?;
    assert!(!again.stdout.contains(&got), "{}", again.stdout);
    assert_eq!(fence.effects("large")?.len(), 1);
    Ok(())
}

/// The other side is only read as fast as the agent reads.
#[test]
fn a_download_that_nobody_reads_waits_where_it_is() -> Result<()> {
    let mib = large();
    let fence = Fence::start_with(&[], "")?;
    let port = service()?;
    let arguments = ["127.0.0.1", &port.to_string(), &format!("/down/{mib}")];
    let lazy = bare_python("lazy.py", &arguments)?;
    let mut lazy = Running::start("a lazy agent", &mut fence.launch("lazy", &lazy)?)?;
    lazy.wait_for("began")?;
    for n in 0..5 {
        let ended = fence.run(&format!("other{n}"), &pay(port))?;
        assert_eq!(ended.stdout, "took 3", "{}", ended.stderr);
    }
    let waiting = peak(&fence)?;
    lazy.tell("read on")?;
    assert_eq!(lazy.wait_for("got ")?, (mib << 20).to_string());
    let peak = peak(&fence)?;
    println!("{mib} MiB that nobody read: {waiting} MiB, then at most {peak} MiB");
    assert!(peak < BOUND, "{peak} MiB");
    Ok(())
}

#[test]
fn a_large_upload_stays_on_disk() -> Result<()> {
    let mib = large();
    let fence = Fence::start_with(&[], "")?;
    let port = service()?;
    // A file of nothing but zeros, which takes no room.
    let zeros = fence.place().scratch().join("zeros");
    std::fs::File::create(&zeros)?.set_len(mib << 20)?;
    let mut upload = plain("curl");
    upload
        .args(["--silent", "--show-error", "--max-time", "300"])
        .args(["--request", "POST", "--header", "Expect:", "--upload-file"])
        .arg(&zeros)
        .arg(format!("http://127.0.0.1:{port}/up"));
    let mut large = Running::start("an upload", &mut fence.launch("large", &upload)?)?;
    let ended = fence.run("other", &pay(port))?;
    assert_eq!(ended.stdout, "took 3", "{}", ended.stderr);
    large.wait_for(&format!("took {}", mib << 20))?;
    let effects = fence.effects("large")?;
    assert_eq!(effects.len(), 1, "{effects:?}");
    let peak = peak(&fence)?;
    println!("an upload of {mib} MiB: the daemon had at most {peak} MiB");
    assert!(peak < BOUND, "{peak} MiB");
    Ok(())
}
