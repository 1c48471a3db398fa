//! A leader without its shell, for tests: state, broker and applier on a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use muster_domain::alloc::{AllocReport, Allocation, ClientStatus, RemoteHandle};
use muster_domain::deployment::DeploymentStatus;
use muster_domain::id::{AllocId, JobKey, LogIndex, NodeId, Timestamp};
use muster_domain::job::JobSpec;
use muster_domain::node::{NodeSpec, NodeStatus};
use muster_domain::one_off::{OneOff, OneOffState};
use muster_domain::plan::Plan;

use crate::applier;
use crate::broker::{Broker, BrokerConfig};
use crate::fsm::{
    self, AllocCommand, ApplyResult, Command, Effect, Entry, EvalCommand, EvalUpdate, JobCommand,
    NodeCommand, Response,
};
use crate::scheduler::{self, ScheduleOutcome, Scheduler};
use crate::state::{JobRow, State, check};

/// Adds the active deployments of `before` that `after` lacks, as if their jobs had been removed without them.
pub fn leave_deployments(before: &State, after: &mut State) {
    for row in before.deployments().active() {
        if after.deployments().get(&row.id).is_none() {
            after.put_deployment((**row).clone());
        }
    }
}

/// Runs jobs again that were stopped when a deployment of theirs failed with `auto_revert`.
pub fn revive_jobs(before: &State, after: &mut State) {
    for row in before.deployments().active() {
        let reverts = row.groups.iter().any(|group| group.auto_revert);
        let now = after.deployments().get(&row.id).map(|now| now.status);
        let job = after.jobs.row(&row.job).map(Arc::clone);
        if let Some(old) = job.filter(|old| old.job.stop)
            && reverts
            && now == Some(DeploymentStatus::Failed)
        {
            let mut job = (*old.job).clone();
            job.stop = false;
            after.jobs.put(JobRow {
                job: Arc::new(job),
                ..(*old).clone()
            });
        }
    }
}

/// A leader without its shell.
#[derive(Debug, Default)]
pub struct Cluster {
    pub state: State,
    pub now: Timestamp,
    pub broker: Broker,
    /// Whether the check of invariants after every command is off; the check takes time in proportion to the state.
    pub unchecked: bool,
    /// The effects that the last command asked of the shell.
    pub effects: Vec<Effect>,
    /// One-off tasks in the states that they passed through within the last entry.
    pub passed: Vec<Arc<OneOff>>,
    /// Every command so far, if wanted.
    pub history: Option<Vec<Entry>>,
    /// The scheduler that one worker keeps.
    pub scheduler: Scheduler,
}

impl Cluster {
    /// An empty cluster at second 1 000.
    #[must_use]
    pub fn new() -> Self {
        Self {
            now: Timestamp::from_millis(1_000_000),
            broker: Broker::new(BrokerConfig::default()),
            ..Self::default()
        }
    }

    /// Applies `command` as the next entry and carries out its effects.
    ///
    /// # Panics
    ///
    /// If an invariant does not hold afterwards.
    pub fn apply(&mut self, entry: Entry) -> Response {
        let index = LogIndex(self.state.applied().0 + 1);
        if let Some(history) = &mut self.history {
            history.push(entry.clone());
        }
        let before = (!self.unchecked).then(|| self.state.clone());
        let ApplyResult {
            response,
            effects,
            changed: _,
            passed,
            removed: _,
        } = fsm::apply(&mut self.state, index, entry);
        if let Some(before) = before {
            assert_steps(&before, &passed, &self.state);
        }
        for effect in &effects {
            match *effect {
                Effect::EnqueueEval(eval_id) => {
                    if let Some(eval) = self.state.evals().get(&eval_id) {
                        self.broker.enqueue(eval, self.now);
                    }
                }
                Effect::BlockEval(eval_id) => {
                    let seen = self
                        .state
                        .evals()
                        .get(&eval_id)
                        .map(|eval| eval.snapshot_index);
                    self.broker
                        .block(&self.state, eval_id, seen.unwrap_or_default(), self.now);
                }
                Effect::ForgetEval(eval_id) => {
                    self.broker.forget(&self.state, &eval_id, self.now);
                }
                Effect::CapacityFreed { node_id } => {
                    self.broker
                        .handle_capacity(&self.state, node_id, index, self.now);
                }
                Effect::RulesEased => self.broker.handle_eased(index, self.now),
                Effect::NodeChanged(_)
                | Effect::NodeForgot(_)
                | Effect::ClusterPolicyChanged
                | Effect::NodeReady(_)
                | Effect::NodeGone(_)
                | Effect::DutiesDue
                | Effect::CallbackClaimed(_) => {}
            }
        }
        self.effects = effects;
        self.passed = passed;
        if !self.unchecked {
            assert_eq!(
                check::broken(&self.state),
                Vec::<String>::new(),
                "after entry {index:?}"
            );
        }
        response
    }

    /// Registers a node that is ready.
    pub fn node(&mut self, spec: NodeSpec) -> NodeId {
        let node_id = spec.id;
        self.apply(
            NodeCommand::Register {
                spec: Box::new(spec),
            }
            .at(self.now),
        );
        self.node_status(node_id, NodeStatus::Ready);
        node_id
    }

    /// Sets a node's status.
    pub fn node_status(&mut self, node_id: NodeId, status: NodeStatus) -> Response {
        self.apply(NodeCommand::SetStatus { node_id, status }.at(self.now))
    }

    /// Registers a job and places it.
    pub fn run(&mut self, spec: JobSpec) -> Vec<Plan> {
        self.apply(
            JobCommand::Register {
                spec: Box::new(spec),
                check_index: None,
                places: None,
            }
            .at(self.now),
        );
        self.settle()
    }

    /// Stops a job.
    pub fn stop(&mut self, job_id: &str) -> Vec<Plan> {
        let key = JobKey::in_default(job_id);
        self.apply(JobCommand::Deregister { key }.at(self.now));
        self.settle()
    }

    /// Applies a report of the agent of an allocation's node.
    ///
    /// # Panics
    ///
    /// If there is no such allocation.
    pub fn report(&mut self, alloc_id: AllocId, client_status: ClientStatus) -> Response {
        self.report_remote(alloc_id, client_status, Vec::new())
    }

    /// Applies the same report with remote tasks that run.
    ///
    /// # Panics
    ///
    /// If there is no such allocation.
    pub fn report_remote(
        &mut self,
        alloc_id: AllocId,
        client_status: ClientStatus,
        remote: Vec<RemoteHandle>,
    ) -> Response {
        let node_id = self
            .state
            .allocs()
            .get(&alloc_id)
            .expect("the test names one that is there")
            .node_id();
        let report = AllocReport {
            alloc_id,
            client_status,
            client_description: String::new(),
            task_states: Vec::new(),
            healthy: None,
            end: None,
            remote,
        };
        self.apply(
            AllocCommand::Report {
                reports: vec![(node_id, vec![report])],
            }
            .at(self.now),
        )
    }

    /// Schedules until no evaluation is ready. Returns the valid parts of the plans, in order.
    ///
    /// # Panics
    ///
    /// If it never comes to rest.
    pub fn settle(&mut self) -> Vec<Plan> {
        let mut plans = Vec::new();
        for _ in 0..10_000 {
            self.broker.handle_timeout(self.now);
            let Some(outcome) = self.schedule_next() else {
                let updates = self.broker.take_updates();
                if updates.is_empty() {
                    return plans;
                }
                self.commit(Vec::new(), updates, &mut plans);
                continue;
            };
            let updates = self.broker.take_updates();
            self.commit(vec![outcome], updates, &mut plans);
        }
        panic!("evaluations go round without end");
    }

    /// Schedules the next evaluation, without committing.
    ///
    /// # Panics
    ///
    /// If the scheduler's kept data make a difference.
    pub fn schedule_next(&mut self) -> Option<ScheduleOutcome> {
        let delivery = self.broker.dequeue(self.now)?;
        let eval = Arc::clone(self.state.evals().get(&delivery.eval_id)?);
        let is_ahead = self.scheduler.is_ahead();
        let outcome = self.scheduler.schedule(&self.state, &eval, self.now);
        if !self.unchecked && !is_ahead {
            let alone = scheduler::schedule(&self.state, &eval, self.now);
            assert_eq!(outcome, alone, "what a scheduler keeps changes nothing");
        }
        Some(outcome)
    }

    /// Commits a scheduled outcome, and adds the plans that result from it to `plans`.
    pub fn commit(
        &mut self,
        outcomes: Vec<ScheduleOutcome>,
        updates: Vec<EvalUpdate>,
        plans: &mut Vec<Plan>,
    ) {
        let mut merged = applier::merge(&self.state, outcomes, updates, self.now);
        let command = merged.command.take();
        if let Some(Command::Eval(EvalCommand::ApplyPlans {
            plans: committed, ..
        })) = command.as_ref().map(|entry| &entry.command)
        {
            plans.extend(committed.iter().cloned());
        }
        let response = command.map(|command| self.apply(command));
        let settled = merged.settle(response.as_ref());
        self.broker.settle(&self.state, &settled, self.now);
    }

    /// Moves the time.
    pub fn advance(&mut self, duration: Duration) {
        self.now = self.now.plus(duration);
    }

    /// The live allocations of a job by name.
    #[must_use]
    pub fn live(&self, job_id: &str) -> Vec<Arc<Allocation>> {
        let mut live: Vec<Arc<Allocation>> = self
            .state
            .allocs()
            .of_job(&JobKey::in_default(job_id))
            .filter(|alloc| !alloc.is_terminal())
            .map(|alloc| Arc::new(alloc.unpack()))
            .collect();
        live.sort_by_key(|alloc| (alloc.group().name.clone(), alloc.name_index));
        live
    }
}

/// Asserts that one-off tasks went from `before` over `passed` to `after` by allowed steps.
fn assert_steps(before: &State, passed: &[Arc<OneOff>], after: &State) {
    let rows = before.one_offs().iter().chain(after.one_offs().iter());
    for guid in rows.map(|row| row.guid.as_str()) {
        let state = |state: &State| state.one_offs().get(guid).map(|row| row.state);
        let mut steps: Vec<Option<OneOffState>> = vec![state(before)];
        let passed = passed.iter().filter(|row| row.guid == guid);
        steps.extend(passed.map(|row| Some(row.state)));
        steps.push(state(after));
        let all_may = steps
            .windows(2)
            .all(|step| OneOffState::may_follow(step[0], step[1]));
        assert!(all_may, "task {guid} went {steps:?}");
    }
}
