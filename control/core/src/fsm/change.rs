//! The command that is being applied: assigns ids, stamps rows, and gathers effects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{AllocReport, ClientStatus, DesiredStatus, Reschedule};
use muster_domain::deployment::Deployment;
use muster_domain::eval::{EvalStatus, Evaluation, Trigger};
use muster_domain::id::{
    AllocId, ClusterTag, DeploymentId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp,
};
use muster_domain::job::{Job, JobStatus};
use muster_domain::node::Node;
use muster_domain::number;
use muster_domain::one_off::{OneOff, WorkEnd};
use muster_domain::plan::PlacementRun;

use super::effect::{ApplyResult, Effect};
use super::garbage::slice_limits::SliceLimits;
use super::remote;
use super::response::Response;
use crate::limits;
use crate::state::{
    ChangedRow, JobRow, ORDINALS, PlanShared, RemovedAllocs, Row, State, Tasks, id_of, key_at,
};

/// The command that is being applied.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) state: &'a mut State,
    pub(super) index: LogIndex,
    pub(super) at: Timestamp,
    /// Bounds for a slice of a collection.
    pub(super) bounds: SliceLimits,
    next_alloc: u32,
    next_eval: u32,
    next_deployment: u32,
    effects: Vec<Effect>,
    /// Jobs whose status may differ now.
    touched: BTreeSet<Arc<JobKey>>,
    /// Nodes that have more room than before.
    freed: BTreeSet<NodeId>,
    /// Nodes whose agents must receive the change; a node may appear more than once.
    changed: Vec<NodeId>,
    /// The same nodes by number: nodes where instances were placed.
    placed: BTreeSet<NodeNumber>,
    /// Nodes of which allocations were removed; a node may appear more than once.
    nodes_with_removed_allocs: Vec<NodeId>,
    /// The ends of one-off tasks that their nodes reported in this command, by the allocation's key.
    ends: BTreeMap<u64, WorkEnd>,
    /// One-off tasks in states that they leave again in this command.
    passed: Vec<Arc<OneOff>>,
    /// Removed one-off tasks in their last state.
    removed: Vec<Arc<OneOff>>,
    written: WrittenRows,
}

/// Rows that were written or removed. The keys of allocations that the command itself made follow from their number.
#[derive(Debug, Default)]
struct WrittenRows {
    /// Rows in the order of the change notice, without allocations.
    rows: BTreeSet<ChangedRow>,
    allocs: BTreeSet<u64>,
    /// Keys of removed allocations.
    forgotten: Vec<u64>,
}

impl<'a> Change<'a> {
    pub(super) fn new(
        state: &'a mut State,
        index: LogIndex,
        at: Timestamp,
        bounds: SliceLimits,
    ) -> Self {
        Self {
            state,
            index,
            at,
            bounds,
            next_alloc: 0,
            next_eval: 0,
            next_deployment: 0,
            effects: Vec::new(),
            touched: BTreeSet::new(),
            freed: BTreeSet::new(),
            changed: Vec::new(),
            nodes_with_removed_allocs: Vec::new(),
            placed: BTreeSet::new(),
            ends: BTreeMap::new(),
            passed: Vec::new(),
            removed: Vec::new(),
            written: WrittenRows::default(),
        }
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// Records that a row was written or removed. Allocations have functions of their own.
    pub(super) fn record_write(&mut self, row: ChangedRow) {
        self.written.rows.insert(row);
    }

    /// Records that a node has more room than before, or takes work again.
    pub(super) fn record_freed_room(&mut self, node_id: NodeId) {
        self.freed.insert(node_id);
    }

    /// Records that the status of the job `key` may differ at the end.
    pub(super) fn touch(&mut self, key: &JobKey) {
        if !self.touched.contains(key) {
            self.touched.insert(Arc::new(key.clone()));
        }
    }

    fn touch_shared(&mut self, key: Arc<JobKey>) {
        if !self.touched.contains(&key) {
            self.touched.insert(key);
        }
    }

    /// Returns the number of instances that the command may still place.
    pub(super) fn placements_left(&self) -> u32 {
        ORDINALS - self.next_alloc
    }

    /// Places an instance of `cohort`; returns `None` if the command has placed as many as it may.
    pub(super) fn place(
        &mut self,
        cohort: &Arc<PlanShared>,
        run: &PlacementRun,
        name_index: u32,
    ) -> Option<AllocId> {
        let ordinal = Some(self.next_alloc).filter(|ordinal| *ordinal < ORDINALS)?;
        self.next_alloc += 1;
        let mut row = Row::placed(cohort, run.node, name_index, run.score, self.index);
        if let Some(detail) = &run.detail {
            row = row.holding(&detail.holding).preempting(&detail.preempted);
            if let Some(previous) = detail.previous {
                let reschedules = self.reschedules_after(&previous, detail.reschedule);
                row = row.replacing(previous, reschedules);
                let handles = remote::inherited(self.state, &previous, cohort);
                if !handles.is_empty() {
                    remote::hand_over(self, &previous, &handles);
                    row = row.taking(handles);
                }
            }
            row.set_canary(detail.canary);
        }
        self.placed.insert(run.node);
        self.state.insert_alloc(key_at(self.index, ordinal), row);
        Some(AllocId::in_cluster(
            self.state.cluster(),
            self.index,
            ordinal,
        ))
    }

    /// Places the instances of `cohort` in `runs`, which have no details, as far as the command may place more. Returns
    /// their number.
    pub(super) fn place_plain(&mut self, cohort: &Arc<PlanShared>, runs: &[PlacementRun]) -> usize {
        let most = self.placements_left() as usize;
        let mut rows = Vec::with_capacity(runs.len());
        for run in runs {
            let names = run.name_indexes().take(most.saturating_sub(rows.len()));
            rows.extend(
                names.map(|name| Row::placed(cohort, run.node, name, run.score, self.index)),
            );
        }
        if rows.is_empty() {
            return 0;
        }
        let (first, count) = (key_at(self.index, self.next_alloc), rows.len());
        self.placed.extend(rows.iter().map(Row::node));
        self.state.insert_siblings(first, rows);
        // The number stays within its bound: the command makes no more rows than placements were left.
        self.next_alloc += number::count(count);
        count
    }

    /// Returns the reschedules that the replacement of `previous` must keep, because `previous` may be removed first.
    /// They are the earlier replacements as far as they count, and this one, if `previous` failed.
    fn reschedules_after(&self, previous: &AllocId, delay: Option<Duration>) -> Vec<Reschedule> {
        let (Some(delay), Some(alloc)) = (delay, self.state.allocs.get(previous)) else {
            return Vec::new();
        };
        let policy = &alloc.group().reschedule;
        let counted =
            |earlier: &&Reschedule| policy.unlimited || self.at.since(earlier.at) < policy.interval;
        let mut reschedules: Vec<Reschedule> = alloc
            .reschedules()
            .iter()
            .filter(counted)
            .cloned()
            .collect();
        let kept = if policy.unlimited {
            limits::RESCHEDULES_KEPT
        } else {
            limits::RESCHEDULES_MAX
        };
        let surplus = (reschedules.len() + 1).saturating_sub(kept);
        reschedules.drain(..surplus);
        reschedules.push(Reschedule {
            at: self.at,
            delay,
            previous: *previous,
            previous_node: alloc.node_id(),
        });
        reschedules
    }

    /// Changes an allocation as its agent reported.
    pub(super) fn update_from_report(&mut self, key: u64, report: &AllocReport, tasks: Tasks) {
        let (index, at) = (self.index, self.at);
        if let Some(end) = &report.end {
            self.ends.insert(key, (**end).clone());
        }
        self.update(key, |row| {
            row.set_reported(report, tasks);
            // The node is within reach: otherwise its agent could not have reported the allocation.
            row.set_unreachable(None);
            row.touch(index, at);
        });
    }

    /// Changes an allocation as the control plane decided. Its agent must receive the change.
    pub(super) fn update_for_agent(&mut self, key: u64, change: impl FnOnce(&mut Row)) {
        let (index, at) = (self.index, self.at);
        let node_id = self.update(key, |row| {
            change(row);
            row.touch_for_agent(index, at);
        });
        self.changed.extend(node_id);
    }

    /// Changes an allocation in a way that its agent need not receive and that does not count as an event in its life.
    pub(super) fn update_silently(&mut self, key: u64, change: impl FnOnce(&mut Row)) {
        let index = self.index;
        self.written.allocs.insert(key);
        self.state.update_alloc(key, |row| {
            change(row);
            row.touch_silently(index);
        });
    }

    /// Records the replacement of an allocation. The agent need not receive it.
    pub(super) fn link_next(&mut self, previous: &AllocId, next: AllocId) {
        let Some(key) = self.state.allocs.key_of(previous) else {
            return;
        };
        self.update_silently(key, |row| row.set_next(next));
    }

    /// Changes an allocation, and returns its node.
    fn update(&mut self, key: u64, change: impl FnOnce(&mut Row)) -> Option<NodeId> {
        let alloc = self.state.allocs.at(key)?;
        let (node_id, job) = (alloc.node_id(), Arc::clone(alloc.job_key()));
        // Allocations that this command made are counted by `next_alloc`.
        if alloc.create_index() != self.index {
            self.written.allocs.insert(key);
        }
        self.touch_shared(job);
        if self.state.update_alloc(key, change) {
            self.freed.insert(node_id);
        }
        Some(node_id)
    }

    /// Writes a node.
    pub(super) fn put_node(&mut self, node: Node) {
        self.record_write(ChangedRow::Node(node.spec.id));
        if node.drain.is_some() {
            self.effect(Effect::DutiesDue);
        }
        self.state.nodes.put(node);
    }

    /// Removes a node.
    pub(super) fn remove_node(&mut self, node_id: &NodeId) {
        self.record_write(ChangedRow::Node(*node_id));
        self.state.remove_node(node_id, self.index);
    }

    /// Writes a job.
    pub(super) fn put_job(&mut self, row: JobRow) {
        self.record_write(ChangedRow::Job(Arc::new(row.job.key())));
        if row.job.current.spec.periodic.is_some() {
            self.effect(Effect::DutiesDue);
        }
        self.state.jobs.put(row);
    }

    /// Removes a job.
    pub(super) fn remove_job(&mut self, key: &JobKey) {
        self.record_write(ChangedRow::Job(Arc::new(key.clone())));
        self.state.jobs.remove(key, self.index);
    }

    /// Asks for an allocation to be stopped. `client` is its client status from then on, if it has not ended.
    pub(super) fn stop(&mut self, key: u64, why: &str, client: Option<ClientStatus>) {
        self.update_for_agent(key, |row| {
            row.set_desired(DesiredStatus::Stop, why);
            if let Some(status) = client.filter(|_| !row.has_ended()) {
                row.set_client(status, why);
            }
        });
    }

    /// Asks for an allocation to be stopped, because the allocation `by` takes its place.
    pub(super) fn evict(&mut self, key: u64, by: AllocId) {
        let why = format!("Preempted by alloc ID {by}");
        self.update_for_agent(key, |row| {
            row.set_desired(DesiredStatus::Evict, &why);
            row.set_preempted_by(by);
        });
    }

    /// Returns the id of a deployment to be made.
    pub(super) fn next_deployment(&mut self) -> DeploymentId {
        let ordinal = self.next_deployment;
        self.next_deployment += 1;
        DeploymentId::in_cluster(self.state.cluster(), self.index, ordinal)
    }

    /// Writes a deployment.
    pub(super) fn put_deployment(&mut self, mut deployment: Deployment) {
        deployment.modify_index = self.index;
        deployment.modify_time = self.at;
        self.record_write(ChangedRow::Deployment(deployment.id));
        self.effect(Effect::DutiesDue);
        self.state.put_deployment(deployment);
    }

    /// Removes a deployment.
    pub(super) fn remove_deployment(&mut self, id: &DeploymentId) {
        if self.state.remove_deployment(id, self.index).is_some() {
            self.record_write(ChangedRow::Deployment(*id));
        }
    }

    /// Removes allocations; their agents are notified. Returns their size.
    pub(super) fn remove_allocs(&mut self, keys: Vec<u64>) -> u64 {
        let removed = self.state.remove_allocs(keys);
        let RemovedAllocs {
            keys,
            jobs,
            node_ids,
            bytes,
        } = removed;
        if !keys.is_empty() {
            self.state.allocs.set_index(self.index);
        }
        self.written.forgotten.extend(keys);
        self.nodes_with_removed_allocs.extend(node_ids);
        for job in jobs {
            self.touch_shared(job);
        }
        bytes
    }

    /// Writes a one-off task.
    pub(super) fn put_one_off(&mut self, mut row: OneOff) {
        row.modify_index = self.index;
        row.updated_at = self.at;
        self.record_write(ChangedRow::OneOff(Arc::from(row.guid.as_str())));
        self.effect(Effect::DutiesDue);
        self.state.one_offs.put(row);
    }

    /// Shows a one-off task in the state that it has before this command changes it once more.
    pub(super) fn record_passed_state(&mut self, mut row: OneOff) {
        row.modify_index = self.index;
        row.updated_at = self.at;
        self.passed.push(Arc::new(row));
    }

    /// Removes a one-off task.
    pub(super) fn remove_one_off(&mut self, guid: &str) {
        if let Some(row) = self.state.one_offs.remove(guid, self.index) {
            self.removed.push(row);
            self.record_write(ChangedRow::OneOff(Arc::from(guid)));
        }
    }

    pub(super) fn remove_eval(&mut self, eval_id: &EvalId) {
        if let Some(old) = self.state.remove_eval(eval_id, self.index) {
            self.record_write(ChangedRow::Eval(*eval_id));
            self.touch(&old.job);
            self.effects.push(Effect::ForgetEval(old.id));
        }
    }

    /// Adds a new, pending evaluation of `job`.
    pub(super) fn add_eval(&mut self, job: &Job, trigger: Trigger) -> EvalId {
        let eval = self.new_eval(job, trigger);
        self.put_eval(eval)
    }

    /// Returns a new, pending evaluation of `job` that is not written yet.
    pub(super) fn new_eval(&mut self, job: &Job, trigger: Trigger) -> Evaluation {
        let ordinal = self.next_eval;
        self.next_eval += 1;
        let id = EvalId::in_cluster(self.state.cluster(), self.index, ordinal);
        Evaluation::of_job(id, job, trigger, self.index, self.at)
    }

    /// Adds an evaluation of a job. A template of other jobs needs no evaluation, unless instances run from a time when
    /// it was not a template: those are stopped.
    pub(super) fn add_job_eval(&mut self, job: &Job, trigger: Trigger) -> Option<EvalId> {
        let has_instances = || {
            let mut allocs = self.state.allocs.of_job(&job.key());
            allocs.any(|alloc| !alloc.is_terminal())
        };
        if job.current.spec.is_template() && !has_instances() {
            self.touch(&job.key());
            None
        } else {
            Some(self.add_eval(job, trigger))
        }
    }

    /// Writes an evaluation and adds the effect that the leader must carry out for it.
    pub(super) fn put_eval(&mut self, mut eval: Evaluation) -> EvalId {
        eval.modify_index = self.index;
        eval.modify_time = self.at;
        let eval_id = eval.id;
        self.touch(&eval.job);
        self.effects.push(match eval.status {
            EvalStatus::Pending => Effect::EnqueueEval(eval_id),
            EvalStatus::Blocked => Effect::BlockEval(eval_id),
            EvalStatus::Complete | EvalStatus::Failed | EvalStatus::Canceled => {
                Effect::ForgetEval(eval_id)
            }
        });
        self.record_write(ChangedRow::Eval(eval_id));
        self.state.put_eval(eval);
        eval_id
    }

    /// Returns the jobs of one-off tasks whose allocations this command changed.
    pub(super) fn touched_one_offs(&self) -> Vec<Arc<JobKey>> {
        let one_offs = self.touched.iter().filter(|key| key.is_one_off());
        one_offs.cloned().collect()
    }

    /// Takes out the end of a one-off task that its node reported in this command.
    pub(super) fn take_end(&mut self, key: &JobKey) -> Option<WorkEnd> {
        let alloc = self.state.allocs.of_job(key).next();
        alloc.and_then(|alloc| self.ends.remove(&alloc.key()))
    }

    /// Updates the status of every touched job and returns the results of the command, without its response.
    pub(super) fn finish(mut self) -> ApplyResult {
        for key in std::mem::take(&mut self.touched) {
            self.refresh_status(&key);
        }
        self.effects.extend(
            self.freed
                .into_iter()
                .map(|node_id| Effect::CapacityFreed { node_id }),
        );
        let mut changed = self.changed;
        let nodes = &self.state.nodes;
        changed.extend(
            self.placed
                .iter()
                .filter_map(|number| Some(nodes.column_at(*number)?.node_id)),
        );
        changed.sort_unstable();
        changed.dedup();
        self.effects
            .extend(changed.into_iter().map(Effect::NodeChanged));
        let mut nodes_with_removed_allocs = self.nodes_with_removed_allocs;
        nodes_with_removed_allocs.sort_unstable();
        nodes_with_removed_allocs.dedup();
        self.effects.extend(
            nodes_with_removed_allocs
                .into_iter()
                .map(Effect::NodeForgot),
        );
        ApplyResult {
            response: Response::Done,
            effects: self.effects,
            changed: self
                .written
                .list(self.state.cluster(), self.index, self.next_alloc),
            passed: self.passed,
            removed: self.removed,
        }
    }

    /// Returns the status of a job that follows from its allocations and evaluations.
    pub(super) fn status_of(&self, key: &JobKey, job: &Job) -> JobStatus {
        let is_waiting_template = job.current.spec.is_template() && !job.stop;
        if is_waiting_template || self.state.allocs.live_of_job(key) > 0 {
            JobStatus::Running
        } else if self.state.evals.open_of_job(key).next().is_some() {
            JobStatus::Pending
        } else {
            JobStatus::Dead
        }
    }

    fn refresh_status(&mut self, key: &JobKey) {
        let Some(row) = self.state.jobs.row(key) else {
            return;
        };
        let status = self.status_of(key, &row.job);
        if row.job.status != status {
            let job = Job {
                status,
                modify_index: self.index,
                ..(*row.job).clone()
            };
            let row = JobRow {
                job: Arc::new(job),
                ..(**row).clone()
            };
            self.put_job(row);
        }
    }
}

impl WrittenRows {
    /// Lists the rows, with the allocations that the command made in the order it made them.
    fn list(self, cluster: ClusterTag, index: LogIndex, allocs_made: u32) -> Vec<ChangedRow> {
        let Self {
            rows,
            allocs,
            mut forgotten,
        } = self;
        // Each row is named once.
        forgotten.retain(|key| !allocs.contains(key));
        let made = (0..allocs_made).map(|ordinal| key_at(index, ordinal));
        let forgotten = forgotten.into_iter();
        let forgotten = forgotten.map(|key| ChangedRow::AllocGone(id_of(cluster, key)));
        let allocs = allocs.into_iter().chain(made);
        let allocs = allocs.map(|key| ChangedRow::Alloc(id_of(cluster, key)));
        rows.into_iter().chain(allocs).chain(forgotten).collect()
    }
}
