//! When snapshots are taken, how much of the log is kept, and how a full disk gets room.
//!
//! A snapshot costs as much as the state is large, and what it saves is as much as the log grew. So one is
//! taken when the log has grown by [`LOG_BYTES`] and by the size of the last snapshot, or by
//! [`LOG_ENTRIES`], or when something was written and the last is [`AGE`] old; never twice within [`REST`].
//! The log is kept back to the older of the snapshots that are kept: it continues either.

use std::time::Duration;

use openraft::async_runtime::WatchReceiver;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::log::{DiskHealth, LogWatch};
use super::machine::Machine;
use super::snapshot::SnapshotStore;
use super::types::TypeConfig;

/// Growth of the log, roughly as in memory. Half costs twice as many snapshots; double, twice as long a
/// start and twice as much disk.
const LOG_BYTES: u64 = 64 << 20;
/// Entries applied again at a start, at the most: some seconds.
const LOG_ENTRIES: u64 = 1 << 20;
/// Age of a snapshot with anything after it. For a server that is copied or looked at while it is down.
const AGE: Duration = Duration::from_hours(1);
/// Pause between two snapshots, unless the log has grown eight times over.
const REST: Duration = Duration::from_secs(30);
/// How often this is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long a full disk waits for the snapshot that makes room.
const ROOM_WAIT: Duration = Duration::from_mins(1);
/// Between two attempts to make room.
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
        stands_back: false,
    };
    AbortOnDropHandle::new(tokio::spawn(compaction.run()))
}

struct Compaction {
    raft: Raft,
    log: LogWatch,
    snapshots: SnapshotStore,
    /// When the last snapshot was asked for.
    asked: Option<Instant>,
    /// When room was last made.
    made_room: Option<Instant>,
    /// Whether this server stands for no election because its disk is full.
    stands_back: bool,
}

/// Growth since the last snapshot.
#[derive(Clone, Copy, Debug)]
struct LogGrowth {
    entries: u64,
    log_bytes: u64,
    /// Bytes of that snapshot.
    snapshot_bytes: u64,
    /// Time since a snapshot was taken by this process, or since it started.
    since: Duration,
}

impl LogGrowth {
    fn asks_for_snapshot(self) -> bool {
        let enough = LOG_BYTES.max(self.snapshot_bytes);
        let grown = self.log_bytes >= enough || self.entries >= LOG_ENTRIES;
        let much = self.log_bytes >= 8 * enough;
        self.entries > 0 && (much || (grown && self.since >= REST) || self.since >= AGE)
    }
}

impl Compaction {
    async fn run(mut self) {
        let started = Instant::now();
        let mut disk = self.log.disk();
        loop {
            if let Ok(Err(_closed)) = tokio::time::timeout(LOOK, disk.changed()).await {
                return;
            }
            let full = matches!(*disk.borrow_and_update(), DiskHealth::Full { .. });
            self.stand_back(full);
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

    /// While its disk is full, a server that is not alone lets others lead.
    fn stand_back(&mut self, full: bool) {
        let others = self.raft.voter_ids().count() > 1;
        if self.stands_back != (full && others) {
            self.stands_back = full && others;
            self.raft.runtime_config().elect(!self.stands_back);
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

    /// Asks for a snapshot. It is taken by others, beside all else.
    async fn snapshot(&mut self) {
        self.asked = Some(Instant::now());
        // An error means that Raft has stopped, which is told elsewhere.
        drop(self.raft.trigger().snapshot().await);
    }

    /// Has the log begin after the oldest snapshot that is kept.
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

    /// The disk is full: gives the reserve up, writes a snapshot into it, and drops all that the snapshot
    /// makes superfluous.
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
            snapshots.keep_one()?;
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

    /// By bytes, by entries, or by time; and the larger the state, the rarer.
    #[test]
    fn growth_asks_for_snapshots_and_load_does_not() {
        let minute = Duration::from_mins(1);

        assert!(!growth(0, 0, 2 * AGE).asks_for_snapshot());
        assert!(!growth(1_000, 16 * 1024, minute).asks_for_snapshot());
        assert!(growth(1_000, 1, AGE).asks_for_snapshot());
        assert!(growth(LOG_BYTES, 1, minute).asks_for_snapshot());
        assert!(growth(1_000, LOG_ENTRIES, minute).asks_for_snapshot());
        assert!(!growth(2 * LOG_BYTES, LOG_ENTRIES, REST / 2).asks_for_snapshot());
        assert!(growth(8 * LOG_BYTES, 1, REST / 2).asks_for_snapshot());
        let large = LogGrowth {
            snapshot_bytes: 4 * LOG_BYTES,
            ..growth(2 * LOG_BYTES, 1, minute)
        };
        assert!(!large.asks_for_snapshot());
    }
}
