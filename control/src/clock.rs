//! The clocks of a server.
//!
//! Rows carry the wall clock, for people. Deadlines (heartbeats, evaluations in flight) use the monotonic clock,
//! so that a change of the wall clock makes no node appear dead.
//!
//! A forward jump of the wall clock would expire everything with a time in its row: results, jobs, claims,
//! deployments. So the server continues by elapsed time until the clock is back or an operator confirms the jump.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use muster_domain::clock_jump::{ClockChange, JumpDetector, SetBack};
use muster_domain::id::Timestamp;
use muster_domain::saturating;
use rustix::time::{ClockId, clock_gettime};

use crate::limits;

/// The server's clocks.
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
    /// Creates a clock that starts now.
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

    /// The wall clock at the start.
    pub(crate) fn started_at(&self) -> Timestamp {
        self.started_at
    }

    /// The monotonic clock, as if the wall clock had never been set since the start.
    pub(crate) fn monotonic(&self) -> Timestamp {
        self.started_at.plus(self.started.elapsed())
    }

    /// The wall clock, without an unconfirmed forward jump.
    pub(crate) fn now(&self) -> Timestamp {
        let (now, change) = self.guard().read(wall(), since_boot());
        match change {
            Some(ClockChange::Forward(by)) => tracing::error!(
                ?by,
                "the wall clock has jumped forward: nothing expires by that; set it back, or confirm it with \
                 `muster operator clock confirm`"
            ),
            Some(ClockChange::Back) => tracing::info!("the wall clock is back"),
            // The server follows a clock that is set back.
            Some(ClockChange::Backward(_)) | None => {}
        }
        now
    }

    /// The unconfirmed forward jump of the wall clock.
    pub(crate) fn jump(&self) -> Option<Duration> {
        let now = self.now();
        let by = wall().since(now);
        self.guard().is_held().then_some(by)
    }

    /// Accepts the wall clock from now on. Returns the jump that it had made.
    pub(crate) fn confirm(&self) -> Option<Duration> {
        let by = self.jump();
        self.is_confirmed.store(true, Ordering::Relaxed);
        self.guard().confirm(wall(), since_boot());
        if let Some(by) = by {
            tracing::warn!(?by, "the jump of the wall clock was confirmed");
        }
        by
    }

    /// Compares the time of the start with `newest`, the newest time in rows. Only the first term of this server's
    /// leadership counts.
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
    /// server ran. The state cannot distinguish such a jump from a long downtime of the cluster; an operator can.
    pub(crate) fn is_start_trusted(&self) -> bool {
        self.gap.get() != Some(&true)
            || self.is_confirmed.load(Ordering::Relaxed)
            || self.started.elapsed() >= limits::CLOCK_GAP_HOLD
    }

    fn guard(&self) -> MutexGuard<'_, JumpDetector> {
        // The value is only replaced by assignments, so a panic elsewhere leaves it whole.
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

/// Time since the boot, sleep included. Every kernel that can run a server has this clock.
fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime)
        .try_into()
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After a jump while no server ran, the start would collect everything.
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
        // Later terms find rows from this run, and must not end the hold.
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
