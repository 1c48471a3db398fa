//! What plugins print: log lines into ours, and everything else at the level of debugging.
//!
//! Plugins in Go log JSON objects whose own fields begin with `@`. A line that is none is passed on
//! as it is.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};
use tracing::{debug, error, info, trace, warn};

use crate::limits::{LOG_FILE_BYTES_MAX, LOG_LINE_BYTES_MAX, LOG_LOOK_INTERVAL, LOG_READ_BYTES};

/// How loud a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// A log line, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct Entry {
    level: Level,
    module: String,
    message: String,
    /// The rest, as `key=value`.
    fields: String,
}

impl Entry {
    fn parse(line: &str) -> Self {
        let plain = || Self {
            level: Level::Debug,
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
            Some("trace") => Level::Trace,
            Some("info") => Level::Info,
            Some("warn") => Level::Warn,
            Some("error") => Level::Error,
            Some(_) | None => Level::Debug,
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
            Level::Trace => trace!(driver, module, fields, "{message}"),
            Level::Debug => debug!(driver, module, fields, "{message}"),
            Level::Info => info!(driver, module, fields, "{message}"),
            Level::Warn => warn!(driver, module, fields, "{message}"),
            Level::Error => error!(driver, module, fields, "{message}"),
        }
    }
}

fn text(object: &mut Map<String, Value>, name: &str) -> Option<String> {
    match object.remove(name)? {
        Value::String(text) => Some(text),
        other => Some(other.to_string()),
    }
}

/// Cuts bytes into lines and logs each.
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

    /// Takes the next bytes. A line beyond the bound is logged in parts.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
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
            Entry::parse(line).log(&self.driver);
        }
        self.partial.clear();
    }
}

/// Follows the log file of a plugin.
#[derive(Debug)]
pub struct FollowLog {
    path: PathBuf,
    offset: u64,
    lines: Lines,
}

impl FollowLog {
    /// Follows what is added to `path` from now on, as words of `driver`.
    pub fn new(driver: &str, path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            offset: std::fs::metadata(path).map_or(0, |meta| meta.len()),
            lines: Lines::new(driver),
        }
    }

    /// Runs until it is dropped. The file is emptied when it is large and was read to its end.
    pub async fn run(mut self) {
        loop {
            // A file that cannot be read now may be there later.
            if let Err(error) = self.look() {
                debug!(path = %self.path.display(), %error, "the log of a plugin cannot be read");
            }
            tokio::time::sleep(LOG_LOOK_INTERVAL).await;
        }
    }

    fn look(&mut self) -> io::Result<()> {
        let length = std::fs::metadata(&self.path)?.len();
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
            self.lines.take(&part[..count]);
            self.offset += u64::try_from(count).unwrap_or(u64::MAX);
        }
        if self.offset > LOG_FILE_BYTES_MAX {
            // Plugins append, so that they go on at the new end.
            OpenOptions::new()
                .write(true)
                .open(&self.path)?
                .set_len(0)?;
            self.offset = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structured_line_is_taken_apart() {
        let line = r#"{"@level":"warn","@message":"pull is slow","@module":"docker.puller","@timestamp":"2026-01-01T00:00:00Z","image":"redis:7","seconds":12}"#;

        let entry = Entry::parse(line);

        assert_eq!(entry.level, Level::Warn);
        assert_eq!(entry.module, "docker.puller");
        assert_eq!(entry.message, "pull is slow");
        assert_eq!(entry.fields, "image=redis:7 seconds=12");
    }

    #[test]
    fn any_other_line_is_passed_on() {
        for line in ["panic: runtime error", "{\"a\":1}", "{broken"] {
            let entry = Entry::parse(line);

            assert_eq!(entry.level, Level::Debug);
            assert_eq!(entry.message, line);
        }
    }

    #[test]
    fn followed_file_is_read_once_and_emptied_when_large() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.log");
        std::fs::write(&path, "old\n").unwrap();
        let mut follow = FollowLog::new("x", &path);
        let append = |text: &[u8]| {
            let mut file = OpenOptions::new().append(true).open(&path).unwrap();
            io::Write::write_all(&mut file, text).unwrap();
        };

        append(b"new, and half a li");
        follow.look().unwrap();
        assert_eq!(follow.lines.partial, b"new, and half a li");
        append(&vec![b'x'; usize::try_from(LOG_FILE_BYTES_MAX).unwrap()]);
        follow.look().unwrap();

        assert!(follow.lines.partial.len() <= LOG_LINE_BYTES_MAX);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(follow.offset, 0);
    }
}
