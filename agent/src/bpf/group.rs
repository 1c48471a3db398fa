//! The counters that the kernel keeps of all tasks' groups, read by one walk over each hierarchy.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::Path,
    sync::{Mutex, PoisonError},
};

use muster_ebpf_common::{
    CgroupId,
    group::{GroupRow, GroupWalk},
};

use crate::bpf::{
    id_hash::IdHash,
    load::WALK_GROUPS,
    map::{PinnedMap, first, open_pinned, walk_cgroups},
};

/// The rows of tasks' groups in one hierarchy, by the groups' ids in it.
pub type GroupRows = HashMap<CgroupId, GroupRow, IdHash>;

/// The maps of the stem `group`, and its program.
#[derive(Debug)]
pub(super) struct Groups {
    pub(super) rows: PinnedMap<u32, GroupRow>,
    /// The position of the walk. A running walk holds the lock.
    pub(super) walk: Mutex<PinnedMap<u32, GroupWalk>>,
    /// The program that walks; `None` if the kernel refused it.
    pub(super) program: Option<OwnedFd>,
}

impl Groups {
    /// Walks over the groups below `root`. `is_v2` is whether the hierarchy is v2.
    pub(super) fn below(&self, root: &Path, is_v2: bool) -> io::Result<GroupRows> {
        let program = self.program.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let root = File::open(root)?;
        let walk = self.walk.lock().unwrap_or_else(PoisonError::into_inner);
        let begin = GroupWalk {
            is_v2: u32::from(is_v2),
            ..GroupWalk::default()
        };
        walk.set_all(0, begin)?;
        walk_cgroups(program.as_fd(), root.as_fd())?;
        let walked = first(walk.lookup(0)?);
        if walked.cut != 0 {
            tracing::debug!(
                visited = walked.visited,
                "one walk cannot report all groups"
            );
        }
        let found = walked.rows as usize;
        let mut rows = GroupRows::with_capacity_and_hasher(found, IdHash::default());
        self.rows.visit(found, |_, values| {
            rows.extend(values.map(|row| (row.group, *row)));
        })?;
        Ok(rows)
    }
}

/// Opens the program that walks, from the directory of one load; `None` if the kernel refused it.
pub(super) fn open_walk_groups(programs: &Path) -> io::Result<Option<OwnedFd>> {
    let path = programs.join(WALK_GROUPS);
    if path.is_symlink() {
        return Ok(None);
    }
    open_pinned(&path).map(Some)
}
