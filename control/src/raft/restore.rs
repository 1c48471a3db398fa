//! The replacement of the state by a saved snapshot, on all servers at once.
//!
//! The snapshot goes through the log: a beginning, its bytes in chunks, and a commit. Every server gathers the
//! chunks and replaces its state when it applies the commit, so all servers do it at the same entry. Writes before
//! that entry are lost with the old state; writes after it apply to the restored one. The membership stays as it
//! is. Until the commit the state has not changed. An attempt whose leader dies is void, and the next beginning
//! drops its chunks.
//!
//! Ids are derived from log indexes, so indexes must never go back. If the cluster's log is shorter than the
//! snapshot's, the leader first writes empty entries until it is as long.

pub(super) mod step;

use std::io;
use std::sync::Arc;

use futures::TryStreamExt;
use muster_domain::id::LogIndex;

use self::step::{FORMAT, RestoreStep, encode};
use super::snapshot::{SavedSnapshot, SnapshotReader, SnapshotWriter};
use super::types::EncodedCommand;
use super::{Raft, WriteError};

/// Bytes of a snapshot that can be restored: each server holds them while they arrive.
const BYTES_MAX: u64 = 1 << 30;
/// Empty entries proposed at once.
const EMPTY_ENTRIES: u64 = 4096;

/// The reason why a snapshot was not restored. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreSnapshotError {
    /// The snapshot is too large.
    #[error("the snapshot has {bytes} bytes, a restore takes up to {BYTES_MAX}")]
    TooLarge { bytes: u64 },
    /// The snapshot's file cannot be read.
    #[error("the snapshot cannot be read")]
    Read(#[from] io::Error),
    /// The log does not accept the restore.
    #[error("the restore was given up: {reason}; nothing has changed, try again")]
    Write { reason: String },
    /// Another restore began meanwhile, or leadership changed.
    #[error("another restore has taken the place of this one")]
    Void,
}

impl Raft {
    /// Takes a snapshot of everything applied here and opens it.
    pub(crate) async fn save_snapshot(&self) -> Result<SnapshotReader, WriteError> {
        self.snapshot().await?;
        let stopped = |reason: String| WriteError::Stopped { reason };
        let (_, file) = (self.snapshots.current())
            .ok_or_else(|| stopped("the snapshot that was taken is missing".to_owned()))?;
        file.reader().map_err(|error| stopped(error.to_string()))
    }

    /// Creates the writer that receives the bytes of a saved snapshot, for [`Self::restore_snapshot`].
    pub(crate) fn receive_snapshot(&self) -> io::Result<SnapshotWriter> {
        self.snapshots.receive()
    }

    /// Replaces the state of all servers by `saved`. Works only on the leader. Returns the index of the entry that
    /// replaced the state.
    pub(crate) async fn restore_snapshot(
        &self,
        saved: SavedSnapshot,
    ) -> Result<LogIndex, RestoreSnapshotError> {
        let _turn = self.snapshots.restoring.lock().await;
        let mut reader = saved.reader()?;
        let bytes = reader.bytes();
        if bytes > BYTES_MAX {
            return Err(RestoreSnapshotError::TooLarge { bytes });
        }
        let attempt = rand::random();
        self.append_empty_entries(saved.index()).await?;
        self.write_step(&RestoreStep::Begin { attempt, bytes })
            .await?;
        let mut offset = 0;
        while let Some(chunk) = tokio::task::block_in_place(|| reader.next_chunk())? {
            let length = chunk.len() as u64;
            let bytes = Arc::from(&*chunk);
            let step = RestoreStep::Chunk {
                attempt,
                offset,
                bytes,
            };
            self.write_step(&step).await?;
            offset += length;
        }
        let index = self.write_step(&RestoreStep::Commit { attempt }).await?;
        if self.restored.get() != attempt {
            return Err(RestoreSnapshotError::Void);
        }
        tracing::warn!(
            index,
            snapshot_index = saved.index(),
            "the state was restored from a saved snapshot"
        );
        Ok(LogIndex(index))
    }

    /// Extends the log to `index`.
    async fn append_empty_entries(&self, index: u64) -> Result<(), RestoreSnapshotError> {
        let empty = logged(&RestoreStep::Empty)?;
        loop {
            let missing = index.saturating_sub(self.last_log_index().0);
            if missing == 0 {
                return Ok(());
            }
            let count = usize::try_from(missing.min(EMPTY_ENTRIES)).unwrap_or_default();
            let entries = std::iter::repeat_n(empty.clone(), count);
            let written = (self.raft.client_write_many(entries).await).map_err(write_error)?;
            let written: Vec<_> = written.try_collect().await.map_err(write_error)?;
            for one in written {
                one.map_err(write_error)?;
            }
        }
    }

    async fn write_step(&self, step: &RestoreStep) -> Result<u64, RestoreSnapshotError> {
        let written = self.raft.client_write(logged(step)?).await;
        Ok(written.map_err(write_error)?.log_id.index)
    }
}

fn logged(step: &RestoreStep) -> io::Result<EncodedCommand> {
    Ok(EncodedCommand {
        format: FORMAT,
        body: encode(step)?.into(),
    })
}

fn write_error(error: impl std::fmt::Display) -> RestoreSnapshotError {
    RestoreSnapshotError::Write {
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests;
