//! Cores of a task's own.
//!
//! While no task has any, no task has a group here. In v1 a group can have no process before it was given
//! cores and memory nodes, so each takes what the one above it has, and the task's own is then narrowed.

use std::path::Path;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::kill;
use crate::resources::cgroup::limits::TAKE_IN_PASSES_MAX;
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

/// Moves everything that is in the v2 group `from` to the v1 group `dir`. A process that forks meanwhile
/// is seen by the next look; after [`TAKE_IN_PASSES_MAX`] of them its children may be left where they were.
pub(crate) fn take_in(dir: &Path, from: &Path) -> Result<(), CgroupFileError> {
    for _pass in 0..TAKE_IN_PASSES_MAX {
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

/// Gives the v1 group `dir` what the group above it has, unless it has something.
pub(crate) fn inherit(dir: &Path) -> Result<(), CgroupFileError> {
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

/// The cores that the group `dir` can give away; none if it has no such controller.
pub(crate) fn available(dir: &Path, v2: bool) -> Vec<u16> {
    let name = if v2 {
        "cpuset.cpus.effective"
    } else {
        "cpuset.effective_cpus"
    };
    parse(&file::read(dir, name).unwrap_or_default())
}

/// In the kernel's list format, as it reads back: `0-2,5`. `cores` are sorted.
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
