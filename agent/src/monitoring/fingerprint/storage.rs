//! The disk that holds the data directory.

use std::path::Path;

use muster_domain::saturating;

use super::facts::{Facts, read};

/// The size and the use of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskUsage {
    /// Bytes in all.
    pub(crate) total_bytes: u64,
    /// Bytes that an ordinary process may still take.
    pub(crate) available_bytes: u64,
    /// Percent of the bytes in use.
    pub(crate) percent: u8,
    /// Percent of the inodes in use; 0 where their number is not fixed.
    pub(crate) inode_percent: u8,
}

pub(super) fn add(facts: &mut Facts, data_dir: &Path) {
    let usage = disk_usage(data_dir);
    facts.total.disk_mb = usage.available_bytes >> 20;
    facts.attribute("unique.storage.bytestotal", usage.total_bytes);
    facts.attribute("unique.storage.bytesfree", usage.available_bytes);
    if let Some(volume) = volume(data_dir, &read("/proc/self/mounts")) {
        facts.attribute("unique.storage.volume", volume);
    }
}

/// Usage of the file system of `path`; zeros if it is unknown.
pub(crate) fn disk_usage(path: &Path) -> DiskUsage {
    let Ok(stat) = rustix::fs::statvfs(path) else {
        return DiskUsage::default();
    };
    DiskUsage {
        total_bytes: stat.f_blocks * stat.f_frsize,
        available_bytes: stat.f_bavail * stat.f_frsize,
        // The calculation follows df: space for root alone is not part of the total.
        percent: percent(
            stat.f_blocks - stat.f_bfree,
            stat.f_blocks - stat.f_bfree + stat.f_bavail,
        ),
        inode_percent: percent(stat.f_files.saturating_sub(stat.f_ffree), stat.f_files),
    }
}

pub(super) fn percent(used: u64, whole: u64) -> u8 {
    let percent = (used.saturating_mul(100)).checked_div(whole).unwrap_or(0);
    saturating::to_u8(percent)
}

/// The device of the deepest mount above `path`.
pub(super) fn volume<'a>(path: &Path, mounts: &'a str) -> Option<&'a str> {
    let path = std::path::absolute(path).ok()?;
    mounts
        .lines()
        .filter_map(|line| {
            let mut fields = line.split(' ');
            let (device, at) = (fields.next()?, fields.next()?);
            path.starts_with(at).then_some((at.len(), device))
        })
        .max_by_key(|(depth, _)| *depth)
        .map(|(_, device)| device)
}
