//! Elections of the leader.

use std::collections::BTreeSet;

use muster_domain::id::Timestamp;

use super::{LeaderState, Raft, Role, SyncAction};
use crate::bug::Bug;
use crate::disk::Op;
use crate::env::{Env, ms};
use crate::limits;
use crate::log::{Payload, Position};
use crate::message::RaftMessage;

impl Raft {
    /// Sets the election timeout to a random value.
    pub(super) fn expect_leader(&mut self, env: &mut Env) {
        let wait = env
            .rng
            .millis(limits::ELECTION_MIN_MS, limits::ELECTION_MAX_MS);
        self.election_at = env.now.plus(wait);
    }

    /// Becomes a follower in `term`.
    pub(super) fn follow(&mut self, term: u64, env: &mut Env) {
        if term > self.image.term {
            self.write(Op::Vote { term, voted: None }, env);
            self.leader = None;
        }
        if !matches!(self.role, Role::Follower) {
            self.role = Role::Follower;
            self.expect_leader(env);
        }
    }

    /// Begins a pre-vote: asks the other servers whether they would vote for this server.
    pub(super) fn start_pre_vote(&mut self, env: &mut Env) {
        self.expect_leader(env);
        self.leader = None;
        if self.disk.full {
            return;
        }
        let (term, last) = (self.image.term + 1, self.image.log.last());
        self.role = Role::Asking(BTreeSet::new());
        for to in self.others() {
            self.send(to, RaftMessage::PreVote { term, last }, env);
        }
        self.handle_pre_vote_reply(self.me, term, true, env);
    }

    pub(super) fn handle_pre_vote(
        &mut self,
        from: usize,
        term: u64,
        last: Position,
        env: &mut Env,
    ) {
        let quiet = env.now.since(self.last_contact_at) >= ms(limits::ELECTION_MIN_MS);
        let granted =
            term > self.image.term && quiet && !self.leads() && last >= self.image.log.last();
        self.send(from, RaftMessage::PreVoteReply { term, granted }, env);
    }

    pub(super) fn handle_pre_vote_reply(
        &mut self,
        from: usize,
        term: u64,
        granted: bool,
        env: &mut Env,
    ) {
        let (wanted, quorum) = (self.image.term + 1, self.quorum());
        let Role::Asking(votes) = &mut self.role else {
            return;
        };
        if granted && term == wanted {
            votes.insert(from);
            if votes.len() >= quorum {
                self.start_election(env);
            }
        }
    }

    /// Becomes a candidate and requests votes.
    fn start_election(&mut self, env: &mut Env) {
        let term = self.image.term + 1;
        self.role = Role::Candidate(BTreeSet::new());
        self.vote_for(self.me, term, env);
        let last = self.image.log.last();
        for to in self.others() {
            self.send(to, RaftMessage::Vote { term, last }, env);
        }
        self.waiting
            .push_back((self.disk.written(), SyncAction::OwnVote(term)));
    }

    fn vote_for(&mut self, whom: usize, term: u64, env: &mut Env) {
        let voted = Some(whom);
        if env.has_bug(Bug::VoteForgotten) && whom != self.me {
            return;
        }
        self.write(Op::Vote { term, voted }, env);
    }

    pub(super) fn handle_vote(&mut self, from: usize, term: u64, last: Position, env: &mut Env) {
        if term > self.image.term {
            self.follow(term, env);
        }
        let free = self.image.voted.is_none_or(|voted| voted == from);
        let granted = term == self.image.term && free && last >= self.image.log.last();
        if granted {
            self.expect_leader(env);
            if self.image.voted.is_none() {
                self.vote_for(from, term, env);
            }
        }
        let term = self.image.term;
        self.send_synced(from, RaftMessage::VoteReply { term, granted }, env);
    }

    pub(super) fn handle_vote_reply(
        &mut self,
        from: usize,
        term: u64,
        granted: bool,
        env: &mut Env,
    ) {
        if term > self.image.term {
            self.follow(term, env);
        } else if granted {
            self.count_vote(from, term, env);
        }
    }

    pub(super) fn count_vote(&mut self, from: usize, term: u64, env: &mut Env) {
        let (current, quorum) = (self.image.term, self.quorum());
        if let Role::Candidate(votes) = &mut self.role
            && term == current
        {
            votes.insert(from);
            if votes.len() >= quorum {
                self.lead(env);
            }
        }
    }

    fn lead(&mut self, env: &mut Env) {
        let (term, last) = (self.image.term, self.image.log.last().index);
        env.trace_line(format_args!("server {} leads term {term}", self.me));
        env.oracle.elected(self.me, &self.image);
        self.leader = Some(self.me);
        self.role = Role::Leader(LeaderState {
            first: last + 1,
            next: vec![last + 1; self.servers],
            matched: vec![0; self.servers],
            answered: vec![0; self.servers],
            last_contact_at: vec![env.now; self.servers],
            round: 0,
            beat_at: env.now.plus(limits::RAFT_HEARTBEAT),
        });
        self.append(Payload::Blank, env);
        self.replicate_all(env);
    }

    /// Whether a quorum answered within the longest election timeout. Another leader cannot have been elected much
    /// earlier.
    pub(super) fn has_quorum(&self, now: Timestamp) -> bool {
        let Role::Leader(leading) = &self.role else {
            return false;
        };
        let reachable = self
            .others()
            .filter(|other| {
                now.since(leading.last_contact_at[*other]) < ms(limits::ELECTION_MAX_MS)
            })
            .count();
        reachable + 1 >= self.quorum()
    }
}
