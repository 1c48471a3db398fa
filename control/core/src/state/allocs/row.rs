//! A row of the table of allocations, in as few bytes as possible.
//!
//! Data shared by the instances that one plan places for one group are in their [`PlanShared`]. Data that few rows have
//! are in [`ColdFields`]. A rare field belongs there, a shared one into the cohort. Only data that differ on every row
//! and change as the allocation runs belong into [`Row`].

use std::sync::{Arc, OnceLock};

use muster_domain::alloc::{
    AllocReport, ClientStatus, DesiredStatus, PlacementMetrics, RemoteHandle, Reschedule, Score,
    TaskState, Transition, phrase,
};
use muster_domain::id::{AllocId, DeploymentId, EvalId, JobKey, LogIndex, NodeNumber, Timestamp};
use muster_domain::job::{JobVersion, TaskGroup};
use muster_domain::resources::{Amount, Holding};

use super::marks::AllocFlags;
use super::remote::Remote;
use super::tasks::Tasks;
use crate::state::digest::Digest;

/// The data shared by the instances that one plan places for one group.
#[derive(Debug)]
pub(crate) struct PlanShared {
    pub(super) job: Arc<JobVersion>,
    pub(super) group_at: u16,
    pub(super) eval_id: EvalId,
    pub(super) metrics: Arc<PlacementMetrics>,
    pub(super) create_time: Timestamp,
    /// The deployment to which they belong.
    pub(super) deployment: Option<DeploymentId>,
    /// The job's key, whose parts the version has only separately.
    pub(super) key: Arc<JobKey>,
    /// The amounts that one instance asks for, added up.
    pub(super) ask: Amount,
    hash: u64,
    /// Size of its job in bytes when sent, after the first measurement.
    job_bytes: OnceLock<usize>,
}

/// Compares by content; two cohorts may be equal after a snapshot.
impl PartialEq for PlanShared {
    fn eq(&self, other: &Self) -> bool {
        let same_job = Arc::ptr_eq(&self.job, &other.job) || self.job == other.job;
        std::ptr::eq(self, other)
            || (self.hash == other.hash
                && same_job
                && self.group_at == other.group_at
                && self.eval_id == other.eval_id
                && self.create_time == other.create_time
                && self.deployment == other.deployment
                && self.metrics == other.metrics)
    }
}

impl Eq for PlanShared {}

impl PlanShared {
    /// Returns the cohort; `None` if the version has no such group.
    pub(crate) fn new(
        job: Arc<JobVersion>,
        group_at: u16,
        eval_id: EvalId,
        metrics: Arc<PlacementMetrics>,
        create_time: Timestamp,
        deployment: Option<DeploymentId>,
    ) -> Option<Arc<Self>> {
        let ask = job.spec.groups.get(usize::from(group_at))?.ask();
        let key = Arc::new(job.spec.key());
        let version = (job.version, job.create_index, job.job_modify_index);
        let made = (eval_id, &*metrics, create_time, deployment);
        let hash = Digest::of(&(&*key, version, group_at, made));
        Some(Arc::new(Self {
            job,
            group_at,
            eval_id,
            metrics,
            create_time,
            deployment,
            key,
            ask,
            hash,
            job_bytes: OnceLock::new(),
        }))
    }

    /// Returns the cohort of the same instances in group `group_at` of another version of their job, within
    /// `deployment`.
    pub(crate) fn of_version(
        &self,
        job: Arc<JobVersion>,
        group_at: u16,
        deployment: Option<DeploymentId>,
    ) -> Option<Arc<Self>> {
        let metrics = Arc::clone(&self.metrics);
        let (eval_id, made_at) = (self.eval_id, self.create_time);
        Self::new(job, group_at, eval_id, metrics, made_at, deployment)
    }

    pub(crate) fn deployment(&self) -> Option<DeploymentId> {
        self.deployment
    }

    pub(crate) fn job(&self) -> &Arc<JobVersion> {
        &self.job
    }

    /// Returns the size of the job in bytes when sent. `measure` is called once.
    pub(super) fn job_bytes(&self, measure: impl FnOnce(&JobVersion) -> usize) -> usize {
        *self.job_bytes.get_or_init(|| measure(&self.job))
    }

    pub(crate) fn group_at(&self) -> u16 {
        self.group_at
    }

    pub(crate) fn eval_id(&self) -> EvalId {
        self.eval_id
    }

    pub(crate) fn metrics(&self) -> &Arc<PlacementMetrics> {
        &self.metrics
    }

    pub(crate) fn create_time(&self) -> Timestamp {
        self.create_time
    }

    /// Returns the group of the instances.
    pub(crate) fn group(&self) -> &TaskGroup {
        &self.job.spec.groups[usize::from(self.group_at)]
    }
}

/// The data that few allocations have. Later features add more here: a row without such data pays eight bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct ColdFields {
    /// Ports, cores and devices it holds.
    pub(super) holding: Holding,
    /// The allocation it replaces.
    pub(super) previous: Option<AllocId>,
    /// Earlier replacements in the same chain, oldest first. They are kept here, because the replaced allocations may
    /// be removed first.
    pub(super) reschedules: Vec<Reschedule>,
    /// The allocation that replaces it.
    pub(super) next: Option<AllocId>,
    /// The evaluation that continues with it.
    pub(super) follow_up: Option<EvalId>,
    /// The allocation that preempted it.
    pub(super) preempted_by: Option<AllocId>,
    /// Allocations that it preempted.
    pub(super) preempted: Vec<AllocId>,
    /// Time at which its node was found lost or out of reach.
    pub(super) unreachable_at: Option<Timestamp>,
    /// The reason why it is to stop, if that is not a known phrase.
    pub(super) desired_text: String,
    /// The client description from its agent, if that is not a known phrase.
    pub(super) client_text: String,
    /// Its tasks that run on another system.
    pub(super) remote: Option<Box<Remote>>,
}

/// The value in place of a phrase's number if the text is in [`ColdFields`].
const TEXT_IN_COLD_FIELDS: u8 = u8::MAX;

/// An allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    pub(super) cohort: Arc<PlanShared>,
    pub(super) extra: Option<Arc<ColdFields>>,
    pub(super) modify_index: LogIndex,
    pub(super) alloc_modify_index: LogIndex,
    pub(super) modify_time: Timestamp,
    pub(super) node: NodeNumber,
    pub(super) name_index: u32,
    pub(super) score: Score,
    pub(super) marks: AllocFlags,
    pub(super) client_status: ClientStatus,
    desired_phrase: u8,
    client_phrase: u8,
    pub(super) tasks: Tasks,
}

/// The limit of the table: a row has at most 96 bytes, half of them task states.
const _: () = assert!(size_of::<Row>() <= 96);

impl Row {
    /// Returns an instance of `cohort` placed by the entry `index`.
    pub(crate) fn placed(
        cohort: &Arc<PlanShared>,
        node: NodeNumber,
        name_index: u32,
        score: Score,
        index: LogIndex,
    ) -> Self {
        Self {
            cohort: Arc::clone(cohort),
            extra: None,
            modify_index: index,
            alloc_modify_index: index,
            modify_time: cohort.create_time,
            node,
            name_index,
            score,
            marks: AllocFlags::default(),
            client_status: ClientStatus::Pending,
            desired_phrase: 0,
            client_phrase: 0,
            tasks: Tasks::default(),
        }
    }

    /// Sets its holding.
    pub(crate) fn holding(mut self, holding: &Holding) -> Self {
        if !holding.is_empty() {
            self.change_extra(|extra| extra.holding = holding.clone());
        }
        self
    }

    /// Sets the allocation that it replaces.
    pub(crate) fn replacing(mut self, previous: AllocId, reschedules: Vec<Reschedule>) -> Self {
        self.change_extra(|extra| {
            extra.previous = Some(previous);
            extra.reschedules = reschedules;
        });
        self
    }

    /// Sets the allocations that it preempts.
    pub(crate) fn preempting(mut self, preempted: &[AllocId]) -> Self {
        if !preempted.is_empty() {
            self.change_extra(|extra| extra.preempted = preempted.to_vec());
        }
        self
    }

    /// Sets remote tasks that run already.
    pub(crate) fn taking(mut self, running: Vec<RemoteHandle>) -> Self {
        self.change_remote(|remote| remote.running = running);
        self
    }

    pub(crate) fn set_canary(&mut self, canary: bool) {
        self.marks.set_canary(canary);
    }

    pub(crate) fn set_healthy(&mut self, healthy: Option<bool>) {
        self.marks.set_healthy(healthy);
    }

    pub(crate) fn set_transition(&mut self, transition: Transition) {
        self.marks.set_transition(transition);
    }

    pub(crate) fn transition(&self) -> Transition {
        self.marks.transition()
    }

    /// Records that its remote tasks in `handed` were handed over to another allocation. They are `kept` if it may go
    /// on with them.
    pub(crate) fn hand_over(&mut self, handed: &[RemoteHandle], kept: bool) {
        self.change_remote(|remote| {
            remote.running.retain(|it| kept || !handed.contains(it));
            handed.clone_into(&mut remote.handed);
        });
    }

    /// Records that it manages again its remote tasks in `handed`, which another allocation had been given.
    pub(crate) fn take_back(&mut self, handed: &[RemoteHandle]) {
        self.change_remote(|remote| remote.handed.retain(|it| !handed.contains(it)));
    }

    /// Records that a client asks for this very allocation to be stopped.
    pub(crate) fn ask_to_stop(&mut self) {
        if self.remote() != Remote::NONE {
            self.change_remote(|remote| remote.stop_asked = true);
        }
    }

    /// Sets the evaluation that continues with it.
    pub(crate) fn set_follow_up(&mut self, eval_id: EvalId) {
        self.change_extra(|extra| extra.follow_up = Some(eval_id));
    }

    /// Sets the allocation that preempted it.
    pub(crate) fn set_preempted_by(&mut self, alloc_id: AllocId) {
        self.change_extra(|extra| extra.preempted_by = Some(alloc_id));
    }

    /// Sets the time at which its node was found lost or out of reach; `None`: the node is back.
    pub(crate) fn set_unreachable(&mut self, at: Option<Timestamp>) {
        if at.is_some() || self.extra().is_some() {
            self.change_extra(|extra| extra.unreachable_at = at);
        }
    }

    /// Sets the wanted status, and the reason for it.
    pub(crate) fn set_desired(&mut self, desired: DesiredStatus, why: &str) {
        self.marks.set_desired(desired);
        self.desired_phrase = phrase::number(why).unwrap_or(TEXT_IN_COLD_FIELDS);
        let text = if self.desired_phrase == TEXT_IN_COLD_FIELDS {
            why
        } else {
            ""
        };
        if self.extra().is_some_and(|extra| extra.desired_text != text) || !text.is_empty() {
            self.change_extra(|extra| text.clone_into(&mut extra.desired_text));
        }
    }

    /// Sets its client status, and the reason for it.
    pub(crate) fn set_client(&mut self, status: ClientStatus, why: &str) {
        self.client_status = status;
        self.client_phrase = phrase::number(why).unwrap_or(TEXT_IN_COLD_FIELDS);
        let text = if self.client_phrase == TEXT_IN_COLD_FIELDS {
            why
        } else {
            ""
        };
        if self.extra().is_some_and(|extra| extra.client_text != text) || !text.is_empty() {
            self.change_extra(|extra| text.clone_into(&mut extra.client_text));
        }
    }

    /// Applies its agent's report. `tasks` are the report's, as [`Self::changed_task_states`] packed them.
    pub(crate) fn set_reported(&mut self, report: &AllocReport, tasks: Tasks) {
        self.set_client(report.client_status, &report.client_description);
        self.tasks = tasks;
        let remote = self.remote().reported(report, self.cohort.group());
        if *self.remote() != remote {
            self.change_remote(|known| *known = remote);
        }
        if report.healthy.is_some() {
            self.marks.set_healthy(report.healthy);
        }
    }

    /// Sets its replacement.
    pub(crate) fn set_next(&mut self, next: AllocId) {
        self.change_extra(|extra| extra.next = Some(next));
    }

    /// Moves it to another version of its job.
    pub(crate) fn set_cohort(&mut self, cohort: Arc<PlanShared>) {
        let states = self.task_states();
        self.cohort = cohort;
        self.tasks = self.pack(&states);
        self.marks.set_healthy(None);
    }

    /// Marks it as changed by the entry `index`.
    pub(crate) fn touch(&mut self, index: LogIndex, at: Timestamp) {
        self.modify_index = index;
        self.modify_time = at;
    }

    /// Marks it as changed in a way that its agent must receive.
    pub(crate) fn touch_for_agent(&mut self, index: LogIndex, at: Timestamp) {
        self.touch(index, at);
        self.alloc_modify_index = index;
    }

    /// Marks it as changed in a way that does not count as an event in its life.
    pub(crate) fn touch_silently(&mut self, index: LogIndex) {
        self.modify_index = index;
    }

    /// Returns the report's task states, packed for this row, if the report has any news.
    pub(super) fn changed_task_states(&self, report: &AllocReport) -> Option<Tasks> {
        let tasks = self.pack(&report.task_states);
        let is_known = self.client_status == report.client_status
            && self.client_description() == report.client_description
            && self.tasks == tasks
            && (report.healthy.is_none() || report.healthy == self.marks.healthy())
            && *self.remote() == self.remote().reported(report, self.cohort.group());
        (!is_known).then_some(tasks)
    }

    fn pack(&self, states: &[TaskState]) -> Tasks {
        Tasks::pack(states, self.cohort.group(), self.cohort.create_time)
    }

    pub(super) fn task_states(&self) -> Vec<TaskState> {
        // The bytes were packed here or checked when they were read, so they are never malformed.
        self.tasks
            .unpack(self.cohort.group(), self.cohort.create_time)
            .unwrap_or_default()
    }

    pub(super) fn extra(&self) -> Option<&ColdFields> {
        self.extra.as_deref()
    }

    fn change_extra(&mut self, change: impl FnOnce(&mut ColdFields)) {
        let mut extra = self.extra().cloned().unwrap_or_default();
        change(&mut extra);
        self.extra = (extra != ColdFields::default()).then(|| Arc::new(extra));
    }

    fn change_remote(&mut self, change: impl FnOnce(&mut Remote)) {
        let mut remote = self.remote().clone();
        change(&mut remote);
        let remote = (remote != *Remote::NONE).then(|| Box::new(remote));
        self.change_extra(|extra| extra.remote = remote);
    }

    pub(super) fn remote(&self) -> &Remote {
        let remote = self.extra().and_then(|extra| extra.remote.as_deref());
        remote.unwrap_or(Remote::NONE)
    }

    pub(super) fn desired_description(&self) -> &str {
        let text = phrase::text(self.desired_phrase);
        text.unwrap_or_else(|| self.extra().map_or("", |extra| &extra.desired_text))
    }

    pub(super) fn client_description(&self) -> &str {
        let text = phrase::text(self.client_phrase);
        text.unwrap_or_else(|| self.extra().map_or("", |extra| &extra.client_text))
    }

    pub(crate) fn node(&self) -> NodeNumber {
        self.node
    }

    pub(crate) fn ask(&self) -> Amount {
        let mut ask = self.cohort.ask;
        if let Some(extra) = &self.extra {
            ask.cpu_mhz = ask.cpu_mhz.saturating_add(extra.holding.cores_mhz());
        }
        ask
    }

    pub(crate) fn cohort(&self) -> &Arc<PlanShared> {
        &self.cohort
    }

    /// Returns whether its agent reported, or the control plane decided for the agent, that no task of it runs any
    /// more.
    pub(crate) fn has_ended(&self) -> bool {
        self.client_status.is_terminal()
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.server_terminal() || self.client_status.is_terminal()
    }

    pub(super) fn server_terminal(&self) -> bool {
        match self.marks.desired() {
            DesiredStatus::Run => false,
            DesiredStatus::Stop | DesiredStatus::Evict => true,
        }
    }

    pub(crate) fn held(&self) -> &Holding {
        static NOTHING: Holding = Holding {
            ports: Vec::new(),
            cores: Vec::new(),
            devices: Vec::new(),
        };
        self.extra().map_or(&NOTHING, |extra| &extra.holding)
    }

    /// Returns its part of the table's hash.
    pub(super) fn hash(&self, key: u64) -> u64 {
        self.digest(key).finish()
    }

    pub(super) fn digest(&self, key: u64) -> Digest {
        let Self {
            cohort,
            extra,
            modify_index,
            alloc_modify_index,
            modify_time,
            node,
            name_index,
            score,
            marks,
            client_status,
            desired_phrase,
            client_phrase,
            tasks,
        } = self;
        let mut digest = Digest::default();
        digest.word(cohort.hash);
        digest.word(key);
        digest.word(modify_index.0);
        digest.word(alloc_modify_index.0);
        digest.word(modify_time.0);
        digest.word(u64::from(node.0) << 32 | u64::from(*name_index));
        digest.word(u64::from(score.0.cast_unsigned()));
        let statuses = [marks.bits(), *client_status as u8];
        digest.bytes(&[statuses[0], statuses[1], *desired_phrase, *client_phrase]);
        digest.bytes(tasks.as_slice());
        if let Some(extra) = extra {
            digest.value(&**extra);
        }
        digest
    }
}

/// A row in the form of snapshots.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RowRecord {
    /// The position of its cohort in the stream.
    pub(crate) cohort: u32,
    key: u64,
    node: NodeNumber,
    name_index: u32,
    score: Score,
    marks: AllocFlags,
    client_status: ClientStatus,
    desired_phrase: u8,
    client_phrase: u8,
    /// The distance between the entry of the last change and the entry in `key`.
    modified_after: u64,
    alloc_modified_after: u64,
    modify_time: Timestamp,
    extra: Option<Box<ColdFields>>,
    tasks: Vec<u8>,
}

impl RowRecord {
    pub(crate) fn of(key: u64, row: &Row, cohort: u32) -> Self {
        let Row {
            cohort: _,
            extra,
            modify_index,
            alloc_modify_index,
            modify_time,
            node,
            name_index,
            score,
            marks,
            client_status,
            desired_phrase,
            client_phrase,
            tasks,
        } = row;
        let made = super::created(key).0;
        Self {
            cohort,
            key,
            node: *node,
            name_index: *name_index,
            score: *score,
            marks: *marks,
            client_status: *client_status,
            desired_phrase: *desired_phrase,
            client_phrase: *client_phrase,
            modified_after: modify_index.0.wrapping_sub(made),
            alloc_modified_after: alloc_modify_index.0.wrapping_sub(made),
            modify_time: *modify_time,
            extra: extra.as_ref().map(|extra| Box::new((**extra).clone())),
            tasks: tasks.as_slice().to_vec(),
        }
    }

    /// Returns the row and its key; `None` if its task states are malformed.
    pub(crate) fn into_row(self, cohort: Arc<PlanShared>) -> Option<(u64, Row)> {
        let Self {
            cohort: _,
            key,
            node,
            name_index,
            score,
            marks,
            client_status,
            desired_phrase,
            client_phrase,
            modified_after,
            alloc_modified_after,
            modify_time,
            extra,
            tasks,
        } = self;
        let tasks = Tasks::from_bytes(&tasks);
        tasks.unpack(cohort.group(), cohort.create_time).ok()?;
        let made = super::created(key).0;
        let row = Row {
            cohort,
            extra: extra.map(|extra| Arc::new(*extra)),
            modify_index: LogIndex(made.wrapping_add(modified_after)),
            alloc_modify_index: LogIndex(made.wrapping_add(alloc_modified_after)),
            modify_time,
            node,
            name_index,
            score,
            marks,
            client_status,
            desired_phrase,
            client_phrase,
            tasks,
        };
        Some((key, row))
    }
}
