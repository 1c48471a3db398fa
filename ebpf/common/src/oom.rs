//! Processes killed for want of memory.

use crate::{Plain, exec::ProcessName};

/// Bytes of a thread's name in the kernel, its end of zeros included (`TASK_COMM_LEN`).
pub const NAME_LEN: usize = 16;

/// Facts about the processes of one task that the kernel killed for want of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomEntry {
    /// The one that the kernel chose; where it killed others along with it ([`TOGETHER_NS`]), the first.
    pub process: ProcessName,
    /// When it was chosen, in nanoseconds since boot.
    pub chosen_boottime_ns: u64,
    /// When it ended, in nanoseconds since boot.
    pub at_boottime_ns: u64,
    /// How many have ended.
    pub kills: u64,
    /// Its name, up to the first zero.
    pub name: [u8; NAME_LEN],
}

/// The longest time between processes that the kernel chose and killed together.
///
/// It chooses one process for its memory, and then, where the whole group is to be killed, each of the others, which
/// end in any order.
pub const TOGETHER_NS: u64 = 1_000_000_000;

impl OomEntry {
    /// Whether a process that was chosen then is to be named in place of the one that is.
    #[inline]
    #[must_use]
    pub fn gives_way_to(&self, chosen_boottime_ns: u64) -> bool {
        chosen_boottime_ns < self.chosen_boottime_ns
            || chosen_boottime_ns - self.chosen_boottime_ns >= TOGETHER_NS
    }
}

// SAFETY: five words of 64 bits and 16 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for OomEntry {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<OomEntry>(), 56);
    }

    #[test]
    fn first_oom_victim_is_kept_until_separate_event() {
        let named = OomEntry {
            chosen_boottime_ns: 5 * TOGETHER_NS,
            ..OomEntry::default()
        };

        // They ended in another order than they were chosen in.
        assert!(named.gives_way_to(5 * TOGETHER_NS - 1));
        assert!(!named.gives_way_to(5 * TOGETHER_NS + 1));
        assert!(!named.gives_way_to(6 * TOGETHER_NS - 1));
        assert!(named.gives_way_to(6 * TOGETHER_NS));
    }
}
