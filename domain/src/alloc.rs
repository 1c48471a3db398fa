//! Allocations: a task group placed on a node.

pub(crate) mod exit;
pub mod phrase;
mod remote;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::id::{AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp};
use crate::job::{JobVersion, TaskGroup};
use crate::limits;
use crate::resources::Holding;

pub use exit::Exit;
pub use remote::{RemoteAlloc, RemoteHandle};

/// The state that the control plane wants for an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DesiredStatus {
    Run,
    Stop,
    /// Stop it to make room for something more important.
    Evict,
}

crate::text_enum!(pub DesiredStatus {
    Run => "run",
    Stop => "stop",
    Evict => "evict",
});

/// The state of an allocation as its agent reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ClientStatus {
    Pending,
    /// At least one task runs.
    Running,
    /// Every task ended well.
    Complete,
    /// A task failed for good.
    Failed,
    /// Its node was lost. Only the control plane says so.
    Lost,
    /// Its node is out of reach. Only the control plane says so.
    Unknown,
}

crate::text_enum!(pub ClientStatus {
    Pending => "pending",
    Running => "running",
    Complete => "complete",
    Failed => "failed",
    Lost => "lost",
    Unknown => "unknown",
});

impl ClientStatus {
    /// Whether nothing of it runs and nothing will.
    #[must_use]
    pub fn is_terminal(self) -> bool {
        match self {
            Self::Complete | Self::Failed | Self::Lost => true,
            Self::Pending | Self::Running | Self::Unknown => false,
        }
    }
}

/// A task group placed on a node: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    pub id: AllocId,
    /// The evaluation that placed it.
    pub eval_id: EvalId,
    /// The node of the allocation.
    pub node_id: NodeId,
    /// The job's version it runs; shared with its siblings.
    pub job: Arc<JobVersion>,
    /// Position of its group in `job.spec.groups`.
    pub group_at: u16,
    /// The instance: `i` in the name `job.group[i]`.
    pub name_index: u32,
    /// Ports, cores and devices it holds.
    pub holding: Holding,
    /// Details of the choice of its place; shared with its siblings of one plan.
    pub metrics: Arc<PlacementMetrics>,
    /// The score of its node when it was placed, normalised.
    pub score: Score,
    /// The state that the control plane wants.
    pub desired: DesiredStatus,
    /// Reason for the desired state, as text for a human reader; empty for `run`.
    pub desired_description: String,
    /// The state that the agent reports.
    pub client_status: ClientStatus,
    /// Reason for the client status, as text for a human reader.
    pub client_description: String,
    /// Per task, in the order of the group.
    pub task_states: Vec<TaskState>,
    /// The allocation it replaces.
    pub previous: Option<AllocId>,
    /// The allocation that replaces it.
    pub next: Option<AllocId>,
    /// The deployment it belongs to.
    pub deployment: Option<DeploymentId>,
    /// Whether it is healthy; `None`: not known yet.
    pub healthy: Option<bool>,
    /// It stands beside the older ones until its deployment is promoted.
    pub canary: bool,
    /// Requests on the allocation, such as a migration.
    pub transition: Transition,
    /// The evaluation that goes on with it.
    pub follow_up: Option<EvalId>,
    /// Earlier replacements in the same row, oldest first.
    pub reschedules: Vec<Reschedule>,
    /// The allocation that took its place.
    pub preempted_by: Option<AllocId>,
    /// Allocations whose place it took.
    pub preempted: Vec<AllocId>,
    /// The entry that placed it.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// The last entry of the control plane's own that changed this row; what the agent must see.
    pub alloc_modify_index: LogIndex,
    /// Time of the placement.
    pub create_time: Timestamp,
    /// Time of the last change.
    pub modify_time: Timestamp,
}

impl Allocation {
    /// The job it belongs to.
    #[must_use]
    pub fn job_key(&self) -> JobKey {
        self.job.spec.key()
    }

    /// The group it runs.
    ///
    /// # Panics
    ///
    /// If `group_at` is outside the job, which `fsm` checks when it places.
    #[must_use]
    pub fn group(&self) -> &TaskGroup {
        &self.job.spec.groups[usize::from(self.group_at)]
    }

    /// `job.group[index]`.
    #[must_use]
    pub fn name(&self) -> String {
        alloc_name(&self.job.spec.id, &self.group().name, self.name_index)
    }

    /// Whether nothing of it runs and nothing will, or it was told to stop.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.server_terminal() || self.client_status.is_terminal()
    }

    /// Whether the control plane wants it gone.
    #[must_use]
    pub fn server_terminal(&self) -> bool {
        match self.desired {
            DesiredStatus::Run => false,
            DesiredStatus::Stop | DesiredStatus::Evict => true,
        }
    }
}

/// Requests on an allocation, made by the drainer, a deployment or an operator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transition {
    /// Go to another node.
    pub migrate: bool,
    /// May be replaced although its deployment is under way.
    pub reschedule: bool,
    pub force_reschedule: bool,
}

/// A replacement of an instance that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reschedule {
    /// Time of the replacement.
    pub at: Timestamp,
    pub delay: Duration,
    /// The allocation that was replaced.
    pub previous: AllocId,
    /// The node of that allocation.
    pub previous_node: NodeId,
}

/// `job.group[index]`: the name of an instance.
#[must_use]
pub fn alloc_name(job_id: &str, group: &str, index: u32) -> String {
    format!("{job_id}.{group}[{index}]")
}

/// A normalised score in millionths, so that rows compare and hash exactly.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Score(pub i32);

impl Score {
    /// From a number around -1 to 1. NaN becomes 0.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`as` saturates, and scores are small"
    )]
    pub fn new(value: f64) -> Self {
        Self((value * 1e6).round() as i32)
    }

    /// As a number.
    #[must_use]
    pub fn value(self) -> f64 {
        f64::from(self.0) / 1e6
    }
}

/// Details of the choice of places for the instances of one group in one plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementMetrics {
    pub nodes_evaluated: u32,
    /// Nodes that failed a constraint.
    pub nodes_filtered: u32,
    /// Nodes that were feasible but full.
    pub nodes_exhausted: u32,
    /// Ready nodes by datacenter.
    pub nodes_available: Vec<(String, u32)>,
    /// Nodes failed by each constraint or check, by its text.
    pub constraint_filtered: Vec<(String, u32)>,
    /// Full nodes by what ran out first (`cpu`, `memory`, `disk`, `ports`, `cores`, `devices`).
    pub dimension_exhausted: Vec<(String, u32)>,
    /// The best nodes and their scores, best first; at most five.
    pub scores: Vec<NodeScore>,
    /// Wall time of the decision, if the worker measured it.
    pub decision_time: Duration,
}

/// The score of one node, by component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeScore {
    pub node_id: NodeId,
    /// Component and its value: `binpack`, `job-anti-affinity`, …. Nodes as full as each other share them.
    pub components: Arc<[(Component, Score)]>,
    pub normalised: Score,
}

/// The name of one part of a score. Known names need no memory of their own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Component(Cow<'static, str>);

impl Component {
    /// The fill of the node.
    pub const BINPACK: &'static str = "binpack";
    /// Instances of the group that are on the node.
    pub const ANTI_AFFINITY: &'static str = "job-anti-affinity";
    /// An instance failed there before.
    pub const RESCHEDULE_PENALTY: &'static str = "node-reschedule-penalty";
    /// The job's preferences about nodes.
    pub const AFFINITY: &'static str = "node-affinity";
    /// The job's preferences about devices.
    pub const DEVICES: &'static str = "devices";
    /// The spread of the instances.
    pub const SPREAD: &'static str = "allocation-spread";

    const KNOWN: [&'static str; 6] = [
        Self::BINPACK,
        Self::ANTI_AFFINITY,
        Self::RESCHEDULE_PENALTY,
        Self::AFFINITY,
        Self::DEVICES,
        Self::SPREAD,
    ];

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl From<&'static str> for Component {
    fn from(name: &'static str) -> Self {
        Self(Cow::Borrowed(name))
    }
}

impl<'de> Deserialize<'de> for Component {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let name = String::deserialize(from)?;
        let known = Self::KNOWN.into_iter().find(|known| *known == name);
        Ok(known.map_or(Self(Cow::Owned(name)), Self::from))
    }
}

/// Life of a task as its agent sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum TaskPhase {
    /// Not started, or waiting for a restart.
    Pending,
    Running,
    /// It ended and will not be started again.
    Dead,
}

crate::text_enum!(pub TaskPhase {
    Pending => "pending",
    Running => "running",
    Dead => "dead",
});

/// A task of an allocation, as reported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskState {
    pub name: String,
    pub phase: TaskPhase,
    /// Whether it failed for good.
    pub failed: bool,
    pub restarts: u32,
    /// Time of the last restart.
    pub last_restart: Option<Timestamp>,
    /// Time of the first start of its process.
    pub started_at: Option<Timestamp>,
    /// Time of the final end.
    pub finished_at: Option<Timestamp>,
    /// The newest events, oldest first; at most [`limits::TASK_EVENTS_MAX`].
    pub events: Vec<TaskEvent>,
    /// The address of the running task, if its driver put it on a network of the driver's own.
    pub network: Option<Box<TaskNetwork>>,
}

/// The address of a task that its driver put on a network of the driver's own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskNetwork {
    pub address: String,
    /// Ports there, by label.
    pub ports: BTreeMap<String, u16>,
    /// Whether others are to be told this address, and not the node's.
    pub auto_advertise: bool,
}

impl TaskNetwork {
    /// Whether the network is within the bounds of an agent's report.
    #[must_use]
    pub fn fits(&self) -> bool {
        let Self {
            address,
            ports,
            auto_advertise: _,
        } = self;
        let mut names = ports.keys().chain([address]);
        ports.len() <= limits::TASK_NETWORK_PORTS_MAX
            && names.all(|name| name.chars().count() <= limits::TASK_NETWORK_NAME_CHARS_MAX)
    }
}

impl TaskState {
    /// A task nothing has happened to.
    #[must_use]
    pub fn pending(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            phase: TaskPhase::Pending,
            failed: false,
            restarts: 0,
            last_restart: None,
            started_at: None,
            finished_at: None,
            events: Vec::new(),
            network: None,
        }
    }

    /// Adds `event`, dropping the oldest if there are too many.
    pub fn push(&mut self, event: TaskEvent) {
        self.events.push(event);
        if self.events.len() > limits::TASK_EVENTS_MAX {
            self.events.remove(0);
        }
    }
}

/// Something that happened to a task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Time of the event.
    pub at: Timestamp,
    /// Kind of the event.
    pub kind: TaskEventKind,
    /// A message for a human reader.
    pub message: String,
}

/// The kinds of events in a task's life.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TaskEventKind {
    /// The agent got it.
    Received,
    /// Directories, cgroup, FIFOs are being made.
    Setup,
    Started,
    /// It was found running by a restarted agent or driver.
    Recovered,
    /// It could not be started.
    DriverFailure,
    Terminated(Exit),
    /// It will be started again after `delay`.
    Restarting {
        delay: Duration,
    },
    /// Its restarts are used up.
    NotRestarting,
    /// It was asked to stop.
    Killing,
    Killed,
    /// A sibling failed, so it is stopped as well.
    SiblingFailed,
    /// Its driver has something to tell.
    Driver,
    /// Its allocation holds more than its ephemeral disk, so it is stopped and has failed.
    DiskExceeded,
}

impl TaskEventKind {
    /// Nomad's word.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Received => "Received",
            Self::Setup => "Task Setup",
            Self::Started => "Started",
            Self::Recovered => "Recovered",
            Self::DriverFailure => "Driver Failure",
            Self::Terminated(_) => "Terminated",
            Self::Restarting { .. } => "Restarting",
            Self::NotRestarting => "Not Restarting",
            Self::Killing => "Killing",
            Self::Killed => "Killed",
            Self::SiblingFailed => "Sibling Task Failed",
            Self::Driver => "Driver",
            Self::DiskExceeded => "Disk Resources Exceeded",
        }
    }
}

/// One allocation's state as its agent reports it. Only a report newer than the last one is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocReport {
    pub alloc_id: AllocId,
    /// Its state as a whole.
    pub client_status: ClientStatus,
    /// Reason for the client status, as text for a human reader.
    pub client_description: String,
    pub task_states: Vec<TaskState>,
    /// Whether it is healthy, by its group's `update` block within a deployment, else by its `migrate`
    /// block. `None`: not decided yet, or nobody asks (jobs that are not services).
    pub healthy: Option<bool>,
    /// The end of a one-off task's work, once it is over; `None` for everything else.
    pub end: Option<Box<crate::one_off::end::WorkEnd>>,
    /// Of its tasks that run on another system, as far as the agent knows that they do: what finds each again.
    pub remote: Vec<RemoteHandle>,
}

/// An order to an agent: one allocation of its node, to run or to stop, as the control plane wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredAlloc {
    pub alloc_id: AllocId,
    /// Decides between two messages about the same allocation: the higher is newer.
    pub alloc_modify_index: LogIndex,
    /// The state that the agent must reach.
    pub desired: DesiredStatus,
    /// The instance: `i` in the name `job.group[i]`.
    pub name_index: u32,
    /// Position of the group in the job.
    pub group_at: u16,
    /// Ports, cores and devices it holds.
    pub holding: Holding,
    /// The deployment it belongs to: a new one asks anew whether it is healthy.
    pub deployment: Option<DeploymentId>,
    /// It stands beside the older ones until its deployment is promoted.
    pub canary: bool,
    /// The allocation it replaces.
    pub previous: Option<AllocId>,
    /// The last client status that the control plane received.
    pub client_status: ClientStatus,
    pub job: Arc<JobVersion>,
}

impl DesiredAlloc {
    /// The group to run.
    ///
    /// `None` if the message is malformed.
    #[must_use]
    pub fn group(&self) -> Option<&TaskGroup> {
        self.job.spec.groups.get(usize::from(self.group_at))
    }

    /// The allocation whose data it gets, if that was on the same node.
    #[must_use]
    pub fn inherits_from(&self) -> Option<AllocId> {
        let disk = self.group()?.ephemeral_disk;
        self.previous.filter(|_| disk.sticky || disk.migrate)
    }

    /// The allocation whose data it gets, if that was on another node.
    #[must_use]
    pub fn fetches_from(&self) -> Option<AllocId> {
        let disk = self.group()?.ephemeral_disk;
        self.previous.filter(|_| disk.migrate)
    }
}
