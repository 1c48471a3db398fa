//! Answers given to keyed writes, so that a client's retry is applied once and answered alike.
//!
//! Bounded by count and by age as each keyed command says. The oldest go first.

use std::sync::Arc;

use imbl::OrdMap;
use muster_domain::id::{LogIndex, Timestamp, WriteKey};
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use crate::fsm::Response;
use crate::limits;

/// The first answer that a key was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub key: WriteKey,
    /// The write it was given to; see [`crate::fsm::WriteDedup`].
    pub fingerprint: u64,
    /// The entry that was applied. Answers are told apart and ordered by it.
    pub index: LogIndex,
    /// Time of the proposal.
    pub at: Timestamp,
    pub response: Response,
}

/// The table of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    rows: OrdMap<WriteKey, Arc<Answer>>,
    by_index: OrdMap<LogIndex, WriteKey>,
    hash: u64,
}

impl Answers {
    /// Returns the answer to `key`, if it is remembered.
    #[must_use]
    pub fn get(&self, key: &WriteKey) -> Option<&Arc<Answer>> {
        self.rows.get(key)
    }

    /// All, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Answer>> {
        self.rows.values()
    }

    /// Returns the number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The sum over its rows; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    /// Remembers an answer.
    pub(crate) fn put(&mut self, answer: Answer) {
        self.remove(&answer.key.clone());
        self.hash = self.hash.wrapping_add(Digest::of(&answer));
        self.by_index.insert(answer.index, answer.key.clone());
        self.rows.insert(answer.key.clone(), Arc::new(answer));
    }

    /// Forgets the oldest beyond `max` and those from before `forget_before`; a bounded number at once,
    /// but more than one write adds.
    pub(crate) fn shrink(&mut self, max: u32, forget_before: Timestamp) {
        for _ in 0..limits::ANSWERS_FORGOTTEN_MAX {
            let Some(oldest) = self.by_index.get_min().map(|(_, key)| key.clone()) else {
                return;
            };
            let is_old = self
                .rows
                .get(&oldest)
                .is_some_and(|answer| answer.at < forget_before);
            if !is_old && self.rows.len() <= max as usize {
                return;
            }
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &WriteKey) {
        if let Some(old) = self.rows.remove(key) {
            self.hash = self.hash.wrapping_sub(Digest::of(&*old));
            self.by_index.remove(&old.index);
        }
    }
}
