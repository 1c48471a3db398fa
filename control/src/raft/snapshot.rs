//! Snapshot files: the state as records, so that it is never needed twice in memory.
//!
//! ```text
//! magic "MUSTSNAP" | u32 format | u32 length of meta | meta | zstd( (u32 length | record)* | u32::MAX | u64 records ) | u32 crc
//! ```
//!
//! Numbers are little endian; the checksum (CRC-32, IEEE) covers every byte before it. Meta is the last
//! log position and the membership. A file is written under a temporary name, synced, renamed, and its
//! directory synced: a snapshot with its final name is whole, or the disk lied and its checksum says so.
//! Files are named by position, so the newest has the greatest name. [`limits::SNAPSHOTS_KEPT`] are kept.

mod format;
#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use muster_control_core::state::State;

use super::types::SnapshotMeta;
use crate::limits;

pub use format::ReadSnapshotError;

const SUFFIX: &str = ".snap";
const TEMPORARY_SUFFIX: &str = ".tmp";

/// A complete snapshot on disk.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFile {
    /// Where it is.
    pub(crate) path: PathBuf,
}

/// A snapshot read back.
#[derive(Debug)]
pub(crate) struct Restored {
    /// Its position and membership.
    pub(crate) meta: SnapshotMeta,
    /// Its state.
    pub(crate) state: State,
    /// The file it came from.
    pub(crate) file: SnapshotFile,
}

/// The directory of snapshots.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotStore {
    dir: PathBuf,
}

impl SnapshotStore {
    /// Opens `dir`, making it if it is not there, and removes what a crash left unfinished.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            if path
                .extension()
                .is_some_and(|extension| extension == &TEMPORARY_SUFFIX[1..])
            {
                fs::remove_file(&path)?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
        })
    }

    /// Snapshots, newest first.
    pub(crate) fn files(&self) -> io::Result<Vec<SnapshotFile>> {
        let mut paths: Vec<PathBuf> = fs::read_dir(&self.dir)?
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<_>>()?;
        paths.retain(|path| {
            path.extension()
                .is_some_and(|extension| extension == &SUFFIX[1..])
        });
        paths.sort_unstable_by(|a, b| b.cmp(a));
        Ok(paths
            .into_iter()
            .map(|path| SnapshotFile { path })
            .collect())
    }

    /// Writes `state` as the newest snapshot and removes those that are not kept. Blocks on the disk.
    pub(crate) fn write(&self, meta: &SnapshotMeta, state: &State) -> io::Result<SnapshotFile> {
        let path = self.path_of(meta);
        let temporary = path.with_extension(&TEMPORARY_SUFFIX[1..]);
        let file = fs::File::create(&temporary)?;
        format::write(&file, meta, state)?;
        file.sync_all()?;
        drop(file);
        self.take_over(&temporary, &path)
    }

    /// Makes `received`, a complete file of position `meta`, the newest snapshot. Blocks on the disk.
    pub(crate) fn adopt(
        &self,
        meta: &SnapshotMeta,
        received: &SnapshotFile,
    ) -> io::Result<SnapshotFile> {
        let path = self.path_of(meta);
        if received.path == path {
            return Ok(received.clone());
        }
        fs::File::open(&received.path)?.sync_all()?;
        self.take_over(&received.path, &path)
    }

    /// Reads `file`. Blocks on the disk.
    pub(crate) fn read(file: &SnapshotFile) -> Result<Restored, ReadSnapshotError> {
        let (meta, state) = format::read(&file.path)?;
        Ok(Restored {
            meta,
            state,
            file: file.clone(),
        })
    }

    /// The newest snapshot that can be read, and the newer ones that cannot.
    pub(crate) fn newest(&self) -> io::Result<(Option<Restored>, Vec<ReadSnapshotError>)> {
        let mut broken = Vec::new();
        for file in self.files()? {
            match Self::read(&file) {
                Ok(restored) => return Ok((Some(restored), broken)),
                Err(error) => broken.push(error),
            }
        }
        Ok((None, broken))
    }

    fn path_of(&self, meta: &SnapshotMeta) -> PathBuf {
        let (index, term) = meta.last_log_id.map_or((0, 0), |log_id| {
            (log_id.index, log_id.committed_leader_id().term)
        });
        self.dir.join(format!("{index:020}-{term:010}{SUFFIX}"))
    }

    fn take_over(&self, temporary: &Path, path: &Path) -> io::Result<SnapshotFile> {
        fs::rename(temporary, path)?;
        fs::File::open(&self.dir)?.sync_all()?;
        for old in self.files()?.into_iter().skip(limits::SNAPSHOTS_KEPT) {
            if let Err(error) = fs::remove_file(&old.path) {
                tracing::warn!(path = %old.path.display(), %error, "an old snapshot cannot be removed");
            }
        }
        Ok(SnapshotFile {
            path: path.to_owned(),
        })
    }
}
