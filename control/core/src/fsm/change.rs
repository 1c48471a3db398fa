//! One command under way: hands out ids, stamps rows, and gathers effects.

use std::collections::BTreeSet;
use std::sync::Arc;

use muster_domain::alloc::{Allocation, ClientStatus, DesiredStatus};
use muster_domain::eval::{EvalStatus, Evaluation, Trigger};
use muster_domain::id::{AllocId, EvalId, JobKey, LogIndex, NodeId, Timestamp};
use muster_domain::job::{Job, JobStatus};
use muster_domain::node::Node;

use super::{Changed, Effect};
use crate::state::{JobRow, State};

/// A command under way.
#[derive(Debug)]
pub(super) struct Change<'a> {
    pub(super) state: &'a mut State,
    pub(super) index: LogIndex,
    pub(super) at: Timestamp,
    next_alloc: u32,
    next_eval: u32,
    effects: Vec<Effect>,
    /// Jobs whose status may differ now.
    touched: BTreeSet<JobKey>,
    /// Nodes with more room than before.
    freed: BTreeSet<NodeId>,
    /// Nodes whose agents must hear of it.
    changed: BTreeSet<NodeId>,
    written: Written,
}

/// Rows written or removed. Allocations that the command itself made follow from their number.
#[derive(Debug, Default)]
struct Written {
    nodes: BTreeSet<NodeId>,
    jobs: BTreeSet<JobKey>,
    evals: BTreeSet<EvalId>,
    allocs: BTreeSet<AllocId>,
}

impl<'a> Change<'a> {
    pub(super) fn new(state: &'a mut State, index: LogIndex, at: Timestamp) -> Self {
        Self {
            state,
            index,
            at,
            next_alloc: 0,
            next_eval: 0,
            effects: Vec::new(),
            touched: BTreeSet::new(),
            freed: BTreeSet::new(),
            changed: BTreeSet::new(),
            written: Written::default(),
        }
    }

    pub(super) fn effect(&mut self, effect: Effect) {
        self.effects.push(effect);
    }

    /// The node has more room than before, or takes work again.
    pub(super) fn freed(&mut self, node_id: NodeId) {
        self.freed.insert(node_id);
    }

    /// The status of `key` may differ at the end.
    pub(super) fn touch(&mut self, key: &JobKey) {
        if !self.touched.contains(key) {
            self.touched.insert(key.clone());
        }
    }

    pub(super) fn next_alloc_id(&mut self) -> AllocId {
        let ordinal = self.next_alloc;
        self.next_alloc += 1;
        AllocId::at(self.index, ordinal)
    }

    /// Writes an allocation that an agent reported on.
    pub(super) fn put_reported(&mut self, mut alloc: Allocation) {
        alloc.modify_index = self.index;
        alloc.modify_time = self.at;
        self.put(alloc);
    }

    /// Writes an allocation that the control plane changed, which its agent must see.
    pub(super) fn put_decided(&mut self, mut alloc: Allocation) {
        alloc.modify_index = self.index;
        alloc.alloc_modify_index = self.index;
        alloc.modify_time = self.at;
        self.changed.insert(alloc.node_id);
        self.put(alloc);
    }

    fn put(&mut self, alloc: Allocation) {
        let node_id = alloc.node_id;
        self.touch(&alloc.job_key());
        if self.put_unseen(alloc) {
            self.freed.insert(node_id);
        }
    }

    /// Writes an allocation as it is; says whether it set room free.
    pub(super) fn put_unseen(&mut self, alloc: Allocation) -> bool {
        // What this command made is counted by `next_alloc`.
        if alloc.create_index != self.index {
            self.written.allocs.insert(alloc.id);
        }
        self.state.put_alloc(alloc)
    }

    /// Writes a node.
    pub(super) fn put_node(&mut self, node: Node) {
        self.written.nodes.insert(node.spec.id);
        self.state.nodes.put(node);
    }

    /// Forgets a node.
    pub(super) fn remove_node(&mut self, node_id: &NodeId) {
        self.written.nodes.insert(*node_id);
        self.state.nodes.remove(node_id, self.index);
    }

    /// Writes a job.
    pub(super) fn put_job(&mut self, row: JobRow) {
        self.written.jobs.insert(row.job.key());
        self.state.jobs.put(row);
    }

    /// Forgets a job.
    pub(super) fn remove_job(&mut self, key: &JobKey) {
        self.written.jobs.insert(key.clone());
        self.state.jobs.remove(key, self.index);
    }

    /// Asks for `alloc` to be stopped.
    pub(super) fn stop(&mut self, alloc: &Allocation, why: &str, client: Option<ClientStatus>) {
        let mut alloc = alloc.clone();
        alloc.desired = DesiredStatus::Stop;
        why.clone_into(&mut alloc.desired_description);
        if let Some(status) = client.filter(|_| !alloc.client_status.is_terminal()) {
            alloc.client_status = status;
            why.clone_into(&mut alloc.client_description);
        }
        self.put_decided(alloc);
    }

    /// Forgets an allocation; its agent hears that it is gone.
    pub(super) fn remove_alloc(&mut self, alloc_id: &AllocId) {
        if let Some(old) = self.state.remove_alloc(alloc_id) {
            self.written.allocs.insert(*alloc_id);
            self.state.allocs.set_index(self.index);
            self.changed.insert(old.node_id);
            self.touch(&old.job_key());
        }
    }

    pub(super) fn remove_eval(&mut self, eval_id: &EvalId) {
        if let Some(old) = self.state.evals.remove(eval_id) {
            self.written.evals.insert(*eval_id);
            self.state.evals.set_index(self.index);
            self.touch(&old.job);
            self.effects.push(Effect::ForgetEval(old.id));
        }
    }

    /// A new evaluation of `job`, pending.
    pub(super) fn add_eval(&mut self, job: &Job, trigger: Trigger) -> EvalId {
        let eval = self.new_eval(job, trigger);
        self.put_eval(eval)
    }

    /// The same, not yet written.
    pub(super) fn new_eval(&mut self, job: &Job, trigger: Trigger) -> Evaluation {
        let ordinal = self.next_eval;
        self.next_eval += 1;
        Evaluation {
            id: EvalId::at(self.index, ordinal),
            job: job.key(),
            job_type: job.current.spec.job_type,
            priority: job.current.spec.priority,
            trigger,
            node_id: None,
            status: EvalStatus::Pending,
            status_description: String::new(),
            previous: None,
            blocked: None,
            failed_groups: Vec::new(),
            wait_until: Timestamp(0),
            queued: Vec::new(),
            job_modify_index: job.current.job_modify_index,
            snapshot_index: LogIndex(0),
            create_index: self.index,
            modify_index: self.index,
            create_time: self.at,
            modify_time: self.at,
        }
    }

    /// Writes an evaluation and tells the leader what to do with it.
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
        self.written.evals.insert(eval_id);
        self.state.evals.put(eval);
        eval_id
    }

    /// Brings the status of every touched job up to date and hands out the effects.
    pub(super) fn finish(mut self) -> (Vec<Effect>, Vec<Changed>) {
        for key in std::mem::take(&mut self.touched) {
            self.refresh_status(&key);
        }
        self.effects.extend(
            self.freed
                .into_iter()
                .map(|node_id| Effect::CapacityFreed { node_id }),
        );
        self.effects
            .extend(self.changed.into_iter().map(Effect::NodeChanged));
        let changed = self.written.list(self.index, self.next_alloc);
        (self.effects, changed)
    }

    fn refresh_status(&mut self, key: &JobKey) {
        let Some(row) = self.state.jobs.row(key) else {
            return;
        };
        let status = if self.state.allocs.live_of_job(key) > 0 {
            JobStatus::Running
        } else if self.state.evals.open_of_job(key).next().is_some() {
            JobStatus::Pending
        } else {
            JobStatus::Dead
        };
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

impl Written {
    /// With the allocations that the command made, in the order it made them.
    fn list(self, index: LogIndex, allocs_made: u32) -> Vec<Changed> {
        let Self {
            nodes,
            jobs,
            evals,
            allocs,
        } = self;
        let made = (0..allocs_made).map(|ordinal| AllocId::at(index, ordinal));
        let nodes = nodes.into_iter().map(Changed::Node);
        let jobs = jobs.into_iter().map(|key| Changed::Job(Arc::new(key)));
        let evals = evals.into_iter().map(Changed::Eval);
        let allocs = allocs.into_iter().chain(made).map(Changed::Alloc);
        nodes.chain(jobs).chain(evals).chain(allocs).collect()
    }
}
