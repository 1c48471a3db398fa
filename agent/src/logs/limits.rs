//! Bounds of reading and writing logs.

use std::time::Duration;

/// Capacity requested for each FIFO, in bytes: the amount that a task can write before the FIFO is drained.
///
/// The kernel grants 1 MiB with an unchanged `fs.pipe-max-size`. With half of it, a stream of 500 MB/s can still be
/// drained once a millisecond. Pages are allocated only for waiting bytes, and are charged to the task that wrote
/// them.
pub(crate) const PIPE_BYTES: usize = 1024 * 1024;

/// The capacity below which [`PIPE_BYTES`] is not halved any more: the kernel's own default.
pub(crate) const PIPE_BYTES_MIN: usize = 64 * 1024;

/// Most bytes that one read of a log returns, whatever limit the caller passes.
pub(crate) const READ_BYTES_MAX: usize = 256 * 1024;

/// Most bytes accepted as a file of offsets. A line takes at most 42 bytes, and each log file has one line.
pub(crate) const OFFSETS_BYTES_MAX: u64 = 1024 * 1024;

/// Most log files that a stream may keep. With more, listing them would dominate the cost of a read.
pub(crate) const FILES_MAX: u32 = 10_000;

/// Number of retries of a read, because files were rotated away between listing and opening. Each retry needs a
/// rotation in a window of microseconds; five in a row indicate a broken disk.
pub(crate) const RELIST_MAX: u32 = 5;

/// First and longest pause of a follower that found nothing to read. The first keeps `-f` lively;
/// a thousand idle followers cost four thousand `stat`s a second at the longest.
pub(crate) const FOLLOW_PAUSE_MIN: Duration = Duration::from_millis(10);
/// See [`FOLLOW_PAUSE_MIN`].
pub(crate) const FOLLOW_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Shortest time between two records of times: the resolution of times in a log. A FIFO with steady output is
/// drained about every 80 ms. Half of this value would be no finer and would double the writes.
pub(crate) const TIME_INTERVAL: Duration = Duration::from_millis(100);

/// Time records of a stream with steady output that are written together. They cover about a second, and a kill
/// loses that resolution. Single writes would cost an eighth of the cost of draining a hundred lines a second.
/// Twice as many records would save at most another hundredth.
pub(crate) const TIME_RECORDS_HELD_MAX: usize = 8;

/// Bytes of a log file for each time record of 16 bytes. So times take at most a sixteenth of a stream's kept
/// bytes. At a line of 100 bytes a second, a file of 10 MiB is full before its file of times is.
pub(crate) const TIME_BYTES_OF_LOG: u64 = 256;

/// Most time records of a log file, whatever its size: 1 MiB, which is also the most that a search by time reads at
/// once. The fewest are one page.
pub(crate) const TIME_RECORDS_MAX: u64 = 65_536;
/// See [`TIME_RECORDS_MAX`].
pub(crate) const TIME_RECORDS_MIN: u64 = 256;

/// Bytes reserved for records of gaps, for a stream that may drop bytes: one page, the smallest unit. While a disk
/// is full, a log file's gap grows in one record, so 256 records outlast it. A log file never has more records of
/// gaps than of times; the next gap begins another log file.
pub(crate) const GAPS_RESERVE_BYTES: u64 = 4096;
