//! A daemon that is killed in the middle of a call: while the request goes out, and while the response
//! comes in. Whatever the other side made of it, the effect is in doubt afterwards and an equal call is
//! not sent.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use acrfence_tests::fence::Fence;
use acrfence_tests::process::Running;
use anyhow::{Context as _, Result, ensure};

const POLICY: &str = "[fence]\nhold_timeout = \"1s\"\n[boundary]\nrecord_bound = \"32MiB\"\n";
/// More than the kernel takes off the hands of a sender whose receiver has little room.
const LONG: usize = 3 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that stops in the middle.
struct Halfway {
    port: u16,
    /// One word for each connection that got as far as it gets.
    there: Receiver<TcpStream>,
}

/// How far a server goes.
#[derive(Clone, Copy)]
enum Until {
    /// It reads the head of the request and a part of its body.
    HalfTheRequest,
    /// It reads the request and gives a part of the response.
    HalfTheResponse,
}

impl Halfway {
    fn start(until: Until) -> Result<Self> {
        let listener = with_little_room()?;
        let port = listener.local_addr()?.port();
        let (told, there) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                if go(stream, until, &told).is_err() {
                    return;
                }
            }
        });
        Ok(Self { port, there })
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}/pay", self.port)
    }

    /// The connection of the one call, when it got as far as it gets.
    fn reached(&self) -> Result<TcpStream> {
        self.there
            .recv_timeout(PATIENCE)
            .context("no call came to the middle")
    }
}

/// A listener whose connections take in little that nobody reads.
fn with_little_room() -> Result<TcpListener> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()?;
    let listener = runtime.block_on(async {
        let socket = tokio::net::TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(4096)?;
        socket.bind(std::net::SocketAddr::from(([127, 0, 0, 1], 0)))?;
        socket.listen(8)?.into_std()
    })?;
    listener.set_nonblocking(false)?;
    Ok(listener)
}

fn go(mut stream: TcpStream, until: Until, told: &Sender<TcpStream>) -> Result<()> {
    let mut read = Vec::new();
    let mut piece = [0; 4096];
    let whole = loop {
        let n = stream.read(&mut piece)?;
        ensure!(n > 0, "the request broke off");
        read.extend_from_slice(&piece[..n]);
        if let Some(end) = read.windows(4).position(|w| w == b"\r\n\r\n") {
            break end + 4 + length(&read[..end])?;
        }
    };
    if let Until::HalfTheResponse = until {
        while read.len() < whole {
            let n = stream.read(&mut piece)?;
            ensure!(n > 0, "the request broke off");
            read.extend_from_slice(&piece[..n]);
        }
        stream.write_all(b"HTTP/1.1 201 Created\r\ncontent-length: 100\r\n\r\n{\"half\":")?;
    }
    told.send(stream)?;
    Ok(())
}

fn length(head: &[u8]) -> Result<usize> {
    let head = String::from_utf8_lossy(head).to_ascii_lowercase();
    let value = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"))
        .context("a request without a length")?;
    Ok(value.trim().parse()?)
}

fn curl(url: &str, body: &std::path::Path) -> Command {
    let mut command = Command::new("/usr/bin/curl");
    command
        .args(["--silent", "--show-error", "--max-time", "60"])
        .args([
            "--header",
            "content-type: application/json",
            "--header",
            "expect:",
        ])
        .args(["--write-out", "\n%{http_code}", "--data-binary"])
        .arg(format!("@{}", body.display()))
        .arg(url);
    command
}

fn killed_in_the_middle(until: Until, body: usize) -> Result<()> {
    let server = Halfway::start(until)?;
    let mut fence = Fence::start_with(&[], POLICY)?;
    let file = fence.place().scratch().join("order.json");
    std::fs::write(
        &file,
        format!("{{\"to\": \"alice\", \"note\": \"{}\"}}", "x".repeat(body)),
    )?;
    let pay = curl(&server.url(), &file);
    let life = Running::start("buyer", &mut fence.launch("buyer", &pay)?)?;
    let upstream = server.reached()?;
    fence.kill()?;
    drop(upstream);
    let ended = life.finish()?;
    ensure!(
        !ended.stdout.contains("201"),
        "the agent was answered: {}",
        ended.stdout
    );

    fence.start_again()?;
    let effects = fence.effects("buyer")?;
    ensure!(effects.len() == 1, "{effects:?}");
    ensure!(effects[0]["status"] == "in_doubt", "{effects:?}");
    // Not sent a second time: neither by an agent that knows nothing of it, nor by one that was
    // restored.
    for restored in [false, true] {
        if restored {
            fence.say(&["restored", "buyer"])?;
        }
        let again = fence.run("buyer", &pay)?;
        ensure!(
            again.stdout.ends_with("409"),
            "{}{}",
            again.stdout,
            again.stderr
        );
        ensure!(
            server.there.try_recv().is_err(),
            "the equal call was sent as well"
        );
    }
    Ok(())
}

#[test]
fn killed_while_the_request_goes_out() -> Result<()> {
    killed_in_the_middle(Until::HalfTheRequest, LONG)
}

#[test]
fn killed_while_the_response_comes_in() -> Result<()> {
    killed_in_the_middle(Until::HalfTheResponse, 100)
}
