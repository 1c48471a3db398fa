//! Saved snapshots, for operators: what is in a file, and how a server gives one out and takes one back.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use muster_domain::id::LogIndex;

use crate::handle::{Control, ProposeError};
pub use crate::raft::{
    ReadSnapshotError, RestoreSnapshotError, SavedSnapshot, SnapshotInfo, SnapshotReader,
    SnapshotWriter, TableInfo,
};

/// What the snapshot in the file `path` is. All of it is read and checked. Needs no server.
///
/// # Errors
///
/// [`ReadSnapshotError`].
pub fn inspect(path: &Path) -> Result<SnapshotInfo, ReadSnapshotError> {
    let failed = |source| ReadSnapshotError::Io {
        path: path.to_owned(),
        source,
    };
    let file = File::open(path).map_err(failed)?;
    let bytes = file.metadata().map_err(failed)?.len();
    crate::raft::inspect(BufReader::new(file), bytes, path)
}

impl Control {
    /// Takes a snapshot of all that is applied here and opens it. Whoever needs the newest state reads it
    /// first.
    ///
    /// # Errors
    ///
    /// [`ProposeError::Stopped`] if it cannot be written.
    pub async fn save_snapshot(&self) -> Result<SnapshotReader, ProposeError> {
        Ok(self.raft().save_snapshot().await?)
    }

    /// Takes the bytes of a saved snapshot, for [`Self::restore_snapshot`].
    ///
    /// # Errors
    ///
    /// If there is no place for them.
    pub fn receive_snapshot(&self) -> io::Result<SnapshotWriter> {
        self.raft().receive_snapshot()
    }

    /// Puts `saved` in the place of the state of all servers, through the log. Works on the leader. What was
    /// written before the entry that is returned is gone; what follows it applies to the restored state.
    ///
    /// # Errors
    ///
    /// [`RestoreSnapshotError`]; nothing has changed then.
    pub async fn restore_snapshot(
        &self,
        saved: SavedSnapshot,
    ) -> Result<LogIndex, RestoreSnapshotError> {
        self.raft().restore_snapshot(saved).await
    }
}
