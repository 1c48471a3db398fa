//! Bounds of deletion.

use std::time::Duration;

/// Names of the trash that are known at a time. The trash itself is the queue: what is beyond is read
/// when these are done.
pub(crate) const NAMES_MAX: usize = 1024;
/// Directories of one thread that are open at a time: those below are moved up into the trash. A tree of
/// 5 000 levels takes 160 renames; double would not be felt, and eight threads stay below 300 descriptors.
pub(crate) const DEPTH_MAX: usize = 32;
/// Names of subdirectories that are remembered of one directory; the others are found when it is read
/// again.
pub(crate) const SUBDIRS_MAX: usize = 1024;
/// Entries that cannot be deleted before the rest of their directory is left to the next try.
pub(crate) const STUCK_MAX: usize = 64;
/// Bytes of a directory's entries read at a time, as in glibc's `readdir`.
pub(crate) const READ_BYTES: usize = 32_768;
/// Times that a directory which does not become empty is read again: somebody fills it.
pub(crate) const READ_TRIES_MAX: u32 = 8;
/// File systems mounted on one another at the same place.
pub(crate) const MOUNTS_MAX: u32 = 32;
/// Entries of the trash that could not be deleted and have a pause of their own; beyond that number they
/// are found again by the next look at the trash.
pub(crate) const REFUSED_MAX: usize = 1024;
/// First pause before a deletion that failed is tried again, doubled up to [`RETRY_PAUSE_MAX`].
pub(crate) const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a deletion that failed is tried again: an operator who unmounted what was in the
/// way does not want to wait longer.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_mins(5);
/// Threads whatever is configured. More than 8 were no faster on any file system measured.
pub(crate) const THREADS_MAX: usize = 16;
/// Bytes of a message about what cannot be deleted: names in a tree may be long and many.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512;
/// How much threads that delete yield to everybody else, tasks that start above all: the most there is.
pub(crate) const NICENESS: i32 = 19;
/// How long a deletion waits for what starts: longer than a start takes (2 to 4 ms), and then it goes on for as long,
/// so that a node that never stops starting tasks gives half of the time to deletion.
pub(crate) const WAY_GIVEN_MAX: Duration = Duration::from_millis(10);
