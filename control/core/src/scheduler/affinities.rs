//! The affinities of a group, with those of its job and of its tasks.

use muster_domain::job::{Affinity, JobSpec, TaskGroup};

/// Returns the affinities of job, group and tasks.
pub(super) fn affinities<'a>(
    job: &'a JobSpec,
    group: &'a TaskGroup,
) -> impl Iterator<Item = &'a Affinity> {
    let of_tasks = group.tasks.iter().flat_map(|task| &task.affinities);
    job.affinities
        .iter()
        .chain(&group.affinities)
        .chain(of_tasks)
}
