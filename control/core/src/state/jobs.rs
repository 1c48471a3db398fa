//! Jobs and their versions.
//!
//! A row holds the current version and the older versions that are kept, newest first. Versions never change;
//! allocations share them. `plan_index` is the last entry by which a plan placed or stopped an instance of the job. A
//! plan made from an older state is stale, so no instance can be placed twice.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::id::{JobKey, LogIndex, Timestamp};
use muster_domain::job::{Job, JobStatus, JobVersion};

use super::digest::Digest;
use super::table::{Indexes, MapTable, RowChange};

/// A job and the data of it that the API does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
    pub(crate) job: Arc<Job>,
    /// Versions before the current one, newest first.
    pub(crate) older: Vec<Arc<JobVersion>>,
    /// The last entry that carried out a plan for it.
    pub(crate) plan_index: LogIndex,
}

impl JobRow {
    /// Returns the job's version with this number, if it is kept.
    pub(crate) fn version(&self, number: u64) -> Option<&Arc<JobVersion>> {
        std::iter::once(&self.job.current)
            .chain(&self.older)
            .find(|version| version.version == number)
    }

    /// Returns the hash of the row. The entry that registered a version identifies it. The allocations' table has no
    /// more of a version than this entry, so the current version is hashed whole here.
    fn hash(&self) -> u64 {
        let Self {
            job,
            older,
            plan_index,
        } = self;
        let Job {
            current,
            stop,
            status,
            stable,
            tags,
            scaling_events,
            launched_at,
            modify_index,
        } = &**job;
        let older: Vec<LogIndex> = older.iter().map(|one| one.job_modify_index).collect();
        let life = (stop, status, stable, launched_at);
        let hash = Digest::of(&(&**current, older, life, modify_index, plan_index));
        // A job without tags and scaling events has the hash from before these existed: snapshots of that time have it.
        let hash = if tags.is_empty() {
            hash
        } else {
            Digest::of(&(hash, tags))
        };
        if scaling_events.is_empty() {
            hash
        } else {
            Digest::of(&(hash, "scaling events", &**scaling_events))
        }
    }
}

/// The table of jobs.
pub type Jobs = MapTable<JobIndexes>;

/// The indexes of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobIndexes {
    /// Jobs that have an instance on every feasible node and are not stopped.
    on_every_node: OrdSet<Arc<JobKey>>,
    /// Periodic jobs that are not stopped.
    periodic: OrdSet<Arc<JobKey>>,
    /// Jobs that are over, by the time they were last submitted.
    over: OrdSet<(Timestamp, Arc<JobKey>)>,
    /// Number of instances that the jobs of a namespace want; a namespace that wants none is left out.
    instances: OrdMap<String, u64>,
}

impl Indexes for JobIndexes {
    type Key = Arc<JobKey>;
    type Query = JobKey;
    type Row = Arc<JobRow>;
    type Shown = Arc<Job>;
    type Fact = ();

    /// A write to a tree copies the adjacent keys, too.
    const SHARES_KEYS: bool = true;

    fn key(row: &Arc<JobRow>) -> Arc<JobKey> {
        Arc::new(row.job.key())
    }

    fn shown(row: &Arc<JobRow>) -> &Arc<Job> {
        &row.job
    }

    fn hash(row: &Arc<JobRow>) -> u64 {
        row.hash()
    }

    fn modify_index(row: &Arc<JobRow>) -> LogIndex {
        row.job.modify_index
    }

    fn follow(&mut self, key: &Arc<JobKey>, change: RowChange<'_, Arc<JobRow>>, (): ()) {
        let named = |belongs: bool| belongs.then(|| Arc::clone(key));
        change.set(&mut self.on_every_node, |row| {
            let spec = &row.job.current.spec;
            named(spec.job_type.is_on_every_node() && !row.job.stop && !spec.is_template())
        });
        change.set(&mut self.periodic, |row| {
            named(!row.job.stop && row.job.current.spec.periodic.is_some())
        });
        change.set(&mut self.over, |row| {
            named(is_over(&row.job)).map(|key| (row.job.current.submit_time, key))
        });
        change.sum(&mut self.instances, |row| {
            let wanted = Some(instances(&row.job)).filter(|wanted| *wanted > 0)?;
            Some((key.namespace.clone(), wanted))
        });
    }
}

impl Jobs {
    /// Returns the jobs of one namespace, by id.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<Job>> + use<'_> {
        let from = JobKey {
            namespace: namespace.to_owned(),
            job_id: String::new(),
        };
        let namespace = namespace.to_owned();
        self.from(&from)
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, job)| job)
    }

    /// Returns jobs that have an instance on every feasible node and are not stopped.
    pub fn on_every_node(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.indexes
            .on_every_node
            .iter()
            .filter_map(|key| self.get(key))
    }

    /// Returns periodic jobs that are not stopped.
    pub fn periodic(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.indexes.periodic.iter().filter_map(|key| self.get(key))
    }

    /// Returns jobs that are over, by the time they were last submitted, from the given position on.
    pub(crate) fn over_from(
        &self,
        (at, key): (Timestamp, JobKey),
    ) -> impl Iterator<Item = (Timestamp, &JobKey)> {
        let over = self.indexes.over.range((at, Arc::new(key))..);
        over.map(|(at, key)| (*at, &**key))
    }

    /// Returns jobs that `parent` made, by id.
    pub fn children(&self, parent: &JobKey) -> impl Iterator<Item = &Arc<Job>> + use<'_> {
        let JobKey { namespace, job_id } = parent.clone();
        let from = JobKey {
            namespace: namespace.clone(),
            job_id: format!("{job_id}/"),
        };
        let prefix = from.job_id.clone();
        self.from(&from)
            .take_while(move |(key, _)| {
                key.namespace == namespace && key.job_id.starts_with(&prefix)
            })
            .map(|(_, job)| job)
            .filter(move |job| {
                let launched = job.current.spec.launched.as_ref();
                launched.is_some_and(|launched| launched.parent_id == job_id)
            })
    }

    /// Returns the versions of a job, newest first.
    #[must_use]
    pub fn versions(&self, key: &JobKey) -> Vec<Arc<JobVersion>> {
        self.row(key).map_or_else(Vec::new, |row| {
            std::iter::once(&row.job.current)
                .chain(&row.older)
                .map(Arc::clone)
                .collect()
        })
    }

    /// Returns the version of a job with this number, if it is kept.
    #[must_use]
    pub fn version(&self, key: &JobKey, number: u64) -> Option<Arc<JobVersion>> {
        self.row(key)?.version(number).map(Arc::clone)
    }

    /// Returns the number of instances that the jobs of a namespace want together.
    pub(crate) fn instances_in(&self, namespace: &str) -> u64 {
        self.indexes.instances.get(namespace).copied().unwrap_or(0)
    }

    /// Records that a plan was carried out. Readers of the job do not see this as a change.
    pub(crate) fn set_plan_index(&mut self, key: &JobKey, index: LogIndex) {
        self.amend(key, |row| Arc::make_mut(row).plan_index = index);
    }
}

/// Returns the number of instances that a job wants: none if it is stopped, over, or only makes other jobs.
pub(crate) fn instances(job: &Job) -> u64 {
    if job.stop || is_over(job) || job.current.spec.is_template() {
        0
    } else {
        job.current.spec.instances()
    }
}

/// Returns whether a job does no more work unless it is submitted again. A job that makes other jobs is over when it is
/// stopped, and so is a job that runs for ever. The state of its children does not count.
pub(crate) fn is_over(job: &Job) -> bool {
    let spec = &job.current.spec;
    let runs_to_completion = spec.job_type.is_batch() && !spec.is_template();
    job.status == JobStatus::Dead && (job.stop || runs_to_completion)
}
