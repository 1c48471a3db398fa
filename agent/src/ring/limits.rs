//! Bounds of the log loop.

use std::time::Duration;

/// Commands that may wait for the loop; further senders wait. The loop takes them between drains, so a hundred of
/// them are a burst of task starts and not a backlog.
pub(crate) const COMMANDS_MAX: usize = 256;

/// Messages of the thread about its start: one, so that sending it never waits.
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

/// Shortest pause worth a timer: the timer's resolution.
pub(crate) const DELAY_MIN: Duration = Duration::from_millis(1);

/// Pauses at least this long end at multiples of it. So a thousand slow streams wake the thread a hundred times a
/// second, not a thousand times.
pub(crate) const DELAY_GRID: Duration = Duration::from_millis(10);

/// A stream silent for this long is drained at once when it speaks again.
pub(crate) const IDLE_AFTER: Duration = Duration::from_millis(200);

/// Time for which a used-up rate's bytes are saved before any are taken again. A limited stream is woken four times
/// a second, so a thousand of them cost less than a thousand unlimited ones. Twice as much would make a follower
/// wait for half a second, and half as much would double the wake-ups.
pub(crate) const LIMIT_QUANTUM: Duration = Duration::from_millis(250);

/// Longest time for which a rate's bytes are saved: the amount that may come at once after a pause.
pub(crate) const LIMIT_BURST: Duration = Duration::from_secs(1);

/// Fewest bytes that are saved before any are taken again, so that at least as many follow each gap. A log file
/// then has no more gaps than records for them.
pub(crate) const LIMIT_BYTES_MIN: u64 = 256;

/// First and longest pause before a failed write is tried again.
pub(crate) const RETRY_MIN: Duration = Duration::from_millis(20);
/// See [`RETRY_MIN`].
pub(crate) const RETRY_MAX: Duration = Duration::from_secs(1);

/// Time between two sweeps for silent streams. A sweep closes the files of a stream without a byte since the sweep
/// before. So a task that writes every ten or fifteen seconds, as checks do, keeps its files. Opening them again
/// costs about 50 µs. For 5 000 tasks with a line a minute, that is half a hundredth of a core. Half the time would
/// double that cost. Twice the time would keep twice the descriptors of tasks that write only at their start. Tests
/// trigger their sweeps themselves.
pub(crate) const REST_SWEEP: Duration = Duration::from_secs(if cfg!(test) { 1 << 20 } else { 20 });

/// Most streams whose files are closed in one sweep, so that other streams wait for about 20 ms at most. Later
/// sweeps close the others.
pub(crate) const REST_MAX: usize = 2_000;
