//! Deployments: begun and ended by plans, changed by reports of agents and by operators.
//!
//! Consequences of health alone are decided here, in the entry that reports the health. If all canaries are healthy,
//! they are promoted where the job asks for that. An unhealthy instance fails the deployment or may be replaced. Every
//! report of health adds an evaluation of the job. Only the passing of time needs a duty (`watch`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_domain::alloc::{ClientStatus, DesiredStatus};
use muster_domain::deployment::{Deployment, DeploymentGroup, DeploymentStatus};
use muster_domain::eval::Trigger;
use muster_domain::id::{AllocId, DeploymentId, EvalId, Timestamp};
use muster_domain::job::{Job, JobType, JobVersion};
use muster_domain::plan::{DeploymentUpdate, NewDeployment};
use muster_domain::{number, saturating};
use serde::{Deserialize, Serialize};

use super::change::Change;
use super::job::version;
use super::rejection::{DeploymentRejection, Rejection};
use super::response::Response;
use crate::scheduler;
use crate::state::waits::healthy_canaries;
use crate::state::{AllocView, JobRow, State};

const RUNNING: &str = "Deployment is running";
const PAUSED: &str = "Deployment is paused";
const FAILED_BY_USER: &str = "Deployment marked as failed";
const UNHEALTHY: &str = "Failed due to unhealthy allocations";
const DEADLINE: &str = "Failed due to progress deadline";

/// A change of deployments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeploymentCommand {
    /// An operator, or the duty that watches deployments, changes a deployment.
    Change {
        id: DeploymentId,
        /// The change to make.
        change: DeploymentChange,
    },
}

/// A change of a deployment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DeploymentChange {
    /// The canaries are good: go on with all instances. `None`: the canaries of every group.
    Promote(Option<Vec<String>>),
    /// Give the deployment up, and go back to the last stable version if a group asks for that.
    Fail,
    /// No instance became healthy in time.
    MissedDeadline,
    Pause,
    Resume,
    /// An operator sets the health of instances.
    SetHealth {
        healthy: Vec<AllocId>,
        unhealthy: Vec<AllocId>,
    },
}

impl DeploymentCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::Change { id: _, change } => match change {
                DeploymentChange::Promote(_) => "DeploymentPromotion",
                DeploymentChange::SetHealth { .. } => "DeploymentAllocHealth",
                DeploymentChange::Fail
                | DeploymentChange::MissedDeadline
                | DeploymentChange::Pause
                | DeploymentChange::Resume => "DeploymentStatusUpdate",
            },
        }
    }
}

pub(super) fn apply(
    change: &mut Change<'_>,
    command: DeploymentCommand,
) -> Result<Response, Rejection> {
    match command {
        DeploymentCommand::Change { id, change: wanted } => carry_out(change, id, wanted),
    }
}

/// Returns the active deployment of `version`.
pub(super) fn under_way(state: &State, version: &JobVersion) -> Option<DeploymentId> {
    let latest = state.deployments.latest(&version.spec.key())?;
    let is_of = latest.job_version == version.version
        && latest.job_create_index == version.create_index
        && latest.status.is_active();
    is_of.then_some(latest.id)
}

/// Begins a deployment of `version`; an active deployment of an older version ends.
pub(super) fn begin(change: &mut Change<'_>, version: &JobVersion, new: &NewDeployment) {
    let key = version.spec.key();
    let older: Vec<Arc<Deployment>> = change
        .state
        .deployments
        .of_job(&key)
        .filter(|older| older.status.is_active())
        .map(Arc::clone)
        .collect();
    for older in older {
        change.put_deployment(Deployment {
            status: DeploymentStatus::Cancelled,
            status_description: "Cancelled due to newer version of job".to_owned(),
            ..(*older).clone()
        });
    }
    let mut groups = new.groups.clone();
    groups.sort_by(|left, right| left.name.cmp(&right.name));
    let id = change.next_deployment();
    change.put_deployment(Deployment {
        id,
        job: key,
        job_version: version.version,
        job_modify_index: version.job_modify_index,
        job_create_index: version.create_index,
        status: DeploymentStatus::Running,
        status_description: new.description.clone(),
        groups,
        create_index: change.index,
        modify_index: change.index,
        create_time: change.at,
        modify_time: change.at,
    });
}

/// Applies a plan's update of a deployment. A successful deployment makes its version stable. Instances that failed
/// after they were healthy have not been replaced until then: an evaluation of the job is added for them.
pub(super) fn update(change: &mut Change<'_>, update: &DeploymentUpdate) {
    let Some(old) = change.state.deployments.get(&update.id).map(Arc::clone) else {
        return;
    };
    if !old.status.is_active() {
        return;
    }
    change.put_deployment(Deployment {
        status: update.status,
        status_description: update.description.clone(),
        ..(*old).clone()
    });
    if update.status == DeploymentStatus::Successful {
        version::mark_stable(change, &old.job, old.job_version, true);
        if has_failed_since(change.state, &old) {
            add_deployment_eval(change, &old);
        }
    }
}

fn has_failed_since(state: &State, deployment: &Deployment) -> bool {
    let mut allocs = state.allocs.of_job(&deployment.job);
    allocs.any(|alloc| {
        alloc.deployment() == Some(deployment.id)
            && alloc.client_status() == ClientStatus::Failed
            && !alloc.server_terminal()
            && alloc.next().is_none()
    })
}

/// Counts `count` instances that were placed, or updated in place, for the group `name`.
pub(super) fn count_placed(
    change: &mut Change<'_>,
    id: DeploymentId,
    name: &str,
    count: usize,
    canaries: Vec<AllocId>,
) {
    if count == 0 {
        return;
    }
    let at = change.at;
    change_group(change, id, name, |group| {
        group.placed = group.placed.saturating_add(number::count(count));
        group.placed_canaries.extend(canaries);
        if group.require_progress_by == Timestamp(0) {
            group.await_progress(at);
        }
    });
}

/// Counts the instances that a deployment of a system job wants: those that were healthy, and those that it waits for.
/// The numbers change with the nodes.
pub(super) fn count_wanted(change: &mut Change<'_>, id: DeploymentId, version: &JobVersion) {
    if version.spec.job_type != JobType::System {
        return;
    }
    let Some(old) = change.state.deployments.get(&id).map(Arc::clone) else {
        return;
    };
    let awaited = scheduler::awaited_nodes(change.state, version, Some(id), change.at, |_| false);
    let mut deployment = (*old).clone();
    for group in &mut deployment.groups {
        let nodes = awaited.get(group.name.as_str()).map_or(0, BTreeSet::len);
        let nodes = number::count(nodes);
        // The deadline of a finished group may have passed.
        if group.is_done() && nodes > 0 && group.require_progress_by > Timestamp(0) {
            group.await_progress(change.at);
        }
        group.desired_total = group.healthy.saturating_add(nodes);
    }
    if deployment != *old {
        change.put_deployment(deployment);
    }
}

fn change_group(
    change: &mut Change<'_>,
    id: DeploymentId,
    name: &str,
    apply: impl FnOnce(&mut DeploymentGroup),
) {
    let Some(old) = change.state.deployments.get(&id) else {
        return;
    };
    let mut deployment = (**old).clone();
    if let Some(group) = deployment
        .groups
        .iter_mut()
        .find(|group| group.name == name)
    {
        apply(group);
        change.put_deployment(deployment);
    }
}

/// Changes of the health of instances, by deployment.
#[derive(Debug, Default)]
pub(super) struct HealthUpdates(BTreeMap<DeploymentId, HealthUpdate>);

#[derive(Debug, Default)]
struct HealthUpdate {
    /// Changes of the numbers of healthy and unhealthy instances, by group.
    groups: BTreeMap<String, (i64, i64)>,
    /// Instances that are unhealthy now, by key, with their group.
    unhealthy: Vec<(u64, String)>,
}

impl HealthUpdates {
    /// Records that the health of `alloc` was `before` and is now that of `alloc`.
    pub(super) fn record_health(&mut self, before: Option<bool>, alloc: AllocView<'_>) {
        let (Some(id), now) = (alloc.deployment(), alloc.healthy()) else {
            return;
        };
        if before == now {
            return;
        }
        let name = &alloc.group().name;
        let update = self.0.entry(id).or_default();
        let counts = update.groups.entry(name.clone()).or_default();
        let count = |counts: &mut (i64, i64), health: Option<bool>, by: i64| match health {
            Some(true) => counts.0 += by,
            Some(false) => counts.1 += by,
            None => {}
        };
        count(counts, before, -1);
        count(counts, now, 1);
        if now == Some(false) {
            update.unhealthy.push((alloc.key(), name.clone()));
        }
    }
}

/// Judges an instance of an active deployment that has ended by itself, because no report of its health will come.
///
/// An instance that was healthy may be replaced at once. Nomad leaves such an instance until the deployment is over.
/// With a canary the deployment is never over: the canary is not replaced, and without it no canary can be promoted.
pub(super) fn decide_health_of_ended(change: &mut Change<'_>, key: u64) {
    let Some(alloc) = change.state.allocs.at(key) else {
        return;
    };
    let deployment = alloc.deployment();
    let deployment = deployment.and_then(|id| change.state.deployments.get(&id));
    let is_deploying = deployment.is_some_and(|deployment| deployment.status.is_active());
    let has_ended = alloc.client_status().is_terminal() && alloc.desired() == DesiredStatus::Run;
    if !is_deploying || !has_ended {
        return;
    }
    match (alloc.healthy(), scheduler::replaced_at(alloc)) {
        (Some(true), Some(_)) => change.update_for_agent(key, |row| {
            let mut transition = row.transition();
            transition.reschedule = true;
            row.set_transition(transition);
        }),
        (Some(true), None) | (None, _) => {
            change.update_for_agent(key, |row| row.set_healthy(Some(false)));
        }
        (Some(false), _) => {}
    }
}

/// Applies changes of health to the deployments.
pub(super) fn apply_health_updates(change: &mut Change<'_>, HealthUpdates(updates): HealthUpdates) {
    for (id, update) in updates {
        let Some(old) = change.state.deployments.get(&id) else {
            continue;
        };
        let mut deployment = (**old).clone();
        for group in &mut deployment.groups {
            if let Some((healthy, unhealthy)) = update.groups.get(&group.name) {
                let moved =
                    |count: u32, by: i64| saturating::to_u32((i64::from(count) + by).max(0));
                group.healthy = moved(group.healthy, *healthy);
                group.unhealthy = moved(group.unhealthy, *unhealthy);
                if *healthy > 0 {
                    group.await_progress(change.at);
                }
            }
        }
        let is_active = deployment.status.is_active();
        change.put_deployment(deployment);
        if is_active {
            handle_health_change(change, id, &update);
        }
    }
}

fn handle_health_change(change: &mut Change<'_>, id: DeploymentId, update: &HealthUpdate) {
    let Some(deployment) = change.state.deployments.get(&id).map(Arc::clone) else {
        return;
    };
    let has_no_deadline = |name: &String| {
        let group = deployment.group(name);
        group.is_some_and(|group| group.progress_deadline_ns == 0)
    };
    // Nomad waits for the progress deadline even if no policy replaces the instance.
    let cannot_succeed = |key: u64| {
        let alloc = change.state.allocs.at(key);
        alloc.is_some_and(|alloc| !scheduler::may_be_replaced(alloc))
    };
    let failing: BTreeSet<&str> = update
        .unhealthy
        .iter()
        .filter(|(key, name)| has_no_deadline(name) || cannot_succeed(*key))
        .map(|(_, name)| name.as_str())
        .collect();
    if !failing.is_empty() {
        fail(change, &deployment, UNHEALTHY, |group| {
            failing.contains(group.name.as_str())
        });
        return;
    }
    for (key, _) in &update.unhealthy {
        change.update_for_agent(*key, |row| {
            let mut transition = row.transition();
            transition.reschedule = true;
            row.set_transition(transition);
        });
    }
    promote_if_ready(change, &deployment);
    add_deployment_eval(change, &deployment);
}

/// Promotes the canaries of a running deployment without an operator, if all of them are healthy and the job asks for
/// that.
fn promote_if_ready(change: &mut Change<'_>, deployment: &Deployment) {
    let healthy = |group: &DeploymentGroup| healthy_canaries(change.state, group);
    let waiting: Vec<&DeploymentGroup> = deployment
        .groups
        .iter()
        .filter(|group| group.awaits_promotion())
        .collect();
    let is_ready = !waiting.is_empty()
        && deployment.status == DeploymentStatus::Running
        && waiting
            .iter()
            .all(|group| group.auto_promote && healthy(group) >= group.desired_canaries);
    if is_ready {
        promote(change, deployment, |_| true);
    }
}

fn add_deployment_eval(change: &mut Change<'_>, deployment: &Deployment) -> Option<EvalId> {
    let job = change.state.jobs.get(&deployment.job).map(Arc::clone)?;
    let mut eval = change.new_eval(&job, Trigger::DeploymentWatcher);
    eval.deployment = Some(deployment.id);
    Some(change.put_eval(eval))
}

fn promote(
    change: &mut Change<'_>,
    deployment: &Deployment,
    wanted: impl Fn(&DeploymentGroup) -> bool,
) {
    let mut promoted = deployment.clone();
    let mut canaries: Vec<u64> = Vec::new();
    for group in promoted
        .groups
        .iter_mut()
        .filter(|group| group.desired_canaries > 0 && !group.promoted)
    {
        if wanted(group) {
            group.promoted = true;
            let placed = group.placed_canaries.iter();
            canaries.extend(placed.filter_map(|id| change.state.allocs.key_of(id)));
            group.await_progress(change.at);
        }
    }
    if !promoted.requires_promotion() && promoted.status == DeploymentStatus::Running {
        RUNNING.clone_into(&mut promoted.status_description);
    }
    change.put_deployment(promoted);
    for key in canaries {
        let is_live = change
            .state
            .allocs
            .at(key)
            .is_some_and(|alloc| !alloc.is_terminal());
        if is_live {
            change.update_for_agent(key, |row| row.set_canary(false));
        }
    }
}

/// Gives a deployment up. If a group for which `has_failed` holds has `auto_revert`, the job goes back to its last
/// stable version. A job that was stopped meanwhile does not go back, because that would run it again.
fn fail(
    change: &mut Change<'_>,
    deployment: &Deployment,
    why: &str,
    has_failed: impl Fn(&DeploymentGroup) -> bool,
) -> Response {
    let reverts = deployment
        .groups
        .iter()
        .any(|group| group.auto_revert && has_failed(group));
    let row = change.state.jobs.row(&deployment.job).map(Arc::clone);
    let target = row
        .as_deref()
        .filter(|row| reverts && !row.job.stop)
        .filter(|row| row.job.current.version == deployment.job_version)
        .map(last_stable);
    let (description, back_to) = match target {
        None => (why.to_owned(), None),
        Some(None) => (
            format!("{why} - no stable job version to auto revert to"),
            None,
        ),
        Some(Some(version)) if Some(&version.spec) == row.as_deref().map(current_spec) => (
            format!(
                "{why} - not rolling back to stable job version {} as current job has same specification",
                version.version
            ),
            None,
        ),
        Some(Some(version)) => (
            format!("{why} - rolling back to job version {}", version.version),
            Some(version),
        ),
    };
    change.put_deployment(Deployment {
        status: DeploymentStatus::Failed,
        status_description: description,
        ..deployment.clone()
    });
    let reverted_to = back_to.as_ref().map(|version| version.version);
    if let (Some(version), Some(row)) = (back_to, &row) {
        version::revert_to_version(change, row, &version);
    }
    Response::DeploymentChanged {
        eval_id: add_deployment_eval(change, deployment),
        reverted_to,
    }
}

fn current_spec(row: &JobRow) -> &muster_domain::job::JobSpec {
    &row.job.current.spec
}

/// Returns the newest stable version before the current one.
fn last_stable(row: &JobRow) -> Option<Arc<JobVersion>> {
    let job: &Job = &row.job;
    row.older
        .iter()
        .find(|version| job.is_stable(version.version))
        .map(Arc::clone)
}

/// Carries out a change of a deployment that an operator or the duty proposed.
fn carry_out(
    change: &mut Change<'_>,
    id: DeploymentId,
    wanted: DeploymentChange,
) -> Result<Response, Rejection> {
    let Some(deployment) = change.state.deployments.get(&id).map(Arc::clone) else {
        return Err(Rejection::Deployment(DeploymentRejection::Unknown(id)));
    };
    let refused = |why: String| Rejection::Deployment(DeploymentRejection::Request { id, why });
    if !deployment.status.is_active() {
        return Err(refused(format!(
            "it is {} already: only a deployment under way can be changed",
            deployment.status.as_str()
        )));
    }
    let status = |status, description: &str| Deployment {
        status,
        status_description: description.to_owned(),
        ..(*deployment).clone()
    };
    match wanted {
        DeploymentChange::Promote(groups) => {
            may_promote(change.state, &deployment, groups.as_deref()).map_err(refused)?;
            promote(change, &deployment, |group| {
                groups
                    .as_ref()
                    .is_none_or(|names| names.contains(&group.name))
            });
        }
        DeploymentChange::Fail => {
            return Ok(fail(change, &deployment, FAILED_BY_USER, |_| true));
        }
        DeploymentChange::MissedDeadline => {
            let now = change.at;
            let groups = deployment.groups.iter();
            let late: BTreeSet<&str> = groups
                .filter(|group| is_late(change.state, &deployment, group, now))
                .map(|group| group.name.as_str())
                .collect();
            if late.is_empty() {
                return Err(refused("its progress deadline has not passed".to_owned()));
            }
            return Ok(fail(change, &deployment, DEADLINE, |group| {
                late.contains(group.name.as_str())
            }));
        }
        DeploymentChange::Pause => {
            change.put_deployment(status(DeploymentStatus::Paused, PAUSED));
            return Ok(Response::DeploymentChanged {
                eval_id: None,
                reverted_to: None,
            });
        }
        DeploymentChange::Resume => {
            let mut resumed = status(DeploymentStatus::Running, RUNNING);
            // A paused deployment made no progress, and could make none.
            for group in &mut resumed.groups {
                if group.require_progress_by > Timestamp(0) {
                    group.await_progress(change.at);
                }
            }
            change.put_deployment(resumed.clone());
            // Canaries that became healthy during the pause were not promoted, and no other report may come.
            promote_if_ready(change, &resumed);
        }
        DeploymentChange::SetHealth { healthy, unhealthy } => {
            return set_health(change, &deployment, &healthy, &unhealthy);
        }
    }
    let eval_id = add_deployment_eval(change, &deployment);
    Ok(Response::DeploymentChanged {
        eval_id,
        reverted_to: None,
    })
}

fn may_promote(
    state: &State,
    deployment: &Deployment,
    names: Option<&[String]>,
) -> Result<(), String> {
    for name in names.into_iter().flatten() {
        match deployment.group(name) {
            None => return Err(format!("it has no group {name}")),
            Some(group) if group.desired_canaries == 0 => {
                return Err(format!("group {name} has no canaries to promote"));
            }
            Some(_) => {}
        }
    }
    let mut waiting = deployment
        .groups
        .iter()
        .filter(|group| names.is_none_or(|names| names.contains(&group.name)))
        .filter(|group| group.desired_canaries > 0 && !group.promoted)
        .peekable();
    if waiting.peek().is_none() {
        return Err("it has no canaries that wait for promotion".to_owned());
    }
    for group in waiting {
        let healthy = healthy_canaries(state, group);
        if healthy < group.desired_canaries {
            return Err(format!(
                "group {} has {healthy} of {} canaries healthy: wait until all are",
                group.name, group.desired_canaries
            ));
        }
    }
    Ok(())
}

/// Returns whether no instance of `group` became healthy in time.
pub(crate) fn is_late(
    state: &State,
    deployment: &Deployment,
    group: &DeploymentGroup,
    now: Timestamp,
) -> bool {
    let is_running = deployment.status == DeploymentStatus::Running;
    let deadline = || group.deadline(healthy_canaries(state, group));
    is_running && deadline().is_some_and(|at| at <= now)
}

fn set_health(
    change: &mut Change<'_>,
    deployment: &Deployment,
    healthy: &[AllocId],
    unhealthy: &[AllocId],
) -> Result<Response, Rejection> {
    let mut health_updates = HealthUpdates::default();
    let wanted = healthy.iter().map(|id| (id, true));
    let wanted = wanted.chain(unhealthy.iter().map(|id| (id, false)));
    let mut keys = Vec::new();
    for (alloc_id, is_healthy) in wanted {
        let alloc = change.state.allocs.get(alloc_id);
        match alloc.filter(|alloc| alloc.deployment() == Some(deployment.id)) {
            Some(alloc) => keys.push((alloc.key(), alloc.healthy(), is_healthy)),
            None => {
                return Err(Rejection::Deployment(DeploymentRejection::Request {
                    id: deployment.id,
                    why: format!("allocation {alloc_id} does not belong to it"),
                }));
            }
        }
    }
    for (key, before, is_healthy) in keys {
        change.update_for_agent(key, |row| row.set_healthy(Some(is_healthy)));
        if let Some(alloc) = change.state.allocs.at(key) {
            health_updates.record_health(before, alloc);
        }
    }
    apply_health_updates(change, health_updates);
    let now = change.state.deployments.get(&deployment.id);
    let eval = now.and_then(|now| {
        let evals = change.state.evals.open_of_job(&now.job);
        evals.max_by_key(|eval| (eval.create_index, eval.id))
    });
    Ok(Response::DeploymentChanged {
        eval_id: eval
            .filter(|eval| eval.create_index == change.index)
            .map(|eval| eval.id),
        reverted_to: None,
    })
}

/// Returns the time at which the next deployment misses its deadline after `now`, if one can.
pub(crate) fn next_deadline(state: &State, now: Timestamp) -> Option<Timestamp> {
    let deadlines = state.deployments.active().flat_map(|deployment| {
        let late = deployment
            .groups
            .iter()
            .filter(|group| is_late(state, deployment, group, Timestamp(u64::MAX)));
        late.map(|group| group.require_progress_by)
    });
    deadlines.filter(|at| *at > now).min()
}
