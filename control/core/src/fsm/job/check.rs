//! Checks before a job is changed.

use std::sync::Arc;

use muster_domain::id::{JobKey, LogIndex};
use muster_domain::job::JobSpec;
use muster_domain::limits::NAMESPACE_INSTANCES_MAX;

use crate::fsm::change::Change;
use crate::fsm::rejection::{JobRejection, Rejection};
use crate::state::{self, JobRow, State};

/// Returns the job, or the refusal of the command if there is no such job.
pub(in crate::fsm) fn known(change: &Change<'_>, key: &JobKey) -> Result<Arc<JobRow>, Rejection> {
    let row = change.state.jobs.row(key).map(Arc::clone);
    row.ok_or_else(|| Rejection::Job(JobRejection::Unknown(key.clone())))
}

pub(super) fn admissible(
    spec: &JobSpec,
    old: Option<&JobRow>,
    check_index: Option<LogIndex>,
) -> Result<(), Rejection> {
    let key = spec.key();
    let actual = old.map_or(LogIndex(0), |row| row.job.current.job_modify_index);
    if let Some(expected) = check_index.filter(|expected| *expected != actual) {
        return Err(Rejection::Job(JobRejection::CheckIndex {
            key,
            expected,
            actual,
        }));
    }
    if spec.groups.is_empty() {
        return Err(Rejection::Job(JobRejection::NoGroups(key)));
    }
    match old.map(|row| row.job.current.spec.job_type) {
        Some(from) if from != spec.job_type => Err(Rejection::Job(JobRejection::TypeChanged {
            key,
            from,
            to: spec.job_type,
        })),
        Some(_) | None => Ok(()),
    }
}

/// Checks that neither the job nor its namespace has too many instances with `spec`.
pub(in crate::fsm) fn check_instances(state: &State, spec: &JobSpec) -> Result<(), Rejection> {
    let key = spec.key();
    let refuse = |why| {
        Err(Rejection::Job(JobRejection::Request {
            key: key.clone(),
            why,
        }))
    };
    if let Err(why) = muster_domain::job::check_instances(spec) {
        return refuse(why);
    }
    if spec.is_template() || key.is_one_off() {
        return Ok(());
    }
    let before = state.jobs.get(&key).map_or(0, |job| state::instances(job));
    let wanted = spec.instances();
    let others = state.jobs.instances_in(&key.namespace) - before;
    if wanted > before && others + wanted > NAMESPACE_INSTANCES_MAX {
        return refuse(format!(
            "it wants {wanted} instances, and the other jobs of namespace {} want {others}: a namespace has at most {}; \
             lower the counts, stop other jobs, or use another namespace",
            key.namespace, NAMESPACE_INSTANCES_MAX
        ));
    }
    Ok(())
}
