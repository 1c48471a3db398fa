//! Messages of the driver to the porter: the program that writes and reads files in a task, as the task.
//!
//! The driver is root, and a task controls the content of its directories. So the driver neither creates nor opens any
//! file of a transfer: `../porter` does. The porter is a static program of a few KiB, which is started next to the
//! task's first process like a program of a `run` action. The porter can do nothing that the task could not do itself,
//! and its usage counts for the task. The task can tamper with the porter's reports, so the driver does not trust
//! them.

use std::fmt;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use crate::init::sealed;

/// The program that `build.rs` builds.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/muster-porter"));
/// The name that `ps` shows.
pub(crate) const NAME: &std::ffi::CStr = c"muster-porter";
/// The longest name that the porter and the kernel accept, with its zero byte.
const NAME_BYTES_MAX: usize = 4_096;
/// The longest part of a name that file systems accept.
const PART_BYTES_MAX: usize = 255;
/// Bytes of the porter's report: the operation, an error number, a name.
pub(crate) const REPORT_BYTES_MAX: usize = 8 + NAME_BYTES_MAX;
/// The mode bits that files can get: neither set-id bits nor the sticky bit.
const MODE_BITS: u32 = 0o777;
/// The permissions that the owner of a directory always has. Without them, nothing could be created in the directory.
const DIRECTORY_MODE: u32 = 0o700;

/// Returns a sealed file that holds the program.
pub(crate) fn sealed_file() -> io::Result<OwnedFd> {
    sealed(NAME, PROGRAM)
}

/// The direction of a transfer. Its name is the porter's first argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// From the porter's standard input to a directory of the task.
    In,
    /// From a file of the task to the porter's standard output.
    Out,
}

muster_domain::text_enum!(pub(crate) Direction {
    In => "in",
    Out => "out",
});

/// A normalized relative name beneath a directory, without `..`. An empty name is the directory itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    /// Parses a name; returns `None` if the name is invalid or leaves the directory.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.starts_with(b"/") || bytes.contains(&0) {
            return None;
        }
        let mut plain = Vec::new();
        for part in bytes.split(|byte| *byte == b'/') {
            match part {
                b"" | b"." => {}
                b".." => return None,
                part if part.len() > PART_BYTES_MAX => return None,
                part => {
                    if !plain.is_empty() {
                        plain.push(b'/');
                    }
                    plain.extend_from_slice(part);
                }
            }
        }
        (plain.len() < NAME_BYTES_MAX).then_some(Self(plain))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a symbolic link with this name and the target `target` stays beneath the directory. The target
    /// must be relative, may have `..` only at its beginning, and must not go above the directory. No part of a name
    /// is ever reached through a link, so the target keeps this meaning.
    pub(crate) fn may_link_to(&self, target: &[u8]) -> bool {
        let fits = !target.is_empty() && target.len() < NAME_BYTES_MAX && !target.contains(&0);
        if !fits || target.starts_with(b"/") {
            return false;
        }
        let depth = self.0.split(|byte| *byte == b'/').count() - 1;
        let mut parts = target
            .split(|byte| *byte == b'/')
            .filter(|part| !matches!(*part, b"" | b"."));
        let up = parts.clone().take_while(|part| *part == b"..").count();
        up <= depth && !parts.by_ref().skip(up).any(|part| part == b"..")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.0))
    }
}

/// Writes messages for the porter.
#[derive(Debug)]
pub(crate) struct Packer<W> {
    to: W,
}

impl<W: Write> Packer<W> {
    pub(crate) fn new(to: W) -> Self {
        Self { to }
    }

    pub(crate) fn directory(&mut self, name: &Name, mode: u32) -> io::Result<()> {
        self.message(b'd', name, &[], mode | DIRECTORY_MODE, 0)
    }

    /// Writes the head of a file. Exactly `size` bytes must follow with [`Self::data`].
    pub(crate) fn file(&mut self, name: &Name, mode: u32, size: u64) -> io::Result<()> {
        self.message(b'f', name, &[], mode, size)
    }

    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)
    }

    pub(crate) fn symbolic(&mut self, name: &Name, target: &[u8]) -> io::Result<()> {
        self.message(b'l', name, target, 0, 0)
    }

    pub(crate) fn hard(&mut self, name: &Name, target: &Name) -> io::Result<()> {
        self.message(b'h', name, &target.0, 0, 0)
    }

    pub(crate) fn end(mut self) -> io::Result<()> {
        self.message(b'e', &Name(Vec::new()), &[], 0, 0)?;
        self.to.flush()
    }

    fn message(
        &mut self,
        kind: u8,
        name: &Name,
        link: &[u8],
        mode: u32,
        size: u64,
    ) -> io::Result<()> {
        let mut message = vec![kind, 0];
        for text in [name.0.as_slice(), link] {
            let bytes = if text.is_empty() { 0 } else { text.len() + 1 };
            let bytes = u16::try_from(bytes).map_err(io::Error::other)?;
            message.extend(bytes.to_le_bytes());
        }
        message.extend([0; 2]);
        message.extend((mode & MODE_BITS).to_le_bytes());
        message.extend([0; 4]);
        message.extend(size.to_le_bytes());
        for text in [name.0.as_slice(), link] {
            if !text.is_empty() {
                message.extend(text);
                message.push(0);
            }
        }
        self.to.write_all(&message)
    }
}

/// Returns the text of a porter's report; `None` if the report is invalid.
pub(crate) fn report(bytes: &[u8]) -> Option<String> {
    let (head, name) = bytes.split_at_checked(8)?;
    let number = i32::from_le_bytes(head[4..].try_into().ok()?);
    let name = String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_MAX)]).into_owned();
    let act = match head[0] {
        b'd' => "make the directory",
        b'f' => "make the file",
        b'h' => "make the hard link",
        b'l' => "make the link",
        b'o' if number == libc::EINVAL => return Some(format!("{name:?} is not a regular file")),
        b'o' => "open",
        b's' => "read",
        b'w' => "write the file",
        _ => return None,
    };
    let why = match number {
        libc::ELOOP | libc::EXDEV => "a link is in the way, which is not followed here".to_owned(),
        number => io::Error::from_raw_os_error(number).to_string(),
    };
    Some(format!("{act} {name:?}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_small_and_static() {
        assert!(PROGRAM.len() < 100 << 10, "{} bytes", PROGRAM.len());
        assert_eq!(&PROGRAM[..4], b"\x7fELF");
        let interpreter = b"/lib64/ld-linux";
        assert!(!PROGRAM.windows(interpreter.len()).any(|w| w == interpreter));
    }

    #[test]
    fn names_stay_beneath_their_directory() {
        let table = [
            ("a/b", Some("a/b")),
            ("./a//b/./", Some("a/b")),
            ("./", Some("")),
            ("..a/b..", Some("..a/b..")),
            ("/a", None),
            ("..", None),
            ("a/../b", None),
            ("a/..", None),
            ("a\0b", None),
        ];
        for (given, plain) in table {
            let read = Name::read(given.as_bytes());
            assert_eq!(
                read,
                plain.map(|name| Name(name.as_bytes().to_vec())),
                "{given}"
            );
        }
        assert!(Name::read(&[b'x'; PART_BYTES_MAX]).is_some());
        assert!(Name::read(&[b'x'; PART_BYTES_MAX + 1]).is_none());
        assert!(Name::read("x/".repeat(NAME_BYTES_MAX).as_bytes()).is_none());
    }

    #[test]
    fn links_stay_beneath_their_directory() {
        let may = |name: &str, target: &str| {
            let name = Name::read(name.as_bytes()).unwrap();
            name.may_link_to(target.as_bytes())
        };
        for (name, target) in [
            ("a", "b"),
            ("a", "b/c"),
            ("a/b", "../c"),
            ("a/b/c", "./../..//d"),
            ("a", "."),
        ] {
            assert!(may(name, target), "{name} -> {target}");
        }
        for (name, target) in [
            ("a", "/etc"),
            ("a", ".."),
            ("a", "../b"),
            ("a/b", "../../c"),
            // The target of `b` may be a link itself.
            ("a", "b/.."),
            ("a/b", "c/../d"),
            ("a", ""),
            ("a", "b\0"),
        ] {
            assert!(!may(name, target), "{name} -> {target}");
        }
    }

    #[test]
    fn files_are_never_set_id() {
        let mut bytes = Vec::new();
        let name = Name::read(b"a").unwrap();

        Packer::new(&mut bytes).file(&name, 0o106_755, 3).unwrap();

        assert_eq!(&bytes[8..12], &0o755_u32.to_le_bytes());
        assert_eq!(&bytes[24..], b"a\0");
    }

    #[test]
    fn invalid_reports_are_ignored() {
        for bytes in [&b""[..], b"f\0\0\0", b"\xff\0\0\0\x01\0\0\0x"] {
            assert_eq!(report(bytes), None);
        }
        let message = report(b"f\0\0\0\x0d\0\0\0a/\xffb").unwrap();
        assert_eq!(
            message,
            "make the file \"a/\u{fffd}b\": Permission denied (os error 13)"
        );
    }
}
