//! How fast a service answers what it has already done.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::sync::watch;

/// A service does its work when a request arrives; the pace decides when the answer leaves. So a
/// test can act between the two, and knows when it does.
pub struct Pace {
    open: watch::Sender<bool>,
    delay: Duration,
    arrived: Mutex<usize>,
    arrival: Condvar,
}

impl Default for Pace {
    fn default() -> Self {
        Self::new(Duration::ZERO)
    }
}

impl Pace {
    /// Answers leave `delay` after the work is done, and only while the gate is open, which it is.
    pub fn new(delay: Duration) -> Self {
        Self {
            open: watch::Sender::new(true),
            delay,
            arrived: Mutex::new(0),
            arrival: Condvar::new(),
        }
    }

    /// From now on answers wait for [`Self::release`].
    pub fn hold(&self) {
        self.open.send_replace(false);
    }

    /// Lets all waiting and later answers go.
    pub fn release(&self) {
        self.open.send_replace(true);
    }

    /// Waits until `count` requests in all have done their work.
    pub fn wait_for(&self, count: usize, limit: Duration) -> Result<()> {
        let (arrived, timeout) = self
            .arrival
            .wait_timeout_while(self.lock(), limit, |arrived| *arrived < count)
            .unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out() {
            bail!(
                "the service saw {} of {count} requests in {limit:?}",
                *arrived
            );
        }
        Ok(())
    }

    /// The work of one request is done: says so, then waits for its answer's turn.
    pub(crate) async fn answer(&self) {
        *self.lock() += 1;
        self.arrival.notify_all();
        // The sender lives as long as `self`, so waiting cannot fail.
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        if !self.delay.is_zero() {
            tokio::time::sleep(self.delay).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
