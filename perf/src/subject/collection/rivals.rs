//! The rivals: files of the tasks' cgroups, and files of their processes.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use muster_agent::resources::cgroup::TaskCgroup;
use muster_domain::number;
use rustix::process::{Resource, getrlimit};

/// The files of a task that the rivals read: CPU time, memory, kinds of memory, disks. Each file is read in the first
/// hierarchy that has it.
pub(super) const FILES: [&[&str]; 4] = [
    &["cpu.stat"],
    MEMORY,
    &["memory.stat"],
    &["io.stat", "blkio.throttle.io_service_bytes"],
];
/// Names of the file with the memory that counts against the limit, in cgroup v2 and v1.
pub(super) const MEMORY: &[&str] = &["memory.current", "memory.usage_in_bytes"];
/// The files of a task that one step of the history reads.
pub(super) const STEP: [&[&str]; 5] = [
    MEMORY,
    &["cpu.stat"],
    &["cpu.pressure"],
    &["memory.pressure"],
    &["io.pressure"],
];
/// A buffer size that is larger than any of the files.
const FILE_BYTES: usize = 16 << 10;
/// Descriptors that are reserved for other uses.
const OTHER_DESCRIPTORS: u64 = 1_000;
/// The agent may use a quarter of all descriptors for files of cgroups.
const AGENTS_PART: u64 = 4;
/// The number of descriptors if there is no limit.
const UNLIMITED: u64 = u64::MAX;

/// The directories of a task's cgroups.
pub(super) struct TaskGroupDirs(Vec<PathBuf>);

impl TaskGroupDirs {
    pub(super) fn of(task: &TaskCgroup) -> Self {
        let v1 = task.joins().into_iter();
        let v1 = v1.filter_map(|procs| procs.parent().map(Path::to_owned));
        Self([task.dir().to_owned()].into_iter().chain(v1).collect())
    }

    fn files(&self, wanted: &[&[&str]]) -> Vec<PathBuf> {
        let paths = wanted.iter().filter_map(|names| {
            let dirs = self.0.iter();
            let mut paths = dirs.flat_map(|dir| names.iter().map(|name| dir.join(name)));
            paths.find(|path| path.exists())
        });
        paths.collect()
    }
}

/// Files that are kept open, of as many tasks as the descriptors allow.
pub(super) struct OpenFiles(Vec<Vec<File>>);

impl OpenFiles {
    /// Opens a file of each kind in `wanted` for each task.
    pub(super) fn open(tasks: &[TaskGroupDirs], wanted: &[&[&str]]) -> anyhow::Result<Self> {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(UNLIMITED);
        // Two of these objects exist at the same time.
        let descriptors = descriptors - descriptors / AGENTS_PART;
        let room =
            descriptors.saturating_sub(OTHER_DESCRIPTORS) / (FILES.len() + STEP.len()) as u64;
        let room = number::index(room);
        let open = |dirs: &TaskGroupDirs| dirs.files(wanted).iter().map(File::open).collect();
        let held = tasks.iter().take(room).map(open);
        Ok(Self(held.collect::<Result<_, _>>()?))
    }

    pub(super) fn read(&self) -> anyhow::Result<usize> {
        let mut buffer = [0; FILE_BYTES];
        for file in self.0.iter().flatten() {
            let read = file.read_at(&mut buffer, 0)?;
            number(&buffer[..read])?;
        }
        Ok(self.0.len())
    }
}

/// Files that are opened whenever they are read.
pub(super) struct ReopenedFiles(Vec<Vec<PathBuf>>);

impl ReopenedFiles {
    pub(super) fn new(tasks: &[TaskGroupDirs]) -> Self {
        Self(tasks.iter().map(|dirs| dirs.files(&FILES)).collect())
    }

    pub(super) fn read(&self) -> anyhow::Result<usize> {
        let mut buffer = [0; FILE_BYTES];
        for path in self.0.iter().flatten() {
            let mut file = File::open(path)?;
            let read = file.read(&mut buffer)?;
            number(&buffer[..read])?;
        }
        Ok(self.0.len())
    }
}

/// Reads CPU time, memory and cgroup of every process. At least `count` of the processes belong to tasks.
pub(super) fn scan_processes(count: usize) -> anyhow::Result<usize> {
    let mut buffer = [0; FILE_BYTES];
    let mut seen = 0;
    for entry in fs::read_dir("/proc")? {
        let dir = entry?.path();
        let name = dir.file_name().and_then(|name| name.to_str());
        if !name.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        for name in ["stat", "cgroup"] {
            // The process may have ended.
            let Ok(mut file) = File::open(dir.join(name)) else {
                continue;
            };
            let read = file.read(&mut buffer).unwrap_or(0);
            number(&buffer[..read])?;
        }
        seen += 1;
    }
    ensure!(seen >= count, "{seen} processes");
    Ok(count)
}

/// Parses the last number of a text. This is the least work that a reader of these files does.
fn number(text: &[u8]) -> anyhow::Result<Option<u64>> {
    let text = std::str::from_utf8(text).context("it is text")?;
    let mut words = text.split_ascii_whitespace().rev();
    Ok(words.find_map(|word| word.parse().ok()))
}
