//! Snapshot files: the state as records, so that memory never holds it twice.
//!
//! ```text
//! magic "MUSTSNAP" | u32 format | u32 length | head
//!   | zstd( (u32 length | record)* | u32::MAX | u64 records ) | u32 crc
//! ```
//!
//! Numbers are little endian; the checksum (CRC-32, IEEE) covers every byte before it. The head is the last log
//! position, the membership, and the version of each table. A newer server's file is refused by name before its
//! records are read. A file is written under a temporary name, synced piece by piece and renamed, and its
//! directory is synced. A snapshot with its final name is whole, unless the disk lost data, which the checksum
//! detects. Files are named by position, so the newest has the greatest name. [`limits::SNAPSHOTS_KEPT`] are kept.
//!
//! A thread of its own writes a snapshot, from a state that does not change while entries are applied. A received
//! snapshot is read and checked before Raft gets it; its installation is an exchange of pointers.

mod format;
#[cfg(any(test, feature = "fuzz"))]
pub(super) mod fuzz;
pub(super) mod limits;
#[cfg(test)]
mod tests;

use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use muster_link::private;
use tokio::sync::oneshot;

use super::log::failpoint;
use super::types::SnapshotMeta;

pub(crate) use format::{Contents, inspect, read_from};
pub use format::{ReadSnapshotError, SnapshotInfo, TableInfo};

const SUFFIX: &str = ".snap";
const TEMPORARY_SUFFIX: &str = ".tmp";
/// The name of a saved snapshot that is being received for a restore.
const RECEIVED: &str = "received";

/// A complete snapshot on disk.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFile {
    /// The path of the file.
    pub(crate) path: PathBuf,
    /// The contents, if the file has been read.
    contents: Option<Arc<Contents>>,
}

/// A snapshot read back.
#[derive(Debug)]
pub(crate) struct RestoredSnapshot {
    pub(crate) contents: Arc<Contents>,
    /// The file of the snapshot.
    pub(crate) file: SnapshotFile,
}

/// The directory of snapshots. Clones share its state.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotStore {
    dir: PathBuf,
    newest: Arc<Mutex<Option<(SnapshotMeta, SnapshotFile)>>>,
    /// A lock that is held by a restore.
    pub(crate) restoring: Arc<tokio::sync::Mutex<()>>,
}

impl SnapshotFile {
    /// Reads and checks the snapshot of position `meta` that has arrived at `path`, and keeps it for the machine.
    /// Blocks on the disk.
    pub(crate) fn received(path: &Path, meta: &SnapshotMeta) -> Result<Self, ReadSnapshotError> {
        let contents = format::read(path)?;
        if contents.meta != *meta {
            return Err(ReadSnapshotError::Damaged {
                path: path.to_owned(),
                reason: format!(
                    "it is of {:?}, not of {:?}",
                    contents.meta.last_log_id, meta.last_log_id
                ),
            });
        }
        Ok(Self {
            path: path.to_owned(),
            contents: Some(Arc::new(contents)),
        })
    }

    fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            contents: None,
        }
    }

    /// Opens a reader of the file's bytes. The file stays readable even if a newer one replaces it.
    pub(crate) fn reader(&self) -> io::Result<SnapshotReader> {
        let file = File::open(&self.path)?;
        let bytes = file.metadata()?.len();
        Ok(SnapshotReader { file, bytes })
    }
}

/// A reader of a snapshot's bytes.
#[derive(Debug)]
pub struct SnapshotReader {
    file: File,
    bytes: u64,
}

impl SnapshotReader {
    /// Bytes of the whole file.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Moves back to the beginning.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn rewind(&mut self) -> io::Result<()> {
        self.file.rewind()
    }

    /// Reads the next bytes, a bounded number; `None` at the end. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn next_chunk(&mut self) -> io::Result<Option<Bytes>> {
        let mut chunk = Vec::with_capacity(limits::CHUNK_BYTES);
        let most = limits::CHUNK_BYTES as u64;
        let read = (&mut self.file).take(most).read_to_end(&mut chunk)?;
        Ok((read > 0).then(|| chunk.into()))
    }
}

/// A writer for a saved snapshot's bytes. Dropped before it is finished, it leaves no file.
#[derive(Debug)]
pub struct SnapshotWriter {
    file: File,
    saved: SavedSnapshot,
}

/// A saved snapshot that was read and checked. Its drop removes the file.
#[derive(Debug)]
pub struct SavedSnapshot {
    path: PathBuf,
    index: u64,
}

impl SnapshotWriter {
    /// Appends bytes. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// An I/O error if the bytes cannot be written.
    pub fn write_chunk(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)
    }

    /// Reads and checks all written bytes. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// [`ReadSnapshotError`]; in that case the file is removed.
    pub fn finish(self) -> Result<SavedSnapshot, ReadSnapshotError> {
        let Self { file, mut saved } = self;
        drop(file);
        let contents = format::read(&saved.path)?;
        saved.index = contents.state.applied().0;
        Ok(saved)
    }
}

impl SavedSnapshot {
    /// The last entry in the snapshot.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Opens a reader of the file's bytes.
    pub(crate) fn reader(&self) -> io::Result<SnapshotReader> {
        SnapshotFile::at(&self.path).reader()
    }
}

impl Drop for SavedSnapshot {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(path = %self.path.display(), %error, "a received snapshot is removed at the next start");
        }
    }
}

impl SnapshotStore {
    /// Opens `dir`, creates it if it does not exist, and removes unfinished files of a crash.
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        private::create_dir(dir)?;
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
            newest: Arc::default(),
            restoring: Arc::default(),
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
        Ok(paths.iter().map(|path| SnapshotFile::at(path)).collect())
    }

    /// The last entry of each kept snapshot, newest first.
    pub(crate) fn indexes(&self) -> io::Result<Vec<u64>> {
        let files = self.files()?;
        let index = |file: &SnapshotFile| {
            let name = file.path.file_stem()?.to_str()?;
            name.split('-').next()?.parse().ok()
        };
        Ok(files.iter().filter_map(index).collect())
    }

    /// Removes all snapshots but the newest, to free space.
    pub(crate) fn keep_newest(&self) -> io::Result<()> {
        self.prune(1)
    }

    /// Writes `contents` as the newest snapshot and removes snapshots beyond the kept number. Blocks on the disk.
    pub(crate) fn write(&self, contents: &Contents) -> io::Result<SnapshotFile> {
        let path = self.path_of(&contents.meta);
        let temporary = path.with_extension(&TEMPORARY_SUFFIX[1..]);
        let written = Self::write_whole(&temporary, contents);
        if let Err(error) = written {
            // The temporary file may have filled the disk, and the next attempt needs that space.
            drop(fs::remove_file(&temporary));
            return Err(error);
        }
        self.rename_into_place(&temporary, &path, &contents.meta)
    }

    fn write_whole(temporary: &Path, contents: &Contents) -> io::Result<()> {
        failpoint::hit("snapshot.create", temporary)?;
        let file = private::create(temporary)?;
        let mut out = BufWriter::with_capacity(
            limits::SYNC_BYTES,
            SyncedWriter {
                file: &file,
                path: temporary,
            },
        );
        format::write(&mut out, contents)?;
        out.flush()?;
        drop(out);
        failpoint::hit("snapshot.written", temporary)?;
        file.sync_all()?;
        failpoint::hit("snapshot.synced", temporary)
    }

    /// Makes `received`, a complete file of position `meta`, the newest snapshot. Blocks on the disk.
    pub(crate) fn adopt(
        &self,
        meta: &SnapshotMeta,
        received: &SnapshotFile,
    ) -> io::Result<SnapshotFile> {
        let path = self.path_of(meta);
        if received.path == path {
            self.set_current(meta, &path);
            return Ok(SnapshotFile::at(&path));
        }
        File::open(&received.path)?.sync_all()?;
        failpoint::hit("snapshot.adopt", &path)?;
        self.rename_into_place(&received.path, &path, meta)
    }

    /// Reads `file`. Blocks on the disk.
    pub(crate) fn read(file: &SnapshotFile) -> Result<RestoredSnapshot, ReadSnapshotError> {
        let contents = match &file.contents {
            Some(contents) => Arc::clone(contents),
            None => Arc::new(format::read(&file.path)?),
        };
        Ok(RestoredSnapshot {
            contents,
            file: SnapshotFile::at(&file.path),
        })
    }

    /// Returns the newest readable snapshot, and the newer ones that cannot be read. Blocks on the disk.
    pub(crate) fn newest(&self) -> io::Result<(Option<RestoredSnapshot>, Vec<ReadSnapshotError>)> {
        let mut broken = Vec::new();
        for file in self.files()? {
            match Self::read(&file) {
                Ok(restored) => {
                    self.set_current(&restored.contents.meta, &file.path);
                    return Ok((Some(restored), broken));
                }
                Err(error) => broken.push(error),
            }
        }
        Ok((None, broken))
    }

    /// The newest snapshot that this process has read or written.
    pub(crate) fn current(&self) -> Option<(SnapshotMeta, SnapshotFile)> {
        self.lock().clone()
    }

    /// Creates the writer that receives a saved snapshot's bytes, piece by piece.
    pub(crate) fn receive(&self) -> io::Result<SnapshotWriter> {
        let name = format!(
            "{RECEIVED}-{:016x}{TEMPORARY_SUFFIX}",
            rand::random::<u64>()
        );
        let path = self.dir.join(name);
        Ok(SnapshotWriter {
            file: private::create(&path)?,
            saved: SavedSnapshot { path, index: 0 },
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<(SnapshotMeta, SnapshotFile)>> {
        // The value is replaced in one assignment, so a poisoned lock still holds a whole value.
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_current(&self, meta: &SnapshotMeta, path: &Path) {
        *self.lock() = Some((meta.clone(), SnapshotFile::at(path)));
    }

    fn path_of(&self, meta: &SnapshotMeta) -> PathBuf {
        let (index, term) = meta.last_log_id.map_or((0, 0), |log_id| {
            (log_id.index, log_id.committed_leader_id().term)
        });
        self.dir.join(format!("{index:020}-{term:010}{SUFFIX}"))
    }

    fn rename_into_place(
        &self,
        temporary: &Path,
        path: &Path,
        meta: &SnapshotMeta,
    ) -> io::Result<SnapshotFile> {
        fs::rename(temporary, path)?;
        failpoint::hit("snapshot.renamed", path)?;
        File::open(&self.dir)?.sync_all()?;
        failpoint::hit("snapshot.durable", path)?;
        self.set_current(meta, path);
        self.prune(limits::SNAPSHOTS_KEPT)?;
        failpoint::hit("snapshot.pruned", path)?;
        Ok(SnapshotFile::at(path))
    }

    fn prune(&self, kept: usize) -> io::Result<()> {
        for old in self.files()?.into_iter().skip(kept) {
            if let Err(error) = fs::remove_file(&old.path) {
                tracing::warn!(path = %old.path.display(), %error, "an old snapshot cannot be removed");
            }
        }
        Ok(())
    }
}

/// A file that is synced after each write: its buffer determines the size of the pieces.
struct SyncedWriter<'a> {
    file: &'a File,
    path: &'a Path,
}

impl Write for SyncedWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = &bytes[..bytes.len().min(limits::SYNC_BYTES)];
        failpoint::hit("snapshot.write", self.path)?;
        self.file.write_all(piece)?;
        self.file.sync_data()?;
        Ok(piece.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs `work` on a thread with a high niceness.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (sender, receiver) = oneshot::channel();
    std::thread::Builder::new()
        .name("muster-snapshot".to_owned())
        .spawn(move || {
            let thread = rustix::thread::gettid();
            if let Err(error) =
                rustix::process::setpriority_process(Some(thread), limits::WRITER_NICE)
            {
                tracing::debug!(%error, "a snapshot is written at full speed");
            }
            // The caller may have gone away, but the file exists.
            drop(sender.send(work()));
        })?;
    receiver.await.unwrap_or_else(|_| {
        Err(io::Error::other(
            "the thread that wrote a snapshot has panicked",
        ))
    })
}
