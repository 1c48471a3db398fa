//! Saved snapshots, for operators: inspection of a file, and saving and restoring by a server.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::Path;

use muster_domain::id::LogIndex;

use crate::handle::{Control, ProposeError};
pub use crate::raft::restore::RestoreSnapshotError;
pub use crate::raft::{
    ReadSnapshotError, SavedSnapshot, SnapshotInfo, SnapshotReader, SnapshotWriter, TableInfo,
};

/// Describes the snapshot in the file `path`. Reads and checks all of it. Needs no server.
///
/// # Errors
///
/// [`ReadSnapshotError`] if the file cannot be read or fails its check.
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
    /// Takes a snapshot of everything applied on this server and opens it. A caller that needs the newest state must
    /// read it first.
    ///
    /// # Errors
    ///
    /// [`ProposeError::Stopped`] if the snapshot cannot be written.
    pub async fn save_snapshot(&self) -> Result<SnapshotReader, ProposeError> {
        Ok(self.raft().save_snapshot().await?)
    }

    /// Creates the writer that receives the bytes of a saved snapshot, for [`Self::restore_snapshot`].
    ///
    /// # Errors
    ///
    /// An I/O error if the file cannot be created.
    pub fn receive_snapshot(&self) -> io::Result<SnapshotWriter> {
        self.raft().receive_snapshot()
    }

    /// Replaces the state of all servers by `saved`, through the log. Works only on the leader. Writes before the
    /// returned entry are lost; writes after it apply to the restored state.
    ///
    /// # Errors
    ///
    /// [`RestoreSnapshotError`]; in that case the state has not changed.
    pub async fn restore_snapshot(
        &self,
        saved: SavedSnapshot,
    ) -> Result<LogIndex, RestoreSnapshotError> {
        self.raft().restore_snapshot(saved).await
    }
}
