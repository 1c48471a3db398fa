//! The main loop: it handles one event after the other, and checks the invariants after each.

mod faults;

use muster_domain::fixture;
use muster_domain::id::{NodeId, Timestamp};

use crate::client::Client;
use crate::disk::Disk;
use crate::env::{Env, Event};
use crate::host::{Host, HostEvent};
use crate::limits;
use crate::message::{Endpoint, Message};
use crate::quiescence;
use crate::rng::SimRng;
use crate::server::Server;
use crate::{Report, SimConfig};

/// The complete simulated cluster.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) env: Env,
    pub(crate) servers: Vec<Server>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) clients: Vec<Client>,
    nodes: Vec<NodeId>,
    /// The next time at which each server has work to do. `host_at` is the same for hosts.
    server_at: Vec<Timestamp>,
    host_at: Vec<Option<Timestamp>>,
    /// The number of steps since virtual time last advanced.
    steps_at_now: u32,
}

/// The part of the world that acts next.
#[derive(Debug)]
enum NextActor {
    Event,
    Server(usize),
    Host(usize),
}

impl World {
    pub(crate) fn new(config: &SimConfig) -> Self {
        let mut rng = SimRng::new(config.seed);
        let hosts = (0..rng.below(4) + 2).map(|at| host(at, &mut rng)).collect();
        let mut env = Env::new(rng, limits::EPOCH, config.bug, config.servers);
        env.trace.has_rows = config.has_rows;
        let servers = (0..config.servers)
            .map(|at| Server::start(at, config.servers, 1, Disk::default(), &mut env))
            .collect();
        let mut world = Self {
            env,
            servers,
            hosts,
            clients: (0..limits::CLIENTS).map(Client::new).collect(),
            nodes: Vec::new(),
            server_at: vec![limits::EPOCH; config.servers],
            host_at: Vec::new(),
            steps_at_now: 0,
        };
        world.nodes = world.hosts.iter().map(|host| host.spec.id).collect();
        world.host_at = vec![None; world.hosts.len()];
        for at in 0..world.hosts.len() {
            world.env.after(0, 3_000, Event::AgentStarts(at));
        }
        for at in 0..world.clients.len() {
            world.env.after(0, 4_000, Event::Client(at));
        }
        world.env.after(4_000, 10_000, Event::Fault);
        world
    }

    /// Runs a storm, and then a calm until the whole world is at rest.
    pub(crate) fn run(mut self, config: &SimConfig) -> Report {
        let storm_ends = limits::EPOCH.plus(config.storm);
        self.run_until(storm_ends);
        let mut rested_at = None;
        if !self.has_fault() {
            self.end_faults();
            rested_at = self.run_until_quiescent(storm_ends.plus(config.calm));
        }
        let calm = rested_at.map_or(config.calm, |at: Timestamp| at.since(storm_ends));
        Report {
            entries: self.env.oracle.committed_index(),
            placed: self.env.oracle.placed,
            collected: self.env.oracle.collections.freed,
            forced: self.env.oracle.collections.forced,
            slices: self.env.oracle.collections.slices,
            cut_short: self.env.oracle.collections.cut_short,
            rollouts: self.env.oracle.deployments.rollouts,
            one_offs: self.env.oracle.one_offs(),
            placed_at_once: self.env.oracle.placed_at_once,
            called: self.env.oracle.called,
            terms: self.env.oracle.terms(),
            acknowledged_writes: self.env.oracle.acknowledged_writes(),
            reads: self.env.oracle.reads,
            events: self.env.trace.events(),
            calm,
            trace: self.env.trace.text,
            faults: self.env.oracle.faults,
        }
    }

    fn has_fault(&self) -> bool {
        !self.env.oracle.faults.is_empty()
    }

    /// Runs until the world is at rest twice in a row. Each part that is not at rest by `end` is a fault.
    fn run_until_quiescent(&mut self, end: Timestamp) -> Option<Timestamp> {
        let mut rested_at = None;
        while self.env.now < end && !self.has_fault() {
            let at = self.env.now.plus(limits::REST_INTERVAL);
            self.run_until(at);
            let unfinished = quiescence::unfinished(self);
            if !unfinished.is_empty() {
                let (count, first) = (unfinished.len(), &unfinished[0]);
                let first = first.split(':').next().unwrap_or_default();
                self.env
                    .trace_line(format_args!("{count} not at rest: {first}"));
                rested_at = None;
            } else if rested_at.is_some() {
                return rested_at;
            } else {
                rested_at = Some(at);
            }
        }
        if !self.has_fault() {
            self.env.oracle.faults = quiescence::unfinished(self);
            if self.env.oracle.faults.is_empty() {
                self.env.oracle.fault("it comes to rest, but not for long");
            }
        }
        None
    }

    fn run_until(&mut self, end: Timestamp) {
        while !self.has_fault() {
            let (at, next) = self.next();
            if at > end {
                break;
            }
            self.steps_at_now = if at > self.env.now {
                0
            } else {
                self.steps_at_now + 1
            };
            if self.steps_at_now > limits::STEPS_AT_ONCE_MAX {
                let who = format!("time stands still: {next:?}");
                self.env.oracle.fault(&who);
            }
            self.env.now = self.env.now.max(at);
            match next {
                NextActor::Event => {
                    if let Some(event) = self.env.pop() {
                        self.handle(event);
                    }
                }
                NextActor::Server(at) => {
                    self.env.trace.note(self.env.now, at as u64);
                    self.servers[at].handle_timeout(&mut self.env);
                    self.advance_server(at);
                }
                NextActor::Host(at) => {
                    self.env.trace.note(self.env.now, 100 + at as u64);
                    self.hosts[at].handle_timeout(&mut self.env);
                    self.host_at[at] = self.hosts[at].poll_timeout();
                }
            }
            self.check();
        }
        self.env.now = self.env.now.max(end);
    }

    fn next(&self) -> (Timestamp, NextActor) {
        let mut first = (
            self.env.next_at().unwrap_or(Timestamp(u64::MAX)),
            NextActor::Event,
        );
        for (at, server) in self.servers.iter().enumerate() {
            let due = self.server_at[at].max(server.paused_until);
            if server.up && due < first.0 {
                first = (due, NextActor::Server(at));
            }
        }
        for (at, due) in self.host_at.iter().enumerate() {
            if let Some(due) = *due
                && due < first.0
            {
                first = (due, NextActor::Host(at));
            }
        }
        first
    }

    fn advance_server(&mut self, at: usize) {
        self.servers[at].advance(&mut self.env);
        self.server_at[at] = self.servers[at].poll_timeout();
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Deliver { from, to, message } => self.deliver(from, to, message),
            Event::Stream { from, to } => {
                if let Some(message) = self.env.next_on_stream(from, to) {
                    self.deliver(from, to, Box::new(message));
                }
            }
            Event::Synced { server, life, upto } => {
                self.env.trace.note(self.env.now, 200 + server as u64);
                let one = &mut self.servers[server];
                if one.life == life && one.up {
                    one.handle_synced(upto, &mut self.env);
                    self.advance_server(server);
                }
            }
            Event::WorkerDone {
                server,
                leadership,
                delivery,
                outcome,
            } => {
                let one = &mut self.servers[server];
                if one.up {
                    one.handle_worker_done(leadership, delivery, outcome);
                    self.advance_server(server);
                }
            }
            Event::Host { host, what } => {
                self.env.trace.note(self.env.now, 300 + host as u64);
                let starts = matches!(what, HostEvent::Start { .. });
                self.hosts[host].handle_event(what, &mut self.env);
                self.host_at[host] = self.hosts[host].poll_timeout();
                if starts {
                    self.check_processes();
                }
            }
            Event::ServerCrashes(at) => self.crash(at),
            Event::ServerStarts(at) => self.start_server(at),
            Event::AgentStarts(at) => self.start_agent(at),
            Event::Client(at) => self.clients[at].act(&self.nodes, &mut self.env),
            Event::Fault => self.inject_fault(),
        }
    }

    fn deliver(&mut self, from: Endpoint, to: Endpoint, message: Box<Message>) {
        if let Endpoint::Server(at) = to
            && self.servers[at].up
            && self.servers[at].paused_until > self.env.now
        {
            // The message waits in the socket of the paused server.
            let until = self.servers[at].paused_until;
            self.env.at(until, Event::Deliver { from, to, message });
            return;
        }
        let message = *message;
        match to {
            Endpoint::Server(at) if self.servers[at].up => {
                self.env.trace.note(self.env.now, 400 + at as u64);
                self.servers[at].handle_message(from, message, &mut self.env);
                self.advance_server(at);
            }
            Endpoint::Server(_) => self.refuse(from, to, &message),
            Endpoint::Host(at) => {
                self.env.trace.note(self.env.now, 500 + at as u64);
                self.hosts[at].handle_message(from, message, &mut self.env);
                self.host_at[at] = self.hosts[at].poll_timeout();
            }
            Endpoint::Client(at) => {
                if let Message::Answer { request, answer } = message {
                    self.clients[at].handle_answer(request, answer, &mut self.env);
                }
            }
        }
    }

    /// Answers a message to a server that is down: its machine may reset the connection.
    fn refuse(&mut self, from: Endpoint, to: Endpoint, message: &Message) {
        if let (Endpoint::Host(_), Message::FromAgent { session, .. }) = (from, message)
            && self.env.rng.chance(50)
        {
            let session = *session;
            self.env.send(to, from, Message::Reset { session });
        }
    }

    /// Checks the invariants that no single part of the world can check.
    fn check(&mut self) {
        let committed = std::mem::take(&mut self.env.oracle.unverified);
        for at in committed {
            let held = self
                .servers
                .iter()
                .filter(|server| server.raft.disk.durable().holds(at))
                .count();
            if held < self.env.oracle.quorum() {
                let index = at.index;
                self.env.oracle.fault(&format!(
                    "entry {index} is committed, and {held} of {} disks have it",
                    self.servers.len()
                ));
            }
        }
        for node_id in std::mem::take(&mut self.env.oracle.nodes_down) {
            let host = self.hosts.iter().find(|host| host.spec.id == node_id);
            let leased = host.is_some_and(|host| host.lease_until > self.env.now);
            if leased {
                self.env.oracle.fault(&format!(
                    "node {} is declared down while its lease holds",
                    node_id.short()
                ));
            }
        }
        if self.env.oracle.committed_index() > limits::ENTRIES_MAX {
            self.env.oracle.fault("the log grows without end");
        }
    }

    /// Checks that no allocation runs on two machines.
    fn check_processes(&mut self) {
        let mut seen = std::collections::BTreeSet::new();
        for host in &self.hosts {
            for task in host.running() {
                if !seen.insert(*task) {
                    let alloc_id = task.0;
                    self.env
                        .oracle
                        .fault(&format!("{alloc_id} runs on two machines"));
                }
            }
        }
    }
}

fn host(at: usize, rng: &mut SimRng) -> Host {
    let zone = if rng.chance(50) { "a" } else { "b" };
    let spec = fixture::node(&format!("node-{at}"))
        .cpu_mhz(u64::from(rng.between(1, 4)) * 1_000)
        .memory_mb(u64::from(rng.between(1, 4)) * 1_024)
        .attribute("zone", zone)
        .build();
    Host::new(at, spec)
}
