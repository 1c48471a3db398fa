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
    /// The allocation stops to make room for a more important one.
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
    /// At least one task is running.
    Running,
    /// Every task ended well.
    Complete,
    /// A task failed for good.
    Failed,
    /// The node of the allocation was lost. Only the control plane sets this status.
    Lost,
    /// The node of the allocation is out of reach. Only the control plane sets this status.
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
    /// Whether no task of the allocation runs or will run again.
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
    /// Whether the allocation is healthy; `None`: not known yet.
    pub healthy: Option<bool>,
    /// Whether the allocation is a canary. Canaries run alongside the older instances until the deployment is promoted.
    pub canary: bool,
    /// Requests on the allocation, such as a migration.
    pub transition: Transition,
    /// The evaluation that will handle the allocation next.
    pub follow_up: Option<EvalId>,
    /// Earlier replacements in the same row, oldest first.
    pub reschedules: Vec<Reschedule>,
    /// The allocation that preempted this one.
    pub preempted_by: Option<AllocId>,
    /// Allocations that this one preempted.
    pub preempted: Vec<AllocId>,
    /// The entry that placed it.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
    /// The last entry of the control plane that changed this row. The agent must receive each such change.
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

    /// Whether no task of the allocation runs or will run again, or the control plane wants it to stop.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        self.server_terminal() || self.client_status.is_terminal()
    }

    /// Whether the control plane wants the allocation to stop.
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
    /// The allocation moves to another node.
    pub migrate: bool,
    /// The allocation may be replaced although its deployment is still running.
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
    /// Converts a number around -1 to 1. NaN becomes 0.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "`as` saturates, and scores are small"
    )]
    pub fn new(value: f64) -> Self {
        Self((value * 1e6).round() as i32)
    }

    /// The score as a float.
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
    /// Components and their values: `binpack`, `job-anti-affinity`, …. Nodes with equal fill share one list.
    pub components: Arc<[(Component, Score)]>,
    pub normalised: Score,
}

/// The name of one part of a score. Known names need no heap allocation.
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

    /// The name of the component.
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
    /// The task is not started, or waits for a restart.
    Pending,
    Running,
    /// The task ended and will not be started again.
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
    /// Whether the task failed for good.
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
    /// Whether the task is advertised at this address and not at the node's.
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
    /// The state of a task before its first event.
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

/// An event of a task.
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
    /// The agent received the task.
    Received,
    /// The agent creates the task's directories, cgroup and FIFOs.
    Setup,
    Started,
    /// A restarted agent or driver found the task running.
    Recovered,
    /// The driver could not start the task.
    DriverFailure,
    Terminated(Exit),
    /// The task will be started again after `delay`.
    Restarting {
        delay: Duration,
    },
    /// The task has no restarts left.
    NotRestarting,
    /// The task was asked to stop.
    Killing,
    Killed,
    /// Another task of the allocation failed, so this task is stopped as well.
    SiblingFailed,
    /// The driver reported an event of its own.
    Driver,
    /// The allocation uses more than its ephemeral disk. The task is stopped and has failed.
    DiskExceeded,
}

impl TaskEventKind {
    /// Nomad's name of the event.
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

/// The state of one allocation as its agent reports it. The servers accept only a report that is newer than the last
/// one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocReport {
    pub alloc_id: AllocId,
    /// The state of the allocation as a whole.
    pub client_status: ClientStatus,
    /// Reason for the client status, as text for a human reader.
    pub client_description: String,
    pub task_states: Vec<TaskState>,
    /// Whether the allocation is healthy. The `update` block of its group decides within a deployment, the `migrate`
    /// block otherwise. `None`: not decided yet, or not evaluated (jobs that are not services).
    pub healthy: Option<bool>,
    /// The end of a one-off task's work, once the work is over. `None` for every other job.
    pub end: Option<Box<crate::one_off::end::WorkEnd>>,
    /// Handles of the allocation's tasks that run on another system, as far as the agent knows.
    pub remote: Vec<RemoteHandle>,
}

/// An order to an agent: one allocation of its node, to run or to stop, as the control plane wants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DesiredAlloc {
    pub alloc_id: AllocId,
    /// The version of this message: of two messages about one allocation, the higher index is newer.
    pub alloc_modify_index: LogIndex,
    /// The state that the agent must reach.
    pub desired: DesiredStatus,
    /// The instance: `i` in the name `job.group[i]`.
    pub name_index: u32,
    /// Position of the group in the job.
    pub group_at: u16,
    /// Ports, cores and devices it holds.
    pub holding: Holding,
    /// The deployment of the allocation. The agent evaluates health again for each new deployment.
    pub deployment: Option<DeploymentId>,
    /// Whether the allocation is a canary. Canaries run alongside the older instances until the deployment is promoted.
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

    /// The previous allocation that this one takes its data from, if it was on the same node.
    #[must_use]
    pub fn inherits_from(&self) -> Option<AllocId> {
        let disk = self.group()?.ephemeral_disk;
        self.previous.filter(|_| disk.sticky || disk.migrate)
    }

    /// The previous allocation that this one takes its data from, if it was on another node.
    #[must_use]
    pub fn fetches_from(&self) -> Option<AllocId> {
        let disk = self.group()?.ephemeral_disk;
        self.previous.filter(|_| disk.migrate)
    }
}
