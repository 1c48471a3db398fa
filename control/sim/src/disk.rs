//! A server's disk: what is written, and what of it a crash leaves.
//!
//! Writes reach the disk in order. Synced writes survive. Of the others a crash keeps a prefix that
//! the seed decides. Memory is ahead of the disk, never beside it: [`Raft`](crate::raft::Raft) holds the
//! [`Image`] it believes in, and each operation changes both, the disk's later.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::log::{Entry, Log, Position};
use crate::machine::Snapshot;
use crate::rng::SimRng;

/// A write.
#[derive(Clone, Debug)]
pub enum Op {
    Vote {
        term: u64,
        /// The server that got the vote in it.
        voted: Option<usize>,
    },
    /// An entry at the end of the log.
    Append(Arc<Entry>),
    /// Drop this index and all after it.
    Truncate(u64),
    /// A snapshot, and what the log may forget with it.
    Snapshot {
        snapshot: Arc<Snapshot>,
        /// Forget up to here.
        base: Position,
    },
}

/// Everything that is written.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The newest term seen.
    pub term: u64,
    /// The server that got the vote in it.
    pub voted: Option<usize>,
    pub log: Log,
    pub snapshot: Option<Arc<Snapshot>>,
}

impl Image {
    /// Carries out a write.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Vote { term, voted } => {
                self.term = *term;
                self.voted = *voted;
            }
            Op::Append(entry) => self.log.push(Arc::clone(entry)),
            Op::Truncate(index) => self.log.truncate(*index),
            Op::Snapshot { snapshot, base } => {
                self.snapshot = Some(Arc::clone(snapshot));
                self.log.compact(*base);
            }
        }
    }

    /// Whether the entry at `at` is here, in the log or in the snapshot.
    #[must_use]
    pub fn holds(&self, at: Position) -> bool {
        let in_snapshot = self
            .snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.at.index >= at.index);
        in_snapshot || self.log.term_at(at.index) == Some(at.term)
    }
}

/// A disk.
#[derive(Debug, Default)]
pub struct Disk {
    durable: Image,
    pending: VecDeque<Op>,
    written: u64,
    synced: u64,
    /// A sync is under way.
    pub syncing: bool,
    /// The disk has no room: nothing is synced until it has.
    pub full: bool,
    /// A sync takes long.
    pub slow: bool,
}

impl Disk {
    /// Takes a write; gives back its number, counted from 1.
    pub fn write(&mut self, op: Op) -> u64 {
        self.pending.push_back(op);
        self.written += 1;
        self.written
    }

    /// The number of the newest write.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// The number of the newest write that survives a crash.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Returns the image that survives a crash.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Everything up to the write `upto` survives from here on.
    pub fn handle_synced(&mut self, upto: u64) {
        while self.synced < upto
            && let Some(op) = self.pending.pop_front()
        {
            self.durable.apply(&op);
            self.synced += 1;
        }
    }

    /// The server dies: some of what was not synced is lost.
    pub fn crash(&mut self, dice: &mut SimRng) {
        let kept = dice.below(self.pending.len() + 1);
        for op in self.pending.drain(..).take(kept) {
            self.durable.apply(&op);
        }
        self.written = 0;
        self.synced = 0;
        self.syncing = false;
    }
}
