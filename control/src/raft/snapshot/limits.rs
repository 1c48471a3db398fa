//! Bounds of snapshots. Each says what happens when it is reached.

use std::time::Duration;

/// Bytes of one record in a snapshot.
pub(crate) const RECORD_BYTES_MAX: usize = muster_wire::limits::ENTRY_BYTES_MAX;
/// Snapshots kept: a second one, should the newest be damaged.
pub(crate) const SNAPSHOTS_KEPT: usize = 2;
/// Bytes of a snapshot given to the disk at once. A large file that is synced at its end makes every sync of
/// the log wait for it: measured, 80 ms at the 99th percentile of commits.
pub(crate) const SYNC_BYTES: usize = 1 << 20;
/// Bytes of a chunk of a snapshot.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// How long a snapshot rests that finds the disk full.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(1);
/// How much less than others the thread that writes a snapshot asks of the processor (nice).
pub(crate) const WRITER_NICE: i32 = 10;
