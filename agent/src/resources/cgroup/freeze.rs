//! Freezing through the v2 hierarchy, which works there even if controllers are bound to v1.

use std::path::{Path, PathBuf};

use cgroups_rs::fs::freezer::FreezerController;

/// Requests that the group `dir` and all below are frozen or thawed. The kernel does it in the background. `frozen` in
/// `cgroup.events` shows the result, not the file that is written here.
pub(crate) fn request(dir: &Path, frozen: bool) -> cgroups_rs::fs::error::Result<()> {
    let freezer = FreezerController::new(dir.to_path_buf(), PathBuf::new(), true);
    if frozen {
        freezer.freeze()
    } else {
        freezer.thaw()
    }
}
