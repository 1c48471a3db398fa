//! Bounds of cgroup work.

use std::time::Duration;

/// First and longest pause between two looks at whether a group is empty or frozen. A killed
/// process is gone within a millisecond unless it was in the kernel.
pub(crate) const LOOK_PAUSE_MIN: Duration = Duration::from_millis(1);
/// See [`LOOK_PAUSE_MIN`].
pub(crate) const LOOK_PAUSE_MAX: Duration = Duration::from_millis(50);

/// How often removing a group is tried again while it is busy. With the pauses above it is about a
/// second: a process that takes longer to die is stuck in the kernel, and the caller's affair.
pub(crate) const REMOVE_TRIES_MAX: u32 = 25;

/// Groups below one of ours that are followed. A task with delegation can nest as it likes;
/// removal goes on where it stopped at the next call.
pub(crate) const NESTED_MAX: usize = 10_000;

/// Levels of groups below a hierarchy's mount in which a node's tree without a record is looked for.
pub(crate) const STRAY_DEPTH_MAX: usize = 16;

/// Passes of killing process by process, where there is no `cgroup.kill`. A fork bomb is outrun
/// only by freezing, which is done before.
pub(crate) const KILL_PASSES_MAX: u32 = 20;

/// Longest name of an allocation's or task's group, in bytes: what a file name may have.
pub(crate) const NAME_BYTES_MAX: usize = 255;

/// Processes a task may have unless its job says otherwise. Never unlimited: a fork bomb takes the
/// node's last pid.
pub(crate) const PIDS_DEFAULT: u64 = 4_096;

/// How far below the value asked for a memory limit may read back: the kernel rounds down to whole
/// pages, of at most 64 KiB.
pub(crate) const MEMORY_ROUNDING_BYTES: u64 = 64 * 1024;

/// Looks for processes that were forked while a running task was moved to other cores. One suffices unless
/// the task forks all the time, and one that outruns ten of them is not worth more.
pub(crate) const TAKE_IN_PASSES_MAX: u32 = 10;

/// Processes and threads that the machine keeps from all tasks together: enough for the agent's threads, a system's services
/// and whoever comes to see what is wrong. Twice as many would be an eighth of a small machine's numbers and more.
pub(crate) const PIDS_KEPT_MAX: u64 = 4_096;
/// Where the kernel has few, this part of them at most: an eighth.
pub(crate) const PIDS_KEPT_PART: u64 = 8;

/// Files of tasks' groups that the agent holds open: the kernel keeps some 5 KiB for each, so 80 MiB at the most. Of a task
/// that is walked to it is one; where no program walks they are all that 1 000 tasks have, or what the histories of
/// 3 000 need, and twice as many would cost more memory than the time they save is worth.
pub(crate) const FILES_HELD_MAX: usize = 16_384;
/// Where a process may have few descriptors, this part of them: a quarter. The rest is for output of tasks, three a task.
pub(crate) const FILES_HELD_PART: u64 = 4;
/// How long files are held that nobody reads: longer than a scraper's pause between two looks, which is a minute at most.
pub(crate) const FILES_HELD_FOR: Duration = Duration::from_mins(2);
