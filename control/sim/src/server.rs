//! The leader: what the shell of a server does, without threads and sockets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use muster_control_core::applier::{self, Merged};
use muster_control_core::broker::{Broker, BrokerConfig, Delivery};
use muster_control_core::fsm::{self, Command, Effect, Response};
use muster_control_core::gc::{Collector, GcConfig};
use muster_control_core::heartbeat::{HeartbeatConfig, Heartbeats};
use muster_control_core::scheduler::{self, ScheduleOutcome};
use muster_control_core::snapshot;
use muster_control_core::state::{State, check};
use muster_domain::id::{AllocId, LogIndex, NodeId, Timestamp};

use crate::limits;

/// What a proposal was for.
#[derive(Debug)]
pub enum Purpose {
    /// Nobody waits for it.
    Plain,
    /// The applier waits for it.
    Plans(Box<Merged>),
    /// The collection goes on with its next slice.
    Garbage,
}

/// A command on its way into the log.
#[derive(Debug)]
pub struct Proposal {
    /// The command.
    pub command: Command,
    /// What it was for.
    pub purpose: Purpose,
}

/// A server and its log.
#[derive(Debug)]
pub struct Server {
    /// What the log says.
    pub state: State,
    /// The same, by another server that only follows.
    replica: State,
    /// Evaluations.
    pub broker: Broker,
    /// Nodes that are expected to be heard of.
    pub heartbeats: Heartbeats,
    /// The collection's clock.
    pub collector: Collector,
    /// Counts leaderships; what belongs to an older one is dropped.
    pub epoch: u64,
    /// Outcomes that wait for the applier.
    waiting: Vec<ScheduleOutcome>,
    /// A command of the applier is on its way.
    applying: bool,
    /// Deliveries that workers have.
    pub busy: usize,
    /// Allocations each agent was told of.
    told: BTreeMap<NodeId, (LogIndex, BTreeSet<AllocId>)>,
}

fn gc() -> GcConfig {
    GcConfig {
        interval: Duration::from_mins(1),
        eval_threshold: Duration::from_mins(2),
        batch_eval_threshold: Duration::from_mins(4),
        job_threshold: Duration::from_mins(3),
        node_threshold: Duration::from_mins(5),
    }
}

impl Server {
    /// A server with an empty log.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self {
            state: State::default(),
            replica: State::default(),
            broker: Broker::new(BrokerConfig::default()),
            heartbeats: Heartbeats::new(HeartbeatConfig::default()),
            collector: Collector::new(gc(), now),
            epoch: 0,
            waiting: Vec::new(),
            applying: false,
            busy: 0,
            told: BTreeMap::new(),
        }
    }

    /// Leadership was lost and won: all memory is gone, the log is not. The state comes back from a
    /// snapshot.
    ///
    /// # Errors
    ///
    /// If the snapshot does not give the state back.
    pub fn lead(&mut self, now: Timestamp) -> Result<(), String> {
        let records = snapshot::records(&self.state).map(Ok::<_, std::convert::Infallible>);
        let restored = snapshot::restore(records).map_err(|error| error.to_string())?;
        if restored != self.state {
            return Err("the state restored from a snapshot differs".to_owned());
        }
        self.state = restored;
        self.epoch += 1;
        self.waiting.clear();
        self.applying = false;
        self.busy = 0;
        self.told.clear();
        self.collector = Collector::new(gc(), now);
        self.broker.lead(&self.state, now);
        self.heartbeats.lead(&self.state, now);
        Ok(())
    }

    /// Applies an entry on both replicas and checks them. Nothing is done about effects.
    ///
    /// # Errors
    ///
    /// Invariants that do not hold.
    pub fn apply(&mut self, command: &Command) -> Result<(Response, Vec<Effect>), String> {
        let index = LogIndex(self.state.applied().0 + 1);
        let result = fsm::apply(&mut self.state, index, command.clone());
        let other = fsm::apply(&mut self.replica, index, command.clone());
        if result != other || self.state != self.replica {
            return Err("two replicas differ".to_owned());
        }
        let broken = check::broken(&self.state);
        if broken.is_empty() {
            Ok((result.response, result.effects))
        } else {
            Err(broken.join("; "))
        }
    }

    /// Carries out effects; gives back nodes whose agents must hear of something.
    pub fn carry_out(&mut self, effects: &[Effect], now: Timestamp) -> Vec<NodeId> {
        let index = self.state.applied();
        let mut changed = Vec::new();
        for effect in effects {
            match *effect {
                Effect::EnqueueEval(eval_id) => {
                    if let Some(eval) = self.state.evals().get(&eval_id) {
                        self.broker.enqueue(eval, now);
                    }
                }
                Effect::BlockEval(eval_id) => {
                    let seen = self
                        .state
                        .evals()
                        .get(&eval_id)
                        .map(|eval| eval.snapshot_index);
                    self.broker
                        .block(&self.state, eval_id, seen.unwrap_or_default(), now);
                }
                Effect::ForgetEval(eval_id) => self.broker.forget(&eval_id),
                Effect::CapacityFreed { node_id } => {
                    self.broker
                        .handle_capacity(&self.state, node_id, index, now);
                }
                Effect::NodeChanged(node_id) => changed.push(node_id),
                Effect::NodeReady(node_id) => self.heartbeats.track(node_id, now),
                Effect::NodeGone(node_id) => self.heartbeats.untrack(&node_id),
            }
        }
        changed
    }

    /// A proposal of this leadership was answered; what to propose next.
    pub fn settle(
        &mut self,
        proposal: Proposal,
        response: &Response,
        now: Timestamp,
    ) -> Option<Proposal> {
        match proposal.purpose {
            Purpose::Plain => None,
            Purpose::Garbage => {
                let command = Collector::next_slice(&proposal.command, response, now)?;
                Some(Proposal {
                    command,
                    purpose: Purpose::Garbage,
                })
            }
            Purpose::Plans(merged) => {
                self.applying = false;
                let settled = merged.settle(Some(response));
                self.broker.settle(&self.state, &settled, now);
                None
            }
        }
    }

    /// An evaluation for a free worker, with the plan it will come up with.
    pub fn next_work(&mut self, now: Timestamp) -> Option<(Delivery, Option<ScheduleOutcome>)> {
        if self.busy >= limits::WORKERS {
            return None;
        }
        let delivery = self.broker.dequeue(now)?;
        self.busy += 1;
        let eval = self.state.evals().get(&delivery.eval_id).map(Arc::clone);
        Some((
            delivery,
            eval.map(|eval| scheduler::schedule(&self.state, &eval, now)),
        ))
    }

    /// A worker is done.
    pub fn take_outcome(&mut self, delivery: Delivery, outcome: Option<ScheduleOutcome>) {
        self.busy -= 1;
        match outcome {
            Some(outcome) if self.broker.is_current(&delivery.eval_id, delivery.token) => {
                self.waiting.push(outcome);
            }
            Some(_) => {}
            None => self.broker.ack(&delivery.eval_id, delivery.token),
        }
    }

    /// What the applier proposes, if it is free and has something.
    pub fn next_plans(&mut self, now: Timestamp) -> Option<Proposal> {
        if self.applying {
            return None;
        }
        let updates = self.broker.take_updates();
        if self.waiting.is_empty() && updates.is_empty() {
            return None;
        }
        let more = self
            .waiting
            .split_off(self.waiting.len().min(limits::BATCH_MAX));
        let outcomes = std::mem::replace(&mut self.waiting, more);
        let mut merged = applier::merge(&self.state, outcomes, updates, now);
        self.waiting.append(&mut merged.rest);
        match merged.command.take() {
            Some(command) => {
                self.applying = true;
                Some(Proposal {
                    command,
                    purpose: Purpose::Plans(Box::new(merged)),
                })
            }
            None => {
                let settled = merged.settle(None);
                self.broker.settle(&self.state, &settled, now);
                None
            }
        }
    }

    /// Whether anything waits for a worker or for the applier.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.busy > 0 || self.applying || !self.waiting.is_empty() || self.broker.ready() > 0
    }

    /// What the agent of `node_id` must hear: changed allocations, and forgotten ones.
    pub fn news(
        &mut self,
        node_id: NodeId,
    ) -> (Vec<muster_domain::alloc::DesiredAlloc>, Vec<AllocId>) {
        let (seen, known) = self.told.entry(node_id).or_default();
        let mut changed = Vec::new();
        let mut there = BTreeSet::new();
        for alloc in self.state.allocs().of_node(&node_id) {
            there.insert(alloc.id);
            if alloc.alloc_modify_index > *seen {
                changed.push(muster_control_core::state::desired(alloc));
            }
        }
        let gone = known.difference(&there).copied().collect();
        *seen = self.state.applied();
        *known = there;
        (changed, gone)
    }

    /// A new connection: the agent must hear everything.
    pub fn forget_told(&mut self, node_id: &NodeId) {
        self.told.remove(node_id);
    }

    /// The next time at which something is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<(Timestamp, &'static str)> {
        [
            self.broker.poll_timeout(),
            self.heartbeats.poll_timeout(),
            self.collector.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
