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

/// A job and what the API does not show of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JobRow {
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

/// A row and its hash.
#[derive(Clone, Debug, PartialEq, Eq)]
struct HashedRow {
    row: Arc<JobRow>,
    hash: u64,
}

/// The table of jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Jobs {
    /// A tree copies the keys that lie beside one that it writes: so they are shared.
    rows: OrdMap<Arc<JobKey>, HashedRow>,
    /// Jobs that have an instance on every node they can use and are not told to stop.
    on_every_node: OrdSet<JobKey>,
    /// Jobs that are launched by time and are not told to stop.
    periodic: OrdSet<JobKey>,
    /// Jobs that are over, by the time they were last submitted.
    over: OrdSet<(Timestamp, Arc<JobKey>)>,
    /// Instances that the jobs of a namespace want; a namespace that wants none is left out.
    instances: OrdMap<String, u64>,
    index: LogIndex,
    hash: u64,
}

impl Jobs {
    /// The job called so.
    #[must_use]
    pub fn get(&self, key: &JobKey) -> Option<&Arc<Job>> {
        self.row(key).map(|row| &row.job)
    }

    /// All, by key.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.rows.values().map(|hashed| &hashed.row.job)
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
            .map(|(_, hashed)| &hashed.row.job)
    }

    /// Jobs that have an instance on every node they can use and are not told to stop.
    pub fn on_every_node(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.on_every_node.iter().filter_map(|key| self.get(key))
    }

    /// Jobs that are launched by time and are not told to stop.
    pub fn periodic(&self) -> impl Iterator<Item = &Arc<Job>> {
        self.periodic.iter().filter_map(|key| self.get(key))
    }

    /// Jobs that are over, by the time they were last submitted, from the position given on.
    pub(crate) fn over_from(
        &self,
        (at, key): (Timestamp, JobKey),
    ) -> impl Iterator<Item = (Timestamp, &JobKey)> {
        let over = self.over.range((at, Arc::new(key))..);
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
        self.rows
            .range(from..)
            .take_while(move |(key, _)| {
                key.namespace == namespace && key.job_id.starts_with(&prefix)
            })
            .map(|(_, hashed)| &hashed.row.job)
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

    /// Instances that the jobs of a namespace want together.
    pub(crate) fn instances_in(&self, namespace: &str) -> u64 {
        self.instances.get(namespace).copied().unwrap_or(0)
    }

    /// Counts `before` instances of a namespace out and `after` in.
    fn count_instances(&mut self, namespace: &str, before: u64, after: u64) {
        if before == after {
            return;
        }
        let sum = self.instances_in(namespace) + after - before;
        if sum == 0 {
            self.instances.remove(namespace);
        } else {
            self.instances.insert(namespace.to_owned(), sum);
        }
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

    pub(crate) fn row(&self, key: &JobKey) -> Option<&Arc<JobRow>> {
        self.rows.get(key).map(|hashed| &hashed.row)
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = (&JobKey, &Arc<JobRow>)> {
        self.rows.iter().map(|(key, hashed)| (&**key, &hashed.row))
    }

    pub(crate) fn put(&mut self, row: JobRow) {
        self.index = self.index.max(row.job.modify_index);
        let hash = row.hash();
        self.hash = self.hash.wrapping_add(hash);
        let (key, spec) = (row.job.key(), &row.job.current.spec);
        let is_everywhere =
            spec.job_type.is_on_every_node() && !row.job.stop && !spec.is_template();
        let is_periodic = !row.job.stop && spec.periodic.is_some();
        put_in(&mut self.on_every_node, &key, is_everywhere);
        put_in(&mut self.periodic, &key, is_periodic);
        let over = is_over(&row.job).then_some(row.job.current.submit_time);
        let wanted = instances(&row.job);
        let row = Arc::new(row);
        let known = self.rows.get_key_value(&key);
        let key = known.map_or_else(|| Arc::new(key), |(key, _)| Arc::clone(key));
        let old = self.rows.insert(Arc::clone(&key), HashedRow { row, hash });
        let before = old.as_ref().map_or(0, |old| instances(&old.row.job));
        self.count_instances(&key.namespace, before, wanted);
        let was_over = old.and_then(|old| {
            self.hash = self.hash.wrapping_sub(old.hash);
            is_over(&old.row.job).then_some(old.row.job.current.submit_time)
        });
        if was_over == over {
            return;
        }
        if let Some(submitted) = was_over {
            self.over.remove(&(submitted, Arc::clone(&key)));
        }
        if let Some(submitted) = over {
            self.over.insert((submitted, key));
        }
    }

    /// Records that a plan was carried out. Not a change that readers of the job would see.
    pub(crate) fn set_plan_index(&mut self, key: &JobKey, index: LogIndex) {
        if let Some(HashedRow { row, hash }) = self.rows.get_mut(key) {
            self.hash = self.hash.wrapping_sub(*hash);
            Arc::make_mut(row).plan_index = index;
            *hash = row.hash();
            self.hash = self.hash.wrapping_add(*hash);
        }
    }

    pub(crate) fn remove(&mut self, key: &JobKey, index: LogIndex) -> Option<Arc<JobRow>> {
        let HashedRow { row, hash } = self.rows.remove(key)?;
        self.on_every_node.remove(key);
        self.periodic.remove(key);
        self.count_instances(&key.namespace, instances(&row.job), 0);
        if is_over(&row.job) {
            let place = (row.job.current.submit_time, Arc::new(key.clone()));
            self.over.remove(&place);
        }
        self.hash = self.hash.wrapping_sub(hash);
        self.index = index;
        Some(row)
    }

    pub(crate) fn set_index(&mut self, index: LogIndex) {
        self.index = index;
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

fn put_in(set: &mut OrdSet<JobKey>, key: &JobKey, is_in: bool) {
    if is_in {
        set.insert(key.clone());
    } else {
        set.remove(key);
    }
}
