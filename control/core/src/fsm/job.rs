//! Commands that change a job: registered, stopped, looked at again.

use std::sync::Arc;

use muster_domain::eval::Trigger;
use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::{Job, JobSpec, JobStatus, JobVersion};

use super::{Change, Rejection, Response};
use crate::limits;
use crate::state::JobRow;

/// Records a job. The same specification again makes no version, but an evaluation; so does one that
/// was stopped make a version, so that what it ran before does not count as done.
pub(super) fn register(
    change: &mut Change<'_>,
    spec: JobSpec,
    check_index: Option<LogIndex>,
) -> Result<Response, Rejection> {
    let key = spec.key();
    let old = change.state.jobs.row(&key).map(Arc::clone);
    admissible(&spec, old.as_deref(), check_index)?;
    let row = match old {
        Some(row) if row.job.current.spec == spec && !row.job.stop => (*row).clone(),
        Some(row) => next_version(change, &row, spec),
        None => JobRow {
            job: Arc::new(Job {
                current: Arc::new(JobVersion {
                    spec,
                    version: 0,
                    submit_time: change.at,
                    create_index: change.index,
                    job_modify_index: change.index,
                }),
                stop: false,
                status: JobStatus::Pending,
                modify_index: change.index,
            }),
            older: Vec::new(),
            plan_index: LogIndex(0),
        },
    };
    let job = Arc::clone(&row.job);
    change.put_job(row);
    let eval_id = change.add_eval(&job, Trigger::JobRegister);
    Ok(Response::JobRegistered {
        eval_id,
        version: job.current.version,
        job_modify_index: job.current.job_modify_index,
    })
}

fn admissible(
    spec: &JobSpec,
    old: Option<&JobRow>,
    check_index: Option<LogIndex>,
) -> Result<(), Rejection> {
    let key = spec.key();
    let actual = old.map_or(LogIndex(0), |row| row.job.current.job_modify_index);
    if let Some(expected) = check_index.filter(|expected| *expected != actual) {
        return Err(Rejection::CheckIndex {
            key,
            expected,
            actual,
        });
    }
    if spec.groups.is_empty() {
        return Err(Rejection::NoGroups(key));
    }
    match old.map(|row| row.job.current.spec.job_type) {
        Some(from) if from != spec.job_type => Err(Rejection::JobTypeChanged {
            key,
            from,
            to: spec.job_type,
        }),
        Some(_) | None => Ok(()),
    }
}

fn next_version(change: &Change<'_>, row: &JobRow, spec: JobSpec) -> JobRow {
    let current = &row.job.current;
    let mut older = vec![Arc::clone(current)];
    older.extend(
        row.older
            .iter()
            .take(limits::JOB_VERSIONS_MAX - 2)
            .map(Arc::clone),
    );
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
        modify_index: change.index,
    };
    JobRow {
        job: Arc::new(job),
        older,
        plan_index: row.plan_index,
    }
}

/// Records that a job is to be stopped, and forgets it if `purge` says so. Its allocations are stopped
/// by the evaluation, and forgotten when they have ended.
pub(super) fn deregister(
    change: &mut Change<'_>,
    key: JobKey,
    purge: bool,
) -> Result<Response, Rejection> {
    let Some(row) = change.state.jobs.row(&key).map(Arc::clone) else {
        return Err(Rejection::UnknownJob(key));
    };
    if purge {
        change.remove_job(&key);
    } else if !row.job.stop {
        let job = Job {
            stop: true,
            modify_index: change.index,
            ..(*row.job).clone()
        };
        change.put_job(JobRow {
            job: Arc::new(job),
            ..(*row).clone()
        });
    }
    let eval_id = change.add_eval(&row.job, Trigger::JobDeregister);
    Ok(Response::JobDeregistered { eval_id })
}

/// Has a job looked at, without a change.
pub(super) fn evaluate(change: &mut Change<'_>, key: JobKey) -> Result<Response, Rejection> {
    let Some(job) = change.state.jobs.get(&key).map(Arc::clone) else {
        return Err(Rejection::UnknownJob(key));
    };
    let eval_id = change.add_eval(&job, Trigger::JobRegister);
    Ok(Response::EvalCreated { eval_id })
}
