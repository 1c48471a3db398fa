//! Freezing through the v2 hierarchy, which works there whatever controllers are bound to v1.

use std::path::{Path, PathBuf};

use cgroups_rs::fs::freezer::FreezerController;

/// Asks for the group `dir` and all below to be frozen or to go on. The kernel does it in the
/// background: `frozen` in `cgroup.events` says when it is so, not the file that is written here.
pub(crate) fn request(dir: &Path, frozen: bool) -> cgroups_rs::fs::error::Result<()> {
    let freezer = FreezerController::new(dir.to_path_buf(), PathBuf::new(), true);
    if frozen {
        freezer.freeze()
    } else {
        freezer.thaw()
    }
}
