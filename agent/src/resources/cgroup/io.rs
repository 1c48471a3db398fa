//! Disks: rate limits for each, and a share of busy disks.
//!
//! A job names no disk, because it does not know its node's disks. Each limit applies to every disk that exists when
//! the limit is set, and to later disks once `new_disks` finds them. Disks on top of other disks (partitions' mappings,
//! loops) get the same limits as the disks below them.
//!
//! One line of v2's `io.max` has all four limits of a disk. So it is written as a whole, and not by cgroups-rs, which
//! writes each limit separately. [`v1`] describes how v1 differs.

mod v1;

use std::fs;
use std::path::Path;

use muster_domain::job::ByteRate;
use muster_domain::resources::IoLimits;

use crate::resources::cgroup::controller::Controller;
use crate::resources::cgroup::file;
use crate::resources::cgroup::resources::{ApplyLimitError, Limits, Setter, Unenforced};
use crate::resources::cgroup::subgroups;

/// The directory in which the kernel lists disks.
const DISKS: &str = "/sys/block";

const MAX: &str = "io.max";

/// The weight of a group without a configured weight.
const WEIGHT_DEFAULT: u16 = 100;

/// The files of the weight for schedulers that divide a disk's time (`io.cost`, `bfq`), each with its highest weight.
const WEIGHTS: [(&str, u16); 2] = [
    ("io.weight", IoLimits::WEIGHT_MAX),
    ("io.bfq.weight", 1_000),
];

fn weights(v2: bool) -> &'static [(&'static str, u16)] {
    if v2 { &WEIGHTS } else { &v1::WEIGHTS }
}

/// Whether the limits of disks can be set in the v2 group `dir`.
pub(crate) fn is_in_v2(dir: &Path) -> bool {
    dir.join("io.stat").exists()
}

/// Sets the limits of the group `dir`.
pub(crate) fn apply(dir: &Path, v2: bool, limits: &Limits) -> Result<(), ApplyLimitError> {
    let setter = Setter {
        controller: Controller::Io,
        dir,
    };
    if !v2 {
        v1::set_rates(&setter, &limits.io)?;
    // A kernel without block throttling has no such file; `unsupported_limits` reports that.
    } else if let Some(now) = setter.text(MAX)? {
        set_rates(&setter, &now, line(&limits.io))?;
    }
    let weight = limits.io.weight.unwrap_or(WEIGHT_DEFAULT);
    set_weight(&setter, v2, u32::from(weight))
}

/// Writes the weight for schedulers that divide a disk's time, where it differs.
fn set_weight(setter: &Setter<'_>, v2: bool, weight: u32) -> Result<(), ApplyLimitError> {
    for (name, max) in weights(v2) {
        let wanted = weight.clamp(1, u32::from(*max));
        let now = setter.text(name)?;
        if now.is_some_and(|now| default_of(&now) != Some(wanted)) {
            let holds = |got: &str| default_of(got) == Some(wanted);
            // v1 takes the number alone.
            let words = if v2 { "default " } else { "" };
            setter.write_line(name, &format!("{words}{wanted}"), holds)?;
        }
    }
    Ok(())
}

fn set_rates(
    setter: &Setter<'_>,
    now: &str,
    wanted: Option<String>,
) -> Result<(), ApplyLimitError> {
    let Some(wanted) = wanted else {
        for disk in now.lines().filter_map(|line| line.split(' ').next()) {
            let free = format!("{disk} rbps=max wbps=max riops=max wiops=max");
            setter.write_line(MAX, &free, |got| of_disk(got, disk).is_none())?;
        }
        return Ok(());
    };
    for disk in disks() {
        set_rates_of(setter, &disk, &wanted)?;
    }
    Ok(())
}

fn set_rates_of(setter: &Setter<'_>, disk: &str, wanted: &str) -> Result<(), ApplyLimitError> {
    let line = format!("{disk} {wanted}");
    match setter.write_line(MAX, &line, |got| of_disk(got, disk) == Some(wanted)) {
        // The disk was removed after it was listed.
        Err(_) if !disks().iter().any(|other| other == disk) => Ok(()),
        other => other,
    }
}

/// Sets the rates of those of `disks` for which the group `dir` has none, and returns those disks.
pub(crate) fn limit_new(
    dir: &Path,
    v2: bool,
    io: &IoLimits,
    disks: &[String],
) -> Result<Vec<String>, ApplyLimitError> {
    let Some(wanted) = line(io) else {
        return Ok(Vec::new());
    };
    let setter = Setter {
        controller: Controller::Io,
        dir,
    };
    if !v2 {
        let new = v1::unlimited(&setter, io, disks)?;
        if !new.is_empty() {
            v1::set_rates(&setter, io)?;
        }
        return Ok(new);
    }
    let Some(now) = setter.text(MAX)? else {
        return Ok(Vec::new());
    };
    let is_new = |disk: &&String| of_disk(&now, disk).is_none();
    let new: Vec<String> = disks.iter().filter(is_new).cloned().collect();
    for disk in &new {
        set_rates_of(&setter, disk, &wanted)?;
    }
    Ok(new)
}

/// Sets the weight of the group `dir` to the sum of its children's weights, if a disk's time is divided.
pub(crate) fn sum_children(dir: &Path, v2: bool) -> Result<(), ApplyLimitError> {
    let controller = Controller::Io;
    let setter = Setter { controller, dir };
    let children =
        || subgroups::children(dir).map_err(|source| ApplyLimitError::Read { controller, source });
    for (name, _) in weights(v2) {
        if !setter.has(name) {
            continue;
        }
        let mut sum: u32 = 0;
        for dir in &children()? {
            let text = Setter { controller, dir }.text(name)?;
            sum += text.as_deref().and_then(default_of).unwrap_or(0);
        }
        set_weight(&setter, v2, sum)?;
    }
    Ok(())
}

/// The files that [`apply`] sets, as far as the kernel has them.
pub(crate) fn files(v2: bool) -> &'static [&'static str] {
    if v2 {
        &[MAX, WEIGHTS[0].0, WEIGHTS[1].0]
    } else {
        &v1::FILES
    }
}

/// The warning about limits in `io` that apply only to a part of the task's writes.
pub(crate) fn partial_limit_warning(v2: bool, io: &IoLimits) -> Option<&'static str> {
    let writes = io.write_rate.is_some() || io.write_ops.is_some();
    (!v2 && writes).then_some(v1::NOT_ALL_WRITES)
}

/// The part of `io` that this kernel cannot enforce. `group` is the group's directory, and whether it is in v2; `None`
/// if there is none.
pub(crate) fn unsupported_limits(
    group: Option<(&Path, bool)>,
    io: &IoLimits,
) -> Option<Unenforced> {
    if io.is_none() {
        return None;
    }
    let unenforced = |reason: String| {
        Some(Unenforced {
            controller: Controller::Io,
            reason,
        })
    };
    let Some((dir, v2)) = group else {
        return unenforced(
            "the task's disk limits cannot be kept: the io controller is not passed on to the agent's part of cgroup v2, \
             and not bound to a v1 hierarchy (blkio) that the agent can make cgroups in; have io delegated, or boot \
             with cgroup_no_v1=blkio"
                .to_owned(),
        );
    };
    let has = |name: &str| dir.join(name).exists();
    let rates = if v2 { MAX } else { v1::RATE };
    if line(io).is_some() && !has(rates) {
        return unenforced(format!(
            "the task's disk rates cannot be kept: this kernel has no {rates} (CONFIG_BLK_DEV_THROTTLING)"
        ));
    }
    if io.weight.is_some() && !weights(v2).iter().any(|(name, _)| has(name)) {
        let other = if v2 {
            "neither io.weight (CONFIG_BLK_CGROUP_IOCOST) nor"
        } else {
            "not"
        };
        return unenforced(format!(
            "the task's disk weight cannot be kept: this kernel has {other} the scheduler bfq"
        ));
    }
    None
}

/// Formats the rates as in a line of `io.max` after the disk; `None` without rates.
fn line(io: &IoLimits) -> Option<String> {
    let IoLimits {
        read_rate,
        write_rate,
        read_ops,
        write_ops,
        weight: _,
    } = *io;
    let rate = |rate: Option<ByteRate>| rate.map(|ByteRate(bytes)| bytes);
    let values = [
        ("rbps", rate(read_rate)),
        ("wbps", rate(write_rate)),
        ("riops", read_ops.map(u64::from)),
        ("wiops", write_ops.map(u64::from)),
    ];
    if values.iter().all(|(_, value)| value.is_none()) {
        return None;
    }
    let words = values.map(|(name, value)| {
        let value = value.map_or("max".to_owned(), |value| value.to_string());
        format!("{name}={value}")
    });
    Some(words.join(" "))
}

/// The rest of the line of `disk` in `text`.
fn of_disk<'a>(text: &'a str, disk: &str) -> Option<&'a str> {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == disk).map(|(_, rest)| rest)
}

/// The weight for every disk; some kernels put `default` before it.
fn default_of(text: &str) -> Option<u32> {
    let line = text.lines().next()?;
    line.strip_prefix("default ")
        .unwrap_or(line)
        .trim()
        .parse()
        .ok()
}

/// The disks of this machine with a nonzero size, as `major:minor`, sorted by name.
pub fn disks() -> Vec<String> {
    // A machine without this directory has no disks.
    let entries = fs::read_dir(DISKS).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let value = |name| file::read(&entry.path(), name).ok();
            // Drives without a medium and loops without a file have size zero. Paths of a multipath disk have no
            // number.
            let is_empty = value("size")?.trim() == "0";
            let number = value("dev").filter(|_| !is_empty)?;
            Some((entry.file_name(), number.trim().to_owned()))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, number)| number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_every_limit_of_a_disk() {
        let io = IoLimits {
            read_rate: Some(ByteRate(1 << 20)),
            write_ops: Some(50),
            weight: Some(7),
            ..IoLimits::default()
        };

        assert_eq!(
            line(&io).as_deref(),
            Some("rbps=1048576 wbps=max riops=max wiops=50")
        );
        let weight_only = IoLimits {
            weight: Some(7),
            ..IoLimits::default()
        };
        assert_eq!(line(&weight_only), None);
    }

    #[test]
    fn a_disk_is_found_by_its_whole_number() {
        let text =
            "8:16 rbps=1 wbps=max riops=max wiops=max\n8:1 rbps=2 wbps=max riops=max wiops=max\n";

        assert_eq!(
            of_disk(text, "8:1"),
            Some("rbps=2 wbps=max riops=max wiops=max")
        );
        assert_eq!(of_disk(text, "8:0"), None);
        assert_eq!(
            (default_of("default 100\n8:0 5"), default_of("77")),
            (Some(100), Some(77))
        );
    }

    #[test]
    fn missing_kernel_files_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        let io = IoLimits {
            write_rate: Some(ByteRate(1 << 20)),
            ..IoLimits::default()
        };

        fn reason(group: Option<(&Path, bool)>, io: &IoLimits) -> String {
            unsupported_limits(group, io).map_or_else(String::new, |unenforced| unenforced.reason)
        }

        assert!(reason(None, &io).contains("cgroup_no_v1=blkio"));
        assert_eq!(unsupported_limits(None, &IoLimits::default()), None);
        for (v2, file) in [(true, MAX), (false, v1::RATE)] {
            let group = Some((dir.path(), v2));
            let message = reason(group, &io);
            assert!(message.contains(file), "{message}");
            assert!(message.contains("CONFIG_BLK_DEV_THROTTLING"), "{message}");
            fs::write(dir.path().join(file), "").unwrap();
            assert_eq!(unsupported_limits(group, &io), None);
            let weighs = IoLimits {
                weight: Some(7),
                ..io
            };
            assert!(reason(group, &weighs).contains("bfq"));
        }
    }

    #[test]
    fn write_limits_in_v1_are_reported_as_partial() {
        let reads = IoLimits {
            read_ops: Some(10),
            ..IoLimits::default()
        };
        let writes = IoLimits {
            write_ops: Some(10),
            ..reads
        };

        assert_eq!(partial_limit_warning(false, &reads), None);
        assert_eq!(partial_limit_warning(true, &writes), None);
        assert!(
            partial_limit_warning(false, &writes)
                .unwrap()
                .contains("O_DIRECT")
        );
    }
}
