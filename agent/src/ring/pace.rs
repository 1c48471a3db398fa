//! The pause in which a FIFO fills before it is drained again. Pure.
//!
//! One system call costs the same for one line as for a thousand, so log throughput depends on batching. A wait
//! that is too long makes the writer block. The pause grows from nothing while a stream keeps writing. Its bound is
//! the time in which half the FIFO would fill at the last rate.

use std::time::Duration;

use muster_domain::saturating;

use crate::ring::limits::{DELAY_MAX, DELAY_MIN, IDLE_AFTER};

/// The step after a drain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DrainStep {
    /// Drain again at once: the writer is fast.
    Again,
    Pause(Duration),
}

/// The state of one stream's pace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamPace {
    capacity: u64,
    pause: Duration,
}

impl StreamPace {
    /// Returns the pace for a FIFO that holds `capacity` bytes.
    pub(crate) fn new(capacity: u64) -> Self {
        Self {
            capacity: capacity.max(1),
            pause: Duration::ZERO,
        }
    }

    /// Returns the next step after a drain of `bytes`, at least one, `since` the previous drain.
    pub(crate) fn drained(&mut self, bytes: u64, since: Duration) -> DrainStep {
        if since >= IDLE_AFTER {
            self.pause = Duration::ZERO;
        }
        let half = self.capacity / 2;
        if bytes >= half {
            self.pause = Duration::ZERO;
            return DrainStep::Again;
        }
        // Time to fill half of the FIFO at the last rate.
        let until_half = since.saturating_mul(saturating_u32(half / bytes.max(1)));
        self.pause = (self.pause * 2)
            .max(DELAY_MIN)
            .min(DELAY_MAX)
            .min(until_half);
        if self.pause < DELAY_MIN {
            return DrainStep::Again;
        }
        DrainStep::Pause(self.pause)
    }
}

fn saturating_u32(value: u64) -> u32 {
    saturating::to_u32(value)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{DrainStep, StreamPace};

    const MIB: u64 = 1024 * 1024;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn pause_grows_while_lines_keep_coming() {
        let mut pace = StreamPace::new(MIB);

        let pauses = [1_000, 1, 2, 4, 8, 16, 32, 64, 90].map(|since| pace.drained(128, ms(since)));

        let expected = [1, 2, 4, 8, 16, 32, 64, 90, 90].map(|pause| DrainStep::Pause(ms(pause)));
        assert_eq!(pauses, expected);
    }

    #[test]
    fn silence_makes_the_next_line_prompt() {
        let mut pace = StreamPace::new(MIB);
        for _ in 0..10 {
            pace.drained(128, ms(50));
        }

        assert_eq!(pace.drained(128, ms(200)), DrainStep::Pause(ms(1)));
    }

    /// 100 kB in 10 ms fill half a MiB in 52 ms; 100 kB in 1 ms fill it in 5.
    #[test]
    fn pause_is_bounded_by_the_rate() {
        let mut pace = StreamPace::new(MIB);
        for _ in 0..10 {
            pace.drained(128, ms(50));
        }

        assert_eq!(pace.drained(100_000, ms(10)), DrainStep::Pause(ms(50)));
        assert_eq!(pace.drained(100_000, ms(1)), DrainStep::Pause(ms(5)));
    }

    #[test]
    fn fast_writer_is_drained_again_at_once() {
        let mut pace = StreamPace::new(MIB);

        assert_eq!(pace.drained(MIB / 2, ms(50)), DrainStep::Again);
        assert_eq!(
            pace.drained(64 * 1024, Duration::from_micros(50)),
            DrainStep::Again
        );
    }
}
