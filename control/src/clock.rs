//! The two clocks of a server.
//!
//! Rows carry the wall clock, which people read. Deadlines (heartbeats, evaluations in flight) run on
//! the monotonic clock, so that a wall clock that is set makes no node look dead.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use muster_domain::id::Timestamp;

/// Tells the time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
    started_at: Timestamp,
}

impl Clock {
    /// A clock that starts here.
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            started_at: wall(),
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
}

/// The wall clock.
pub(crate) fn wall() -> Timestamp {
    let since_epoch = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    Timestamp(u64::try_from(since_epoch.as_nanos()).unwrap_or(u64::MAX))
}
