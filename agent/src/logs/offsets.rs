//! The small file of a stream that holds the offset at which each of its log files begins.
//!
//! `.<name>.offsets` has a line `<index> <offset>` for each log file. It is replaced atomically *before* a log file
//! is made. So each visible log file has its line, whenever the writer was killed. Without the file, offsets would
//! be unknown once the first log file is rotated away.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Read as _, Write as _};

use rustix::fs::OFlags;

use crate::logs::dir::LogDir;
use crate::logs::limits::OFFSETS_BYTES_MAX;

/// Index of a log file → offset of its first byte.
pub(crate) type Offsets = BTreeMap<u64, u64>;

fn file_name(name: &str) -> String {
    format!(".{name}.offsets")
}

/// Reads the offsets of `name`; `None` without a file or with an invalid one.
pub(crate) fn load(dir: &LogDir, name: &str) -> io::Result<Option<Offsets>> {
    let file = match dir.open_file(&file_name(name), OFlags::RDONLY) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut text = Vec::new();
    file.take(OFFSETS_BYTES_MAX).read_to_end(&mut text)?;
    Ok(std::str::from_utf8(&text).ok().and_then(parse))
}

/// Replaces the offsets of `name`.
pub(crate) fn store(dir: &LogDir, name: &str, offsets: &Offsets) -> io::Result<()> {
    let next = format!(".{name}.offsets.next");
    let mut file = dir.open_file(&next, OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC)?;
    file.write_all(render(offsets).as_bytes())?;
    dir.rename(&next, &file_name(name))
}

fn render(offsets: &Offsets) -> String {
    offsets
        .iter()
        .fold(String::new(), |mut text, (index, offset)| {
            // Writing to a String does not fail.
            let _ok = writeln!(text, "{index} {offset}");
            text
        })
}

fn parse(text: &str) -> Option<Offsets> {
    let pair = |line: &str| {
        let (index, offset) = line.split_once(' ')?;
        Some((index.parse().ok()?, offset.parse().ok()?))
    };
    let offsets: Offsets = text.lines().map(pair).collect::<Option<_>>()?;
    let ascending = offsets.values().is_sorted();
    (ascending && !offsets.is_empty()).then_some(offsets)
}

/// Adds the missing offsets of `files` (index and length, ascending).
///
/// A file without a line begins at the end of the previous file, including the bytes that were `dropped` in that
/// one. If the first file has no line either, all earlier files are assumed to have had its length. Rotation
/// produces exactly that for a stream whose limits never changed.
pub(crate) fn complete(
    known: &Offsets,
    files: &[(u64, u64)],
    dropped: impl Fn(u64) -> u64,
) -> Offsets {
    let mut offsets = Offsets::new();
    let mut before: Option<(u64, u64)> = None;
    for &(index, bytes) in files {
        let guess = || match before {
            Some((before, end)) => end.saturating_add(dropped(before)),
            None => index.saturating_mul(bytes),
        };
        let offset = known.get(&index).copied().unwrap_or_else(guess);
        offsets.insert(index, offset);
        before = Some((index, offset.saturating_add(bytes)));
    }
    offsets
}

#[cfg(test)]
mod tests {
    use super::{Offsets, complete, parse, render};

    #[test]
    fn written_offsets_are_read_back() {
        let offsets = Offsets::from([(3, 0), (4, 10), (5, u64::MAX)]);

        assert_eq!(parse(&render(&offsets)), Some(offsets));
    }

    #[test]
    fn damaged_offsets_count_as_missing() {
        for text in [
            "",
            "1",
            "1 x",
            "x 1",
            "1 2 3",
            "1 20\n2 10\n",
            "1 2\n\n3 4\n",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    /// Files 2 and 3 hold 10 and 4 bytes; without any line, 0 and 1 are taken to have held 10.
    #[test]
    fn missing_offsets_follow_from_lengths() {
        let files = [(2, 10), (3, 4)];

        let none = |_| 0;
        assert_eq!(
            complete(&Offsets::new(), &files, none),
            Offsets::from([(2, 20), (3, 30)])
        );
        assert_eq!(
            complete(&Offsets::from([(2, 7)]), &files, none),
            Offsets::from([(2, 7), (3, 17)])
        );
        let gap = Offsets::from([(2, 7), (3, 99)]);
        assert_eq!(complete(&gap, &files, |_| 1_000), gap);
        let five = |index: u64| if index == 2 { 5 } else { 0 };
        assert_eq!(
            complete(&Offsets::from([(2, 7)]), &files, five),
            Offsets::from([(2, 7), (3, 22)])
        );
    }
}
