//! The output of plugins. Log lines go into our log at their level; all other output is logged at debug level.
//!
//! Plugins in Go log JSON objects whose own fields begin with `@`. Any other line is forwarded unchanged.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tracing::{debug, error, info, trace, warn};

use crate::limits::{
    LOG_BACKLOG_BYTES_MAX, LOG_FILE_BYTES_MAX, LOG_LINE_BYTES_MAX, LOG_POLL_INTERVAL,
    LOG_READ_BYTES,
};

/// The level of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// A parsed log line.
#[derive(Debug, PartialEq, Eq)]
struct LogLine {
    level: LogLevel,
    module: String,
    message: String,
    /// The other fields, as `key=value`.
    fields: String,
}

impl LogLine {
    fn parse(line: &str) -> Self {
        let plain = || Self {
            level: LogLevel::Debug,
            module: String::new(),
            message: line.to_owned(),
            fields: String::new(),
        };
        let Ok(Value::Object(mut object)) = serde_json::from_str::<Value>(line) else {
            return plain();
        };
        let Some(message) = text(&mut object, "@message") else {
            return plain();
        };
        let level = match text(&mut object, "@level").as_deref() {
            Some("trace") => LogLevel::Trace,
            Some("info") => LogLevel::Info,
            Some("warn") => LogLevel::Warn,
            Some("error") => LogLevel::Error,
            Some(_) | None => LogLevel::Debug,
        };
        let module = text(&mut object, "@module").unwrap_or_default();
        object.remove("@timestamp");
        let mut fields = String::new();
        for (name, value) in object {
            let gap = if fields.is_empty() { "" } else { " " };
            // Writing to a string does not fail.
            let _written = match value {
                Value::String(text) => write!(fields, "{gap}{name}={text}"),
                value => write!(fields, "{gap}{name}={value}"),
            };
        }
        Self {
            level,
            module,
            message,
            fields,
        }
    }

    fn log(self, driver: &str) {
        let Self {
            level,
            module,
            message,
            fields,
        } = self;
        match level {
            LogLevel::Trace => trace!(driver, module, fields, "{message}"),
            LogLevel::Debug => debug!(driver, module, fields, "{message}"),
            LogLevel::Info => info!(driver, module, fields, "{message}"),
            LogLevel::Warn => warn!(driver, module, fields, "{message}"),
            LogLevel::Error => error!(driver, module, fields, "{message}"),
        }
    }
}

fn text(object: &mut Map<String, Value>, name: &str) -> Option<String> {
    match object.remove(name)? {
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// Splits bytes into lines and logs each line.
#[derive(Debug)]
pub(crate) struct Lines {
    driver: String,
    partial: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(driver: &str) -> Self {
        Self {
            driver: driver.to_owned(),
            partial: Vec::new(),
        }
    }

    /// Appends the next bytes. A line beyond the bound is logged in parts.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' || self.partial.len() >= LOG_LINE_BYTES_MAX {
                self.flush();
            }
            if *byte != b'\n' {
                self.partial.push(*byte);
            }
        }
    }

    fn flush(&mut self) {
        let line = String::from_utf8_lossy(&self.partial);
        let line = line.trim();
        if !line.is_empty() {
            LogLine::parse(line).log(&self.driver);
        }
        self.partial.clear();
    }
}

/// Follows the log file of a plugin.
///
/// A file next to the log stores the read position. A restarted host continues after the last whole line that its
/// predecessor forwarded. It forwards the lines that the plugin wrote in between, and no line twice. A host empties a
/// large log file; without a host, the file grows with the plugin's output.
#[derive(Debug)]
pub struct FollowLog {
    path: PathBuf,
    offset: u64,
    /// The position that is stored in the note file.
    stored_position: Option<u64>,
    lines: Lines,
}

impl FollowLog {
    /// Follows `path` from the stored position. Without a stored position, the follower starts at the end of the file.
    /// If more than [`LOG_BACKLOG_BYTES_MAX`] is unread, only the last part of that size is forwarded. A follower that
    /// is created before the plugin starts misses none of its lines.
    pub fn new(path: &Path) -> Self {
        let length = std::fs::metadata(path).map_or(0, |meta| meta.len());
        let stored_position = read_stored_position(path);
        // A file that is shorter than the stored position was emptied.
        let known = stored_position.map_or(
            length,
            |position| if position > length { 0 } else { position },
        );
        let offset = known.max(length.saturating_sub(LOG_BACKLOG_BYTES_MAX));
        if offset > known {
            warn!(path = %path.display(), bytes = offset - known,
                "a plugin logged more while no agent ran than fits: the rest is left out");
        }
        Self {
            path: path.to_owned(),
            offset,
            stored_position,
            lines: Lines::new(""),
        }
    }

    /// Forwards the lines to the log under the name `driver`, until the future is dropped. The file is emptied when it
    /// is large and was read to its end.
    pub async fn run(mut self, driver: &str) {
        loop {
            self.forward_lines(driver);
            tokio::time::sleep(LOG_POLL_INTERVAL).await;
        }
    }

    /// Forwards the new lines of the file.
    pub fn forward_lines(&mut self, driver: &str) {
        driver.clone_into(&mut self.lines.driver);
        // A file that cannot be read now may be readable later.
        if let Err(error) = self.read_new_lines().and_then(|()| self.store_position()) {
            debug!(path = %self.path.display(), %error, "the log of a plugin cannot be read");
        }
    }

    fn read_new_lines(&mut self) -> io::Result<()> {
        let length = match std::fs::metadata(&self.path) {
            Ok(meta) => meta.len(),
            // The plugin has written nothing yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        if length < self.offset {
            self.offset = 0;
        }
        if length == self.offset {
            return Ok(());
        }
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut part = vec![0; LOG_READ_BYTES];
        loop {
            let count = file.read(&mut part)?;
            if count == 0 {
                break;
            }
            self.lines.append(&part[..count]);
            self.offset += count as u64;
        }
        if self.offset > LOG_FILE_BYTES_MAX {
            // Plugins open the log for appending, so they continue at the new end.
            OpenOptions::new()
                .write(true)
                .open(&self.path)?
                .set_len(0)?;
            self.offset = 0;
        }
        Ok(())
    }

    /// Stores the position up to which lines were forwarded.
    fn store_position(&mut self) -> io::Result<()> {
        let partial = self.lines.partial.len() as u64;
        // An emptied file begins with the rest of a partial line.
        let forwarded = self.offset.saturating_sub(partial);
        if self.stored_position != Some(forwarded) {
            let mut note = OpenOptions::new()
                .mode(0o600)
                .write(true)
                .create(true)
                .truncate(true)
                .open(position_file(&self.path))?;
            note.write_all(forwarded.to_string().as_bytes())?;
            self.stored_position = Some(forwarded);
        }
        Ok(())
    }
}

/// Returns the path of the note file, which stores the read position of the log at `path`.
fn position_file(path: &Path) -> PathBuf {
    let mut note = path.as_os_str().to_owned();
    note.push(".read");
    note.into()
}

/// Returns the stored read position of the log at `path`; `None` if there is none.
fn read_stored_position(path: &Path) -> Option<u64> {
    /// More digits than any file length has.
    const DIGITS_MAX: u64 = 32;
    let mut text = String::new();
    let note = File::open(position_file(path)).ok()?;
    note.take(DIGITS_MAX).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_line_is_taken_apart() {
        let line = r#"{"@level":"warn","@message":"pull is slow","@module":"docker.puller","@timestamp":"2026-01-01T00:00:00Z","image":"redis:7","seconds":12}"#;

        let entry = LogLine::parse(line);

        assert_eq!(entry.level, LogLevel::Warn);
        assert_eq!(entry.module, "docker.puller");
        assert_eq!(entry.message, "pull is slow");
        assert_eq!(entry.fields, "image=redis:7 seconds=12");
    }

    #[test]
    fn any_other_line_is_passed_on() {
        for line in ["panic: runtime error", "{\"a\":1}", "{broken"] {
            let entry = LogLine::parse(line);

            assert_eq!(entry.level, LogLevel::Debug);
            assert_eq!(entry.message, line);
        }
    }

    #[test]
    fn followed_log_is_read_once_then_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "old\n").unwrap();
        let mut follow = FollowLog::new(&path);
        let append = |text: &[u8]| {
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            io::Write::write_all(&mut file, text).unwrap();
        };

        append(b"new, and half a li");
        follow.read_new_lines().unwrap();
        assert_eq!(follow.lines.partial, b"new, and half a li");
        append(&vec![b'x'; usize::try_from(LOG_FILE_BYTES_MAX).unwrap()]);
        follow.read_new_lines().unwrap();

        assert!(follow.lines.partial.len() <= LOG_LINE_BYTES_MAX);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(follow.offset, 0);
    }

    /// The next follower reads output that a plugin wrote without a follower, from the first incomplete line on.
    #[test]
    fn next_follower_resumes_after_last_full_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        let mut first = FollowLog::new(&path);
        std::fs::write(&path, "told\nhalf").unwrap();

        first.forward_lines("x");
        std::fs::write(&path, "told\nhalf of it\nmore").unwrap();
        let mut next = FollowLog::new(&path);
        let began = next.offset;
        next.forward_lines("x");

        assert_eq!(began, 5);
        assert_eq!(next.lines.partial, b"more");
    }

    #[test]
    fn log_backlog_is_limited_to_newest_part() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        FollowLog::new(&path).forward_lines("x");
        let written = LOG_BACKLOG_BYTES_MAX + 100;
        let file = File::create(&path).unwrap();
        file.set_len(written).unwrap();

        let behind = FollowLog::new(&path).offset;
        std::fs::write(position_file(&path), "no number").unwrap();
        let unknown = FollowLog::new(&path).offset;
        std::fs::write(position_file(&path), (written + 1).to_string()).unwrap();
        file.set_len(7).unwrap();
        let emptied = FollowLog::new(&path).offset;

        assert_eq!((behind, unknown, emptied), (100, written, 0));
    }
}
