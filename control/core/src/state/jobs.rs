//! Jobs and their versions.
//!
//! A row holds the current version and the older ones that are kept, newest first. Versions never
//! change; allocations share them. `plan_index` is the last entry that placed or stopped something of
//! the job by a plan: a plan made from an older state is stale, which makes placing twice impossible.

use std::sync::Arc;

use imbl::OrdMap;
use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::{Job, JobVersion};

/// A job and what the API does not show of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRow {
    /// The job.
    pub(crate) job: Arc<Job>,
    /// Versions before the current one, newest first.
    pub(crate) older: Vec<Arc<JobVersion>>,
    /// The last entry that carried out a plan for it.
    pub(crate) plan_index: LogIndex,
}

impl JobRow {
    /// Its version of this number, if it is kept.
    pub(crate) fn version(&self, number: u64) -> Option<&Arc<JobVersion>> {
        std::iter::once(&self.job.current)
            .chain(&self.older)
            .find(|version| version.version == number)
    }
}

/// The table of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    rows: OrdMap<JobKey, Arc<JobRow>>,
    index: LogIndex,
}

impl Jobs {
    /// The job called so.
    #[must_use]
    pub fn get(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.rows.get(key).map(|row| &row.job)
    }

    /// All, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.rows.values().map(|row| &row.job)
    }

    /// Those of one namespace, by id.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<Job>> + use<'_> {
        let from = JobKey {
            namespace: namespace.to_owned(),
            job_id: String::new(),
        };
        let namespace = namespace.to_owned();
        self.rows
            .range(from..)
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, row)| &row.job)
    }

    /// Its versions, newest first.
    #[must_use]
    pub fn versions(&self, key: &JobKey) -> Vec<Arc<JobVersion>> {
        self.rows.get(key).map_or_else(Vec::new, |row| {
            std::iter::once(&row.job.current)
                .chain(&row.older)
                .map(Arc::clone)
                .collect()
        })
    }

    /// Its version of this number, if it is kept.
    #[must_use]
    pub fn version(&self, key: &JobKey, number: u64) -> Option<Arc<JobVersion>> {
        self.rows.get(key)?.version(number).map(Arc::clone)
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

    pub(crate) fn row(&self, key: &JobKey) -> Option<&Arc<JobRow>> {
        self.rows.get(key)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&JobKey, &Arc<JobRow>)> {
        self.rows.iter()
    }

    pub(crate) fn put(&mut self, row: JobRow) {
        self.index = self.index.max(row.job.modify_index);
        self.rows.insert(row.job.key(), Arc::new(row));
    }

    /// Records that a plan was carried out. Not a change that readers of the job would see.
    pub(crate) fn set_plan_index(&mut self, key: &JobKey, index: LogIndex) {
        if let Some(row) = self.rows.get_mut(key) {
            Arc::make_mut(row).plan_index = index;
        }
    }

    pub(crate) fn remove(&mut self, key: &JobKey, index: LogIndex) -> Option<Arc<JobRow>> {
        let row = self.rows.remove(key)?;
        self.index = index;
        Some(row)
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
    }
}
