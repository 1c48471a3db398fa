//! The cgroup that a foreign host names for a task (`LinuxResources::cpuset_cgroup`).
//!
//! Such a host creates a cgroup v2 group for each task and sets the task's cores there. Its drivers must put the task
//! into the group and limit it. This module creates and removes nothing. A setting that fails is reported and fails no
//! start. A host with cgroup v1 names a group of the cpuset controller only, which has neither memory limits nor a way
//! to kill all its processes. Such a group is not used.

use std::io::{self, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use muster_driver::{TaskConfig, TaskResources};
use rustix::fs::OFlags;

use super::{TaskCgroup, field, open_dir, open_in};
use crate::policy::is_plain_absolute;

/// The value of `f_type` of the two versions' file systems (statfs(2)).
const CGROUP_V2_MAGIC: i64 = 0x6367_7270;
const CGROUP_V1_MAGIC: i64 = 0x0027_e0eb;

/// The smallest and largest shares in cgroup v1, and the largest weight in v2.
const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;
const WEIGHT_MAX: u64 = 10_000;

const MIB: u64 = 1 << 20;

/// The result for a cgroup that the host names.
#[derive(Debug, Default)]
pub(crate) struct NamedGroup {
    /// The cgroup in which the task is started; `None` means the driver's.
    pub(crate) dir: Option<PathBuf>,
    /// Notes for the task's owner: the settings of the group that failed.
    pub(crate) notes: Vec<String>,
}

/// Checks the group that the host names for `config`, and limits it. Does nothing if the host gives a placement, or
/// names no group.
pub(crate) fn prepare(config: &TaskConfig, pids_max: Option<u64>) -> NamedGroup {
    let path = Path::new(&config.resources.linux.cpuset_cgroup);
    if config.cgroup.is_some() || path.as_os_str().is_empty() {
        return NamedGroup::default();
    }
    match open_unused(path) {
        Ok(cgroup) => NamedGroup {
            dir: Some(path.to_owned()),
            notes: set_limits(&cgroup, &config.resources, pids_max),
        },
        Err(reason) => NamedGroup {
            dir: None,
            notes: vec![format!(
                "the task has no limits of memory, CPU and processes, and its end by want of memory is not seen: the cgroup {} that the host names is not used: {reason}",
                path.display()
            )],
        },
    }
}

/// Returns the group, if a task can be put into it and it contains no other process.
fn open_unused(path: &Path) -> Result<TaskCgroup, String> {
    if !is_plain_absolute(path) {
        return Err("it is not an absolute path without `.` and `..`".to_owned());
    }
    let (dir, _inode) = open_dir(path).map_err(|error| format!("open it: {error}"))?;
    let system = rustix::fs::fstatfs(&dir).map_err(|error| format!("look at it: {error}"))?;
    match system.f_type {
        CGROUP_V2_MAGIC => {}
        CGROUP_V1_MAGIC => {
            return Err(
                "it is of cgroup v1, where the driver can neither limit a task nor reach all of it; boot the node with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1)".to_owned(),
            );
        }
        _other => return Err("it does not lie below a mount of cgroup2".to_owned()),
    }
    let cgroup = TaskCgroup::open(path).map_err(|error| format!("{error}: {}", error.source))?;
    let read = |name: &str| {
        cgroup
            .read(name)
            .map_err(|error| format!("read {name}: {error}"))
    };
    // The root of the hierarchy has no such file.
    let events = read("cgroup.events")?;
    let kind = read("cgroup.type")?;
    if kind.trim() != "domain" {
        return Err(format!("its cgroup.type is {}, not domain", kind.trim()));
    }
    if field(&events, "populated") != Some(0) {
        return Err("processes are in it already, which would be stopped with the task".to_owned());
    }
    if !read("cgroup.subtree_control")?.trim().is_empty() {
        return Err(
            "it hands controllers on (cgroup.subtree_control), and the kernel lets no process into such a group".to_owned(),
        );
    }
    open_in(dir.as_fd(), "cgroup.procs", OFlags::WRONLY)
        .map_err(|error| format!("the driver may not write to it: {error}"))?;
    Ok(cgroup)
}

/// Sets the limits of the task's resources. Returns a note for each limit that failed.
fn set_limits(
    cgroup: &TaskCgroup,
    resources: &TaskResources,
    pids_max: Option<u64>,
) -> Vec<String> {
    let mut notes = Vec::new();
    let mut set = |what: &str, name: &str, value: &str| {
        let done = write(cgroup, name, value);
        if let Err(error) = &done {
            notes.push(format!(
                "{what} is not set: {}",
                describe_error(name, error)
            ));
        }
        done.is_ok()
    };
    if let Some(max) = memory_max(resources) {
        // The task is killed as a whole and never swapped, like a task in a group of the agent.
        if set("the task's memory limit", "memory.max", &max) && max != "max" {
            let _whole = set("that a task is killed whole", "memory.oom.group", "1");
            // A kernel without swap has no such file.
            match write(cgroup, "memory.swap.max", "0") {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    notes.push(format!("the task may use swap: {error}"));
                }
                Ok(()) | Err(_) => {}
            }
        }
    }
    let mut set = |what: &str, name: &str, value: &str| {
        if let Err(error) = write(cgroup, name, value) {
            notes.push(format!(
                "{what} is not set: {}",
                describe_error(name, &error)
            ));
        }
    };
    if let Some(weight) = cpu_weight(resources) {
        set(
            "the task's weight of CPU time",
            "cpu.weight",
            &weight.to_string(),
        );
    }
    if let Some(max) = pids_max {
        set(
            "the task's limit of processes",
            "pids.max",
            &max.to_string(),
        );
    }
    notes
}

fn write(cgroup: &TaskCgroup, name: &str, value: &str) -> io::Result<()> {
    cgroup
        .open_in(name, OFlags::WRONLY)?
        .write_all(value.as_bytes())
}

fn describe_error(name: &str, error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::NotFound {
        let controller = name.split('.').next().unwrap_or(name);
        return format!(
            "the host's cgroup has no {name}; the controller `{controller}` has to be in the v2 hierarchy and in cgroup.subtree_control of the groups above"
        );
    }
    format!("write {name}: {error}")
}

/// The memory limit of the task: `memory_max_mb` where it is given, else the limit of the placement. A negative
/// `memory_max_mb` means no limit.
fn memory_max(resources: &TaskResources) -> Option<String> {
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    let mebibytes = |number: i64| Some(positive(number)?.saturating_mul(MIB));
    if resources.memory_max_mb < 0 {
        return Some("max".to_owned());
    }
    mebibytes(resources.memory_max_mb)
        .or_else(|| positive(resources.linux.memory_limit_bytes))
        .or_else(|| mebibytes(resources.memory_mb))
        .map(|bytes| bytes.to_string())
}

/// Returns the weight of the task's shares. The conversion is that of the runtimes of such a host, so that the group
/// has the same weight as comparable groups.
fn cpu_weight(resources: &TaskResources) -> Option<u64> {
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    let shares = positive(resources.linux.cpu_shares).or_else(|| positive(resources.cpu_mhz))?;
    let above = shares.clamp(SHARES_MIN, SHARES_MAX) - SHARES_MIN;
    Some(1 + above * (WEIGHT_MAX - 1) / (SHARES_MAX - SHARES_MIN))
}

#[cfg(test)]
mod tests {
    use muster_driver::LinuxResources;

    use super::*;

    fn resources(memory: [i64; 3], shares: [i64; 2]) -> TaskResources {
        TaskResources {
            memory_mb: memory[0],
            memory_max_mb: memory[1],
            cpu_mhz: shares[0],
            linux: LinuxResources {
                memory_limit_bytes: memory[2],
                cpu_shares: shares[1],
                ..LinuxResources::default()
            },
            ..TaskResources::default()
        }
    }

    #[test]
    fn cgroup_memory_max_uses_oversubscription_limit() {
        let cases: [([i64; 3], Option<&str>); 6] = [
            ([0, 0, 0], None),
            ([1, 0, 0], Some("1048576")),
            ([1, 0, 4_096], Some("4096")),
            ([1, 2, 4_096], Some("2097152")),
            ([1, -1, 4_096], Some("max")),
            ([-1, 0, -1], None),
        ];
        for (memory, expected) in cases {
            let max = memory_max(&resources(memory, [0, 0]));
            assert_eq!(max.as_deref(), expected, "{memory:?}");
        }
    }

    /// The weight of 1 024 shares is 39 of 10 000, as in systemd and in OCI runtimes.
    #[test]
    fn shares_become_weights() {
        let cases: [([i64; 2], Option<u64>); 6] = [
            ([0, 0], None),
            ([-5, -1], None),
            ([1_024, 0], Some(39)),
            ([1_024, 2], Some(1)),
            ([0, 1], Some(1)),
            ([0, i64::MAX], Some(10_000)),
        ];
        for (shares, expected) in cases {
            let weight = cpu_weight(&resources([0, 0, 0], shares));
            assert_eq!(weight, expected, "{shares:?}");
        }
    }

    #[test]
    fn invalid_cgroup_path_is_skipped_with_reason() {
        let temp = tempfile::tempdir().unwrap();
        let plain = temp.path().to_str().unwrap();
        let cases = [
            ("a/relative/path", "absolute"),
            ("/a/../b", "absolute"),
            ("/no/such/cgroup", "open it"),
            (plain, "cgroup2"),
        ];
        for (path, reason) in cases {
            let mut config = TaskConfig::default();
            config.resources.linux.cpuset_cgroup = path.to_owned();

            let named = prepare(&config, None);

            assert_eq!(named.dir, None, "{path}");
            assert!(named.notes[0].contains(path), "{named:?}");
            assert!(named.notes[0].contains(reason), "{named:?}");
        }
    }

    #[test]
    fn missing_cgroup_name_gives_no_notes() {
        let named = prepare(&TaskConfig::default(), None);

        assert!(named.dir.is_none() && named.notes.is_empty(), "{named:?}");
    }
}
