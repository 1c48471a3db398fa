//! Counters of the bytes that a task reads from block devices and writes to them.

use core::ops::AddAssign;

use crate::{CgroupId, Plain, histogram::Histogram};

/// The counters of one CPU for one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct BlockCounters {
    /// Bytes read.
    pub read_bytes: u64,
    pub reads: u64,
    /// Bytes written.
    pub write_bytes: u64,
    pub writes: u64,
    /// Times from the issue of a request to a device until its completion.
    pub latency: Histogram,
}

impl AddAssign for BlockCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            read_bytes,
            reads,
            write_bytes,
            writes,
            latency,
        } = other;
        self.read_bytes += read_bytes;
        self.reads += reads;
        self.write_bytes += write_bytes;
        self.writes += writes;
        self.latency += latency;
    }
}

// SAFETY: 29 words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for BlockCounters {}

/// A request that a device is processing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InFlightRequest {
    pub task: CgroupId,
    /// The time at which the device got the request, in nanoseconds of the monotonic clock.
    pub issued_ns: u64,
}

// SAFETY: two words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for InFlightRequest {}

/// The kind of a request, by its flags (`enum req_op` in the kernel's `blk_types.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Read,
    Write,
    /// A request without data: flushes, discards, and the driver's own requests.
    Other,
}

impl Operation {
    /// The kind of a request with these flags.
    #[must_use]
    #[inline]
    pub const fn of(flags: u32) -> Self {
        match flags & 0xff {
            0 => Self::Read,
            // 7 writes to the end of a zone.
            1 | 7 => Self::Write,
            _ => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<BlockCounters>(), 232);
        assert_eq!(size_of::<InFlightRequest>(), 16);
    }

    /// The bits above the operation are flags such as "synchronous".
    #[test]
    fn only_the_operation_decides() {
        assert_eq!(Operation::of(1 << 11), Operation::Read);
        assert_eq!(Operation::of(1 << 11 | 1), Operation::Write);
        assert_eq!(Operation::of(2), Operation::Other);
        assert_eq!(Operation::of(3), Operation::Other);
    }
}
