//! Number of processes and threads.

use std::path::{Path, PathBuf};

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::pid::PidController;
use muster_domain::saturating;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::CgroupFileError;
use crate::resources::cgroup::open_files::{CgroupFileReader, GroupHierarchy};
use crate::resources::cgroup::resources::{ApplyLimitError, Limits, Setter};

/// Sets the limit of the group `dir`. Both versions have the same file.
pub(crate) fn apply(dir: &Path, v2: bool, limits: &Limits) -> Result<(), ApplyLimitError> {
    let setter = Setter {
        controller: Controller::Pids,
        dir,
    };
    let pids = PidController::new(dir.to_path_buf(), PathBuf::new(), v2);
    let wanted = limits.pids_max.to_string();
    let value = MaxValue::Value(saturating::to_i64(limits.pids_max));
    setter.set(
        "pids.max",
        &wanted,
        || pids.set_pid_max(value),
        |got| got == wanted,
    )
}

/// Limits the group `dir` with all below it.
pub(crate) fn limit_all(dir: &Path, max: u64) -> Result<(), ApplyLimitError> {
    let setter = Setter {
        controller: Controller::Pids,
        dir,
    };
    setter.write("pids.max", &max.to_string())
}

/// The files that [`apply`] sets.
pub(crate) fn files() -> &'static [&'static str] {
    &["pids.max"]
}

/// The number of processes and threads in the group at `at`.
pub(crate) fn current<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    at: GroupHierarchy,
) -> Result<u64, CgroupFileError> {
    files.number(at, "pids.current")
}
