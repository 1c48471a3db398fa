//! Open files of a task's groups, so that a repeated read is one system call and needs no path.
//!
//! A file is opened at its first use. A missing file is not looked for again, because a kernel never adds one while the
//! group lives. The kernel keeps some 5 KiB for each open file (a file, and the page that it was printed into). So the
//! number of open files is limited ([`OpenFileBudget`]). A file beyond the limit is opened for each read. The files are
//! closed with the task. Files that only a complete reading needs are closed when there was none for a while.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use muster_domain::number;
use rustix::process::{Resource, getrlimit};

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError, READ_BYTES, READ_BYTES_MAX};
use crate::resources::cgroup::limits::{OPEN_FILES_DIVISOR, OPEN_FILES_IDLE_MAX, OPEN_FILES_MAX};

/// The limit on descriptors belongs to the process, so the budget is shared by all tasks.
static BUDGET: LazyLock<OpenFileBudget> = LazyLock::new(|| {
    let descriptors = getrlimit(Resource::Nofile).current;
    let budget = descriptors.map_or(OPEN_FILES_MAX, |descriptors| {
        number::index(descriptors / OPEN_FILES_DIVISOR).min(OPEN_FILES_MAX)
    });
    OpenFileBudget::new(budget)
});

/// The number of files that may stay open.
#[derive(Debug)]
struct OpenFileBudget {
    held: AtomicUsize,
    max: usize,
}

impl OpenFileBudget {
    const fn new(max: usize) -> Self {
        Self {
            held: AtomicUsize::new(0),
            max,
        }
    }

    fn take(&'static self) -> Option<FileSlot> {
        let more = |held| (held < self.max).then_some(held + 1);
        let taken = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        taken.ok().map(|_| FileSlot(self))
    }
}

/// The right to keep one file open.
#[derive(Debug)]
struct FileSlot(&'static OpenFileBudget);

impl Drop for FileSlot {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The task's group to which a file belongs: its own in the v2 hierarchy, or a controller's in v1.
pub(crate) type GroupHierarchy = Option<Controller>;

#[derive(Debug)]
struct CachedFile {
    at: GroupHierarchy,
    name: &'static str,
    /// The open file; `None` if the file does not exist.
    file: Option<(File, FileSlot)>,
}

/// The files of one task.
#[derive(Debug)]
pub(crate) struct CgroupFileCache {
    held: Mutex<OpenFiles>,
    budget: &'static LazyLock<OpenFileBudget>,
}

#[derive(Debug, Default)]
struct OpenFiles {
    files: Vec<CachedFile>,
    /// The time of the last complete reading.
    last_reading: Option<Instant>,
}

impl CgroupFileCache {
    /// Creates an empty cache, because not every task lives until its first reading.
    pub(crate) fn new() -> Self {
        Self {
            held: Mutex::default(),
            budget: &BUDGET,
        }
    }

    /// Returns a reader of the task's files, in the directories that `dir` returns. Another reader waits.
    pub(crate) fn reader<D: Fn(GroupHierarchy) -> PathBuf>(
        &self,
        dir: D,
    ) -> CgroupFileReader<'_, D> {
        CgroupFileReader {
            held: self.locked(),
            budget: self.budget,
            dir,
            text: Vec::new(),
        }
    }

    /// Records a complete reading.
    pub(crate) fn record_reading(&self, now: Instant) {
        self.locked().last_reading = Some(now);
    }

    /// Closes all files except those in `names` if there was no complete reading for [`OPEN_FILES_IDLE_MAX`].
    pub(crate) fn close_unused(&self, names: &[&str], now: Instant) {
        let mut held = self.locked();
        if held.last_reading.is_some_and(|last_reading| {
            now.saturating_duration_since(last_reading) >= OPEN_FILES_IDLE_MAX
        }) {
            held.last_reading = None;
            held.files.retain(|file| names.contains(&file.name));
            held.files.shrink_to_fit();
        }
    }

    fn locked(&self) -> MutexGuard<'_, OpenFiles> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads files of one task into one buffer.
pub(crate) struct CgroupFileReader<'a, D> {
    held: MutexGuard<'a, OpenFiles>,
    budget: &'static LazyLock<OpenFileBudget>,
    dir: D,
    text: Vec<u8>,
}

impl<D: Fn(GroupHierarchy) -> PathBuf> CgroupFileReader<'_, D> {
    /// Reads the whole of a file.
    pub(crate) fn read(
        &mut self,
        at: GroupHierarchy,
        name: &'static str,
    ) -> Result<&str, CgroupFileError> {
        if self.fill(at, name)? {
            return self.text(at, name);
        }
        Err(self.failed(at, name, io::ErrorKind::NotFound.into()))
    }

    /// Like [`Self::read`]; `None` if there is no such file.
    pub(crate) fn read_if_any(
        &mut self,
        at: GroupHierarchy,
        name: &'static str,
    ) -> Result<Option<&str>, CgroupFileError> {
        match self.fill(at, name) {
            Ok(true) => self.text(at, name).map(Some),
            Ok(false) => Ok(None),
            Err(error) if error.is_gone() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads a number.
    pub(crate) fn number(
        &mut self,
        at: GroupHierarchy,
        name: &'static str,
    ) -> Result<u64, CgroupFileError> {
        let number = file::parse_number(self.read(at, name)?);
        number.ok_or_else(|| self.format_error("a number", at, name))
    }

    /// Reads a number; `None` if there is no such file or no number in it.
    pub(crate) fn number_if_any(
        &mut self,
        at: GroupHierarchy,
        name: &'static str,
    ) -> Result<Option<u64>, CgroupFileError> {
        Ok(self.read_if_any(at, name)?.and_then(file::parse_number))
    }

    /// Reads a number, where `max` and `-1` mean that there is no limit.
    pub(crate) fn limit(
        &mut self,
        at: GroupHierarchy,
        name: &'static str,
    ) -> Result<Option<u64>, CgroupFileError> {
        let limit = file::parse_limit(self.read(at, name)?);
        limit.ok_or_else(|| self.format_error("a number or max", at, name))
    }

    /// The directory of a file's group.
    pub(crate) fn dir(&self, at: GroupHierarchy) -> PathBuf {
        (self.dir)(at)
    }

    fn failed(&self, at: GroupHierarchy, name: &str, source: io::Error) -> CgroupFileError {
        let path = self.dir(at).join(name);
        CgroupFileError::Read { path, source }
    }

    fn format_error(
        &self,
        expected: &'static str,
        at: GroupHierarchy,
        name: &str,
    ) -> CgroupFileError {
        CgroupFileError::Format {
            path: self.dir(at).join(name),
            text: String::from_utf8_lossy(&self.text).into_owned(),
            expected,
        }
    }

    fn text(&self, at: GroupHierarchy, name: &str) -> Result<&str, CgroupFileError> {
        let text = str::from_utf8(&self.text);
        text.map_err(|_not_utf8| self.format_error("text", at, name))
    }

    /// Reads a file; `false` if there is none.
    fn fill(&mut self, at: GroupHierarchy, name: &'static str) -> Result<bool, CgroupFileError> {
        let mut files = self.held.files.iter();
        if let Some(held) = files.find(|held| held.name == name && held.at == at) {
            let Some((file, _)) = &held.file else {
                return Ok(false);
            };
            let filled = fill(&mut self.text, file);
            return filled
                .map(|()| true)
                .map_err(|source| self.failed(at, name, source));
        }
        let file = match File::open(self.dir(at).join(name)) {
            Ok(file) => Some(file),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(source) => return Err(self.failed(at, name, source)),
        };
        let Some(file) = file else {
            let file = None;
            self.held.files.push(CachedFile { at, name, file });
            return Ok(false);
        };
        fill(&mut self.text, &file).map_err(|source| self.failed(at, name, source))?;
        if let Some(place) = self.budget.take() {
            let file = Some((file, place));
            self.held.files.push(CachedFile { at, name, file });
        }
        Ok(true)
    }
}

/// Reads the whole of `file` from its beginning. The kernel prints such a file at once, so a short read marks its end.
fn fill(text: &mut Vec<u8>, file: &File) -> io::Result<()> {
    let mut end = 0;
    loop {
        if text.len() == end {
            text.resize((end * 2).max(READ_BYTES), 0);
        } else if text.len() < READ_BYTES {
            text.resize(READ_BYTES, 0);
        }
        let read = file.read_at(&mut text[end..], end as u64)?;
        end += read;
        if end < text.len() || end as u64 >= READ_BYTES_MAX {
            text.truncate(end);
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NUMBER: &str = "pids.current";

    static WIDE: LazyLock<OpenFileBudget> = LazyLock::new(|| OpenFileBudget::new(100));

    fn files(budget: &'static LazyLock<OpenFileBudget>) -> CgroupFileCache {
        CgroupFileCache {
            held: Mutex::default(),
            budget,
        }
    }

    /// A file that replaces another one under the same name is a different file, so a reader that reopened it would see
    /// the change.
    #[test]
    fn files_are_opened_only_once() {
        let dir = tempfile::tempdir().unwrap();
        let put = |text: &str| {
            fs::write(dir.path().join("next"), text).unwrap();
            fs::rename(dir.path().join("next"), dir.path().join(NUMBER)).unwrap();
        };
        let held = files(&WIDE);
        let mut reader = held.reader(|_| dir.path().to_owned());
        put("1\n");
        assert_eq!(reader.number(None, NUMBER).unwrap(), 1);
        assert_eq!(reader.read_if_any(None, "absent").unwrap(), None);

        put("2\n");
        fs::write(dir.path().join("absent"), "3\n").unwrap();

        assert_eq!(reader.number(None, NUMBER).unwrap(), 1);
        assert_eq!(reader.read_if_any(None, "absent").unwrap(), None);
        assert!(reader.read(None, "absent").unwrap_err().is_gone());
        // The file of the same name in another group is a different file.
        assert_eq!(reader.number(Some(Controller::Pids), NUMBER).unwrap(), 2);
    }

    #[test]
    fn without_room_files_are_opened_each_time() {
        static NARROW: LazyLock<OpenFileBudget> = LazyLock::new(|| OpenFileBudget::new(1));
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let (first, second) = (files(&NARROW), files(&NARROW));
        fs::write(path(NUMBER), "1\n").unwrap();
        let own = |_: GroupHierarchy| dir.path().to_owned();
        assert_eq!(first.reader(own).number(None, NUMBER).unwrap(), 1);
        assert_eq!(second.reader(own).number(None, NUMBER).unwrap(), 1);
        fs::remove_file(path(NUMBER)).unwrap();
        fs::write(path(NUMBER), "2\n").unwrap();

        assert_eq!(second.reader(own).number(None, NUMBER).unwrap(), 2);
        assert_eq!(first.reader(own).number(None, NUMBER).unwrap(), 1);
        drop(first);
        assert_eq!(NARROW.held.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn unused_files_are_closed() {
        static OTHERS: LazyLock<OpenFileBudget> = LazyLock::new(|| OpenFileBudget::new(10));
        let dir = tempfile::tempdir().unwrap();
        for name in ["kept", "closed"] {
            fs::write(dir.path().join(name), "1").unwrap();
        }
        let held = files(&OTHERS);
        let mut reader = held.reader(|_| dir.path().to_owned());
        reader.read(None, "kept").unwrap();
        reader.read(None, "closed").unwrap();
        drop(reader);
        let now = Instant::now();
        held.record_reading(now);

        held.close_unused(&["kept"], now + OPEN_FILES_IDLE_MAX / 2);
        assert_eq!(OTHERS.held.load(Ordering::Relaxed), 2);
        held.close_unused(&["kept"], now + OPEN_FILES_IDLE_MAX);
        assert_eq!(OTHERS.held.load(Ordering::Relaxed), 1);
    }

    /// A text longer than the buffer, followed by a short one.
    #[test]
    fn the_whole_of_a_file_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let long = "x".repeat(READ_BYTES * 3);
        fs::write(dir.path().join("long"), &long).unwrap();
        fs::write(dir.path().join("short"), "7\n").unwrap();
        let held = files(&WIDE);
        let mut reader = held.reader(|_| dir.path().to_owned());

        assert_eq!(reader.read(None, "long").unwrap(), long);
        assert_eq!(reader.number(None, "short").unwrap(), 7);
        assert!(reader.number(None, "long").is_err());
    }
}
