//! Answers given to a command's reader in the command's place.

use std::os::fd::OwnedFd;

use crate::boundary::process::gate::Subject;
use crate::boundary::process::inject::Kind;
use crate::boundary::process::stdio::Sink;
use crate::boundary::refusal;
use crate::words::{EffectId, ExecResponse, Refusal, Response};

/// Exit status of a command that is refused, as shells have it for one that cannot be executed.
pub(super) const REFUSED: u8 = 126;

/// What to say and how to end instead of running a command.
#[derive(Debug)]
pub(super) struct Answer {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    pub(super) status: u8,
}

impl Answer {
    /// The record of an effect; a refusal where it cannot be played back.
    pub(super) fn replay(effect: EffectId, recorded: &Response) -> Self {
        let cannot = |why: &str| Self::refuse(&refusal::cannot_replay(effect, why));
        let Response::Exec(ExecResponse {
            exit,
            stdout,
            stderr,
        }) = recorded
        else {
            return cannot("its record is not that of a command");
        };
        if !recorded.is_whole() {
            return cannot("not all of its output was kept");
        }
        let Ok(status) = u8::try_from(*exit) else {
            return cannot("its exit status is none");
        };
        Self {
            stdout: stdout.kept.to_vec(),
            stderr: stderr.kept.to_vec(),
            status,
        }
    }

    /// A refusal, to be read on standard error.
    pub(super) fn refuse(refused: &Refusal) -> Self {
        Self {
            stdout: Vec::new(),
            stderr: (refusal::in_words(refused) + "\n").into_bytes(),
            status: REFUSED,
        }
    }

    /// Says it, to whoever reads what the process would have written. Ends early when the process
    /// does: somebody lost patience.
    pub(super) async fn say(&self, subject: &Subject) {
        tokio::select! {
            () = self.say_all(subject) => {}
            _ = subject.process.ended() => {}
        }
    }

    async fn say_all(&self, subject: &Subject) {
        for (number, bytes) in [(1, &self.stdout), (2, &self.stderr)] {
            let standard = &subject.standard[number];
            let copy = standard.copy.as_ref().and_then(|fd| fd.try_clone().ok());
            if let Some(copy) = copy.filter(|_| !bytes.is_empty()) {
                // A reader that is gone, a full disk: the command would have failed likewise.
                if let Err(error) = write(standard.kind, copy, bytes.clone()).await {
                    tracing::debug!("an answer in a command's place was not read: {error}");
                }
            }
        }
    }
}

async fn write(kind: Kind, fd: OwnedFd, bytes: Vec<u8>) -> std::io::Result<()> {
    if matches!(kind, Kind::Pipe | Kind::Socket) {
        let sink = Sink::shared(fd)?;
        return sink.write_all(&bytes).await.map_err(|broken| broken.error);
    }
    // The same open file: what is written next goes behind it.
    let written = tokio::task::spawn_blocking(move || {
        std::io::Write::write_all(&mut std::fs::File::from(fd), &bytes)
    });
    written
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::{Body, RefusalCode, Seq};

    #[test]
    fn only_a_whole_record_is_played_back() {
        let effect = EffectId(Seq(4));
        let record = |stdout: Body, exit| {
            Response::Exec(ExecResponse {
                exit,
                stdout,
                stderr: Body::whole("warn"),
            })
        };
        let answer = Answer::replay(effect, &record(Body::whole("out"), 3));
        assert_eq!(
            (answer.status, &answer.stdout[..], &answer.stderr[..]),
            (3, &b"out"[..], &b"warn"[..])
        );
        for bad in [
            record(super::super::record::unseen(), 0),
            record(Body::empty(), 1000),
        ] {
            let answer = Answer::replay(effect, &bad);
            assert_eq!(answer.status, REFUSED);
            let text = String::from_utf8(answer.stderr).unwrap();
            assert!(text.contains("e4") && answer.stdout.is_empty(), "{text}");
        }
    }

    #[test]
    fn a_refusal_is_told_on_standard_error() {
        let answer = Answer::refuse(&Refusal {
            code: RefusalCode::Diverged,
            title: "It differs".to_owned(),
            detail: "Fork to run it.".to_owned(),
            effect: None,
            fields: Vec::new(),
            hold: None,
        });
        let text = String::from_utf8(answer.stderr).unwrap();
        assert!(
            text.starts_with("ACRFence: It differs\n") && text.ends_with('\n'),
            "{text}"
        );
    }
}
