//! Reads the settings of periodic and parameterized jobs, and of scaling.

use muster_domain::job::{Periodic, Propagation, Scaling, TaskGroup, VolumeAsk, VolumeMount};
use serde_json::Value;

use crate::api::block::Block;
use crate::api::job::launch as job;
use crate::api::job::table::{BlockForm, check_word, small_number};
use crate::api::job::unsupported;

/// The `Periodic` block.
pub(in crate::api) fn read_periodic(block: &mut Block<'_>, default: &Periodic) -> Periodic {
    check_word(block, "SpecType", "cron", "");
    let mut specs = block.strings("Specs");
    let spec = block.word("Spec");
    if spec.is_some() && !specs.is_empty() {
        block.fault("Specs", "stands beside `Spec`: write `cron` or `crons`");
    }
    if let [one] = specs.as_slice() {
        block.keep("Spec", &Value::from(""));
        block.keep("Specs", &Value::from(vec![one.clone()]));
    }
    specs.extend(spec);
    let default = Periodic {
        specs,
        ..default.clone()
    };
    job::Periodic::read_fields(block, &default)
}

/// The `Scaling` block of a group. The default of its `min` is the group's count, if it has one.
pub(super) fn read_group_scaling(group: &mut Block<'_>) -> Option<Scaling> {
    let count = group.value("Count").and_then(small_number);
    let default = Scaling {
        min: count.unwrap_or(TaskGroup::DEFAULT_COUNT),
        ..Scaling::default()
    };
    let block = group.block("Scaling")?;
    Some(job::Scaling::read_block(block, &default))
}

/// The `Scaling` block.
pub(in crate::api) fn read_scaling(block: &mut Block<'_>, default: &Scaling) -> Scaling {
    check_word(block, "Type", "horizontal", "");
    job::Scaling::read_fields(block, default)
}

/// The most instances, which must be there.
pub(in crate::api) fn read_scaling_max(block: &mut Block<'_>, name: &'static str) -> Option<u32> {
    let max = block.number(name, u32::MAX);
    if max.is_none() {
        block.fault(name, "is missing");
    }
    max
}

/// The settings of a scaler, of any shape.
pub(in crate::api) fn read_scaling_policy(
    block: &mut Block<'_>,
    name: &'static str,
) -> Option<String> {
    block.value(name).map(Value::to_string)
}

/// A volume of a group.
pub(in crate::api) fn read_volume(volume: &mut Block<'_>, default: &VolumeAsk) -> VolumeAsk {
    check_word(volume, "Type", "host", ", a directory that the node offers");
    drop(volume.word("Name"));
    job::Volume::read_fields(volume, default)
}

/// A mount of a volume.
pub(in crate::api) fn read_mount(block: &mut Block<'_>, default: &VolumeMount) -> VolumeMount {
    let read = job::VolumeMount::read_fields(block, default);
    if read.propagation == Propagation::Bidirectional {
        block.warn_as_listed(unsupported::VOLUME_MOUNT, "PropagationMode");
    }
    if !read.selinux_label.is_empty() {
        block.warn_as_listed(unsupported::VOLUME_MOUNT, "SELinuxLabel");
    }
    read
}
