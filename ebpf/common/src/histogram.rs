//! Durations, counted by powers of two.

use core::ops::AddAssign;

use crate::Plain;

/// The number of buckets. Durations up to 4.3 seconds have buckets of their own, and all longer ones share the last.
pub const BUCKETS: usize = 24;

/// Bits of a duration that the first bucket ignores. It counts all durations below 1.024 µs.
const SHIFT: u32 = 10;

/// The durations that one CPU, or all CPUs together, counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Histogram {
    /// The number of durations in each [`bucket`].
    pub counts: [u64; BUCKETS],
    /// The sum of all durations, in nanoseconds.
    pub sum_ns: u64,
}

impl Histogram {
    /// Counts a duration.
    #[inline]
    pub fn record(&mut self, time_ns: u64) {
        // The index is always valid. The check lets the verifier see that.
        if let Some(count) = self.counts.get_mut(bucket(time_ns)) {
            *count += 1;
        }
        self.sum_ns += time_ns;
    }
}

impl AddAssign for Histogram {
    fn add_assign(&mut self, other: Self) {
        let Self { counts, sum_ns } = other;
        for (mine, count) in self.counts.iter_mut().zip(counts) {
            *mine += count;
        }
        self.sum_ns += sum_ns;
    }
}

// SAFETY: 25 words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for Histogram {}

/// The bucket that counts `time_ns`.
#[must_use]
#[inline]
pub const fn bucket(time_ns: u64) -> usize {
    const LONGEST: u64 = 1 << (BUCKETS - 2);
    let time = time_ns >> SHIFT;
    let mut rest = if time < LONGEST { time } else { LONGEST };
    // The search halves the range, because eBPF has no instruction that finds the highest bit. The sign of a difference
    // selects the half, because durations come in an order that a branch predictor could not predict.
    let mut bits = 0;
    let mut step: u32 = 5;
    while step > 0 {
        step -= 1;
        let half: u32 = 1 << step;
        let is_above = ((1_u64 << half) - 1).wrapping_sub(rest) >> 63;
        rest >>= is_above << step;
        bits += is_above << step;
    }
    // The remaining value is the highest bit. The sum is below `BUCKETS`, and so below 32.
    ((bits + rest) & 31) as usize
}

/// Returns the upper bound of every time in `bucket`, in nanoseconds; `None` for the last.
#[must_use]
pub const fn bound_ns(bucket: usize) -> Option<u64> {
    if bucket + 1 < BUCKETS {
        Some(1 << (SHIFT as usize + bucket))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_ends_below_its_bound() {
        for at in 0..BUCKETS - 1 {
            let bound = bound_ns(at).unwrap();
            assert_eq!(bucket(bound - 1), at);
            assert_eq!(bucket(bound), at + 1);
        }
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        assert_eq!(bound_ns(BUCKETS - 1), None);
    }

    #[test]
    fn histogram_bucket_is_highest_set_bit() {
        for shift in 0..u64::BITS {
            for time in [1 << shift, (1 << shift) - 1, (1 << shift) + 1_u64] {
                let bits = (u64::BITS - (time >> SHIFT).leading_zeros()) as usize;
                assert_eq!(bucket(time), bits.min(BUCKETS - 1), "{time}");
            }
        }
    }

    #[test]
    fn histograms_of_cpus_add_up() {
        let mut one = Histogram::default();
        let mut other = Histogram::default();
        one.record(1_000);
        other.record(1_500);
        other.record(3_000_000);

        one += other;

        assert_eq!(one.counts[0], 1);
        assert_eq!(one.counts[1], 1);
        assert_eq!(one.counts.iter().sum::<u64>(), 3);
        assert_eq!(one.sum_ns, 3_002_500);
        assert_eq!(size_of::<Histogram>(), 200);
    }
}
