//! Deployments, with indexes by job, by being active and, where no allocation uses
//! them, by time of their end.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::deployment::Deployment;
use muster_domain::id::{DeploymentId, JobKey, LogIndex, Timestamp};

use super::digest::Digest;
use super::prefix;
use super::sets::take_out;

/// The table of deployments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deployments {
    rows: OrdMap<DeploymentId, Arc<Deployment>>,
    /// In the order in which they were made.
    by_job: OrdMap<JobKey, OrdSet<(LogIndex, DeploymentId)>>,
    /// Those under way or paused.
    active: OrdSet<DeploymentId>,
    /// Those that are over and without a live allocation, by the time of their last change.
    due: OrdSet<(Timestamp, DeploymentId)>,
    index: LogIndex,
    hash: u64,
}

impl Deployments {
    /// The deployment called so.
    #[must_use]
    pub fn get(&self, id: &DeploymentId) -> Option<&Arc<Deployment>> {
        self.rows.get(id)
    }

    /// All, by id.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        self.rows.values()
    }

    /// Those whose id begins with `text`.
    #[must_use]
    pub fn with_prefix(&self, text: &str) -> Vec<&Arc<Deployment>> {
        let Some((low, high)) = prefix::bounds(text) else {
            return Vec::new();
        };
        self.rows
            .range(DeploymentId(low)..=DeploymentId(high))
            .map(|(_, row)| row)
            .collect()
    }

    /// Those of one job, oldest first.
    pub fn of_job(
        &self,
        key: &JobKey,
    ) -> impl DoubleEndedIterator<Item = &Arc<Deployment>> + use<'_> {
        self.by_job
            .get(key)
            .into_iter()
            .flat_map(|ids| ids.iter())
            .filter_map(|(_, id)| self.rows.get(id))
    }

    /// The newest of one job.
    #[must_use]
    pub fn latest(&self, key: &JobKey) -> Option<&Arc<Deployment>> {
        self.of_job(key).next_back()
    }

    /// Those under way or paused.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        self.active.iter().filter_map(|id| self.rows.get(id))
    }

    /// Those that are over and without a live allocation, by the time of their last change, from the position
    /// given on.
    pub(crate) fn due_from(
        &self,
        from: (Timestamp, DeploymentId),
    ) -> impl Iterator<Item = (Timestamp, DeploymentId)> + use<'_> {
        self.due.range(from..).copied()
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

    /// Writes a row. `is_used` says what [`Self::set_used`] would.
    pub(super) fn put(&mut self, deployment: Deployment, is_used: bool) {
        self.index = self.index.max(deployment.modify_index);
        self.hash = self.hash.wrapping_add(Digest::of(&deployment));
        let row = Arc::new(deployment);
        if let Some(old) = self.rows.insert(row.id, Arc::clone(&row)) {
            self.unindex(&old);
        }
        self.by_job
            .entry(row.job.clone())
            .or_default()
            .insert((row.create_index, row.id));
        if row.status.is_active() {
            self.active.insert(row.id);
        } else if !is_used {
            self.due.insert((row.modify_time, row.id));
        }
    }

    /// Says whether it has a live allocation.
    pub(super) fn set_used(&mut self, id: &DeploymentId, is_used: bool) {
        let Some(row) = self.rows.get(id) else {
            return;
        };
        let place = (row.modify_time, row.id);
        if is_used {
            self.due.remove(&place);
        } else if !row.status.is_active() {
            self.due.insert(place);
        }
    }

    /// Forgets a row.
    pub(crate) fn remove(&mut self, id: &DeploymentId) -> Option<Arc<Deployment>> {
        let old = self.rows.remove(id)?;
        self.unindex(&old);
        Some(old)
    }

    fn unindex(&mut self, old: &Deployment) {
        self.hash = self.hash.wrapping_sub(Digest::of(old));
        self.active.remove(&old.id);
        self.due.remove(&(old.modify_time, old.id));
        let place = (old.create_index, old.id);
        take_out(&mut self.by_job, &old.job, &place);
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}
