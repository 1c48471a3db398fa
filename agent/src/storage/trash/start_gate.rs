//! Precedence of starts over deletions: a deletion waits while any task is starting, but for a limited time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of starts under way, and the threads that wait for their end.
#[derive(Debug)]
pub(super) struct StartGate {
    /// The longest wait of a deletion.
    given_max: Duration,
    starting: AtomicUsize,
    lock: Mutex<()>,
    free: Condvar,
    /// The number of waits that deletions have begun.
    #[cfg(test)]
    pub(super) waited: AtomicUsize,
}

impl StartGate {
    pub(super) fn new(given_max: Duration) -> Self {
        Self {
            given_max,
            starting: AtomicUsize::new(0),
            lock: Mutex::default(),
            free: Condvar::new(),
            #[cfg(test)]
            waited: AtomicUsize::new(0),
        }
    }

    pub(super) fn enter(&self) {
        self.starting.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn exit(&self) {
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
pub(super) struct Deletion<'a> {
    way: &'a StartGate,
    /// The thread does not wait again before this time.
    until: Option<Instant>,
}

impl<'a> Deletion<'a> {
    pub(super) fn new(way: &'a StartGate) -> Self {
        Self { way, until: None }
    }

    /// Blocks while any task is starting, for at most `given_max`. A thread that has waited that long then works for
    /// the same time without waiting. Otherwise endless starts would keep the disk full.
    pub(super) fn give_way(&mut self, stop: &AtomicBool) {
        if self.way.is_free() {
            return;
        }
        let begun = Instant::now();
        if self.until.is_some_and(|until| begun < until) {
            return;
        }
        let mut lock = self.way.lock.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        self.way.waited.fetch_add(1, Ordering::Relaxed);
        while !self.way.is_free() && !stop.load(Ordering::Relaxed) {
            let left = self.way.given_max.saturating_sub(begun.elapsed());
            if left.is_zero() {
                self.until = Some(Instant::now() + self.way.given_max);
                return;
            }
            let waited = self.way.free.wait_timeout(lock, left);
            lock = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

#[cfg(test)]
mod tests;
