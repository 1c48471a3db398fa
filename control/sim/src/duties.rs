//! The leader's duties: broker, applier, heartbeats, collection, begun again from the state by each leader.
//!
//! Stands for `control/src/leader`, around the same cores.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use muster_control_core::applier::{self, Merged};
use muster_control_core::broker::{Broker, BrokerConfig, Delivery};
use muster_control_core::converge;
use muster_control_core::fsm::{Command, Effect, Response};
use muster_control_core::gc::{Collector, GcConfig};
use muster_control_core::heartbeat::{Beat, HeartbeatConfig, Heartbeats};
use muster_control_core::scheduler::{self, ScheduleOutcome};
use muster_control_core::state::State;
use muster_domain::eval::EvalStatus;
use muster_domain::id::{NodeId, Timestamp};
use muster_domain::node::NodeStatus;

use crate::bug::Bug;
use crate::env::Env;
use crate::limits;

/// What a proposal of the duties was for.
#[derive(Debug)]
pub enum Purpose {
    /// The applier waits for it.
    Plans(Box<Merged>),
    /// A node is silent.
    Down(NodeId),
    /// The collection goes on with its next slice.
    Garbage(Box<Command>),
    /// Time has changed one-off tasks.
    Converge,
}

/// The duties of one reign.
#[derive(Debug)]
pub struct Duties {
    /// Tells this reign from others.
    pub reign: (u64, u64),
    broker: Broker,
    heartbeats: Heartbeats,
    collector: Collector,
    /// Outcomes that wait for the applier.
    waiting: Vec<(Delivery, ScheduleOutcome)>,
    /// A command of the applier is on its way.
    applying: bool,
    /// Deliveries that workers have.
    busy: usize,
    garbage: VecDeque<Command>,
    collecting: bool,
    converging: bool,
    looked_at: Timestamp,
}

/// Short, so that what is over is forgotten in the middle of a storm.
fn gc() -> GcConfig {
    let interval = Duration::from_secs(15);
    GcConfig {
        eval_interval: interval,
        job_interval: interval,
        deployment_interval: interval,
        node_interval: interval,
        eval_threshold: Duration::from_secs(20),
        batch_eval_threshold: Duration::from_secs(30),
        job_threshold: Duration::from_secs(30),
        node_threshold: Duration::from_secs(25),
        deployment_threshold: Duration::from_secs(20),
    }
}

impl Duties {
    /// Begins with what the state says.
    #[must_use]
    pub fn begin(state: &State, reign: (u64, u64), env: &Env) -> Self {
        let mut duties = Self {
            reign,
            broker: Broker::new(BrokerConfig::default()),
            heartbeats: Heartbeats::new(HeartbeatConfig::default()),
            collector: Collector::new(gc(), env.now),
            waiting: Vec::new(),
            applying: false,
            busy: 0,
            garbage: VecDeque::new(),
            collecting: false,
            converging: false,
            looked_at: env.now,
        };
        duties.broker.lead(state, env.now);
        let since = if env.has(Bug::ForgottenGrace) {
            // As if everybody had been heard of long ago.
            Timestamp(env.now.0 - 14_000_000_000)
        } else {
            env.now
        };
        duties.heartbeats.lead(state, since);
        duties
    }

    /// Effects were lost: begins again from the state.
    pub fn restart(&mut self, state: &State, now: Timestamp) {
        self.reign.1 += 1;
        self.waiting.clear();
        self.applying = false;
        self.busy = 0;
        self.broker.lead(state, now);
        self.heartbeats.lead(state, now);
    }

    /// An entry was applied.
    pub fn handle_effects(&mut self, state: &State, effects: &[Effect], now: Timestamp) {
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
                Effect::NodeChanged(_) | Effect::DutiesDue => {}
            }
        }
    }

    /// A node was heard of. False: nothing is expected of it, so it is not counted.
    pub fn handle_beat(&mut self, node_id: NodeId, now: Timestamp) -> bool {
        match self.heartbeats.handle_beat(node_id, now) {
            Beat::Counted => true,
            Beat::Unexpected => false,
        }
    }

    /// A proposal of this reign was answered.
    pub fn settle(&mut self, purpose: Purpose, response: &Response, state: &State, now: Timestamp) {
        match purpose {
            Purpose::Down(_) => {}
            Purpose::Converge => self.converging = false,
            Purpose::Garbage(command) => {
                self.collecting = false;
                if let Some(next) = Collector::next_slice(&command, response, now) {
                    self.garbage.push_front(next);
                }
            }
            Purpose::Plans(merged) => {
                self.applying = false;
                let settled = merged.settle(Some(response));
                self.broker.settle(state, &settled, now);
            }
        }
    }

    /// An evaluation for a free worker, with the plan it will come up with. `at` is the wall clock.
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

    /// A worker died with what it had; its delivery runs out.
    pub fn lose_worker(&mut self) {
        self.busy -= 1;
    }

    /// A worker is done.
    pub fn take_outcome(&mut self, delivery: Delivery, outcome: Option<ScheduleOutcome>) {
        self.busy -= 1;
        match outcome {
            Some(outcome) => self.waiting.push((delivery, outcome)),
            None => self.broker.ack(&delivery.eval_id, delivery.token),
        }
    }

    /// What to propose now.
    pub fn next_proposal(
        &mut self,
        state: &State,
        now: Timestamp,
        at: Timestamp,
    ) -> Option<(Command, Purpose)> {
        if !self.collecting
            && let Some(command) = self.garbage.pop_front()
        {
            self.collecting = true;
            return Some((command.clone(), Purpose::Garbage(Box::new(command))));
        }
        if !self.converging
            && let Some(command) = converge::due(state, at).commands.pop()
        {
            self.converging = true;
            return Some((command, Purpose::Converge));
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
                Some((command, Purpose::Plans(Box::new(merged))))
            }
            None => {
                let settled = merged.settle(None);
                self.broker.settle(state, &settled, now);
                None
            }
        }
    }

    /// Time has passed. Gives back what to propose about silent nodes.
    pub fn handle_timeout(&mut self, state: &State, now: Timestamp, at: Timestamp) -> Vec<Command> {
        let stalled = now.since(self.looked_at) > limits::LEADER_STALL;
        self.looked_at = now;
        if stalled {
            // This server stood still itself, so it cannot say who was silent.
            self.heartbeats.lead(state, now);
        }
        self.broker.handle_timeout(now);
        self.garbage.extend(self.collector.handle_timeout(now));
        let silent = self.heartbeats.handle_timeout(now).into_iter();
        silent
            .map(|node_id| Command::SetNodeStatus {
                node_id,
                status: NodeStatus::Down,
                at,
            })
            .collect()
    }

    /// When something is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Timestamp {
        let idle = self.looked_at.plus(limits::DUTY_INTERVAL);
        [self.broker.poll_timeout(), self.heartbeats.poll_timeout()]
            .into_iter()
            .flatten()
            .map(|(at, _)| at)
            .fold(idle, Timestamp::min)
    }

    /// Whether anything waits for a worker or for the applier.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.busy > 0 || self.applying || !self.waiting.is_empty() || self.broker.ready() > 0
    }

    /// What the leader tells agents: time without a heartbeat after which a node may be down.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.heartbeats.ttl()
    }
}
