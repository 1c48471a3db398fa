//! Groups of a node's tree without a record, because the record was lost or only a part of the tree was removed.

use std::path::{Path, PathBuf};

use rustix::process::Signal;

use crate::resources::cgroup::file::CgroupFileError;
use crate::resources::cgroup::hierarchies::Hierarchies;
use crate::resources::cgroup::limits::{KILL_PASSES_MAX, STRAY_DEPTH_MAX};
use crate::resources::cgroup::remove::{self, RemoveCgroupError};
use crate::resources::cgroup::{kill, subgroups};
use crate::tasks::process::ProcessId;

/// The root of such a tree in one hierarchy.
#[derive(Debug)]
pub(crate) struct StrayGroup(PathBuf);

impl StrayGroup {
    /// Finds groups called `name` at any place. An agent makes them below the groups that it runs in.
    pub(crate) fn find(hierarchies: &Hierarchies, name: &str) -> Vec<Self> {
        let mounts = hierarchies.mounts();
        mounts
            .into_iter()
            .flat_map(|mount| Self::find_in(mount, name))
            .collect()
    }

    fn find_in(top: &Path, name: &str) -> Vec<Self> {
        let mut found = Vec::new();
        let mut level = vec![top.to_owned()];
        for _depth in 0..STRAY_DEPTH_MAX {
            // A group that cannot be listed has gone, or does not belong to an agent.
            let below = level
                .iter()
                .flat_map(|dir| subgroups::children(dir).unwrap_or_default());
            let (named, others): (Vec<PathBuf>, Vec<PathBuf>) =
                below.partition(|dir| dir.file_name().is_some_and(|last| last == name));
            found.extend(named.into_iter().map(Self));
            level = others;
        }
        found
    }

    /// The directory of the group.
    pub(crate) fn dir(&self) -> &Path {
        &self.0
    }

    /// The processes in the group and below.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub(crate) fn processes(&self) -> Result<Vec<ProcessId>, CgroupFileError> {
        let pids = kill::procs(&self.0)?.into_iter();
        Ok(pids.filter_map(ProcessId::of).collect())
    }

    /// Kills the group's processes.
    ///
    /// # Errors
    ///
    /// [`CgroupFileError`].
    pub(crate) async fn kill(&self) -> Result<(), CgroupFileError> {
        for _pass in 0..KILL_PASSES_MAX {
            let processes = self.processes()?;
            if processes.is_empty() {
                break;
            }
            for process in &processes {
                process.signal(Signal::KILL);
            }
            for process in processes {
                process.ended().await;
            }
        }
        Ok(())
    }

    /// Removes the group and all groups below.
    ///
    /// # Errors
    ///
    /// [`RemoveCgroupError`].
    pub(crate) async fn remove(&self) -> Result<(), RemoveCgroupError> {
        remove::depth_first(&self.0).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stray_cgroup_tree_is_found_at_any_depth() {
        let temp = tempfile::tempdir().unwrap();
        for dir in ["a/b/muster-1/alloc/task", "muster-1/drivers", "c/muster-2"] {
            std::fs::create_dir_all(temp.path().join(dir)).unwrap();
        }

        let found = StrayGroup::find_in(temp.path(), "muster-1");

        let mut dirs: Vec<&Path> = found
            .iter()
            .map(|group| group.dir().strip_prefix(temp.path()).unwrap())
            .collect();
        dirs.sort_unstable();
        assert_eq!(dirs, [Path::new("a/b/muster-1"), Path::new("muster-1")]);
    }
}
