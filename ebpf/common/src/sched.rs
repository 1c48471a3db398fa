//! CPU time and context switches of a task.

use core::ops::AddAssign;

use crate::Plain;

/// What one CPU counted for one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedCounters {
    /// Nanoseconds the task's threads ran.
    pub cpu_ns: u64,
    /// Switches away from a thread that waits or ended.
    pub switches_voluntary: u64,
    /// Switches away from a thread that could have gone on.
    pub switches_involuntary: u64,
}

impl AddAssign for SchedCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            cpu_ns,
            switches_voluntary,
            switches_involuntary,
        } = other;
        self.cpu_ns += cpu_ns;
        self.switches_voluntary += switches_voluntary;
        self.switches_involuntary += switches_involuntary;
    }
}

// SAFETY: three words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for SchedCounters {}

/// What one CPU is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuState {
    /// When the running thread's time was last charged, in nanoseconds of the monotonic clock; 0
    /// before the first switch.
    pub charged_ns: u64,
    /// Id of the running thread; 0 while the CPU idles.
    pub pid: u64,
}

// SAFETY: two words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for CpuState {}

/// Whether a switch was the thread's own wish, as the kernel's `nvcsw` and `nivcsw` tell apart.
///
/// `prev_state` is 0 for a thread that is still runnable.
#[must_use]
#[inline]
pub const fn is_voluntary(preempted: bool, prev_state: u64) -> bool {
    !preempted && prev_state != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<SchedCounters>(), 24);
        assert_eq!(size_of::<CpuState>(), 16);
    }

    #[test]
    fn preempted_or_runnable_is_involuntary() {
        assert!(is_voluntary(false, 1));
        assert!(!is_voluntary(true, 1));
        assert!(!is_voluntary(false, 0));
    }

    #[test]
    fn counters_of_cpus_add_up() {
        let mut sum = SchedCounters {
            cpu_ns: 1,
            switches_voluntary: 2,
            switches_involuntary: 3,
        };

        sum += SchedCounters {
            cpu_ns: 10,
            switches_voluntary: 20,
            switches_involuntary: 30,
        };

        let expected = SchedCounters {
            cpu_ns: 11,
            switches_voluntary: 22,
            switches_involuntary: 33,
        };
        assert_eq!(sum, expected);
    }
}
