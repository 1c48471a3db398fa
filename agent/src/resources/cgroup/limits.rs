//! Bounds of cgroup work.

use std::time::Duration;

/// First and longest pause between two checks whether a group is empty or frozen. A killed process is gone within a
/// millisecond unless it was in the kernel.
pub(crate) const CHECK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// See [`CHECK_PAUSE_MIN`].
pub(crate) const CHECK_PAUSE_MAX: Duration = Duration::from_millis(50);

/// Most attempts to remove a busy group. With the pauses above they take about a second. A process that takes longer to
/// die is blocked in the kernel, and the caller must handle that.
pub(crate) const REMOVE_TRIES_MAX: u32 = 25;

/// Most groups below a task's group that are visited. A task with delegation can nest groups freely. The next removal
/// continues where this one stopped.
pub(crate) const NESTED_MAX: usize = 10_000;

/// Levels of groups below a hierarchy's mount that are searched for a node's tree without a record.
pub(crate) const STRAY_DEPTH_MAX: usize = 16;

/// Passes of killing process by process, for kernels without `cgroup.kill`. Only freezing stops a fork bomb, and the
/// group is frozen before.
pub(crate) const KILL_PASSES_MAX: u32 = 20;

/// Longest name of an allocation's or task's group, in bytes: the maximum of a file name.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Processes that a task may have unless its job sets a limit. It is never unlimited, because a fork bomb would take
/// the node's last pid.
pub(crate) const PIDS_DEFAULT: u64 = 4_096;

/// Most bytes by which a memory limit may read back below the requested value. The kernel rounds down to whole pages,
/// of at most 64 KiB.
pub(crate) const MEMORY_ROUNDING_BYTES: u64 = 64 * 1024;

/// Passes over the processes that were forked while a running task was moved to other cores. One pass suffices unless
/// the task forks all the time. More than ten passes for such a task are not worth their cost.
pub(crate) const MOVE_PASSES_MAX: u32 = 10;

/// Processes and threads that the machine keeps free from all tasks together. They suffice for the agent's threads, the
/// system's services and an operator's debugging tools. Twice as many would be an eighth of a small machine's numbers
/// and more.
pub(crate) const PIDS_RESERVED_MAX: u64 = 4_096;
/// On a kernel with few numbers, at most this part of them is kept: an eighth.
pub(crate) const PIDS_RESERVED_DIVISOR: u64 = 8;

/// Files of tasks' groups that the agent keeps open. The kernel keeps some 5 KiB for each, so they need at most 80 MiB.
/// A task that a walk covers needs one file. Without the walk program the bound covers all files of 1 000 tasks, or
/// those for the histories of 3 000 tasks. Twice as many would cost more memory than the saved time is worth.
pub(crate) const OPEN_FILES_MAX: usize = 16_384;
/// If a process may have few descriptors, at most this part of them is used: a quarter. The rest is for output of
/// tasks, three for each.
pub(crate) const OPEN_FILES_DIVISOR: u64 = 4;
/// Time for which unread files stay open. It is longer than a scraper's interval, which is a minute at most.
pub(crate) const OPEN_FILES_IDLE_MAX: Duration = Duration::from_mins(2);
