//! Precedence of starts over deletions: a deletion waits while any task is starting, but for a limited time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of starts under way, and the threads that wait for their end.
#[derive(Debug)]
pub(super) struct StartGate {
    /// The longest wait of a deletion.
    wait_max: Duration,
    starting: AtomicUsize,
    lock: Mutex<()>,
    free: Condvar,
    /// The number of waits that deletions have begun.
    #[cfg(test)]
    pub(super) waited: AtomicUsize,
}

impl StartGate {
    pub(super) fn new(wait_max: Duration) -> Self {
        Self {
            wait_max,
            starting: AtomicUsize::new(0),
            lock: Mutex::default(),
            free: Condvar::new(),
            #[cfg(test)]
            waited: AtomicUsize::new(0),
        }
    }

    pub(super) fn begin_start(&self) {
        self.starting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn end_start(&self) {
        if self.starting.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.wake();
        }
    }

    /// Makes every waiting thread check again.
    pub(super) fn wake(&self) {
        // Under the lock, every thread that read the old flag is already waiting for the notification.
        let _lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.free.notify_all();
    }

    fn is_free(&self) -> bool {
        self.starting.load(Ordering::Relaxed) == 0
    }
}

/// The state of one deleting thread.
#[derive(Debug)]
pub(super) struct StartWait<'a> {
    gate: &'a StartGate,
    /// The thread does not wait again before this time.
    no_wait_before: Option<Instant>,
}

impl<'a> StartWait<'a> {
    pub(super) fn new(gate: &'a StartGate) -> Self {
        Self {
            gate,
            no_wait_before: None,
        }
    }

    /// Blocks while any task is starting, for at most `wait_max`. A thread that has waited that long then works for
    /// the same time without waiting. Otherwise endless starts would keep the disk full.
    pub(super) fn wait_for_starts(&mut self, stop: &AtomicBool) {
        if self.gate.is_free() {
            return;
        }
        let begun = Instant::now();
        if self
            .no_wait_before
            .is_some_and(|no_wait_before| begun < no_wait_before)
        {
            return;
        }
        let mut lock = self
            .gate
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        self.gate.waited.fetch_add(1, Ordering::Relaxed);
        while !self.gate.is_free() && !stop.load(Ordering::Relaxed) {
            let left = self.gate.wait_max.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.no_wait_before = Some(Instant::now() + self.gate.wait_max);
                return;
            }
            let waited = self.gate.free.wait_timeout(lock, left);
            lock = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests;
