//! The log's files: the numbered segments, the spare one, and the reserve.
//!
//! ```text
//! 0000000007.log   a segment: full size from its birth, written from the front
//! spare            the next segment, its room taken already
//! reserve          room that is given up when the disk is full, to write a snapshot into
//! ```
//!
//! Space is allocated before it is needed, so a write into a segment does not run out of space. The lack of space
//! for the next segment is known while the current one still has some.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_link::private;
use rustix::fs::{FallocateFlags, fallocate};

use super::failpoint;

const SUFFIX: &str = "log";
const SPARE: &str = "spare";
const RESERVE: &str = "reserve";
const OWNER_ONLY: u32 = 0o600;
/// Bytes of zeros written at once on a file system that cannot allocate space by itself.
const ZEROS: usize = 1 << 16;

/// The directory of the log.
#[derive(Clone, Debug)]
pub(super) struct Dir {
    path: PathBuf,
}

/// An open segment.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) number: u32,
    pub(super) path: PathBuf,
    pub(super) file: Arc<File>,
    pub(super) bytes: u64,
}

/// The allocated space for the next segment.
#[derive(Debug)]
pub(super) struct SpareSegment {
    file: File,
    bytes: u64,
}

impl Dir {
    /// Opens `path` and creates it if it does not exist. Prepares the spare segment of an earlier process anew.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        private::create_dir(path)?;
        remove_if_there(&path.join(SPARE))?;
        Ok(Self {
            path: path.to_owned(),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The numbers of the segments, in order.
    pub(super) fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|found| found == SUFFIX) {
                let stem = path.file_stem().and_then(|stem| stem.to_str());
                numbers.extend(stem.and_then(|stem| stem.parse::<u32>().ok()));
            }
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    pub(super) fn segment_path(&self, number: u32) -> PathBuf {
        self.path.join(format!("{number:010}.{SUFFIX}"))
    }

    /// Opens segment `number`.
    pub(super) fn segment(&self, number: u32) -> io::Result<Segment> {
        let path = self.segment_path(number);
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        let bytes = file.metadata()?.len();
        Ok(Segment {
            number,
            path,
            file: Arc::new(file),
            bytes,
        })
    }

    /// Allocates `bytes` for the next segment.
    pub(super) fn spare(&self, bytes: u64) -> io::Result<SpareSegment> {
        let path = self.path.join(SPARE);
        failpoint::hit("log.spare", &path)?;
        let file = Self::room(&path, bytes)?;
        Ok(SpareSegment { file, bytes })
    }

    /// Allocates the reserve of `bytes`, which is released when the disk is full.
    pub(super) fn take_reserve(&self, bytes: u64) -> io::Result<()> {
        let path = self.path.join(RESERVE);
        if fs::metadata(&path).is_ok_and(|found| found.len() == bytes) {
            return Ok(());
        }
        failpoint::hit("log.reserve", &path)?;
        Self::room(&path, bytes).map(drop)
    }

    /// Releases the reserve.
    pub(super) fn give_up_reserve(&self) -> io::Result<()> {
        remove_if_there(&self.path.join(RESERVE))
    }

    /// Creates a file of `bytes` zeros with allocated blocks. Removes the file if the allocation fails.
    fn room(path: &Path, bytes: u64) -> io::Result<File> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .mode(OWNER_ONLY)
            .open(path)?;
        match take_blocks(&file, bytes).and_then(|()| file.sync_all()) {
            Ok(()) => Ok(file),
            Err(error) => {
                remove_if_there(path)?;
                Err(error)
            }
        }
    }

    /// Turns `spare` into segment `number`, which begins with `first`.
    pub(super) fn adopt(
        &self,
        spare: &SpareSegment,
        number: u32,
        first: &[u8],
    ) -> io::Result<Segment> {
        let path = self.segment_path(number);
        spare.file.write_all_at(first, 0)?;
        failpoint::hit("log.roll.written", &path)?;
        spare.file.sync_all()?;
        failpoint::hit("log.roll.synced", &path)?;
        fs::rename(self.path.join(SPARE), &path)?;
        failpoint::hit("log.roll.renamed", &path)?;
        self.sync()?;
        Ok(Segment {
            number,
            path,
            file: Arc::new(spare.file.try_clone()?),
            bytes: spare.bytes,
        })
    }

    /// Syncs the directory, so that names are durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }
}

impl SpareSegment {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Whether `error` reports a full disk.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}

fn take_blocks(file: &File, bytes: u64) -> io::Result<()> {
    match fallocate(file, FallocateFlags::empty(), 0, bytes) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            let zeros = vec![0; ZEROS];
            let mut at = 0;
            while at < bytes {
                let part = zeros
                    .len()
                    .min(usize::try_from(bytes - at).unwrap_or(ZEROS));
                file.write_all_at(&zeros[..part], at)?;
                at += part as u64;
            }
            Ok(())
        }
        Err(errno) => Err(errno.into()),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
