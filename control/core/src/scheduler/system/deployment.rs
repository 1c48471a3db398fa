//! Deployments of system jobs: a new version goes from node to node as instances become healthy.
//!
//! A deployment waits for the nodes that run the job or get it. A node that takes no work keeps its older instance, and
//! the deployment does not wait for that node. So the total changes with the nodes: it is counted anew whenever a plan
//! is carried out.

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::deployment::{Deployment, DeploymentGroup, DeploymentStatus};
use muster_domain::eval::Evaluation;
use muster_domain::id::{DeploymentId, NodeNumber, Timestamp};
use muster_domain::job::{Job, JobType, JobVersion, TaskGroup, UpdateStrategy};
use muster_domain::plan::{DeploymentUpdate, NewDeployment, Plan};
use muster_domain::{number, saturating};

use crate::scheduler::replacement::replaced_at;
use crate::state::{AllocView, State};

/// Nodes by group.
type NodesByGroup<'a> = BTreeMap<&'a str, BTreeSet<NodeNumber>>;

/// Returns the nodes on which a deployment of the system job `version` waits for a healthy instance, by group.
///
/// These nodes have an instance of the deployment that is not healthy yet, or an older one that can be replaced. A node
/// whose instance failed counts until its next instance is due. Allocations for which `is_stopped` holds count as
/// stopped.
pub(crate) fn awaited_nodes<'a>(
    state: &State,
    version: &'a JobVersion,
    deployment: Option<DeploymentId>,
    now: Timestamp,
    is_stopped: impl Fn(AllocView<'_>) -> bool,
) -> NodesByGroup<'a> {
    let mut awaited: NodesByGroup<'a> = BTreeMap::new();
    let mut live: BTreeSet<(&str, NodeNumber)> = BTreeSet::new();
    let mut ended: BTreeSet<(&str, NodeNumber)> = BTreeSet::new();
    for alloc in state.allocs().of_job(&version.spec.key()) {
        let Some(group) = version.spec.group(&alloc.group().name) else {
            continue;
        };
        let (name, node) = (group.name.as_str(), alloc.node());
        let is_deployed = deployment.is_some() && alloc.deployment() == deployment;
        if alloc.is_terminal() || is_stopped(alloc) {
            if is_deployed && replaced_at(alloc).is_some_and(|at| at > now) {
                ended.insert((name, node));
            }
            continue;
        }
        live.insert((name, node));
        let is_awaited = if alloc.job().is_same(version) {
            is_deployed && alloc.healthy() != Some(true)
        } else {
            takes_work(state, alloc)
        };
        if is_awaited {
            awaited.entry(name).or_default().insert(node);
        }
    }
    for (name, node) in ended.difference(&live) {
        awaited.entry(name).or_default().insert(*node);
    }
    awaited
}

/// Returns whether the node of `alloc` takes work, so that an instance on it can be replaced.
pub(super) fn takes_work(state: &State, alloc: AllocView<'_>) -> bool {
    let column = state.nodes().column_at(alloc.node());
    column.is_some_and(|column| column.takes_work)
}

/// Returns the update strategy of `group` for deployments, if there is one: `max_parallel = 0` means none.
pub(super) fn strategy(job: &Job, group: &TaskGroup) -> Option<UpdateStrategy> {
    let is_system = job.current.spec.job_type == JobType::System;
    group
        .update
        .filter(|update| is_system && update.max_parallel > 0)
}

/// The progress of a group within the active deployment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupProgress {
    /// Instances whose health is not known yet.
    in_flight: u32,
    /// Whether an instance is unhealthy.
    is_unhealthy: bool,
    /// Whether the current version has live instances, of this deployment or of none.
    has_current: bool,
}

/// The changes that one evaluation has planned for a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupChange<'a> {
    pub(super) group: &'a TaskGroup,
    /// Number of nodes whose instances the deployment waits for.
    pub(super) total: usize,
    /// Whether instances of older versions are replaced or updated.
    pub(super) is_updating: bool,
    pub(super) progress: GroupProgress,
}

/// The newest deployment of a system job.
#[derive(Clone, Copy, Debug)]
pub(super) struct JobDeployment<'a> {
    newest: Option<&'a Deployment>,
    is_current: bool,
}

impl<'a> JobDeployment<'a> {
    pub(super) fn of(state: &'a State, job: Option<&Job>, eval: &Evaluation) -> Self {
        let newest = state.deployments().latest(&eval.job).map(|row| &**row);
        let newest = newest
            .filter(|row| job.is_none_or(|job| row.job_create_index == job.current.create_index));
        let is_current = newest
            .zip(job)
            .is_some_and(|(row, job)| row.job_version == job.current.version);
        Self { newest, is_current }
    }

    /// Returns the newest deployment, if it is of the current version.
    fn current(self) -> Option<&'a Deployment> {
        self.newest.filter(|_| self.is_current)
    }

    fn under_way(self) -> Option<&'a Deployment> {
        self.current().filter(|row| row.status.is_active())
    }

    /// Counts a live instance, or one that has failed and waits for its replacement.
    pub(super) fn count(self, alloc: AllocView<'_>, job: &Job, progress: &mut GroupProgress) {
        let is_live = !alloc.is_terminal();
        progress.has_current |= is_live && alloc.job().is_same(&job.current);
        let deployment = self.under_way().map(|row| row.id);
        if deployment.is_none() || alloc.deployment() != deployment {
            return;
        }
        match alloc.healthy() {
            Some(true) if is_live => {}
            None if is_live => progress.in_flight += 1,
            Some(_) | None => progress.is_unhealthy = true,
        }
    }

    /// Returns the number of instances that may be replaced or placed now.
    pub(super) fn limit(self, update: &UpdateStrategy, progress: GroupProgress) -> usize {
        let status = self.current().map(|row| row.status);
        match status {
            Some(DeploymentStatus::Paused | DeploymentStatus::Failed) => return 0,
            Some(
                DeploymentStatus::Running
                | DeploymentStatus::Successful
                | DeploymentStatus::Cancelled,
            )
            | None => {}
        }
        if progress.is_unhealthy {
            return 0;
        }
        let limit = update.max_parallel.saturating_sub(progress.in_flight);
        limit as usize
    }

    /// Adds the begin or the end of a deployment to `plan`, which is otherwise complete.
    pub(super) fn conclude(
        self,
        state: &State,
        job: Option<&Job>,
        now: Timestamp,
        changes: &[GroupChange<'_>],
        plan: &mut Plan,
    ) {
        let update = match (job, self.newest.filter(|row| row.status.is_active())) {
            (_, None) => None,
            (None, Some(_)) => Some((
                DeploymentStatus::Cancelled,
                "Cancelled because job is stopped",
            )),
            (Some(_), Some(_)) if !self.is_current => Some((
                DeploymentStatus::Cancelled,
                "Cancelled due to newer version of job",
            )),
            (Some(job), Some(row)) => end(state, job, row, now, plan),
        };
        plan.deployment_update =
            self.newest
                .zip(update)
                .map(|(row, (status, description))| DeploymentUpdate {
                    id: row.id,
                    status,
                    description: description.to_owned(),
                });
        if let Some(job) = job {
            plan.new_deployment = self.begin(job, changes);
        }
    }

    /// Returns a new deployment if the version changes instances, or is new.
    fn begin(self, job: &Job, changes: &[GroupChange<'_>]) -> Option<NewDeployment> {
        let is_new = match self.current().map(|row| row.status) {
            Some(
                DeploymentStatus::Running | DeploymentStatus::Paused | DeploymentStatus::Failed,
            ) => return None,
            Some(DeploymentStatus::Successful) => false,
            // A collection may have removed the successful deployment.
            None => !job.is_stable(job.current.version),
            Some(DeploymentStatus::Cancelled) => true,
        };
        let deployed = changes
            .iter()
            .filter_map(|change| Some((change, strategy(job, change.group)?)));
        let begins = |change: &GroupChange<'_>| {
            change.total > 0 && (change.is_updating || (is_new && !change.progress.has_current))
        };
        if !deployed.clone().any(|(change, _)| begins(change)) {
            return None;
        }
        // A group without nodes is also part of the deployment, because nodes may join.
        let groups = deployed.map(|(change, update)| DeploymentGroup {
            name: change.group.name.clone(),
            auto_revert: update.auto_revert,
            progress_deadline_ns: saturating::nanos(update.progress_deadline),
            desired_total: number::count(change.total),
            ..DeploymentGroup::default()
        });
        Some(NewDeployment {
            description: "Deployment is running".to_owned(),
            groups: groups.collect(),
        })
    }
}

/// Returns the end of the deployment `row`, if it waits for nothing.
fn end(
    state: &State,
    job: &Job,
    row: &Deployment,
    now: Timestamp,
    plan: &Plan,
) -> Option<(DeploymentStatus, &'static str)> {
    if !plan.groups.is_empty() {
        return None;
    }
    let stopped: BTreeSet<_> = plan.stops.iter().map(|stop| stop.alloc_id).collect();
    let is_stopped = |alloc: AllocView<'_>| stopped.contains(&alloc.id());
    let awaited = awaited_nodes(state, &job.current, Some(row.id), now, is_stopped);
    if awaited.keys().any(|name| row.group(name).is_some()) {
        return None;
    }
    // A version that ran on no node is not stable.
    if row.groups.iter().all(|group| group.healthy == 0) {
        return Some((
            DeploymentStatus::Cancelled,
            "Cancelled because no node runs the job",
        ));
    }
    Some((
        DeploymentStatus::Successful,
        "Deployment completed successfully",
    ))
}
