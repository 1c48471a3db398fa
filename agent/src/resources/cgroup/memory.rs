//! Memory: the limit, the soft limit, swap, the reservation, and killing a whole task.

use std::path::{Path, PathBuf};

use cgroups_rs::fs::MaxValue;
use cgroups_rs::fs::memory::{MemController, SetMemory};
use muster_domain::saturating;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::limits::MEMORY_ROUNDING_BYTES;
use crate::resources::cgroup::open_files::{CgroupFileReader, GroupHierarchy};
use crate::resources::cgroup::resources::{ApplyLimitError, Limits, Setter, Unenforced};
use crate::resources::cgroup::stats::MemoryStats;
use crate::resources::cgroup::{oom, subgroups};

/// The file with the kinds of memory use.
const STAT: &str = "memory.stat";

/// v1 reports a missing limit as the highest number of whole pages, somewhat below 2^63.
const V1_UNLIMITED_BYTES: u64 = 1 << 62;

/// Sets the limits of the group `dir`.
pub(crate) fn apply(dir: &Path, v2: bool, limits: &Limits) -> Result<(), ApplyLimitError> {
    let setter = Setter {
        controller: Controller::Memory,
        dir,
    };
    let memory = MemController::new(dir.to_path_buf(), PathBuf::new(), v2);
    if v2 {
        apply_v2(&setter, &memory, limits)
    } else {
        apply_v1(&setter, &memory, limits)
    }
}

fn apply_v2(
    setter: &Setter<'_>,
    memory: &MemController,
    limits: &Limits,
) -> Result<(), ApplyLimitError> {
    // The group kill is set before the limit, so that the kernel cannot kill only a part of a task.
    setter.write("memory.oom.group", "1")?;
    let set = |low, high, max| {
        let min = None;
        memory.set_mem(SetMemory {
            low,
            high,
            min,
            max,
        })
    };
    let value = |bytes: Option<u64>| match bytes {
        Some(bytes) => MaxValue::Value(saturating(bytes)),
        None => MaxValue::Max,
    };
    let low = limits.memory_low_bytes.unwrap_or(0);
    let low_set = || set(Some(value(Some(low))), None, None);
    setter.set("memory.low", &low.to_string(), low_set, |got| {
        matches_limit(got, Some(low))
    })?;
    let high = limits.memory_high_bytes;
    let high_set = || set(None, Some(value(high)), None);
    // Few tasks have such a limit, and a new group has none.
    if high.is_some() || setter.number("memory.high")?.is_some() {
        setter.set("memory.high", &value(high).to_string(), high_set, |got| {
            matches_limit(got, high)
        })?;
    }
    if setter.has("memory.swap.max") {
        let swap = limits.memory_swap_max_bytes;
        let swap_set = || memory.set_memswap_limit(saturating(swap));
        setter.set("memory.swap.max", &swap.to_string(), swap_set, |got| {
            matches_limit(got, Some(swap))
        })?;
    }
    let max = limits.memory_max_bytes;
    let max_set = || set(None, None, Some(value(max)));
    setter.set("memory.max", &value(max).to_string(), max_set, |got| {
        matches_limit(got, max)
    })
}

fn apply_v1(
    setter: &Setter<'_>,
    memory: &MemController,
    limits: &Limits,
) -> Result<(), ApplyLimitError> {
    let max = limits.memory_max_bytes;
    let wanted = max.map_or(-1, saturating);
    let set_max = || {
        let set = || memory.set_limit(wanted);
        setter.set("memory.limit_in_bytes", &wanted.to_string(), set, |got| {
            matches_limit(got, max)
        })
    };
    let swap_file = "memory.memsw.limit_in_bytes";
    if setter.has(swap_file) {
        let both = max.map(|max| max.saturating_add(limits.memory_swap_max_bytes));
        let wanted_both = both.map_or(-1, saturating);
        let set_both = || {
            let set = || memory.set_memswap_limit(wanted_both);
            setter.set(swap_file, &wanted_both.to_string(), set, |got| {
                matches_limit(got, both)
            })
        };
        // The kernel requires at each step that the memory limit is at most the limit of memory and swap.
        let rises = match (max, setter.number(swap_file)?) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(max), Some(current)) => max > current,
        };
        if rises {
            set_both()?;
            set_max()?;
        } else {
            set_max()?;
            set_both()?;
        }
    } else {
        set_max()?;
    }
    let Some(low) = limits.memory_low_bytes else {
        return Ok(());
    };
    let set = || memory.set_soft_limit(saturating(low));
    setter.set("memory.soft_limit_in_bytes", &low.to_string(), set, |got| {
        matches_limit(got, Some(low))
    })
}

/// Limits the group `dir` with all below it, without killing it as a whole. `None` removes the limit.
pub(crate) fn limit_all(dir: &Path, v2: bool, max: Option<u64>) -> Result<(), ApplyLimitError> {
    let setter = Setter {
        controller: Controller::Memory,
        dir,
    };
    let file = if v2 {
        "memory.max"
    } else {
        "memory.limit_in_bytes"
    };
    let none = if v2 { "max" } else { "-1" };
    let wanted = max.map_or(none.to_owned(), |max| max.to_string());
    setter.write_line(file, &wanted, |got| matches_limit(got, max))
}

/// The files that [`apply`] sets, as far as the kernel has them.
pub(crate) fn files(v2: bool) -> &'static [&'static str] {
    if v2 {
        &[
            "memory.oom.group",
            "memory.low",
            "memory.high",
            "memory.swap.max",
            "memory.max",
        ]
    } else {
        &[
            "memory.limit_in_bytes",
            "memory.memsw.limit_in_bytes",
            "memory.soft_limit_in_bytes",
        ]
    }
}

/// Sets the reservation of the group `dir` to the sum of its children's. A reservation only holds as far as each group
/// above it has one. This applies to v2 only; v1 considers each group alone.
pub(crate) fn sum_children(dir: &Path) -> Result<(), ApplyLimitError> {
    let failed = |source| ApplyLimitError::Read {
        controller: Controller::Memory,
        source,
    };
    let mut sum: u64 = 0;
    for child in subgroups::children(dir).map_err(failed)? {
        match file::limit(&child, "memory.low") {
            Ok(low) => sum = sum.saturating_add(low.unwrap_or(0)),
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let setter = Setter {
        controller: Controller::Memory,
        dir,
    };
    if setter.number("memory.low")? == Some(sum) {
        return Ok(());
    }
    setter.write("memory.low", &sum.to_string())
}

/// Like [`sum_children`], after a child of `dir` was removed. Without a reservation in `dir` the children are not read.
pub(crate) fn sum_after_removal(dir: &Path) -> Result<(), ApplyLimitError> {
    let setter = Setter {
        controller: Controller::Memory,
        dir,
    };
    if setter.number("memory.low")? == Some(0) {
        return Ok(());
    }
    sum_children(dir)
}

/// The nearest group from `dir` upwards that has no reservation. Reservations of groups below it do not hold. The root
/// of the hierarchy has all memory, and no such file.
pub(crate) fn unreserved(dir: &Path) -> Option<&Path> {
    dir.ancestors()
        .map_while(|dir| Some((dir, file::limit(dir, "memory.low").ok()?)))
        .find(|(_, low)| *low == Some(0))
        .map(|(dir, _)| dir)
}

/// Whether a file with the content `got` holds the limit. The kernel rounds down to whole pages.
fn matches_limit(got: &str, wanted: Option<u64>) -> bool {
    let got = if got == "max" {
        Some(u64::MAX)
    } else {
        got.parse().ok()
    };
    match (got, wanted) {
        (Some(got), Some(wanted)) if wanted < V1_UNLIMITED_BYTES => {
            got <= wanted && wanted - got < MEMORY_ROUNDING_BYTES
        }
        (Some(got), _) => got >= V1_UNLIMITED_BYTES,
        (None, _) => false,
    }
}

/// Whether the value of a limit file is a limit, and not v1's value for no limit.
pub(crate) fn is_limit(bytes: u64) -> bool {
    bytes < V1_UNLIMITED_BYTES
}

fn saturating(bytes: u64) -> i64 {
    saturating::to_i64(bytes)
}

/// The swap limit that the group `dir` cannot have: this host swaps without counting swap by group.
pub(crate) fn uncounted_swap(dir: &Path, v2: bool) -> Option<Unenforced> {
    let file = if v2 {
        "memory.swap.max"
    } else {
        "memory.memsw.limit_in_bytes"
    };
    if dir.join(file).exists() {
        return None;
    }
    // The first line is a heading. A host that provides no swap list has no /proc, and no relevant swap.
    let swaps = std::fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps.lines().count() < 2 {
        return None;
    }
    let reason = format!(
        "swap cannot be limited, {file} is missing: switch swap off, or boot with swapaccount=1"
    );
    Some(Unenforced {
        controller: Controller::Memory,
        reason,
    })
}

/// The file with the memory that counts against the limit.
pub(crate) fn current_name(v2: bool) -> &'static str {
    if v2 {
        "memory.current"
    } else {
        "memory.usage_in_bytes"
    }
}

/// The memory use of the group at `at`. Each file is read once.
pub(crate) fn stats<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    at: GroupHierarchy,
) -> Result<MemoryStats, CgroupFileError> {
    if at.is_none() {
        stats_v2(files, at)
    } else {
        stats_v1(files, at)
    }
}

/// The kinds of memory use of the group at `at` from one file; the other values are missing. v2 has swap in a file of
/// its own, and v1 has the kernel's memory in one.
pub(crate) fn kinds<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    at: GroupHierarchy,
) -> Result<MemoryStats, CgroupFileError> {
    let text = files.read(at, STAT)?;
    let keys = if at.is_none() {
        ["anon", "file", "shmem", "", "kernel", "pgmajfault"]
    } else {
        // A group's own pages are counted under the plain name, its children's under `total_`.
        [
            "total_rss",
            "total_cache",
            "total_shmem",
            "total_swap",
            "",
            "total_pgmajfault",
        ]
    };
    let [
        rss_bytes,
        cache_bytes,
        shmem_bytes,
        swap_bytes,
        kernel_bytes,
        major_faults,
    ] = file::keyed_all(text, keys);
    Ok(MemoryStats {
        rss_bytes,
        cache_bytes,
        shmem_bytes,
        swap_bytes,
        kernel_bytes,
        major_faults,
        ..MemoryStats::default()
    })
}

fn stats_v2<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    at: GroupHierarchy,
) -> Result<MemoryStats, CgroupFileError> {
    let kinds = kinds(files, at)?;
    let events = files.read(at, "memory.events")?;
    let [high_events, max_events, oom_kills] = file::keyed_all(events, ["high", "max", "oom_kill"]);
    Ok(MemoryStats {
        current_bytes: files.number(at, current_name(true))?,
        peak_bytes: files.number_if_any(at, peak_name(true))?,
        limit_bytes: files.limit(at, "memory.max")?,
        swap_bytes: files.number_if_any(at, "memory.swap.current")?,
        high_events,
        max_events,
        oom_kills: oom_kills.unwrap_or(0),
        ..kinds
    })
}

fn stats_v1<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    at: GroupHierarchy,
) -> Result<MemoryStats, CgroupFileError> {
    let kinds = kinds(files, at)?;
    let limit = files.limit(at, "memory.limit_in_bytes")?;
    Ok(MemoryStats {
        current_bytes: files.number(at, current_name(false))?,
        peak_bytes: files.number_if_any(at, peak_name(false))?,
        limit_bytes: limit.filter(|limit| is_limit(*limit)),
        kernel_bytes: files.number_if_any(at, "memory.kmem.usage_in_bytes")?,
        oom_kills: oom::kills_v1(files, at)?,
        ..kinds
    })
}

/// Whether the v2 group `dir` counts its swapped memory.
pub(crate) fn counts_swap(dir: &Path) -> bool {
    dir.join("memory.swap.current").exists()
}

/// The highest memory use so far. v2 provides it since Linux 5.19.
pub(crate) fn peak(dir: &Path, v2: bool) -> Result<Option<u64>, CgroupFileError> {
    let text = file::read_if_any(dir, peak_name(v2))?;
    Ok(text.as_deref().and_then(file::parse_number))
}

fn peak_name(v2: bool) -> &'static str {
    if v2 {
        "memory.peak"
    } else {
        "memory.max_usage_in_bytes"
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::{matches_limit, sum_after_removal, sum_children, unreserved};

    fn group(dir: &Path, low: u64) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("memory.low"), format!("{low}\n")).unwrap();
    }

    fn low(dir: &Path) -> String {
        fs::read_to_string(dir.join("memory.low")).unwrap()
    }

    /// The allocation `a` has two tasks and `b` one. Each sum has as many digits as the value that it replaces.
    #[test]
    fn parent_cgroups_reserve_the_sum_of_children() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        for (name, bytes) in [("", 10), ("a", 10), ("a/x", 20), ("a/y", 30), ("b", 40)] {
            group(&root.join(name), bytes);
        }

        sum_children(&root.join("a")).unwrap();
        sum_children(root).unwrap();
        assert_eq!(
            (low(&root.join("a")), low(root)),
            ("50\n".into(), "90\n".into())
        );

        fs::remove_dir_all(root.join("a")).unwrap();
        sum_after_removal(root).unwrap();
        assert_eq!(low(root), "40\n");
    }

    #[test]
    fn without_a_reservation_nothing_is_summed() {
        let dir = tempfile::tempdir().unwrap();
        group(dir.path(), 0);
        group(&dir.path().join("a"), 7);

        sum_after_removal(dir.path()).unwrap();

        assert_eq!(low(dir.path()), "0\n");
    }

    /// A service in a slice, below the root, which has no such file.
    #[test]
    fn the_group_that_keeps_nothing_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let slice = dir.path().join("system.slice");
        let service = slice.join("muster.service");
        group(&slice, 0);
        group(&service, 9);

        assert_eq!(unreserved(&service), Some(slice.as_path()));
        group(&slice, 9);
        assert_eq!(unreserved(&service), None);
        group(&service, 0);
        assert_eq!(unreserved(&service), Some(service.as_path()));
        assert_eq!(unreserved(dir.path()), None);
    }

    #[test]
    fn whole_pages_below_the_limit_hold_it() {
        assert!(matches_limit("65536", Some(65_536)));
        assert!(matches_limit("65536", Some(65_537)));
        assert!(!matches_limit("131072", Some(65_537)));
        assert!(!matches_limit("0", Some(65_536)));
        assert!(matches_limit("max", None));
        assert!(matches_limit("9223372036854771712", None));
        assert!(!matches_limit("65536", None));
        assert!(!matches_limit("", None));
    }
}
