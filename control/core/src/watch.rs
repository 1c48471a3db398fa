//! Changes that only time causes: deployments that miss their deadline, and nodes that are drained step by step.
//!
//! The module is a function of the state and the time. It returns the commands to propose now, and when to look again.
//! Looking twice proposes nothing twice, because the effect of a proposal shows in the state. So a lost entry costs one
//! more look.
//!
//! A drain goes through these steps. Instances of services leave as their group's `migrate` block allows: a few at a
//! time while enough others are healthy. Instances of batch jobs may finish. Instances of system jobs leave last. At
//! the deadline all remaining instances leave at once. The drain is complete when the last of them has really ended.

mod timing;

use std::collections::BTreeMap;

use muster_domain::alloc::{DesiredStatus, Transition};
use muster_domain::eval::{EvalStatus, Trigger};
use muster_domain::id::{AllocId, JobKey, Timestamp};
use muster_domain::job::{JobType, MigrateStrategy};
use muster_domain::node::{Drain, Node};

use crate::fsm::{
    AllocCommand, DeploymentChange, DeploymentCommand, Entry, NodeCommand, is_late, next_deadline,
};
use crate::state::{AllocView, State};

pub use timing::Watcher;

/// The commands to propose now, and when to look again although nothing changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DueCommands {
    pub commands: Vec<Entry>,
    /// The time of the next look. `None`: when something changes.
    pub next: Option<Timestamp>,
}

/// Returns whether anything in `state` needs a look.
#[must_use]
pub fn is_needed(state: &State) -> bool {
    state.nodes().draining().next().is_some() || state.deployments().active().next().is_some()
}

/// Looks at `state` at the time `now`.
#[must_use]
pub fn due(state: &State, now: Timestamp) -> DueCommands {
    let mut due = DueCommands::default();
    missed_deadlines(state, now, &mut due);
    drains(state, now, &mut due);
    due
}

fn earlier(next: &mut Option<Timestamp>, at: Timestamp) {
    *next = Some(next.map_or(at, |next| next.min(at)));
}

fn missed_deadlines(state: &State, now: Timestamp, due: &mut DueCommands) {
    for deployment in state.deployments().active() {
        let mut groups = deployment.groups.iter();
        if groups.any(|group| is_late(state, deployment, group, now)) {
            due.commands.push(
                DeploymentCommand::Change {
                    id: deployment.id,
                    change: DeploymentChange::MissedDeadline,
                }
                .at(now),
            );
        }
    }
    if let Some(at) = next_deadline(state, now) {
        earlier(&mut due.next, at);
    }
}

/// A group of a job.
type Group = (JobKey, String);

fn drains(state: &State, now: Timestamp, due: &mut DueCommands) {
    let mut leaving: Vec<AllocId> = Vec::new();
    let mut services: BTreeMap<Group, Vec<AllocId>> = BTreeMap::new();
    for node in state.nodes().draining() {
        let Some(drain) = node.drain else { continue };
        let is_over = drain.deadline().is_some_and(|deadline| deadline <= now);
        if let Some(deadline) = drain.deadline().filter(|_| !is_over) {
            earlier(&mut due.next, deadline);
        }
        drain_node(
            state,
            node,
            drain,
            is_over,
            now,
            &mut leaving,
            &mut services,
            due,
        );
    }
    for ((key, group), candidates) in services {
        let free = may_leave(state, &key, &group);
        leaving.extend(candidates.into_iter().take(free));
    }
    if !leaving.is_empty() {
        leaving.sort_by_key(AllocId::origin);
        due.commands.push(
            AllocCommand::Migrate {
                alloc_ids: leaving,
                trigger: Trigger::NodeDrain,
            }
            .at(now),
        );
    }
}

#[expect(
    clippy::too_many_arguments,
    reason = "one node's share of one look; a struct for it would be made once"
)]
fn drain_node(
    state: &State,
    node: &Node,
    drain: Drain,
    is_over: bool,
    now: Timestamp,
    leaving: &mut Vec<AllocId>,
    services: &mut BTreeMap<Group, Vec<AllocId>>,
    due: &mut DueCommands,
) {
    let is_system = |alloc: &AllocView<'_>| alloc.job().spec.job_type.is_on_every_node();
    let left: Vec<AllocView<'_>> = state
        .allocs_on(&node.spec.id)
        .filter(|alloc| !alloc.client_status().is_terminal())
        .filter(|alloc| {
            // An instance that was to be restarted here ends, because the node takes no new instance.
            let is_ignored = drain.spec.ignore_system_jobs && !alloc.transition().migrate;
            !(is_ignored && is_system(alloc))
        })
        .collect();
    if left.is_empty() {
        due.commands.push(
            NodeCommand::CompleteDrain {
                node_id: node.spec.id,
            }
            .at(now),
        );
        return;
    }
    let only_system = left.iter().all(is_system);
    for alloc in left {
        if alloc.desired() != DesiredStatus::Run {
            continue;
        }
        let Transition { migrate, .. } = alloc.transition();
        // An instance that was asked to leave before the drain began may have had no other place than this node.
        let may_be_stuck = is_over || is_system(&alloc);
        if migrate && !(may_be_stuck && is_forgotten(state, alloc)) {
            continue;
        }
        match alloc.job().spec.job_type {
            // An instance that was asked to leave before the drain began waits for no other.
            JobType::System | JobType::SysBatch if only_system || migrate => {
                leaving.push(alloc.id());
            }
            JobType::Service | JobType::Batch if is_over => leaving.push(alloc.id()),
            JobType::Service => {
                let group = ((**alloc.job_key()).clone(), alloc.group().name.clone());
                services.entry(group).or_default().push(alloc.id());
            }
            JobType::Batch | JobType::System | JobType::SysBatch => {}
        }
    }
}

/// Returns whether no evaluation will look at the job of an allocation that should have left.
fn is_forgotten(state: &State, alloc: AllocView<'_>) -> bool {
    let mut open = state.evals().open_of_job(alloc.job_key());
    !open.any(|eval| eval.status == EvalStatus::Pending)
}

/// Returns the number of healthy instances of a group that may leave now.
fn may_leave(state: &State, key: &JobKey, group: &str) -> usize {
    let Some(job) = state.jobs().get(key) else {
        return usize::MAX;
    };
    let Some(spec) = job.current.spec.group(group) else {
        return usize::MAX;
    };
    let healthy = state
        .allocs()
        .of_job(key)
        .filter(|alloc| alloc.group().name == group && !alloc.is_terminal())
        .filter(|alloc| alloc.healthy() == Some(true) && !alloc.transition().migrate)
        .count();
    let at_once = spec
        .migrate
        .unwrap_or_else(MigrateStrategy::default)
        .max_parallel;
    let needed = spec.count.saturating_sub(at_once) as usize;
    healthy.saturating_sub(needed)
}

#[cfg(test)]
mod tests;
