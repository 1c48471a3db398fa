//! Evaluations, with indexes by job, by being open and by time of their end.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::eval::Evaluation;
use muster_domain::id::{EvalId, JobKey, LogIndex, Timestamp};

use super::digest::Digest;
use super::prefix;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobEvals {
    ids: OrdSet<EvalId>,
    open: OrdSet<EvalId>,
}

/// The table of evaluations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evals {
    rows: OrdMap<EvalId, Arc<Evaluation>>,
    by_job: OrdMap<JobKey, Arc<JobEvals>>,
    /// Those that are not terminal.
    open: OrdSet<EvalId>,
    /// Terminal ones by the time of their last change.
    terminal: OrdSet<(Timestamp, EvalId)>,
    index: LogIndex,
    hash: u64,
}

impl Evals {
    /// The evaluation called so.
    #[must_use]
    pub fn get(&self, eval_id: &EvalId) -> Option<&Arc<Evaluation>> {
        self.rows.get(eval_id)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Evaluation>> {
        self.rows.values()
    }

    /// Those whose id begins with `text`.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> Vec<&Arc<Evaluation>> {
        let Some((low, high)) = prefix::bounds(text) else {
            return Vec::new();
        };
        self.rows
            .range(EvalId(low)..=EvalId(high))
            .map(|(_, row)| row)
            .collect()
    }

    /// Those of one job, by id.
    pub fn of_job(&self, key: &JobKey) -> impl Iterator<Item = &Arc<Evaluation>> + use<'_> {
        self.by_job
            .get(key)
            .into_iter()
            .flat_map(|job| job.ids.iter())
            .filter_map(|eval_id| self.rows.get(eval_id))
    }

    /// Those that are not terminal: pending, delayed or blocked.
    pub fn pending(&self) -> impl Iterator<Item = &Arc<Evaluation>> {
        self.open
            .iter()
            .filter_map(|eval_id| self.rows.get(eval_id))
    }

    /// Those of one job that are not terminal.
    pub fn open_of_job(&self, key: &JobKey) -> impl Iterator<Item = &Arc<Evaluation>> + use<'_> {
        self.by_job
            .get(key)
            .into_iter()
            .flat_map(|job| job.open.iter())
            .filter_map(|eval_id| self.rows.get(eval_id))
    }

    /// Terminal ones by the time of their last change, after the position given.
    pub(crate) fn terminal_after(
        &self,
        after: Option<(Timestamp, EvalId)>,
    ) -> impl Iterator<Item = (Timestamp, EvalId)> {
        let from = after.unwrap_or((Timestamp(0), EvalId([0; 16])));
        self.terminal
            .range(from..)
            .copied()
            .filter(move |at| after != Some(*at))
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The last entry that changed the table.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// The hash of its rows and its index; see [`super::StateHash`].
    pub(super) fn hash(&self) -> u64 {
        self.hash.wrapping_add(Digest::of(&self.index))
    }

    /// Writes a row.
    pub(crate) fn put(&mut self, eval: Evaluation) {
        self.index = self.index.max(eval.modify_index);
        self.hash = self.hash.wrapping_add(Digest::of(&eval));
        let eval = Arc::new(eval);
        if let Some(old) = self.rows.insert(eval.id, Arc::clone(&eval)) {
            self.unindex(&old);
        }
        let job = Arc::make_mut(self.by_job.entry(eval.job.clone()).or_default());
        job.ids.insert(eval.id);
        if eval.status.is_terminal() {
            self.terminal.insert((eval.modify_time, eval.id));
        } else {
            job.open.insert(eval.id);
            self.open.insert(eval.id);
        }
    }

    /// Forgets a row.
    pub(crate) fn remove(&mut self, eval_id: &EvalId) -> Option<Arc<Evaluation>> {
        let old = self.rows.remove(eval_id)?;
        self.unindex(&old);
        Some(old)
    }

    fn unindex(&mut self, old: &Evaluation) {
        self.hash = self.hash.wrapping_sub(Digest::of(old));
        self.open.remove(&old.id);
        self.terminal.remove(&(old.modify_time, old.id));
        let empty = self.by_job.get_mut(&old.job).is_some_and(|job| {
            let job = Arc::make_mut(job);
            job.ids.remove(&old.id);
            job.open.remove(&old.id);
            job.ids.is_empty()
        });
        if empty {
            self.by_job.remove(&old.job);
        }
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}
