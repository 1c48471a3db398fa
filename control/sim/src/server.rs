//! A server: its log, its state, its duties while it leads, its agents and clients.
//!
//! This module stands for the shell `control`. The pure parts are the real ones. Each waiting operation is a stage
//! that is checked again after every event.

mod collect;
mod request;
mod session;
pub mod waiter;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_control_core::broker::Delivery;
use muster_control_core::fsm::{self, ApplyResult, Command, Effect, GcCommand, NodeCommand};
use muster_control_core::scheduler::ScheduleOutcome;
use muster_domain::id::Timestamp;

use crate::brief;
use crate::bug::Bug;
use crate::disk::Disk;
use crate::duties::{Duties, ProposalReason};
use crate::env::{Env, Event};
use crate::limits;
use crate::log::{Entry, Payload, Position};
use crate::machine::Machine;
use crate::message::{Endpoint, ForwardedHeartbeat, Message};
use crate::raft::Raft;

use collect::ForwardedRequest;
use request::{Read, Request};
pub use request::{SessionWrite, WriteOrigin};
use session::Session;

/// The origin of a proposal, which waits for the entry of this leader.
#[derive(Debug)]
enum Origin {
    Duty((u64, u64), ProposalReason),
    Request(u64),
    Server { server: usize, request: u64 },
}

/// A server of the simulated cluster.
#[derive(Debug)]
pub struct Server {
    at: usize,
    servers: usize,
    /// The number of the server's starts. Events of an earlier life are dropped.
    pub life: u64,
    pub up: bool,
    /// The end of the pause during which the server does nothing.
    pub paused_until: Timestamp,
    /// The error of the server's wall clock, in milliseconds.
    pub clock_off_ms: i64,
    /// The server's part of the consensus, and its disk.
    pub raft: Raft,
    machine: Machine,
    applied: u64,
    apply_at: Option<Timestamp>,
    duties: Option<Duties>,
    proposals: BTreeMap<u64, (u64, Origin)>,
    requests: BTreeMap<u64, Request>,
    reads: BTreeMap<u64, Read>,
    passed: BTreeMap<u64, ForwardedRequest>,
    next_number: u64,
    sessions: BTreeMap<usize, Session>,
    /// The newest session opened by each machine, over all lives of this server. A late copy of a registration must
    /// not open a session again, because a closed connection never comes back.
    opened: BTreeMap<usize, u64>,
    gathered: BTreeMap<usize, ForwardedHeartbeat>,
    gather_at: Timestamp,
}

impl Server {
    /// Starts a server from `disk`.
    #[must_use]
    pub fn start(at: usize, servers: usize, life: u64, disk: Disk, env: &mut Env) -> Self {
        let raft = Raft::start(at, servers, life, disk, env);
        let mut server = Self {
            at,
            servers,
            life,
            up: true,
            paused_until: env.now,
            clock_off_ms: 0,
            raft,
            machine: Machine::default(),
            applied: 0,
            apply_at: None,
            duties: None,
            proposals: BTreeMap::new(),
            requests: BTreeMap::new(),
            reads: BTreeMap::new(),
            passed: BTreeMap::new(),
            next_number: life << 32,
            sessions: BTreeMap::new(),
            opened: BTreeMap::new(),
            gathered: BTreeMap::new(),
            gather_at: env.now.plus(limits::HEARTBEAT_FORWARD_INTERVAL),
        };
        server.raft.installed = server.raft.image().snapshot.clone();
        server.install_snapshot(env);
        server
    }

    /// Crashes the server. The memory is lost, and so are data that were not synced.
    pub fn crash(&mut self, env: &mut Env) {
        self.up = false;
        self.end_duties(env);
        self.raft.disk.crash(&mut env.rng);
    }

    /// Restarts the server from its disk.
    pub fn restart(&mut self, env: &mut Env) {
        let disk = std::mem::take(&mut self.raft.disk);
        let (clock_off_ms, opened) = (self.clock_off_ms, std::mem::take(&mut self.opened));
        *self = Self::start(self.at, self.servers, self.life + 1, disk, env);
        (self.clock_off_ms, self.opened) = (clock_off_ms, opened);
    }

    /// Returns the server's state machine.
    #[must_use]
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns the index of the last applied entry.
    #[must_use]
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// Returns the server's duties, if it leads.
    #[must_use]
    pub fn duties(&self) -> Option<&Duties> {
        self.duties.as_ref()
    }

    /// Handles a message.
    pub fn handle_message(&mut self, from: Endpoint, message: Message, env: &mut Env) {
        match (from, message) {
            (Endpoint::Server(from), Message::Raft(message)) => {
                self.raft.handle_message(from, message, env);
            }
            (Endpoint::Server(from), Message::Forward { request, command }) => {
                self.handle_forward(from, request, *command, env);
            }
            (_, Message::Forwarded { request, result }) => {
                self.handle_forwarded(request, result, env);
            }
            (Endpoint::Server(from), Message::ReadIndex { read }) => {
                self.handle_read_index(from, read, env);
            }
            (_, Message::ReadIndexIs { read, index }) => {
                self.handle_read_index_is(read, index, env);
            }
            (Endpoint::Server(from), Message::Collect { request }) => {
                self.handle_collect(from, request, env);
            }
            (_, Message::CollectDone { request }) => self.handle_collected(request, env),
            (Endpoint::Server(from), Message::Beats(beats)) => {
                self.count_heartbeats(from, beats, env);
            }
            (_, Message::BeatsCounted(beats)) => self.acknowledge_heartbeats(&beats, env),
            (Endpoint::Host(host), Message::FromAgent { session, message }) => {
                self.handle_agent(host, session, *message, env);
            }
            (Endpoint::Client(client), Message::Ask { request, ask }) => {
                self.handle_ask(client, request, ask, env);
            }
            (from, message) => {
                env.oracle
                    .fault(&format!("{from:?} sent a server {message:?}"));
            }
        }
    }

    /// Handles the end of a sync of the disk.
    pub fn handle_synced(&mut self, upto: u64, env: &mut Env) {
        self.raft.handle_synced(upto, env);
    }

    /// Handles the outcome of a worker.
    pub fn handle_worker_done(
        &mut self,
        leadership: (u64, u64),
        delivery: Delivery,
        outcome: Option<Box<ScheduleOutcome>>,
    ) {
        if let Some(duties) = self
            .duties
            .as_mut()
            .filter(|duties| duties.leadership == leadership)
        {
            duties.take_outcome(delivery, outcome.map(|outcome| *outcome));
        }
    }

    /// Does the work that is due at the current time.
    pub fn handle_timeout(&mut self, env: &mut Env) {
        self.raft.handle_timeout(env);
        let at = self.wall(env.now);
        if let Some(duties) = &mut self.duties
            && duties.poll_timeout() <= env.now
        {
            let leadership = duties.leadership;
            for command in duties.handle_timeout(&self.machine.state, at, env) {
                if let Command::Node(NodeCommand::SetStatus { node_id, .. }) = &command.command {
                    let purpose = ProposalReason::Down(*node_id);
                    self.propose_duty(leadership, command, purpose, env);
                }
            }
        }
        if self.gather_at <= env.now {
            self.gather_at = env.now.plus(limits::HEARTBEAT_FORWARD_INTERVAL);
            self.forward_heartbeats(env);
        }
    }

    /// Returns the time at which the next work is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Timestamp {
        let mut at = self.raft.poll_timeout().min(self.gather_at);
        at = self.apply_at.into_iter().fold(at, Timestamp::min);
        if let Some(duties) = &self.duties {
            at = at.min(duties.poll_timeout());
        }
        let requests = self.requests.values().map(Request::poll_timeout);
        let reads = self.reads.values().map(Read::poll_timeout);
        let sessions = self.sessions.values().map(Session::poll_timeout);
        let passed = self.passed.values().map(ForwardedRequest::poll_timeout);
        requests
            .chain(reads)
            .chain(passed)
            .chain(sessions)
            .fold(at, Timestamp::min)
    }

    /// Advances all operations that can continue after an event.
    pub fn advance(&mut self, env: &mut Env) {
        self.install_snapshot(env);
        self.apply_committed(env);
        self.begin_or_end_duties(env);
        self.run_duties(env);
        self.advance_collections(env);
        self.advance_requests(env);
        self.advance_reads(env);
        self.advance_sessions(env);
        self.note_committed(env);
    }

    fn wall(&self, now: Timestamp) -> Timestamp {
        Timestamp(now.0.saturating_add_signed(self.clock_off_ms * 1_000_000))
    }

    fn next_number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Restores the state from a snapshot that came from the disk or the leader.
    fn install_snapshot(&mut self, env: &mut Env) {
        let Some(snapshot) = self.raft.installed.take() else {
            return;
        };
        match Machine::restore(&snapshot) {
            Ok(machine) => self.machine = machine,
            Err(error) => env.oracle.fault(&error),
        }
        self.applied = snapshot.at.index;
        env.oracle.restored(self.at, snapshot.at, &self.machine);
        for session in self.sessions.values_mut() {
            session.mark_allocs_changed();
        }
    }

    /// Schedules the application of committed entries. It happens a little after the commit.
    fn note_committed(&mut self, env: &mut Env) {
        if self.raft.commit() > self.applied && self.apply_at.is_none() {
            let lag = if env.fault_chance(5) {
                env.rng.micros(1_000, 600_000)
            } else {
                env.rng.micros(10, 1_500)
            };
            self.apply_at = Some(env.now.plus(lag));
        }
    }

    fn apply_committed(&mut self, env: &mut Env) {
        if self.apply_at.is_none_or(|at| at > env.now) {
            return;
        }
        self.apply_at = None;
        while self.applied < self.raft.commit() {
            let Some(entry) = self.raft.image().log.get(self.applied + 1).cloned() else {
                env.oracle.fault("a committed entry is not in the log");
                return;
            };
            self.apply(&entry, env);
        }
        let snapshot = self.raft.image().snapshot.as_ref();
        let since = self.applied - snapshot.map_or(0, |snapshot| snapshot.at.index);
        if since >= limits::SNAPSHOT_EVERY
            && let Some(term) = self.raft.image().log.term_at(self.applied)
        {
            let index = self.applied;
            let snapshot = self.machine.snapshot(Position { term, index });
            self.raft.compact(snapshot, env);
        }
    }

    fn apply(&mut self, entry: &Arc<Entry>, env: &mut Env) {
        self.applied = entry.at.index;
        let Payload::Command(command) = &entry.payload else {
            env.oracle.applied(self.at, entry, None, &self.machine);
            return;
        };
        let clock = self.wall(env.now);
        let is_collection = matches!(command.command, Command::Gc(GcCommand::Collect { .. }));
        let before = is_collection.then(|| self.machine.state.clone());
        let applied = self.machine.apply(entry.at.index, command, clock, env.bug);
        if env
            .oracle
            .applied(self.at, entry, Some(&applied), &self.machine)
        {
            if let Some(before) = before {
                env.oracle
                    .check_collected(command, &before, &self.machine.state);
            }
            env.trace_line(format_args!(
                "{}: {} -> {}",
                entry.at.index,
                brief::command(&command.command),
                brief::response(&applied.response)
            ));
            if env.trace.has_rows {
                for row in brief::changed(&applied, &self.machine.state) {
                    env.trace_line(format_args!("    {row}"));
                }
            }
        }
        self.handle_effects(entry.at.term, &applied, env);
        self.answer(entry, &applied, env);
    }

    fn handle_effects(&mut self, term: u64, applied: &ApplyResult, env: &mut Env) {
        for effect in &applied.effects {
            if let Effect::NodeChanged(node_id) | Effect::NodeForgot(node_id) = effect {
                let of_node = |session: &&mut Session| session.node_id() == *node_id;
                if let Some(session) = self.sessions.values_mut().find(of_node) {
                    session.mark_allocs_changed();
                }
            }
        }
        let at = self.wall(env.now);
        let is_ours = term == self.raft.image().term;
        let Some(duties) = &mut self.duties else {
            return;
        };
        if !env.fault_chance(2) {
            for effect in applied.effects.iter().filter(|_| is_ours) {
                if let Effect::CallbackClaimed(alloc_id) = effect {
                    duties.handle_claimed(&self.machine.state, alloc_id, at, env);
                }
            }
            duties.handle_effects(&self.machine.state, &applied.effects, env.now);
        } else if !env.has_bug(Bug::LostEffect) {
            duties.restart(&self.machine.state, env.now);
        }
    }

    /// Sends the result of the entry to its origin.
    fn answer(&mut self, entry: &Entry, applied: &ApplyResult, env: &mut Env) {
        let Some((term, origin)) = self.proposals.remove(&entry.at.index) else {
            return;
        };
        let held = term == entry.at.term;
        let result = held.then(|| (entry.at.index, applied.response.clone()));
        match origin {
            Origin::Request(request) => self.handle_forwarded(request, result, env),
            Origin::Server { server, request } => {
                let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(server));
                env.send(me, to, Message::Forwarded { request, result });
            }
            Origin::Duty(leadership, purpose) => {
                let at = self.wall(env.now);
                if let Some(duties) = self
                    .duties
                    .as_mut()
                    .filter(|duties| duties.leadership == leadership)
                {
                    duties.settle(purpose, &applied.response, &self.machine.state, at, env);
                }
            }
        }
    }

    /// Begins the duties of a leader once its state holds all earlier committed entries. Ends them if this server
    /// does not lead.
    fn begin_or_end_duties(&mut self, env: &mut Env) {
        let ready = self
            .raft
            .first_of_term()
            .filter(|first| self.applied >= *first || env.has_bug(Bug::DoublePlacement));
        match ready {
            None => self.end_duties(env),
            Some(_) if self.duties.is_some() => {}
            Some(first) => {
                let leadership = (first, self.next_number() << 16);
                env.trace_line(format_args!("server {} begins its duties", self.at));
                self.duties = Some(Duties::begin(&self.machine.state, leadership, env));
            }
        }
    }

    /// Ends the duties, even during a collection, because this server leads no more.
    fn end_duties(&mut self, env: &mut Env) {
        if self
            .duties
            .take()
            .is_some_and(|duties| duties.is_collecting())
        {
            env.trace_line(format_args!("server {} collects no more", self.at));
            env.oracle.collection_cut_short(!self.up);
        }
    }

    fn run_duties(&mut self, env: &mut Env) {
        // An evaluation that is due for the broker must also be due for the scheduler.
        let at = self.wall(env.now).max(env.now);
        let Some(duties) = &mut self.duties else {
            return;
        };
        let state = &self.machine.state;
        // A full disk refuses every plan, and each refusal would hand out all evaluations again.
        while !self.raft.disk.full
            && let Some((delivery, outcome)) = duties.next_work(state, env.now, at)
        {
            if env.fault_chance(2) {
                duties.lose_worker();
                continue;
            }
            let event = Event::WorkerDone {
                server: self.at,
                leadership: duties.leadership,
                delivery,
                outcome: outcome.map(Box::new),
            };
            env.after(0, 40, event);
        }
        let leadership = duties.leadership;
        while let Some(duties) = &mut self.duties
            && let Some((command, purpose)) = duties.next_proposal(&self.machine.state, env.now, at)
        {
            if !self.propose_duty(leadership, command, purpose, env) {
                break;
            }
        }
    }

    /// Proposes a command of the duties.
    ///
    /// If the log accepts no entry, the leader steps down soon and the duties end. The duties also begin anew at
    /// once, because the refused command gets no answer if the disk has room again before that.
    fn propose_duty(
        &mut self,
        leadership: (u64, u64),
        entry: fsm::Entry,
        purpose: ProposalReason,
        env: &mut Env,
    ) -> bool {
        let collects = matches!(purpose, ProposalReason::Garbage(_));
        match self.raft.propose(entry, env) {
            Some(at) => {
                if collects && env.fault_chance(limits::CRASH_IN_COLLECTION_PERCENT) {
                    env.after(0, 30, Event::ServerCrashes(self.at));
                }
                let origin = Origin::Duty(leadership, purpose);
                self.proposals.insert(at.index, (at.term, origin));
                true
            }
            None => {
                if let Some(duties) = &mut self.duties {
                    duties.restart(&self.machine.state, env.now);
                }
                false
            }
        }
    }
}
