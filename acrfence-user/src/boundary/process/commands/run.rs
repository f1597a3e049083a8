//! A command at the gate: decided, then run and recorded, or answered in its place.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::answer::Answer;
use super::capture::{Capture, Left};
use super::input::{self, Input};
use super::rules::Rule;
use crate::boundary::process::gate::{Keeper, Subject, Ungated};
use crate::boundary::process::inject::{Direction, GateError, Held, Interposed, Kind, Place};
use crate::boundary::process::stdio::{Sink, Source};
use crate::boundary::{Admission, Ticket};
use crate::probe::GateWhy;
use crate::words::{
    Body, Ending, ExecRequest, ExecResponse, ExitStatus, Request, Response, Timestamp, ToolCall,
};

/// Does with a command what is decided about it. `argv` is its command line as it was meant.
pub(crate) async fn attend(keeper: Arc<Keeper>, subject: Subject, rule: Rule, argv: Vec<String>) {
    let input = if rule.stdin {
        match input::look(&subject.standard[0]).await {
            Ok(input) => input,
            Err(error) => {
                tracing::warn!(pid = subject.stop.process.tgid, %error, "a command's input cannot be read");
                Input::Untouched(None)
            }
        }
    } else {
        Input::Untouched(None)
    };
    if rule.only_reads(&argv, input.body()) {
        // Nothing of it is recorded, but what was taken of its input it must get.
        let started = start(
            &keeper,
            subject,
            input,
            [Capture::Nothing, Capture::Nothing],
            vec![],
        );
        if let Err(failed) = started.await {
            keeper.ungated(failed.subject, &failed.error, Ungated::LetRun);
        }
        return;
    }
    let Some(origin) = keeper.processes().origin(subject.stop.process) else {
        // Tracked no more: nobody wants to know.
        keeper.let_run(subject);
        return;
    };
    let call = ToolCall {
        at: now(),
        request: Request::Exec(ExecRequest {
            argv,
            cwd: subject.cwd.clone(),
            env: keeper.kept_environment(&subject),
            stdin: input.body().cloned(),
        }),
        origin,
    };
    let admission = keeper
        .arbiter()
        .admit_inside(call, subject.stop.process)
        .await;
    let answer = match admission {
        Admission::Forward(ticket) => return run(keeper, subject, input, ticket).await,
        Admission::Replay { effect, response } => Answer::replay(effect, &response),
        Admission::Refuse(refused) => Answer::refuse(&refused),
    };
    answer.say(&subject).await;
    let status = answer.status;
    keeper.end(subject, status).await;
}

/// Runs a command and says how it ended.
async fn run(keeper: Arc<Keeper>, subject: Subject, input: Input, ticket: Box<dyn Ticket>) {
    let identity = subject.stop.process;
    let status = keeper.processes().ended(identity);
    let watch = match subject.process.duplicate() {
        Ok(watch) => watch,
        Err(error) => {
            let ending = Ending::NotSent {
                why: format!("it was killed at the gate: {error}"),
            };
            keeper.kill(subject);
            return settle(ticket, ending).await;
        }
    };
    let (captures, places) = match outputs(&subject) {
        Ok(outputs) => outputs,
        Err(error) => {
            tracing::warn!(pid = identity.tgid, %error, "a command's output cannot be recorded");
            ([Capture::Unseen, Capture::Unseen], Vec::new())
        }
    };
    let captures = match start(&keeper, subject, input, captures, places).await {
        Ok(captures) => captures,
        Err(NotStarted {
            error: error @ GateError::Gone { .. },
            subject,
        }) => {
            keeper.ungated(subject, &error, Ungated::Refuse);
            let why = error.to_string();
            return settle(ticket, Ending::NotSent { why }).await;
        }
        Err(failed) => match keeper.settings().ungated {
            Ungated::Refuse => {
                let ending = Ending::NotSent {
                    why: failed.error.to_string(),
                };
                keeper.ungated(failed.subject, &failed.error, Ungated::Refuse);
                return settle(ticket, ending).await;
            }
            Ungated::LetRun => {
                keeper.ungated(failed.subject, &failed.error, Ungated::LetRun);
                [Capture::Unseen, Capture::Unseen]
            }
        },
    };
    let ended = CancellationToken::new();
    let bound = keeper.settings().record;
    let [out, error] = captures;
    let (out, error, status) =
        tokio::join!(out.run(&ended, bound), error.run(&ended, bound), async {
            let status = wait(&watch, status).await;
            ended.cancel();
            status
        });
    let ((stdout, out), (stderr, error)) = (out, error);
    settle(ticket, ending(status, stdout, stderr)).await;
    // Only now do their readers see the end.
    tokio::join!(pass(out), pass(error));
}

async fn pass(left: Option<Left>) {
    if let Some(left) = left {
        left.pass().await;
    }
}

/// Waits for the end of a process, and for what the kernel reports of it.
pub(super) async fn wait(
    process: &crate::boundary::process::pinned::Process,
    status: tokio::sync::oneshot::Receiver<ExitStatus>,
) -> ExitStatus {
    const REPORT: std::time::Duration = std::time::Duration::from_secs(2);
    if let Err(error) = process.ended().await {
        tracing::error!("the end of a command cannot be waited for: {error}");
        return status.await.unwrap_or(ExitStatus::Unknown);
    }
    // The report is on its way when the process has ended; it may have been lost.
    match tokio::time::timeout(REPORT, status).await {
        Ok(Ok(status)) => status,
        _ => ExitStatus::Unknown,
    }
}

pub(super) fn ending(status: ExitStatus, stdout: Body, stderr: Body) -> Ending {
    let response = |exit| {
        Response::Exec(ExecResponse {
            exit,
            stdout,
            stderr,
        })
    };
    match status {
        ExitStatus::Code(code) => Ending::Response(response(code)),
        ExitStatus::Signal(signal) => Ending::Broken {
            why: format!("signal {signal} ended it"),
            partial: Some(response(128 + signal)),
        },
        ExitStatus::Unknown => Ending::Broken {
            why: "its exit status is not known".to_owned(),
            partial: None,
        },
    }
}

/// How the outputs are recorded, and which of them have to lead through us.
fn outputs(subject: &Subject) -> std::io::Result<([Capture; 2], Vec<Route>)> {
    let [_, out, error] = &subject.standard;
    let is_one = out.kind != Kind::Closed && out.identity == error.identity;
    let mut routes = Vec::new();
    let mut captures = [Capture::Nothing, Capture::Nothing];
    for (index, standard) in [out, error].into_iter().enumerate() {
        let Some(fd) = standard.copy.as_ref().filter(|_| index == 0 || !is_one) else {
            continue;
        };
        captures[index] = match standard.kind {
            Kind::Pipe | Kind::Socket => {
                let number = if index == 0 { 1 } else { 2 };
                routes.push(Route {
                    index,
                    numbers: if is_one { vec![1, 2] } else { vec![number] },
                    reader: Sink::shared(fd.try_clone()?)?,
                });
                continue;
            }
            Kind::File => Capture::of_file(fd.try_clone()?),
            Kind::Null | Kind::Closed => Capture::Nothing,
            Kind::Terminal | Kind::Other => Capture::Unseen,
        };
    }
    Ok((captures, routes))
}

/// An output that has to lead through us.
struct Route {
    /// Which of the captures it becomes.
    index: usize,
    /// The command's descriptors.
    numbers: Vec<RawFd>,
    /// Whoever read it so far.
    reader: Sink,
}

/// A command that could not be started as it should; it stands at the gate.
struct NotStarted {
    subject: Subject,
    error: GateError,
}

/// Lets a command run: its outputs lead through us where `routes` say so, and it gets the input
/// that was taken.
async fn start(
    keeper: &Arc<Keeper>,
    subject: Subject,
    input: Input,
    mut captures: [Capture; 2],
    routes: Vec<Route>,
) -> Result<[Capture; 2], NotStarted> {
    let taken = match input {
        Input::Untouched(_) => None,
        Input::Taken { bytes, rest, .. } => Some((bytes, rest)),
    };
    let wants_input = taken.is_some();
    let numbers: Vec<(usize, Vec<RawFd>)> = routes
        .iter()
        .map(|route| (route.index, route.numbers.clone()))
        .collect();
    let own = keeper.clone();
    let done = keeper
        .hands()
        .run(move || {
            let ends = interpose(&own, &subject, &numbers, wants_input);
            (subject, ends)
        })
        .await;
    // A panic has killed the process.
    let Some((subject, ends)) = done else {
        return Ok([Capture::Unseen, Capture::Unseen]);
    };
    let mut ends = match ends {
        Ok(ends) => ends.into_iter(),
        Err(error) => return Err(NotStarted { subject, error }),
    };
    keeper.left(subject.stop);
    // Copies of its ends would keep its readers from seeing their end.
    drop(subject);
    for route in routes {
        if let Some(Interposed(end)) = ends.next() {
            captures[route.index] = match Source::ours(end) {
                Ok(from) => Capture::Piped {
                    from,
                    to: route.reader,
                },
                Err(_) => Capture::Unseen,
            };
        }
    }
    if let (Some((bytes, rest)), Some(Interposed(end))) = (taken, ends.next())
        && let Ok(sink) = Sink::ours(end)
    {
        tokio::spawn(feed(bytes, rest, sink));
    }
    Ok(captures)
}

fn interpose(
    keeper: &Keeper,
    subject: &Subject,
    outputs: &[(usize, Vec<RawFd>)],
    wants_input: bool,
) -> Result<Vec<Interposed>, GateError> {
    let mut places = Vec::new();
    for (index, numbers) in outputs {
        let standard = &subject.standard[index + 1];
        if let Some(now) = &standard.copy {
            places.push(Place {
                numbers,
                now,
                kind: standard.kind,
                direction: Direction::Out,
            });
        }
    }
    let input = &subject.standard[0];
    if let Some(now) = input.copy.as_ref().filter(|_| wants_input) {
        places.push(Place {
            numbers: &[0],
            now,
            kind: input.kind,
            direction: Direction::In,
        });
    }
    let mut held = Held::seize(&subject.process)?;
    let ends = match held.interpose(&places) {
        Ok(ends) => ends,
        Err(error) => {
            held.stand()?;
            return Err(error);
        }
    };
    keeper.equip(subject, &mut held);
    let done = GateWhy::STDIO | GateWhy::COMMAND;
    keeper.processes().passed(subject.stop.process, done);
    held.release()?;
    Ok(ends)
}

/// Gives a command the input that was taken, and what follows.
async fn feed(bytes: Bytes, rest: Option<Source>, sink: Sink) {
    if sink.write_all(&bytes).await.is_err() {
        return;
    }
    let Some(rest) = rest else {
        return;
    };
    loop {
        tokio::select! {
            moved = rest.splice(&sink) => match moved {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            },
            () = sink.hung_up() => return,
        }
    }
}

pub(super) async fn settle(ticket: Box<dyn Ticket>, ending: Ending) {
    if let Err(error) = ticket.settle(ending).await {
        tracing::error!("the outcome of a command could not be recorded: {error}");
    }
}

pub(super) fn now() -> Timestamp {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since.as_nanos()).unwrap_or(u64::MAX))
}
