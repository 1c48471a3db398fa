//! Processes of a task, its main process, and the exit ledger.

use core::ops::AddAssign;

use crate::Plain;

/// The counters of one CPU for one task. Threads are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExecCounters {
    /// Processes born in the task's cgroup.
    pub forks: u64,
    pub execs: u64,
    pub exits: u64,
}

impl AddAssign for ExecCounters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            forks,
            execs,
            exits,
        } = other;
        self.forks += forks;
        self.execs += execs;
        self.exits += exits;
    }
}

// SAFETY: three words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for ExecCounters {}

/// A process. The start time distinguishes it from an earlier process with the same pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ProcessName {
    /// The process id in the initial pid namespace.
    pub pid: u64,
    /// The start of the process, in nanoseconds since boot.
    pub start_boottime_ns: u64,
}

// SAFETY: two words of 64 bits, `repr(C)`, without padding.
unsafe impl Plain for ProcessName {}

/// Process events that are counted once. The value is the index in the table of the last counted events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// A process was born.
    Fork = 0,
    /// A program was started.
    Exec = 1,
    Exit = 2,
}

impl Event {
    /// The number of kinds.
    pub const COUNT: u32 = 3;
}

/// The name of an event among those of its kind. No two events have the same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EventName {
    /// The process of the event; for a fork, the child.
    pub process: ProcessName,
    /// The number of the program that the process starts, as the kernel counts programs; 0 for a fork or an end.
    pub program: u64,
}

/// The end of a task's main process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct ExitEntry {
    pub process: ProcessName,
    /// The end of the process, in nanoseconds since boot.
    pub at_boottime_ns: u64,
    /// The status that `wait` reports for the process.
    pub wait_status: i32,
    /// Zero; makes the size a multiple of eight.
    pub reserved: u32,
}

// SAFETY: three words of 64 bits and two of 32, `repr(C)`, without padding.
unsafe impl Plain for ExitEntry {}

/// `SIGNAL_GROUP_EXIT` of the kernel's `include/linux/sched/signal.h`: the process ends as a whole and
/// `group_exit_code` is its status.
const SIGNAL_GROUP_EXIT: u32 = 4;

/// Returns the status that `wait` reports for a process.
/// It is the group's code if the process ended as a whole, else the exit code of its first thread.
#[must_use]
#[inline]
pub const fn wait_status(signal_flags: u32, group_exit_code: i32, leader_exit_code: i32) -> i32 {
    if signal_flags & SIGNAL_GROUP_EXIT != 0 {
        group_exit_code
    } else {
        leader_exit_code
    }
}

#[cfg(test)]
mod tests {
    use core::mem::offset_of;

    use super::*;

    #[test]
    fn values_have_no_padding() {
        assert_eq!(size_of::<ExecCounters>(), 24);
        assert_eq!(size_of::<ProcessName>(), 16);
        assert_eq!(size_of::<EventName>(), 24);
        assert_eq!(size_of::<ExitEntry>(), 32);
        assert_eq!(offset_of!(ExitEntry, wait_status), 24);
    }

    #[test]
    fn group_exit_code_wins_on_group_exit() {
        assert_eq!(wait_status(SIGNAL_GROUP_EXIT, 42 << 8, 0), 42 << 8);
        assert_eq!(wait_status(0, 42 << 8, 9), 9);
    }
}
