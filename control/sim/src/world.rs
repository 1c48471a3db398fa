//! Time, messages, faults and users: what happens around the server.

mod fault;
mod user;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use muster_control_core::broker::Delivery;
use muster_control_core::fsm::Command;
use muster_control_core::heartbeat::Beat;
use muster_control_core::scheduler::ScheduleOutcome;
use muster_domain::alloc::{AllocReport, ClientStatus, DesiredAlloc};
use muster_domain::fixture;
use muster_domain::id::{AllocId, LogIndex, NodeId, Timestamp};
use muster_domain::node::NodeStatus;

use crate::agent::{Agent, Reaction};
use crate::dice::Dice;
use crate::limits;
use crate::rest;
use crate::server::{Proposal, Purpose, Server};

/// What to simulate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// Decides everything.
    pub seed: u64,
    /// Virtual time with faults and users.
    pub storm: Duration,
    /// Virtual time in which all must come to rest.
    pub calm: Duration,
}

impl SimConfig {
    /// A quarter of an hour of storm; then the time in which the longest reschedule delay ends.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            seed,
            storm: Duration::from_mins(15),
            calm: Duration::from_mins(90),
        }
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Everything that happened, a line each.
    pub trace: String,
    /// Entries in the log.
    pub entries: u64,
    /// Instances placed.
    pub placed: u64,
    /// Leaderships.
    pub leaderships: u64,
    /// What went wrong; empty if nothing did.
    pub faults: Vec<String>,
}

#[derive(Debug)]
enum Event {
    Commit(u64, Proposal),
    WorkerDone {
        epoch: u64,
        delivery: Delivery,
        outcome: Option<Box<ScheduleOutcome>>,
    },
    ToAgent {
        node: usize,
        session: u64,
        index: LogIndex,
        changed: Vec<DesiredAlloc>,
        gone: Vec<AllocId>,
    },
    Register {
        node: usize,
        session: u64,
    },
    Reports {
        node: usize,
        session: u64,
        reports: Vec<AllocReport>,
    },
    Beat {
        node: usize,
        session: u64,
    },
    BeatArrives {
        node: usize,
        session: u64,
    },
    TaskTurns {
        node: usize,
        alloc_id: AllocId,
        status: ClientStatus,
    },
    Connect {
        node: usize,
    },
    User,
    Fault,
}

struct World {
    dice: Dice,
    now: Timestamp,
    ends: Timestamp,
    calm: bool,
    server: Server,
    agents: Vec<Agent>,
    queue: BTreeMap<(Timestamp, u64), Event>,
    next_event: u64,
    last_commit: Timestamp,
    trace: String,
    placed: u64,
    faults: Vec<String>,
}

/// Runs one seed to its end, or to its first fault.
#[must_use]
pub fn run(config: SimConfig) -> Report {
    let mut world = World::new(config);
    world.run_until(world.ends);
    if world.faults.is_empty() {
        world.be_calm();
        world.run_until(world.now.plus(config.calm));
    }
    if world.faults.is_empty() {
        world.faults = rest::unrest(&world.server, &world.agents);
    }
    Report {
        trace: world.trace,
        entries: world.server.state.applied().0,
        placed: world.placed,
        leaderships: world.server.epoch,
        faults: world.faults,
    }
}

impl World {
    fn new(config: SimConfig) -> Self {
        let mut dice = Dice::new(config.seed);
        let now = Timestamp::from_millis(1_700_000_000_000);
        let nodes = dice.between(2, 6);
        let agents = (0..nodes)
            .map(|node| {
                let cpu = u64::from(dice.between(1, 4)) * 1_000;
                let memory = u64::from(dice.between(1, 4)) * 1_024;
                let spec = fixture::node(&format!("node-{node}"))
                    .cpu_mhz(cpu)
                    .memory_mb(memory);
                let zone = if dice.chance(50) { "a" } else { "b" };
                Agent::new(spec.attribute("zone", zone).build())
            })
            .collect();
        let mut world = Self {
            server: Server::new(now),
            dice,
            now,
            ends: now.plus(config.storm),
            calm: false,
            agents,
            queue: BTreeMap::new(),
            next_event: 0,
            last_commit: now,
            trace: String::new(),
            placed: 0,
            faults: Vec::new(),
        };
        for node in 0..world.agents.len() {
            world.after(0, 2_000, Event::Connect { node });
        }
        world.after(0, 500, Event::User);
        world.after(5_000, 30_000, Event::Fault);
        world
    }

    fn run_until(&mut self, end: Timestamp) {
        while self.faults.is_empty() {
            let event_at = self.queue.first_key_value().map(|((at, _), _)| *at);
            let timer_at = self.server.poll_timeout().map(|(at, _)| at);
            let Some(at) = event_at
                .into_iter()
                .chain(timer_at)
                .min()
                .filter(|at| *at <= end)
            else {
                break;
            };
            self.now = self.now.max(at);
            if event_at.is_some_and(|event_at| event_at <= self.now) {
                if let Some((_, event)) = self.queue.pop_first() {
                    self.handle(event);
                }
            } else {
                self.handle_timers();
            }
            self.pump();
            if self.server.state.applied().0 > limits::ENTRIES_MAX {
                self.faults.push("it never comes to rest".to_owned());
            }
        }
        self.now = self.now.max(end);
    }

    fn say(&mut self, line: std::fmt::Arguments<'_>) {
        let ms = self.now.0 / 1_000_000 % 100_000_000;
        writeln!(self.trace, "{ms} {line}").expect("writing to a String cannot fail");
    }

    fn after(&mut self, low_ms: u64, high_ms: u64, event: Event) {
        let at = self.now.plus(self.dice.millis(low_ms, high_ms));
        self.at(at, event);
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.queue.insert((at, self.next_event), event);
        self.next_event += 1;
    }

    fn propose(&mut self, command: Command) {
        self.send(Proposal {
            command,
            purpose: Purpose::Plain,
        });
    }

    /// Entries are applied in the order of their proposal.
    fn send(&mut self, proposal: Proposal) {
        let at = self.now.plus(self.dice.millis(0, 8)).max(self.last_commit);
        self.last_commit = at;
        self.at(at, Event::Commit(self.server.epoch, proposal));
    }

    /// What the server does by itself whenever something happened.
    fn pump(&mut self) {
        while let Some((delivery, outcome)) = self.server.next_work(self.now) {
            let epoch = self.server.epoch;
            if !self.calm && self.dice.chance(2) {
                // The worker dies; its slot is taken by another, its delivery runs out.
                self.server.busy -= 1;
                self.say(format_args!(
                    "worker dies with {}",
                    delivery.eval_id.short()
                ));
                continue;
            }
            let outcome = outcome.map(Box::new);
            self.after(
                0,
                40,
                Event::WorkerDone {
                    epoch,
                    delivery,
                    outcome,
                },
            );
        }
        if let Some(proposal) = self.server.next_plans(self.now) {
            self.send(proposal);
        }
    }

    fn handle_timers(&mut self) {
        self.server.broker.handle_timeout(self.now);
        for node_id in self.server.heartbeats.handle_timeout(self.now) {
            let at = self.now;
            self.propose(Command::SetNodeStatus {
                node_id,
                status: NodeStatus::Down,
                at,
            });
        }
        for command in self.server.collector.handle_timeout(self.now) {
            self.send(Proposal {
                command,
                purpose: Purpose::Garbage,
            });
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Commit(epoch, proposal) => self.commit(epoch, proposal),
            Event::WorkerDone {
                epoch,
                delivery,
                outcome,
            } => {
                if epoch == self.server.epoch {
                    self.server
                        .take_outcome(delivery, outcome.map(|outcome| *outcome));
                }
            }
            Event::ToAgent {
                node,
                session,
                index,
                changed,
                gone,
            } => {
                if self.is_session(node, session) {
                    self.agent_hears(node, index, &changed, &gone);
                }
            }
            Event::Register { node, session } => self.register(node, session),
            Event::Reports {
                node,
                session,
                reports,
            } => {
                if self.is_session(node, session) {
                    let (node_id, at) = (self.agents[node].spec.id, self.now);
                    self.propose(Command::ReportAllocs {
                        node_id,
                        reports,
                        at,
                    });
                }
            }
            Event::Beat { node, session } => {
                if self.is_session(node, session) {
                    self.after(0, 300, Event::BeatArrives { node, session });
                    self.after(2_500, 3_300, Event::Beat { node, session });
                }
            }
            Event::BeatArrives { node, session } => {
                if self.is_session(node, session) {
                    self.beat(node);
                }
            }
            Event::TaskTurns {
                node,
                alloc_id,
                status,
            } => self.task_turns(node, alloc_id, status),
            Event::Connect { node } => self.connect(node),
            Event::User => self.user(),
            Event::Fault => self.fault(),
        }
    }

    fn is_session(&self, node: usize, session: u64) -> bool {
        self.agents[node].connected && self.agents[node].session == session
    }

    fn commit(&mut self, epoch: u64, proposal: Proposal) {
        let applied = match self.server.apply(&proposal.command) {
            Ok(applied) => applied,
            Err(fault) => {
                self.say(format_args!("FAULT {fault} after {:?}", proposal.command));
                self.faults.push(fault);
                return;
            }
        };
        let (response, effects) = applied;
        let index = self.server.state.applied().0;
        self.say(format_args!(
            "{index}: {} -> {}",
            brief(&proposal.command),
            brief_response(&response)
        ));
        if let muster_control_core::fsm::Response::PlansApplied { outcomes } = &response {
            self.placed += outcomes
                .iter()
                .map(|outcome| u64::from(outcome.placed))
                .sum::<u64>();
        }
        if epoch != self.server.epoch {
            return;
        }
        for node_id in self.server.carry_out(&effects, self.now) {
            self.push(node_id);
        }
        if let Some(next) = self.server.settle(proposal, &response, self.now) {
            self.send(next);
        }
    }

    /// Tells an agent what it has not heard of.
    fn push(&mut self, node_id: NodeId) {
        let Some(node) = self
            .agents
            .iter()
            .position(|agent| agent.spec.id == node_id)
        else {
            return;
        };
        if !self.agents[node].connected {
            return;
        }
        let (changed, gone) = self.server.news(node_id);
        let (session, index) = (self.agents[node].session, self.server.state.applied());
        self.after(
            0,
            200,
            Event::ToAgent {
                node,
                session,
                index,
                changed,
                gone,
            },
        );
    }

    fn agent_hears(
        &mut self,
        node: usize,
        index: LogIndex,
        changed: &[DesiredAlloc],
        gone: &[AllocId],
    ) {
        self.say(format_args!(
            "node-{node} hears {} of {} and {}",
            index.0,
            changed.len(),
            gone.len()
        ));
        for wanted in changed {
            let alloc_id = wanted.alloc_id;
            match self.agents[node].take(wanted) {
                Reaction::Ignored => {}
                Reaction::Starts => {
                    let status = ClientStatus::Running;
                    self.after(
                        10,
                        3_000,
                        Event::TaskTurns {
                            node,
                            alloc_id,
                            status,
                        },
                    );
                }
                Reaction::Stops => {
                    let status = ClientStatus::Complete;
                    self.after(
                        10,
                        6_000,
                        Event::TaskTurns {
                            node,
                            alloc_id,
                            status,
                        },
                    );
                }
                Reaction::Reports => self.report_all(node),
            }
        }
        for alloc_id in gone {
            self.agents[node].allocs.remove(alloc_id);
        }
    }

    fn report_all(&mut self, node: usize) {
        let session = self.agents[node].session;
        let reports = self.agents[node].reports();
        if !reports.is_empty() {
            self.after(
                0,
                200,
                Event::Reports {
                    node,
                    session,
                    reports,
                },
            );
        }
    }

    fn task_turns(&mut self, node: usize, alloc_id: AllocId, status: ClientStatus) {
        let Some(report) = self.agents[node].turn(&alloc_id, status) else {
            return;
        };
        let is_batch = self.agents[node].allocs[&alloc_id].is_batch;
        if status == ClientStatus::Running {
            let fails = !self.calm && self.dice.chance(25);
            let next = match (fails, is_batch) {
                (true, _) => Some(ClientStatus::Failed),
                (false, true) => Some(ClientStatus::Complete),
                (false, false) => None,
            };
            if let Some(status) = next {
                self.after(
                    100,
                    120_000,
                    Event::TaskTurns {
                        node,
                        alloc_id,
                        status,
                    },
                );
            }
        }
        if !self.agents[node].connected {
            return;
        }
        let session = self.agents[node].session;
        let reports = vec![report];
        if self.dice.chance(10) {
            // The same news twice, and the second one late.
            let reports = reports.clone();
            self.after(
                0,
                5_000,
                Event::Reports {
                    node,
                    session,
                    reports,
                },
            );
        }
        self.after(
            0,
            200,
            Event::Reports {
                node,
                session,
                reports,
            },
        );
    }

    fn connect(&mut self, node: usize) {
        let agent = &mut self.agents[node];
        agent.session += 1;
        agent.connected = true;
        let session = agent.session;
        self.say(format_args!("node-{node} connects"));
        self.after(0, 100, Event::Register { node, session });
        self.after(100, 400, Event::Beat { node, session });
    }

    fn register(&mut self, node: usize, session: u64) {
        if !self.is_session(node, session) {
            return;
        }
        let (spec, at) = (self.agents[node].spec.clone(), self.now);
        let node_id = spec.id;
        self.propose(Command::RegisterNode {
            spec: Box::new(spec),
            at,
        });
        self.server.forget_told(&node_id);
        self.push(node_id);
        self.report_all(node);
    }

    fn beat(&mut self, node: usize) {
        let (node_id, at) = (self.agents[node].spec.id, self.now);
        let beat = self.server.heartbeats.handle_beat(node_id, self.now);
        match self
            .server
            .state
            .nodes()
            .get(&node_id)
            .map(|node| node.status)
        {
            Some(NodeStatus::Initializing | NodeStatus::Down) => {
                self.propose(Command::SetNodeStatus {
                    node_id,
                    status: NodeStatus::Ready,
                    at,
                });
            }
            Some(NodeStatus::Ready) if beat == Beat::Unexpected => {
                self.server.heartbeats.track(node_id, self.now);
            }
            Some(NodeStatus::Ready) => {}
            None => {
                // It was forgotten while it was away.
                let spec = Box::new(self.agents[node].spec.clone());
                self.propose(Command::RegisterNode { spec, at });
            }
        }
    }
}

fn brief(command: &Command) -> String {
    match command {
        Command::RegisterNode { spec, .. } => format!("register {}", spec.name),
        Command::SetNodeStatus {
            node_id, status, ..
        } => {
            format!("node {} {}", node_id.short(), status.word())
        }
        Command::SetEligibility {
            node_id,
            eligibility,
            ..
        } => {
            format!("node {} {}", node_id.short(), eligibility.word())
        }
        Command::RegisterJob { spec, .. } => format!("run {} x{}", spec.id, spec.groups[0].count),
        Command::DeregisterJob { key, purge, .. } => format!("stop {key} purge {purge}"),
        Command::EvaluateJob { key, .. } => format!("evaluate {key}"),
        Command::ApplyPlans { plans, evals, .. } => {
            format!("{} plans and {} updates", plans.len(), evals.len())
        }
        Command::UpdateEvals { evals, .. } => format!("{} updates", evals.len()),
        Command::ReportAllocs {
            node_id, reports, ..
        } => {
            format!("{} reports of {}", reports.len(), node_id.short())
        }
        Command::CollectGarbage { rule, .. } => format!("collect {rule:?}"),
    }
}

fn brief_response(response: &muster_control_core::fsm::Response) -> String {
    format!("{response:?}")
}
