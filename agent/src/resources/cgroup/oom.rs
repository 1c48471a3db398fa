//! Counts of processes that the kernel killed because memory ran out.
//!
//! An open file reads ENODEV once the group is removed, so the count is read before the removal.

use std::path::{Path, PathBuf};

use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::open_files::{CgroupFileReader, GroupHierarchy};
use crate::resources::cgroup::{memory, subgroups};

/// The file of v1 with the count.
const CONTROL: &str = "memory.oom_control";

/// Out-of-memory kills in a task's group and all below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OomCount {
    /// Processes killed, all groups below included.
    pub kills: u64,
    /// The most memory ever used, in bytes.
    pub peak_bytes: Option<u64>,
    /// The limit, in bytes.
    pub limit_bytes: Option<u64>,
}

/// The counts of the group `dir`.
pub(crate) fn count(dir: &Path, v2: bool) -> Result<OomCount, CgroupFileError> {
    let (events, limit) = if v2 {
        ("memory.events", "memory.max")
    } else {
        (CONTROL, "memory.limit_in_bytes")
    };
    let mut kills = kills_in(&file::read(dir, events)?);
    if !v2 {
        kills += kills_below_v1(dir)?;
    }
    Ok(OomCount {
        kills,
        peak_bytes: memory::peak(dir, v2)?,
        limit_bytes: file::limit(dir, limit)?.filter(|bytes| memory::is_limit(*bytes)),
    })
}

/// Only the kills, of the v1 group at `at` and all groups below it.
pub(crate) fn kills_v1<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    at: GroupHierarchy,
) -> Result<u64, CgroupFileError> {
    let kills = kills_in(files.read(at, CONTROL)?);
    Ok(kills + kills_below_v1(&files.dir(at))?)
}

/// v2 counts for all groups below; v1 counts for each group separately.
fn kills_below_v1(dir: &Path) -> Result<u64, CgroupFileError> {
    let mut kills = 0;
    for nested in subgroups::descendants(dir)? {
        kills += kills_in(&file::read_if_any(&nested, CONTROL)?.unwrap_or_default());
    }
    Ok(kills)
}

fn kills_in(events: &str) -> u64 {
    file::keyed(events, "oom_kill").unwrap_or(0)
}
