//! Processes killed because memory ran out.

use crate::{Plain, exec::ProcessName};

/// Bytes of a thread's name in the kernel, its end of zeros included (`TASK_COMM_LEN`).
pub const NAME_LEN: usize = 16;

/// Facts about the processes of one task that the kernel killed because memory ran out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomEntry {
    /// The process that the kernel selected. If it killed others along with it ([`TOGETHER_NS`]), the first of them.
    pub process: ProcessName,
    /// The time of the selection, in nanoseconds since boot.
    pub chosen_boottime_ns: u64,
    /// The end of the process, in nanoseconds since boot.
    pub at_boottime_ns: u64,
    /// The number of killed processes that have ended.
    pub kills: u64,
    /// The name of the process, up to the first zero.
    pub name: [u8; NAME_LEN],
}

/// The longest time between processes that the kernel chose and killed together.
///
/// The kernel selects one process for its memory. If the whole group is to be killed, it then selects each of the
/// others. They end in any order.
pub const TOGETHER_NS: u64 = 1_000_000_000;

impl OomEntry {
    /// Whether a process that was selected at that time replaces the named one.
    #[inline]
    #[must_use]
    pub fn gives_way_to(&self, chosen_boottime_ns: u64) -> bool {
        chosen_boottime_ns < self.chosen_boottime_ns
            || chosen_boottime_ns - self.chosen_boottime_ns >= TOGETHER_NS
    }
}

// SAFETY: five words of 64 bits and 16 bytes, `repr(C)`, without padding.
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

        // The processes ended in another order than that of their selection.
        assert!(named.gives_way_to(5 * TOGETHER_NS - 1));
        assert!(!named.gives_way_to(5 * TOGETHER_NS + 1));
        assert!(!named.gives_way_to(6 * TOGETHER_NS - 1));
        assert!(named.gives_way_to(6 * TOGETHER_NS));
    }
}
