//! CPU time, context switches and waiting for a CPU of a task.
//!
//! Time is that of the kernel's own accounting: the moment of a switch is the one at which the kernel began to charge
//! the thread that comes (or ended to charge the one that goes, if the CPU idles then), so that no clock is read.
//!
//! The kernel adds up, for each thread, how long it was ready to run and did not. The programs look at that sum
//! when the thread leaves its CPU, which it does once for each time it got one, and need nothing from where threads
//! wake up. A thread that was moved between queues while it waited has waited once.

use core::ops::AddAssign;

use crate::{CgroupId, Plain, histogram::Histogram};

/// The counters of one CPU for one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedCounters {
    /// Nanoseconds the task's threads ran.
    pub cpu_ns: u64,
    /// Switches away from a thread that waits or ended.
    pub switches_voluntary: u64,
    /// Switches away from a thread that could have gone on.
    pub switches_involuntary: u64,
    /// How long threads that were ready to run waited for a CPU, each time they got one.
    pub waits: Histogram,
}

impl AddAssign for SchedCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            cpu_ns,
            switches_voluntary,
            switches_involuntary,
            waits,
        } = other;
        self.cpu_ns += cpu_ns;
        self.switches_voluntary += switches_voluntary;
        self.switches_involuntary += switches_involuntary;
        self.waits += waits;
    }
}

// SAFETY: 28 words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for SchedCounters {}

/// A slot: the counters of a task that is found by number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedSlot {
    /// Whose it is; 0 if nobody's.
    pub task: CgroupId,
    /// The counters of one CPU for it.
    pub counters: SchedCounters,
}

impl AddAssign for SchedSlot {
    /// Adds another CPU's part of the same slot.
    fn add_assign(&mut self, other: Self) {
        let Self { task, counters } = other;
        self.task = self.task.max(task);
        self.counters += counters;
    }
}

// SAFETY: a word and 28 words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for SchedSlot {}

/// The cached fact of one CPU about a cgroup whose threads it ran: the task that it belongs to.
///
/// To find that out takes more than half the time that a switch may cost, so it is kept until the agent registers or
/// forgets a task. Ids of cgroups are given once in the life of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CachedCgroup {
    /// The cgroup; 0 before there was one.
    pub cgroup: CgroupId,
    /// How many registrations there had been.
    pub registrations: u64,
    /// The task; 0 if it is none that is registered.
    pub task: CgroupId,
    /// Its slot, or [`NO_SLOT`](crate::NO_SLOT).
    pub slot: u64,
}

/// The current work of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuState {
    /// When the running thread's time was last charged, in nanoseconds of the clock by which the kernel itself
    /// charges threads on this CPU; 0 before the first switch.
    pub charged_ns: u64,
    /// Id of the running thread; 0 while the CPU idles.
    pub pid: u64,
}

// SAFETY: two words of 64 bits, `repr(C)`, nothing between them.
unsafe impl Plain for CpuState {}

/// Bits of a sum of waiting that are remembered: 73 minutes, and no wait is as long.
const WAITED_BITS: u32 = 42;

/// Returns the mark of a thread: its id, below 2^22 (`PID_MAX_LIMIT`), and the low bits of how long it has
/// waited in all. One word, so that two CPUs cannot mix two threads.
#[must_use]
#[inline]
pub const fn wait_mark(pid: u32, waited_ns: u64) -> u64 {
    (pid as u64) << WAITED_BITS | waited_ns & ((1 << WAITED_BITS) - 1)
}

/// How long the thread waited before it ran last; `None` if that cannot be told.
///
/// `mark` is what stands in the thread's place, `waited_ns` what it has waited in all its life, in which it got a CPU
/// `runs` times.
#[must_use]
#[inline]
pub const fn last_wait(mark: u64, pid: u32, waited_ns: u64, runs: u64) -> Option<u64> {
    if runs == 1 {
        return Some(waited_ns);
    }
    if mark >> WAITED_BITS != pid as u64 {
        return None;
    }
    Some(waited_ns.wrapping_sub(mark) & ((1 << WAITED_BITS) - 1))
}

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
        assert_eq!(size_of::<SchedCounters>(), 224);
        assert_eq!(size_of::<SchedSlot>(), 232);
        assert_eq!(size_of::<CachedCgroup>(), 32);
        assert_eq!(size_of::<CpuState>(), 16);
    }

    #[test]
    fn preempted_or_runnable_is_involuntary() {
        assert!(is_voluntary(false, 1));
        assert!(!is_voluntary(true, 1));
        assert!(!is_voluntary(false, 0));
    }

    #[test]
    fn a_wait_is_the_difference_to_the_mark() {
        let mark = wait_mark(77, 5_000);

        assert_eq!(last_wait(mark, 77, 6_500, 9), Some(1_500));
        assert_eq!(last_wait(mark, 78, 6_500, 9), None);
        // A new thread in the place of an old one, and with its id.
        assert_eq!(last_wait(mark, 78, 300, 1), Some(300));
        assert_eq!(last_wait(mark, 77, 300, 1), Some(300));
        assert_eq!(last_wait(0, 77, 6_500, 9), None);
    }

    #[test]
    fn wait_mark_wraparound_is_handled() {
        let before = (1 << 42) - 100;
        let mark = wait_mark(4_194_303, before);

        assert_eq!(last_wait(mark, 4_194_303, before + 250, 9), Some(250));
    }

    #[test]
    fn counters_of_cpus_add_up() {
        let mut sum = SchedCounters {
            cpu_ns: 1,
            switches_voluntary: 2,
            switches_involuntary: 3,
            ..SchedCounters::default()
        };

        sum += SchedCounters {
            cpu_ns: 10,
            switches_voluntary: 20,
            switches_involuntary: 30,
            ..SchedCounters::default()
        };

        let expected = SchedCounters {
            cpu_ns: 11,
            switches_voluntary: 22,
            switches_involuntary: 33,
            ..SchedCounters::default()
        };
        assert_eq!(sum, expected);
    }
}
