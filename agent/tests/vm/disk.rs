//! A disk of a test's own: a file behind a loop device.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;

use muster_agent::cgroup::TaskCgroup;

use crate::support::skipped;

/// Gone with it.
pub(crate) struct Disk {
    device: String,
    number: String,
    _file: tempfile::NamedTempFile,
}

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
        let number = File::open(&device).unwrap().metadata().unwrap().rdev();
        Some(Self {
            number: format!("{}:{}", libc::major(number), libc::minor(number)),
            device,
            _file: file,
        })
    }

    /// The device.
    pub(crate) fn path(&self) -> &str {
        &self.device
    }

    /// Bytes that went from the disk to `task`.
    pub(crate) fn read_by(&self, task: &TaskCgroup) -> u64 {
        let stat = std::fs::read_to_string(task.dir().join("io.stat")).unwrap();
        let mut disks = stat.lines().filter_map(|line| line.split_once(' '));
        let words = disks.find(|(number, _)| *number == self.number);
        let words = words.map_or("", |(_, words)| words);
        let bytes = words
            .split(' ')
            .find_map(|word| word.strip_prefix("rbytes="));
        bytes.map_or(0, |bytes| bytes.parse().unwrap())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let freed = Command::new("losetup").args(["-d", &self.device]).status();
        assert!(std::thread::panicking() || freed.unwrap().success());
    }
}
