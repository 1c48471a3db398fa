//! The v1 controller `blkio`: a file for each of the four rates, and the weight of the scheduler bfq.
//!
//! The controller attributes reads to their group, and writes that bypass the cache or are waited for (`O_DIRECT`,
//! `O_SYNC`, `fsync`). A later write-back from the cache belongs to no group, so no rate limits it
//! (`Documentation/admin-guide/cgroup-v1/blkio-controller.rst`). Rates apply to each group by itself. A group that a
//! task makes below its own is not counted with it. So a task that may write to this hierarchy is not limited. CFQ and
//! its weights (`blkio.weight`) were removed in Linux 5.0, which is older than every kernel that Muster supports.

use cgroups_rs::fs::blkio::BlkIoController;
use cgroups_rs::fs::error::Result as SetResult;
use muster_domain::job::ByteRate;
use muster_domain::resources::IoLimits;

use super::{disks, of_disk};
use crate::resources::cgroup::resources::{ApplyLimitError, Setter};

/// One of the rate files. A kernel has all of them or none.
pub(super) const RATE: &str = "blkio.throttle.read_bps_device";

/// The weight files, in the format of the v2 list.
pub(super) const WEIGHTS: [(&str, u16); 1] = [("blkio.bfq.weight", 1_000)];

/// The files that [`super::apply`] sets here.
pub(super) const FILES: [&str; 5] = [
    RATE,
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
    WEIGHTS[0].0,
];

/// The warning about limits of writes.
pub(super) const NOT_ALL_WRITES: &str = "the task's limits of writes hold for those that pass the cache or are waited for (O_DIRECT, O_SYNC, fsync) alone: \
     blkio is bound to cgroup v1, which does not know whose the cached pages are that the kernel writes later; boot with \
     cgroup_no_v1=blkio to have all writes limited";

/// The function of cgroups-rs that sets a rate of the disk `major:minor`; 0 removes the rate.
type SetRate = fn(&BlkIoController, u64, u64, u64) -> SetResult<()>;

/// The function for each rate, in the order of [`FILES`].
const SETS: [SetRate; 4] = [
    BlkIoController::throttle_read_bps_for_device,
    BlkIoController::throttle_write_bps_for_device,
    BlkIoController::throttle_read_iops_for_device,
    BlkIoController::throttle_write_iops_for_device,
];

/// The rates, in the order of [`FILES`].
fn rates(io: &IoLimits) -> [Option<u64>; 4] {
    let bytes = |rate: Option<ByteRate>| rate.map(|ByteRate(bytes)| bytes);
    // The kernel treats the highest number as no limit.
    let ops = |ops: Option<u32>| ops.filter(|ops| *ops != u32::MAX).map(u64::from);
    [
        bytes(io.read_rate),
        bytes(io.write_rate),
        ops(io.read_ops),
        ops(io.write_ops),
    ]
}

/// The disks among `disks` for which the v1 group lacks a rate.
pub(super) fn unlimited(
    setter: &Setter<'_>,
    io: &IoLimits,
    disks: &[String],
) -> Result<Vec<String>, ApplyLimitError> {
    let mut limits = Vec::new();
    for (file, rate) in FILES.into_iter().zip(rates(io)) {
        if rate.is_some() {
            limits.extend(setter.text(file)?);
        }
    }
    let lacks = |disk: &&String| limits.iter().any(|now| of_disk(now, disk).is_none());
    Ok(disks.iter().filter(lacks).cloned().collect())
}

/// Sets the rates of the v1 group.
pub(super) fn set_rates(setter: &Setter<'_>, io: &IoLimits) -> Result<(), ApplyLimitError> {
    let wanted = rates(io).into_iter().zip(SETS);
    for (file, (rate, set)) in FILES.into_iter().zip(wanted) {
        // A kernel without block throttling has no such file; `unsupported_limits` reports that.
        if let Some(now) = setter.text(file)? {
            set_rate(setter, file, &now, rate, set)?;
        }
    }
    Ok(())
}

/// Sets the rate of every disk in `file`, or removes it from the disks that `now` lists.
fn set_rate(
    setter: &Setter<'_>,
    file: &str,
    now: &str,
    rate: Option<u64>,
    set: SetRate,
) -> Result<(), ApplyLimitError> {
    let blkio = BlkIoController::new(setter.dir.to_path_buf(), "".into(), false);
    let limited = now.lines().filter_map(|line| line.split(' ').next());
    let found = match rate {
        Some(_) => disks(),
        None => limited.map(str::to_owned).collect(),
    };
    let wanted = rate.map(|rate| rate.to_string());
    for disk in found {
        let Some((major, minor)) = numbers(&disk) else {
            continue;
        };
        let value = rate.unwrap_or(0);
        let set = setter.set(
            file,
            &format!("{disk} {value}"),
            || set(&blkio, major, minor, value),
            |got| of_disk(got, &disk) == wanted.as_deref(),
        );
        match set {
            // The disk was removed after it was listed.
            Err(_) if !disks().contains(&disk) => {}
            other => other?,
        }
    }
    Ok(())
}

fn numbers(disk: &str) -> Option<(u64, u64)> {
    let (major, minor) = disk.split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::numbers;

    #[test]
    fn a_disk_is_two_numbers() {
        assert_eq!(numbers("254:16"), Some((254, 16)));
        assert_eq!(numbers("254"), None);
    }
}
