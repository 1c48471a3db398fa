//! Processes killed for want of memory.

use crate::{Plain, exec::ProcessName};

/// Bytes of a thread's name in the kernel, its end of zeros included (`TASK_COMM_LEN`).
pub const NAME_LEN: usize = 16;

/// What is known of the processes of one task that the kernel killed for want of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct OomEntry {
    /// The one that ended last.
    pub process: ProcessName,
    /// When it ended, in nanoseconds since boot.
    pub at_boottime_ns: u64,
    /// How many have ended.
    pub kills: u64,
    /// The name of the one that ended last, up to the first zero.
    pub name: [u8; NAME_LEN],
}

// SAFETY: four words of 64 bits and 16 bytes, `repr(C)`, nothing between them.
unsafe impl Plain for OomEntry {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<OomEntry>(), 48);
    }
}
