//! A command that nobody could stop: it runs already, or has ended, and is recorded as it is found.

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::capture::Capture;
use super::run;
use crate::boundary::Ticket;
use crate::boundary::process::gate::{Keeper, Subject};
use crate::boundary::process::pinned::Process;
use crate::words::{ExecRequest, ExitStatus, Origin, ProcessIdentity, Request, ToolCall};

/// A command that runs or ran.
pub(crate) struct Witnessed {
    /// None when it was gone before it could be looked at.
    process: Option<Process>,
    status: oneshot::Receiver<ExitStatus>,
    request: ExecRequest,
    origin: Origin,
    identity: ProcessIdentity,
}

/// A command that is an effect of the log.
pub(crate) struct Recorded {
    process: Option<Process>,
    status: oneshot::Receiver<ExitStatus>,
    ticket: Box<dyn Ticket>,
}

impl Witnessed {
    /// One that runs. `argv` is its command line as it was meant, `status` tells its end.
    pub(crate) fn running(
        keeper: &Keeper,
        subject: Subject,
        argv: Vec<String>,
        origin: Origin,
        status: oneshot::Receiver<ExitStatus>,
    ) -> Self {
        Self {
            request: ExecRequest {
                argv,
                cwd: subject.cwd.clone(),
                env: keeper.kept_environment(&subject),
                stdin: None,
            },
            identity: subject.stop.process,
            process: Some(subject.process),
            status,
            origin,
        }
    }

    /// One that was gone at once: what the kernel told of it.
    pub(crate) fn gone(
        argv: Vec<String>,
        origin: Origin,
        status: oneshot::Receiver<ExitStatus>,
    ) -> Self {
        Self {
            process: None,
            status,
            request: ExecRequest {
                argv,
                cwd: origin.cwd.clone(),
                env: Vec::new(),
                stdin: None,
            },
            identity: origin.process,
            origin,
        }
    }

    /// Writes down that it runs; none when the log does not take it.
    pub(crate) async fn begin(self, keeper: &Keeper) -> Option<Recorded> {
        let call = ToolCall {
            at: run::now(),
            request: Request::Exec(self.request),
            origin: self.origin,
        };
        Some(Recorded {
            ticket: keeper.arbiter().witness(call, self.identity).await?,
            process: self.process,
            status: self.status,
        })
    }
}

impl Recorded {
    /// Waits for its end and writes that down. Its output went past us.
    pub(crate) async fn follow(self, bound: usize) {
        let status = match &self.process {
            Some(process) => run::wait(process, self.status).await,
            None => self.status.await.unwrap_or(ExitStatus::Unknown),
        };
        let ended = CancellationToken::new();
        let (out, _) = Capture::Unseen.run(&ended, bound).await;
        let (error, _) = Capture::Unseen.run(&ended, bound).await;
        run::settle(self.ticket, run::ending(status, out, error)).await;
    }
}
