//! Bounds of ephemeral disks.

use std::ops::Range;
use std::time::Duration;

/// Bytes of an ephemeral disk for each of its inodes. A file with content takes a block of that size on ext4 and xfs,
/// so a disk full of small files is also full of bytes. Half of it would never be reached. mkfs.ext4 gives one inode
/// for 16 KiB, which a checkout of sources exceeds.
pub(crate) const BYTES_PER_INODE: u64 = 4096;
/// Inodes of the smallest disk. 10 MiB of empty files and directories are no reason to fail.
pub(crate) const INODES_MIN: u64 = 4096;

/// Projects for ephemeral disks. Operators number theirs from 1 (`/etc/projid`), and container engines from 1 or 2^20.
/// Two agents on one file system share the range.
pub(crate) const PROJECTS: Range<u32> = 0x4D55_0000..0x4D56_0000;
/// Most projects that are checked in the search for a free one. Of 65 536 at most a few thousand are in use, so the
/// first is nearly always free.
pub(crate) const PROJECT_TRIES_MAX: u32 = 4096;

/// Shortest time between two measurements of one allocation. Double would let a task write twice as much beyond its
/// limit if only the measurement stops it.
pub(crate) const MEASURE_INTERVAL_MIN: Duration = Duration::from_secs(2);
/// Factor by which the pause grows after each measurement without a change.
pub(crate) const UNCHANGED_FACTOR: u32 = 4;
/// Number of times that the pause grows: to 32 seconds. Most allocations are idle. A thousand of them would cost more
/// than a hundredth of a core if each was measured every two seconds. An allocation that may have exceeded its limit is
/// measured earlier: when the file system's use grew by the allocation's free room. That is missed only if as much
/// space was freed at the same time.
pub(crate) const UNCHANGED_MAX: u32 = 2;
/// The pause after a long measurement, as a multiple of its time. So no tree costs more than a twentieth of a core.
pub(crate) const MEASURE_PAUSE_FACTOR: u32 = 20;
/// The pause of the thread, as a multiple of the time of its measurements. Measurements short enough for
/// [`THREAD_PAUSE_MAX`] cost less than a hundredth of a core together.
pub(crate) const THREAD_PAUSE_FACTOR: u32 = 150;
/// Shortest pause; shorter pauses are added to the next. An idle allocation is measured in 100 µs, and a wake-up for
/// each cost as much again. Half would leave a sixth of that. Double would leave no more than a round ([`ROUND_MAX`])
/// has.
pub(crate) const THREAD_PAUSE_MIN: Duration = Duration::from_millis(200);
/// Most allocations that are measured before the search for due allocations is repeated. A new allocation waits for at
/// most so many. The search is a walk over all allocations.
pub(crate) const ROUND_MAX: usize = 16;
/// Longest pause of the thread, so that one large tree does not delay the others.
pub(crate) const THREAD_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Niceness of the thread that measures: the lowest priority.
pub(crate) const NICENESS: i32 = 19;

/// Most directories that are open on the way down. `PATH_MAX` is enough for 2 048 levels of the shortest names, and
/// trees reach a tenth of that only on purpose. A deeper tree cannot be measured and counts as exceeding the limit.
pub(crate) const DEPTH_MAX: u32 = 1024;
/// Bytes of one read of directory entries, which is some five hundred entries.
pub(crate) const READ_BYTES: usize = 32 << 10;
/// Number of directories that the message about an exceeded disk names.
pub(crate) const PLACES_NAMED_MAX: usize = 3;
