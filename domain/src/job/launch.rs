//! Jobs that make other jobs: by time, and on request.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::group::TaskGroup;

job_block! {
    /// A job that is launched by time. Each launch is a job of its own, `<id>/periodic-<unix seconds>`.
    pub struct Periodic {
        /// Whether the job is launched by time; a disabled one can be forced. Default `true`.
        pub enabled: bool = true;
        /// Cron expressions; the earliest next one counts.
        pub specs: Vec<String> = Vec::new();
        /// Do not launch while an earlier launch runs.
        pub prohibit_overlap: bool = false;
        /// A name of the IANA time zone database; default `UTC`.
        pub time_zone: String = "UTC".to_owned();
    }
}

/// The text before the time in the id of a launch.
pub const PERIODIC_LAUNCH_INFIX: &str = "/periodic-";
/// The text before time and random part in the id of a dispatched job.
pub const DISPATCH_LAUNCH_INFIX: &str = "/dispatch-";

/// Whether a dispatch carries a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PayloadUse {
    Optional,
    Required,
    Forbidden,
}

crate::text_enum!(pub PayloadUse: "payload use" {
    Optional => "optional",
    Required => "required",
    Forbidden => "forbidden",
});

job_block! {
    /// A job that is a template: it runs only as what is dispatched from it.
    pub struct Parameterized {
        /// Whether a dispatch carries a payload.
        pub payload: PayloadUse = PayloadUse::Optional;
        /// Keys of metadata that a dispatch must carry.
        pub meta_required: Vec<String> = Vec::new();
        /// Keys of metadata that a dispatch may carry.
        pub meta_optional: Vec<String> = Vec::new();
    }
}

/// The origin of a job that another one made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrigin {
    /// The id of the periodic or parameterized job, in the same namespace.
    pub parent_id: String,
    /// Whether it was dispatched; else it was launched by time.
    pub dispatched: bool,
    /// The payload of the dispatch.
    pub payload: Vec<u8>,
    /// The token by which a repeated dispatch is known; empty if none was given.
    pub idempotency_token: String,
}

job_block! {
    /// Bounds between which a group is scaled, and what a scaler wants to know.
    pub struct Scaling {
        pub min: u32 = TaskGroup::DEFAULT_COUNT;
        /// A job must name it. The greatest number adds no second fault about a count above it.
        pub max: u32 = u32::MAX;
        /// Whether scalers should look at it.
        pub enabled: bool = true;
        /// The scaler's own settings: a JSON object, kept as text.
        pub policy_json: String = "{}".to_owned();
    }
}

/// A group's request for a host volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeAsk {
    /// The name under which the node offers it.
    pub source: String,
    /// Whether tasks may only read it.
    pub read_only: bool,
}

/// A group's volumes by their name in the job.
pub type VolumeAsks = BTreeMap<String, VolumeAsk>;

/// A volume of the group at a place of a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The name in the group.
    pub volume: String,
    /// The place in the task: an absolute path, or one in the task's directory. References are filled in by the agent.
    pub destination: String,
    /// Whether the task may only read it.
    pub read_only: bool,
    /// Whether mounts below it are seen on the other side.
    pub propagation: Propagation,
    /// The SELinux label that its files get; empty for none.
    pub selinux_label: String,
}

/// Whether mounts below a volume pass between the host and a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Propagation {
    /// Neither sees new mounts of the other.
    #[default]
    Private,
    /// The task sees new mounts of the host.
    HostToTask,
    /// Both see new mounts of each other.
    Bidirectional,
}

crate::text_enum!(pub Propagation: "propagation mode" {
    Private => "private",
    HostToTask => "host-to-task",
    Bidirectional => "bidirectional",
});
