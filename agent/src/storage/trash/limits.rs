//! Bounds of deletion.

use std::time::Duration;

/// Names of the trash that are known at a time. The trash itself is the queue: further names are read when these are
/// done.
pub(crate) const NAMES_MAX: usize = 1024;
/// Directories that one thread has open at a time; deeper directories are moved up into the trash. A tree of 5 000
/// levels takes 160 renames. Double would bring no measurable gain. Eight threads stay below 300 descriptors.
pub(crate) const DEPTH_MAX: usize = 32;
/// Names of subdirectories that are remembered of one directory. The others are found when the directory is read again.
pub(crate) const SUBDIRS_MAX: usize = 1024;
/// Entries of a directory that cannot be deleted before the rest of the directory is left to the next attempt.
pub(crate) const UNDELETABLE_MAX: usize = 64;
/// Bytes of a directory's entries read at a time, as in glibc's `readdir`.
pub(crate) const READ_BYTES: usize = 32_768;
/// Times that a directory which does not become empty is read again, because a process fills it.
pub(crate) const READ_TRIES_MAX: u32 = 8;
/// File systems mounted on one another at the same place.
pub(crate) const MOUNTS_MAX: u32 = 32;
/// Entries of the trash that could not be deleted and have a pause of their own. Beyond that number they are found by
/// the next read of the trash.
pub(crate) const REFUSED_MAX: usize = 1024;
/// First pause before a deletion that failed is tried again, doubled up to [`RETRY_PAUSE_MAX`].
pub(crate) const RETRY_PAUSE_MIN: Duration = Duration::from_secs(1);
/// Longest pause before a failed deletion is tried again. An operator who unmounted the obstacle should not have to
/// wait longer.
pub(crate) const RETRY_PAUSE_MAX: Duration = Duration::from_mins(5);
/// Most threads, for every configuration. More than 8 were no faster on any measured file system.
pub(crate) const THREADS_MAX: usize = 16;
/// Bytes of a message about a failed deletion, because names in a tree may be long and many.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512;
/// Niceness of the threads that delete: the lowest priority, so that starting tasks come first.
pub(crate) const NICENESS: i32 = 19;
/// Longest wait of a deletion for starts. It is longer than a start takes (2 to 4 ms). The deletion then works for the
/// same time, so a node that always starts tasks leaves half of the time to deletion.
pub(crate) const START_WAIT_MAX: Duration = Duration::from_millis(10);
