//! Bounds of what the agent asks of the kernel's eBPF side.

use std::time::Duration;

/// Entries fetched by one batch look-up.
///
/// A thousand of the largest value on 128 CPUs are 4 MiB. Half of it doubles the system calls of a
/// node with more than a thousand tasks, twice of it saves none of a smaller one. It grows by
/// itself when the kernel says that one bucket holds more.
pub(super) const BATCH_ENTRIES: usize = 1_024;

/// A CPU that has not switched threads for longer than this is charged before a collection.
///
/// It bounds how far the CPU time of a thread that is never preempted lags behind. Below it a
/// switch is likely to have happened anyway, and each charge interrupts a CPU.
pub(super) const CHARGE_AFTER: Duration = Duration::from_millis(1);

/// Lines kept of what the verifier says when it refuses a program: the reason is at the end.
pub(super) const VERIFIER_LOG_LINES_MAX: usize = 20;

/// How often an entry is tried to be made while the kernel says that it has no memory.
///
/// Entries come from a small stock of each CPU, which the kernel fills again a moment later. On a
/// busy machine of two CPUs one in about a million fast insertions found it empty; a hundred
/// attempts, each after giving the CPU away, tell that from a machine that is out of memory.
pub(super) const INSERT_ATTEMPTS_MAX: u32 = 100;
