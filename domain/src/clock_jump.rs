//! Detects jumps of a wall clock by comparing it with elapsed time.
//!
//! Slow corrections of the wall clock (slewing) are followed. After a jump, time advances by elapsed time until the
//! wall clock is right again or an operator confirms the jump. The caller reads both clocks.

use std::time::Duration;

use crate::id::Timestamp;

/// The smallest difference from elapsed time that counts as a jump. It is at most half of any deadline in a server's
/// rows. Clocks that NTP keeps step by less than a second.
pub const CLOCK_JUMP_MAX: Duration = Duration::from_secs(5);
/// The tolerated drift of a wall clock, as a divisor of the time between two readings. It is twice NTP's slew rate.
const CLOCK_SLEW_PART: u32 = 1_000;
/// A wall clock below this time was never set. The time is 2020, before the first release.
const CLOCK_UNSET_BEFORE: Duration = Duration::from_hours(50 * 365 * 24);

/// A change of the wall clock that is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockChange {
    /// The wall clock jumped forward by this duration.
    Forward(Duration),
    /// The wall clock was set back by this duration.
    Backward(Duration),
    /// The wall clock agrees with elapsed time again.
    Back,
}

/// The treatment of a wall clock that is set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetBack {
    /// Time is set back with the wall clock.
    Follow,
    /// Time advances by elapsed time.
    Hold,
}

/// Compares the wall clock with elapsed time.
#[derive(Debug)]
pub struct JumpDetector {
    /// The wall clock when it was last right.
    base: Timestamp,
    /// Time elapsed until then.
    anchor: Duration,
    /// Whether the wall clock has jumped and the jump is not confirmed yet.
    is_held: bool,
    set_back: SetBack,
}

impl JumpDetector {
    /// Creates a detector at wall clock time `wall`. `elapsed` is the time since a fixed moment, such as the boot. It
    /// includes time in which the machine slept.
    #[must_use]
    pub fn new(wall: Timestamp, elapsed: Duration, set_back: SetBack) -> Self {
        Self {
            base: wall,
            anchor: elapsed,
            is_held: false,
            set_back,
        }
    }

    /// Returns the time at `elapsed`, when the wall clock reads `wall`.
    pub fn read(&mut self, wall: Timestamp, elapsed: Duration) -> (Timestamp, Option<ClockChange>) {
        let since = elapsed.saturating_sub(self.anchor);
        let expected = self.base.plus(since);
        let tolerated = CLOCK_JUMP_MAX + since / CLOCK_SLEW_PART;
        let (ahead, behind) = (wall.since(expected), expected.since(wall));
        let is_behind = behind > tolerated && self.set_back == SetBack::Hold;
        if ahead <= tolerated && !is_behind || self.was_unset() {
            let was_held = self.is_held;
            self.confirm(wall, elapsed);
            return (wall, was_held.then_some(ClockChange::Back));
        }
        if std::mem::replace(&mut self.is_held, true) {
            return (expected, None);
        }
        let change = if is_behind {
            ClockChange::Backward(behind)
        } else {
            ClockChange::Forward(ahead)
        };
        (expected, Some(change))
    }

    /// Accepts `wall` as the right time from now on.
    pub fn confirm(&mut self, wall: Timestamp, elapsed: Duration) {
        (self.base, self.anchor) = (wall, elapsed);
        self.is_held = false;
    }

    /// Whether time advances by elapsed time because the wall clock has jumped.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.is_held
    }

    /// Whether the wall clock was never set. A machine without a battery begins in 1970.
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

    fn detector(set_back: SetBack) -> JumpDetector {
        JumpDetector::new(at(0), Duration::ZERO, set_back)
    }

    #[test]
    fn forward_jump_is_held_until_back() {
        for set_back in [SetBack::Follow, SetBack::Hold] {
            let mut clock = detector(set_back);
            assert_eq!(clock.read(at(1), SECOND), (at(1), None));
            let jumped = clock.read(at(2).plus(HOUR), 2 * SECOND);
            assert_eq!(jumped, (at(2), Some(ClockChange::Forward(HOUR))));
            let held = clock.read(at(60).plus(HOUR), 60 * SECOND);
            assert_eq!(held, (at(60), None));
            assert!(clock.is_held());
            let back = clock.read(at(61), 61 * SECOND);
            assert_eq!(back, (at(61), Some(ClockChange::Back)));
            assert_eq!(clock.read(at(62), 62 * SECOND), (at(62), None));
        }
    }

    #[test]
    fn set_back_is_held_or_followed() {
        let mut clock = JumpDetector::new(at(10_000), SECOND, SetBack::Hold);
        let backward = clock.read(at(6_401), 2 * SECOND);
        assert_eq!(backward, (at(10_001), Some(ClockChange::Backward(HOUR))));
        let held = clock.read(at(6_402), 3 * SECOND);
        assert_eq!(held, (at(10_002), None));

        let mut clock = JumpDetector::new(at(10_000), SECOND, SetBack::Follow);
        let followed = clock.read(at(6_401), 2 * SECOND);
        assert_eq!(followed, (at(6_401), None));
        assert!(!clock.is_held());
    }

    #[test]
    fn confirmed_jump_is_followed() {
        let mut clock = detector(SetBack::Follow);
        clock.read(at(1).plus(HOUR), SECOND);
        clock.confirm(at(2).plus(HOUR), 2 * SECOND);
        let followed = clock.read(at(3).plus(HOUR), 3 * SECOND);
        assert_eq!(followed, (at(3).plus(HOUR), None));
        assert!(!clock.is_held());
    }

    #[test]
    fn slewing_is_followed() {
        let mut clock = detector(SetBack::Hold);
        for (wall, elapsed) in [(at(3), 1), (at(100_040), 100_000), (at(200_000), 200_001)] {
            let read = clock.read(wall, elapsed * SECOND);
            assert_eq!(read, (wall, None));
        }
    }

    #[test]
    fn first_setting_of_clock_is_followed() {
        let mut clock = JumpDetector::new(Timestamp(0), SECOND, SetBack::Hold);
        assert_eq!(clock.read(at(7), 2 * SECOND), (at(7), None));
        assert!(clock.read(at(8).plus(HOUR), 3 * SECOND).1.is_some());
    }
}
