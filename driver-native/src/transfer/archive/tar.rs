//! Tar files: the old headers, POSIX's and GNU's, with long names in GNU's entries and in POSIX's attributes.
//!
//! The loop over the blocks is in this crate, because it must bound the data that is read into memory.

use std::io::{self, Read, Write};

use ::tar::{EntryType, Header, PaxExtensions};
use muster_domain::number;

use super::{ArchiveUnpacker, UnpackError, display_name, entry_name, file_name, read_error};
use crate::limits;

/// The size of a header, and the unit that contents are padded to.
pub(super) const BLOCK_BYTES: usize = 512;
/// The position of a header's checksum.
const OF_SUM: std::ops::Range<usize> = 148..156;

/// Returns whether a file with this beginning is a tar file: the checksum of its header is right.
pub(super) fn is_header(head: &[u8]) -> bool {
    head.len() == BLOCK_BYTES && !is_end(head) && has_sum(Header::from_byte_slice(head))
}

fn is_end(block: &[u8]) -> bool {
    block.iter().all(|byte| *byte == 0)
}

fn has_sum(header: &Header) -> bool {
    let sum: u32 = header
        .as_bytes()
        .iter()
        .enumerate()
        // The eight bytes of the checksum itself count as spaces.
        .map(|(at, byte)| if OF_SUM.contains(&at) { b' ' } else { *byte })
        .map(u32::from)
        .sum();
    header.cksum().is_ok_and(|expected| expected == sum)
}

/// The properties of an entry that earlier entries define.
#[derive(Debug, Default)]
struct PendingHeaders {
    name: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
}

pub(super) fn unpack<W: Write>(
    mut from: impl Read,
    to: &mut ArchiveUnpacker<'_, W>,
) -> Result<(), UnpackError> {
    let mut pending = PendingHeaders::default();
    loop {
        let mut block = [0; BLOCK_BYTES];
        if !read_block(&mut from, &mut block)? || is_end(&block) {
            return Ok(());
        }
        to.count_entry()?;
        let header = Header::from_byte_slice(&block);
        if !has_sum(header) {
            let text = "the sum over a header is wrong".to_owned();
            return Err(UnpackError::Content(text));
        }
        let size = header.entry_size().map_err(read_error)?;
        let mut content = Content {
            left: size,
            from: &mut from,
        };
        match header.entry_type() {
            EntryType::GNULongName => pending.name = Some(until_zero(content.extension()?)),
            EntryType::GNULongLink => pending.link = Some(until_zero(content.extension()?)),
            EntryType::XHeader => pending.read(&content.extension()?)?,
            // The entry describes all following entries, with attributes that are not used here.
            EntryType::XGlobalHeader => {
                content.extension()?;
            }
            kind => entry(header, kind, std::mem::take(&mut pending), &mut content, to)?,
        }
        content.skip(size, to)?;
    }
}

/// Handles an entry that does not describe another entry.
fn entry<W: Write, R: Read>(
    header: &Header,
    kind: EntryType,
    pending: PendingHeaders,
    content: &mut Content<'_, R>,
    to: &mut ArchiveUnpacker<'_, W>,
) -> Result<(), UnpackError> {
    let name = pending
        .name
        .unwrap_or_else(|| header.path_bytes().into_owned());
    let refused = |kind| UnpackError::Kind {
        name: display_name(&name),
        kind,
    };
    if pending.size.is_some_and(|size| size != content.left) {
        return Err(refused("of a size that its header does not have"));
    }
    let mode = header.mode().map_err(read_error)?;
    let link = || {
        let own = header.link_name_bytes().unwrap_or_default();
        pending.link.clone().unwrap_or_else(|| own.into_owned())
    };
    match kind {
        EntryType::Directory => to.directory(&entry_name(&name)?, mode),
        // Old programs write directories like this.
        EntryType::Regular if name.ends_with(b"/") => to.directory(&entry_name(&name)?, mode),
        EntryType::Regular | EntryType::Continuous => {
            to.file(&file_name(&name)?, mode, content.left, content)
        }
        EntryType::Symlink => to.symbolic(&file_name(&name)?, &link()),
        EntryType::Link => to.hard(&file_name(&name)?, &link()),
        EntryType::Char | EntryType::Block => Err(refused("a device")),
        EntryType::Fifo => Err(refused("a FIFO")),
        EntryType::GNUSparse => Err(refused("a sparse file")),
        _ => Err(refused("of an unknown kind")),
    }
}

impl PendingHeaders {
    /// Parses POSIX attributes.
    fn read(&mut self, bytes: &[u8]) -> Result<(), UnpackError> {
        for attribute in PaxExtensions::new(bytes) {
            let attribute = attribute.map_err(read_error)?;
            let value = attribute.value_bytes();
            match attribute.key_bytes() {
                b"path" => self.name = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => {
                    let size = str::from_utf8(value).ok();
                    let size = size.and_then(|text| text.parse().ok());
                    let size = size.ok_or_else(|| {
                        UnpackError::Content("the attribute `size` is not a number".to_owned())
                    });
                    self.size = Some(size?);
                }
                key if key.starts_with(b"GNU.sparse.") => {
                    return Err(UnpackError::Kind {
                        name: display_name(self.name.as_deref().unwrap_or_default()),
                        kind: "a sparse file",
                    });
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The content of one entry.
struct Content<'a, R> {
    left: u64,
    from: &'a mut R,
}

impl<R: Read> Content<'_, R> {
    /// Returns the whole content of an entry that describes another entry.
    fn extension(&mut self) -> Result<Vec<u8>, UnpackError> {
        let max = limits::TAR_EXTENSION_BYTES_MAX;
        if self.left > max {
            let text = format!("a name or its attributes have more than {max} bytes");
            return Err(UnpackError::Content(text));
        }
        let expected = self.left;
        let mut bytes = Vec::new();
        self.read_to_end(&mut bytes).map_err(read_error)?;
        if bytes.len() as u64 != expected {
            return Err(UnpackError::Content("it is cut off".to_owned()));
        }
        Ok(bytes)
    }

    /// Skips to the end of the entry. Discarded content counts as unpacked, because it was decompressed.
    fn skip<W: Write>(
        &mut self,
        size: u64,
        to: &mut ArchiveUnpacker<'_, W>,
    ) -> Result<(), UnpackError> {
        to.count_bytes(self.left)?;
        let padding = (BLOCK_BYTES as u64 - size % BLOCK_BYTES as u64) % BLOCK_BYTES as u64;
        let expected = self.left + padding;
        self.left = expected;
        if to.discard(self)? != expected {
            return Err(UnpackError::Content("it is cut off".to_owned()));
        }
        Ok(())
    }
}

impl<R: Read> Read for Content<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let some = number::index(self.left);
        let some = some.min(to.len());
        let read = self.from.read(&mut to[..some])?;
        self.left -= read as u64;
        Ok(read)
    }
}

/// Reads a block; returns `false` if there is none, as at the end of many archives.
fn read_block(from: &mut impl Read, block: &mut [u8]) -> Result<bool, UnpackError> {
    let mut done = 0;
    while done < block.len() {
        match from.read(&mut block[done..]) {
            Ok(0) if done == 0 => return Ok(false),
            Ok(0) => return Err(UnpackError::Content("it is cut off".to_owned())),
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(read_error(error)),
        }
    }
    Ok(true)
}

/// Cuts at the first zero byte, with which GNU's long names end.
fn until_zero(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    bytes
}
