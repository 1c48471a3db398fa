//! The bytes of a snapshot file.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use muster_control_core::snapshot::{self, Record, RestoreError};
use muster_control_core::state::State;
use muster_wire::codec;

use crate::limits;
use crate::raft::types::SnapshotMeta;

const MAGIC: &[u8; 8] = b"MUSTSNAP";
/// The format written, and the newest understood.
pub(super) const FORMAT: u32 = 1;
/// Instead of a record's length: no record follows.
const END: u32 = u32::MAX;
/// Bytes of the checksum at the end.
const CRC_BYTES: u64 = 4;
/// zstd's fastest regular level: a snapshot is written once and read seldom.
const COMPRESSION_LEVEL: i32 = 1;
/// Bytes of the position and membership: some dozen servers with their addresses.
const META_BYTES_MAX: u32 = 1 << 20;

/// Why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadSnapshotError {
    /// The file cannot be read.
    #[error("snapshot {} cannot be read", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A newer server wrote it.
    #[error("snapshot {} has format {found}; this server understands up to {FORMAT}: start the newer version that wrote it", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
    },
    /// It is not what was written.
    #[error("snapshot {} is damaged: {reason}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

/// Passes bytes on and keeps their checksum.
struct Summing<T> {
    inner: T,
    crc: crc32fast::Hasher,
}

impl<T> Summing<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            crc: crc32fast::Hasher::new(),
        }
    }
}

impl<W: Write> Write for Summing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.crc.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<R: Read> Read for Summing<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.crc.update(&bytes[..read]);
        Ok(read)
    }
}

/// Writes a snapshot to `file`. The caller syncs it.
pub(super) fn write(file: &File, meta: &SnapshotMeta, state: &State) -> io::Result<()> {
    let mut out = Summing::new(BufWriter::new(file));
    out.write_all(MAGIC)?;
    out.write_all(&FORMAT.to_le_bytes())?;
    write_counted(&mut out, &codec::encode(meta).map_err(io::Error::other)?)?;

    let mut records = zstd::stream::write::Encoder::new(out, COMPRESSION_LEVEL)?;
    let mut count: u64 = 0;
    for record in snapshot::records(state) {
        write_counted(
            &mut records,
            &codec::encode(&record).map_err(io::Error::other)?,
        )?;
        count += 1;
    }
    records.write_all(&END.to_le_bytes())?;
    records.write_all(&count.to_le_bytes())?;
    let out = records.finish()?;

    let Summing { mut inner, crc } = out;
    inner.write_all(&crc.finalize().to_le_bytes())?;
    inner.flush()
}

fn write_counted(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len())
        .ok()
        .filter(|_| bytes.len() <= limits::ENTRY_BYTES_MAX)
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
pub(super) fn read(path: &Path) -> Result<(SnapshotMeta, State), ReadSnapshotError> {
    let file = Reading { path };
    let handle = File::open(path).map_err(|source| file.io(source))?;
    let size = handle.metadata().map_err(|source| file.io(source))?.len();
    let Some(summed) = size.checked_sub(CRC_BYTES) else {
        return Err(file.damaged("it is too short"));
    };
    let mut handle = BufReader::new(handle);
    let mut input = Summing::new((&mut handle).take(summed));

    if file.bytes::<8>(&mut input)? != *MAGIC {
        return Err(file.damaged("it is no snapshot of ours"));
    }
    let found = u32::from_le_bytes(file.bytes(&mut input)?);
    if found > FORMAT {
        return Err(ReadSnapshotError::Newer {
            path: path.to_owned(),
            found,
        });
    }
    let length = u32::from_le_bytes(file.bytes(&mut input)?);
    if length > META_BYTES_MAX {
        return Err(file.damaged(&format!("its header claims {length} bytes")));
    }
    let meta = file.value(&mut input, length)?;

    let mut records = zstd::stream::read::Decoder::new(input).map_err(|source| file.io(source))?;
    let state = file.records(&mut records)?;
    // What zstd has not asked for is still part of the sum.
    let mut input = records.finish();
    io::copy(&mut input, &mut io::sink()).map_err(|source| file.io(source))?;
    let sum = input.into_inner().crc.finalize();
    if u32::from_le_bytes(file.bytes(&mut handle)?) != sum {
        return Err(file.damaged("its checksum is wrong"));
    }
    Ok((meta, state))
}

/// Reads parts of one file and names it in errors.
#[derive(Clone, Copy)]
struct Reading<'a> {
    path: &'a Path,
}

impl Reading<'_> {
    fn io(self, source: io::Error) -> ReadSnapshotError {
        match source.kind() {
            // These come from the bytes, not from the disk.
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

    fn bytes<const N: usize>(self, input: &mut impl Read) -> Result<[u8; N], ReadSnapshotError> {
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
        if length as usize > limits::ENTRY_BYTES_MAX {
            return Err(self.damaged(&format!("a record claims {length} bytes")));
        }
        // Not allocated ahead: a damaged length must not cost memory.
        let mut bytes = Vec::new();
        input
            .take(u64::from(length))
            .read_to_end(&mut bytes)
            .map_err(|source| self.io(source))?;
        codec::decode(&bytes).map_err(|error| self.damaged(&error.to_string()))
    }

    fn records(self, input: &mut impl Read) -> Result<State, ReadSnapshotError> {
        let mut count: u64 = 0;
        let records = std::iter::from_fn(|| {
            let record = self.record(input).transpose();
            count += u64::from(record.is_some());
            record
        });
        let state = snapshot::restore(records).map_err(|error| match error {
            RestoreError::Read { source, .. } => source,
            other => self.damaged(&other.to_string()),
        })?;
        if u64::from_le_bytes(self.bytes(input)?) != count {
            return Err(self.damaged("records are missing"));
        }
        Ok(state)
    }

    fn record(self, input: &mut impl Read) -> Result<Option<Record>, ReadSnapshotError> {
        match u32::from_le_bytes(self.bytes(input)?) {
            END => Ok(None),
            length => self.value(input, length).map(Some),
        }
    }
}
