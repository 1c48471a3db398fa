//! Replication of the leader's log to the followers.

use std::sync::Arc;

use super::{Raft, Role};
use crate::bug::Bug;
use crate::disk::Op;
use crate::env::Env;
use crate::limits;
use crate::log::{Entry, Position};
use crate::machine::Snapshot;
use crate::message::{LogMatch, RaftMessage};

impl Raft {
    /// Sends each follower its missing entries, or a heartbeat.
    pub(super) fn replicate_all(&mut self, env: &mut Env) {
        if let Role::Leader(leading) = &mut self.role {
            leading.round += 1;
        }
        for to in self.others() {
            self.replicate(to, env);
        }
    }

    fn replicate(&mut self, to: usize, env: &mut Env) {
        let Role::Leader(leading) = &self.role else {
            return;
        };
        let (term, round) = (self.image.term, leading.round);
        let index = leading.next[to] - 1;
        let message = match self.image.log.term_at(index) {
            Some(prev_term) => RaftMessage::Append {
                term,
                prev: Position {
                    term: prev_term,
                    index,
                },
                entries: self.image.log.after(index, limits::APPEND_MAX),
                commit: self.commit,
                round,
            },
            None => {
                let Some(snapshot) = &self.image.snapshot else {
                    env.oracle
                        .fault("a log has lost its beginning without a snapshot");
                    return;
                };
                RaftMessage::Install {
                    term,
                    snapshot: Arc::clone(snapshot),
                    round,
                }
            }
        };
        self.send(to, message, env);
    }

    /// Follows `from` as the leader of `term`. Returns false if that term is over.
    fn follow_leader(&mut self, from: usize, term: u64, round: u64, env: &mut Env) -> bool {
        if term < self.image.term {
            let reply = RaftMessage::AppendReply {
                term: self.image.term,
                round,
                matched: LogMatch::Stale,
            };
            self.send(from, reply, env);
            return false;
        }
        self.follow(term, env);
        self.leader = Some(from);
        self.last_contact_at = env.now;
        self.expect_leader(env);
        true
    }

    pub(super) fn handle_append(
        &mut self,
        from: usize,
        (term, round): (u64, u64),
        prev: Position,
        entries: &[Arc<Entry>],
        commit: u64,
        env: &mut Env,
    ) {
        if !self.follow_leader(from, term, round, env) {
            return;
        }
        let base = self.image.log.base().index;
        if prev.index > base && self.image.log.term_at(prev.index) != Some(prev.term) {
            let last = self.image.log.last().index;
            let hint = last
                .min(prev.index - 1)
                .max(self.commit.min(prev.index - 1));
            let matched = LogMatch::Not { hint };
            self.reply(from, round, matched, env);
            return;
        }
        for entry in entries.iter().filter(|entry| entry.at.index > base) {
            match self.image.log.term_at(entry.at.index) {
                Some(term) if term == entry.at.term => {}
                Some(_) => {
                    if entry.at.index <= self.commit {
                        env.oracle.fault("a committed entry is overwritten");
                    }
                    self.write(Op::Truncate(entry.at.index), env);
                    self.write(Op::Append(Arc::clone(entry)), env);
                }
                None => self.write(Op::Append(Arc::clone(entry)), env),
            }
        }
        let matched = prev.index + entries.len() as u64;
        self.commit_up_to(commit.min(matched), env);
        self.acknowledge(from, round, matched, env);
    }

    /// Reports to the leader that the logs agree up to `matched`. If a sync is pending, a `NotYet` reply is sent at
    /// once, and the durable reply follows after the sync.
    fn acknowledge(&mut self, from: usize, round: u64, matched: u64, env: &mut Env) {
        let done = RaftMessage::AppendReply {
            term: self.image.term,
            round,
            matched: LogMatch::UpTo(matched),
        };
        if env.has_bug(Bug::AckBeforeSync) {
            self.send(from, done, env);
            return;
        }
        if self.disk.synced() != self.disk.written() {
            self.reply(from, round, LogMatch::NotYet, env);
        }
        self.send_synced(from, done, env);
    }

    fn reply(&self, to: usize, round: u64, matched: LogMatch, env: &mut Env) {
        let reply = RaftMessage::AppendReply {
            term: self.image.term,
            round,
            matched,
        };
        self.send(to, reply, env);
    }

    pub(super) fn handle_install(
        &mut self,
        from: usize,
        (term, round): (u64, u64),
        snapshot: &Arc<Snapshot>,
        env: &mut Env,
    ) {
        if !self.follow_leader(from, term, round, env) {
            return;
        }
        if snapshot.at.index > self.commit {
            let base = snapshot.at;
            env.trace_line(format_args!(
                "server {} installs a snapshot up to {}",
                self.me, base.index
            ));
            let snapshot = Arc::clone(snapshot);
            self.installed = Some(Arc::clone(&snapshot));
            self.write(Op::Snapshot { snapshot, base }, env);
            self.commit = base.index;
        }
        self.acknowledge(from, round, self.commit.max(snapshot.at.index), env);
    }

    pub(super) fn handle_reply(
        &mut self,
        from: usize,
        term: u64,
        round: u64,
        matched: LogMatch,
        env: &mut Env,
    ) {
        if term > self.image.term {
            self.follow(term, env);
            return;
        }
        let last = self.image.log.last().index;
        let Role::Leader(leading) = &mut self.role else {
            return;
        };
        // A stale reply belongs to an earlier term of this leader. Its round number belongs to a different count.
        if term < self.image.term || matched == LogMatch::Stale {
            return;
        }
        leading.last_contact_at[from] = env.now;
        leading.answered[from] = leading.answered[from].max(round);
        match matched {
            LogMatch::UpTo(index) => {
                leading.matched[from] = leading.matched[from].max(index);
                leading.next[from] = leading.matched[from] + 1;
                let behind = leading.next[from] <= last && round == leading.round;
                self.advance_commit(env);
                if behind {
                    self.replicate(from, env);
                }
            }
            LogMatch::Not { hint } => {
                let next = hint.max(leading.matched[from]) + 1;
                leading.next[from] = next.min(leading.next[from]);
                self.replicate(from, env);
            }
            LogMatch::NotYet | LogMatch::Stale => {}
        }
    }

    /// Commits the entries of this term that a quorum has on disk.
    pub(super) fn advance_commit(&mut self, env: &mut Env) {
        let Role::Leader(leading) = &self.role else {
            return;
        };
        let on_own = self.disk.durable().log.last();
        let own = if self.image.log.term_at(on_own.index) == Some(on_own.term) {
            on_own.index
        } else {
            0
        };
        let mut on_disk: Vec<u64> = self.others().map(|other| leading.matched[other]).collect();
        on_disk.push(own);
        on_disk.sort_unstable();
        let index = if env.has_bug(Bug::CommitWithoutQuorum) {
            own
        } else {
            on_disk[self.servers - self.quorum()]
        };
        if self.image.log.term_at(index) == Some(self.image.term) && index > self.commit {
            self.commit_up_to(index, env);
            self.replicate_all(env);
        }
    }

    fn commit_up_to(&mut self, index: u64, env: &mut Env) {
        if index > self.commit {
            env.oracle
                .committed(self.me, &self.image, self.commit, index);
            self.commit = index;
        }
    }

    /// Begins a round that confirms the leadership. Returns the index that a read must have seen, and the round.
    /// Returns `None` if this server does not lead, or does not know the committed index yet.
    pub fn begin_read(&mut self, env: &mut Env) -> Option<(u64, u64)> {
        let first = self.first_of_term()?;
        let index = self.commit;
        if index < first {
            return None;
        }
        self.replicate_all(env);
        match &self.role {
            Role::Leader(leading) => Some((index, leading.round)),
            Role::Follower | Role::Asking(_) | Role::Candidate(_) => None,
        }
    }

    /// Returns the newest round that a quorum has answered. Returns `None` if this server does not lead.
    #[must_use]
    pub fn confirmed_round(&self) -> Option<u64> {
        let Role::Leader(leading) = &self.role else {
            return None;
        };
        let mut rounds: Vec<u64> = self.others().map(|other| leading.answered[other]).collect();
        rounds.push(leading.round);
        rounds.sort_unstable();
        Some(rounds[self.servers - self.quorum()])
    }
}
