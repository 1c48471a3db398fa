//! The view through which every reader sees an allocation.

use std::sync::Arc;

use muster_domain::alloc::{
    AllocReport, Allocation, ClientStatus, DesiredAlloc, DesiredStatus, PlacementMetrics,
    RemoteAlloc, Reschedule, Score, TaskState, Transition, alloc_name,
};
use muster_domain::id::{
    AllocId, ClusterTag, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp,
};
use muster_domain::job::{JobVersion, TaskGroup};
use muster_domain::resources::{Amount, Holding};

use super::{Allocs, PlanShared, Remote, Row, Tasks, created, id_of};

/// An allocation of a state. Costs nothing to make and to copy; what it gives lives as long as the
/// state. See [`Allocation`] for what each field means.
#[derive(Clone, Copy)]
pub struct AllocView<'a> {
    pub(super) table: &'a Allocs,
    pub(super) key: u64,
    pub(super) row: &'a Row,
}

impl std::fmt::Debug for AllocView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.unpack().fmt(f)
    }
}

#[expect(
    missing_docs,
    reason = "the fields of `Allocation`, which says what they are"
)]
impl<'a> AllocView<'a> {
    pub fn id(self) -> AllocId {
        self.table.id_of(self.key)
    }

    /// Its place in the order in which allocations are made.
    #[must_use]
    pub fn key(self) -> u64 {
        self.key
    }

    pub fn eval_id(self) -> EvalId {
        self.row.cohort.eval_id
    }

    /// The number of its node, which no other node gets while the allocation is there.
    pub fn node(self) -> NodeNumber {
        self.row.node
    }

    pub fn node_id(self) -> NodeId {
        self.table.node_id(self.row.node)
    }

    pub fn job(self) -> &'a Arc<JobVersion> {
        &self.row.cohort.job
    }

    /// Returns the size of its job in bytes where it is sent, as `measure` says. It is asked once for all that were
    /// placed together.
    pub fn job_bytes(self, measure: impl FnOnce(&JobVersion) -> usize) -> usize {
        self.row.cohort.job_bytes(measure)
    }

    pub(crate) fn cohort(self) -> &'a Arc<PlanShared> {
        &self.row.cohort
    }

    pub fn job_key(self) -> &'a Arc<JobKey> {
        &self.row.cohort.key
    }

    pub fn group_at(self) -> u16 {
        self.row.cohort.group_at
    }

    pub fn group(self) -> &'a TaskGroup {
        self.row.cohort.group()
    }

    /// The amounts that it takes of its node.
    pub fn ask(self) -> Amount {
        self.row.ask()
    }

    /// The amounts that it would take if its group asked for `of_group`: the cores that it holds stay.
    pub(crate) fn ask_with(self, of_group: Amount) -> Amount {
        let cores_mhz = self.holding().cores_mhz();
        Amount {
            cpu_mhz: of_group.cpu_mhz.saturating_add(cores_mhz),
            ..of_group
        }
    }

    pub fn name_index(self) -> u32 {
        self.row.name_index
    }

    pub fn name(self) -> String {
        alloc_name(&self.job().spec.id, &self.group().name, self.name_index())
    }

    /// Ports, cores and devices it holds.
    pub fn holding(self) -> &'a Holding {
        self.row.held()
    }

    pub fn deployment(self) -> Option<DeploymentId> {
        self.row.cohort.deployment
    }

    pub fn healthy(self) -> Option<bool> {
        self.row.marks.healthy()
    }

    pub fn canary(self) -> bool {
        self.row.marks.canary()
    }

    pub fn transition(self) -> Transition {
        self.row.marks.transition()
    }

    pub fn follow_up(self) -> Option<EvalId> {
        self.row.extra().and_then(|extra| extra.follow_up)
    }

    pub fn reschedules(self) -> &'a [Reschedule] {
        self.row
            .extra()
            .map_or(&[], |extra| extra.reschedules.as_slice())
    }

    pub fn preempted_by(self) -> Option<AllocId> {
        self.row.extra().and_then(|extra| extra.preempted_by)
    }

    pub fn preempted(self) -> &'a [AllocId] {
        self.row
            .extra()
            .map_or(&[], |extra| extra.preempted.as_slice())
    }

    /// Returns the time at which its node was found lost or out of reach.
    pub(crate) fn unreachable_at(self) -> Option<Timestamp> {
        self.row.extra().and_then(|extra| extra.unreachable_at)
    }

    /// Its tasks that run on another system.
    pub(crate) fn remote(self) -> &'a Remote {
        self.row.remote()
    }

    pub fn metrics(self) -> &'a Arc<PlacementMetrics> {
        &self.row.cohort.metrics
    }

    pub fn score(self) -> Score {
        self.row.score
    }

    pub fn desired(self) -> DesiredStatus {
        self.row.marks.desired()
    }

    pub fn desired_description(self) -> &'a str {
        self.row.desired_description()
    }

    pub fn client_status(self) -> ClientStatus {
        self.row.client_status
    }

    pub fn client_description(self) -> &'a str {
        self.row.client_description()
    }

    /// Unpacked anew each time.
    pub fn task_states(self) -> Vec<TaskState> {
        self.row.task_states()
    }

    pub fn previous(self) -> Option<AllocId> {
        self.row.extra().and_then(|extra| extra.previous)
    }

    pub fn next(self) -> Option<AllocId> {
        self.row.extra().and_then(|extra| extra.next)
    }

    pub fn create_index(self) -> LogIndex {
        created(self.key)
    }

    pub fn modify_index(self) -> LogIndex {
        self.row.modify_index
    }

    pub fn alloc_modify_index(self) -> LogIndex {
        self.row.alloc_modify_index
    }

    pub fn create_time(self) -> Timestamp {
        self.row.cohort.create_time
    }

    pub fn modify_time(self) -> Timestamp {
        self.row.modify_time
    }

    /// Whether nothing of it runs and nothing will, or it was told to stop.
    pub fn is_terminal(self) -> bool {
        self.row.is_terminal()
    }

    /// Whether the control plane wants it gone.
    pub fn server_terminal(self) -> bool {
        self.row.server_terminal()
    }

    /// The report's task states, packed for this allocation, if the report says anything that is not known.
    pub(crate) fn news(self, report: &AllocReport) -> Option<Tasks> {
        self.row.news(report)
    }

    /// The allocation by itself, in a few bytes, to be kept beyond the state. `node_id` is its node's.
    pub fn save(self, node_id: NodeId) -> SavedAlloc {
        SavedAlloc {
            cluster: self.table.cluster(),
            node_id,
            key: self.key,
            row: self.row.clone(),
        }
    }

    /// The allocation with all its fields laid out.
    pub fn unpack(self) -> Allocation {
        unpack(self.id(), self.key, self.node_id(), self.row)
    }

    /// The wanted state to send to its agent.
    pub fn to_desired(self) -> DesiredAlloc {
        DesiredAlloc {
            alloc_id: self.id(),
            alloc_modify_index: self.alloc_modify_index(),
            desired: self.desired(),
            name_index: self.name_index(),
            group_at: self.group_at(),
            holding: self.holding().clone(),
            deployment: self.deployment(),
            canary: self.canary(),
            previous: self.previous(),
            client_status: self.client_status(),
            job: Arc::clone(self.job()),
        }
    }

    /// The wanted state of its remote tasks, to send to its agent. `None`: it has none that matter to another agent.
    pub fn to_remote(self) -> Option<RemoteAlloc> {
        let remote = RemoteAlloc {
            alloc_id: self.id(),
            take: self.remote().running().to_vec(),
            leave: self.remote().handed().to_vec(),
        };
        (!remote.is_empty()).then_some(remote)
    }
}

/// An allocation as it was, without its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedAlloc {
    cluster: ClusterTag,
    node_id: NodeId,
    key: u64,
    row: Row,
}

impl SavedAlloc {
    /// Its id.
    #[must_use]
    pub fn id(&self) -> AllocId {
        id_of(self.cluster, self.key)
    }

    /// Returns the node where it runs.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// The job's version it runs.
    #[must_use]
    pub fn job(&self) -> &Arc<JobVersion> {
        &self.row.cohort.job
    }

    /// The deployment it belongs to.
    #[must_use]
    pub fn deployment(&self) -> Option<DeploymentId> {
        self.row.cohort.deployment
    }

    /// All its fields laid out.
    #[must_use]
    pub fn unpack(&self) -> Allocation {
        unpack(self.id(), self.key, self.node_id, &self.row)
    }
}

fn unpack(id: AllocId, key: u64, node_id: NodeId, row: &Row) -> Allocation {
    let cohort = &*row.cohort;
    Allocation {
        id,
        eval_id: cohort.eval_id,
        node_id,
        job: Arc::clone(&cohort.job),
        group_at: cohort.group_at,
        name_index: row.name_index,
        holding: row.held().clone(),
        metrics: Arc::clone(&cohort.metrics),
        score: row.score,
        desired: row.marks.desired(),
        desired_description: row.desired_description().to_owned(),
        client_status: row.client_status,
        client_description: row.client_description().to_owned(),
        task_states: row.task_states(),
        previous: row.extra().and_then(|extra| extra.previous),
        next: row.extra().and_then(|extra| extra.next),
        deployment: cohort.deployment,
        healthy: row.marks.healthy(),
        canary: row.marks.canary(),
        transition: row.marks.transition(),
        follow_up: row.extra().and_then(|extra| extra.follow_up),
        reschedules: row
            .extra()
            .map_or_else(Vec::new, |extra| extra.reschedules.clone()),
        preempted_by: row.extra().and_then(|extra| extra.preempted_by),
        preempted: row
            .extra()
            .map_or_else(Vec::new, |extra| extra.preempted.clone()),
        create_index: created(key),
        modify_index: row.modify_index,
        alloc_modify_index: row.alloc_modify_index,
        create_time: cohort.create_time,
        modify_time: row.modify_time,
    }
}
