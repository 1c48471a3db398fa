//! Garbage collections that users request, and the removal of a purged job's remains.
//!
//! The leader collects; other servers forward the request to it. The requests have no write key. A client without an
//! answer asks again, and the second collection frees nothing more.

use muster_control_core::fsm::{Command, Entry, JobCommand, Response};
use muster_control_core::gc::Collector;
use muster_domain::id::Timestamp;

use super::waiter::Waiter;
use super::{Server, WriteOrigin};
use crate::duties::Duties;
use crate::env::Env;
use crate::limits;
use crate::message::{Answer, Endpoint, Message};

/// A client's request for a collection that was forwarded to the leader.
#[derive(Debug)]
pub(super) struct ForwardedRequest {
    client: usize,
    request: u64,
    until: Timestamp,
}

impl ForwardedRequest {
    pub(super) fn poll_timeout(&self) -> Timestamp {
        self.until
    }
}

impl Server {
    /// Handles a client's request to collect all finished objects.
    pub(super) fn handle_collect_request(&mut self, client: usize, request: u64, env: &mut Env) {
        if self.duties.is_some() {
            self.force(Waiter::Client { client, request }, env);
            return;
        }
        let Some(leader) = self.raft.leader().filter(|leader| *leader != self.at) else {
            self.send_answer(client, request, Answer::Unavailable, env);
            return;
        };
        let id = self.next_number();
        let until = env.now.plus(limits::COLLECT_WAIT);
        let passed = ForwardedRequest {
            client,
            request,
            until,
        };
        self.passed.insert(id, passed);
        let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(leader));
        env.send(me, to, Message::Collect { request: id });
    }

    /// Handles a collection request that another server forwarded. A server that does not lead sends no answer, so
    /// the request times out.
    pub(super) fn handle_collect(&mut self, from: usize, request: u64, env: &mut Env) {
        let server = from;
        self.force(Waiter::Server { server, request }, env);
    }

    fn force(&mut self, waiter: Waiter, env: &mut Env) {
        let at = self.wall(env.now);
        if let Some(duties) = &mut self.duties {
            env.trace_line(format_args!("server {} collects by force", self.at));
            duties.force(waiter, at);
        }
    }

    /// Handles the leader's answer that a forwarded collection is over.
    pub(super) fn handle_collected(&mut self, request: u64, env: &mut Env) {
        if let Some(passed) = self.passed.remove(&request) {
            self.send_answer(passed.client, passed.request, Answer::Collected, env);
        }
    }

    /// Answers the callers whose collections are over, and the callers that have waited too long.
    pub(super) fn advance_collections(&mut self, env: &mut Env) {
        let over = self.duties.as_mut().map(Duties::take_collected);
        for waiter in over.into_iter().flatten() {
            match waiter {
                Waiter::Client { client, request } => {
                    self.send_answer(client, request, Answer::Collected, env);
                }
                Waiter::Server { server, request } => {
                    let (me, to) = (Endpoint::Server(self.at), Endpoint::Server(server));
                    env.send(me, to, Message::CollectDone { request });
                }
            }
        }
        let late = self
            .passed
            .extract_if(.., |_, passed| passed.until <= env.now);
        for (_, passed) in late.collect::<Vec<_>>() {
            self.send_answer(passed.client, passed.request, Answer::Unavailable, env);
        }
    }

    /// Collects the finished objects of a purged job at once, slice after slice.
    pub(super) fn forget_below(&mut self, entry: &Entry, response: &Response, env: &mut Env) {
        if matches!(response, Response::Rejected(_)) {
            return;
        }
        let at = self.wall(env.now);
        let next = match &entry.command {
            Command::Keyed { command, .. } => match command.command() {
                Command::Job(JobCommand::Purge { key }) => {
                    Some(Collector::below(key.clone(), entry.at))
                }
                _ => None,
            },
            _ => Collector::next_slice(entry, response, at),
        };
        if let Some(next) = next {
            self.ask(WriteOrigin::Purge, next, env);
        }
    }
}
