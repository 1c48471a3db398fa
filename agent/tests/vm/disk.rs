//! Disks of a test's own: a file behind a loop device, and one of the guest's that is slow and keeps nothing.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::Duration;

use muster_agent::resources::cgroup::TaskCgroup;

use crate::support::skipped;

/// Gone with it.
pub(crate) struct Disk {
    device: String,
    number: String,
    /// The file behind a loop device.
    file: Option<tempfile::NamedTempFile>,
}

/// The guest's slow disk: it does a request at a time, each in 5 ms (`xtask/src/vm/init.sh`).
const SLOW: &str = "nullb0";

/// The settings by which bfq goes by weights and by nothing it guesses, in this order.
///
/// bfq sees requests only as far as there are tags, which for a disk that does one at a time are two. A process that
/// waits for a tag weighs nothing. With these settings no time is kept free for a reader that may come back, and no
/// reader is favoured for being new. A turn is never longer than sixteen requests of 4 KiB, at any measured speed
/// (`Documentation/block/bfq-iosched.rst`).
const BY_WEIGHT_ALONE: [(&str, &str); 5] = [
    ("scheduler", "bfq"),
    ("nr_requests", "128"),
    ("iosched/slice_idle", "0"),
    ("iosched/low_latency", "0"),
    ("iosched/max_budget", "128"),
];

impl Disk {
    /// A disk of so many bytes, all zero; `None`, said as a skip of `test`, where there are no loop devices.
    pub(crate) fn new(test: &str, bytes: u64) -> Option<Self> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(bytes).unwrap();
        let missing = |reason: &str| {
            skipped(
                test,
                &format!("no loop device: {reason}; run: cargo xtask vm"),
            );
            None
        };
        // busybox says the free one, and does not take it in the same breath.
        let free = Command::new("losetup").arg("-f").output();
        let Ok(free) = free.inspect_err(|error| drop(missing(&error.to_string()))) else {
            return None;
        };
        let device = String::from_utf8_lossy(&free.stdout).trim().to_owned();
        let path = file.path().as_os_str();
        let taken = Command::new("losetup")
            .args([device.as_ref(), path])
            .output()
            .unwrap();
        if !taken.status.success() {
            return missing(String::from_utf8_lossy(&taken.stderr).trim());
        }
        Some(Self::at(device, Some(file)))
    }

    /// The slow disk, divided by weight alone; `None`, said as a skip of `test`, where there is none.
    pub(crate) fn weighed(test: &str) -> Option<Self> {
        let queue = format!("/sys/block/{SLOW}/queue");
        for (file, value) in BY_WEIGHT_ALONE {
            if let Err(error) = std::fs::write(format!("{queue}/{file}"), value) {
                let reason =
                    format!("no disk {SLOW} with {file} {value} ({error}); run: cargo xtask vm");
                skipped(test, &reason);
                return None;
            }
        }
        Some(Self::at(format!("/dev/{SLOW}"), None))
    }

    fn at(device: String, file: Option<tempfile::NamedTempFile>) -> Self {
        let number = File::open(&device).unwrap().metadata().unwrap().rdev();
        Self {
            number: format!("{}:{}", libc::major(number), libc::minor(number)),
            device,
            file,
        }
    }

    /// The device.
    pub(crate) fn path(&self) -> &str {
        &self.device
    }

    /// How long all reads of it took, as the kernel counts (`Documentation/block/stat.rst`).
    pub(crate) fn read_ticks(&self) -> Duration {
        let name = self.device.trim_start_matches("/dev/");
        let stat = std::fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        let ticks = stat.split_whitespace().nth(3).unwrap();
        Duration::from_millis(ticks.parse().unwrap())
    }

    /// As the kernel names it: `major:minor`.
    pub(crate) fn number(&self) -> &str {
        &self.number
    }

    /// How much of what the kernel calls `what` the disk did for `task`: bytes read or written (`rbytes`, `wbytes`), or
    /// operations (`rios`, `wios`).
    pub(crate) fn done_for(&self, task: &TaskCgroup, what: &str) -> u64 {
        let stat = std::fs::read_to_string(task.dir().join("io.stat")).unwrap();
        let mut disks = stat.lines().filter_map(|line| line.split_once(' '));
        let words = disks.find(|(number, _)| *number == self.number);
        let words = words.map_or("", |(_, words)| words);
        let mut words = words.split(' ').filter_map(|word| word.split_once('='));
        let done = words.find(|(name, _)| *name == what);
        done.map_or(0, |(_, done)| done.parse().unwrap())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.file.is_none() {
            return;
        }
        let freed = Command::new("losetup").args(["-d", &self.device]).status();
        assert!(std::thread::panicking() || freed.unwrap().success());
    }
}
