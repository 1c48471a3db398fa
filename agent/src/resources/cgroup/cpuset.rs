//! Cores that are reserved for a task.
//!
//! While no task has reserved cores, no task has a cpuset group. A v1 group accepts no process before it has cores and
//! memory nodes. So each group inherits those of its parent, and the task's own group is then narrowed.

use std::path::Path;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::kill;
use crate::resources::cgroup::limits::MOVE_PASSES_MAX;
use crate::resources::cgroup::resources::{ApplyLimitError, Limits, Setter};

const CPUS: &str = "cpuset.cpus";
const MEMS: &str = "cpuset.mems";

/// Sets the cores of the group `dir`.
pub(crate) fn apply(dir: &Path, limits: &Limits) -> Result<(), ApplyLimitError> {
    if limits.cores.is_empty() {
        return Ok(());
    }
    let setter = Setter {
        controller: Controller::Cpuset,
        dir,
    };
    setter.write(CPUS, &list(&limits.cores))
}

/// The files that [`apply`] sets.
pub(crate) fn files() -> &'static [&'static str] {
    &[CPUS]
}

/// Moves all processes of the v2 group `from` to the v1 group `dir`. The next pass finds processes that were forked
/// meanwhile. After [`MOVE_PASSES_MAX`] passes, later children may stay in their old group.
pub(crate) fn move_processes(dir: &Path, from: &Path) -> Result<(), CgroupFileError> {
    for _pass in 0..MOVE_PASSES_MAX {
        let there = kill::procs(dir)?;
        let mut outside = kill::procs(from)?;
        outside.retain(|pid| !there.contains(pid));
        if outside.is_empty() {
            break;
        }
        for pid in outside {
            match file::write(dir, "cgroup.procs", &pid.to_string()) {
                Err(error) if !has_ended(&error) => return Err(error),
                _moved_or_ended => {}
            }
        }
    }
    Ok(())
}

fn has_ended(error: &CgroupFileError) -> bool {
    match error {
        CgroupFileError::Write { source, .. } => source.raw_os_error() == Some(libc::ESRCH),
        CgroupFileError::Read { .. } | CgroupFileError::Format { .. } => false,
    }
}

/// Copies the cores and memory nodes of the parent to the v1 group `dir`, unless it has some.
pub(crate) fn copy_parent_cpuset(dir: &Path) -> Result<(), CgroupFileError> {
    let Some(above) = dir.parent() else {
        return Ok(());
    };
    for name in [CPUS, MEMS] {
        if file::read(dir, name)?.trim().is_empty() {
            file::write(dir, name, file::read(above, name)?.trim())?;
        }
    }
    Ok(())
}

/// The cores that the group `dir` can assign; none without the controller.
pub(crate) fn available(dir: &Path, v2: bool) -> Vec<u16> {
    let name = if v2 {
        "cpuset.cpus.effective"
    } else {
        "cpuset.effective_cpus"
    };
    parse(&file::read(dir, name).unwrap_or_default())
}

/// Formats sorted `cores` in the kernel's list format, as it reads back: `0-2,5`.
pub(crate) fn list(cores: &[u16]) -> String {
    let mut runs: Vec<(u16, u16)> = Vec::new();
    for &core in cores {
        match runs.last_mut() {
            Some((_, last)) if core <= last.saturating_add(1) => *last = core,
            Some(_) | None => runs.push((core, core)),
        }
    }
    let runs = runs.into_iter().map(|(first, last)| {
        if first == last {
            first.to_string()
        } else {
            format!("{first}-{last}")
        }
    });
    runs.collect::<Vec<_>>().join(",")
}

fn parse(list: &str) -> Vec<u16> {
    let run = |run: &str| {
        let (first, last) = run.split_once('-').unwrap_or((run, run));
        Some(first.parse().ok()?..=last.parse::<u16>().ok()?)
    };
    let runs = list.trim().split(',');
    runs.filter_map(run).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_as_the_kernel_writes_them() {
        for (cores, text) in [
            (vec![], ""),
            (vec![3], "3"),
            (vec![0, 1, 2, 5], "0-2,5"),
            (vec![1, 3, 4], "1,3-4"),
        ] {
            assert_eq!(list(&cores), text);
            assert_eq!(parse(text), cores);
        }
    }
}
