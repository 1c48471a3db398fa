//! CPU time, context switches and waiting for a CPU of a task.
//!
//! Time is that of the kernel's own accounting, so that no clock is read. The moment of a switch is the time at which
//! the kernel began to charge the next thread. If the CPU becomes idle, it is the time at which the kernel ended to
//! charge the previous thread.
//!
//! For each thread the kernel sums up the time that it was ready to run and did not run. The programs read that sum
//! when the thread leaves its CPU, once for each time that it got one. So they need no event of a wake-up. A thread
//! that was moved between queues while it waited has waited once.

use core::ops::AddAssign;

use crate::{CgroupId, Plain, histogram::Histogram};

/// The counters of one CPU for one task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedCounters {
    /// Nanoseconds the task's threads ran.
    pub cpu_ns: u64,
    /// Switches away from a thread that waits or has ended.
    pub switches_voluntary: u64,
    /// Switches away from a thread that was still runnable.
    pub switches_involuntary: u64,
    /// Times that runnable threads waited for a CPU, one for each time that they got one.
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

// SAFETY: 28 words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for SchedCounters {}

/// A slot: the counters of a task that is found by its slot number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SchedSlot {
    /// The owner; 0 without an owner.
    pub task: CgroupId,
    /// The counters of one CPU for the owner.
    pub counters: SchedCounters,
}

impl AddAssign for SchedSlot {
    /// Adds another CPU's counters of the same slot.
    fn add_assign(&mut self, other: Self) {
        let Self { task, counters } = other;
        self.task = self.task.max(task);
        self.counters += counters;
    }
}

// SAFETY: a word and 28 words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for SchedSlot {}

/// One CPU's cached fact about a cgroup whose threads it ran: the task that the cgroup belongs to.
///
/// Finding the task takes more than half of the time budget of a switch. So the fact is cached until the agent
/// registers or forgets a task. The kernel never reuses a cgroup id before the next boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CachedCgroup {
    /// The cgroup; 0 in an empty entry.
    pub cgroup: CgroupId,
    /// The number of registrations when the entry was written.
    pub registrations: u64,
    /// The task; 0 if the cgroup belongs to no registered task.
    pub task: CgroupId,
    /// The task's slot, or [`NO_SLOT`](crate::NO_SLOT).
    pub slot: u64,
}

/// The state of one CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CpuState {
    /// The time at which the running thread was last charged; 0 before the first switch. It is in nanoseconds of the
    /// clock by which the kernel charges threads on this CPU.
    pub charged_ns: u64,
    /// Id of the running thread; 0 while the CPU idles.
    pub pid: u64,
}

// SAFETY: two words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for CpuState {}

/// Bits of a total wait that are stored: 73 minutes, which is longer than any single wait.
const WAITED_BITS: u32 = 42;

/// Returns the mark of a thread: its id, below 2^22 (`PID_MAX_LIMIT`), and the low bits of its total wait. It is one
/// word, so that two CPUs cannot mix two threads.
#[must_use]
#[inline]
pub const fn wait_mark(pid: u32, waited_ns: u64) -> u64 {
    (pid as u64) << WAITED_BITS | waited_ns & ((1 << WAITED_BITS) - 1)
}

/// Returns the time that the thread waited before its last run; `None` if it is unknown.
///
/// `mark` is the content of the thread's place. `waited_ns` is the thread's total wait, in which it got a CPU `runs`
/// times.
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

/// Whether a switch was voluntary, as the kernel's `nvcsw` and `nivcsw` distinguish.
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
        // A new thread has the place of an old one, and its id.
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
