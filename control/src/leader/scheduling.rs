//! The path from an evaluation to a placement: broker, worker, applier.
//!
//! One worker plans on snapshots, on a thread for blocking work. It has a record of its plans under way, so it
//! never gives the same resources away twice. Several workers would. Outcomes gather while one entry commits and
//! then go into the next entry together. After any failure of an entry, the broker starts again from the state.
//! There, an evaluation that was carried out is complete, and every other one is pending.
//!
//! Jobs and one-off tasks get places before they are recorded ([`SchedulingPipeline::find_places`]), as long as no
//! evaluation waits that would come first.

mod under_way;

use std::collections::{BTreeMap, VecDeque};

use muster_control_core::applier::{self, MergedPlans};
use muster_control_core::broker::{Broker, BrokerConfig, Delivery};
use muster_control_core::fsm::Response;
use muster_control_core::scheduler::{ScheduleOutcome, Scheduler};
use muster_control_core::state::State;
use muster_domain::eval::EvalStatus;
use muster_domain::id::{EvalId, NodeId, Timestamp};
use tokio::task::JoinSet;

use self::under_way::InFlightFile;
use crate::backoff::Backoff;
use crate::handle::{Control, OneOffPlacements, PlacementRequest, ProposeResult};
use crate::limits;

/// A delivery and the worker's outcome; `None` if the evaluation has been removed.
type DeliveryOutcome = (Delivery, Option<ScheduleOutcome>);

/// The scheduling pipeline.
#[derive(Debug)]
pub(super) struct SchedulingPipeline {
    control: Control,
    broker: Broker,
    /// The scheduler; `None` while the worker uses it.
    scheduler: Option<Scheduler>,
    /// The running worker; at most one.
    worker: JoinSet<(Scheduler, Vec<DeliveryOutcome>)>,
    /// The deliveries of the worker's current run, in case the worker panics.
    run: Vec<Delivery>,
    /// The file with the deliveries under way.
    under_way: InFlightFile,
    /// Evaluations under way when an earlier process ended, with the count of such ends. Each is planned alone.
    suspects: BTreeMap<EvalId, u8>,
    /// Deliveries that must be planned alone.
    alone: VecDeque<Delivery>,
    wanted: VecDeque<PlacementRequest>,
    /// Outcomes waiting for their entry.
    planned: VecDeque<(Delivery, ScheduleOutcome)>,
    /// The entry under way, and its answer: at most one.
    commit: JoinSet<(MergedPlans, ProposeResult)>,
    /// The pauses after entries that were not written.
    failures: Backoff,
    /// Time before which nothing is started, because the log took no entry.
    held_until: Option<Timestamp>,
}

impl SchedulingPipeline {
    /// Begins with the pending evaluations of the state.
    pub(super) fn begin(control: Control, now: Timestamp) -> Self {
        let (under_way, suspects) = InFlightFile::open(&control.server_info().data_dir);
        let mut scheduling = Self {
            under_way,
            suspects,
            alone: VecDeque::new(),
            control,
            broker: Broker::new(BrokerConfig::default()),
            scheduler: Some(Scheduler::default()),
            worker: JoinSet::new(),
            run: Vec::new(),
            wanted: VecDeque::new(),
            planned: VecDeque::new(),
            commit: JoinSet::new(),
            failures: Backoff::new(limits::LEADER_RETRY_PAUSE, limits::DUTY_RETRY_PAUSE_MAX),
            held_until: None,
        };
        scheduling.restart(now);
        scheduling
    }

    /// Drops all work under way and begins again with the pending evaluations of the state.
    pub(super) fn restart(&mut self, now: Timestamp) {
        self.worker.detach_all();
        self.scheduler = Some(Scheduler::default());
        self.run.clear();
        self.under_way.note(std::iter::empty());
        self.alone.clear();
        self.wanted.clear();
        self.planned.clear();
        // The entry under way commits or fails by itself. If it fails, its evaluations are planned again.
        self.commit.detach_all();
        let state = self.control.state();
        self.broker.lead(&state, now);
        self.fail_suspects(&state);
    }

    /// Gives up evaluations during which processes ended repeatedly, and logs each.
    fn fail_suspects(&mut self, state: &State) {
        for (eval_id, ends) in &self.suspects {
            let eval = state.evals().get(eval_id);
            let Some(eval) = eval.filter(|eval| !eval.status.is_terminal()) else {
                continue;
            };
            if *ends >= limits::EVAL_ENDS_MAX {
                tracing::error!(
                    eval = %eval_id,
                    job = %eval.job,
                    ends,
                    "the server ended while it worked on this evaluation: it is set aside; change the job and register it again"
                );
                let why = format!(
                    "set aside: this server ended {ends} times while it worked on it; change the job and register it again"
                );
                self.broker.set_aside(*eval_id, &why);
            }
        }
    }

    /// Begins again after a pause: the log needs time, or another server leads soon.
    fn start_over(&mut self, now: Timestamp) {
        self.restart(now);
        self.held_until = Some(now.plus(self.failures.next_pause()));
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

    pub(super) fn forget(&mut self, state: &State, eval_id: EvalId, now: Timestamp) {
        self.broker.forget(state, &eval_id, now);
    }

    pub(super) fn handle_capacity(&mut self, state: &State, node_id: NodeId, now: Timestamp) {
        self.broker
            .handle_capacity(state, node_id, state.applied(), now);
    }

    pub(super) fn handle_eased(&mut self, state: &State, now: Timestamp) {
        self.broker.handle_eased(state.applied(), now);
    }

    /// Queues a request for places for one of the worker's next runs. The request is dropped while evaluations are
    /// ready or blocked, and its caller gets no places. New records queue behind those evaluations.
    pub(super) fn find_places(&mut self, wanted: PlacementRequest) {
        self.wanted.push_back(wanted);
    }

    pub(super) fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        if let Some(held_until) = self.held_until {
            return Some((held_until, "the log took no plans"));
        }
        self.broker.poll_timeout()
    }

    /// Waits until a worker or the entry under way is done, and handles its result. Cancellation safe.
    pub(super) async fn progress(&mut self) {
        tokio::select! {
            Some(done) = self.worker.join_next(), if !self.worker.is_empty() => match done {
                Ok((scheduler, planned)) => {
                    self.scheduler = Some(scheduler);
                    self.clear_run();
                    self.queue_outcomes(planned);
                }
                Err(error) => {
                    tracing::error!(%error, "the scheduler failed: its evaluations are tried again");
                    self.scheduler = Some(Scheduler::default());
                    self.nack();
                    self.under_way.note(std::iter::empty());
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

    /// Starts all work that can be started.
    pub(super) fn advance(&mut self, now: Timestamp) {
        if self.held_until.is_some_and(|held_until| held_until > now) {
            return;
        }
        self.held_until = None;
        self.broker.handle_timeout(now);
        self.dispatch(now);
        if self.commit.is_empty() {
            self.propose(now);
        }
    }

    /// Whether any placement is under way or about to start.
    pub(super) fn is_placing(&self) -> bool {
        self.broker.ready() > 0 || self.scheduler.is_none() || !self.commit.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.planned.len() + self.run.len() + self.alone.len()
    }

    /// Clears the record of the worker's run, which has ended well.
    fn clear_run(&mut self) {
        for delivery in self.run.drain(..) {
            self.suspects.remove(&delivery.eval_id);
        }
        self.under_way.note(std::iter::empty());
    }

    /// Takes the evaluations for the worker's next run. An evaluation during which a run or a process has ended is
    /// planned alone, so that no other evaluation is blamed.
    fn next_run(&mut self, now: Timestamp) -> Vec<Delivery> {
        if let Some(delivery) = self.alone.pop_front() {
            return vec![delivery];
        }
        let room = limits::EVALS_IN_FLIGHT_MAX.saturating_sub(self.in_flight());
        let most = room.min(limits::EVALS_PER_WORKER_RUN_MAX);
        let mut run = Vec::new();
        while run.len() < most
            && let Some(delivery) = self.broker.dequeue(now)
        {
            let is_alone = delivery.attempt > 1 || self.suspects.contains_key(&delivery.eval_id);
            if is_alone && run.is_empty() {
                return vec![delivery];
            }
            if is_alone {
                self.alone.push_back(delivery);
                break;
            }
            run.push(delivery);
        }
        run
    }

    fn dispatch(&mut self, now: Timestamp) {
        if self.control.state().config().scheduler.pause_broker {
            self.wanted.clear();
            return;
        }
        if self.scheduler.is_none() {
            return;
        }
        if self.broker.ready() > 0 || self.broker.blocked() > 0 {
            self.wanted.clear();
        }
        let run = self.next_run(now);
        if run.is_empty() && self.wanted.is_empty() {
            return;
        }
        let Some(scheduler) = self.scheduler.take() else {
            return;
        };
        // The state is taken after the deliveries, so that it contains their evaluations.
        let state = self.control.state();
        // Due times follow the broker's clock. A wall clock that was set back must not give an earlier time.
        let at = self.control.now().max(now);
        self.run.clone_from(&run);
        if !run.is_empty() {
            let suspects = &self.suspects;
            self.under_way.note(run.iter().map(|delivery| {
                let ends = suspects.get(&delivery.eval_id);
                (delivery.eval_id, ends.copied().unwrap_or(0))
            }));
        }
        let count = self.wanted.len().min(limits::PLACES_PER_WORKER_RUN_MAX);
        let wanted: Vec<PlacementRequest> = self.wanted.drain(..count).collect();
        self.worker.spawn_blocking(move || {
            #[cfg(test)]
            tests::pass_failpoint(&run);
            let (mut scheduler, planned) = plan(scheduler, &state, run, at);
            for wanted in wanted {
                place(&mut scheduler, &state, wanted, at);
            }
            (scheduler, planned)
        });
    }

    fn queue_outcomes(&mut self, planned: Vec<DeliveryOutcome>) {
        for (delivery, outcome) in planned {
            match outcome {
                Some(outcome) => self.planned.push_back((delivery, outcome)),
                None => self.broker.ack(&delivery.eval_id, delivery.token),
            }
        }
    }

    fn nack(&mut self) {
        let now = self.control.monotonic();
        for delivery in std::mem::take(&mut self.run) {
            self.broker.nack(&delivery.eval_id, delivery.token, now);
        }
    }

    /// Merges the planned outcomes into one entry and proposes it.
    fn propose(&mut self, now: Timestamp) {
        let updates = self.broker.take_updates();
        // After a timeout another worker may plan the delivery, so its outcome here is obsolete.
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
        // Outcomes that did not fit keep their order: they are the end of the given list.
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
                    (merged, proposed)
                });
            }
        }
    }

    fn finish(&mut self, merged: MergedPlans, proposed: ProposeResult) {
        let now = self.control.monotonic();
        match proposed {
            Ok((_, Response::Rejected(rejection))) => {
                tracing::error!(%rejection, "the log refused plans: the evaluations are looked at again");
                self.start_over(now);
            }
            Ok((_, response)) => {
                self.failures.reset();
                let settled = merged.settle(Some(&response));
                self.broker.settle(&self.control.state(), &settled, now);
            }
            Err(error) => {
                tracing::warn!(%error, "plans were not committed: the evaluations are looked at again");
                self.start_over(now);
            }
        }
    }
}

/// Finds places in `state` for tasks or a job about to be recorded.
fn place(scheduler: &mut Scheduler, state: &State, wanted: PlacementRequest, at: Timestamp) {
    // A caller that continued without places needs no answer.
    match wanted {
        PlacementRequest::Tasks { tasks, reply } if !reply.is_closed() => {
            let places = scheduler.place_new(state, &tasks, at);
            let seen = state.applied();
            drop(tasks);
            drop(reply.send(OneOffPlacements { places, seen }));
        }
        PlacementRequest::Job { spec, reply } if !reply.is_closed() => {
            let places = scheduler.place_job(state, &spec, at);
            drop(spec);
            drop(reply.send(places));
        }
        PlacementRequest::Tasks { .. } | PlacementRequest::Job { .. } => {}
    }
}

/// Plans each delivery on `state`.
fn plan(
    mut scheduler: Scheduler,
    state: &State,
    run: Vec<Delivery>,
    at: Timestamp,
) -> (Scheduler, Vec<DeliveryOutcome>) {
    let planned = run.into_iter().map(|delivery| {
        let eval = state.evals().get(&delivery.eval_id);
        let outcome = eval.map(|eval| scheduler.schedule(state, eval, at));
        (delivery, outcome)
    });
    let planned = planned.collect();
    (scheduler, planned)
}

#[cfg(test)]
mod tests;
