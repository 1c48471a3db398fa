//! The events for which active deployments and blocked evaluations wait.
//!
//! The rule: each of them waits for at least one event that is listed here, or it would never change. The simulator
//! applies the rule to the state after every entry.

use muster_domain::alloc::DesiredStatus;
use muster_domain::deployment::{Deployment, DeploymentGroup, DeploymentStatus};
use muster_domain::eval::{EvalStatus, Evaluation};
use muster_domain::id::{AllocId, EvalId, JobKey, Timestamp};
use muster_domain::number;

use super::State;

/// An event by which a deployment or a blocked evaluation continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockingEvent {
    /// The scheduler evaluates the job, not before the given time.
    Evaluation {
        eval_id: EvalId,
        /// The earliest time of the evaluation; 0 for at once.
        not_before: Timestamp,
    },
    /// An operator resumes the deployment.
    Resume,
    /// An operator promotes the canaries of a group.
    Promotion { group: String },
    /// An agent reports the health of an allocation.
    Health { alloc_id: AllocId },
    /// The progress deadline of a group passes.
    Deadline { group: String, at: Timestamp },
    /// A node gets room for instances of a group.
    Capacity {
        group: String,
        /// The number of instances.
        count: u32,
    },
}

impl BlockingEvent {
    /// Returns whether the wait may last for ever although all nodes, agents and servers are healthy.
    #[must_use]
    pub fn is_open_ended(&self) -> bool {
        match self {
            Self::Resume | Self::Promotion { .. } | Self::Capacity { .. } => true,
            Self::Evaluation { .. } | Self::Health { .. } | Self::Deadline { .. } => false,
        }
    }
}

/// Returns a text for every active deployment and every blocked evaluation that waits for nothing.
#[must_use]
pub fn broken(state: &State) -> Vec<String> {
    let mut broken = Vec::new();
    for deployment in state.deployments().active() {
        if let Err(why) = of_deployment(state, deployment) {
            let (id, key) = (deployment.id, &deployment.job);
            broken.push(format!(
                "deployment {id} of {key} is stuck: {why}: {deployment:?}"
            ));
        }
    }
    let open = state.evals().pending();
    for eval in open.filter(|eval| eval.status == EvalStatus::Blocked) {
        if let Err(why) = of_eval(state, eval) {
            let (id, key) = (eval.id, &eval.job);
            broken.push(format!("blocked evaluation {id} of {key} is stuck: {why}"));
        }
    }
    broken
}

/// Returns the events for which an active deployment waits.
///
/// # Errors
///
/// A text that names the group that waits for nothing, if there is one.
pub fn of_deployment(state: &State, deployment: &Deployment) -> Result<Vec<BlockingEvent>, String> {
    if deployment.status == DeploymentStatus::Paused {
        return Ok(vec![BlockingEvent::Resume]);
    }
    let mut waits = of_job(state, &deployment.job);
    if !waits.is_empty() {
        return Ok(waits);
    }
    for group in &deployment.groups {
        let of_group = of_group(state, deployment, group);
        if of_group.is_empty() && !group.is_done() {
            return Err(format!("group {} waits for nothing", group.name));
        }
        waits.extend(of_group);
    }
    if waits.is_empty() {
        return Err("every group is healthy, and no evaluation ends it".to_owned());
    }
    Ok(waits)
}

/// Returns the events for which a blocked evaluation waits.
///
/// # Errors
///
/// The reason why it waits for nothing.
pub fn of_eval(state: &State, eval: &Evaluation) -> Result<Vec<BlockingEvent>, String> {
    let mut waits = of_job(state, &eval.job);
    let Some(job) = state.jobs().get(&eval.job).filter(|job| !job.stop) else {
        if waits.is_empty() {
            return Err("its job is stopped, and no evaluation ends it".to_owned());
        }
        return Ok(waits);
    };
    for (name, count) in &eval.queued {
        if *count > 0 && job.current.spec.group(name).is_some() {
            waits.push(BlockingEvent::Capacity {
                group: name.clone(),
                count: *count,
            });
        }
    }
    if waits.is_empty() {
        return Err("no group of its job waits for room".to_owned());
    }
    Ok(waits)
}

/// Returns the number of canaries of a group that run and are healthy.
pub(crate) fn healthy_canaries(state: &State, group: &DeploymentGroup) -> u32 {
    let healthy = group.placed_canaries.iter().filter(|id| {
        let alloc = state.allocs().get(id);
        alloc.is_some_and(|alloc| !alloc.is_terminal() && alloc.healthy() == Some(true))
    });
    number::count(healthy.count())
}

/// Returns the events for the pending evaluations of a job.
fn of_job(state: &State, key: &JobKey) -> Vec<BlockingEvent> {
    let open = state.evals().open_of_job(key);
    let pending = open.filter(|eval| eval.status == EvalStatus::Pending);
    let waits = pending.map(|eval| BlockingEvent::Evaluation {
        eval_id: eval.id,
        not_before: eval.wait_until,
    });
    waits.collect()
}

fn of_group(state: &State, deployment: &Deployment, group: &DeploymentGroup) -> Vec<BlockingEvent> {
    let mut waits = Vec::new();
    let name = &group.name;
    let can_promote = || healthy_canaries(state, group) >= group.desired_canaries;
    if group.awaits_promotion() && !group.auto_promote && can_promote() {
        waits.push(BlockingEvent::Promotion {
            group: name.clone(),
        });
    }
    if let Some(at) = group.deadline(healthy_canaries(state, group)) {
        waits.push(BlockingEvent::Deadline {
            group: name.clone(),
            at,
        });
    }
    let allocs = state.allocs().of_job(&deployment.job);
    let unknown = allocs.filter(|alloc| {
        alloc.deployment() == Some(deployment.id)
            && alloc.group().name == *name
            && alloc.desired() == DesiredStatus::Run
            && !alloc.client_status().is_terminal()
            && alloc.healthy().is_none()
    });
    waits.extend(unknown.map(|alloc| BlockingEvent::Health {
        alloc_id: alloc.id(),
    }));
    let mut open = state.evals().open_of_job(&deployment.job);
    let blocked = open.find(|eval| eval.status == EvalStatus::Blocked);
    let queued = blocked.iter().flat_map(|eval| &eval.queued);
    waits.extend(
        queued
            .filter(|(queued, count)| queued == name && *count > 0)
            .map(|(_, count)| BlockingEvent::Capacity {
                group: name.clone(),
                count: *count,
            }),
    );
    waits
}
