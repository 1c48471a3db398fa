//! Evaluations, with indexes by job, by being open, and by time of their end if a part of them may be removed.
//!
//! An evaluation with only live allocations is not in that last index. A cluster has as many such evaluations as
//! placements, and the collection would look at each of them every time without a result. Evaluations of batch jobs are
//! in an index of their own, because they are kept longer. That index is by job, because an existing job keeps all of
//! them: one look at the job is enough.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::eval::Evaluation;
use muster_domain::id::{EvalId, JobKey, LogIndex, Timestamp};

use super::digest::Digest;
use super::table::{Indexes, MapTable, RowChange};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct JobEvals {
    ids: OrdSet<EvalId>,
    open: OrdSet<EvalId>,
}

/// Terminal evaluations of a batch job without allocations, or with one that is terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CollectableEvals {
    /// Evaluations by the time of their last change.
    by_end: OrdSet<(Timestamp, EvalId)>,
    /// Evaluations by the entry that made them.
    by_age: OrdSet<(LogIndex, EvalId)>,
}

impl CollectableEvals {
    /// Returns the number of evaluations.
    pub(crate) fn len(&self) -> usize {
        self.by_end.len()
    }

    /// Returns the entry that made the oldest of them.
    pub(crate) fn oldest(&self) -> Option<LogIndex> {
        self.by_age.get_min().map(|(index, _)| *index)
    }

    /// Returns evaluations by the time of their last change, from the given position on.
    pub(crate) fn from(
        &self,
        from: (Timestamp, EvalId),
    ) -> impl Iterator<Item = (Timestamp, EvalId)> + use<'_> {
        self.by_end.range(from..).copied()
    }
}

/// The table of evaluations.
pub type Evals = MapTable<EvalIndexes>;

/// The indexes of evaluations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvalIndexes {
    by_job: OrdMap<Arc<JobKey>, Arc<JobEvals>>,
    /// Evaluations that are not terminal.
    open: OrdSet<EvalId>,
    /// Terminal evaluations without allocations, or with a terminal one, by the time of their last change.
    due: OrdSet<(Timestamp, EvalId)>,
    /// The same index for evaluations of batch jobs, by job.
    due_batch: OrdMap<Arc<JobKey>, CollectableEvals>,
}

impl Indexes for EvalIndexes {
    type Key = EvalId;
    type Query = EvalId;
    type Row = Arc<Evaluation>;
    type Shown = Arc<Evaluation>;
    /// Whether the evaluation has no allocations, or a terminal one. Then a part of it may be removed once it has
    /// ended.
    type Fact = bool;

    fn key(row: &Arc<Evaluation>) -> EvalId {
        row.id
    }

    fn shown(row: &Arc<Evaluation>) -> &Arc<Evaluation> {
        row
    }

    fn hash(row: &Arc<Evaluation>) -> u64 {
        Digest::of(&**row)
    }

    fn modify_index(row: &Arc<Evaluation>) -> LogIndex {
        row.modify_index
    }

    fn follow(&mut self, _: &EvalId, change: RowChange<'_, Arc<Evaluation>>, may_free: bool) {
        let RowChange { old, new } = change;
        // The fact of the old row is not known here.
        if let Some(old) = old.filter(|old| old.status.is_terminal()) {
            self.remove_due(old);
        }
        change.set(&mut self.open, |row| {
            (!row.status.is_terminal()).then_some(row.id)
        });
        let stays = old.zip(new).is_some_and(|(old, new)| {
            old.job == new.job && old.status.is_terminal() == new.status.is_terminal()
        });
        if !stays {
            self.move_in_jobs(old, new);
        }
        if let Some(new) = new.filter(|new| new.status.is_terminal() && may_free) {
            self.insert_due(new);
        }
    }
}

impl EvalIndexes {
    fn move_in_jobs(&mut self, old: Option<&Arc<Evaluation>>, new: Option<&Arc<Evaluation>>) {
        if let Some(old) = old.filter(|old| new.is_none_or(|new| old.job != new.job)) {
            self.leave_job(old);
        }
        if let Some(new) = new {
            let job = self.job_mut(&new.job);
            job.ids.insert(new.id);
            if new.status.is_terminal() {
                job.open.remove(&new.id);
            } else {
                job.open.insert(new.id);
            }
        }
    }

    /// Returns the entry of a job, to write to.
    fn job_mut(&mut self, key: &JobKey) -> &mut JobEvals {
        let known = self.by_job.get_key_value(key);
        let key = known.map_or_else(|| Arc::new(key.clone()), |(key, _)| Arc::clone(key));
        Arc::make_mut(self.by_job.entry(key).or_default())
    }

    fn insert_due(&mut self, eval: &Evaluation) {
        let place = (eval.modify_time, eval.id);
        if !eval.job_type.is_batch() {
            self.due.insert(place);
            return;
        }
        let known = self.by_job.get_key_value(&eval.job);
        let key = known.map_or_else(|| Arc::new(eval.job.clone()), |(key, _)| Arc::clone(key));
        let of_job = self.due_batch.entry(key).or_default();
        of_job.by_end.insert(place);
        of_job.by_age.insert((eval.create_index, eval.id));
    }

    fn remove_due(&mut self, eval: &Evaluation) {
        let place = (eval.modify_time, eval.id);
        if !eval.job_type.is_batch() {
            self.due.remove(&place);
            return;
        }
        let is_last = self.due_batch.get_mut(&eval.job).is_some_and(|of_job| {
            of_job.by_end.remove(&place);
            of_job.by_age.remove(&(eval.create_index, eval.id));
            of_job.by_end.is_empty()
        });
        if is_last {
            self.due_batch.remove(&eval.job);
        }
    }

    /// Removes an evaluation from the data of its job, and removes these data with the last evaluation.
    fn leave_job(&mut self, old: &Evaluation) {
        let is_last = self.by_job.get_mut(&old.job).is_some_and(|job| {
            let job = Arc::make_mut(job);
            job.ids.remove(&old.id);
            job.open.remove(&old.id);
            job.ids.is_empty()
        });
        if is_last {
            self.by_job.remove(&old.job);
        }
    }
}

impl Evals {
    /// Returns the evaluations of one job, by id.
    pub fn of_job(&self, key: &JobKey) -> impl Iterator<Item = &Arc<Evaluation>> + use<'_> {
        self.of_job_from(key, EvalId([0; 16]))
    }

    /// Returns the evaluations of one job, from an id on.
    pub(crate) fn of_job_from(
        &self,
        key: &JobKey,
        from: EvalId,
    ) -> impl Iterator<Item = &Arc<Evaluation>> + use<'_> {
        self.indexes
            .by_job
            .get(key)
            .into_iter()
            .flat_map(move |job| job.ids.range(from..))
            .filter_map(|eval_id| self.get(eval_id))
    }

    /// Returns the evaluations that are not terminal: pending, delayed or blocked.
    pub fn pending(&self) -> impl Iterator<Item = &Arc<Evaluation>> {
        self.indexes
            .open
            .iter()
            .filter_map(|eval_id| self.get(eval_id))
    }

    /// Returns the evaluations of one job that are not terminal.
    pub fn open_of_job(&self, key: &JobKey) -> impl Iterator<Item = &Arc<Evaluation>> + use<'_> {
        self.indexes
            .by_job
            .get(key)
            .into_iter()
            .flat_map(|job| job.open.iter())
            .filter_map(|eval_id| self.get(eval_id))
    }

    /// Returns terminal evaluations of which a part may be removed, by the time of their last change, from the given
    /// position on. Evaluations of batch jobs are not among them.
    pub(crate) fn due_from(
        &self,
        from: (Timestamp, EvalId),
    ) -> impl Iterator<Item = (Timestamp, EvalId)> + use<'_> {
        self.indexes.due.range(from..).copied()
    }

    /// Returns the same for batch jobs, from a job on.
    pub(crate) fn due_of_batch_jobs_from(
        &self,
        key: &JobKey,
    ) -> impl Iterator<Item = (&Arc<JobKey>, &CollectableEvals)> + use<'_> {
        self.indexes.due_batch.range(Arc::new(key.clone())..)
    }

    /// Sets whether a part of the evaluation may be removed once it has ended: it has no allocations, or a terminal
    /// one.
    pub(super) fn set_may_free(&mut self, eval_id: &EvalId, may_free: bool) {
        let Some(eval) = self.get(eval_id).map(Arc::clone) else {
            return;
        };
        if !may_free {
            self.indexes.remove_due(&eval);
        } else if eval.status.is_terminal() {
            self.indexes.insert_due(&eval);
        }
    }
}
