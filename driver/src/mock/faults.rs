//! Faults of a mock driver that a test switches on and off.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;
use tokio::time::Instant;

use crate::error::{DriverError, TaskError};

/// The faults of one driver.
#[derive(Debug, Default)]
pub(super) struct Faults {
    /// The names of the calls that get no answer.
    hung: watch::Sender<BTreeSet<&'static str>>,
    waiting: AtomicUsize,
    waits_fail: AtomicBool,
    /// The arrival times of the failed `WaitTask` calls.
    failed_waits: Mutex<Vec<Instant>>,
}

impl Faults {
    pub(super) fn hang_calls(&self, call: &'static str) {
        self.hung.send_modify(|hung| {
            hung.insert(call);
        });
    }

    pub(super) fn answer_calls(&self, call: &'static str) {
        self.hung.send_modify(|hung| {
            hung.remove(call);
        });
    }

    /// Returns the number of calls that wait for an answer.
    pub(super) fn hung_calls(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Waits until calls of this name are answered.
    pub(super) async fn wait_until_answered(&self, call: &str) {
        let mut hung = self.hung.subscribe();
        if !hung.borrow().contains(call) {
            return;
        }
        let _waiting = Waiting::new(&self.waiting);
        // The sender lives as long as the caller's borrow of it.
        drop(hung.wait_for(|hung| !hung.contains(call)).await);
    }

    pub(super) fn fail_waits(&self, fail: bool) {
        self.waits_fail.store(fail, Ordering::Relaxed);
    }

    pub(super) fn failed_waits(&self) -> Vec<Instant> {
        let waits = self.failed_waits.lock();
        waits.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the error for `WaitTask` while the test lets those calls fail.
    pub(super) fn wait_error(&self) -> Result<(), TaskError> {
        if !self.waits_fail.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut waits = self
            .failed_waits
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        waits.push(Instant::now());
        let reason = "the wait was interrupted".to_owned();
        Err(DriverError::Protocol { reason }.into())
    }
}

/// Counts a call while it waits.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(waiting: &'a AtomicUsize) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
