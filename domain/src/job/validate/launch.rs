//! Periodic and parameterized jobs, scaling, volumes.

use std::collections::BTreeSet;

use super::{check_count, check_unique, check_value};
use crate::fault::Fault;
use crate::job::{JobSpec, PayloadUse, Scaling, Task, VolumeAsks};
use crate::limits;

/// Checks the launch settings of a job. The control plane parses cron expressions because it has the time zones. Only
/// their size is checked here.
pub(super) fn check(at: &str, spec: &JobSpec, faults: &mut Vec<Fault>) {
    if spec.periodic.is_some() && spec.parameterized.is_some() {
        faults.push(Fault::new(
            at,
            "is periodic and parameterized: launch it by time or on request, not both",
        ));
    }
    let runs_to_its_end = spec.job_type.is_batch();
    if let Some(periodic) = &spec.periodic {
        let at = format!("{at} → periodic");
        if !runs_to_its_end {
            faults.push(Fault::new(
                at.clone(),
                format!(
                    "only batch and sysbatch jobs are periodic, not `{}`",
                    spec.job_type
                ),
            ));
        }
        if periodic.specs.is_empty() {
            faults.push(Fault::new(at.clone(), "has no cron expression"));
        }
        check_count(&at, periodic.specs.len(), limits::CRONS_MAX, faults);
        for cron in &periodic.specs {
            check_value(format_args!("{at} → cron"), cron, faults);
        }
    }
    if let Some(parameterized) = &spec.parameterized {
        let at = format!("{at} → parameterized");
        if !runs_to_its_end {
            faults.push(Fault::new(
                at.clone(),
                format!(
                    "only batch and sysbatch jobs are parameterized, not `{}`",
                    spec.job_type
                ),
            ));
        }
        let keys = parameterized
            .meta_required
            .iter()
            .chain(&parameterized.meta_optional);
        check_unique(&at, "metadata key", keys.map(String::as_str), faults);
        check_count(
            &at,
            parameterized.meta_required.len() + parameterized.meta_optional.len(),
            limits::META_MAX,
            faults,
        );
        let payload_file = spec
            .groups
            .iter()
            .flat_map(|group| &group.tasks)
            .any(|task| !task.payload_file.is_empty());
        if payload_file && parameterized.payload == PayloadUse::Forbidden {
            faults.push(Fault::new(
                at,
                "forbids a payload, but a task has a `dispatch_payload` block",
            ));
        }
    }
    if let Some(launched) = &spec.launched
        && launched.payload.len() > limits::PAYLOAD_BYTES_MAX
    {
        faults.push(Fault::new(
            format!("{at} → payload"),
            format!(
                "is {} bytes, above {}",
                launched.payload.len(),
                limits::PAYLOAD_BYTES_MAX
            ),
        ));
    }
}

/// Checks that the count lies within its bounds.
pub(super) fn check_scaling(at: &str, count: u32, scaling: &Scaling, faults: &mut Vec<Fault>) {
    let at = format!("{at} → scaling");
    if scaling.max < scaling.min {
        faults.push(Fault::new(
            at.clone(),
            format!("max ({}) is below min ({})", scaling.max, scaling.min),
        ));
    }
    if !(scaling.min..=scaling.max).contains(&count) {
        faults.push(Fault::new(
            at.clone(),
            format!(
                "count {count} is outside {} to {}",
                scaling.min, scaling.max
            ),
        ));
    }
    if scaling.policy_json.len() > limits::CONFIG_BYTES_MAX {
        faults.push(Fault::new(
            at,
            format!("its policy is above {} bytes", limits::CONFIG_BYTES_MAX),
        ));
    }
}

/// Checks the volumes of a group.
pub(super) fn check_volumes(at: &str, volumes: &VolumeAsks, faults: &mut Vec<Fault>) {
    check_count(
        format_args!("{at} → volume"),
        volumes.len(),
        limits::VOLUMES_MAX,
        faults,
    );
    for (name, volume) in volumes {
        let at = format!("{at} → volume \"{name}\"");
        check_value(&at, &volume.source, faults);
        if volume.source.is_empty() {
            faults.push(Fault::new(
                at,
                "has no source: name a host volume of the node",
            ));
        }
    }
}

/// Checks that a task's mounts name volumes of its group and have distinct mount points.
pub(super) fn check_mounts(at: &str, volumes: &VolumeAsks, task: &Task, faults: &mut Vec<Fault>) {
    let at = format!("{at} → task \"{}\"", task.name);
    check_count(&at, task.volume_mounts.len(), limits::VOLUMES_MAX, faults);
    let mut places = BTreeSet::new();
    for mount in &task.volume_mounts {
        let at = format!("{at} → volume_mount \"{}\"", mount.volume);
        if !volumes.contains_key(&mount.volume) {
            faults.push(Fault::new(
                at.clone(),
                "the group has no such volume: add a `volume` block to it",
            ));
        }
        let mut parts = mount.destination.split('/');
        if mount.destination.trim_matches('/').is_empty() || parts.any(|part| part == "..") {
            faults.push(Fault::new(
                format!("{at} → destination"),
                format!(
                    "`{}` is not a place in the task: name a directory such as \"/data\" or \"local/data\", without `..`",
                    mount.destination
                ),
            ));
        }
        if !places.insert(mount.destination.as_str()) {
            faults.push(Fault::new(
                at,
                format!("another volume is mounted at {} too", mount.destination),
            ));
        }
    }
}

/// Checks that the payload file stays in the task's directory.
pub(super) fn check_payload_file(at: &str, file: &str, faults: &mut Vec<Fault>) {
    check_value(format_args!("{at} → dispatch_payload.file"), file, faults);
    let leaves = file.starts_with('/') || file.split('/').any(|part| part == "..");
    if leaves {
        faults.push(Fault::new(
            format!("{at} → dispatch_payload.file"),
            format!("`{file}` leaves the task's `local` directory"),
        ));
    }
}
