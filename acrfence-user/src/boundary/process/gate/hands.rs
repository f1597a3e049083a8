//! Threads that do what only the thread that traces a process may do.

use std::sync::{Arc, mpsc};

use parking_lot::Mutex;

/// Something to do on one of the threads.
type Job = Box<dyn FnOnce() + Send>;

/// A few threads that work on processes at the gate. Tokio's own would be no good: a tracer is one
/// thread from beginning to end, and waits.
#[derive(Debug)]
pub(crate) struct Hands {
    jobs: mpsc::Sender<Job>,
}

impl Hands {
    /// Starts `count` threads.
    pub(crate) fn new(count: usize) -> std::io::Result<Self> {
        let (jobs, queue) = mpsc::channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for number in 0..count.max(1) {
            let queue = queue.clone();
            std::thread::Builder::new()
                .name(format!("gate-{number}"))
                .spawn(move || work(&queue))?;
        }
        Ok(Self { jobs })
    }

    /// Does `job` on one of the threads.
    pub(crate) fn start(&self, job: impl FnOnce() + Send + 'static) {
        if self.jobs.send(Box::new(job)).is_err() {
            tracing::error!("no thread is left to work at the exec gate");
        }
    }

    /// The same, and gives what it made; none when it panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (done, made) = tokio::sync::oneshot::channel();
        self.start(move || {
            // Whoever asked may have gone.
            let _ = done.send(job());
        });
        made.await.ok()
    }
}

fn work(queue: &Mutex<mpsc::Receiver<Job>>) {
    loop {
        // One waits for a job while the others wait for the lock.
        let job = queue.lock().recv();
        let Ok(job) = job else {
            return;
        };
        // A panic ends this job, not the thread: what it held is dropped, which kills the process
        // that it had half changed.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
            tracing::error!("work on a process at the exec gate panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_costs_one_job_only() {
        let hands = Hands::new(1).unwrap();
        assert_eq!(hands.run(|| panic!("this one")).await, None::<()>);
        assert_eq!(hands.run(|| 7).await, Some(7));
    }
}
