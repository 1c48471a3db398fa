//! Whether the kernel killed for want of memory.
//!
//! The files are held open, but a removed group's files read ENODEV all the same: whoever removes
//! the group takes the count first, as [`TaskCgroup::remove`](crate::cgroup::TaskCgroup::remove) does.

use std::path::Path;
use std::sync::Arc;

use crate::cgroup::file::{self, CgroupFileError, HeldFile};
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

/// The files that tell.
#[derive(Debug)]
pub(crate) struct OomFiles {
    dir: Arc<Path>,
    v2: bool,
    events: HeldFile,
    peak: Option<HeldFile>,
}

impl OomFiles {
    pub(crate) fn open(dir: &Arc<Path>, v2: bool) -> Result<Self, CgroupFileError> {
        let (events, peak) = if v2 {
            ("memory.events", "memory.peak")
        } else {
            ("memory.oom_control", "memory.max_usage_in_bytes")
        };
        let events = HeldFile::open(dir, events)?;
        Ok(Self {
            dir: Arc::clone(dir),
            v2,
            events,
            peak: HeldFile::open_if_any(dir, peak)?,
        })
    }

    pub(crate) fn count(&self) -> Result<OomCount, CgroupFileError> {
        let mut kills = self.events.keyed("oom_kill")?;
        if !self.v2 {
            // v2 counts for all groups below; v1 for each alone.
            for dir in tree::descendants(&self.dir)? {
                let text = file::read_if_any(&dir, "memory.oom_control")?.unwrap_or_default();
                kills += file::keyed(&text, "oom_kill").unwrap_or(0);
            }
        }
        let peak = self.peak.as_ref().map(HeldFile::text).transpose()?;
        let limit = if self.v2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        let limit_bytes = file::limit(&self.dir, limit)?.filter(|bytes| memory::is_limit(*bytes));
        let peak_bytes = peak.and_then(|text| text.trim().parse().ok());
        Ok(OomCount {
            kills,
            peak_bytes,
            limit_bytes,
        })
    }
}
