//! Bounds of the log. Each says what happens when it is reached.

use std::time::Duration;

/// Bytes of log entries kept in memory for followers and for the apply loop. Older ones are read from disk.
pub(crate) const LOG_CACHE_BYTES: usize = 64 << 20;
/// The same, of those that are committed: they are applied at once, and sent to followers that keep up. Not more, because
/// they stay until others are written; a follower that is further behind is sent what the page cache has.
pub(crate) const LOG_CACHE_COMMITTED_BYTES: u64 = 4 << 20;
/// Entries that are committed and kept in memory, however few bytes they have; older ones are read from disk. As many as
/// four messages to a follower: half would be short of what is written while two are on their way. Without it some twenty
/// thousand small ones stay, until others are written.
pub(crate) const LOG_CACHE_COMMITTED_ENTRIES: u64 = 4 * crate::limits::ENTRIES_PER_APPEND_MAX;
/// Bytes of one log file, taken at once. Purging works by whole files, and two are always there. Not half:
/// every change of files costs some syncs. Not double: a server's smallest data directory is two of them
/// and the reserve.
pub(crate) const LOG_FILE_BYTES: u64 = 16 << 20;
/// Bytes kept to write a snapshot into when the disk is full.
pub(crate) const LOG_RESERVE_BYTES: u64 = 16 << 20;
/// Bytes in a log file for what all files before it come to.
pub(crate) const LOG_CHECKPOINT_BYTES: u64 = 4096;
/// Bytes of requests that one write and one `fdatasync` take together; a single request may be larger.
pub(crate) const LOG_FRAME_BYTES: usize = 4 << 20;
/// Bytes of requests that wait for the disk. Beyond it Raft itself waits, as a slow or full disk asks for.
pub(crate) const LOG_QUEUE_BYTES: usize = 64 << 20;
/// Entries read from the log at once.
pub(crate) const LOG_READ_ENTRIES: u64 = 1024;
/// How often a full disk is looked at for room.
pub(crate) const DISK_FULL_PROBE: Duration = Duration::from_millis(250);
/// Bytes of one log record.
pub(crate) const ENTRY_BYTES_MAX: usize = muster_wire::limits::ENTRY_BYTES_MAX;
