//! Jobs: the work that a user asks to run.
//!
//! A [`JobSpec`] is the submitted job, with defaults filled in. A [`JobVersion`] is a spec that was accepted, and never
//! changes. A [`Job`] is the row of the state table: the current version and its status.

pub(crate) mod block;
pub(crate) mod constraint;
pub(crate) mod group;
mod job_type;
mod launch;
mod policy;
mod rate;
mod restart;
pub(crate) mod task;
mod update;
mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::{EvalId, JobKey, LogIndex, Timestamp};
use crate::namespace::ONE_OFF_NAMESPACE;

use self::block::job_block;

pub use crate::namespace::DEFAULT_NAMESPACE;
pub use constraint::{Affinity, Constraint, Operand, Spread, SpreadTarget};
pub use group::{
    CNI_MODE_PREFIX, CniNetwork, DEFAULT_HOST_NETWORK, DnsConfig, EphemeralDisk, GroupNetwork,
    NetworkMode, PortAsk, TaskGroup,
};
pub use job_type::JobType;
pub use launch::{
    DISPATCH_LAUNCH_INFIX, LaunchOrigin, PERIODIC_LAUNCH_INFIX, Parameterized, PayloadUse,
    Periodic, Propagation, Scaling, VolumeAsk, VolumeAsks, VolumeMount,
};
pub use policy::{
    BitRate, DirectionPolicy, METADATA_ADDRESSES, NetworkPolicy, Peer, PolicyAction,
    PolicyProtocol, PolicyRule, PortRange, read_peer,
};
pub use restart::{RestartMode, RestartPolicy};
pub use task::{ByteRate, Lifecycle, LifecycleHook, LogConfig, LogOverflow, NODE_VARIABLES, Task};
pub use update::{
    DelayFunction, Disconnect, HealthCheck, MigrateStrategy, ReconcileStrategy, ReschedulePolicy,
    UpdateStrategy,
};
pub use validate::{
    ValidJob, check_instances, is_hostname, is_resolver_text, validate, validate_policy,
};

/// The node pool of a job or node that names none.
pub const DEFAULT_NODE_POOL: &str = "default";
/// The pool that holds every node.
pub const ALL_NODE_POOL: &str = "all";
/// The priority of a job that names none (1 to 100).
pub const DEFAULT_PRIORITY: u8 = 50;

job_block! {
    /// A job as submitted, defaults filled in. Id and groups have no default and are empty.
    pub struct JobSpec {
        /// The namespace; default [`DEFAULT_NAMESPACE`].
        pub namespace: String = DEFAULT_NAMESPACE.to_owned() => InPlace;
        /// Unique within the namespace.
        pub id: String = String::new() => InPlace;
        /// The display name; default is the id.
        pub name: String = String::new() => Replace;
        /// The type of the job.
        pub job_type: JobType = JobType::Service => InPlace;
        /// 1 to 100, higher goes first; default [`DEFAULT_PRIORITY`].
        pub priority: u8 = DEFAULT_PRIORITY => InPlace;
        /// Datacenters the job may run in; `*` matches any run of characters. Default `["*"]`.
        pub datacenters: Vec<String> = vec!["*".to_owned()] => InPlace;
        /// The node pool the job is confined to; default [`DEFAULT_NODE_POOL`].
        pub node_pool: String = DEFAULT_NODE_POOL.to_owned() => InPlace;
        /// Whether a plan places all instances or none.
        pub all_at_once: bool = false => InPlace;
        /// Constraints on every group.
        // Constraints of a placed node are checked elsewhere.
        pub constraints: Vec<Constraint> = Vec::new() => InPlace;
        /// Affinities of every group.
        pub affinities: Vec<Affinity> = Vec::new() => Replace;
        /// Spreads of every group.
        pub spreads: Vec<Spread> = Vec::new() => Replace;
        pub periodic: Option<Periodic> = None => InPlace;
        /// The settings of a job that runs only as jobs dispatched from it.
        pub parameterized: Option<Parameterized> = None => InPlace;
        /// The job that created this one, if another job did.
        pub launched: Option<LaunchOrigin> = None => InPlace;
        /// Free key-value pairs, visible to tasks as `NOMAD_META_<key>`.
        // Tasks see them in their environment.
        pub meta: BTreeMap<String, String> = BTreeMap::new() => Replace;
        // Groups are compared one by one, each for its own instances.
        pub groups: Vec<TaskGroup> = Vec::new() => InPlace;
        /// Whether the job is registered as stopped. Only a submitted job may have it; a stored version never does.
        pub stop: bool = false => InPlace;
        /// Parts of the submitted JSON that have no effect, or that are equivalent spellings. JSON text by JSON
        /// pointer. Responses return them as submitted.
        pub as_written: BTreeMap<String, String> = BTreeMap::new() => InPlace;
    }
}

impl JobSpec {
    /// The job's key.
    #[must_use]
    pub fn key(&self) -> JobKey {
        JobKey {
            namespace: self.namespace.clone(),
            job_id: self.id.clone(),
        }
    }

    /// Whether the job runs a one-off task.
    #[must_use]
    pub fn is_one_off(&self) -> bool {
        self.namespace == ONE_OFF_NAMESPACE
    }

    /// Whether the job only creates other jobs and is never placed itself.
    #[must_use]
    pub fn is_template(&self) -> bool {
        self.periodic.is_some() || self.parameterized.is_some()
    }

    /// Instances of all groups, canaries included.
    #[must_use]
    pub fn instances(&self) -> u64 {
        let groups = self.groups.iter();
        let each = groups.map(|group| {
            let canaries = group.update.as_ref().map_or(0, |update| update.canary);
            u64::from(group.count) + u64::from(canaries)
        });
        each.sum()
    }

    /// The group called `name`.
    #[must_use]
    pub fn group(&self, name: &str) -> Option<&TaskGroup> {
        self.groups.iter().find(|group| group.name == name)
    }
}

/// One accepted version of a job. It never changes, and its allocations share it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobVersion {
    /// The job to run.
    pub spec: JobSpec,
    /// 0 for the first, then counting.
    pub version: u64,
    /// Time of the submission.
    pub submit_time: Timestamp,
    /// The entry that first registered a job of this key.
    pub create_index: LogIndex,
    /// The entry that registered this version.
    pub job_modify_index: LogIndex,
}

impl JobVersion {
    /// Whether `other` is the same version of the same job, and not of an earlier job with the same name.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.version == other.version && self.create_index == other.create_index
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum JobStatus {
    /// No allocation of the job runs yet, or the job waits for free resources.
    Pending,
    /// An allocation of the job runs or is about to run.
    Running,
    /// No allocation of the job runs or will run.
    Dead,
}

crate::text_enum!(pub JobStatus {
    Pending => "pending",
    Running => "running",
    Dead => "dead",
});

/// The tag of a version of a job. A tagged version is kept for as long as it has the tag.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VersionTag {
    pub version: u64,
    /// The name, unique among the versions of a job.
    pub name: String,
    /// Purpose of the tag, as given by its author.
    pub description: String,
    /// Time at which the tag was set.
    pub at: Timestamp,
}

/// A scaling action on a group, or an event that an autoscaler reports of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScalingEvent {
    /// Time of the record.
    pub at: Timestamp,
    /// The requested count; `None` if only the event was recorded.
    pub count: Option<u32>,
    pub previous_count: u32,
    pub error: bool,
    /// A message for a human reader.
    pub message: String,
    /// Data of the client, as a JSON object; empty for none.
    pub meta_json: String,
    /// The evaluation of the new count.
    pub eval_id: Option<EvalId>,
    /// The entry that recorded it.
    pub create_index: LogIndex,
}

/// A registered job: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// The version to run.
    pub current: Arc<JobVersion>,
    pub stop: bool,
    /// State of the job.
    pub status: JobStatus,
    /// Versions that are known to work: their deployment was successful, or an operator marked them stable.
    pub stable: Vec<u64>,
    /// Tags of versions, sorted by version; each version has at most one.
    pub tags: Vec<VersionTag>,
    /// The newest scaling events of each group, newest first.
    pub scaling_events: Arc<BTreeMap<String, Vec<ScalingEvent>>>,
    /// Time of the last launch of a periodic job, by its own clock.
    pub launched_at: Option<Timestamp>,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
}

impl Job {
    /// The first version of a job, registered at `submit_time` by the entry at `index`.
    #[must_use]
    pub fn first_version(spec: JobSpec, submit_time: Timestamp, index: LogIndex) -> Self {
        let version = JobVersion {
            spec,
            version: 0,
            submit_time,
            create_index: index,
            job_modify_index: index,
        };
        Self {
            current: Arc::new(version),
            stop: false,
            status: JobStatus::Pending,
            stable: Vec::new(),
            tags: Vec::new(),
            scaling_events: Arc::default(),
            launched_at: None,
            modify_index: index,
        }
    }

    /// Whether the job has instances of its own: it is not stopped, and not a template of other jobs.
    #[must_use]
    pub fn wants_instances(&self) -> bool {
        !self.stop && !self.current.spec.is_template()
    }

    /// The job's key.
    #[must_use]
    pub fn key(&self) -> JobKey {
        self.current.spec.key()
    }

    /// Whether `version` is known to work.
    #[must_use]
    pub fn is_stable(&self, version: u64) -> bool {
        self.stable.contains(&version)
    }

    /// The tag of `version`, if it has one.
    #[must_use]
    pub fn tag_of(&self, version: u64) -> Option<&VersionTag> {
        self.tags.iter().find(|tag| tag.version == version)
    }
}
