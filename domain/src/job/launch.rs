//! Jobs that create other jobs: periodic and parameterized jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::block::job_block;
use super::group::TaskGroup;

job_block! {
    /// The launch schedule of a periodic job. Each launch is a job of its own, `<id>/periodic-<unix seconds>`.
    pub struct Periodic {
        /// Whether the job is launched by time. A disabled job can still be forced. Default `true`.
        pub enabled: bool = true;
        /// Cron expressions; the earliest next time counts.
        pub specs: Vec<String> = Vec::new();
        /// Whether a launch is skipped while an earlier launch runs.
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
    /// The settings of a parameterized job. It is a template: only jobs dispatched from it run.
    pub struct Parameterized {
        /// Whether a dispatch carries a payload.
        pub payload: PayloadUse = PayloadUse::Optional;
        /// Keys of metadata that a dispatch must carry.
        pub meta_required: Vec<String> = Vec::new();
        /// Keys of metadata that a dispatch may carry.
        pub meta_optional: Vec<String> = Vec::new();
    }
}

/// The origin of a job that another job created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaunchOrigin {
    /// The id of the periodic or parameterized job, in the same namespace.
    pub parent_id: String,
    /// Whether the job was dispatched; otherwise it was launched by time.
    pub dispatched: bool,
    /// The payload of the dispatch.
    pub payload: Vec<u8>,
    /// The token that identifies a repeated dispatch; empty if none was given.
    pub idempotency_token: String,
}

job_block! {
    /// Bounds for scaling a group, and settings for the autoscaler.
    pub struct Scaling {
        pub min: u32 = TaskGroup::DEFAULT_COUNT;
        /// The highest count. A job must set it. The default adds no second fault about a count above it.
        pub max: u32 = u32::MAX;
        /// Whether autoscalers consider the group.
        pub enabled: bool = true;
        /// The autoscaler's own settings: a JSON object, stored as text.
        pub policy_json: String = "{}".to_owned();
    }
}

/// A group's request for a host volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeAsk {
    /// The name of the volume on the node.
    pub source: String,
    /// Whether tasks may only read it.
    pub read_only: bool,
}

/// A group's volumes by their name in the job.
pub type VolumeAsks = BTreeMap<String, VolumeAsk>;

/// The mount of a group's volume in a task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    /// The name of the volume in the group.
    pub volume: String,
    /// The mount point in the task: an absolute path, or one in the task's directory. References are filled in by the
    /// agent.
    pub destination: String,
    /// Whether the task may only read it.
    pub read_only: bool,
    /// Whether mounts below the volume pass between the host and the task.
    pub propagation: Propagation,
    /// The SELinux label of the volume's files; empty for none.
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
