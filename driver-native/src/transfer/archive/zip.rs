//! Zip files: read through the directory at their end, stored or deflated, with Unix modes and links if they have any.

use std::fs::File;
use std::io::{Read, Write};

use flate2::read::DeflateDecoder;
use rawzip::{CompressionMethod, ErrorKind, RECOMMENDED_BUFFER_SIZE, ZipArchive};

use super::{
    ArchiveUnpacker, UnpackError, display_name, entry_name, file_name, link_error, read_error,
};
use crate::transfer_helper::Name;

const KIND_BITS: u32 = 0o170_000;
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMBOLIC: u32 = 0o120_000;
/// The longest target of a link in bytes; a longer one is refused.
const TARGET_BYTES_MAX: u64 = 4_096;

pub(super) fn unpack<W: Write>(
    archive: File,
    to: &mut ArchiveUnpacker<'_, W>,
) -> Result<(), UnpackError> {
    let mut buffer = vec![0; RECOMMENDED_BUFFER_SIZE];
    let archive = ZipArchive::from_file(archive, &mut buffer).map_err(zip_error)?;
    let mut entries = archive.entries(&mut buffer);
    while let Some(entry) = entries.next_entry().map_err(zip_error)? {
        to.count_entry()?;
        let path = entry.file_path();
        let name: &[u8] = path.as_ref();
        let refused = |kind| UnpackError::Kind {
            name: display_name(name),
            kind,
        };
        if entry.flags().is_encrypted() {
            return Err(refused("encrypted"));
        }
        let mode = entry.mode().value();
        match mode & KIND_BITS {
            _ if entry.is_dir() => to.directory(&entry_name(name)?, mode)?,
            DIRECTORY => to.directory(&entry_name(name)?, mode)?,
            0 | REGULAR | SYMBOLIC => {
                let found = archive.get_entry(entry.wayfinder()).map_err(zip_error)?;
                let size = entry.uncompressed_size_hint();
                let is_link = mode & KIND_BITS == SYMBOLIC;
                let name = file_name(name)?;
                let file = ZipEntry {
                    name: &name,
                    mode,
                    size,
                    is_link,
                };
                match entry.compression_method() {
                    CompressionMethod::STORE => {
                        file.unpack(found.verifying_reader(found.reader()), to)?;
                    }
                    CompressionMethod::DEFLATE => {
                        let inflated = DeflateDecoder::new(found.reader());
                        file.unpack(found.verifying_reader(inflated), to)?;
                    }
                    _ => return Err(refused("compressed in an unknown way")),
                }
            }
            _ => return Err(refused("neither a file nor a directory nor a link")),
        }
    }
    Ok(())
}

/// A file, or a link whose target is in the content.
struct ZipEntry<'a> {
    name: &'a Name,
    mode: u32,
    size: u64,
    is_link: bool,
}

impl ZipEntry<'_> {
    fn unpack<W: Write>(
        &self,
        mut from: impl Read,
        to: &mut ArchiveUnpacker<'_, W>,
    ) -> Result<(), UnpackError> {
        if self.is_link {
            let mut target = Vec::new();
            from.take(TARGET_BYTES_MAX)
                .read_to_end(&mut target)
                .map_err(read_error)?;
            if target.len() as u64 != self.size {
                return Err(link_error(self.name, &target));
            }
            return to.symbolic(self.name, &target);
        }
        to.file(self.name, self.mode, self.size, &mut from)?;
        // The checksum is verified with the last byte; an empty file has none.
        let mut more = [0];
        match from.read(&mut more).map_err(read_error)? {
            0 => Ok(()),
            _ => Err(UnpackError::Content(format!(
                "{:?} is longer than it says",
                self.name.to_string()
            ))),
        }
    }
}

fn zip_error(error: rawzip::Error) -> UnpackError {
    match error.into_kind() {
        ErrorKind::IO(error) => read_error(error),
        kind => UnpackError::Content(kind.to_string()),
    }
}
