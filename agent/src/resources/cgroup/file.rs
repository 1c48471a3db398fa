//! Reading and writing one file of a group.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// A file of a group that could not be read, written or parsed.
#[derive(Debug, thiserror::Error)]
pub enum CgroupFileError {
    /// The file could not be read.
    #[error("read {path}")]
    Read {
        path: PathBuf,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The file could not be written.
    #[error("write {value:?} to {path}")]
    Write {
        path: PathBuf,
        value: String,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
    /// The file does not have the expected content.
    #[error("{path} reads {text:?}, which is not {expected}")]
    Format {
        path: PathBuf,
        /// The text in the file.
        text: String,
        expected: &'static str,
    },
}

impl CgroupFileError {
    /// Whether the group or its file is gone.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Read { source, .. } | Self::Write { source, .. } => {
                // An open file of a removed group reads ENODEV.
                source.kind() == io::ErrorKind::NotFound
                    || source.raw_os_error() == Some(libc::ENODEV)
            }
            Self::Format { .. } => false,
        }
    }
}

/// Size of the buffer for files of groups: the largest, `memory.stat`, has 1 to 2 KiB.
pub(crate) const READ_BYTES: usize = 4_096;

/// Most bytes that are read of one file: `cgroup.procs` of a task with all the processes that a node can have.
pub(crate) const READ_BYTES_MAX: u64 = 64 << 20;

/// Reads the whole of `dir/name`. The size is not queried first, because files of groups report none.
pub(crate) fn read(dir: &Path, name: &str) -> Result<String, CgroupFileError> {
    let path = dir.join(name);
    let text = File::open(&path).and_then(|file| {
        let mut text = String::with_capacity(READ_BYTES);
        file.take(READ_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    });
    text.map_err(|source| CgroupFileError::Read { path, source })
}

/// Like [`read`]; `None` if there is no such file.
pub(crate) fn read_if_any(dir: &Path, name: &str) -> Result<Option<String>, CgroupFileError> {
    match read(dir, name) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Writes `value` to `dir/name` in one call.
pub(crate) fn write(dir: &Path, name: &str, value: &str) -> Result<(), CgroupFileError> {
    let path = dir.join(name);
    let wrote = OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| io::Write::write_all(&mut file, value.as_bytes()));
    wrote.map_err(|source| CgroupFileError::Write {
        path,
        value: value.into(),
        source,
    })
}

/// Reads a number, where `max` and `-1` mean that there is no limit.
pub(crate) fn limit(dir: &Path, name: &str) -> Result<Option<u64>, CgroupFileError> {
    let text = read(dir, name)?;
    parse_limit(&text).ok_or_else(|| CgroupFileError::Format {
        path: dir.join(name),
        text,
        expected: "a number or max",
    })
}

/// Parses the content of a [`limit`] file; `None` if the text is invalid.
#[expect(
    clippy::option_option,
    reason = "no limit, and no text that could be one, are two things"
)]
pub(crate) fn parse_limit(text: &str) -> Option<Option<u64>> {
    match text.trim() {
        "max" | "-1" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

/// Reads a number.
pub(crate) fn number(dir: &Path, name: &str) -> Result<u64, CgroupFileError> {
    let text = read(dir, name)?;
    parse_number(&text).ok_or_else(|| CgroupFileError::Format {
        path: dir.join(name),
        text,
        expected: "a number",
    })
}

/// Parses `text` as one number.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// The value of `key` in a file of lines `key value`.
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines
        .find(|(name, _)| *name == key)
        .and_then(|(_, value)| value.trim().parse().ok())
}

/// The values of several keys in a file of lines `key value`, read in one pass.
pub(crate) fn keyed_all<const N: usize>(text: &str, keys: [&str; N]) -> [Option<u64>; N] {
    let mut values = [None; N];
    for (name, value) in text.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(place) = keys.iter().position(|key| *key == name) {
            values[place] = value.trim().parse().ok();
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::{keyed, keyed_all};

    #[test]
    fn several_keys_are_found_in_one_pass() {
        let text = "low 1\nhigh 2\noom 3\noom_kill 4\n";

        let found = keyed_all(text, ["oom_kill", "max", "low"]);

        assert_eq!(found, [Some(4), None, Some(1)]);
    }

    #[test]
    fn keyed_value_is_found_by_its_whole_key() {
        let text = "low 1\nhigh 2\noom 3\noom_kill 4\n";

        assert_eq!(keyed(text, "oom_kill"), Some(4));
        assert_eq!(keyed(text, "oom"), Some(3));
        assert_eq!(keyed(text, "kill"), None);
    }
}
