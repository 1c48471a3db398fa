//! Deployments, with indexes by job, by being active and, where no allocation uses
//! them, by time of their end.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::deployment::Deployment;
use muster_domain::id::{DeploymentId, JobKey, LogIndex, Timestamp};

use super::digest::Digest;
use super::table::{Indexes, MapTable, RowChange};

/// The table of deployments.
pub type Deployments = MapTable<DeploymentIndexes>;

/// The indexes of deployments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeploymentIndexes {
    /// Deployments by job, in the order in which they were made.
    by_job: OrdMap<JobKey, OrdSet<(LogIndex, DeploymentId)>>,
    /// Deployments that are running or paused.
    active: OrdSet<DeploymentId>,
    /// Deployments that are over and without a live allocation, by the time of their last change.
    due: OrdSet<(Timestamp, DeploymentId)>,
}

impl Indexes for DeploymentIndexes {
    type Key = DeploymentId;
    type Query = DeploymentId;
    type Row = Arc<Deployment>;
    type Shown = Arc<Deployment>;
    /// Whether the deployment has a live allocation.
    type Fact = bool;

    fn key(row: &Arc<Deployment>) -> DeploymentId {
        row.id
    }

    fn shown(row: &Arc<Deployment>) -> &Arc<Deployment> {
        row
    }

    fn hash(row: &Arc<Deployment>) -> u64 {
        Digest::of(&**row)
    }

    fn modify_index(row: &Arc<Deployment>) -> LogIndex {
        row.modify_index
    }

    fn follow(&mut self, id: &DeploymentId, change: RowChange<'_, Arc<Deployment>>, is_used: bool) {
        change.group(&mut self.by_job, |row| {
            Some((row.job.clone(), (row.create_index, row.id)))
        });
        change.set(&mut self.active, |row| {
            row.status.is_active().then_some(row.id)
        });
        // The fact of the old row is not known here.
        if let Some(old) = change.old {
            self.due.remove(&(old.modify_time, *id));
        }
        if let Some(new) = change.new.filter(|new| !new.status.is_active() && !is_used) {
            self.due.insert((new.modify_time, *id));
        }
    }
}

impl Deployments {
    /// Returns the deployments of one job, oldest first.
    pub fn of_job(
        &self,
        key: &JobKey,
    ) -> impl DoubleEndedIterator<Item = &Arc<Deployment>> + use<'_> {
        let ids = self.indexes.by_job.get(key).into_iter();
        ids.flat_map(|ids| ids.iter())
            .filter_map(|(_, id)| self.get(id))
    }

    /// Returns the newest deployment of one job.
    #[must_use]
    pub fn latest(&self, key: &JobKey) -> Option<&Arc<Deployment>> {
        self.of_job(key).next_back()
    }

    /// Returns the deployments that are running or paused.
    pub fn active(&self) -> impl Iterator<Item = &Arc<Deployment>> {
        let active = self.indexes.active.iter();
        active.filter_map(|id| self.get(id))
    }

    /// Returns the deployments that are over and without a live allocation, by the time of their last change, from the
    /// given position on.
    pub(crate) fn due_from(
        &self,
        from: (Timestamp, DeploymentId),
    ) -> impl Iterator<Item = (Timestamp, DeploymentId)> + use<'_> {
        self.indexes.due.range(from..).copied()
    }

    /// Sets whether the deployment has a live allocation.
    pub(super) fn set_used(&mut self, id: &DeploymentId, is_used: bool) {
        let Some(row) = self.get(id) else {
            return;
        };
        let (place, is_over) = ((row.modify_time, row.id), !row.status.is_active());
        if is_used {
            self.indexes.due.remove(&place);
        } else if is_over {
            self.indexes.due.insert(place);
        }
    }
}
