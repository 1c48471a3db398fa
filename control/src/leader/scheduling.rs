//! From evaluation to placement: broker, workers, applier.
//!
//! Workers plan on snapshots, on threads for blocking work. Outcomes gather while one entry commits and
//! then go into the next, all in one. Whatever goes wrong with an entry, the broker starts again from the
//! state: an evaluation that was carried out is complete there, every other one is pending there.

use std::collections::{HashMap, VecDeque};
use std::num::NonZero;

use muster_control_core::applier::{self, Merged};
use muster_control_core::broker::{Broker, BrokerConfig, Delivery};
use muster_control_core::fsm::Response;
use muster_control_core::scheduler::{self, ScheduleOutcome};
use muster_control_core::state::State;
use muster_domain::eval::EvalStatus;
use muster_domain::id::{EvalId, NodeId, Timestamp};
use tokio::task::{Id, JoinSet};

use crate::handle::{Control, Proposed};
use crate::limits;

/// What a worker made of a delivery; no outcome if the evaluation is gone.
type Planned = (Delivery, Option<ScheduleOutcome>);

/// The scheduling pipeline.
#[derive(Debug)]
pub(super) struct Scheduling {
    control: Control,
    broker: Broker,
    workers: JoinSet<Vec<Planned>>,
    workers_max: usize,
    /// What each worker was given, in case it dies.
    runs: HashMap<Id, Vec<Delivery>>,
    /// Outcomes waiting for their entry.
    planned: VecDeque<(Delivery, ScheduleOutcome)>,
    /// The entry under way, and its answer: at most one.
    commit: JoinSet<(Merged, Proposed)>,
}

impl Scheduling {
    /// Begins with what the state says is pending.
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        let workers_max = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut scheduling = Self {
            control,
            broker: Broker::new(BrokerConfig::default()),
            workers: JoinSet::new(),
            workers_max,
            runs: HashMap::new(),
            planned: VecDeque::new(),
            commit: JoinSet::new(),
        };
        scheduling.restart(now);
        scheduling
    }

    /// Forgets everything under way and begins again with what the state says is pending.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.workers.detach_all();
        self.runs.clear();
        self.planned.clear();
        // The entry itself stands or falls alone; its evaluations are looked at again if it falls.
        self.commit.detach_all();
        self.broker.lead(&self.control.state(), now);
    }

    pub(super) fn state(&self) -> State {
        self.control.state()
    }

    pub(super) fn enqueue(&mut self, state: &State, eval_id: EvalId, now: Timestamp) {
        if let Some(eval) = state.evals().get(&eval_id)
            && eval.status == EvalStatus::Pending
        {
            self.broker.enqueue(eval, now);
        }
    }

    pub(super) fn block(&mut self, state: &State, eval_id: EvalId, now: Timestamp) {
        if let Some(eval) = state.evals().get(&eval_id) {
            self.broker.block(state, eval_id, eval.snapshot_index, now);
        }
    }

    pub(super) fn forget(&mut self, eval_id: EvalId) {
        self.broker.forget(&eval_id);
    }

    pub(super) fn handle_capacity(&mut self, state: &State, node_id: NodeId, now: Timestamp) {
        self.broker
            .handle_capacity(state, node_id, state.applied(), now);
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        self.broker.poll_timeout()
    }

    /// Waits until a worker or the entry under way is done, and takes in its result. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        tokio::select! {
            Some(done) = self.workers.join_next_with_id(), if !self.workers.is_empty() => match done {
                Ok((id, planned)) => {
                    self.runs.remove(&id);
                    self.take(planned);
                }
                Err(error) => {
                    tracing::error!(%error, "the scheduler failed: its evaluations are tried again");
                    self.nack(error.id());
                }
            },
            Some(done) = self.commit.join_next(), if !self.commit.is_empty() => match done {
                Ok((merged, proposed)) => self.finish(merged, proposed),
                Err(error) => {
                    tracing::error!(%error, "an entry's task failed");
                    self.restart(self.control.monotonic());
                }
            },
            else => std::future::pending().await,
        }
    }

    /// Starts what can be started.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.broker.handle_timeout(now);
        self.dispatch(now);
        if self.commit.is_empty() {
            self.propose(now);
        }
    }

    fn in_flight(&self) -> usize {
        self.planned.len() + self.runs.values().map(Vec::len).sum::<usize>()
    }

    fn dispatch(&mut self, now: Timestamp) {
        if self.control.state().config().scheduler.pause_broker {
            return;
        }
        while self.workers.len() < self.workers_max {
            let room = limits::EVALS_IN_FLIGHT_MAX.saturating_sub(self.in_flight());
            let most = room.min(limits::EVALS_PER_WORKER_RUN_MAX);
            let run: Vec<Delivery> = std::iter::from_fn(|| self.broker.dequeue(now))
                .take(most)
                .collect();
            if run.is_empty() {
                return;
            }
            // Taken after the deliveries, so that it holds what they are about.
            let state = self.control.state();
            // The broker's clock says what is due: a wall clock that was set back must not differ.
            let at = self.control.now().max(now);
            let given = run.clone();
            let worker = self.workers.spawn_blocking(move || plan(&state, run, at));
            self.runs.insert(worker.id(), given);
        }
    }

    fn take(&mut self, planned: Vec<Planned>) {
        for (delivery, outcome) in planned {
            match outcome {
                Some(outcome) => self.planned.push_back((delivery, outcome)),
                None => self.broker.ack(&delivery.eval_id, delivery.token),
            }
        }
    }

    fn nack(&mut self, worker: Id) {
        let now = self.control.monotonic();
        for delivery in self.runs.remove(&worker).unwrap_or_default() {
            self.broker.nack(&delivery.eval_id, delivery.token, now);
        }
    }

    /// Merges what is planned into one entry and proposes it.
    fn propose(&mut self, now: Timestamp) {
        let updates = self.broker.take_updates();
        // An outcome of a delivery that timed out is another worker's by now.
        let current: Vec<(Delivery, ScheduleOutcome)> = self
            .planned
            .drain(..)
            .filter(|(delivery, _)| self.broker.is_current(&delivery.eval_id, delivery.token))
            .collect();
        if current.is_empty() && updates.is_empty() {
            return;
        }
        let (deliveries, outcomes): (Vec<Delivery>, Vec<ScheduleOutcome>) =
            current.into_iter().unzip();
        let mut merged =
            applier::merge(&self.control.state(), outcomes, updates, self.control.now());
        // What did not fit keeps its order: it is the end of what was given.
        let rest = std::mem::take(&mut merged.rest);
        let fitted = deliveries.len() - rest.len();
        self.planned
            .extend(deliveries.into_iter().skip(fitted).zip(rest));
        match merged.command.take() {
            None => {
                let settled = merged.settle(None);
                self.broker.settle(&self.control.state(), &settled, now);
            }
            Some(command) => {
                let control = self.control.clone();
                self.commit.spawn(async move {
                    let proposed = control.propose(command).await;
                    if proposed.is_err() {
                        // Not at once again: the log needs a moment, or another server leads soon.
                        tokio::time::sleep(limits::LEADER_RETRY_PAUSE).await;
                    }
                    (merged, proposed)
                });
            }
        }
    }

    fn finish(&mut self, merged: Merged, proposed: Proposed) {
        let now = self.control.monotonic();
        match proposed {
            Ok((_, Response::Rejected(rejection))) => {
                tracing::error!(%rejection, "the log refused plans: the evaluations are looked at again");
                self.restart(now);
            }
            Ok((_, response)) => {
                let settled = merged.settle(Some(&response));
                self.broker.settle(&self.control.state(), &settled, now);
            }
            Err(error) => {
                tracing::warn!(%error, "plans were not committed: the evaluations are looked at again");
                self.restart(now);
            }
        }
    }
}

/// Plans each delivery on `state`.
fn plan(state: &State, run: Vec<Delivery>, at: Timestamp) -> Vec<Planned> {
    run.into_iter()
        .map(|delivery| {
            let eval = state.evals().get(&delivery.eval_id);
            (
                delivery,
                eval.map(|eval| scheduler::schedule(state, eval, at)),
            )
        })
        .collect()
}
