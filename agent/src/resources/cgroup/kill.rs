//! Killing all processes in a group.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::limits::KILL_PASSES_MAX;
use crate::resources::cgroup::subgroups;

/// The reason why a group was not killed.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A file of the group could not be read or written.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// Processes fork faster than they can be killed one by one.
    #[error("processes in {dir} come back after {KILL_PASSES_MAX} rounds of SIGKILL")]
    TooMany { dir: PathBuf },
}

/// Sends SIGKILL to all processes in the v2 group `dir` and below at once. No process can escape by forking.
pub(crate) fn kill_group(dir: &Path) -> Result<(), KillError> {
    match file::write(dir, "cgroup.kill", "1") {
        Ok(()) => Ok(()),
        // The kernel is older than 5.14, or the group is threaded.
        Err(error) if error.is_gone() && dir.exists() => kill_each_process(dir),
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends SIGKILL to each process in `dir` and below, until a pass finds only processes that were killed before.
pub(crate) fn kill_each_process(dir: &Path) -> Result<(), KillError> {
    let mut killed = Vec::new();
    for _pass in 0..KILL_PASSES_MAX {
        let mut fresh = procs(dir)?;
        fresh.retain(|pid| !killed.contains(pid));
        if fresh.is_empty() {
            return Ok(());
        }
        for &pid in &fresh {
            signal(pid);
        }
        killed.append(&mut fresh);
    }
    Err(KillError::TooMany { dir: dir.into() })
}

fn signal(pid: u32) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // 0 stands for a process of another pid namespace, which has no pid here.
    let Some(pid) = pid.filter(|pid| *pid != rustix::process::getpid()) else {
        return;
    };
    if let Err(errno) = rustix::process::kill_process(pid, Signal::KILL) {
        tracing::debug!(pid = pid.as_raw_nonzero().get(), %errno, "process ended before its signal");
    }
}

/// Processes in `dir` and below.
pub(crate) fn procs(dir: &Path) -> Result<Vec<u32>, CgroupFileError> {
    let mut pids = Vec::new();
    let nested = subgroups::descendants(dir)?;
    for group in nested.iter().map(PathBuf::as_path).chain([dir]) {
        let text = file::read_if_any(group, "cgroup.procs")?.unwrap_or_default();
        pids.extend(text.lines().filter_map(|line| line.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}
