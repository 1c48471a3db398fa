//! Bounds of the log loop.

use std::time::Duration;

/// Commands that may wait for the loop; more make their senders wait. The loop takes them between
/// drains, so a hundred is a burst of task starts and not a backlog.
pub(crate) const COMMANDS_MAX: usize = 256;

/// Words the thread says about its start: one, so that saying it never waits.
pub(crate) const STARTS_MAX: usize = 1;

/// Streams drained at once: two for each of 10 000 tasks. Further ones are refused.
pub(crate) const STREAMS_MAX: usize = 20_000;

/// Submission queue entries. A full queue is handed to the kernel at once, so this is only how
/// many polls one system call submits.
pub(crate) const RING_ENTRIES: u32 = 1_024;

/// Bytes taken from one FIFO before the others have their turn: one full FIFO.
pub(crate) const DRAIN_BYTES_MAX: u64 = 1024 * 1024;

/// Most bytes read at once where a file system cannot take a splice.
pub(crate) const COPY_BYTES: usize = 64 * 1024;

/// Longest time a busy FIFO is left to fill. With the drain itself it keeps a line's delay under
/// 100 ms; at 100 lines a second it makes nine lines a system call, half as many cost a third more.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(90);

/// Shortest pause worth a timer, whose resolution this is.
pub(crate) const DELAY_MIN: Duration = Duration::from_millis(1);

/// Pauses at least this long end on a common grid of it, so that a thousand slow streams wake the
/// thread a hundred times a second and not a thousand times.
pub(crate) const DELAY_GRID: Duration = Duration::from_millis(10);

/// A stream silent for this long is drained at once when it speaks again.
pub(crate) const IDLE_AFTER: Duration = Duration::from_millis(200);

/// Time for which a rate's bytes are saved up once it is used up, before any are taken again: a limited stream is
/// woken four times a second, so a thousand of them cost less than a thousand that speak. Twice as
/// much would make a follower wait for half a second, half as much would double the wake-ups.
pub(crate) const LIMIT_QUANTUM: Duration = Duration::from_millis(250);

/// Time for which a rate's bytes are saved up at most: what may come at once after a pause.
pub(crate) const LIMIT_BURST: Duration = Duration::from_secs(1);

/// Fewest bytes that are saved up before any are taken again, so that a gap is followed by as many: no more gaps
/// than there are records for in a log file.
pub(crate) const LIMIT_BYTES_MIN: u64 = 256;

/// First and longest pause before a failed write is tried again.
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(20);
/// See [`RETRY_MIN`].
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(1);

/// Time between two sweeps for silent streams: the files of one that had no byte between two of them are closed. So
/// what speaks every ten or fifteen seconds, as checks do, keeps its files; opening them again costs some 50 µs,
/// which for 5 000 tasks with a line a minute is half a hundredth of a core. Half as long would double that, twice as
/// long would keep twice the descriptors of tasks that speak at their start alone. Tests sweep when they say so.
pub(crate) const REST_SWEEP: Duration = Duration::from_secs(if cfg!(test) { 1 << 20 } else { 20 });

/// Most streams whose files are closed in one sweep, so that other streams wait for some 20 ms at most. The others are
/// closed in the next sweeps.
pub(crate) const REST_MAX: usize = 2_000;
