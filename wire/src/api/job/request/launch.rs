//! Reads how a job makes others, and how a group is scaled.

use muster_domain::job::{Parameterized, PayloadUse, Periodic, Scaling, TaskGroup};
use serde_json::Value;

use crate::api::block::{Block, FieldNames};

const PERIODIC: FieldNames = FieldNames::NONE;
const SCALING: FieldNames = FieldNames {
    derived: &["ID", "Target", "Namespace", "CreateIndex", "ModifyIndex"],
    ..FieldNames::NONE
};

/// The `Periodic` block.
pub(super) fn read_periodic(job: &mut Block<'_>) -> Option<Periodic> {
    let mut block = job.block("Periodic")?;
    match block.word("SpecType").as_deref() {
        None | Some("cron") => {}
        Some(other) => block.fault(
            "SpecType",
            format!("`{other}` is not supported: use `cron`"),
        ),
    }
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
    let read = Periodic {
        enabled: block.boolean("Enabled").unwrap_or(true),
        specs,
        prohibit_overlap: block.boolean("ProhibitOverlap").unwrap_or(false),
        time_zone: block.word("TimeZone").unwrap_or_else(|| "UTC".to_owned()),
    };
    block.finish(&PERIODIC);
    Some(read)
}

/// The `ParameterizedJob` block.
pub(super) fn read_parameterized(job: &mut Block<'_>) -> Option<Parameterized> {
    let mut block = job.block("ParameterizedJob")?;
    let payload = block.choice("Payload").unwrap_or(PayloadUse::Optional);
    let read = Parameterized {
        payload,
        meta_required: block.strings("MetaRequired"),
        meta_optional: block.strings("MetaOptional"),
    };
    block.finish(&PERIODIC);
    Some(read)
}

/// The `Scaling` block of a group of `count` instances, if that says how many.
pub(super) fn read_scaling(group: &mut Block<'_>, count: Option<u32>) -> Option<Scaling> {
    let mut block = group.block("Scaling")?;
    match block.word("Type").as_deref() {
        None | Some("horizontal") => {}
        Some(other) => block.fault(
            "Type",
            format!("`{other}` is not supported: use `horizontal`"),
        ),
    }
    let max = block.number("Max", u32::MAX).unwrap_or_else(|| {
        block.fault("Max", "is missing");
        // The greatest number adds no second fault about a count above it.
        u32::MAX
    });
    let read = Scaling {
        min: block
            .number("Min", u32::MAX)
            .or(count)
            .unwrap_or(TaskGroup::DEFAULT_COUNT),
        max,
        enabled: block.boolean("Enabled").unwrap_or(true),
        policy_json: block
            .value("Policy")
            .unwrap_or(&Value::Object(serde_json::Map::new()))
            .to_string(),
    };
    block.finish(&SCALING);
    Some(read)
}
