//! What must be so when faults have stopped and time has passed.

use std::collections::BTreeSet;

use muster_control_core::scheduler;
use muster_domain::alloc::DesiredStatus;
use muster_domain::eval::EvalStatus;
use muster_domain::id::AllocId;
use muster_domain::job::{Job, JobType};
use muster_domain::node::NodeStatus;

use crate::agent::Agent;
use crate::server::Server;

/// Everything that is not at rest where it should be.
#[must_use]
pub fn unrest(server: &Server, agents: &[Agent]) -> Vec<String> {
    let mut unrest = Vec::new();
    if server.has_work() {
        unrest.push("the server still has work".to_owned());
    }
    for job in server.state.jobs().iter() {
        job_is_served(server, job, &mut unrest);
    }
    evals_have_ended(server, &mut unrest);
    for agent in agents {
        agent_agrees(server, agent, &mut unrest);
    }
    unrest
}

/// A service has all its instances, or waits for room that there is not.
fn job_is_served(server: &Server, job: &Job, unrest: &mut Vec<String>) {
    let key = job.key();
    for group in &job.current.spec.groups {
        let live = server
            .state
            .allocs()
            .of_job(&key)
            .filter(|alloc| !alloc.is_terminal());
        let live = live
            .filter(|alloc| alloc.group().name == group.name)
            .count();
        let wanted = match (job.stop, job.current.spec.job_type) {
            (true, _) => 0,
            (false, JobType::Service | JobType::System) => group.count as usize,
            // What is done or failed for good counts as well.
            (false, JobType::Batch | JobType::SysBatch) => live.min(group.count as usize),
        };
        let waits = server
            .state
            .evals()
            .open_of_job(&key)
            .find(|eval| eval.status == EvalStatus::Blocked)
            .map_or(0, |eval| {
                eval.queued
                    .iter()
                    .filter(|(name, _)| *name == group.name)
                    .map(|(_, count)| *count)
                    .sum()
            });
        if live + waits as usize != wanted && waits == 0 {
            unrest.push(format!(
                "job {key} has {live} of {wanted} instances of {}",
                group.name
            ));
        }
    }
}

/// Only blocked evaluations are open, and no node could help them.
fn evals_have_ended(server: &Server, unrest: &mut Vec<String>) {
    for eval in server.state.evals().pending() {
        if eval.status != EvalStatus::Blocked {
            unrest.push(format!(
                "evaluation {} of {} is {}",
                eval.id,
                eval.job,
                eval.status.word()
            ));
            continue;
        }
        let plan = scheduler::schedule(&server.state, eval, eval.modify_time).plan;
        if !plan.is_empty() {
            unrest.push(format!(
                "evaluation {} of {} waits although there is room",
                eval.id, eval.job
            ));
        }
    }
}

/// What an agent runs is what the server wants it to run.
fn agent_agrees(server: &Server, agent: &Agent, unrest: &mut Vec<String>) {
    let name = &agent.spec.name;
    match server
        .state
        .nodes()
        .get(&agent.spec.id)
        .map(|node| node.status)
    {
        Some(NodeStatus::Ready) => {}
        other => unrest.push(format!("{name} is connected but {other:?}")),
    }
    let wanted: BTreeSet<AllocId> = server
        .state
        .allocs()
        .of_node(&agent.spec.id)
        .filter(|alloc| !alloc.is_terminal())
        .map(|alloc| alloc.id)
        .collect();
    let running: BTreeSet<AllocId> = agent
        .allocs
        .iter()
        .filter(|(_, held)| held.desired == DesiredStatus::Run && !held.status.is_terminal())
        .map(|(alloc_id, _)| *alloc_id)
        .collect();
    for alloc_id in wanted.symmetric_difference(&running) {
        let (wants, runs) = (wanted.contains(alloc_id), running.contains(alloc_id));
        unrest.push(format!(
            "{name}: allocation {alloc_id} is wanted {wants}, runs {runs}"
        ));
    }
}
