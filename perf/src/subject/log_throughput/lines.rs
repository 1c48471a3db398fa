//! Numbered lines: the writer writes them, and the files must contain them.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, ensure};

use super::load::WriterLoad;

/// The directory of the logs, beside that of the FIFOs.
pub(super) const LOGS: &str = "logs";

/// Bytes of a line, including its end.
pub(super) const LINE_BYTES: u64 = WIDTH as u64 + 1;
/// Bytes of a line without its end.
const WIDTH: usize = 127;

/// Bytes of a file that are scanned at once: a multiple of whole lines.
const SCAN_BYTES: u64 = 8192 * LINE_BYTES;

/// Returns the name of a FIFO and of its log.
pub(super) fn stream_name(number: u64) -> String {
    format!("t{number}.stdout")
}

/// Appends the line `number`: the number, then blanks up to the end.
pub(super) fn append(buffer: &mut Vec<u8>, number: u64) {
    use std::io::Write as _;
    let begun = buffer.len();
    write!(buffer, "{number}").expect("a vector takes everything");
    buffer.resize(begun + WIDTH, b' ');
    buffer.push(b'\n');
}

/// Returns the number of lines that are missing or misplaced in the files below `logs`. Rotation may have removed the
/// first lines of a stream. The last line must be there.
pub(super) fn count_lost_lines(logs: &Path, load: WriterLoad) -> anyhow::Result<u64> {
    let mut files = vec![Vec::new(); usize::try_from(load.fifos)?];
    for entry in fs::read_dir(logs)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str())
            .context("a log has a name")?;
        // The name is `t<stream>.stdout.<N>`. Other files in the directory hold the loop's state of its log files.
        let parts = name
            .strip_prefix('t')
            .and_then(|name| name.split_once(".stdout."));
        if let Some((stream, index)) = parts
            && let (Ok(stream), Ok(index)) = (stream.parse::<usize>(), index.parse::<u64>())
        {
            files
                .get_mut(stream)
                .context("no such stream")?
                .push((index, path));
        }
    }
    let mut lost = 0;
    for mut stream in files {
        stream.sort();
        let mut next = None;
        for (_, path) in stream {
            lost += scan_file(&path, &mut next)?;
        }
        lost += load.lines.abs_diff(next.unwrap_or(0));
    }
    Ok(lost)
}

/// Scans a file, which may contain all lines of a stream.
fn scan_file(path: &Path, next: &mut Option<u64>) -> anyhow::Result<u64> {
    let mut file = fs::File::open(path)?;
    let mut lost = 0;
    let mut part = Vec::new();
    while (&mut file).take(SCAN_BYTES).read_to_end(&mut part)? > 0 {
        lost += scan(&part, next)?;
        part.clear();
    }
    Ok(lost)
}

/// Scans lines from the line after `next` on, and counts the skipped lines.
fn scan(bytes: &[u8], next: &mut Option<u64>) -> anyhow::Result<u64> {
    let mut lost = 0;
    for line in bytes.chunks(WIDTH + 1) {
        let text = std::str::from_utf8(line)?;
        ensure!(
            text.len() == WIDTH + 1 && text.ends_with('\n'),
            "a line is torn: {text:?}"
        );
        let number: u64 = text
            .trim()
            .parse()
            .with_context(|| format!("a line is {text:?}"))?;
        lost += next.map_or(0, |next| number.abs_diff(next));
        *next = Some(number + 1);
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_line_is_counted() {
        let mut buffer = Vec::new();
        for number in [5, 6, 8] {
            append(&mut buffer, number);
        }
        let mut next = None;

        let lost = scan(&buffer, &mut next).unwrap();

        assert_eq!((lost, next), (1, Some(9)));
        assert!(scan(&buffer[1..], &mut None).is_err());
    }
}
