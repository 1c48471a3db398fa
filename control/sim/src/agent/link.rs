//! The agent's link. It holds one session with one server, and connects to the next server when that session ends.

use std::collections::VecDeque;
use std::time::Duration;

use muster_agent_core::node::DesiredUpdate;
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::node::NodeSecret;
use muster_wire::rpc::{FromAgent, ToAgent};

use crate::env::{Env, ms};
use crate::host::Host;
use crate::limits;
use crate::message::{Endpoint, Message};

/// The stage of the link.
#[derive(Debug)]
enum Stage {
    /// The link has no session. The next connection attempt is at `at`.
    Idle {
        at: Timestamp,
    },
    Opening {
        session: u64,
        until: Timestamp,
    },
    /// The session is established.
    Live(LiveSession),
}

/// An established session.
#[derive(Debug)]
struct LiveSession {
    session: u64,
    /// The deadline of the next heartbeat acknowledgement. It says that the leader has counted the node.
    until: Timestamp,
    beat_at: Timestamp,
    beats: u64,
    /// The number and send time of each heartbeat that is not acknowledged.
    sent: VecDeque<(u64, Timestamp)>,
    sequence: u64,
    report_at: Option<Timestamp>,
}

/// The connection of an agent to one server at a time.
#[derive(Debug)]
pub(super) struct Link {
    server: usize,
    pause_ms: u64,
    stage: Stage,
}

impl Link {
    /// Schedules the first connection attempt, to a server that the seed selects.
    pub(super) fn begin(env: &mut Env) -> Self {
        let server = env.rng.below(env.oracle.servers());
        let at = env.now.plus(env.rng.millis(0, 1_000));
        Self {
            server,
            pause_ms: limits::RECONNECT_PAUSE_MIN_MS,
            stage: Stage::Idle { at },
        }
    }

    /// Whether a session with a server is established.
    pub(super) fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Live(_))
    }

    /// Schedules a report message, because a report is pending.
    pub(super) fn schedule_report(&mut self, now: Timestamp) {
        if let Stage::Live(live) = &mut self.stage {
            live.report_at.get_or_insert(now.plus(limits::REPORT_DELAY));
        }
    }

    /// Ends the session. The next session asks the next server for the complete desired state.
    pub(super) fn restart_session(&mut self, env: &mut Env) {
        let pause = env.rng.millis(self.pause_ms / 2, self.pause_ms);
        self.pause_ms = (self.pause_ms * 2).min(limits::RECONNECT_PAUSE_MAX_MS);
        self.server += 1;
        self.stage = Stage::Idle {
            at: env.now.plus(pause),
        };
    }

    fn session(&self) -> Option<u64> {
        match &self.stage {
            Stage::Idle { .. } => None,
            Stage::Opening { session, .. } => Some(*session),
            Stage::Live(live) => Some(live.session),
        }
    }

    pub(super) fn poll_timeout(&self) -> Timestamp {
        match &self.stage {
            Stage::Idle { at } => *at,
            Stage::Opening { until, .. } => *until,
            Stage::Live(live) => live
                .report_at
                .into_iter()
                .fold(live.until.min(live.beat_at), Timestamp::min),
        }
    }
}

impl Host {
    fn send_to_server(&self, session: u64, message: FromAgent, env: &mut Env) {
        let Some(agent) = &self.agent else {
            return;
        };
        let server = agent.link.server % env.oracle.servers();
        let message = Message::FromAgent {
            session,
            message: Box::new(message),
        };
        env.send(Endpoint::Host(self.at), Endpoint::Server(server), message);
    }

    /// Does the work of the link that is due.
    pub(super) fn advance_link(&mut self, env: &mut Env) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        let now = env.now;
        match &mut agent.link.stage {
            Stage::Idle { at } if *at <= now => self.open(env),
            Stage::Opening { until, .. } if *until <= now => agent.link.restart_session(env),
            Stage::Live(live) if live.until <= now => agent.link.restart_session(env),
            Stage::Live(live) => {
                let session = live.session;
                let beats = live.beat_at <= now;
                let reports = live.report_at.is_some_and(|at| at <= now);
                if beats {
                    live.beats += 1;
                    live.beat_at = now.plus(limits::HEARTBEAT_TTL / 3);
                    live.sent.push_back((live.beats, now));
                    let number = live.beats;
                    self.send_to_server(session, FromAgent::Heartbeat { number }, env);
                }
                if reports {
                    self.report(session, env);
                }
            }
            Stage::Idle { .. } | Stage::Opening { .. } => {}
        }
    }

    fn report(&mut self, session: u64, env: &mut Env) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        let Stage::Live(live) = &mut agent.link.stage else {
            return;
        };
        live.report_at = None;
        let sequence = live.sequence + 1;
        let reports = agent.outbox.batch(sequence);
        if !reports.is_empty() {
            live.sequence = sequence;
            self.send_to_server(session, FromAgent::Report { sequence, reports }, env);
        }
    }

    fn open(&mut self, env: &mut Env) {
        self.sessions += 1;
        let session = self.sessions;
        let Some(agent) = &mut self.agent else {
            return;
        };
        agent.link.stage = Stage::Opening {
            session,
            until: env.now.plus(limits::SESSION_DEADLINE),
        };
        agent.desired.begin_session();
        agent.whole = false;
        let known = agent.desired.index();
        let node = Box::new(self.spec.clone());
        let register = FromAgent::Register {
            node,
            secret: NodeSecret::default(),
            known,
        };
        self.send_to_server(session, register, env);
    }

    /// Handles a message from a server.
    pub fn handle_message(&mut self, from: Endpoint, message: Message, env: &mut Env) {
        let current = self.agent.as_ref().and_then(|agent| agent.link.session());
        match message {
            Message::ToAgent { session, message } if current == Some(session) => {
                self.handle_server(*message, env);
            }
            Message::Reset { session } if current == Some(session) => {
                if let Some(agent) = &mut self.agent {
                    agent.link.restart_session(env);
                }
            }
            Message::ToAgent { .. } | Message::Reset { .. } => {}
            message => env
                .oracle
                .fault(&format!("{from:?} sent an agent {message:?}")),
        }
    }

    fn handle_server(&mut self, message: ToAgent, env: &mut Env) {
        match message {
            ToAgent::Registered { .. } => self.registered(env),
            ToAgent::HeartbeatAck { number, lease } => self.counted(number, lease, env),
            ToAgent::ReportAck { sequence } => {
                if let Some(agent) = &mut self.agent {
                    agent.outbox.ack(sequence);
                }
                self.record_ended_allocs();
                if env.rng.chance(5) {
                    self.destroy_all_over(env);
                }
            }
            ToAgent::Desired {
                index,
                allocs,
                unchanged,
                gone,
                complete,
                // The simulated tasks use no data of remote allocations.
                remote: _,
            } => {
                let desired_update = DesiredUpdate {
                    index,
                    allocs,
                    unchanged,
                    gone,
                    complete,
                };
                self.handle_desired_update(desired_update, env);
            }
            ToAgent::Refused { .. } | ToAgent::TryElsewhere { .. } => {
                if let Some(agent) = &mut self.agent {
                    agent.link.restart_session(env);
                }
            }
            ToAgent::CollectGarbage
            | ToAgent::Servers { .. }
            | ToAgent::ClusterPolicy { .. }
            | ToAgent::Apis { .. } => {}
        }
    }

    fn registered(&mut self, env: &mut Env) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        let Stage::Opening { session, .. } = agent.link.stage else {
            return;
        };
        agent.link.pause_ms = limits::RECONNECT_PAUSE_MIN_MS;
        agent.outbox.begin_session();
        let pending = agent.outbox.has_pending();
        agent.link.stage = Stage::Live(LiveSession {
            session,
            until: env.now.plus(limits::SESSION_DEADLINE),
            beat_at: env.now.plus(ms(1)),
            beats: 0,
            sent: VecDeque::new(),
            sequence: 0,
            report_at: pending.then_some(env.now),
        });
    }

    /// Handles a heartbeat that the leader has counted. The lease of the node runs from the time at which that
    /// heartbeat was sent.
    fn counted(&mut self, number: u64, lease: Duration, env: &mut Env) {
        let Some(agent) = &mut self.agent else {
            return;
        };
        let Stage::Live(live) = &mut agent.link.stage else {
            return;
        };
        live.until = env.now.plus(limits::SESSION_DEADLINE);
        while let Some((sent, at)) = live.sent.front().copied().filter(|(n, _)| *n <= number) {
            live.sent.pop_front();
            if sent == number {
                self.lease_until = self.lease_until.max(at.plus(lease));
            }
        }
    }

    /// Returns the log index up to which the agent knows the desired state.
    #[must_use]
    pub fn known_index(&self) -> LogIndex {
        let agent = self.agent.as_ref();
        agent.map_or(LogIndex(0), |agent| agent.desired.index())
    }
}
