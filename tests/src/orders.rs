//! Orders to an agent that is told what to do through named pipes, and its answers: what saves its process
//! has no connection to care for.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{Receiver, channel};

use anyhow::{Context as _, Result, ensure};

use crate::process::{PATIENCE, run};

/// Makes the directory with the pipes.
pub fn pipes(dir: &Path) -> Result<()> {
    fs::create_dir(dir)?;
    for pipe in ["orders", "answers"] {
        let made = run("mkfifo", Command::new("mkfifo").arg(dir.join(pipe)))?;
        ensure!(made.ok(), "mkfifo: {}", made.stderr);
    }
    Ok(())
}

/// Gives an order through a pair of pipes and waits for the answer.
pub fn ask(pipes: &Path, order: &str) -> Result<String> {
    answer(&begin_to_ask(pipes, Some(order)))
}

/// Waits for the answer.
pub fn answer(asked: &Receiver<Result<String>>) -> Result<String> {
    let answer = asked.recv_timeout(PATIENCE);
    answer.with_context(|| format!("no answer in {PATIENCE:?}"))?
}

/// Gives an order, or none to an agent that has one already; the answer comes later.
pub fn begin_to_ask(pipes: &Path, order: Option<&str>) -> Receiver<Result<String>> {
    let (sender, answer) = channel();
    let (dir, order) = (pipes.to_owned(), order.map(str::to_owned));
    std::thread::spawn(move || {
        let asked = || -> Result<String> {
            if let Some(order) = order {
                let mut orders = OpenOptions::new().write(true).open(dir.join("orders"))?;
                writeln!(orders, "{order}")?;
            }
            let mut line = String::new();
            BufReader::new(File::open(dir.join("answers"))?).read_line(&mut line)?;
            Ok(line.trim_end().to_owned())
        };
        // Nobody waits any more when the limit has passed.
        let _ = sender.send(asked());
    });
    answer
}
