//! CPU time: a weight from MHz, and a quota if one is requested.
//!
//! v2 weights are MHz divided by ten, so that 1 000 MHz are the kernel's default of 100. v1 shares equal MHz, and their
//! default is 1 024. Both are proportional; weights count in steps of 10 MHz. A weight competes only with its siblings.
//! So an allocation's group weighs the sum of its tasks, and `task` maintains that sum.

use std::path::{Path, PathBuf};

use cgroups_rs::fs::cpu::CpuController;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file::{self, CgroupFileError};
use crate::resources::cgroup::open_files::{CgroupFileReader, GroupHierarchy};
use crate::resources::cgroup::resources::{ApplyLimitError, Limits, Setter};
use crate::resources::cgroup::stats::CpuStats;
use crate::resources::cgroup::subgroups;

/// Time over which a quota is counted, in microseconds: the kernel's default. Shorter periods make tasks smoother and
/// scheduling more expensive.
pub(crate) const PERIOD_US: u32 = 100_000;

/// The shortest quota the kernel takes, in microseconds (`min_cfs_quota_period`).
const QUOTA_US_MIN: f64 = 1_000.0;

/// The file has the same name in both versions.
pub(crate) const STAT: &str = "cpu.stat";

const WEIGHT_MHZ: u64 = 10;
const WEIGHT_MAX: u64 = 10_000;
const SHARES_MIN: u64 = 2;
const SHARES_MAX: u64 = 262_144;

/// The value of `cpu.weight` or `cpu.shares` for `mhz`.
pub(crate) fn weight(mhz: u64, v2: bool) -> u64 {
    if v2 {
        ((mhz + WEIGHT_MHZ / 2) / WEIGHT_MHZ).clamp(1, WEIGHT_MAX)
    } else {
        mhz.clamp(SHARES_MIN, SHARES_MAX)
    }
}

fn setter(dir: &Path, v2: bool) -> (Setter<'_>, CpuController) {
    let controller = CpuController::new(dir.to_path_buf(), PathBuf::new(), v2);
    (
        Setter {
            controller: Controller::Cpu,
            dir,
        },
        controller,
    )
}

fn weight_file(v2: bool) -> &'static str {
    if v2 { "cpu.weight" } else { "cpu.shares" }
}

/// Sets the weight and the quota of the group `dir`.
pub(crate) fn apply(dir: &Path, v2: bool, limits: &Limits) -> Result<(), ApplyLimitError> {
    set_weight(dir, v2, weight(u64::from(limits.cpu_mhz), v2))?;
    set_quota(dir, v2, limits.cpu_cores_max)
}

/// The files that [`apply`] sets, as far as the kernel has them.
pub(crate) fn files(v2: bool) -> &'static [&'static str] {
    if v2 {
        &["cpu.weight", "cpu.max"]
    } else {
        &["cpu.shares", "cpu.cfs_quota_us"]
    }
}

/// Sets the weight of the group `dir` to the sum of its children's weights.
pub(crate) fn sum_children(dir: &Path, v2: bool) -> Result<(), ApplyLimitError> {
    let failed = |source| ApplyLimitError::Read {
        controller: Controller::Cpu,
        source,
    };
    let mut sum = 0;
    for child in subgroups::children(dir).map_err(failed)? {
        match file::number(&child, weight_file(v2)) {
            Ok(weight) => sum += weight,
            // The group was removed after it was listed.
            Err(error) if error.is_gone() => {}
            Err(error) => return Err(failed(error)),
        }
    }
    let (low, high) = if v2 {
        (1, WEIGHT_MAX)
    } else {
        (SHARES_MIN, SHARES_MAX)
    };
    set_weight(dir, v2, sum.clamp(low, high))
}

/// Sets the weight of the group `dir`.
pub(crate) fn set_weight(dir: &Path, v2: bool, weight: u64) -> Result<(), ApplyLimitError> {
    let (setter, cpu) = setter(dir, v2);
    let wanted = weight.to_string();
    setter.set(
        weight_file(v2),
        &wanted,
        || cpu.set_shares(weight),
        |got| got == wanted,
    )
}

fn set_quota(dir: &Path, v2: bool, cores: Option<f64>) -> Result<(), ApplyLimitError> {
    let (setter, cpu) = setter(dir, v2);
    let quota = cores.map(quota_us);
    let set = || cpu.set_cfs_quota_and_period(Some(quota.unwrap_or(-1)), None);
    if v2 {
        let quota = quota.map_or("max".to_owned(), |quota| quota.to_string());
        let wanted = format!("{quota} {PERIOD_US}");
        setter.set("cpu.max", &wanted, set, |got| got == wanted)
    } else if quota.is_none() && !setter.has("cpu.cfs_quota_us") {
        // A kernel without CFS bandwidth control has no quota to remove.
        Ok(())
    } else {
        let wanted = quota.unwrap_or(-1).to_string();
        setter.set("cpu.cfs_quota_us", &wanted, set, |got| got == wanted)
    }
}

fn quota_us(cores: f64) -> i64 {
    let quota = (cores * f64::from(PERIOD_US)).round().max(QUOTA_US_MIN);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "saturates, and is far below: 2^63 µs"
    )]
    let quota = quota as i64;
    quota
}

/// Used CPU time, which each v2 group counts, and throttling. The group at `limited` counts throttling if there is a
/// `cpu` controller.
pub(crate) fn stats<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    limited: Option<GroupHierarchy>,
) -> Result<CpuStats, CgroupFileError> {
    let mut stats = of_v2(files.read(None, STAT)?);
    match limited {
        // Both values are in the same file.
        Some(None) => {}
        Some(v1) => {
            let keys = ["nr_periods", "nr_throttled", "throttled_time"];
            let [periods, throttled_periods, throttled_ns] =
                file::keyed_all(files.read(v1, STAT)?, keys);
            stats.periods = periods;
            stats.throttled_periods = throttled_periods;
            stats.throttled_us = throttled_ns.map(|ns| ns / 1_000);
        }
        None => {
            stats.periods = None;
            stats.throttled_periods = None;
            stats.throttled_us = None;
        }
    }
    Ok(stats)
}

/// Time that processes had to wait for the quota's next period, in microseconds; `None` without a quota controller.
pub(crate) fn throttled_us<D: Fn(GroupHierarchy) -> PathBuf>(
    files: &mut CgroupFileReader<'_, D>,
    limited: Option<GroupHierarchy>,
) -> Result<Option<u64>, CgroupFileError> {
    let Some(at) = limited else {
        return Ok(None);
    };
    let text = files.read(at, STAT)?;
    Ok(match at {
        None => file::keyed(text, "throttled_usec"),
        Some(_) => file::keyed(text, "throttled_time").map(|ns| ns / 1_000),
    })
}

/// CPU time that the v2 group `dir` used, in microseconds.
pub(crate) fn usage_us(dir: &Path) -> Result<Option<u64>, CgroupFileError> {
    Ok(file::keyed(&file::read(dir, STAT)?, "usage_usec"))
}

fn of_v2(text: &str) -> CpuStats {
    let keys = [
        "usage_usec",
        "user_usec",
        "system_usec",
        "nr_periods",
        "nr_throttled",
        "throttled_usec",
    ];
    let [
        usage_us,
        user_us,
        system_us,
        periods,
        throttled_periods,
        throttled_us,
    ] = file::keyed_all(text, keys);
    CpuStats {
        usage_us,
        user_us,
        system_us,
        periods,
        throttled_periods,
        throttled_us,
    }
}

#[cfg(test)]
mod tests {
    use super::{quota_us, weight};

    #[test]
    fn weights_are_proportional_and_bounded() {
        let v2 = [0, 4, 100, 500, 1_000, 4_000, 100_000, u64::from(u32::MAX)];
        assert_eq!(
            v2.map(|mhz| weight(mhz, true)),
            [1, 1, 10, 50, 100, 400, 10_000, 10_000]
        );
        assert_eq!(
            [0, 100, 1_024, 1 << 20].map(|mhz| weight(mhz, false)),
            [2, 100, 1_024, 262_144]
        );
    }

    #[test]
    fn quota_is_a_part_of_the_period() {
        assert_eq!(
            [0.5, 1.0, 2.25, 0.0].map(quota_us),
            [50_000, 100_000, 225_000, 1_000]
        );
    }
}
