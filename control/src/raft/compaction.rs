//! Rules for taking snapshots and purging the log, and the freeing of space on a full disk.
//!
//! A snapshot costs in proportion to the state, and saves in proportion to the growth of the log. So one is taken
//! when the log has grown by [`LOG_BYTES`] and by the size of the last snapshot, or by [`LOG_ENTRIES`]. One is
//! also taken when an entry was written and the last snapshot is [`SNAPSHOT_AGE_MAX`] old. Two snapshots are at
//! least [`SNAPSHOT_PAUSE`] apart. The log is kept back to the oldest kept snapshot, so that it continues each of
//! them.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::log::{DiskHealth, LogWatch};
use super::machine::Machine;
use super::snapshot::SnapshotStore;
use super::types::TypeConfig;

/// Growth of the log, in approximate bytes of memory. Half would cost twice as many snapshots. Double would cost
/// twice as long a start and twice as much disk.
const LOG_BYTES: u64 = 64 << 20;
/// Most entries that a start applies again: some seconds.
const LOG_ENTRIES: u64 = 1 << 20;
/// Age at which a snapshot with later entries is replaced. It serves servers that are copied or inspected while
/// they are down.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_hours(1);
/// Pause between two snapshots, unless the log has grown eight times as much.
const SNAPSHOT_PAUSE: Duration = Duration::from_secs(30);
/// How often the rules are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a full disk waits for the snapshot that frees space.
const ROOM_WAIT: Duration = Duration::from_mins(1);
/// Pause between two attempts to free space.
const ROOM_PAUSE: Duration = Duration::from_secs(10);

type Raft = openraft::Raft<TypeConfig, Machine>;

/// Takes snapshots and purges the log of `raft` until the handle is dropped.
pub(super) fn spawn(raft: Raft, log: LogWatch, snapshots: SnapshotStore) -> AbortOnDropHandle<()> {
    let compaction = Compaction {
        raft,
        log,
        snapshots,
        asked: None,
        made_room: None,
        elections_disabled: false,
    };
    AbortOnDropHandle::new(tokio::spawn(compaction.run()))
}

struct Compaction {
    raft: Raft,
    log: LogWatch,
    snapshots: SnapshotStore,
    /// Time of the last request for a snapshot.
    asked: Option<Instant>,
    /// Time of the last attempt to free space.
    made_room: Option<Instant>,
    /// Whether this server starts no election because its disk is full.
    elections_disabled: bool,
}

/// Growth since the last snapshot.
#[derive(Clone, Copy, Debug)]
struct LogGrowth {
    entries: u64,
    log_bytes: u64,
    /// Bytes of that snapshot.
    snapshot_bytes: u64,
    /// Time since this process last took a snapshot, or since it started.
    since: Duration,
}

impl LogGrowth {
    fn asks_for_snapshot(self) -> bool {
        let enough = LOG_BYTES.max(self.snapshot_bytes);
        let grown = self.log_bytes >= enough || self.entries >= LOG_ENTRIES;
        let much = self.log_bytes >= 8 * enough;
        self.entries > 0
            && (much || (grown && self.since >= SNAPSHOT_PAUSE) || self.since >= SNAPSHOT_AGE_MAX)
    }
}

impl Compaction {
    async fn run(mut self) {
        let started = Instant::now();
        let mut disk = self.log.disk();
        loop {
            if let Ok(Err(_closed)) = tokio::time::timeout(CHECK_INTERVAL, disk.changed()).await {
                return;
            }
            let full = matches!(*disk.borrow_and_update(), DiskHealth::Full { .. });
            self.update_elections(full);
            if full {
                self.make_room().await;
                continue;
            }
            self.made_room = None;
            if self.growth(started).asks_for_snapshot() {
                self.snapshot().await;
            }
            self.purge().await;
        }
    }

    /// While its disk is full, a server that is not alone starts no elections.
    fn update_elections(&mut self, full: bool) {
        let others = self.raft.voter_ids().count() > 1;
        if self.elections_disabled != (full && others) {
            self.elections_disabled = full && others;
            self.raft.runtime_config().elect(!self.elections_disabled);
        }
    }

    fn growth(&self, started: Instant) -> LogGrowth {
        let metrics = self.raft.metrics();
        let (applied, taken) = {
            let metrics = metrics.borrow_watched();
            (metrics.last_applied, metrics.snapshot)
        };
        let (applied, taken) = (
            applied.map_or(0, |at| at.index),
            taken.map_or(0, |at| at.index),
        );
        let file = self
            .snapshots
            .current()
            .and_then(|(_, file)| std::fs::metadata(&file.path).ok());
        LogGrowth {
            entries: applied.saturating_sub(taken),
            log_bytes: self.log.bytes_after(taken),
            snapshot_bytes: file.map_or(0, |file| file.len()),
            since: self.asked.unwrap_or(started).elapsed(),
        }
    }

    /// Requests a snapshot. Other tasks take it, in parallel with all other work.
    async fn snapshot(&mut self) {
        self.asked = Some(Instant::now());
        // An error means that Raft has stopped, which `Raft::failed` reports.
        drop(self.raft.trigger().snapshot().await);
    }

    /// Purges the log up to the oldest kept snapshot.
    async fn purge(&self) {
        let Some(oldest) = self.indexes().await.and_then(|kept| kept.last().copied()) else {
            return;
        };
        let purged = self.log.purged().map_or(0, |purged| purged.index);
        let several = self.indexes().await.is_some_and(|kept| kept.len() > 1);
        if several && oldest > purged {
            drop(self.raft.trigger().purge_log(oldest).await);
        }
    }

    async fn indexes(&self) -> Option<Vec<u64>> {
        let snapshots = self.snapshots.clone();
        let listed = tokio::task::spawn_blocking(move || snapshots.indexes()).await;
        listed.ok()?.ok()
    }

    /// Frees space on a full disk: releases the reserve, writes a snapshot into its space, and drops all data that
    /// the snapshot makes superfluous.
    async fn make_room(&mut self) {
        if self.made_room.is_some_and(|at| at.elapsed() < ROOM_PAUSE) {
            return;
        }
        self.made_room = Some(Instant::now());
        let started = Instant::now();
        if let Err(error) = self.log.release_reserve() {
            tracing::warn!(%error, "the reserve cannot be given up");
        }
        let growth = self.growth(started);
        if growth.entries > 0 {
            let upto = {
                let metrics = self.raft.metrics();
                let applied = metrics.borrow_watched().last_applied;
                applied.map_or(0, |at| at.index)
            };
            self.snapshot().await;
            let wait = self.raft.wait(Some(ROOM_WAIT));
            let taken = |metrics: &openraft::RaftMetrics<TypeConfig>| {
                metrics.snapshot.is_some_and(|at| at.index >= upto)
            };
            if let Err(error) = wait.metrics(taken, "a snapshot that makes room").await {
                tracing::warn!(%error, "no snapshot could be taken to make room");
            }
        }
        self.drop_superfluous().await;
        self.log.take_back_reserve();
    }

    async fn drop_superfluous(&self) {
        let snapshots = self.snapshots.clone();
        let kept = tokio::task::spawn_blocking(move || {
            snapshots.keep_newest()?;
            snapshots.indexes()
        })
        .await;
        if let Ok(Ok(kept)) = kept
            && let Some(newest) = kept.first()
        {
            drop(self.raft.trigger().purge_log(*newest).await);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(log_bytes: u64, entries: u64, since: Duration) -> LogGrowth {
        LogGrowth {
            entries,
            log_bytes,
            snapshot_bytes: 10,
            since,
        }
    }

    /// Snapshots are due by bytes, by entries or by time. A larger state has rarer ones.
    #[test]
    fn growth_asks_for_snapshots_and_load_does_not() {
        let minute = Duration::from_mins(1);

        assert!(!growth(0, 0, 2 * SNAPSHOT_AGE_MAX).asks_for_snapshot());
        assert!(!growth(1_000, 16 * 1024, minute).asks_for_snapshot());
        assert!(growth(1_000, 1, SNAPSHOT_AGE_MAX).asks_for_snapshot());
        assert!(growth(LOG_BYTES, 1, minute).asks_for_snapshot());
        assert!(growth(1_000, LOG_ENTRIES, minute).asks_for_snapshot());
        assert!(!growth(2 * LOG_BYTES, LOG_ENTRIES, SNAPSHOT_PAUSE / 2).asks_for_snapshot());
        assert!(growth(8 * LOG_BYTES, 1, SNAPSHOT_PAUSE / 2).asks_for_snapshot());
        let large = LogGrowth {
            snapshot_bytes: 4 * LOG_BYTES,
            ..growth(2 * LOG_BYTES, 1, minute)
        };
        assert!(!large.asks_for_snapshot());
    }
}
