//! The end of all processes of a cgroup.

use crate::limits::CGROUP_EMPTY_DEADLINE;
use crate::resources::cgroup::TaskCgroup;

/// Kills all processes in `cgroup` and waits until they are gone.
pub(crate) async fn kill(cgroup: &TaskCgroup) {
    if let Err(error) = cgroup.kill() {
        tracing::error!(%error, "a cgroup cannot be killed");
    }
    match cgroup.wait_empty(CGROUP_EMPTY_DEADLINE).await {
        Ok(true) => {}
        Ok(false) => {
            tracing::error!(dir = %cgroup.dir().display(), "processes of a task are stuck in the kernel");
        }
        Err(error) => tracing::warn!(%error, "a cgroup cannot be read"),
    }
}
