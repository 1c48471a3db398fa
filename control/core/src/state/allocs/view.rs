//! The view by which every reader reads an allocation.

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

/// An allocation of a state. It costs nothing to make and to copy; the data that it returns live as long as the state.
/// See [`Allocation`] for the meaning of each field.
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

    /// Returns its position in the order in which allocations are made.
    #[must_use]
    pub fn key(self) -> u64 {
        self.key
    }

    pub fn eval_id(self) -> EvalId {
        self.row.cohort.eval_id
    }

    /// Returns the number of its node, which no other node gets while the allocation exists.
    pub fn node(self) -> NodeNumber {
        self.row.node
    }

    pub fn node_id(self) -> NodeId {
        self.table.node_id(self.row.node)
    }

    pub fn job(self) -> &'a Arc<JobVersion> {
        &self.row.cohort.job
    }

    /// Returns the size of its job in bytes when sent, as `measure` returns it. `measure` is called once for all
    /// allocations that were placed together.
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

    /// Returns the amounts that it takes of its node.
    pub fn ask(self) -> Amount {
        self.row.ask()
    }

    /// Returns the amounts that it would take if its group asked for `of_group`: the cores that it holds stay.
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

    /// Returns the ports, cores and devices that it holds.
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

    /// Returns its tasks that run on another system.
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

    /// Returns the states of its tasks, unpacked at each call.
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

    /// Returns whether no task of it runs or will run, or it was asked to stop.
    pub fn is_terminal(self) -> bool {
        self.row.is_terminal()
    }

    /// Returns whether the control plane wants it stopped.
    pub fn server_terminal(self) -> bool {
        self.row.server_terminal()
    }

    /// Returns the report's task states, packed for this allocation, if the report has any news.
    pub(crate) fn changed_task_states(self, report: &AllocReport) -> Option<Tasks> {
        self.row.changed_task_states(report)
    }

    /// Returns the allocation without its state, in a few bytes, to be kept longer than the state. `node_id` is its
    /// node's.
    pub fn save(self, node_id: NodeId) -> SavedAlloc {
        SavedAlloc {
            cluster: self.table.cluster(),
            node_id,
            key: self.key,
            row: self.row.clone(),
        }
    }

    /// Returns the allocation with all its fields unpacked.
    pub fn unpack(self) -> Allocation {
        unpack(self.id(), self.key, self.node_id(), self.row)
    }

    /// Returns the wanted state to send to its agent.
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

    /// Returns the wanted state of its remote tasks, to send to its agent. `None`: it has none that concern another
    /// agent.
    pub fn to_remote(self) -> Option<RemoteAlloc> {
        let remote = RemoteAlloc {
            alloc_id: self.id(),
            take: self.remote().running().to_vec(),
            leave: self.remote().handed().to_vec(),
        };
        (!remote.is_empty()).then_some(remote)
    }
}

/// An allocation as it was, independent of its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedAlloc {
    cluster: ClusterTag,
    node_id: NodeId,
    key: u64,
    row: Row,
}

impl SavedAlloc {
    /// Returns its id.
    #[must_use]
    pub fn id(&self) -> AllocId {
        id_of(self.cluster, self.key)
    }

    /// Returns the node where it runs.
    #[must_use]
    pub fn node_id(&self) -> NodeId {
        self.node_id
    }

    /// Returns the job's version that it runs.
    #[must_use]
    pub fn job(&self) -> &Arc<JobVersion> {
        &self.row.cohort.job
    }

    /// Returns the deployment to which it belongs.
    #[must_use]
    pub fn deployment(&self) -> Option<DeploymentId> {
        self.row.cohort.deployment
    }

    /// Returns all its fields, unpacked.
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
