//! Bounds of the log. Each comment states the effect of reaching the bound.

use std::time::Duration;

/// Bytes of log entries kept in memory for followers and for the apply loop. Older entries are read from disk.
pub(crate) const LOG_CACHE_BYTES: usize = 64 << 20;
/// Bytes of committed entries kept in memory. They are applied at once and sent to followers that keep up. A
/// larger value gains nothing: they stay in memory until other entries are written, and a follower further behind
/// is served from the page cache.
pub(crate) const LOG_CACHE_COMMITTED_BYTES: u64 = 4 << 20;
/// Committed entries kept in memory, at any size; older entries are read from disk. The value is four messages to
/// a follower. Half would not hold the entries written while two messages are under way. Without the bound some
/// twenty thousand small entries would stay until others are written.
pub(crate) const LOG_CACHE_COMMITTED_ENTRIES: u64 = 4 * crate::limits::ENTRIES_PER_APPEND_MAX;
/// Bytes of one log file, allocated at once. Purging removes whole files, and two files always exist. Half would
/// cost more: every change of files costs some syncs. Double would enlarge a server's smallest data directory,
/// which is two files and the reserve.
pub(crate) const LOG_FILE_BYTES: u64 = 16 << 20;
/// Bytes kept to write a snapshot into when the disk is full.
pub(crate) const LOG_RESERVE_BYTES: u64 = 16 << 20;
/// Bytes in a log file for the checkpoint of all files before it.
pub(crate) const LOG_CHECKPOINT_BYTES: u64 = 4096;
/// Bytes of requests that share one write and one `fdatasync`; a single request may be larger.
pub(crate) const LOG_FRAME_BYTES: usize = 4 << 20;
/// Bytes of requests that wait for the disk. Beyond it Raft itself waits, which is right for a slow or full disk.
pub(crate) const LOG_QUEUE_BYTES: usize = 64 << 20;
/// Entries read from the log at once.
pub(crate) const LOG_READ_ENTRIES: u64 = 1024;
/// How often the writer checks a full disk for free space.
pub(crate) const DISK_FULL_PROBE: Duration = Duration::from_millis(250);
/// Bytes of one log record.
pub(crate) const ENTRY_BYTES_MAX: usize = muster_wire::limits::ENTRY_BYTES_MAX;
