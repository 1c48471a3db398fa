//! Killing everything in a group.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, Signal};

use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::limits::KILL_PASSES_MAX;
use crate::resources::cgroup::subgroups;

/// Why a group was not killed.
#[derive(Debug, thiserror::Error)]
pub enum KillError {
    /// A file of the group could not be read or written.
    #[error(transparent)]
    File(#[from] CgroupFileError),
    /// Processes fork faster than they can be killed one by one.
    #[error("processes in {dir} come back after {KILL_PASSES_MAX} rounds of SIGKILL")]
    TooMany { dir: PathBuf },
}

/// SIGKILL for all in the v2 group `dir` and below, at once: no process can fork away from it.
pub(crate) fn whole(dir: &Path) -> Result<(), KillError> {
    match file::write(dir, "cgroup.kill", "1") {
        Ok(()) => Ok(()),
        // Kernels before 5.14, or a threaded group.
        Err(error) if error.is_gone() && dir.exists() => one_by_one(dir),
        Err(error) if error.is_gone() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// SIGKILL for each process in `dir` and below, until none is left that was not killed before.
pub(crate) fn one_by_one(dir: &Path) -> Result<(), KillError> {
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
    // 0 is a process of another pid namespace, which cannot be named here.
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
