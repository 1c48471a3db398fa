//! Answers given to keyed writes, so that a client's retry is applied once and answered alike.
//!
//! The table is bounded by count and by age, as each keyed command sets them. The oldest answers are removed first.

use std::sync::Arc;

use imbl::OrdMap;
use muster_domain::id::{LogIndex, Timestamp, WriteKey};
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::table::{Indexes, MapTable, RowChange};
use crate::fsm::response::Response;
use crate::limits;

/// The first answer to a write with a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub key: WriteKey,
    /// The fingerprint of the answered write; see [`crate::fsm::WriteDedup`].
    pub fingerprint: u64,
    /// The entry that was applied. It identifies answers and orders them.
    pub index: LogIndex,
    /// Time of the proposal.
    pub at: Timestamp,
    pub response: Response,
}

/// The table of answers. No caller waits for a change of it, so it has no index.
pub type Answers = MapTable<AnswerIndexes>;

/// The index of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerIndexes {
    by_index: OrdMap<LogIndex, WriteKey>,
}

impl Indexes for AnswerIndexes {
    type Key = WriteKey;
    type Query = WriteKey;
    type Row = Arc<Answer>;
    type Shown = Arc<Answer>;
    type Fact = ();

    fn key(row: &Arc<Answer>) -> WriteKey {
        row.key.clone()
    }

    fn shown(row: &Arc<Answer>) -> &Arc<Answer> {
        row
    }

    fn hash(row: &Arc<Answer>) -> u64 {
        Digest::of(&**row)
    }

    fn modify_index(_: &Arc<Answer>) -> LogIndex {
        LogIndex(0)
    }

    fn follow(&mut self, key: &WriteKey, change: RowChange<'_, Arc<Answer>>, (): ()) {
        if let Some(old) = change.old {
            self.by_index.remove(&old.index);
        }
        if let Some(new) = change.new {
            self.by_index.insert(new.index, key.clone());
        }
    }
}

impl Answers {
    /// Removes the oldest answers beyond `max` and those from before `forget_before`. The number removed at once is
    /// bounded, but larger than the number that one write adds.
    pub(crate) fn shrink(&mut self, max: u32, forget_before: Timestamp) {
        for _ in 0..limits::ANSWERS_FORGOTTEN_MAX {
            let Some(oldest) = self.indexes.by_index.get_min().map(|(_, key)| key.clone()) else {
                return;
            };
            let is_old = self
                .get(&oldest)
                .is_some_and(|answer| answer.at < forget_before);
            if !is_old && self.len() <= max as usize {
                return;
            }
            self.remove(&oldest, LogIndex(0));
        }
    }
}
