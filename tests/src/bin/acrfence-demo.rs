//! Tells the story of one agent, one bank and a restore, and leaves nothing behind.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};

use acrfence_tests::authority::Authority;
use acrfence_tests::cgroup;
use acrfence_tests::fence::Fence;
use acrfence_tests::screen::Screen;
use acrfence_tests::story::{self, Measured};
use anyhow::{Context as _, Result};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

/// Shows what happens to a restored agent without ACRFence, and with it.
#[derive(Parser)]
struct Arguments {
    /// End with a line of JSON that says what was measured.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match tell() {
        Ok(measured) => {
            let last = if arguments.json {
                serde_json::to_string(&measured).unwrap_or_default()
            } else {
                format!("\nTold in {:.1} seconds.", measured.seconds)
            };
            // Nobody may be reading any more.
            let _ = writeln!(std::io::stdout(), "{last}");
            if measured.as_promised() {
                ExitCode::SUCCESS
            } else {
                eprintln!("the fence did not hold what it promises; see above");
                ExitCode::FAILURE
            }
        }
        Err(e) => {
            eprintln!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

/// What the main thread waits for.
enum Turn {
    /// The control group in which everything of the story runs.
    Place(PathBuf),
    Interrupted,
    Over,
}

/// Tells the story in a thread of its own, so that an interrupt can end the daemon and the agents;
/// the story then fails, and takes everything down on its way out.
fn tell() -> Result<Measured> {
    let (turns, happens) = channel();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("starting a thread that watches for interrupts")?;
    for kind in [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
    ] {
        let turns = turns.clone();
        let mut signals = runtime
            .block_on(async { signal(kind) })
            .context("watching for interrupts")?;
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                let _ = turns.send(Turn::Interrupted);
            }
        });
    }
    let story = std::thread::spawn(move || {
        let told = in_a_place_of_its_own(&turns);
        let _ = turns.send(Turn::Over);
        told
    });
    let (mut place, mut interrupted) = (None, false);
    while let Ok(turn) = happens.recv() {
        match turn {
            Turn::Over => break,
            Turn::Place(path) => place = Some(path),
            Turn::Interrupted => interrupted = true,
        }
        if let (true, Some(place)) = (interrupted, &place) {
            cgroup::clear(place)?;
        }
    }
    let told = story
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    if interrupted {
        told.context("interrupted; everything was taken down")
    } else {
        told
    }
}

fn in_a_place_of_its_own(turns: &Sender<Turn>) -> Result<Measured> {
    let screen = Screen::new();
    let authority = Authority::new()?;
    let fence = Fence::start(&authority)?;
    let _ = turns.send(Turn::Place(fence.place().cgroup().path().to_path_buf()));
    story::tell(&screen, &fence, &authority)
}
