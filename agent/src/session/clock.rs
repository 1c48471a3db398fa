//! The clock of the agent, which deadlines and events share.
//!
//! Restart delays, kill timeouts and health deadlines are times of the wall clock, because they outlive the agent. A
//! wall clock that is set forward would let them all pass, and one that is set back would prolong them. So the agent
//! continues by elapsed time when the wall clock jumps. It follows the wall clock again when that is back, and after
//! a restart of the agent, which restarts no task.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use muster_domain::id::Timestamp;
use nix::time::{ClockId, clock_gettime};

use crate::limits::{CLOCK_JUMP_MAX, CLOCK_SLEW_PART, CLOCK_UNSET_BEFORE};

static CLOCK: LazyLock<Mutex<JumpGuard>> =
    LazyLock::new(|| Mutex::new(JumpGuard::new(wall(), since_boot())));

/// The time, as cores take it: the wall clock without a jump in the life of this agent.
pub(crate) fn now() -> Timestamp {
    // A panic elsewhere leaves it whole: each change is one assignment.
    let mut guard = CLOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let (now, change) = guard.read(wall(), since_boot());
    drop(guard);
    match change {
        Some(ClockChange::Forward(by)) => tracing::error!(
            ?by,
            "the wall clock has jumped forward: deadlines go on by elapsed time; set it back, or restart the agent, \
             which then follows it"
        ),
        Some(ClockChange::Backward(by)) => tracing::error!(
            ?by,
            "the wall clock was set back: deadlines go on by elapsed time; restart the agent, which then follows it"
        ),
        Some(ClockChange::Back) => tracing::info!("the wall clock is back"),
        None => {}
    }
    now
}

fn wall() -> Timestamp {
    Timestamp(0).plus(
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default(),
    )
}

/// Time since the boot, sleep included. The clock is there on every kernel that runs an agent.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Into::into)
}

/// A change of the wall clock that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClockChange {
    Forward(Duration),
    Backward(Duration),
    /// The wall clock agrees with elapsed time again.
    Back,
}

/// Compares the wall clock with elapsed time.
#[derive(Debug)]
struct JumpGuard {
    /// The wall clock when it was last right.
    base: Timestamp,
    /// Time since boot at that moment.
    anchor: Duration,
    is_held: bool,
}

impl JumpGuard {
    fn new(wall: Timestamp, since_boot: Duration) -> Self {
        Self {
            base: wall,
            anchor: since_boot,
            is_held: false,
        }
    }

    fn read(&mut self, wall: Timestamp, since_boot: Duration) -> (Timestamp, Option<ClockChange>) {
        let elapsed = since_boot.saturating_sub(self.anchor);
        let expected = self.base.plus(elapsed);
        let tolerated = CLOCK_JUMP_MAX + elapsed / CLOCK_SLEW_PART;
        let (ahead, behind) = (wall.since(expected), expected.since(wall));
        if ahead.max(behind) <= tolerated || self.was_unset() {
            (self.base, self.anchor) = (wall, since_boot);
            let was_held = std::mem::replace(&mut self.is_held, false);
            return (wall, was_held.then_some(ClockChange::Back));
        }
        if std::mem::replace(&mut self.is_held, true) {
            return (expected, None);
        }
        let change = if ahead > behind {
            ClockChange::Forward(ahead)
        } else {
            ClockChange::Backward(behind)
        };
        (expected, Some(change))
    }

    /// A machine without a battery begins in 1970, until its clock is set for the first time.
    fn was_unset(&self) -> bool {
        self.base < Timestamp(0).plus(CLOCK_UNSET_BEFORE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0)
            .plus(CLOCK_UNSET_BEFORE)
            .plus(Duration::from_secs(seconds))
    }

    #[test]
    fn a_jump_moves_no_deadline() {
        let mut guard = JumpGuard::new(at(10_000), SECOND);

        let forward = guard.read(at(10_001).plus(HOUR), 2 * SECOND);
        assert_eq!(forward, (at(10_001), Some(ClockChange::Forward(HOUR))));
        let held = guard.read(at(10_009).plus(HOUR), 10 * SECOND);
        assert_eq!(held, (at(10_009), None));
        let back = guard.read(at(10_010), 11 * SECOND);
        assert_eq!(back, (at(10_010), Some(ClockChange::Back)));

        let backward = guard.read(at(6_411), 12 * SECOND);
        assert_eq!(backward, (at(10_011), Some(ClockChange::Backward(HOUR))));
        let held = guard.read(at(6_412), 13 * SECOND);
        assert_eq!(held, (at(10_012), None));
    }

    #[test]
    fn slewing_is_followed() {
        let mut guard = JumpGuard::new(at(0), Duration::ZERO);
        for (wall, elapsed) in [(at(3), 1), (at(100_040), 100_000), (at(200_000), 200_001)] {
            let read = guard.read(wall, elapsed * SECOND);
            assert_eq!(read, (wall, None));
        }
    }

    #[test]
    fn the_first_setting_of_a_clock_is_followed() {
        let mut guard = JumpGuard::new(Timestamp(0), SECOND);
        assert_eq!(guard.read(at(7), 2 * SECOND), (at(7), None));
        assert!(guard.read(at(8).plus(HOUR), 3 * SECOND).1.is_some());
    }
}
