//! Bounds of snapshots. Each comment states the effect of reaching the bound.

use std::time::Duration;

/// Bytes of one record in a snapshot.
pub(crate) const RECORD_BYTES_MAX: usize = muster_wire::limits::ENTRY_BYTES_MAX;
/// Snapshots kept. The second one is used if the newest is damaged.
pub(crate) const SNAPSHOTS_KEPT: usize = 2;
/// Bytes of a snapshot that are synced at once. A large file synced at its end makes every sync of the log wait
/// for it: measured, 80 ms at the 99th percentile of commits.
pub(crate) const SYNC_BYTES: usize = 1 << 20;
/// Bytes of a chunk of a snapshot.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// Pause of a snapshot's writer after it has found the disk full.
pub(crate) const FULL_PAUSE: Duration = Duration::from_secs(1);
/// Niceness of the thread that writes a snapshot.
pub(crate) const WRITER_NICE: i32 = 10;
