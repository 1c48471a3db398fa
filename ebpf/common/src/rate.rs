//! Rate limits for the packets that a task sends and receives.
//!
//! A bucket is a point in time: the time at which all passed packets are paid for at the rate. A packet may pass while
//! that time is at most [`BURST_NS`] ahead, and advances it by its cost. So in any time span a task gets its rate times
//! that span and a burst, for every arrival pattern of packets. No packet waits in a queue.

use crate::Plain;

/// The longest time that a task may be ahead of its rate.
///
/// A connection that could not send is tried again by the kernel after 200 ms, the shortest time of its timers. With a
/// smaller burst such a connection would not reach its rate.
pub const BURST_NS: u64 = 250_000_000;

/// The time ahead of the rate from which on a connection must slow down.
pub const CONGESTED_NS: u64 = BURST_NS / 2;

/// One direction's bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Bucket {
    /// The cost of a byte, in picoseconds; 0 means no limit.
    pub ps_per_byte: u64,
    /// The time at which all packets are paid for, in nanoseconds of the monotonic clock.
    pub paid_ns: u64,
}

/// Both buckets of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Rates {
    /// The bucket for packets that the task receives.
    pub ingress: Bucket,
    /// The bucket for packets that the task sends.
    pub egress: Bucket,
}

/// The decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateVerdict {
    Pass,
    /// The packet passes, and the sender should slow down.
    Congested,
    /// The packet is dropped.
    Over,
}

impl Bucket {
    /// Creates a bucket of `bits_per_s` bits per second.
    #[must_use]
    pub const fn of_bits(bits_per_s: u64) -> Self {
        let ps_per_byte = match bits_per_s {
            0 => 0,
            bits => {
                let ps = 8_000_000_000_000 / bits;
                if ps == 0 { 1 } else { ps }
            }
        };
        Self {
            ps_per_byte,
            paid_ns: 0,
        }
    }

    /// Returns the cost of `bytes`, in nanoseconds.
    #[must_use]
    #[inline]
    pub const fn cost_ns(ps_per_byte: u64, bytes: u32) -> u64 {
        // At the lowest rate, 64 kbit/s, a packet of 4 GiB does not overflow.
        ps_per_byte.wrapping_mul(bytes as u64) / 1_000
    }

    /// Returns the decision about a packet at `now_ns` if all packets are paid for at `paid_ns`.
    #[must_use]
    #[inline]
    pub const fn pace(paid_ns: u64, now_ns: u64) -> RateVerdict {
        let ahead_ns = paid_ns.saturating_sub(now_ns);
        if ahead_ns > BURST_NS {
            RateVerdict::Over
        } else if ahead_ns > CONGESTED_NS {
            RateVerdict::Congested
        } else {
            RateVerdict::Pass
        }
    }
}

// SAFETY: four words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for Rates {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets of `bytes` every `every_ns` for `seconds`, and returns the passed bits per second.
    fn rate(bits: u64, bytes: u32, every_ns: u64, seconds: u64) -> u64 {
        let mut bucket = Bucket::of_bits(bits);
        let (mut now_ns, mut passed) = (1_000_000_000, 0_u64);
        let end_ns = now_ns + seconds * 1_000_000_000;
        while now_ns < end_ns {
            let paid_ns = bucket.paid_ns.max(now_ns);
            if Bucket::pace(paid_ns, now_ns) != RateVerdict::Over {
                bucket.paid_ns = paid_ns + Bucket::cost_ns(bucket.ps_per_byte, bytes);
                passed += u64::from(bytes);
            }
            now_ns += every_ns;
        }
        passed * 8 / seconds
    }

    #[test]
    fn a_burst_and_then_the_rate_passes() {
        for (bits, bytes, every_ns) in [
            (64_000, 1_500, 1_000_000),
            (10_000_000, 1_500, 10_000),
            (1_000_000_000, 65_000, 100_000),
            (100_000_000_000, 65_000, 1_000),
        ] {
            let passed = rate(bits, bytes, every_ns, 20);
            let most = bits + bits / 80 + u64::from(bytes) * 8;
            assert!((bits..=most).contains(&passed), "{passed} of {bits}");
        }
    }

    #[test]
    fn traffic_below_its_rate_passes_whole() {
        assert_eq!(rate(10_000_000, 1_000, 1_000_000, 10), 8_000_000);
    }

    #[test]
    fn congestion_is_signaled_before_packet_drop() {
        assert_eq!(Bucket::pace(5, 10), RateVerdict::Pass);
        assert_eq!(Bucket::pace(CONGESTED_NS + 1, 0), RateVerdict::Congested);
        assert_eq!(Bucket::pace(BURST_NS + 1, 0), RateVerdict::Over);
    }

    #[test]
    fn rate_extremes_have_valid_byte_cost() {
        assert_eq!(Bucket::of_bits(64_000).ps_per_byte, 125_000_000);
        assert_eq!(Bucket::of_bits(1_000_000_000_000).ps_per_byte, 8);
        assert_eq!(Bucket::of_bits(0).ps_per_byte, 0);
        assert_eq!(size_of::<Rates>(), 32);
    }
}
