//! Writes an archive in the format that the kernel unpacks as its first file system.
//!
//! The format is cpio "newc" (kernel: Documentation/driver-api/early-userspace/buffer-format.rst). For each file it
//! has a header of 110 hexadecimal digits, the name and the content. Name and content are padded to four bytes. Owner
//! and time are 0, so that equal content makes an equal archive.

use std::io::{self, Write};

const MAGIC: &str = "070701";
const TRAILER: &str = "TRAILER!!!";
const TYPE_DIRECTORY: u32 = 0o040_000;
const TYPE_FILE: u32 = 0o100_000;

/// An archive that is being written. A folder must be added before its entries.
#[derive(Debug)]
pub(crate) struct Archive<W> {
    output: W,
    entries: u32,
}

impl<W: Write> Archive<W> {
    pub(crate) fn new(output: W) -> Self {
        Self { output, entries: 0 }
    }

    /// Adds the folder `path`, given without a leading slash, with the permissions `mode`.
    pub(crate) fn directory(&mut self, path: &str, mode: u32) -> io::Result<()> {
        self.entry(path, TYPE_DIRECTORY | mode, &[])
    }

    /// Adds a file.
    pub(crate) fn file(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        self.entry(path, TYPE_FILE | mode, content)
    }

    /// Ends the archive.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.entry(TRAILER, 0, &[])?;
        self.output.flush()
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) -> io::Result<()> {
        let too_large =
            |_| io::Error::new(io::ErrorKind::FileTooLarge, format!("{path} is over 4 GiB"));
        let size = u32::try_from(content.len()).map_err(too_large)?;
        let name_size = u32::try_from(path.len() + 1).map_err(too_large)?;
        self.entries += 1;
        let links = 1;
        // The fields are: inode number, mode, owner, group, links, time, size, device, device of a node, name length,
        // checksum.
        let fields = [
            self.entries,
            mode,
            0,
            0,
            links,
            0,
            size,
            0,
            0,
            0,
            0,
            name_size,
            0,
        ];

        let header = fields.iter().fold(String::from(MAGIC), |header, field| {
            format!("{header}{field:08X}")
        });
        let name = [path.as_bytes(), b"\0"].concat();
        self.output.write_all(header.as_bytes())?;
        self.output.write_all(&name)?;
        self.pad(header.len() + name.len())?;
        self.output.write_all(content)?;
        self.pad(content.len())
    }

    fn pad(&mut self, written: usize) -> io::Result<()> {
        let missing = written.next_multiple_of(4) - written;
        self.output.write_all(&[0; 3][..missing])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 110 digits and `etc` with its terminator make 114, padded to 116.
    #[test]
    fn header_and_content_are_padded_to_four() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);

        archive.file("etc", 0o644, b"hello").unwrap();

        assert_eq!(bytes.len(), 116 + 8);
        assert!(bytes.starts_with(b"07070100000001000081A4"));
        assert_eq!(&bytes[110..116], b"etc\0\0\0");
        assert_eq!(&bytes[116..], b"hello\0\0\0");
    }

    #[test]
    fn archive_ends_with_the_trailer() {
        let mut bytes = Vec::new();
        let mut archive = Archive::new(&mut bytes);

        archive.directory("bin", 0o755).unwrap();
        archive.finish().unwrap();

        assert!(bytes.len().is_multiple_of(4));
        assert!(String::from_utf8_lossy(&bytes).contains("TRAILER!!!"));
    }
}
