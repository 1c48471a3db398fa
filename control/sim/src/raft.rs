//! A compact model of the consensus: terms, votes, log matching, quorum, and data on disk.
//!
//! The model gives the guarantees of Raft by the same means. They are pre-votes, a leader that steps down without a
//! quorum, and commits of its own term only. They are also snapshots for followers that are far behind, and read
//! indexes confirmed by a round of heartbeats. A reply that promises durability is sent only after the sync.
//!
//! Deliberately absent: change of membership.

mod election;
mod replication;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use muster_control_core::fsm;
use muster_domain::id::Timestamp;

use crate::disk::{Disk, Image, Op};
use crate::env::{Env, Event};
use crate::limits;
use crate::log::{Entry, Payload, Position};
use crate::machine::Snapshot;
use crate::message::{Endpoint, Message, RaftMessage};

/// The role of a server in its term.
#[derive(Debug)]
enum Role {
    Follower,
    /// A pre-vote is under way. The set holds the servers that would vote for this one.
    Asking(BTreeSet<usize>),
    Candidate(BTreeSet<usize>),
    Leader(LeaderState),
}

/// A leader's knowledge of the other servers.
#[derive(Debug)]
struct LeaderState {
    /// The index of the blank entry that began the term.
    first: u64,
    next: Vec<u64>,
    matched: Vec<u64>,
    answered: Vec<u64>,
    last_contact_at: Vec<Timestamp>,
    round: u64,
    beat_at: Timestamp,
}

/// An action that waits for a write to be synced.
#[derive(Debug)]
enum SyncAction {
    Send(usize, RaftMessage),
    OwnVote(u64),
}

/// One server's part of the consensus.
#[derive(Debug)]
pub struct Raft {
    me: usize,
    servers: usize,
    life: u64,
    image: Image,
    pub disk: Disk,
    role: Role,
    leader: Option<usize>,
    commit: u64,
    election_at: Timestamp,
    last_contact_at: Timestamp,
    waiting: VecDeque<(u64, SyncAction)>,
    /// A snapshot that came from the leader or the disk. The state machine must be restored from it.
    pub installed: Option<Arc<Snapshot>>,
}

impl Raft {
    /// Starts a server's consensus from its disk. `life` counts the server's starts.
    #[must_use]
    pub fn start(me: usize, servers: usize, life: u64, disk: Disk, env: &mut Env) -> Self {
        let image = disk.durable().clone();
        let commit = image
            .snapshot
            .as_ref()
            .map_or(0, |snapshot| snapshot.at.index);
        let mut raft = Self {
            me,
            servers,
            life,
            image,
            disk,
            role: Role::Follower,
            leader: None,
            commit,
            election_at: env.now,
            last_contact_at: Timestamp(0),
            waiting: VecDeque::new(),
            installed: None,
        };
        raft.expect_leader(env);
        raft
    }

    /// The server's term.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.image.term
    }

    /// Whether this server considers itself the leader.
    #[must_use]
    pub fn leads(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    /// The leader, as far as this server knows.
    #[must_use]
    pub fn leader(&self) -> Option<usize> {
        self.leader
    }

    /// Returns the index of the last entry that this server knows to be committed.
    #[must_use]
    pub fn commit(&self) -> u64 {
        self.commit
    }

    /// Returns the index of the entry that began the leader's term. Returns `None` if this server does not lead.
    #[must_use]
    pub fn first_of_term(&self) -> Option<u64> {
        match &self.role {
            Role::Leader(leading) => Some(leading.first),
            Role::Follower | Role::Asking(_) | Role::Candidate(_) => None,
        }
    }

    /// Returns the state of all writes, synced or not.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Returns the time at which the next work is due.
    #[must_use]
    pub fn poll_timeout(&self) -> Timestamp {
        match &self.role {
            Role::Leader(leading) => leading.beat_at,
            Role::Follower | Role::Asking(_) | Role::Candidate(_) => self.election_at,
        }
    }

    /// Writes `entry` to the log if this server leads. Returns the position of the entry.
    pub fn propose(&mut self, entry: fsm::Entry, env: &mut Env) -> Option<Position> {
        // A leader whose disk is full accepts no entries.
        if !self.leads() || self.disk.full {
            return None;
        }
        let at = self.append(Payload::Command(Box::new(entry)), env);
        self.replicate_all(env);
        Some(at)
    }

    /// Replaces the applied entries of the log by a snapshot, except the newest ones.
    pub fn compact(&mut self, snapshot: Snapshot, env: &mut Env) {
        let index = snapshot.at.index.saturating_sub(limits::LOG_KEPT);
        let term = self.image.log.term_at(index);
        let base = term.map_or(self.image.log.base(), |term| Position { term, index });
        let snapshot = Arc::new(snapshot);
        self.write(Op::Snapshot { snapshot, base }, env);
    }

    /// Does the work that is due at the current time.
    pub fn handle_timeout(&mut self, env: &mut Env) {
        match &mut self.role {
            Role::Leader(leading) if leading.beat_at <= env.now => {
                leading.beat_at = env.now.plus(limits::RAFT_HEARTBEAT);
                if self.has_quorum(env.now) && !self.disk.full {
                    self.replicate_all(env);
                } else {
                    env.trace_line(format_args!(
                        "server {} steps down: no quorum, or no room",
                        self.me
                    ));
                    self.role = Role::Follower;
                    self.leader = None;
                    self.expect_leader(env);
                }
            }
            Role::Follower | Role::Asking(_) | Role::Candidate(_)
                if self.election_at <= env.now =>
            {
                self.start_pre_vote(env);
            }
            Role::Leader(_) | Role::Follower | Role::Asking(_) | Role::Candidate(_) => {}
        }
    }

    /// Handles a message from another server.
    pub fn handle_message(&mut self, from: usize, message: RaftMessage, env: &mut Env) {
        match message {
            RaftMessage::PreVote { term, last } => self.handle_pre_vote(from, term, last, env),
            RaftMessage::PreVoteReply { term, granted } => {
                self.handle_pre_vote_reply(from, term, granted, env);
            }
            RaftMessage::Vote { term, last } => self.handle_vote(from, term, last, env),
            RaftMessage::VoteReply { term, granted } => {
                self.handle_vote_reply(from, term, granted, env);
            }
            RaftMessage::Append {
                term,
                prev,
                entries,
                commit,
                round,
            } => self.handle_append(from, (term, round), prev, &entries, commit, env),
            RaftMessage::Install {
                term,
                snapshot,
                round,
            } => self.handle_install(from, (term, round), &snapshot, env),
            RaftMessage::AppendReply {
                term,
                round,
                matched,
            } => self.handle_reply(from, term, round, matched, env),
        }
    }

    /// Handles the end of a sync that includes all writes up to `upto`.
    pub fn handle_synced(&mut self, upto: u64, env: &mut Env) {
        self.disk.handle_synced(upto);
        self.disk.syncing = false;
        while let Some((op, _)) = self.waiting.front()
            && *op <= self.disk.synced()
            && let Some((_, after)) = self.waiting.pop_front()
        {
            match after {
                SyncAction::Send(to, message) => self.send(to, message, env),
                SyncAction::OwnVote(term) => self.count_vote(self.me, term, env),
            }
        }
        self.advance_commit(env);
        self.sync(env);
    }

    /// Begins a sync if writes are pending and the disk is not full.
    pub fn sync(&mut self, env: &mut Env) {
        if self.disk.syncing || self.disk.full || self.disk.synced() == self.disk.written() {
            return;
        }
        self.disk.syncing = true;
        let takes = if self.disk.slow {
            env.rng.micros(100_000, 800_000)
        } else {
            env.rng.micros(100, 3_000)
        };
        let event = Event::Synced {
            server: self.me,
            life: self.life,
            upto: self.disk.written(),
        };
        env.at(env.now.plus(takes), event);
    }

    fn write(&mut self, op: Op, env: &mut Env) {
        self.image.apply(&op);
        self.disk.write(op);
        self.sync(env);
    }

    fn append(&mut self, payload: Payload, env: &mut Env) -> Position {
        let at = Position {
            term: self.image.term,
            index: self.image.log.last().index + 1,
        };
        self.write(Op::Append(Arc::new(Entry { at, payload })), env);
        at
    }

    /// Sends a message after all writes so far are on disk.
    fn send_synced(&mut self, to: usize, message: RaftMessage, env: &mut Env) {
        if self.disk.synced() == self.disk.written() {
            self.send(to, message, env);
        } else {
            let after = SyncAction::Send(to, message);
            self.waiting.push_back((self.disk.written(), after));
        }
    }

    fn send(&self, to: usize, message: RaftMessage, env: &mut Env) {
        let (from, to) = (Endpoint::Server(self.me), Endpoint::Server(to));
        env.send(from, to, Message::Raft(message));
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.servers).filter(move |server| *server != me)
    }

    fn quorum(&self) -> usize {
        self.servers / 2 + 1
    }
}
