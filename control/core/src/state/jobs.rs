//! Jobs and their versions.
//!
//! A row holds the current version and the older ones that are kept, newest first. Versions never
//! change; allocations share them. `plan_index` is the last entry that placed or stopped something of
//! the job by a plan: a plan made from an older state is stale, which makes placing twice impossible.

use std::sync::Arc;

use imbl::{OrdMap, OrdSet};
use muster_domain::id::{JobKey, LogIndex, Timestamp};
use muster_domain::job::{Job, JobStatus, JobVersion};

use super::digest::Digest;
use super::table::{Indexes, MapTable, RowChange};

/// A job and what the API does not show of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobRow {
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

    /// Versions are named by the entry that registered them; what they say is in the allocations' table
    /// no more than here, so the current one is hashed whole.
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
        // Without tags and scaling events it is as it was before there were any: snapshots of that time say so.
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
    /// Jobs that have an instance on every node they can use and are not told to stop.
    on_every_node: OrdSet<Arc<JobKey>>,
    /// Jobs that are launched by time and are not told to stop.
    periodic: OrdSet<Arc<JobKey>>,
    /// Jobs that are over, by the time they were last submitted.
    over: OrdSet<(Timestamp, Arc<JobKey>)>,
    /// Instances that the jobs of a namespace want; a namespace that wants none is left out.
    instances: OrdMap<String, u64>,
}

impl Indexes for JobIndexes {
    type Key = Arc<JobKey>;
    type Query = JobKey;
    type Row = Arc<JobRow>;
    type Shown = Arc<Job>;
    type Fact = ();

    /// A tree copies the keys that lie beside one that it writes.
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
    /// Those of one namespace, by id.
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

    /// Jobs that have an instance on every node they can use and are not told to stop.
    pub fn on_every_node(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.indexes
            .on_every_node
            .iter()
            .filter_map(|key| self.get(key))
    }

    /// Jobs that are launched by time and are not told to stop.
    pub fn periodic(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.indexes.periodic.iter().filter_map(|key| self.get(key))
    }

    /// Jobs that are over, by the time they were last submitted, from the position given on.
    pub(crate) fn over_from(
        &self,
        (at, key): (Timestamp, JobKey),
    ) -> impl Iterator<Item = (Timestamp, &JobKey)> {
        let over = self.indexes.over.range((at, Arc::new(key))..);
        over.map(|(at, key)| (*at, &**key))
    }

    /// Jobs that `parent` made, by id.
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

    /// Its versions, newest first.
    #[must_use]
    pub fn versions(&self, key: &JobKey) -> Vec<Arc<JobVersion>> {
        self.row(key).map_or_else(Vec::new, |row| {
            std::iter::once(&row.job.current)
                .chain(&row.older)
                .map(Arc::clone)
                .collect()
        })
    }

    /// Its version of this number, if it is kept.
    #[must_use]
    pub fn version(&self, key: &JobKey, number: u64) -> Option<Arc<JobVersion>> {
        self.row(key)?.version(number).map(Arc::clone)
    }

    /// Instances that the jobs of a namespace want together.
    pub(crate) fn instances_in(&self, namespace: &str) -> u64 {
        self.indexes.instances.get(namespace).copied().unwrap_or(0)
    }

    /// Records that a plan was carried out. Not a change that readers of the job would see.
    pub(crate) fn set_plan_index(&mut self, key: &JobKey, index: LogIndex) {
        self.amend(key, |row| Arc::make_mut(row).plan_index = index);
    }
}

/// Instances that a job wants: none if it is stopped, over, or only makes other jobs.
pub(crate) fn instances(job: &Job) -> u64 {
    if job.stop || is_over(job) || job.current.spec.is_template() {
        0
    } else {
        job.current.spec.instances()
    }
}

/// Whether nothing more will come of a job unless it is submitted again. One that makes others is over when it
/// is stopped, one that runs for ever too; its children have a life of their own.
pub(crate) fn is_over(job: &Job) -> bool {
    let spec = &job.current.spec;
    let runs_to_completion = spec.job_type.is_batch() && !spec.is_template();
    job.status == JobStatus::Dead && (job.stop || runs_to_completion)
}
