//! Agents' sessions on a server: registration, heartbeats, reports, and the desired state of the node.
//!
//! This module stands for `control/src/agents`. Any server serves any agent. Writes go to the leader.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use muster_control_core::fsm::{AllocCommand, Entry, NodeCommand, Response};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::AllocReport;
use muster_domain::id::{AllocId, LogIndex, NodeId, Timestamp};
use muster_domain::node::{NodeSpec, NodeStatus};
use muster_domain::number;
use muster_wire::rpc::{FromAgent, ToAgent};

use super::request::Reader;
use super::{Server, SessionWrite, WriteOrigin};
use crate::bug::Bug;
use crate::env::Env;
use crate::limits;
use crate::message::{Endpoint, ForwardedHeartbeat, Message};

/// The desired state that a session has sent to its node.
#[derive(Debug)]
struct SentDesired {
    node_id: NodeId,
    /// The index up to which the agent knew the desired state before the session.
    since: LogIndex,
    known: BTreeMap<AllocId, LogIndex>,
    begun: bool,
}

impl SentDesired {
    /// Returns the messages that bring the node up to `state`. Returns none if the node is up to date, or knows more
    /// than this server.
    fn catch_up(&mut self, state: &State) -> Vec<ToAgent> {
        if state.applied() < self.since {
            return Vec::new();
        }
        let first = !std::mem::replace(&mut self.begun, true);
        let (mut changed, mut unchanged) = (Vec::new(), Vec::new());
        let mut gone = std::mem::take(&mut self.known);
        for alloc in state.allocs_on(&self.node_id) {
            let known = gone.remove(&alloc.id());
            if known.unwrap_or(self.since) < alloc.alloc_modify_index() {
                changed.push(alloc);
            } else if first {
                unchanged.push(alloc.id());
            }
            self.known.insert(alloc.id(), alloc.alloc_modify_index());
        }
        if changed.is_empty() && gone.is_empty() && !first {
            return Vec::new();
        }
        let gone: Vec<AllocId> = gone.into_keys().collect();
        messages(state.applied(), &changed, unchanged, gone, self.known.len())
    }
}

/// Splits a desired set into messages. The last message carries the number of allocations.
fn messages(
    index: LogIndex,
    changed: &[AllocView<'_>],
    unchanged: Vec<AllocId>,
    gone: Vec<AllocId>,
    count: usize,
) -> Vec<ToAgent> {
    let message = |allocs: &[AllocView<'_>]| ToAgent::Desired {
        index,
        allocs: allocs.iter().map(|alloc| alloc.to_desired()).collect(),
        unchanged: Vec::new(),
        gone: Vec::new(),
        complete: None,
        remote: Vec::new(),
    };
    let mut messages: Vec<ToAgent> = changed
        .chunks(limits::DESIRED_BATCH_MAX)
        .map(message)
        .collect();
    messages.push(ToAgent::Desired {
        index,
        allocs: Vec::new(),
        unchanged,
        gone,
        complete: Some(number::count(count)),
        remote: Vec::new(),
    });
    messages
}

/// An agent's session.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one of the real session's loops, and they go on independently"
)]
pub(super) struct Session {
    number: u64,
    spec: Box<NodeSpec>,
    sent: SentDesired,
    serving: bool,
    /// Whether a write is under way on which the session must wait.
    registering: bool,
    reports: VecDeque<(u64, Vec<AllocReport>)>,
    reporting: bool,
    /// The sequence number of the newest report message. A message that is not newer is a repetition.
    sequence: u64,
    awake: bool,
    /// Whether this server's state is at least as new as the session.
    fresh: bool,
    rescan_at: Timestamp,
    last_contact_at: Timestamp,
}

impl Session {
    pub(super) fn node_id(&self) -> NodeId {
        self.spec.id
    }

    /// Notes that the node's allocations may have changed.
    pub(super) fn mark_allocs_changed(&mut self) {
        self.awake = true;
    }

    pub(super) fn poll_timeout(&self) -> Timestamp {
        self.rescan_at
    }
}

impl Server {
    /// Handles a message from an agent.
    pub(super) fn handle_agent(
        &mut self,
        host: usize,
        number: u64,
        message: FromAgent,
        env: &mut Env,
    ) {
        if let FromAgent::Register { node, known, .. } = message {
            let newest = self.opened.entry(host).or_insert(0);
            if number > *newest {
                *newest = number;
                self.open(host, number, node, known, env);
            }
            return;
        }
        let Some(session) = self.sessions.get_mut(&host).filter(|s| s.number == number) else {
            let (me, to) = (Endpoint::Server(self.at), Endpoint::Host(host));
            env.send(me, to, Message::Reset { session: number });
            return;
        };
        session.last_contact_at = env.now;
        match message {
            FromAgent::Heartbeat { number: beat } => {
                let gathered = ForwardedHeartbeat {
                    node_id: session.node_id(),
                    host,
                    session: number,
                    number: beat,
                };
                let newest = self.gathered.entry(host).or_insert(gathered);
                if (newest.session, newest.number) < (number, beat) {
                    *newest = gathered;
                }
                if env.has_bug(Bug::UncountedHeartbeat) {
                    self.acknowledge_heartbeats(&[gathered], env);
                }
                self.make_ready(host, env);
            }
            // The stream delivers the messages in order. Any other number belongs to a second copy.
            FromAgent::Report { sequence, reports } if sequence == session.sequence + 1 => {
                session.sequence = sequence;
                session.reports.push_back((sequence, reports));
            }
            // Simulated agents have no data on disk to collect.
            FromAgent::Report { .. } | FromAgent::Collected { .. } | FromAgent::Register { .. } => {
            }
        }
    }

    fn open(
        &mut self,
        host: usize,
        number: u64,
        spec: Box<NodeSpec>,
        since: LogIndex,
        env: &mut Env,
    ) {
        let sent = SentDesired {
            node_id: spec.id,
            since,
            known: BTreeMap::new(),
            begun: false,
        };
        let session = Session {
            number,
            spec,
            sent,
            serving: false,
            registering: false,
            reports: VecDeque::new(),
            reporting: false,
            sequence: 0,
            awake: false,
            fresh: false,
            rescan_at: env.now.plus(limits::SESSION_RESCAN),
            last_contact_at: env.now,
        };
        self.sessions.insert(host, session);
        self.register(host, env);
    }

    /// Registers the node if its specification is new, and then makes it ready.
    fn register(&mut self, host: usize, env: &mut Env) {
        let Some(session) = self.sessions.get_mut(&host) else {
            return;
        };
        let known = self.machine.state.nodes().get(&session.node_id());
        if known.is_some_and(|known| *known.spec == *session.spec) {
            self.make_ready(host, env);
            return;
        }
        let command = NodeCommand::Register {
            spec: session.spec.clone(),
        }
        .at(self.wall(env.now));
        self.write_of_session(host, command, env);
    }

    /// Makes the node ready if it is not, and then serves it.
    fn make_ready(&mut self, host: usize, env: &mut Env) {
        let Some(session) = self.sessions.get_mut(&host) else {
            return;
        };
        if session.registering {
            return;
        }
        let node_id = session.node_id();
        let known = self.machine.state.nodes().get(&node_id);
        if known.is_some_and(|known| known.status == NodeStatus::Ready) {
            self.serve(host, env);
            return;
        }
        let command = NodeCommand::SetStatus {
            node_id,
            status: NodeStatus::Ready,
        }
        .at(self.wall(env.now));
        self.write_of_session(host, command, env);
    }

    fn write_of_session(&mut self, host: usize, entry: Entry, env: &mut Env) {
        let Some(session) = self.sessions.get_mut(&host) else {
            return;
        };
        session.registering = true;
        let asker = WriteOrigin::Session {
            host,
            session: session.number,
            what: SessionWrite::Register,
        };
        self.ask(asker, entry, env);
    }

    fn serve(&mut self, host: usize, env: &mut Env) {
        let Some(session) = self.sessions.get_mut(&host) else {
            return;
        };
        if std::mem::replace(&mut session.serving, true) {
            return;
        }
        session.awake = true;
        let session = session.number;
        self.read(Reader::Session { host, session }, env);
        let message = ToAgent::Registered {
            cluster: "sim".to_owned(),
            heartbeat_ttl: limits::HEARTBEAT_TTL,
            servers: Vec::new(),
        };
        self.send_to_agent(host, message, env);
    }

    /// Starts the session if this server's state is fresh, and resets it otherwise.
    ///
    /// The first state sent to the node must not be older than the state that its agent has seen. Otherwise an agent
    /// with a lost store would repeat finished work.
    pub(super) fn handle_session_fresh(
        &mut self,
        host: usize,
        number: u64,
        fresh: bool,
        env: &mut Env,
    ) {
        let Some(session) = self.sessions.get_mut(&host).filter(|s| s.number == number) else {
            return;
        };
        if fresh {
            session.fresh = true;
            session.mark_allocs_changed();
        } else {
            self.reset(host, number, env);
        }
    }

    fn reset(&mut self, host: usize, session: u64, env: &mut Env) {
        self.sessions.remove(&host);
        let (me, to) = (Endpoint::Server(self.at), Endpoint::Host(host));
        env.send(me, to, Message::Reset { session });
    }

    /// Handles the end of a session's write, which is committed, refused, or lost.
    pub(super) fn handle_session_written(
        &mut self,
        host: usize,
        number: u64,
        what: SessionWrite,
        response: Option<Response>,
        env: &mut Env,
    ) {
        let Some(session) = self.sessions.get_mut(&host).filter(|s| s.number == number) else {
            return;
        };
        match what {
            SessionWrite::Register => session.registering = false,
            SessionWrite::Reports { .. } => session.reporting = false,
        }
        match (what, response) {
            (_, None | Some(Response::Rejected(_))) => {
                self.reset(host, number, env);
            }
            (SessionWrite::Register, Some(_)) => self.make_ready(host, env),
            (SessionWrite::Reports { sequence }, Some(_)) => {
                self.send_to_agent(host, ToAgent::ReportAck { sequence }, env);
            }
        }
    }

    /// Writes the agents' reports, and sends changes to the nodes.
    pub(super) fn advance_sessions(&mut self, env: &mut Env) {
        let now = env.now;
        self.sessions
            .retain(|_, session| now.since(session.last_contact_at) < 2 * limits::SESSION_DEADLINE);
        let hosts: BTreeSet<usize> = self.sessions.keys().copied().collect();
        for host in hosts {
            self.write_reports(host, env);
            self.push(host, env);
        }
    }

    fn write_reports(&mut self, host: usize, env: &mut Env) {
        let at = self.wall(env.now);
        let Some(session) = self.sessions.get_mut(&host) else {
            return;
        };
        if session.reporting || session.reports.is_empty() || !session.serving {
            return;
        }
        session.reporting = true;
        let mut newest: BTreeMap<AllocId, AllocReport> = BTreeMap::new();
        let mut last = 0;
        for (sequence, reports) in session.reports.drain(..) {
            last = last.max(sequence);
            newest.extend(reports.into_iter().map(|report| (report.alloc_id, report)));
        }
        let reports = newest.into_values().collect();
        let command = AllocCommand::Report {
            reports: vec![(session.node_id(), reports)],
        }
        .at(at);
        let asker = WriteOrigin::Session {
            host,
            session: session.number,
            what: SessionWrite::Reports { sequence: last },
        };
        self.ask(asker, command, env);
    }

    fn push(&mut self, host: usize, env: &mut Env) {
        let Some(session) = self.sessions.get_mut(&host) else {
            return;
        };
        let rescan = session.rescan_at <= env.now;
        if rescan {
            session.rescan_at = env.now.plus(limits::SESSION_RESCAN);
        }
        if !session.serving || !session.fresh || !(rescan || session.awake) {
            return;
        }
        session.awake = false;
        for message in session.sent.catch_up(&self.machine.state) {
            self.send_to_agent(host, message, env);
        }
    }

    fn send_to_agent(&self, host: usize, message: ToAgent, env: &mut Env) {
        let Some(session) = self.sessions.get(&host) else {
            return;
        };
        let message = Message::ToAgent {
            session: session.number,
            message: Box::new(message),
        };
        env.send(Endpoint::Server(self.at), Endpoint::Host(host), message);
    }

    /// Sends the gathered heartbeats to the leader.
    pub(super) fn forward_heartbeats(&mut self, env: &mut Env) {
        let Some(leader) = self.raft.leader().filter(|_| !self.gathered.is_empty()) else {
            return;
        };
        let beats: Vec<ForwardedHeartbeat> =
            std::mem::take(&mut self.gathered).into_values().collect();
        if leader == self.at {
            self.count_heartbeats(leader, beats, env);
        } else {
            let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(leader));
            env.send(me, to, Message::Beats(beats));
        }
    }

    /// Counts heartbeats that came through `server`, if this server leads. They are acknowledged after a quorum has
    /// confirmed the leadership, because a deposed leader must grant no lease.
    pub(super) fn count_heartbeats(
        &mut self,
        server: usize,
        mut beats: Vec<ForwardedHeartbeat>,
        env: &mut Env,
    ) {
        let Some(duties) = &mut self.duties else {
            return;
        };
        beats.retain(|beat| duties.handle_beat(beat.node_id, env.now));
        self.read(Reader::Beats { server, beats }, env);
    }

    /// Acknowledges counted heartbeats after a quorum has confirmed the leader.
    pub(super) fn confirm_heartbeats(
        &self,
        server: usize,
        beats: &[ForwardedHeartbeat],
        env: &mut Env,
    ) {
        if server == self.at {
            self.acknowledge_heartbeats(beats, env);
        } else {
            let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(server));
            env.send(me, to, Message::BeatsCounted(beats.to_vec()));
        }
    }

    /// Sends acknowledgements of counted heartbeats to the agents.
    pub(super) fn acknowledge_heartbeats(&self, beats: &[ForwardedHeartbeat], env: &mut Env) {
        for beat in beats {
            let current = self.sessions.get(&beat.host).map(|session| session.number);
            if current == Some(beat.session) {
                let message = ToAgent::HeartbeatAck {
                    number: beat.number,
                    lease: limits::HEARTBEAT_TTL,
                };
                self.send_to_agent(beat.host, message, env);
            }
        }
    }
}
