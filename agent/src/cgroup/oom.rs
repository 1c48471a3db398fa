//! Whether the kernel killed for want of memory.
//!
//! Files held open would read ENODEV once the group is removed: whoever removes it takes the count first.

use std::path::Path;

use crate::cgroup::file::{self, CgroupFileError};
use crate::cgroup::{memory, tree};

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

/// What the group `dir` counts.
pub(crate) fn count(dir: &Path, v2: bool) -> Result<OomCount, CgroupFileError> {
    let (events, limit) = if v2 {
        ("memory.events", "memory.max")
    } else {
        ("memory.oom_control", "memory.limit_in_bytes")
    };
    let kills_in = |text: &str| file::keyed(text, "oom_kill").unwrap_or(0);
    let mut kills = kills_in(&file::read(dir, events)?);
    if !v2 {
        // v2 counts for all groups below; v1 for each alone.
        for nested in tree::descendants(dir)? {
            kills += kills_in(&file::read_if_any(&nested, events)?.unwrap_or_default());
        }
    }
    Ok(OomCount {
        kills,
        peak_bytes: memory::peak(dir, v2)?,
        limit_bytes: file::limit(dir, limit)?.filter(|bytes| memory::is_limit(*bytes)),
    })
}
