//! The leader's duties: broker, applier, heartbeats, collection, deployments. Each leader begins them again from the
//! state.
//!
//! This module stands for `control/src/leader`, and uses the same cores.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_control_core::applier::{self, MergedPlans};
use muster_control_core::broker::{Broker, BrokerConfig, Delivery};
use muster_control_core::converge;
use muster_control_core::fsm::{
    Effect, Entry, NodeCommand, OneOffChange, OneOffCommand, OneOffStep, Response,
};
use muster_control_core::gc::Collector;
use muster_control_core::heartbeat::{HeartbeatConfig, HeartbeatOutcome, Heartbeats};
use muster_control_core::scheduler::{self, ScheduleOutcome};
use muster_control_core::state::State;
use muster_control_core::watch::{self, Watcher};
use muster_domain::eval::EvalStatus;
use muster_domain::id::{AllocId, LogIndex, NodeId, Timestamp};
use muster_domain::node::NodeStatus;
use muster_domain::one_off::{OneOff, Phase};

use crate::bug::Bug;
use crate::env::Env;
use crate::limits;
use crate::server::waiter::Waiter;

/// The purpose of a proposal of the duties.
#[derive(Debug)]
pub enum ProposalReason {
    /// The applier waits for the merged plans.
    Plans(Box<MergedPlans>),
    /// A node has sent no heartbeat for too long.
    Down(NodeId),
    /// A collection continues with its next slice.
    Garbage(Box<Entry>),
    /// One-off tasks have reached a time limit.
    Converge,
    /// Deployments have reached a time limit.
    Watch,
    /// The leader claims callbacks before it makes them.
    Claim(Vec<Arc<OneOff>>, Timestamp),
    Called,
}

/// A callback under way.
#[derive(Debug)]
struct CallbackCall {
    ends: Timestamp,
    /// The change of the one-off task that records the result of the callback.
    change: OneOffChange,
}

/// The next step of a collection.
#[derive(Debug)]
enum GcStep {
    Propose(Entry),
    /// The forced collection is over.
    Finish(Waiter),
}

/// Deployments that have reached a time limit.
#[derive(Debug)]
struct Watch {
    watcher: Watcher,
    /// The commands that are not proposed yet.
    found: VecDeque<Entry>,
    /// Whether a command is proposed and not applied yet.
    writing: bool,
}

/// Callbacks of one-off tasks.
#[derive(Debug, Default)]
struct Callbacks {
    under_way: Vec<CallbackCall>,
    /// Whether a claim of callbacks is proposed and not applied yet.
    claiming: bool,
    /// Whether callback results are proposed and not applied yet.
    writing: bool,
}

/// The duties of a server during one period of leadership.
#[derive(Debug)]
pub struct Duties {
    /// The identity of this period of leadership.
    pub leadership: (u64, u64),
    broker: Broker,
    heartbeats: Heartbeats,
    collector: Collector,
    /// Outcomes that wait for the applier.
    waiting: Vec<(Delivery, ScheduleOutcome)>,
    /// Whether a command of the applier is proposed and not applied yet.
    applying: bool,
    /// The number of deliveries that workers hold.
    busy: usize,
    garbage: VecDeque<GcStep>,
    /// Whether a slice is proposed and not applied yet.
    collecting: bool,
    /// Waiters whose collections are over.
    collected: Vec<Waiter>,
    converging: bool,
    watch: Watch,
    callbacks: Callbacks,
    looked_at: Timestamp,
}

impl Duties {
    /// Begins the duties from the state.
    #[must_use]
    pub fn begin(state: &State, leadership: (u64, u64), env: &Env) -> Self {
        let mut duties = Self {
            leadership,
            broker: Broker::new(BrokerConfig::default()),
            heartbeats: Heartbeats::new(HeartbeatConfig::default()),
            collector: Collector::new(limits::gc_config(), env.now),
            waiting: Vec::new(),
            applying: false,
            busy: 0,
            garbage: VecDeque::new(),
            collecting: false,
            collected: Vec::new(),
            converging: false,
            watch: Watch {
                watcher: Watcher::new(env.now),
                found: VecDeque::new(),
                writing: false,
            },
            callbacks: Callbacks::default(),
            looked_at: env.now,
        };
        duties.broker.lead(state, env.now);
        let since = if env.has_bug(Bug::ForgottenGrace) {
            // Each node counts as last heard of 14 seconds ago.
            Timestamp(env.now.0 - 14_000_000_000)
        } else {
            env.now
        };
        duties.heartbeats.lead(state, since);
        duties
    }

    /// Begins again from the state, because effects were lost.
    pub fn restart(&mut self, state: &State, now: Timestamp) {
        self.leadership.1 += 1;
        self.waiting.clear();
        // The next interval finds the same garbage. A caller that waits for a collection asks again.
        self.garbage.clear();
        self.watch.found.clear();
        self.watch.watcher.handle_failure(now);
        // The pending proposals get no answers any more.
        (self.applying, self.collecting, self.converging) = (false, false, false);
        self.watch.writing = false;
        (self.callbacks.claiming, self.callbacks.writing) = (false, false);
        self.busy = 0;
        self.broker.lead(state, now);
        self.heartbeats.lead(state, now);
    }

    /// Handles the effects of an applied entry.
    pub fn handle_effects(&mut self, state: &State, effects: &[Effect], now: Timestamp) {
        if watch::is_needed(state) {
            self.watch.watcher.handle_change();
        }
        for effect in effects {
            match *effect {
                Effect::EnqueueEval(eval_id) => {
                    if let Some(eval) = state.evals().get(&eval_id)
                        && eval.status == EvalStatus::Pending
                    {
                        self.broker.enqueue(eval, now);
                    }
                }
                Effect::BlockEval(eval_id) => {
                    if let Some(eval) = state.evals().get(&eval_id) {
                        self.broker.block(state, eval_id, eval.snapshot_index, now);
                    }
                }
                Effect::ForgetEval(eval_id) => self.broker.forget(state, &eval_id, now),
                Effect::CapacityFreed { node_id } => {
                    let index = state.applied();
                    self.broker.handle_capacity(state, node_id, index, now);
                }
                Effect::RulesEased => self.broker.handle_eased(state.applied(), now),
                Effect::NodeReady(node_id) => self.heartbeats.track(node_id, now),
                Effect::NodeGone(node_id) => self.heartbeats.untrack(&node_id),
                // The server handles callback claims, because it knows the term of the entry.
                Effect::CallbackClaimed(_)
                | Effect::NodeChanged(_)
                | Effect::NodeForgot(_)
                | Effect::ClusterPolicyChanged
                | Effect::DutiesDue => {}
            }
        }
    }

    /// Handles the end of a task that claimed its callback for this leader, in the allocation `alloc_id`. `at` is the
    /// wall clock.
    pub fn handle_claimed(
        &mut self,
        state: &State,
        alloc_id: &AllocId,
        at: Timestamp,
        env: &mut Env,
    ) {
        let alloc = state.allocs().get(alloc_id);
        let row = alloc.and_then(|alloc| state.one_offs().get(&alloc.job_key().job_id));
        let row = row.filter(|row| row.alloc_id.as_ref() == Some(alloc_id));
        if let Some(row) = row.filter(|row| row.phase == Phase::Delivering)
            && let Some((claim, until)) = row.claim().zip(row.until)
        {
            self.call(row, claim, until, (at, env));
        }
    }

    /// Makes a callback that is claimed until `until`, if enough time remains.
    fn call(
        &mut self,
        row: &OneOff,
        claim: LogIndex,
        until: Timestamp,
        (at, env): (Timestamp, &mut Env),
    ) {
        if until <= at.plus(2 * limits::CALLBACK_WAIT) {
            return;
        }
        let ends = env.now.plus(env.rng.millis(1, 10_000));
        env.oracle.calls(&row.guid, row.create_index, env.now, ends);
        let step = match env.rng.below(4) {
            0 => OneOffStep::CallbackFailed {
                claim,
                next_at: None,
            },
            1 => OneOffStep::CallbackFailed {
                claim,
                next_at: Some(at.plus(limits::CALLBACK_WAIT)),
            },
            _ => OneOffStep::Delete { claim: Some(claim) },
        };
        let change = converge::change(row, step);
        self.callbacks.under_way.push(CallbackCall { ends, change });
    }

    /// Returns a command that claims the due callbacks that are not claimed.
    fn claim(&mut self, state: &State, at: Timestamp) -> Option<(Entry, ProposalReason)> {
        let one_offs = state.one_offs();
        let places = one_offs.callback_places("");
        let due = places.flat_map(|place| one_offs.callbacks(place));
        let due = due.filter(|(from, _)| *from <= at);
        let rows: Vec<Arc<OneOff>> = due
            .map(|(_, row)| Arc::clone(row))
            .take(limits::CALLBACKS_MAX)
            .collect();
        if rows.is_empty() {
            return None;
        }
        let until = at.plus(state.one_offs().times().callback_claim);
        let step = OneOffStep::Claim {
            until,
            for_callback: true,
        };
        let changes = rows.iter().map(|row| converge::change(row, step)).collect();
        self.callbacks.claiming = true;
        let command = OneOffCommand::Change { changes }.at(at);
        Some((command, ProposalReason::Claim(rows, until)))
    }

    /// Returns a command that records the results of finished callbacks.
    fn called(&mut self, now: Timestamp, at: Timestamp) -> Option<(Entry, ProposalReason)> {
        let (over, calls) = std::mem::take(&mut self.callbacks.under_way)
            .into_iter()
            .partition(|call| call.ends <= now);
        self.callbacks.under_way = calls;
        let over: Vec<CallbackCall> = over;
        if over.is_empty() {
            return None;
        }
        self.callbacks.writing = true;
        let changes = over.into_iter().map(|call| call.change).collect();
        Some((
            OneOffCommand::Change { changes }.at(at),
            ProposalReason::Called,
        ))
    }

    /// Counts a heartbeat. Returns false if no heartbeat is expected from the node.
    pub fn handle_beat(&mut self, node_id: NodeId, now: Timestamp) -> bool {
        match self.heartbeats.handle_beat(node_id, now) {
            HeartbeatOutcome::Counted => true,
            HeartbeatOutcome::Unexpected => false,
        }
    }

    /// Handles the answer to a proposal of this period of leadership. `at` is the wall clock.
    pub fn settle(
        &mut self,
        purpose: ProposalReason,
        response: &Response,
        state: &State,
        at: Timestamp,
        env: &mut Env,
    ) {
        let now = env.now;
        match purpose {
            ProposalReason::Down(_) => {}
            ProposalReason::Converge => self.converging = false,
            ProposalReason::Watch => {
                self.watch.writing = false;
                if self.watch.found.is_empty() {
                    self.watch.watcher.handle_written();
                }
            }
            ProposalReason::Called => self.callbacks.writing = false,
            ProposalReason::Claim(rows, until) => {
                self.callbacks.claiming = false;
                let Response::OneOffsChanged { outcomes } = response else {
                    return;
                };
                for (row, refusal) in rows.iter().zip(outcomes) {
                    let claim = state.one_offs().get(&row.guid).and_then(|row| row.claim());
                    if let Some(claim) = claim.filter(|_| refusal.is_none()) {
                        self.call(row, claim, until, (at, env));
                    }
                }
            }
            ProposalReason::Garbage(command) => {
                self.collecting = false;
                let next = Collector::next_slice(&command, response, at);
                if let Some(next) = next.filter(|_| !env.has_bug(Bug::HalfCollection)) {
                    self.garbage.push_front(GcStep::Propose(next));
                }
            }
            ProposalReason::Plans(merged) => {
                self.applying = false;
                let settled = merged.settle(Some(response));
                self.broker.settle(state, &settled, now);
            }
        }
    }

    /// Returns an evaluation for a free worker, with the plan that the worker will produce. `at` is the wall clock.
    pub fn next_work(
        &mut self,
        state: &State,
        now: Timestamp,
        at: Timestamp,
    ) -> Option<(Delivery, Option<ScheduleOutcome>)> {
        if self.busy >= limits::WORKERS {
            return None;
        }
        let delivery = self.broker.dequeue(now)?;
        self.busy += 1;
        let eval = state.evals().get(&delivery.eval_id).map(Arc::clone);
        Some((
            delivery,
            eval.map(|eval| scheduler::schedule(state, &eval, at)),
        ))
    }

    /// Loses a worker together with its delivery. The delivery times out.
    pub fn lose_worker(&mut self) {
        self.busy -= 1;
    }

    /// Handles the outcome of a worker.
    pub fn take_outcome(&mut self, delivery: Delivery, outcome: Option<ScheduleOutcome>) {
        self.busy -= 1;
        match outcome {
            Some(outcome) => self.waiting.push((delivery, outcome)),
            None => self.broker.ack(&delivery.eval_id, delivery.token),
        }
    }

    /// Returns the next command to propose.
    pub fn next_proposal(
        &mut self,
        state: &State,
        now: Timestamp,
        at: Timestamp,
    ) -> Option<(Entry, ProposalReason)> {
        if let Some(command) = self.next_slice() {
            return Some((command.clone(), ProposalReason::Garbage(Box::new(command))));
        }
        if !self.converging
            && let Some(command) = converge::due(state, at).commands.pop()
        {
            self.converging = true;
            return Some((command, ProposalReason::Converge));
        }
        if !self.watch.writing
            && let Some(command) = self.next_watched(state, now, at)
        {
            self.watch.writing = true;
            return Some((command, ProposalReason::Watch));
        }
        if !self.callbacks.claiming
            && let Some(claim) = self.claim(state, at)
        {
            return Some(claim);
        }
        if !self.callbacks.writing
            && let Some(called) = self.called(now, at)
        {
            return Some(called);
        }
        if self.applying {
            return None;
        }
        let updates = self.broker.take_updates();
        let broker = &self.broker;
        self.waiting
            .retain(|(delivery, _)| broker.is_current(&delivery.eval_id, delivery.token));
        if self.waiting.is_empty() && updates.is_empty() {
            return None;
        }
        let more = self
            .waiting
            .split_off(self.waiting.len().min(limits::BATCH_MAX));
        let (deliveries, outcomes): (Vec<_>, Vec<_>) = std::mem::replace(&mut self.waiting, more)
            .into_iter()
            .unzip();
        let mut merged = applier::merge(state, outcomes, updates, at);
        let rest = std::mem::take(&mut merged.rest);
        let fitted = deliveries.len() - rest.len();
        self.waiting
            .extend(deliveries.into_iter().skip(fitted).zip(rest));
        match merged.command.take() {
            Some(command) => {
                self.applying = true;
                Some((command, ProposalReason::Plans(Box::new(merged))))
            }
            None => {
                let settled = merged.settle(None);
                self.broker.settle(state, &settled, now);
                None
            }
        }
    }

    /// Returns the next command for a deployment that has reached a time limit.
    fn next_watched(&mut self, state: &State, now: Timestamp, at: Timestamp) -> Option<Entry> {
        let watch = &mut self.watch;
        if watch.found.is_empty() {
            watch.found = watch.watcher.handle_timeout(state, now, at).into();
        }
        watch.found.pop_front()
    }

    fn next_slice(&mut self) -> Option<Entry> {
        while !self.collecting {
            match self.garbage.pop_front()? {
                GcStep::Finish(waiter) => self.collected.push(waiter),
                GcStep::Propose(command) => {
                    self.collecting = true;
                    return Some(command);
                }
            }
        }
        None
    }

    /// Begins a forced collection: it removes all finished objects, whatever their age. `waiter` is notified of its
    /// end. `at` is the wall clock.
    pub fn force(&mut self, waiter: Waiter, at: Timestamp) {
        let commands = Collector::forced(at).into_iter().map(GcStep::Propose);
        self.garbage.extend(commands);
        self.garbage.push_back(GcStep::Finish(waiter));
    }

    /// Returns and removes the waiters whose collections are over.
    pub fn take_collected(&mut self) -> Vec<Waiter> {
        std::mem::take(&mut self.collected)
    }

    /// Whether a collection has begun and is not over.
    #[must_use]
    pub fn is_collecting(&self) -> bool {
        self.collecting || !self.garbage.is_empty()
    }

    /// Does the work that is due, and returns the commands that mark silent nodes as down. `at` is the wall clock.
    pub fn handle_timeout(&mut self, state: &State, at: Timestamp, env: &mut Env) -> Vec<Entry> {
        let now = env.now;
        let stalled = now.since(self.looked_at) > limits::LEADER_STALL;
        self.looked_at = now;
        if stalled {
            // This server was paused itself, so it cannot judge which nodes were silent.
            self.heartbeats.lead(state, now);
        }
        self.broker.handle_timeout(now);
        let ages_at = if env.has_bug(Bug::OtherClock) {
            now
        } else {
            at
        };
        let due = self.collector.handle_timeout(now, ages_at);
        env.oracle.due_by_age(&due, at);
        self.garbage.extend(due.into_iter().map(GcStep::Propose));
        let silent = self.heartbeats.handle_timeout(now).into_iter();
        silent
            .map(|node_id| {
                NodeCommand::SetStatus {
                    node_id,
                    status: NodeStatus::Down,
                }
                .at(at)
            })
            .collect()
    }

    /// Returns the time at which the next work is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Timestamp {
        let idle = self.looked_at.plus(limits::DUTY_INTERVAL);
        // A callback that ends during a write waits until the write is applied.
        let calls = self.callbacks.under_way.iter();
        let calls = calls.filter(|_| !self.callbacks.writing);
        let ends = calls.map(|call| call.ends);
        let idle = ends.fold(idle, Timestamp::min);
        let dues = [
            self.broker.poll_timeout(),
            self.heartbeats.poll_timeout(),
            self.watch.watcher.poll_timeout(),
        ];
        dues.into_iter()
            .flatten()
            .map(|(at, _)| at)
            .fold(idle, Timestamp::min)
    }

    /// Whether new tasks can get places as soon as they are recorded. Evaluations that wait in the broker come first.
    #[must_use]
    pub fn finds_places(&self) -> bool {
        self.broker.ready() == 0 && self.broker.blocked() == 0
    }

    /// Whether work waits for a worker or for the applier.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.busy > 0 || self.applying || !self.waiting.is_empty() || self.broker.ready() > 0
    }

    /// Returns the time without a heartbeat after which a node may be down. The leader sends it to agents as their
    /// lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.heartbeats.ttl()
    }
}
