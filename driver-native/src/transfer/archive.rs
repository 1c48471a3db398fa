//! Reads an archive and sends its entries to the porter.
//!
//! An archive is untrusted: its names, links, sizes and number of entries are checked here. No more than one chunk and
//! one name is held in memory. A refused entry fails the whole action; earlier entries are already unpacked.
//! Deliberately absent: owners, times, set-id bits, devices, sparse files, encrypted files, and compression other than
//! gzip's.

mod tar;
mod zip;

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, Write};

use flate2::read::MultiGzDecoder;
use muster_domain::number;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::limits;
use crate::transfer_helper::{Name, Packer};

/// The bounds of an archive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArchiveLimits {
    pub(crate) entries: u64,
    /// Bytes of all files together.
    pub(crate) bytes: u64,
}

/// The reason why an archive is not unpacked.
#[derive(Debug, Error)]
pub(crate) enum UnpackError {
    #[error("it unpacks to more than {max} bytes, which is all that it may")]
    Bytes { max: u64 },
    #[error("it has more than {max} entries, which is all that it may")]
    Entries { max: u64 },
    #[error("{name:?} is not a name beneath a directory: it is absolute, has `..`, or is too long")]
    Name { name: String },
    #[error("{name:?} links to {target:?}, which leads out or is none of its files")]
    Link { name: String, target: String },
    #[error("{name:?} is {kind}, which is not unpacked")]
    Kind { name: String, kind: &'static str },
    #[error("it is not an archive, and its URL has no last part to name a file by")]
    Nameless,
    #[error("it is cut off in the middle of {name:?}")]
    Cut { name: String },
    #[error("it cannot be read: {0}")]
    Content(String),
    #[error("read it")]
    Read(#[source] io::Error),
    /// The porter accepted no more bytes.
    #[error("hand it to the task")]
    Hand(#[source] io::Error),
    #[error("it was stopped")]
    Stopped,
}

/// Unpacks `archive` to `to`. A file that is not an archive becomes a file called `name`. Blocks; checks `stop`
/// between chunks.
pub(crate) fn unpack(
    mut archive: File,
    name: Option<&Name>,
    bounds: ArchiveLimits,
    stop: &CancellationToken,
    to: impl Write,
) -> Result<(), UnpackError> {
    let mut unpacking = ArchiveUnpacker {
        packer: Packer::new(to),
        bounds,
        left: bounds,
        stop,
        chunk: vec![0; limits::TRANSFER_CHUNK_BYTES],
    };
    match detect_format(&mut archive).map_err(read_error)? {
        ArchiveFormat::Zip => zip::unpack(archive, &mut unpacking)?,
        ArchiveFormat::Tar => tar::unpack(BufReader::new(archive), &mut unpacking)?,
        ArchiveFormat::TarGz => {
            let mut unpacked = MultiGzDecoder::new(BufReader::new(archive));
            tar::unpack(&mut unpacked, &mut unpacking)?;
            unpacking.finish(unpacked)?;
        }
        ArchiveFormat::Plain => {
            let name = name.ok_or(UnpackError::Nameless)?;
            let size = archive.metadata().map_err(UnpackError::Read)?.len();
            unpacking.file(name, 0o644, size, archive)?;
        }
    }
    unpacking.packer.end().map_err(UnpackError::Hand)
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ArchiveFormat {
    Tar,
    TarGz,
    Zip,
    Plain,
}

/// Detects the format from the beginning of a file, and seeks back to the beginning.
fn detect_format(file: &mut File) -> io::Result<ArchiveFormat> {
    let head = read_head(&mut *file)?;
    file.rewind()?;
    Ok(match head.as_slice() {
        [b'P', b'K', 3, 4, ..] | [b'P', b'K', 5, 6, ..] => ArchiveFormat::Zip,
        [0x1f, 0x8b, 8, ..] => {
            let unpacked = read_head(MultiGzDecoder::new(&mut *file))?;
            file.rewind()?;
            if tar::is_header(&unpacked) {
                ArchiveFormat::TarGz
            } else {
                ArchiveFormat::Plain
            }
        }
        head if tar::is_header(head) => ArchiveFormat::Tar,
        _ => ArchiveFormat::Plain,
    })
}

/// Returns as many bytes as a tar header has, or all bytes if there are fewer.
fn read_head(from: impl Read) -> io::Result<Vec<u8>> {
    let mut head = Vec::new();
    from.take(tar::BLOCK_BYTES as u64).read_to_end(&mut head)?;
    Ok(head)
}

/// An archive that is being sent to the porter.
struct ArchiveUnpacker<'a, W> {
    packer: Packer<W>,
    bounds: ArchiveLimits,
    left: ArchiveLimits,
    stop: &'a CancellationToken,
    chunk: Vec<u8>,
}

impl<W: Write> ArchiveUnpacker<'_, W> {
    /// Counts an entry. Every entry counts, whatever the archive claims about it.
    fn count_entry(&mut self) -> Result<(), UnpackError> {
        if self.stop.is_cancelled() {
            return Err(UnpackError::Stopped);
        }
        let max = self.bounds.entries;
        let left = self.left.entries.checked_sub(1);
        self.left.entries = left.ok_or(UnpackError::Entries { max })?;
        Ok(())
    }

    fn count_bytes(&mut self, bytes: u64) -> Result<(), UnpackError> {
        let max = self.bounds.bytes;
        let left = self.left.bytes.checked_sub(bytes);
        self.left.bytes = left.ok_or(UnpackError::Bytes { max })?;
        Ok(())
    }

    fn directory(&mut self, name: &Name, mode: u32) -> Result<(), UnpackError> {
        if name.is_empty() {
            // The directory that receives the archive belongs to the task.
            return Ok(());
        }
        self.packer.directory(name, mode).map_err(UnpackError::Hand)
    }

    /// Sends a file of `size` bytes, which `from` must contain.
    fn file(
        &mut self,
        name: &Name,
        mode: u32,
        size: u64,
        mut from: impl Read,
    ) -> Result<(), UnpackError> {
        self.count_bytes(size)?;
        self.packer
            .file(name, mode, size)
            .map_err(UnpackError::Hand)?;
        let mut left = size;
        while left > 0 {
            if self.stop.is_cancelled() {
                return Err(UnpackError::Stopped);
            }
            let some = number::index(left);
            let some = some.min(self.chunk.len());
            let read = match from.read(&mut self.chunk[..some]) {
                Ok(0) => {
                    return Err(UnpackError::Cut {
                        name: name.to_string(),
                    });
                }
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(read_error(error)),
            };
            left -= read as u64;
            self.packer
                .data(&self.chunk[..read])
                .map_err(UnpackError::Hand)?;
        }
        Ok(())
    }

    /// Reads and discards all bytes, and returns their number.
    fn discard(&mut self, mut from: impl Read) -> Result<u64, UnpackError> {
        let mut passed = 0;
        loop {
            if self.stop.is_cancelled() {
                return Err(UnpackError::Stopped);
            }
            match from.read(&mut self.chunk) {
                Ok(0) => return Ok(passed),
                Ok(read) => passed += read as u64,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read_error(error)),
            }
        }
    }

    /// Reads the bytes after an archive, where the checksum of the compressed stream is.
    fn finish(&mut self, from: impl Read) -> Result<(), UnpackError> {
        let max = limits::TAR_TRAILER_BYTES_MAX;
        if self.discard(from.take(max + 1))? > max {
            let text = format!("more than {max} bytes follow its end");
            return Err(UnpackError::Content(text));
        }
        Ok(())
    }

    fn symbolic(&mut self, name: &Name, target: &[u8]) -> Result<(), UnpackError> {
        if name.is_empty() || !name.may_link_to(target) {
            return Err(link_error(name, target));
        }
        self.packer
            .symbolic(name, target)
            .map_err(UnpackError::Hand)
    }

    /// Sends another name for an earlier file.
    fn hard(&mut self, name: &Name, target: &[u8]) -> Result<(), UnpackError> {
        let to = Name::read(target).filter(|to| !to.is_empty() && to != name);
        let to = to.ok_or_else(|| link_error(name, target))?;
        self.packer.hard(name, &to).map_err(UnpackError::Hand)
    }
}

/// Returns the name of an entry that is not a directory.
fn file_name(bytes: &[u8]) -> Result<Name, UnpackError> {
    let name = entry_name(bytes)?;
    if name.is_empty() {
        return Err(UnpackError::Name {
            name: display_name(bytes),
        });
    }
    Ok(name)
}

/// Returns the name of an entry, which may be the directory itself.
fn entry_name(bytes: &[u8]) -> Result<Name, UnpackError> {
    Name::read(bytes).ok_or_else(|| UnpackError::Name {
        name: display_name(bytes),
    })
}

fn link_error(name: &Name, target: &[u8]) -> UnpackError {
    UnpackError::Link {
        name: name.to_string(),
        target: display_name(target),
    }
}

/// Converts an error of a decompressor or a checksum test.
fn read_error(error: io::Error) -> UnpackError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => UnpackError::Content("it is cut off".to_owned()),
        io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput | io::ErrorKind::Other => {
            UnpackError::Content(error.to_string())
        }
        _ => UnpackError::Read(error),
    }
}

/// Formats any bytes as a name for messages, with a limited length.
fn display_name(bytes: &[u8]) -> String {
    const SHOWN_BYTES_MAX: usize = 200;
    String::from_utf8_lossy(&bytes[..bytes.len().min(SHOWN_BYTES_MAX)]).into_owned()
}

#[cfg(test)]
mod tests;
