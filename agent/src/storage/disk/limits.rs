//! Bounds of ephemeral disks.

use std::ops::Range;
use std::time::Duration;

/// Bytes of an ephemeral disk for each of its inodes: a file with anything in it takes a block of that size on ext4
/// and xfs, so a disk full of small files is full of bytes as well. Half of it would never be reached; mkfs.ext4 gives
/// one inode for 16 KiB, which a checkout of sources exceeds.
pub(crate) const BYTES_PER_INODE: u64 = 4096;
/// Inodes of the smallest disk. 10 MiB of empty files and directories are no reason to fail.
pub(crate) const INODES_MIN: u64 = 4096;

/// Projects that ephemeral disks get. People number theirs from 1 (`/etc/projid`) and container engines from 1 or
/// 2^20; two agents on one file system share the range.
pub(crate) const PROJECTS: Range<u32> = 0x4D55_0000..0x4D56_0000;
/// Projects that are looked at for a free one. Of 65 536 at most a few thousand are in use, so the first is free
/// nearly always.
pub(crate) const PROJECT_TRIES_MAX: u32 = 4096;

/// Shortest time between two measurements of one allocation. Double would let a task write twice as much beyond its
/// limit where nothing but the measurement stops it.
pub(crate) const MEASURE_INTERVAL_MIN: Duration = Duration::from_secs(2);
/// By how much the pause grows after each measurement that found nothing new.
pub(crate) const CALM_FACTOR: u32 = 4;
/// How often it grows: to 32 seconds. Idle allocations are most, and a thousand of them cost more than a hundredth of
/// a core when each is looked at every two seconds. Who may have exceeded its limit is looked at before: when the file
/// system got fuller by what there is room for. Only if as much got free at the same time is that not seen.
pub(crate) const CALM_MAX: u32 = 2;
/// A measurement that took long is repeated after this many times of it: no tree costs more than a twentieth of a core.
pub(crate) const MEASURE_PAUSE_FACTOR: u32 = 20;
/// The thread rests this many times what measurements took, so that those that take less than [`REST_MAX`] allows
/// cost less than a hundredth of a core together.
pub(crate) const REST_FACTOR: u32 = 150;
/// Shortest rest: what is less is rested together with the next. An idle allocation is measured in 100 µs, and to wake
/// for each of them cost as much again. Half would leave a sixth of that, double no more than a round ([`ROUND_MAX`]) has.
pub(crate) const REST_MIN: Duration = Duration::from_millis(200);
/// Allocations that are measured before those that are due are sought again: what begins meanwhile waits for so many
/// at most, and to seek is a walk over all.
pub(crate) const ROUND_MAX: usize = 16;
/// Longest rest of the thread, so that one great tree does not keep it from the others.
pub(crate) const REST_MAX: Duration = Duration::from_secs(1);
/// How much the thread that measures yields to everybody else: the most there is.
pub(crate) const NICENESS: i32 = 19;

/// Directories that are open on the way down. `PATH_MAX` is enough for 2 048 levels of the shortest names, and nobody
/// nests a tenth of that by accident; what is deeper cannot be measured and counts as exceeding the limit.
pub(crate) const DEPTH_MAX: u32 = 1024;
/// Bytes of a read of directory entries: some five hundred.
pub(crate) const READ_BYTES: usize = 32 << 10;
/// Directories named when a disk is exceeded.
pub(crate) const NAMED_MAX: usize = 3;
