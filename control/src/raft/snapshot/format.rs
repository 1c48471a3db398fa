//! The bytes of a snapshot file.

use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use muster_control_core::snapshot::{self, NodeRecordV1, Record, RestoreError};
use muster_control_core::state::State;
use muster_domain::id::LogIndex;
use muster_wire::codec;
use serde::{Deserialize, Serialize};

use super::limits;
use crate::raft::restore::step::ReceivedChunks;
use crate::raft::types::SnapshotMeta;

const MAGIC: &[u8; 8] = b"MUSTSNAP";
/// The format that this version writes, and the newest that it reads.
pub(super) const FORMAT: u32 = 1;
/// The tables of a snapshot, each with its newest version, which is the one written. They are in the order of the
/// variants of [`Record`], whose number is the first byte of its encoding. A new encoding of a table's rows gets a
/// higher version. A server without that version refuses the snapshot by name.
pub(super) const TABLES: [(&str, u32); Record::KINDS.len()] = Record::KINDS;
/// The mark in place of a record's length: no record follows.
const END: u32 = u32::MAX;
/// The mark in place of a record's length: a part of a snapshot that is being restored follows.
const RESTORING: u32 = u32::MAX - 1;
/// Bytes of the checksum at the end.
const CRC_BYTES: u64 = 4;
/// zstd's fastest regular level: a snapshot is written once and read seldom.
const COMPRESSION_LEVEL: i32 = 1;
/// Bytes of the position, the membership and the tables: some dozen servers with their addresses.
const HEAD_BYTES_MAX: u32 = 1 << 20;

/// The head before the records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct SnapshotHead {
    meta: SnapshotMeta,
    /// Name and version of each table.
    tables: Vec<(String, u32)>,
}

/// The contents of a snapshot.
#[derive(Debug)]
pub(crate) struct Contents {
    pub(crate) meta: SnapshotMeta,
    pub(crate) state: State,
    /// A restore that was under way.
    pub(crate) restoring: Option<ReceivedChunks>,
}

/// A snapshot's description for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// The format of the file.
    pub format: u32,
    /// The last entry in the snapshot.
    pub index: LogIndex,
    /// The term of that entry.
    pub term: u64,
    /// Number, name and vote (whether it votes) of each server.
    pub members: Vec<(u64, String, bool)>,
    pub tables: Vec<TableInfo>,
    /// Bytes of the file.
    pub bytes: u64,
}

/// One table of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableInfo {
    pub name: String,
    /// The version of its rows.
    pub version: u32,
    pub rows: u64,
    /// Bytes of the rows before they are compressed.
    pub bytes: u64,
}

/// The reason why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadSnapshotError {
    /// The file cannot be read.
    #[error("snapshot {} cannot be read", path.display())]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// A newer server wrote it.
    #[error("snapshot {} has format {found}; this server understands up to {FORMAT}: start the newer version that wrote it", path.display())]
    Newer { path: PathBuf, found: u32 },
    /// A newer server wrote a table of the snapshot.
    #[error(
        "snapshot {}: table `{table}` has version {found}, {}: start the newer version that wrote it",
        path.display(),
        known.map_or_else(
            || "and this server does not know that table".to_owned(),
            |known| format!("this server understands up to {known}")
        )
    )]
    NewerTable {
        path: PathBuf,
        table: String,
        found: u32,
        /// The newest version that this server reads; `None` if the table is not known.
        known: Option<u32>,
    },
    /// The content differs from the written content.
    #[error("snapshot {} is damaged: {reason}", path.display())]
    Damaged { path: PathBuf, reason: String },
}

/// A writer that passes bytes on and computes their checksum.
struct ChecksumWriter<T> {
    inner: T,
    crc: crc32fast::Hasher,
}

impl<T> ChecksumWriter<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            crc: crc32fast::Hasher::new(),
        }
    }
}

impl<W: Write> Write for ChecksumWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for ChecksumWriter<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.crc.update(&bytes[..read]);
        Ok(read)
    }
}

/// Writes a snapshot of `contents` to `out`.
pub(super) fn write(out: impl Write, contents: &Contents) -> io::Result<()> {
    let Contents {
        meta,
        state,
        restoring,
    } = contents;
    let mut out = ChecksumWriter::new(out);
    out.write_all(MAGIC)?;
    out.write_all(&FORMAT.to_le_bytes())?;
    let head = SnapshotHead {
        meta: meta.clone(),
        tables: TABLES
            .map(|(name, version)| (name.to_owned(), version))
            .to_vec(),
    };
    write_counted(&mut out, &codec::encode(&head).map_err(io::Error::other)?)?;

    let mut records = zstd::stream::write::Encoder::new(out, COMPRESSION_LEVEL)?;
    let mut count: u64 = 0;
    for record in snapshot::records(state) {
        let body = codec::encode(&record).map_err(io::Error::other)?;
        assert!(table_of(&body).is_some(), "every record belongs to a table");
        write_counted(&mut records, &body)?;
        count += 1;
    }
    if let Some(restoring) = restoring {
        for part in restoring.parts()? {
            records.write_all(&RESTORING.to_le_bytes())?;
            write_counted(&mut records, &part)?;
        }
    }
    records.write_all(&END.to_le_bytes())?;
    records.write_all(&count.to_le_bytes())?;
    let out = records.finish()?;

    let ChecksumWriter { mut inner, crc } = out;
    inner.write_all(&crc.finalize().to_le_bytes())?;
    inner.flush()
}

/// The place in [`TABLES`] of the record encoded in `body`.
fn table_of(body: &[u8]) -> Option<usize> {
    let number = usize::from(*body.first()?);
    (number < TABLES.len()).then_some(number)
}

fn write_counted(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|_| bytes.len() <= limits::RECORD_BYTES_MAX)
        .ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "a snapshot record is too large",
            )
        })?;
    out.write_all(&length.to_le_bytes())?;
    out.write_all(bytes)
}

/// Reads the snapshot at `path`.
pub(super) fn read(path: &Path) -> Result<Contents, ReadSnapshotError> {
    let name = FileReader { path };
    let handle = File::open(path).map_err(|source| name.io(source))?;
    let size = handle.metadata().map_err(|source| name.io(source))?.len();
    read_from(BufReader::new(handle), size, path)
}

/// Reads a snapshot of `size` bytes from `input`. Errors name it `path`.
pub(crate) fn read_from(
    input: impl Read,
    size: u64,
    path: &Path,
) -> Result<Contents, ReadSnapshotError> {
    let name = FileReader { path };
    let mut restoring = None;
    let (head, state) = name.whole(input, size, |name, head, records| {
        name.records(head, records, &mut restoring)
    })?;
    Ok(Contents {
        meta: head.meta,
        state,
        restoring,
    })
}

/// Reads and checks a whole snapshot of `size` bytes and returns its description. Errors name it `path`.
///
/// # Errors
///
/// [`ReadSnapshotError`].
pub(crate) fn inspect(
    input: impl Read,
    size: u64,
    path: &Path,
) -> Result<SnapshotInfo, ReadSnapshotError> {
    let name = FileReader { path };
    let (head, counts) = name.whole(input, size, |name, _, records| name.counts(records))?;
    let last = head.meta.last_log_id;
    let membership = head.meta.last_membership.membership();
    let voters: Vec<u64> = membership.voter_ids().collect();
    Ok(SnapshotInfo {
        format: FORMAT,
        index: LogIndex(last.map_or(0, |log_id| log_id.index)),
        term: last.map_or(0, |log_id| log_id.committed_leader_id().term),
        members: membership
            .nodes()
            .map(|(id, node)| (*id, node.name.clone(), voters.contains(id)))
            .collect(),
        tables: (head.tables.into_iter().zip(counts))
            .filter(|((name, _), _)| name != "header" && name != "end")
            .map(|((name, version), (rows, bytes))| TableInfo {
                name,
                version,
                rows,
                bytes,
            })
            .collect(),
        bytes: size,
    })
}

/// A reader of parts of one file, with the file's name for errors.
#[derive(Clone, Copy)]
struct FileReader<'a> {
    path: &'a Path,
}

impl FileReader<'_> {
    fn io(self, source: io::Error) -> ReadSnapshotError {
        match source.kind() {
            // These errors come from the bytes, not from the disk.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData | io::ErrorKind::Other => {
                self.damaged(&source.to_string())
            }
            _ => ReadSnapshotError::Io {
                path: self.path.to_owned(),
                source,
            },
        }
    }

    fn damaged(self, reason: &str) -> ReadSnapshotError {
        ReadSnapshotError::Damaged {
            path: self.path.to_owned(),
            reason: reason.to_owned(),
        }
    }

    fn bytes<const N: usize>(
        self,
        input: &mut (impl Read + ?Sized),
    ) -> Result<[u8; N], ReadSnapshotError> {
        let mut bytes = [0; N];
        input
            .read_exact(&mut bytes)
            .map_err(|source| self.io(source))?;
        Ok(bytes)
    }

    fn value<T: serde::de::DeserializeOwned>(
        self,
        input: &mut impl Read,
        length: u32,
    ) -> Result<T, ReadSnapshotError> {
        let bytes = self.raw(input, length)?;
        self.decoded(&bytes)
    }

    fn decoded<T: serde::de::DeserializeOwned>(self, bytes: &[u8]) -> Result<T, ReadSnapshotError> {
        codec::decode(bytes).map_err(|error| self.damaged(&error.to_string()))
    }

    fn raw(
        self,
        input: &mut (impl Read + ?Sized),
        length: u32,
    ) -> Result<Vec<u8>, ReadSnapshotError> {
        let length = length as usize;
        if length > limits::RECORD_BYTES_MAX {
            return Err(self.damaged(&format!("a record claims {length} bytes")));
        }
        // The buffer is not allocated ahead: a damaged length must not cost memory.
        let mut bytes = Vec::new();
        input
            .take(length as u64)
            .read_to_end(&mut bytes)
            .map_err(|source| self.io(source))?;
        if bytes.len() < length {
            return Err(self.damaged("it ends early"));
        }
        Ok(bytes)
    }

    /// Reads a whole file, its records by `take`, and checks its checksum.
    fn whole<T>(
        self,
        mut handle: impl Read,
        size: u64,
        take: impl FnOnce(Self, &SnapshotHead, &mut dyn Read) -> Result<T, ReadSnapshotError>,
    ) -> Result<(SnapshotHead, T), ReadSnapshotError> {
        let Some(summed) = size.checked_sub(CRC_BYTES) else {
            return Err(self.damaged("it is too short"));
        };
        let mut input = ChecksumWriter::new((&mut handle).take(summed));
        let head = self.head(&mut input)?;
        let mut records =
            zstd::stream::read::Decoder::new(input).map_err(|source| self.io(source))?;
        let taken = take(self, &head, &mut records)?;
        // Bytes that zstd has not read are still part of the checksum.
        let mut input = records.finish();
        io::copy(&mut input, &mut io::sink()).map_err(|source| self.io(source))?;
        let sum = input.into_inner().crc.finalize();
        if u32::from_le_bytes(self.bytes(&mut handle)?) != sum {
            return Err(self.damaged("its checksum is wrong"));
        }
        Ok((head, taken))
    }

    /// Reads the head before the records. Refuses a newer server's format.
    fn head(self, input: &mut impl Read) -> Result<SnapshotHead, ReadSnapshotError> {
        if self.bytes::<8>(input)? != *MAGIC {
            return Err(self.damaged("it is not a snapshot of ours"));
        }
        let found = u32::from_le_bytes(self.bytes(input)?);
        if found == 0 {
            return Err(self.damaged("its format is 0"));
        }
        if found > FORMAT {
            return Err(ReadSnapshotError::Newer {
                path: self.path.to_owned(),
                found,
            });
        }
        let length = u32::from_le_bytes(self.bytes(input)?);
        if length > HEAD_BYTES_MAX {
            return Err(self.damaged(&format!("its header claims {length} bytes")));
        }
        let head: SnapshotHead = self.value(input, length)?;
        for (place, (table, found)) in head.tables.iter().enumerate() {
            if *found == 0 {
                return Err(self.damaged(&format!("table `{table}` has version 0")));
            }
            let known = TABLES.get(place).filter(|(name, _)| name == table);
            if known.is_none_or(|(_, known)| found > known) {
                return Err(ReadSnapshotError::NewerTable {
                    path: self.path.to_owned(),
                    table: table.clone(),
                    found: *found,
                    known: known.map(|(_, version)| *version),
                });
            }
        }
        Ok(head)
    }

    /// Decodes the record in `body`. The file's head gives the version of its kind.
    fn record(self, head: &SnapshotHead, body: &[u8]) -> Result<Record, ReadSnapshotError> {
        let table = table_of(body).and_then(|table| head.tables.get(table));
        match table.map(|(name, version)| (name.as_str(), *version)) {
            Some(("nodes", 1)) => {
                let record: NodeRecordV1 = self.decoded(&body[1..])?;
                Ok(Record::Node(Box::new(record.into())))
            }
            _ => self.decoded(body),
        }
    }

    fn records(
        self,
        head: &SnapshotHead,
        input: &mut dyn Read,
        restoring: &mut Option<ReceivedChunks>,
    ) -> Result<State, ReadSnapshotError> {
        let mut count: u64 = 0;
        let mut parts = Vec::new();
        let records = std::iter::from_fn(|| {
            let body = self.body(input, &mut parts).transpose()?;
            count += 1;
            Some(body.and_then(|body| self.record(head, &body)))
        });
        let state = snapshot::restore(records).map_err(|error| match error {
            RestoreError::Read { source, .. } => source,
            other => self.damaged(&other.to_string()),
        })?;
        if u64::from_le_bytes(self.bytes(input)?) != count {
            return Err(self.damaged("records are missing"));
        }
        *restoring =
            ReceivedChunks::of_parts(parts).map_err(|error| self.damaged(&error.to_string()))?;
        Ok(state)
    }

    /// Rows and bytes of each table.
    fn counts(self, input: &mut dyn Read) -> Result<Vec<(u64, u64)>, ReadSnapshotError> {
        let mut counts = vec![(0, 0); TABLES.len()];
        let mut all: u64 = 0;
        let mut parts = Vec::new();
        while let Some(body) = self.body(input, &mut parts)? {
            let table =
                table_of(&body).ok_or_else(|| self.damaged("a record belongs to no table"))?;
            counts[table].0 += 1;
            counts[table].1 += body.len() as u64;
            all += 1;
            parts.clear();
        }
        if u64::from_le_bytes(self.bytes(input)?) != all {
            return Err(self.damaged("records are missing"));
        }
        Ok(counts)
    }

    /// The next record's encoding; `None` after the last. Parts of a restore are added to `parts`.
    fn body(
        self,
        input: &mut dyn Read,
        parts: &mut Vec<Vec<u8>>,
    ) -> Result<Option<Vec<u8>>, ReadSnapshotError> {
        loop {
            match u32::from_le_bytes(self.bytes(input)?) {
                END => return Ok(None),
                RESTORING => {
                    let length = u32::from_le_bytes(self.bytes(input)?);
                    parts.push(self.raw(input, length)?);
                }
                length => return self.raw(input, length).map(Some),
            }
        }
    }
}
