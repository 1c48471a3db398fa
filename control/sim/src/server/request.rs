//! Requests under way: writes to the leader's log, and linearizable reads.

use muster_control_core::fsm::{
    Command, DeploymentCommand, Entry, JobCommand, NewOneOff, NodeCommand, OneOffCommand, Response,
};
use muster_control_core::scheduler::Scheduler;
use muster_domain::id::{LogIndex, Timestamp};

use super::{Origin, Server};
use crate::bug::Bug;
use crate::duties::Duties;
use crate::env::{Env, ms};
use crate::limits;
use crate::message::{Answer, Ask, ClientRequest, Endpoint, ForwardedHeartbeat, Message};

/// The origin of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    Client {
        client: usize,
        /// The client's number of the request.
        request: u64,
    },
    Session {
        host: usize,
        session: u64,
        /// The purpose of the write.
        what: SessionWrite,
    },
    /// This server, which collects the remains of a purged job.
    Purge,
}

/// A kind of write by a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionWrite {
    /// The registration of the node, or its change to ready.
    Register,
    /// Reports up to the message with this sequence number.
    Reports { sequence: u64 },
}

/// The progress of a write.
#[derive(Debug)]
enum Stage {
    /// No leader is known; the request is tried again at `at`.
    Waiting { at: Timestamp },
    /// The entry is in this server's own log.
    Logged,
    /// The request is on its way to the leader.
    Forwarded { until: Timestamp },
    /// The entry is committed, but this server has not applied it yet.
    Applying { index: u64, response: Response },
}

/// A write under way.
#[derive(Debug)]
pub(super) struct Request {
    asker: WriteOrigin,
    entry: Entry,
    until: Timestamp,
    stage: Stage,
}

impl Request {
    pub(super) fn poll_timeout(&self) -> Timestamp {
        match self.stage {
            Stage::Waiting { at } => at.min(self.until),
            Stage::Forwarded { until } => until.min(self.until),
            Stage::Logged | Stage::Applying { .. } => self.until,
        }
    }
}

/// The origin of a read.
#[derive(Clone, Debug)]
pub(super) enum Reader {
    Client {
        client: usize,
        request: u64,
    },
    Server {
        server: usize,
        read: u64,
    },
    /// A session, before it sends the first desired state to its node.
    Session {
        host: usize,
        session: u64,
    },
    /// Heartbeats that this leader counted and may acknowledge after the read.
    Beats {
        server: usize,
        beats: Vec<ForwardedHeartbeat>,
    },
}

impl Reader {
    /// Whether only the leader itself may answer.
    fn is_of_leader(&self) -> bool {
        match self {
            Self::Server { .. } | Self::Beats { .. } => true,
            Self::Client { .. } | Self::Session { .. } => false,
        }
    }
}

#[derive(Debug)]
enum ReadStage {
    Waiting { at: Timestamp },
    Asked,
    Confirming { index: u64, round: u64 },
    Applying { index: u64 },
}

/// A read under way.
#[derive(Debug)]
pub(super) struct Read {
    reader: Reader,
    until: Timestamp,
    stage: ReadStage,
}

impl Read {
    pub(super) fn poll_timeout(&self) -> Timestamp {
        match self.stage {
            ReadStage::Waiting { at } => at.min(self.until),
            ReadStage::Asked | ReadStage::Confirming { .. } | ReadStage::Applying { .. } => {
                self.until
            }
        }
    }
}

impl Server {
    /// Handles a request of a client.
    pub(super) fn handle_ask(&mut self, client: usize, request: u64, ask: Ask, env: &mut Env) {
        match ask {
            Ask::Write { key, wish } => {
                let command = self
                    .placed(command(wish, self.wall(env.now)), env)
                    .keyed(key);
                self.ask(WriteOrigin::Client { client, request }, command, env);
            }
            Ask::ReadLinearizable => self.read(Reader::Client { client, request }, env),
            Ask::Collect => self.handle_collect_request(client, request, env),
        }
    }

    /// Adds places to a new job or to new one-off tasks, if this server leads and no evaluation waits.
    fn placed(&self, entry: Entry, env: &Env) -> Entry {
        if !self.duties.as_ref().is_some_and(Duties::finds_places) {
            return entry;
        }
        let Entry { at, command } = entry;
        let state = &self.machine.state;
        let mut scheduler = Scheduler::default();
        match command {
            Command::OneOff(OneOffCommand::Desire { tasks, seen: _ }) => {
                let tasks: Vec<NewOneOff> = tasks.into_iter().map(|(task, _)| task).collect();
                let places = scheduler.place_new(state, &tasks, env.now);
                OneOffCommand::Desire {
                    tasks: tasks.into_iter().zip(places).collect(),
                    seen: state.applied(),
                }
                .at(at)
            }
            Command::Job(JobCommand::Register {
                spec,
                check_index,
                places: _,
            }) => {
                let places = scheduler.place_job(state, &spec, env.now).map(Box::new);
                JobCommand::Register {
                    spec,
                    places,
                    check_index,
                }
                .at(at)
            }
            command => Entry { at, command },
        }
    }

    /// Begins a write.
    pub(super) fn ask(&mut self, asker: WriteOrigin, entry: Entry, env: &mut Env) {
        let id = self.next_number();
        let request = Request {
            asker,
            entry,
            until: env.now.plus(limits::REQUEST_WAIT),
            stage: Stage::Waiting { at: env.now },
        };
        self.requests.insert(id, request);
    }

    /// Proposes a write that another server forwarded to this leader.
    pub(super) fn handle_forward(
        &mut self,
        from: usize,
        request: u64,
        entry: Entry,
        env: &mut Env,
    ) {
        match self.raft.propose(entry, env) {
            Some(at) => {
                let server = from;
                let origin = Origin::Server { server, request };
                self.proposals.insert(at.index, (at.term, origin));
            }
            None => {
                let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(from));
                let result = None;
                env.send(me, to, Message::Forwarded { request, result });
            }
        }
    }

    /// Handles the result of a proposal: the write is committed, or it was never written.
    pub(super) fn handle_forwarded(
        &mut self,
        request: u64,
        result: Option<(u64, Response)>,
        env: &mut Env,
    ) {
        if let Some(request) = self.requests.get_mut(&request) {
            request.stage = match result {
                Some((index, response)) => Stage::Applying { index, response },
                None => Stage::Waiting {
                    at: env.now.plus(ms(limits::REQUEST_PAUSE_MS)),
                },
            };
        }
    }

    /// Advances every write as far as possible.
    pub(super) fn advance_requests(&mut self, env: &mut Env) {
        let ids: Vec<u64> = self.requests.keys().copied().collect();
        for id in ids {
            let Some(mut request) = self.requests.remove(&id) else {
                continue;
            };
            if let Stage::Applying { index, response } = &request.stage
                && *index <= self.applied
            {
                let result = Some((LogIndex(*index), response.clone()));
                self.forget_below(&request.entry, response, env);
                self.finish(request.asker, result, env);
                continue;
            }
            if request.until <= env.now {
                self.finish(request.asker, None, env);
                continue;
            }
            self.advance_request(id, &mut request, env);
            self.requests.insert(id, request);
        }
    }

    fn advance_request(&mut self, id: u64, request: &mut Request, env: &mut Env) {
        let is_client = matches!(request.asker, WriteOrigin::Client { .. });
        match request.stage {
            Stage::Waiting { at } if at <= env.now => {
                request.stage = self.begin_write(id, &request.entry, env);
            }
            // A client decides itself whether to repeat a request. Writes of agents may be repeated.
            Stage::Forwarded { until } if until <= env.now && is_client => {
                request.until = env.now;
            }
            Stage::Forwarded { until } if until <= env.now => {
                request.stage = Stage::Waiting { at: env.now };
            }
            Stage::Waiting { .. }
            | Stage::Forwarded { .. }
            | Stage::Logged
            | Stage::Applying { .. } => {}
        }
    }

    fn begin_write(&mut self, id: u64, entry: &Entry, env: &mut Env) -> Stage {
        if let Some(at) = self.raft.propose(entry.clone(), env) {
            let origin = Origin::Request(id);
            self.proposals.insert(at.index, (at.term, origin));
            return Stage::Logged;
        }
        match self.raft.leader().filter(|leader| *leader != self.at) {
            Some(leader) => {
                let message = Message::Forward {
                    request: id,
                    command: Box::new(entry.clone()),
                };
                env.send(Endpoint::Server(self.at), Endpoint::Server(leader), message);
                let until = env.now.plus(limits::FORWARD_WAIT);
                Stage::Forwarded { until }
            }
            None => Stage::Waiting {
                at: env.now.plus(ms(limits::REQUEST_PAUSE_MS)),
            },
        }
    }

    fn finish(&mut self, asker: WriteOrigin, result: Option<(LogIndex, Response)>, env: &mut Env) {
        match asker {
            WriteOrigin::Client { client, request } => {
                let answer = match result {
                    Some((index, response)) => Answer::Written { index, response },
                    None => Answer::Unavailable,
                };
                self.send_answer(client, request, answer, env);
            }
            WriteOrigin::Session {
                host,
                session,
                what,
            } => {
                let response = result.map(|(_, response)| response);
                self.handle_session_written(host, session, what, response, env);
            }
            // The next collection removes the remaining objects.
            WriteOrigin::Purge => {}
        }
    }

    pub(super) fn send_answer(&self, client: usize, request: u64, answer: Answer, env: &mut Env) {
        let (me, to) = (Endpoint::Server(self.at), Endpoint::Client(client));
        env.send(me, to, Message::Answer { request, answer });
    }

    /// Handles another server's request for the index that a linearizable read must have seen.
    pub(super) fn handle_read_index(&mut self, from: usize, read: u64, env: &mut Env) {
        self.read(Reader::Server { server: from, read }, env);
    }

    /// Begins a read.
    pub(super) fn read(&mut self, reader: Reader, env: &mut Env) {
        let id = self.next_number();
        let wait = if reader.is_of_leader() {
            limits::FORWARD_WAIT
        } else {
            limits::REQUEST_WAIT
        };
        let read = Read {
            reader,
            until: env.now.plus(wait),
            stage: ReadStage::Waiting { at: env.now },
        };
        self.reads.insert(id, read);
    }

    /// Handles the leader's answer to a `ReadIndex`.
    pub(super) fn handle_read_index_is(&mut self, read: u64, index: Option<u64>, env: &mut Env) {
        if let Some(read) = self.reads.get_mut(&read) {
            read.stage = match index {
                Some(index) => ReadStage::Applying { index },
                None => ReadStage::Waiting {
                    at: env.now.plus(ms(limits::REQUEST_PAUSE_MS)),
                },
            };
        }
    }

    /// Advances every read as far as possible.
    pub(super) fn advance_reads(&mut self, env: &mut Env) {
        let ids: Vec<u64> = self.reads.keys().copied().collect();
        for id in ids {
            let Some(mut read) = self.reads.remove(&id) else {
                continue;
            };
            if let ReadStage::Waiting { at } = read.stage
                && at <= env.now
            {
                read.stage = self.begin_read(id, read.reader.is_of_leader(), env);
            }
            if let ReadStage::Confirming { index, round } = read.stage {
                let confirmed = self.raft.confirmed_round();
                let own_word = env.has_bug(Bug::StaleRead) && confirmed.is_some();
                if own_word || confirmed.is_some_and(|confirmed| confirmed >= round) {
                    read.stage = ReadStage::Applying { index };
                } else if confirmed.is_none() {
                    read.stage = ReadStage::Waiting {
                        at: env.now.plus(ms(limits::REQUEST_PAUSE_MS)),
                    };
                }
            }
            if !self.answer_read(&read, env) {
                self.reads.insert(id, read);
            }
        }
    }

    fn begin_read(&mut self, id: u64, of_leader: bool, env: &mut Env) -> ReadStage {
        if let Some((index, round)) = self.raft.begin_read(env) {
            return ReadStage::Confirming { index, round };
        }
        match self.raft.leader().filter(|leader| *leader != self.at) {
            Some(leader) if !of_leader => {
                let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(leader));
                env.send(me, to, Message::ReadIndex { read: id });
                ReadStage::Asked
            }
            Some(_) | None => ReadStage::Waiting {
                at: env.now.plus(ms(limits::REQUEST_PAUSE_MS)),
            },
        }
    }

    /// Answers a read if its result is known or its time is over. Returns whether the read is over.
    fn answer_read(&mut self, read: &Read, env: &mut Env) -> bool {
        let confirmed = match read.stage {
            ReadStage::Applying { index } => Some(index),
            ReadStage::Waiting { .. } | ReadStage::Asked | ReadStage::Confirming { .. } => None,
        };
        let seen = confirmed.is_some_and(|index| index <= self.applied);
        let late = read.until <= env.now;
        match &read.reader {
            Reader::Server { server, read } if confirmed.is_some() || late => {
                let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(*server));
                let message = Message::ReadIndexIs {
                    read: *read,
                    index: confirmed,
                };
                env.send(me, to, message);
            }
            Reader::Client { client, request } if seen || late => {
                let index = self.applied;
                let answer = if seen {
                    let active = self.machine.state.deployments().active();
                    let deployments = active.map(|row| row.id).collect();
                    Answer::Read { index, deployments }
                } else {
                    Answer::Unavailable
                };
                self.send_answer(*client, *request, answer, env);
            }
            Reader::Session { host, session } if seen || late => {
                self.handle_session_fresh(*host, *session, seen, env);
            }
            Reader::Beats { server, beats } if confirmed.is_some() => {
                self.confirm_heartbeats(*server, beats, env);
            }
            Reader::Beats { .. } if late => {}
            Reader::Server { .. }
            | Reader::Client { .. }
            | Reader::Session { .. }
            | Reader::Beats { .. } => return false,
        }
        true
    }
}

fn command(wish: ClientRequest, at: Timestamp) -> Entry {
    match wish {
        ClientRequest::Register(spec) => JobCommand::Register {
            spec,
            check_index: None,
            places: None,
        }
        .at(at),
        ClientRequest::Deregister { key, purge: true } => JobCommand::Purge { key }.at(at),
        ClientRequest::Deregister { key, purge: false } => JobCommand::Deregister { key }.at(at),
        ClientRequest::Evaluate(key) => JobCommand::Evaluate {
            key,
            force_reschedule: false,
        }
        .at(at),
        ClientRequest::Deployment(id, change) => DeploymentCommand::Change { id, change }.at(at),
        ClientRequest::SetEligibility {
            node_id,
            eligibility,
        } => NodeCommand::SetEligibility {
            node_id,
            eligibility,
        }
        .at(at),
        ClientRequest::Desire(task) => Entry::desire_one_offs(vec![*task], at),
        ClientRequest::Task(change) => OneOffCommand::Change {
            changes: vec![change],
        }
        .at(at),
    }
}
