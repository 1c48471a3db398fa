//! The durable end of the log, kept in a separate file. At the next start it shows whether an acknowledged end of
//! the log is lost.
//!
//! The mark is written after each sync of the log and is not synced itself. It survives a killed process, and is
//! never ahead of the log unless the log lost its end. After a power failure it may be behind, and then detects
//! less.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use muster_link::private;
use muster_wire::codec;
use serde::{Deserialize, Serialize};

use crate::raft::types::{LogId, Vote};

/// The file's name in the log's directory.
const FILE: &str = "mark";
/// Bytes of the file: a length, a checksum and the encoding. Bytes after the encoding are left from earlier
/// writes.
const BYTES_MAX: u64 = 512;
const HEAD_BYTES: usize = 8;

/// The newest vote and entry on disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct DurabilityMark {
    pub(super) vote: Option<Vote>,
    pub(super) last: Option<LogId>,
}

/// Writes the mark.
#[derive(Debug)]
pub(super) struct MarkFile {
    file: File,
    path: PathBuf,
    written: DurabilityMark,
    /// An acknowledged end that is missing from the log. The mark keeps it until the log reaches it again.
    lost: Option<LogId>,
}

impl MarkFile {
    /// Opens the mark in `dir`, whose log ends with `last`. Also returns the mark of the previous run; an
    /// unreadable mark counts as empty.
    pub(super) fn open(dir: &Path, last: Option<LogId>) -> io::Result<(Self, DurabilityMark)> {
        let path = dir.join(FILE);
        let mut options = private::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path)?;
        let mut bytes = Vec::new();
        (&mut file).take(BYTES_MAX).read_to_end(&mut bytes)?;
        let mark = read(&bytes).unwrap_or_default();
        let file = Self {
            file,
            path,
            written: mark.clone(),
            lost: mark.last.filter(|marked| Some(*marked) > last),
        };
        Ok((file, mark))
    }

    /// The acknowledged end that is missing from the log.
    pub(super) fn lost(&self) -> Option<LogId> {
        self.lost
    }

    /// Records the vote and entry on disk.
    pub(super) fn note(&mut self, vote: Option<Vote>, last: Option<LogId>) {
        self.lost = self.lost.filter(|lost| Some(*lost) > last);
        let mark = DurabilityMark {
            vote,
            last: self.lost.or(last),
        };
        if mark == self.written {
            return;
        }
        let written = encode(&mark).and_then(|bytes| self.file.write_all_at(&bytes, 0));
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "how far the log is on disk was not noted");
        }
        self.written = mark;
    }
}

fn encode(mark: &DurabilityMark) -> io::Result<Vec<u8>> {
    let body = codec::encode(mark).map_err(io::Error::other)?;
    let length = u32::try_from(body.len()).map_err(io::Error::other)?;
    let mut bytes = length.to_le_bytes().to_vec();
    bytes.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(bytes)
}

fn read(bytes: &[u8]) -> Option<DurabilityMark> {
    let (head, body) = bytes.split_at_checked(HEAD_BYTES)?;
    let (length, checksum) = head.split_first_chunk::<4>()?;
    let body = body.get(..u32::from_le_bytes(*length) as usize)?;
    let is_whole = crc32fast::hash(body).to_le_bytes() == *checksum;
    is_whole.then(|| codec::decode(body).ok()).flatten()
}
