//! The bytes of a stream that may be taken at a rate. Pure.
//!
//! Bytes are saved up at the rate for at most [`LIMIT_BURST`]. Once they are used up, none may be taken until the
//! bytes of [`LIMIT_QUANTUM`] are saved. So a stream above its rate is looked at a few times a second and not for
//! each line. Gaps are at least that many bytes apart.

use std::time::Duration;

use muster_domain::saturating;

use crate::ring::limits::{LIMIT_BURST, LIMIT_BYTES_MIN, LIMIT_QUANTUM};

/// The amount that may be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Allowance {
    /// This number of bytes, at least one.
    Bytes(u64),
    NoneUntil(Duration),
}

/// Bytes saved up. Times count from any fixed start.
#[derive(Clone, Debug)]
pub(crate) struct Bucket {
    bytes_per_second: u64,
    /// The most bytes that are saved up.
    bytes_max: u64,
    /// Bytes that must be saved after the bucket was empty.
    quantum: u64,
    available: u64,
    /// The time up to which bytes were saved up.
    at: Duration,
    is_exhausted: bool,
}

impl Bucket {
    /// Returns a full bucket.
    pub(crate) fn new(bytes_per_second: u64, now: Duration) -> Self {
        let bytes_per_second = bytes_per_second.max(1);
        let quantum = bytes_in(bytes_per_second, LIMIT_QUANTUM).max(LIMIT_BYTES_MIN);
        let bytes_max = bytes_in(bytes_per_second, LIMIT_BURST).max(quantum);
        Self {
            bytes_per_second,
            bytes_max,
            quantum,
            available: bytes_max,
            at: now,
            is_exhausted: false,
        }
    }

    /// Returns the amount that may be taken at `now`.
    pub(crate) fn allowance(&mut self, now: Duration) -> Allowance {
        self.refill(now);
        let enough = if self.is_exhausted { self.quantum } else { 1 };
        if self.available >= enough {
            self.is_exhausted = false;
            return Allowance::Bytes(self.available);
        }
        self.is_exhausted = true;
        Allowance::NoneUntil(
            self.at + time_for(self.bytes_per_second, self.quantum - self.available),
        )
    }

    /// Takes `bytes` out of the bucket; an excess is forgiven.
    pub(crate) fn take(&mut self, bytes: u64) {
        self.available = self.available.saturating_sub(bytes);
        self.is_exhausted = self.is_exhausted || self.available == 0;
    }

    fn refill(&mut self, now: Duration) {
        let since = now.saturating_sub(self.at);
        let more = bytes_in(self.bytes_per_second, since);
        self.available = self.available.saturating_add(more).min(self.bytes_max);
        if self.available == self.bytes_max {
            self.at = self.at.max(now);
        } else {
            // Parts of a byte stay saved up.
            self.at += time_for(self.bytes_per_second, more).min(since);
        }
    }
}

/// Whole bytes that come at a rate in `time`.
fn bytes_in(bytes_per_second: u64, time: Duration) -> u64 {
    let bytes = u128::from(bytes_per_second).saturating_mul(time.as_nanos()) / NANOS;
    saturating::to_u64(bytes)
}

/// Time in which `bytes` arrive at a rate, rounded up.
fn time_for(bytes_per_second: u64, bytes: u64) -> Duration {
    let nanos = (u128::from(bytes) * NANOS).div_ceil(u128::from(bytes_per_second));
    Duration::from_nanos(saturating::to_u64(nanos))
}

const NANOS: u128 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Allowance, Bucket};

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_second_of_bytes_may_come_at_once() {
        let mut bucket = Bucket::new(4_000, ms(5));
        assert_eq!(bucket.allowance(ms(5)), Allowance::Bytes(4_000));

        bucket.take(3_000);

        assert_eq!(bucket.allowance(ms(5)), Allowance::Bytes(1_000));
        assert_eq!(bucket.allowance(ms(105)), Allowance::Bytes(1_400));
        assert_eq!(bucket.allowance(ms(60_000)), Allowance::Bytes(4_000));
    }

    /// A quarter of a second's bytes are saved up before any are taken, however often the bucket is asked.
    #[test]
    fn exhausted_bucket_refills_by_whole_quantum() {
        let mut bucket = Bucket::new(4_000, ms(0));
        bucket.take(4_000);

        let asked = [0, 1, 100, 249].map(|at| bucket.allowance(ms(at)));

        assert_eq!(asked, [Allowance::NoneUntil(ms(250)); 4]);
        assert_eq!(bucket.allowance(ms(250)), Allowance::Bytes(1_000));
        bucket.take(1_000);
        assert_eq!(bucket.allowance(ms(250)), Allowance::NoneUntil(ms(500)));
    }

    /// The bucket is asked at odd times. It gives the bytes of a burst and of a rate of three bytes a millisecond.
    #[test]
    fn parts_of_bytes_are_not_lost() {
        for rate in [1_024, 3_000, 777_777_777] {
            let mut bucket = Bucket::new(rate, ms(0));
            let mut taken = 0;
            let mut now = Duration::ZERO;
            while now < ms(10_000) {
                if let Allowance::Bytes(bytes) = bucket.allowance(now) {
                    bucket.take(bytes);
                    taken += bytes;
                }
                now += Duration::from_nanos(9_999_991);
            }
            let due = 11 * rate;
            assert!(
                taken <= due && taken >= due - rate * 26 / 100 - 256,
                "{taken} of {due}"
            );
        }
    }

    /// At 1 KiB/s, a quantum is 256 bytes. At a lower rate, it takes longer to save them.
    #[test]
    fn few_bytes_are_saved_up_longer() {
        let mut bucket = Bucket::new(64, ms(0));
        bucket.take(1_000);

        assert_eq!(bucket.allowance(ms(0)), Allowance::NoneUntil(ms(4_000)));
        assert_eq!(bucket.allowance(ms(4_000)), Allowance::Bytes(256));
    }
}
