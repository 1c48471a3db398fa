//! A server's disk: the written data, and the part that survives a crash.
//!
//! Writes reach the disk in order. Synced writes survive. The seed decides which prefix of the other writes survives
//! a crash. [`Raft`](crate::raft::Raft) holds its own [`Image`] in memory. Each operation changes that image first
//! and the disk later, so memory is never behind the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::log::{Entry, Log, Position};
use crate::machine::Snapshot;
use crate::rng::SimRng;

/// An operation that is written to the disk.
#[derive(Clone, Debug)]
pub enum Op {
    Vote {
        term: u64,
        /// The server that received this server's vote in the term.
        voted: Option<usize>,
    },
    /// An entry at the end of the log.
    Append(Arc<Entry>),
    /// Drops the entry at this index and all later entries.
    Truncate(u64),
    /// Stores a snapshot, and removes the part of the log that it replaces.
    Snapshot {
        snapshot: Arc<Snapshot>,
        /// The last position that is removed from the log.
        base: Position,
    },
}

/// The state that results from all writes.
#[derive(Clone, Debug, Default)]
pub struct Image {
    /// The newest term seen.
    pub term: u64,
    /// The server that received this server's vote in the current term.
    pub voted: Option<usize>,
    pub log: Log,
    pub snapshot: Option<Arc<Snapshot>>,
}

impl Image {
    /// Carries out one write.
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

    /// Whether the log or the snapshot contains the entry at `at`.
    #[must_use]
    pub fn holds(&self, at: Position) -> bool {
        let in_snapshot = self
            .snapshot
            .as_ref()
            .is_some_and(|snapshot| snapshot.at.index >= at.index);
        in_snapshot || self.log.term_at(at.index) == Some(at.term)
    }
}

/// A disk with writes that are not synced yet.
#[derive(Debug, Default)]
pub struct Disk {
    durable: Image,
    pending: VecDeque<Op>,
    written: u64,
    synced: u64,
    /// Whether a sync is under way.
    pub syncing: bool,
    /// Whether the disk is full. A full disk syncs nothing.
    pub full: bool,
    /// Whether a sync takes longer than usual.
    pub slow: bool,
}

impl Disk {
    /// Accepts a write and returns its number, counted from 1.
    pub fn write(&mut self, op: Op) -> u64 {
        self.pending.push_back(op);
        self.written += 1;
        self.written
    }

    /// Returns the number of the newest write.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of the newest write that survives a crash.
    #[must_use]
    pub fn synced(&self) -> u64 {
        self.synced
    }

    /// Returns the image that survives a crash.
    #[must_use]
    pub fn durable(&self) -> &Image {
        &self.durable
    }

    /// Marks all writes up to the number `upto` as synced.
    pub fn handle_synced(&mut self, upto: u64) {
        while self.synced < upto
            && let Some(op) = self.pending.pop_front()
        {
            self.durable.apply(&op);
            self.synced += 1;
        }
    }

    /// Crashes the disk. A random part of the writes that were not synced is lost.
    pub fn crash(&mut self, rng: &mut SimRng) {
        let kept = rng.below(self.pending.len() + 1);
        for op in self.pending.drain(..).take(kept) {
            self.durable.apply(&op);
        }
        self.written = 0;
        self.synced = 0;
        self.syncing = false;
    }
}
