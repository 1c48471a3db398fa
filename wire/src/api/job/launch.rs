//! Jobs that make other jobs, scaling, volumes, and when a task runs.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;

use muster_domain::job as domain;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::api::null::{self, Null};

/// Launched by time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Periodic {
    pub enabled: bool,
    pub spec: String,
    #[serde(with = "null")]
    pub specs: Vec<String>,
    pub spec_type: String,
    pub prohibit_overlap: bool,
    pub time_zone: String,
}

impl From<&domain::Periodic> for Periodic {
    fn from(periodic: &domain::Periodic) -> Self {
        // One expression is told where Nomad has always had it, several where it has them since.
        let (spec, specs) = match periodic.specs.as_slice() {
            [one] => (one.clone(), Vec::new()),
            several => (String::new(), several.to_vec()),
        };
        Self {
            enabled: periodic.enabled,
            spec,
            specs,
            spec_type: "cron".to_owned(),
            prohibit_overlap: periodic.prohibit_overlap,
            time_zone: periodic.time_zone.clone(),
        }
    }
}

/// Run only as what is dispatched.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Parameterized {
    pub payload: String,
    #[serde(with = "null")]
    pub meta_required: Vec<String>,
    #[serde(with = "null")]
    pub meta_optional: Vec<String>,
}

impl From<&domain::Parameterized> for Parameterized {
    fn from(parameterized: &domain::Parameterized) -> Self {
        Self {
            payload: parameterized.payload.as_str().to_owned(),
            meta_required: parameterized.meta_required.clone(),
            meta_optional: parameterized.meta_optional.clone(),
        }
    }
}

/// Bounds for scaling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Scaling {
    #[serde(rename = "Type")]
    pub scaling_type: String,
    pub min: u32,
    pub max: u32,
    pub enabled: bool,
    pub policy: Value,
}

impl From<&domain::Scaling> for Scaling {
    fn from(scaling: &domain::Scaling) -> Self {
        Self {
            scaling_type: "horizontal".to_owned(),
            min: scaling.min,
            max: scaling.max,
            enabled: scaling.enabled,
            policy: serde_json::from_str(&scaling.policy_json).unwrap_or_default(),
        }
    }
}

/// A volume that a group asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Volume {
    pub name: String,
    #[serde(rename = "Type")]
    pub volume_type: String,
    pub source: String,
    pub read_only: bool,
    pub access_mode: String,
    pub attachment_mode: String,
    pub mount_options: Null,
    pub per_alloc: bool,
}

impl Volume {
    /// The volume called `name` in its group.
    #[must_use]
    pub fn new(name: &str, volume: &domain::VolumeAsk) -> Self {
        Self {
            name: name.to_owned(),
            volume_type: "host".to_owned(),
            source: volume.source.clone(),
            read_only: volume.read_only,
            ..Self::default()
        }
    }
}

/// A volume at a place of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct VolumeMount {
    pub volume: String,
    pub destination: String,
    pub read_only: bool,
    pub propagation_mode: String,
    #[serde(rename = "SELinuxLabel")]
    pub selinux_label: String,
}

impl From<&domain::VolumeMount> for VolumeMount {
    fn from(mount: &domain::VolumeMount) -> Self {
        Self {
            volume: mount.volume.clone(),
            destination: mount.destination.clone(),
            read_only: mount.read_only,
            propagation_mode: mount.propagation.as_str().to_owned(),
            selinux_label: mount.selinux_label.clone(),
        }
    }
}

/// The time in the life of an allocation at which a task runs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Lifecycle {
    pub hook: String,
    pub sidecar: bool,
}

impl From<domain::Lifecycle> for Lifecycle {
    fn from(lifecycle: domain::Lifecycle) -> Self {
        Self {
            hook: lifecycle.hook.as_str().to_owned(),
            sidecar: lifecycle.sidecar,
        }
    }
}

/// Where the payload of a dispatch goes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DispatchPayload {
    pub file: String,
}

/// The body of a dispatch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DispatchRequest {
    /// Base64.
    pub payload: Option<String>,
    #[serde(with = "null")]
    pub meta: BTreeMap<String, String>,
    pub id_prefix_template: String,
    /// A dispatch with a token that was used before gives the job that was made then.
    pub idempotency_token: String,
    /// 0 for the parent's.
    pub priority: u64,
}
