//! Conditions that must hold when faults have stopped and time has passed.

use std::collections::BTreeSet;

use muster_control_core::scheduler;
use muster_control_core::state::waits::{self, BlockingEvent};
use muster_control_core::state::{AllocView, State};
use muster_domain::alloc::ClientStatus;
use muster_domain::deployment::{Deployment, DeploymentStatus};
use muster_domain::eval::EvalStatus;
use muster_domain::id::{AllocId, JobKey};
use muster_domain::job::{Job, JobType};
use muster_domain::node::NodeStatus;

use crate::brief;
use crate::host::Host;
use crate::oracle::RequestedJob;
use crate::world::World;

/// Returns a description of each part that is not at rest in its expected state.
pub(crate) fn unfinished(world: &World) -> Vec<String> {
    let mut unfinished = Vec::new();
    servers_agree(world, &mut unfinished);
    for client in world.clients.iter().filter(|client| client.waits()) {
        unfinished.push(format!("a client waits for an answer: {client:?}"));
    }
    let Some(leader) = world.servers.iter().find(|server| server.raft.leads()) else {
        unfinished.push("nobody leads".to_owned());
        return unfinished;
    };
    let state = &leader.machine().state;
    for (key, wanted) in &world.env.oracle.jobs {
        job_is_served(state, key, *wanted, &mut unfinished);
    }
    evals_have_ended(state, &mut unfinished);
    deployments_have_ended(state, &mut unfinished);
    for host in &world.hosts {
        agent_agrees(state, host, &mut unfinished);
    }
    unfinished
}

/// Checks that the leader has begun its duties and has no work left, and that all servers have applied all entries.
fn servers_agree(world: &World, unfinished: &mut Vec<String>) {
    let leaders = world.servers.iter().filter(|server| server.raft.leads());
    for leader in leaders {
        match leader.duties() {
            None => unfinished.push("the leader has not begun its duties".to_owned()),
            Some(duties) if duties.has_work() => unfinished.push("the leader has work".to_owned()),
            Some(_) => {}
        }
    }
    for (at, server) in world.servers.iter().enumerate() {
        let (applied, committed) = (server.applied(), world.env.oracle.committed_index());
        if applied != committed {
            unfinished.push(format!("server {at} applied {applied} of {committed}"));
        }
    }
}

/// Returns the deployment of the job's current version.
fn deployment_of<'a>(state: &'a State, job: &Job) -> Option<&'a Deployment> {
    let latest = state.deployments().latest(&job.key())?;
    let is_of = latest.job_version == job.current.version
        && latest.job_create_index == job.current.create_index;
    is_of.then_some(latest)
}

/// Checks that a job has all its instances, or waits for capacity that does not exist.
///
/// A deployment that waits for an operator adds canaries, and leaves missing instances missing. A failed deployment
/// leaves missing instances missing too.
fn job_is_served(state: &State, key: &JobKey, wanted: RequestedJob, unfinished: &mut Vec<String>) {
    let live = state.allocs().live_of_job(key);
    let Some(job) = state.jobs().get(key) else {
        if live > 0 {
            unfinished.push(format!("job {key} is gone and has {live} instances"));
        }
        return;
    };
    let least = match (wanted.stopped, job.current.spec.job_type) {
        (true, _) => 0,
        (false, JobType::Service | JobType::System) => wanted.count,
        // Instances that completed or failed for good count as well.
        (false, JobType::Batch | JobType::SysBatch) => live.min(wanted.count),
    };
    let deployment = deployment_of(state, job).filter(|_| !wanted.stopped);
    let (stands_still, most) = match deployment.map(|row| (row.status, &row.groups)) {
        Some((DeploymentStatus::Running | DeploymentStatus::Paused, groups)) => {
            let canaries = groups.iter().map(|group| group.desired_canaries);
            (true, wanted.count + canaries.sum::<u32>())
        }
        Some((DeploymentStatus::Failed, _)) => (true, wanted.count),
        Some((DeploymentStatus::Successful | DeploymentStatus::Cancelled, _)) | None => {
            (false, wanted.count)
        }
    };
    let blocked = state
        .evals()
        .open_of_job(key)
        .find(|eval| eval.status == EvalStatus::Blocked);
    let queued = blocked.map_or(0, |eval| eval.queued.iter().map(|(_, count)| *count).sum());
    let is_served = live + queued == least || queued > 0 || stands_still;
    if live > most || !is_served {
        let rows: Vec<String> = state
            .allocs()
            .of_job(key)
            .filter(|alloc| alloc.next().is_none())
            .map(brief::alloc)
            .collect();
        unfinished.push(format!(
            "job {key} has {live} of {least} instances, {queued} wait: {}",
            rows.join("; ")
        ));
    }
}

/// Checks that only blocked evaluations are open, and that no node could help them.
fn evals_have_ended(state: &State, unfinished: &mut Vec<String>) {
    for eval in state.evals().pending() {
        let name = format!("evaluation {} of {}", eval.id.short(), eval.job);
        if eval.status != EvalStatus::Blocked {
            unfinished.push(format!("{name} is {}", eval.status.as_str()));
            continue;
        }
        let plan = scheduler::schedule(state, eval, eval.modify_time).plan;
        if !plan.is_empty() {
            unfinished.push(format!("{name} waits although there is room: {plan:?}"));
        }
    }
}

/// Checks that each active deployment waits for an operator or for missing capacity, and that no deployment outlives
/// its job.
fn deployments_have_ended(state: &State, unfinished: &mut Vec<String>) {
    for row in state.deployments().iter() {
        if state.jobs().get(&row.job).is_none() {
            let status = row.status.as_str();
            unfinished.push(format!(
                "deployment {} is {status}, and its job {} is gone",
                row.id, row.job
            ));
        }
    }
    for row in state.deployments().active() {
        let name = format!("deployment {} of {}", row.id, row.job);
        match waits::of_deployment(state, row) {
            Ok(waits) if waits.iter().all(BlockingEvent::is_open_ended) => {}
            Ok(waits) => unfinished.push(format!("{name} waits: {waits:?}: {row:?}")),
            Err(why) => unfinished.push(format!("{name} is stuck: {why}: {row:?}")),
        }
    }
}

/// Checks that an agent runs exactly what the servers want, and that nothing else runs on its machine.
fn agent_agrees(state: &State, host: &Host, unfinished: &mut Vec<String>) {
    let name = format!("host {}", host.at);
    let status = state.nodes().get(&host.spec.id).map(|node| node.status);
    if status != Some(NodeStatus::Ready) {
        unfinished.push(format!("{name} is well but {status:?}"));
    }
    match &host.agent {
        Some(agent) if agent.is_reported() => {}
        Some(_) => unfinished.push(format!("{name} has something to report, or nobody to")),
        None => unfinished.push(format!("{name} has no agent")),
    }
    let wanted: BTreeSet<AllocId> = state
        .allocs_on(&host.spec.id)
        .filter(|alloc| !alloc.is_terminal())
        .map(AllocView::id)
        .collect();
    for alloc in state.allocs_on(&host.spec.id) {
        if !alloc.is_terminal() && alloc.client_status() != ClientStatus::Running {
            let (id, status) = (alloc.id().short(), alloc.client_status().as_str());
            let is = host.describe(alloc.id());
            unfinished.push(format!("{name}: {id} is said to be {status}: {is}"));
        }
    }
    let running: BTreeSet<AllocId> = host.running().map(|(alloc_id, _)| *alloc_id).collect();
    for alloc_id in wanted.symmetric_difference(&running) {
        let (wants, runs) = (wanted.contains(alloc_id), running.contains(alloc_id));
        unfinished.push(format!(
            "{name}: {} is wanted {wants}, runs {runs}: {}",
            alloc_id.short(),
            host.describe(*alloc_id)
        ));
    }
}
