//! Commands: the only writer of the state.
//!
//! [`apply`] is a function of state, index and command: time and everything random come inside the
//! command, ids are derived from the index. A refused command is a value, the same on every replica.
//! Effects are for the leader's shell; losing one is safe, because its duty finds the work again in
//! the state.
//!
//! The encoding of [`Command`] is persisted: variants and fields are only ever appended as new
//! variants, and `testdata/` keeps the bytes of each. The old variant is the decoder of its version, as
//! [`Command::AddNodeEventV1`] is.

mod admit;
mod alloc;
mod change;
mod deployment;
mod eval;
mod garbage;
mod job;
mod keyed;
mod launch;
mod node;
mod one_off;
mod plan;
mod remote;
mod report;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_domain::alloc::AllocReport;
use muster_domain::eval::{EvalStatus, FailedGroup, Trigger};
use muster_domain::fault::Fault;
use muster_domain::id::{
    AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeId, Timestamp, WriteKey,
};
use muster_domain::job::{JobSpec, JobType, NetworkPolicy};
use muster_domain::node::{
    DrainSpec, Eligibility, NodeCollected, NodeSpec, NodeStatus, NodeSubsystem,
};
use muster_domain::one_off::{OneOff, OneOffTimings};
use muster_domain::plan::Plan;
use muster_domain::scheduling::SchedulerConfig;
use serde::{Deserialize, Serialize};

use crate::limits;
use crate::state::State;

pub(crate) use admit::admit;
use admit::admit_current;
use change::Change;
pub(crate) use deployment::{is_late, next_deadline};
pub use garbage::dry_run::{Count as GcCount, GcDryRun as GcSurvey, ObjectKind as GcKind};
pub use garbage::forecast::GcForecast as GcOutlook;
pub use garbage::{
    Cutoffs as GcCutoffs, GcCursor, GcJobStep, GcRule, KeepReason as GcKept,
    SliceLimits as GcBounds,
};
pub(crate) use job::is_unknown;
pub use keyed::{UnkeyedCommand, WriteDedup};
pub(crate) use one_off::is_placed as is_placed_one_off;
pub use one_off::{
    DesiredOneOff, NewOneOff, OneOffChange, OneOffPlacement, OneOffRefusal, OneOffStep,
};

/// The newest format of commands that this build understands.
pub const VERSION: u32 = 2;

/// A replicated change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// An agent says what its machine is. A node not seen before begins as `Initializing`.
    RegisterNode {
        spec: Box<NodeSpec>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// The heartbeats of a node began or ended.
    SetNodeStatus {
        node_id: NodeId,
        /// The status of the node to the control plane.
        status: NodeStatus,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// An operator says whether a node takes new work.
    SetEligibility {
        node_id: NodeId,
        eligibility: Eligibility,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user submits a job. If it is not there, the leader may have found places for all its instances. Where one of
    /// them is gone, the evaluation of the job places it.
    RegisterJob {
        spec: Box<JobSpec>,
        /// The places of its instances, where the leader found them.
        places: Option<Box<JobPlacement>>,
        /// Time of the proposal.
        at: Timestamp,
        /// Refuse unless the job was last registered by this entry; 0: unless there is no such job.
        check_index: Option<LogIndex>,
    },
    /// A user stops a job.
    DeregisterJob {
        key: JobKey,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user wants a job looked at.
    EvaluateJob {
        key: JobKey,
        /// Replace instances that failed at once, under any policy.
        force_reschedule: bool,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Workers have plans, and updates of their evaluations.
    ///
    /// Placements are runs of instances on one node, about 25 bytes each with the node's 16-byte id;
    /// ids, names and the rest are derived.
    ApplyPlans {
        /// Plans, each of one evaluation.
        plans: Vec<Plan>,
        /// Updates of evaluations. Left undone where a part of the plan is refused.
        evals: Vec<EvalUpdate>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Updates of evaluations that have no plan.
    UpdateEvals {
        evals: Vec<EvalUpdate>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Forget what has ended: a rule and a range of time, never a list of ids.
    CollectGarbage {
        /// The kind of objects to forget.
        rule: GcRule,
        /// Only what ended before.
        before: Timestamp,
        /// The same for evaluations of batch jobs.
        batch_before: Timestamp,
        /// Where the slice before this one ended.
        after: Option<GcCursor>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A write that is applied once, however often it comes.
    Keyed {
        /// The key of the write.
        once: WriteDedup,
        command: UnkeyedCommand,
    },
    /// Agents of one server report what became of allocations: one entry for many nodes.
    ReportNodes {
        /// The reports of each node. Later ones about the same allocation win.
        reports: Vec<(NodeId, Vec<AllocReport>)>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// An operator, or the duty that watches deployments, moves one on.
    ChangeDeployment {
        id: DeploymentId,
        /// The change to make.
        change: DeploymentChange,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// An operator begins to empty a node, or stops that.
    DrainNode {
        node_id: NodeId,
        /// How to empty it. `None`: no longer.
        drain: Option<DrainSpec>,
        /// Without `drain`: it takes work again.
        mark_eligible: bool,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A drained node is empty. It stays ineligible.
    CompleteDrain {
        node_id: NodeId,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Allocations are to go elsewhere.
    MigrateAllocs {
        alloc_ids: Vec<AllocId>,
        trigger: Trigger,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user goes back to an older version of a job.
    RevertJob {
        key: JobKey,
        /// The version to go back to.
        version: u64,
        /// Refuse unless this is the current version.
        check_version: Option<u64>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user says whether a version of a job is known to work.
    SetJobStable {
        key: JobKey,
        version: u64,
        stable: bool,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user runs a parameterized job.
    DispatchJob {
        key: JobKey,
        /// The end of the new job's id, which tells this dispatch from others.
        suffix: String,
        /// The data for the new job, in bytes.
        payload: Vec<u8>,
        /// Metadata, besides the job's own.
        meta: BTreeMap<String, String>,
        /// A token by which a repeated dispatch is known; empty for none.
        idempotency_token: String,
        /// The priority of the new job; `None` for that of the parameterized job.
        priority: Option<u8>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A periodic job is due, or a user does not want to wait.
    LaunchPeriodic {
        key: JobKey,
        /// The time it is launched for.
        due: Timestamp,
        /// By a user: overlap is allowed.
        forced: bool,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// An operator changes the scheduler's settings.
    SetSchedulerConfig {
        config: SchedulerConfig,
        /// Refuse unless they were last changed by this entry.
        check_index: Option<LogIndex>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Clients, and the duties of one-off tasks, move some of them on.
    ChangeOneOffs {
        /// The changes, each of one task; one that is refused keeps no other back.
        changes: Vec<OneOffChange>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Clients want one-off tasks done. A task without a place, or whose place is gone, waits for its evaluation.
    DesireOneOffs {
        /// The tasks, each with its place if one was found; one that is refused keeps no other back.
        tasks: Vec<(NewOneOff, Option<OneOffPlacement>)>,
        /// The state in which the places were found.
        seen: LogIndex,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A client says that what it knows of a domain is all there is to know.
    FreshenDomain {
        domain: String,
        /// Until when that holds. `None`: for ever.
        until: Option<Timestamp>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// The leader is configured with other times than the last one.
    SetOneOffTimes {
        times: OneOffTimings,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// An operator changes what tasks of every node may send and receive where neither job nor node says it.
    SetClusterPolicy {
        policy: Box<NetworkPolicy>,
        /// Refuse unless it was last changed by this entry.
        check_index: Option<LogIndex>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user gives a version of a job a name, or takes the name back.
    TagJobVersion {
        key: JobKey,
        name: String,
        /// The version that is to have the name; `None` takes the name back.
        given: Option<TagAssignment>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Agents of one server report their collections of finished allocations: one entry for many nodes. No row keeps
    /// it. It is in the log so that every server tells of it, at the same index.
    NoteCollections {
        /// The collections that each node reported.
        collections: Vec<(NodeId, NodeCollected)>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user stops a job and has it forgotten. The answer counts what went.
    PurgeJob {
        key: JobKey,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// [`Self::AddNodeEvent`] of version 1, which has no details. Only in logs that a server of version 1 wrote.
    AddNodeEventV1 {
        node_id: NodeId,
        /// The part of Muster that it is about.
        subsystem: NodeSubsystem,
        /// A sentence for the operator.
        message: String,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// A user scales a group, or an autoscaler reports an event of it. The job keeps the event.
    ScaleGroup {
        key: JobKey,
        /// The action or the event.
        scaling: Box<GroupScaling>,
        /// Refuse unless the job was last registered by this entry.
        check_index: Option<LogIndex>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// Something happened to a node that its operator should see.
    AddNodeEvent {
        node_id: NodeId,
        /// The part of Muster that it is about.
        subsystem: NodeSubsystem,
        /// A sentence for the operator.
        message: String,
        details: BTreeMap<String, String>,
        /// Time of the proposal.
        at: Timestamp,
    },
    /// The leader found faults of a server, or found that they are over. No row keeps it. It is in the log so that every
    /// server tells of it, at the same index.
    NoteServerHealth {
        server_id: u64,
        name: String,
        /// The faults, in words; empty: it is well again.
        faults: Vec<String>,
        /// Time of the proposal.
        at: Timestamp,
    },
}

/// Places for all instances of a job that is not recorded yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobPlacement {
    /// A plan that does nothing but place them. Its evaluation is whichever the entry makes.
    pub plan: Plan,
    /// The update of that evaluation.
    pub update: EvalUpdate,
}

/// A scaling action on a group, or an event of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupScaling {
    pub group: String,
    /// Instances; `None` records only the event.
    pub count: Option<u32>,
    pub error: bool,
    /// A message for the user.
    pub message: String,
    /// Data of the client, as a JSON object; empty for none.
    pub meta_json: String,
}

/// A name that a version of a job is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TagAssignment {
    /// The version; `None` for the current one.
    pub version: Option<u64>,
    /// The purpose of the name, in the user's words.
    pub description: String,
}

/// A change of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeploymentChange {
    /// Its canaries are good: go on with all instances. `None`: of every group.
    Promote(Option<Vec<String>>),
    /// Give it up, and go back to the last stable version where it says so.
    Fail,
    /// No instance became healthy in time.
    MissedDeadline,
    Pause,
    Resume,
    /// Somebody says which instances are healthy.
    SetHealth {
        healthy: Vec<AllocId>,
        unhealthy: Vec<AllocId>,
    },
}

impl Command {
    /// The oldest format that knows this command. The shell writes it with the entry, so that a server
    /// that does not understand it stops before it applies it.
    #[must_use]
    pub fn version(&self) -> u32 {
        match self {
            Self::AddNodeEvent { .. } | Self::NoteServerHealth { .. } => 2,
            Self::Keyed { once: _, command } => command.command().version(),
            Self::RegisterNode { .. }
            | Self::SetNodeStatus { .. }
            | Self::SetEligibility { .. }
            | Self::RegisterJob { .. }
            | Self::DeregisterJob { .. }
            | Self::EvaluateJob { .. }
            | Self::ApplyPlans { .. }
            | Self::UpdateEvals { .. }
            | Self::CollectGarbage { .. }
            | Self::ReportNodes { .. }
            | Self::ChangeDeployment { .. }
            | Self::DrainNode { .. }
            | Self::CompleteDrain { .. }
            | Self::MigrateAllocs { .. }
            | Self::RevertJob { .. }
            | Self::SetJobStable { .. }
            | Self::DispatchJob { .. }
            | Self::LaunchPeriodic { .. }
            | Self::SetSchedulerConfig { .. }
            | Self::ChangeOneOffs { .. }
            | Self::DesireOneOffs { .. }
            | Self::FreshenDomain { .. }
            | Self::SetOneOffTimes { .. }
            | Self::SetClusterPolicy { .. }
            | Self::TagJobVersion { .. }
            | Self::NoteCollections { .. }
            | Self::PurgeJob { .. }
            | Self::AddNodeEventV1 { .. }
            | Self::ScaleGroup { .. } => 1,
        }
    }

    /// Records one-off tasks for which no places were found.
    #[must_use]
    pub fn desire_one_offs(tasks: Vec<NewOneOff>, at: Timestamp) -> Self {
        Self::DesireOneOffs {
            tasks: tasks.into_iter().map(|task| (task, None)).collect(),
            seen: LogIndex(0),
            at,
        }
    }

    /// Time of the proposal.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        match self {
            Self::RegisterNode { at, .. }
            | Self::SetNodeStatus { at, .. }
            | Self::SetEligibility { at, .. }
            | Self::RegisterJob { at, .. }
            | Self::DeregisterJob { at, .. }
            | Self::EvaluateJob { at, .. }
            | Self::ApplyPlans { at, .. }
            | Self::UpdateEvals { at, .. }
            | Self::CollectGarbage { at, .. }
            | Self::ReportNodes { at, .. }
            | Self::ChangeDeployment { at, .. }
            | Self::DrainNode { at, .. }
            | Self::CompleteDrain { at, .. }
            | Self::MigrateAllocs { at, .. }
            | Self::RevertJob { at, .. }
            | Self::SetJobStable { at, .. }
            | Self::DispatchJob { at, .. }
            | Self::LaunchPeriodic { at, .. }
            | Self::SetSchedulerConfig { at, .. }
            | Self::DesireOneOffs { at, .. }
            | Self::ChangeOneOffs { at, .. }
            | Self::FreshenDomain { at, .. }
            | Self::SetOneOffTimes { at, .. }
            | Self::SetClusterPolicy { at, .. }
            | Self::TagJobVersion { at, .. }
            | Self::NoteCollections { at, .. }
            | Self::PurgeJob { at, .. }
            | Self::AddNodeEventV1 { at, .. }
            | Self::AddNodeEvent { at, .. }
            | Self::ScaleGroup { at, .. }
            | Self::NoteServerHealth { at, .. } => *at,
            Self::Keyed { once: _, command } => command.command().at(),
        }
    }

    /// The job that a user changes by it, if it is one.
    fn job_key(&self) -> Option<JobKey> {
        match self {
            Self::RegisterJob { spec, .. } => Some(spec.key()),
            Self::DeregisterJob { key, .. }
            | Self::PurgeJob { key, .. }
            | Self::EvaluateJob { key, .. }
            | Self::ScaleGroup { key, .. }
            | Self::RevertJob { key, .. }
            | Self::SetJobStable { key, .. }
            | Self::TagJobVersion { key, .. }
            | Self::DispatchJob { key, .. }
            | Self::LaunchPeriodic { key, .. } => Some(key.clone()),
            Self::RegisterNode { .. }
            | Self::SetNodeStatus { .. }
            | Self::SetEligibility { .. }
            | Self::ApplyPlans { .. }
            | Self::UpdateEvals { .. }
            | Self::CollectGarbage { .. }
            | Self::Keyed { .. }
            | Self::ReportNodes { .. }
            | Self::ChangeDeployment { .. }
            | Self::DrainNode { .. }
            | Self::CompleteDrain { .. }
            | Self::MigrateAllocs { .. }
            | Self::SetSchedulerConfig { .. }
            | Self::DesireOneOffs { .. }
            | Self::ChangeOneOffs { .. }
            | Self::FreshenDomain { .. }
            | Self::SetOneOffTimes { .. }
            | Self::SetClusterPolicy { .. }
            | Self::NoteCollections { .. }
            | Self::NoteServerHealth { .. }
            | Self::AddNodeEventV1 { .. }
            | Self::AddNodeEvent { .. } => None,
        }
    }

    fn at_mut(&mut self) -> &mut Timestamp {
        match self {
            Self::RegisterNode { at, .. }
            | Self::SetNodeStatus { at, .. }
            | Self::SetEligibility { at, .. }
            | Self::RegisterJob { at, .. }
            | Self::DeregisterJob { at, .. }
            | Self::EvaluateJob { at, .. }
            | Self::ApplyPlans { at, .. }
            | Self::UpdateEvals { at, .. }
            | Self::CollectGarbage { at, .. }
            | Self::ReportNodes { at, .. }
            | Self::ChangeDeployment { at, .. }
            | Self::DrainNode { at, .. }
            | Self::CompleteDrain { at, .. }
            | Self::MigrateAllocs { at, .. }
            | Self::RevertJob { at, .. }
            | Self::SetJobStable { at, .. }
            | Self::DispatchJob { at, .. }
            | Self::LaunchPeriodic { at, .. }
            | Self::SetSchedulerConfig { at, .. }
            | Self::DesireOneOffs { at, .. }
            | Self::ChangeOneOffs { at, .. }
            | Self::FreshenDomain { at, .. }
            | Self::SetOneOffTimes { at, .. }
            | Self::SetClusterPolicy { at, .. }
            | Self::TagJobVersion { at, .. }
            | Self::NoteCollections { at, .. }
            | Self::PurgeJob { at, .. }
            | Self::AddNodeEventV1 { at, .. }
            | Self::AddNodeEvent { at, .. }
            | Self::ScaleGroup { at, .. }
            | Self::NoteServerHealth { at, .. } => at,
            Self::Keyed { once: _, command } => command.command_mut().at_mut(),
        }
    }
}

/// A change of an evaluation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EvalUpdate {
    pub eval_id: EvalId,
    /// Its status from here on.
    pub status: EvalStatus,
    /// The reason for the status, as a sentence for the user.
    pub description: String,
    /// The snapshot its plan was made from; 0 keeps what is there.
    pub snapshot_index: LogIndex,
    /// The groups that could not be placed, each with the reason.
    pub failed_groups: Vec<FailedGroup>,
    /// Instances that wait, by group.
    pub queued: Vec<(String, u32)>,
    /// The evaluation that goes on from here.
    pub next: NextEval,
}

/// The evaluation that goes on where one ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NextEval {
    Nothing,
    /// A blocked one, for what could not be placed.
    Blocked,
    /// A delayed one, because this failed too often.
    FailedFollowUp {
        /// Not to be looked at before.
        wait_until: Timestamp,
    },
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Response {
    /// It is done; the response has no details.
    Done,
    /// The node is registered.
    NodeRegistered,
    /// The job is registered.
    JobRegistered {
        /// The evaluation that will place it; none for a job that only makes others.
        eval_id: Option<EvalId>,
        version: u64,
        /// The entry that registered that version.
        job_modify_index: LogIndex,
    },
    /// The job will be stopped.
    JobDeregistered {
        /// The evaluation that will stop it; none for a job that only made others.
        eval_id: Option<EvalId>,
    },
    /// The job will be looked at.
    EvalCreated { eval_id: EvalId },
    /// A job was made from another one.
    JobLaunched {
        job_id: String,
        /// The evaluation that will place it; none if nothing was launched, because an earlier launch
        /// runs or because it was launched before.
        eval_id: Option<EvalId>,
    },
    /// The deployment is changed.
    DeploymentChanged {
        /// The evaluation that goes on with it.
        eval_id: Option<EvalId>,
        /// The version that the job goes back to.
        reverted_to: Option<u64>,
    },
    /// The evaluations that will look at what was asked for.
    EvalsCreated {
        /// One for each job.
        eval_ids: Vec<EvalId>,
    },
    /// Plans were carried out as far as they fit.
    PlansApplied {
        /// One for each plan, in order.
        outcomes: Vec<PlanOutcome>,
    },
    Collected {
        evals: u32,
        allocs: u32,
        jobs: u32,
        nodes: u32,
        deployments: u32,
        /// Where the next slice begins, if there is more to look at.
        next: Option<GcCursor>,
        one_offs: u32,
        /// Objects that were looked at and stay, by reason.
        kept: BTreeMap<GcKept, u32>,
        /// Size of the forgotten objects, in bytes as they are hashed, without the parts that rows share. An
        /// allocation's part of its job is the job's.
        bytes: u64,
    },
    /// The reports of nodes are recorded.
    NodesReported {
        /// Nodes that are not registered; their reports are not recorded.
        unknown: Vec<NodeId>,
    },
    /// The command is refused; nothing changed.
    Rejected(Rejection),
    /// One-off tasks are recorded.
    OneOffsDesired {
        /// The outcome for each task, in the order of the command.
        outcomes: Vec<Result<DesiredOneOff, Rejection>>,
    },
    /// One-off tasks are moved on.
    OneOffsChanged {
        /// Why each was refused, in the order of the changes; `None` if it was not.
        outcomes: Vec<Option<OneOffRefusal>>,
    },
    /// The job is forgotten, and what ran of it will be stopped.
    JobPurged {
        /// The evaluation that will stop it; none for a job that only made others.
        eval_id: Option<EvalId>,
        /// Deployments that went with it.
        deployments: u32,
    },
}

/// The outcome of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanOutcome {
    pub eval_id: EvalId,
    pub placed: u32,
    /// Instances refused. If any, the evaluation is still open and must be looked at again.
    pub dropped: u32,
}

/// Why a command is refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// There is no such node.
    #[error("node {0} is not registered")]
    UnknownNode(NodeId),
    /// The agent does not know the secret of the node.
    #[error(
        "node {0} was registered with another secret, so another agent has its id: restore node-secret in this agent's data directory, or delete node-id and node-secret to become a new node"
    )]
    NodeSecret(NodeId),
    /// There is no such job.
    #[error("job {0} is not registered")]
    UnknownJob(JobKey),
    /// The job moved since the user looked.
    #[error(
        "job {key} was last registered at index {}, not {}: look at it again before changing it",
        actual.0, expected.0
    )]
    CheckIndex {
        key: JobKey,
        /// The index that the user saw.
        expected: LogIndex,
        /// The current index; 0 if there is no such job.
        actual: LogIndex,
    },
    /// A job cannot change its type.
    #[error(
        "job {key} is of type {from} and cannot become {to}: purge it first or choose another id"
    )]
    JobTypeChanged {
        key: JobKey,
        from: JobType,
        /// The type asked for.
        to: JobType,
    },
    /// There is no such deployment.
    #[error("deployment {0} does not exist")]
    UnknownDeployment(DeploymentId),
    /// The deployment is over, or what was asked does not fit it.
    #[error("deployment {}: {why}", id.short())]
    Deployment { id: DeploymentId, why: String },
    /// The request does not fit the job.
    #[error("job {key}: {why}")]
    Job { key: JobKey, why: String },
    /// There is no such allocation.
    #[error("allocation {0} does not exist")]
    UnknownAlloc(AllocId),
    /// The settings moved since the operator looked.
    #[error(
        "the settings were last changed at index {}, not {}: look at them again before changing them",
        actual.0, expected.0
    )]
    ConfigIndex {
        /// The index that the operator saw.
        expected: LogIndex,
        actual: LogIndex,
    },
    /// An operator keeps new jobs out.
    #[error("job registration is switched off: see `muster operator scheduler get-config`")]
    RegistrationOff,
    /// The job was not validated.
    #[error("job {0} has no task group")]
    NoGroups(JobKey),
    /// The fingerprint is unusable.
    #[error("the node's fingerprint is refused: {}", .0.first().map_or("", |fault| fault.reason.as_str()))]
    InvalidNode(Vec<Fault>),
    /// The key was used for another write.
    #[error(
        "the idempotency key `{key}` was used for a different write, applied at index {}: choose a new key for each write", index.0
    )]
    KeyReused {
        key: WriteKey,
        /// The entry of that write.
        index: LogIndex,
    },
    /// The request does not fit the one-off task.
    #[error(transparent)]
    OneOff(OneOffRefusal),
    /// The job runs a one-off task.
    #[error(
        "job {0} runs a one-off task and is not changed by itself: see `muster task cancel` and `muster task delete`"
    )]
    OfOneOff(JobKey),
    /// The node is being emptied.
    #[error(
        "node {0} is being drained and takes no work meanwhile: end that with `muster node drain --disable`, or wait until it is empty"
    )]
    Draining(NodeId),
    /// There is no room for another fresh domain.
    #[error(
        "{} domains are fresh already: let some end by their ttl",
        limits::DOMAINS_MAX
    )]
    Domains,
}

/// Something the leader's shell must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Give this evaluation to the broker.
    EnqueueEval(EvalId),
    /// Let this evaluation wait for room.
    BlockEval(EvalId),
    /// Drop this evaluation: it has ended.
    ForgetEval(EvalId),
    /// Wake blocked evaluations that this node could help.
    CapacityFreed { node_id: NodeId },
    /// Wake every blocked evaluation: more is allowed than before.
    RulesEased,
    /// Push desired allocations to this node's agent. For every server, not only the leader.
    NodeChanged(NodeId),
    /// Tell this node's agent some time that allocations of it were forgotten: nobody waits for it. For every server,
    /// not only the leader.
    NodeForgot(NodeId),
    /// Tell every node's agent the cluster's network policy. For every server, not only the leader.
    ClusterPolicyChanged,
    /// Expect heartbeats from this node.
    NodeReady(NodeId),
    /// Expect no heartbeats from this node.
    NodeGone(NodeId),
    /// Deployments, drains, periodic jobs or one-off tasks changed: their duties look again.
    DutiesDue,
    /// The one-off task of this allocation has ended, and the leader of the entry's term holds the claim on its
    /// callback. Make the callback; if nobody does, the claim ends by itself.
    CallbackClaimed(AllocId),
}

/// A row that was written or removed: look it up in the state to see which.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangedRow {
    Node(NodeId),
    /// A job. Its versions, its status, whether it is stopped; not the counts of its allocations.
    Job(Arc<JobKey>),
    Eval(EvalId),
    Deployment(DeploymentId),
    OneOff(Arc<str>),
    Alloc(AllocId),
    /// An allocation that was removed: there is nothing to look up.
    AllocGone(AllocId),
}

/// The result of applying a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyResult {
    /// For the proposer of the command.
    pub response: Response,
    /// For the leader's shell.
    pub effects: Vec<Effect>,
    /// Rows written or removed, each once: nodes, jobs, evaluations, allocations.
    pub changed: Vec<ChangedRow>,
    /// One-off tasks as they were in between, where the command moved one by two states. Followers of tasks see each
    /// state.
    pub passed: Vec<Arc<OneOff>>,
}

impl ApplyResult {
    fn without_change(response: Response) -> Self {
        Self {
            response,
            effects: Vec::new(),
            changed: Vec::new(),
            passed: Vec::new(),
        }
    }
}

/// Applies the entry at `index`.
pub fn apply(state: &mut State, index: LogIndex, command: Command) -> ApplyResult {
    apply_within(state, index, command, GcBounds::default())
}

/// The same with other bounds for a slice of a collection.
#[expect(clippy::too_many_lines, reason = "one arm a command, no more in it")]
pub fn apply_within(
    state: &mut State,
    index: LogIndex,
    command: Command,
    bounds: GcBounds,
) -> ApplyResult {
    let at = command.at();
    state.applied = index;
    if let Some(key) = command.job_key().filter(JobKey::is_one_off) {
        let rejection = Rejection::OfOneOff(key);
        return ApplyResult::without_change(Response::Rejected(rejection));
    }
    let mut change = Change::new(state, index, at);
    let result = match command {
        Command::RegisterNode { spec, at: _ } => node::register(&mut change, *spec),
        Command::SetNodeStatus {
            node_id,
            status,
            at: _,
        } => node::set_status(&mut change, node_id, status),
        Command::SetEligibility {
            node_id,
            eligibility,
            at: _,
        } => node::set_eligibility(&mut change, node_id, eligibility),
        Command::RegisterJob {
            spec,
            places,
            at: _,
            check_index,
        } => job::register(&mut change, *spec, places, check_index),
        Command::DeregisterJob { key, at: _ } => job::deregister(&mut change, key),
        Command::PurgeJob { key, at: _ } => job::purge(&mut change, key, bounds),
        Command::AddNodeEventV1 {
            node_id,
            subsystem,
            message,
            at: _,
        } => node::add_event(&mut change, node_id, subsystem, message, BTreeMap::new()),
        Command::AddNodeEvent {
            node_id,
            subsystem,
            message,
            details,
            at: _,
        } => node::add_event(&mut change, node_id, subsystem, message, details),
        Command::EvaluateJob {
            key,
            force_reschedule,
            at: _,
        } => job::evaluate(&mut change, key, force_reschedule),
        Command::ApplyPlans {
            plans,
            evals,
            at: _,
        } => Ok(plan::apply(&mut change, plans, evals)),
        Command::UpdateEvals { evals, at: _ } => {
            for update in evals {
                eval::update(&mut change, update);
            }
            Ok(Response::Done)
        }
        Command::CollectGarbage {
            rule,
            before,
            batch_before,
            after,
            at: _,
        } => Ok(garbage::collect(
            &mut change,
            bounds,
            rule,
            before,
            batch_before,
            after,
        )),
        Command::ReportNodes { reports, at: _ } => Ok(report::apply(&mut change, reports)),
        Command::ChangeDeployment {
            id,
            change: wanted,
            at: _,
        } => deployment::apply(&mut change, id, wanted),
        Command::DrainNode {
            node_id,
            drain,
            mark_eligible,
            at: _,
        } => node::drain(&mut change, node_id, drain, mark_eligible),
        Command::CompleteDrain { node_id, at: _ } => node::complete_drain(&mut change, node_id),
        Command::MigrateAllocs {
            alloc_ids,
            trigger,
            at: _,
        } => alloc::migrate(&mut change, &alloc_ids, trigger),
        Command::RevertJob {
            key,
            version,
            check_version,
            at: _,
        } => job::revert(&mut change, key, version, check_version),
        Command::SetJobStable {
            key,
            version,
            stable,
            at: _,
        } => job::set_stable(&mut change, key, version, stable),
        Command::TagJobVersion {
            key,
            name,
            given,
            at: _,
        } => job::tag(&mut change, key, name, given),
        Command::DispatchJob {
            key,
            suffix,
            payload,
            meta,
            idempotency_token,
            priority,
            at: _,
        } => {
            let dispatch = launch::Dispatch {
                suffix,
                payload,
                meta,
                idempotency_token,
                priority,
            };
            launch::dispatch(&mut change, key, dispatch)
        }
        Command::ScaleGroup {
            key,
            scaling,
            check_index,
            at: _,
        } => job::scale_group(&mut change, key, *scaling, check_index),
        Command::LaunchPeriodic {
            key,
            due,
            forced,
            at: _,
        } => launch::periodic(&mut change, key, due, forced),
        Command::SetSchedulerConfig {
            config,
            check_index,
            at: _,
        } => set_config(&mut change, config, check_index),
        Command::DesireOneOffs { tasks, seen, at: _ } => {
            Ok(one_off::desire_all(&mut change, tasks, seen))
        }
        Command::ChangeOneOffs { changes, at: _ } => Ok(one_off::change_all(&mut change, changes)),
        Command::FreshenDomain {
            domain,
            until,
            at: _,
        } => one_off::freshen(&mut change, &domain, until),
        Command::SetOneOffTimes { times, at: _ } => {
            one_off::set_times(&mut change, times);
            Ok(Response::Done)
        }
        Command::SetClusterPolicy {
            policy,
            check_index,
            at: _,
        } => set_cluster_policy(&mut change, *policy, check_index),
        Command::NoteCollections { collections, at: _ } => {
            Ok(report::note_collections(change.state, &collections))
        }
        Command::NoteServerHealth { .. } => Ok(Response::Done),
        Command::Keyed { once, command } => {
            return keyed::apply(state, index, once, command);
        }
    };
    let finished = change.finish();
    ApplyResult {
        response: result.unwrap_or_else(Response::Rejected),
        ..finished
    }
}

fn set_config(
    change: &mut Change<'_>,
    config: SchedulerConfig,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let actual = change.state.config.modify_index;
    if let Some(expected) = check_index.filter(|expected| *expected != actual) {
        return Err(Rejection::ConfigIndex { expected, actual });
    }
    let row = &mut change.state.config;
    if row.create_index == LogIndex(0) {
        row.create_index = change.index;
    }
    row.modify_index = change.index;
    let is_eased = row.scheduler.preemption.is_eased_by(&config.preemption);
    row.scheduler = config;
    change.effect(Effect::DutiesDue);
    if is_eased {
        change.effect(Effect::RulesEased);
    }
    Ok(Response::Done)
}

fn set_cluster_policy(
    change: &mut Change<'_>,
    policy: NetworkPolicy,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let index = change.index;
    let row = &mut change.state.network;
    let actual = row.modify_index;
    if let Some(expected) = check_index.filter(|expected| *expected != actual) {
        return Err(Rejection::ConfigIndex { expected, actual });
    }
    if row.create_index == LogIndex(0) {
        row.create_index = index;
    }
    row.modify_index = index;
    row.policy = Arc::new(policy);
    change.effect(Effect::ClusterPolicyChanged);
    Ok(Response::Done)
}

#[cfg(test)]
mod tests;
