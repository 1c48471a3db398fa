//! Bounds of reading and writing logs.

use std::time::Duration;

/// Capacity asked for each FIFO, in bytes: what a task can write while nobody drains it.
///
/// 1 MiB is what the kernel grants without a changed `fs.pipe-max-size`. At half of it a stream of
/// 500 MB/s can still be drained once a millisecond. Pages are only allocated for bytes that wait,
/// and they are charged to the task that wrote them.
pub(crate) const PIPE_BYTES: usize = 1024 * 1024;

/// The capacity below which [`PIPE_BYTES`] is not halved any more: the kernel's own default.
pub(crate) const PIPE_BYTES_MIN: usize = 64 * 1024;

/// Most bytes one read of a log returns, whatever the caller asks for.
pub(crate) const READ_BYTES_MAX: usize = 256 * 1024;

/// Most bytes accepted as a file of offsets; a line takes at most 42 and there is one a log file.
pub(crate) const OFFSETS_BYTES_MAX: u64 = 1024 * 1024;

/// Most log files a stream may keep. Above it, listing them would be what reading costs.
pub(crate) const FILES_MAX: u32 = 10_000;

/// How often a read starts again because files were rotated away between listing and opening.
/// Each round needs a rotation in a window of microseconds; five in a row is a broken disk.
pub(crate) const RELIST_MAX: u32 = 5;

/// First and longest pause of a follower that found nothing to read. The first keeps `-f` lively;
/// a thousand idle followers cost four thousand `stat`s a second at the longest.
pub(crate) const FOLLOW_PAUSE_MIN: Duration = Duration::from_millis(10);
/// See [`FOLLOW_PAUSE_MIN`].
pub(crate) const FOLLOW_PAUSE_MAX: Duration = Duration::from_millis(250);

/// Shortest time between two records of when bytes were taken: the resolution of times in a log. A FIFO that
/// speaks steadily is drained about every 80 ms, so half would not be finer and cost twice as many writes.
pub(crate) const TIME_INTERVAL: Duration = Duration::from_millis(100);

/// Records of times that wait to be written together, of a stream that speaks steadily: those of about a second, which
/// is what a kill makes coarse. Each by itself was an eighth of what draining a hundred lines a second costs, so twice
/// as many would save no more than a hundredth.
pub(crate) const TIME_RECORDS_HELD_MAX: usize = 8;

/// Bytes of a log file for each record of 16 bytes beside it: times take at most a sixteenth of what
/// is kept of a stream. At a line of 100 bytes a second, a file of 10 MiB is full before its times are.
pub(crate) const TIME_BYTES_OF_LOG: u64 = 256;

/// Most and fewest records beside a log file, whatever its size: 1 MiB, which is also the most that a
/// search by time reads at once, and one page.
pub(crate) const TIME_RECORDS_MAX: u64 = 65_536;
/// See [`TIME_RECORDS_MAX`].
pub(crate) const TIME_RECORDS_MIN: u64 = 256;

/// Room taken beforehand for records of gaps, in bytes, for a stream that may drop: one page, as less is not
/// given. While a disk is full a log file's gap grows in one record, so 256 records outlast it. There are never
/// more records of gaps beside a log file than of times; the next gap begins another log file.
pub(crate) const GAPS_RESERVE_BYTES: u64 = 4096;
