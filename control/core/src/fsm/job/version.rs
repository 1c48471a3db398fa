//! Versions of a job: the first and the next version, the kept versions, and the stable versions.

use std::sync::Arc;

use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::{Job, JobSpec, JobVersion};

use crate::fsm::change::Change;
use crate::limits;
use crate::state::JobRow;

/// Returns the row of a job that did not exist before.
pub(in crate::fsm) fn first_version(change: &Change<'_>, spec: JobSpec) -> JobRow {
    JobRow {
        job: Arc::new(Job::first_version(spec, change.at, change.index)),
        older: Vec::new(),
        plan_index: LogIndex(0),
    }
}

pub(super) fn next_version(change: &Change<'_>, row: &JobRow, spec: JobSpec) -> JobRow {
    let current = &row.job.current;
    let mut older = vec![Arc::clone(current)];
    older.extend(row.older.iter().map(Arc::clone));
    retain_versions(&row.job, &mut older);
    let version = JobVersion {
        spec,
        version: current.version + 1,
        submit_time: change.at,
        create_index: current.create_index,
        job_modify_index: change.index,
    };
    let job = Job {
        current: Arc::new(version),
        stop: false,
        status: row.job.status,
        stable: kept_stable(&row.job, &older),
        tags: row.job.tags.clone(),
        scaling_events: Arc::clone(&row.job.scaling_events),
        launched_at: row.job.launched_at,
        modify_index: change.index,
    };
    JobRow {
        job: Arc::new(job),
        older,
        plan_index: row.plan_index,
    }
}

/// Keeps the older versions that stay beside a new version: all tagged versions, and as many others as there is room
/// for.
pub(super) fn retain_versions(job: &Job, older: &mut Vec<Arc<JobVersion>>) {
    let mut nameless = 0;
    older.retain(|version| {
        let has_name = job.tag_of(version.version).is_some();
        nameless += usize::from(!has_name);
        has_name || nameless < limits::JOB_VERSIONS_MAX
    });
}

/// Returns the stable versions that are kept.
pub(super) fn kept_stable(job: &Job, older: &[Arc<JobVersion>]) -> Vec<u64> {
    let kept = |number: &&u64| {
        let mut versions = std::iter::once(&job.current).chain(older);
        versions.any(|version| version.version == **number)
    };
    job.stable.iter().filter(kept).copied().collect()
}

/// Makes the specification of the older version `version` a new version.
pub(in crate::fsm) fn revert_to_version(
    change: &mut Change<'_>,
    row: &JobRow,
    version: &JobVersion,
) -> Arc<Job> {
    let next = next_version(change, row, version.spec.clone());
    let job = Arc::clone(&next.job);
    change.put_job(next);
    job
}

/// Records whether `version` is stable.
pub(in crate::fsm) fn mark_stable(
    change: &mut Change<'_>,
    key: &JobKey,
    version: u64,
    stable: bool,
) {
    let Some(row) = change.state.jobs.row(key).map(Arc::clone) else {
        return;
    };
    if row.job.is_stable(version) == stable || row.version(version).is_none() {
        return;
    }
    let mut job = (*row.job).clone();
    job.stable.retain(|known| *known != version);
    if stable {
        job.stable.push(version);
        job.stable.sort_unstable();
    }
    job.modify_index = change.index;
    change.put_job(JobRow {
        job: Arc::new(job),
        ..(*row).clone()
    });
}
