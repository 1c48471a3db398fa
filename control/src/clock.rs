//! The clocks of a server.
//!
//! Rows carry the wall clock, which people read. Deadlines (heartbeats, evaluations in flight) run on
//! the monotonic clock, so that a wall clock that is set makes no node look dead.
//!
//! A wall clock that jumps forward would have everything expire that waits for a time in rows: results, jobs, claims,
//! deployments. So the server goes on by elapsed time, until the clock is back or an operator confirms the jump.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_domain::clock_jump::{ClockChange, JumpDetector, SetBack};
use muster_domain::id::Timestamp;
use muster_domain::saturating;
use rustix::time::{ClockId, clock_gettime};

use crate::limits;

/// Tells the time.
#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_at: Timestamp,
    guard: Mutex<JumpDetector>,
    /// Whether the wall clock at the start was far ahead of the state; set when this server first leads.
    gap: OnceLock<bool>,
    is_confirmed: AtomicBool,
}

impl Clock {
    /// A clock that starts here.
    pub(crate) fn start() -> Self {
        let started_at = wall();
        Self {
            started: Instant::now(),
            started_at,
            guard: Mutex::new(JumpDetector::new(started_at, since_boot(), SetBack::Follow)),
            gap: OnceLock::new(),
            is_confirmed: AtomicBool::new(false),
        }
    }

    /// When it was started.
    pub(crate) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The monotonic clock, as if the wall clock had never been set since the start.
    pub(crate) fn monotonic(&self) -> Timestamp {
        self.started_at.plus(self.started.elapsed())
    }

    /// The wall clock, without a forward jump that nobody has confirmed.
    pub(crate) fn now(&self) -> Timestamp {
        let (now, change) = self.guard().read(wall(), since_boot());
        match change {
            Some(ClockChange::Forward(by)) => tracing::error!(
                ?by,
                "the wall clock has jumped forward: nothing expires by that; set it back, or confirm it with \
                 `muster operator clock confirm`"
            ),
            Some(ClockChange::Back) => tracing::info!("the wall clock is back"),
            // A clock that is set back is followed.
            Some(ClockChange::Backward(_)) | None => {}
        }
        now
    }

    /// By how much the wall clock has jumped forward, while nobody has confirmed it.
    pub(crate) fn jump(&self) -> Option<Duration> {
        let now = self.now();
        let by = wall().since(now);
        self.guard().is_held().then_some(by)
    }

    /// Takes the wall clock for right from now on. Gives by how much it had jumped.
    pub(crate) fn confirm(&self) -> Option<Duration> {
        let by = self.jump();
        self.is_confirmed.store(true, Ordering::Relaxed);
        self.guard().confirm(wall(), since_boot());
        if let Some(by) = by {
            tracing::warn!(?by, "the jump of the wall clock was confirmed");
        }
        by
    }

    /// Compares the time of the start with `newest`, the newest time in rows, when this server leads for the first time.
    pub(crate) fn compare_start(&self, newest: Timestamp) {
        let gap = self.started_at.since(newest);
        let is_wide = || newest > Timestamp(0) && gap > limits::CLOCK_GAP_MAX;
        if *self.gap.get_or_init(is_wide) && !self.is_start_trusted() {
            tracing::warn!(
                ?gap,
                held = ?limits::CLOCK_GAP_HOLD,
                "the wall clock is far ahead of the newest change: nothing is collected by age for some time; if the \
                 clock is right, confirm it with `muster operator clock confirm`"
            );
        }
    }

    /// Whether objects may be collected by age. For a time they may not if the wall clock may have jumped while no
    /// server ran: that looks like a long rest of the cluster, and an operator can tell the difference.
    pub(crate) fn is_start_trusted(&self) -> bool {
        self.gap.get() != Some(&true)
            || self.is_confirmed.load(Ordering::Relaxed)
            || self.started.elapsed() >= limits::CLOCK_GAP_HOLD
    }

    fn guard(&self) -> MutexGuard<'_, JumpDetector> {
        // It is replaced by assignments only, so a panic elsewhere leaves it whole.
        self.guard.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The wall clock.
pub(crate) fn wall() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(saturating::nanos(since_epoch))
}

/// Time since the boot, sleep included. The clock is there on every kernel that runs a server.
fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime)
        .try_into()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A jump while no server ran would have everything collected at the start.
    #[test]
    fn a_gap_before_the_start_holds_collection() {
        let clock = Clock::start();
        let recent = Timestamp(clock.started_at().0 - 1);
        clock.compare_start(recent);
        assert!(clock.is_start_trusted());

        let clock = Clock::start();
        let day = 24 * 3_600 * 1_000_000_000;
        clock.compare_start(Timestamp(clock.started_at().0 - day));
        assert!(!clock.is_start_trusted());
        // Later terms find rows of this start, and do not end it.
        clock.compare_start(clock.started_at());
        assert!(!clock.is_start_trusted());
        clock.confirm();
        assert!(clock.is_start_trusted());
    }

    #[test]
    fn an_empty_state_holds_nothing() {
        let clock = Clock::start();
        clock.compare_start(Timestamp(0));
        assert!(clock.is_start_trusted());
    }
}
