//! The invariants of the state, as code.
//!
//! It runs after every command in tests and in the simulator. To check indexes, it rebuilds the state from its rows and
//! compares. Properties of rows alone are checked row by row.
//!
//! The target of a reference exists, or may be gone:
//!
//! | reference | |
//! |---|---|
//! | allocation → evaluation | exists: collections find ended allocations by their evaluation |
//! | live allocation → node | exists: only the node can report the allocation's end |
//! | active deployment → job | exists, and is the same job: only the job's evaluations end the deployment |
//! | running one-off task → allocation | exists: the end of the allocation is the end of the task |
//! | one-off task that is not over → job | exists, or the task is about to end |
//! | summary of a job → allocations | counts the existing allocations; a job without any has no summary |
//! | allocation → job | may be gone by a purge, while the agent ends the allocation, which shares its version itself |
//! | allocation → deployment | may be gone in the same case |
//! | allocation → previous allocation, next allocation, follow-up | may be gone: each is removed by its own age |
//! | ended allocation → node | may be gone; the node's number is held for the allocation |
//! | deployment that is over → job | may be gone: a later slice, or its own age, removes the deployment |
//! | evaluation → job | may be gone by a purge, which the evaluation carries out |
//! | evaluation → deployment, previous, blocked | may be gone: each is removed by its own age |
//! | summary of a job → job | may be gone as long as there are allocations |
//! | one-off task that is over → allocation | may be gone by a forced collection; the task has its result |

use std::collections::{BTreeMap, BTreeSet};

use muster_domain::alloc::{ClientStatus, DesiredStatus, RemoteHandle};
use muster_domain::eval::EvalStatus;
use muster_domain::id::{AllocId, JobKey, NodeNumber};
use muster_domain::job::JobStatus;
use muster_domain::node::NodeStatus;

use muster_domain::one_off::OneOffState;

use super::{AllocView, NodeHoldings, Nodes, State};

/// Returns every violated invariant, as text. Empty means that all hold.
#[must_use]
pub fn broken(state: &State) -> Vec<String> {
    let mut broken = Vec::new();
    allocs_refer_to_existing_rows(state, &mut broken);
    instances_run_once(state, &mut broken);
    remote_tasks_have_one_manager(state, &mut broken);
    nodes_are_not_overbooked(state, &mut broken);
    job_statuses_match_allocs_and_evals(state, &mut broken);
    evals_refer_to_existing_rows(state, &mut broken);
    deployments_refer_to_existing_rows(state, &mut broken);
    deployments_count_existing_allocs(state, &mut broken);
    one_offs_run_at_most_once(state, &mut broken);
    indexes_agree_with_rows(state, &mut broken);
    nothing_is_from_the_future(state, &mut broken);
    broken
}

fn allocs_refer_to_existing_rows(state: &State, broken: &mut Vec<String>) {
    for alloc in state.allocs.iter() {
        let name = format!("allocation {}", alloc.id());
        if state.evals.get(&alloc.eval_id()).is_none() {
            broken.push(format!(
                "{name} was placed by an evaluation that is gone: {}",
                alloc.eval_id()
            ));
        }
        if alloc.client_status() == ClientStatus::Lost && alloc.desired() == DesiredStatus::Run {
            broken.push(format!("{name} is lost but still wanted"));
        }
        if alloc.is_terminal() {
            continue;
        }
        match state.nodes.get(&alloc.node_id()) {
            None => broken.push(format!(
                "{name} is live on a node that is gone: {}",
                alloc.node_id()
            )),
            Some(node) if node.status == NodeStatus::Down && !is_looked_at(state, alloc) => {
                broken.push(format!(
                    "{name} is live on a node that is down, and no evaluation is pending: {}",
                    alloc.node_id()
                ));
            }
            Some(_) => {}
        }
    }
}

/// Returns whether an evaluation of the allocation's job is to come.
fn is_looked_at(state: &State, alloc: AllocView<'_>) -> bool {
    state.evals.open_of_job(alloc.job_key()).next().is_some()
}

/// Checks that no two live allocations have the same name; jobs that have an instance on every node use one name on all
/// of them. A canary, and a replacement of an instance that is out of reach, may share a name for a time.
fn instances_run_once(state: &State, broken: &mut Vec<String>) {
    let mut seen: BTreeMap<(&JobKey, &str, u32, Option<NodeNumber>), AllocId> = BTreeMap::new();
    for alloc in live(state) {
        let is_everywhere = alloc.job().spec.job_type.is_on_every_node();
        let is_doubled = alloc.canary()
            || alloc.next().is_some()
            || (alloc.deployment().is_some() && !is_everywhere)
            || alloc.client_status() == ClientStatus::Unknown;
        if is_doubled {
            continue;
        }
        let name = (
            &**alloc.job_key(),
            alloc.group().name.as_str(),
            alloc.name_index(),
            is_everywhere.then(|| alloc.node()),
        );
        if let Some(other) = seen.insert(name, alloc.id()) {
            broken.push(format!(
                "{} runs twice: {other} and {}",
                alloc.name(),
                alloc.id()
            ));
        }
    }
}

/// Checks that one allocation manages a remote task; an allocation that is out of reach may manage it as well. The kept
/// handles are those that an agent may report.
fn remote_tasks_have_one_manager(state: &State, broken: &mut Vec<String>) {
    let mut seen = BTreeMap::new();
    for alloc in state.allocs.iter() {
        let (remote, group) = (alloc.remote(), alloc.group());
        for handle in remote.running().iter().chain(remote.handed()) {
            let is_of_group = group.tasks.iter().any(|task| task.name == handle.task);
            if !is_of_group || !handle.fits() {
                let id = alloc.id();
                broken.push(format!("{id} has a malformed handle of {}", handle.task));
            }
        }
        if alloc.is_terminal() || alloc.client_status() == ClientStatus::Unknown {
            continue;
        }
        let is_wanted = |handle: &&RemoteHandle| !remote.handed().contains(handle);
        for handle in remote.running().iter().filter(is_wanted) {
            let name = (&**alloc.job_key(), group.name.as_str(), alloc.name_index());
            if let Some(other) = seen.insert((name, handle), alloc.id()) {
                broken.push(format!(
                    "remote task {} of {} is managed twice: {other} and {}",
                    handle.task,
                    alloc.name(),
                    alloc.id()
                ));
            }
        }
    }
}

/// Checks that the control plane does not overbook nodes. An agent that reports less than before can violate this.
fn nodes_are_not_overbooked(state: &State, broken: &mut Vec<String>) {
    let mut held: BTreeMap<NodeNumber, NodeHoldings> = BTreeMap::new();
    for alloc in live(state).filter(|alloc| !alloc.holding().is_empty()) {
        let held = held.entry(alloc.node()).or_default();
        if let Some(what) = held.conflict(alloc.holding()) {
            broken.push(format!(
                "{what} of node {} are held twice, again by {}",
                alloc.node_id(),
                alloc.id()
            ));
        }
        held.take(alloc.holding());
    }
    for column in state.nodes.columns().filter(|column| column.occupied) {
        if let Some(dimension) = column.used.exceeds(column.total) {
            broken.push(format!(
                "node {} is overbooked: {dimension}",
                column.node_id
            ));
        }
    }
}

fn job_statuses_match_allocs_and_evals(state: &State, broken: &mut Vec<String>) {
    for (key, row) in state.jobs.rows() {
        let live = state.allocs.of_job(key).any(|alloc| !alloc.is_terminal());
        let open = state
            .evals
            .of_job(key)
            .any(|eval| !eval.status.is_terminal());
        let expected = match (live, open) {
            _ if row.job.current.spec.is_template() && !row.job.stop => JobStatus::Running,
            (true, _) => JobStatus::Running,
            (false, true) => JobStatus::Pending,
            (false, false) => JobStatus::Dead,
        };
        if row.job.status != expected {
            let (status, expected) = (row.job.status.as_str(), expected.as_str());
            broken.push(format!("job {key} says it is {status} but is {expected}"));
        }
        let numbers: Vec<u64> = std::iter::once(&row.job.current)
            .chain(&row.older)
            .map(|version| version.version)
            .collect();
        if !numbers.is_sorted_by(|newer, older| newer > older) {
            broken.push(format!(
                "versions of job {key} are out of order: {numbers:?}"
            ));
        }
    }
}

fn evals_refer_to_existing_rows(state: &State, broken: &mut Vec<String>) {
    let mut blocked: BTreeSet<&JobKey> = BTreeSet::new();
    for eval in state.evals.iter() {
        if eval.status == EvalStatus::Blocked && !blocked.insert(&eval.job) {
            broken.push(format!("job {} has two blocked evaluations", eval.job));
        }
    }
}

/// Checks the references of deployments. A deployment without its job would be active for ever.
fn deployments_refer_to_existing_rows(state: &State, broken: &mut Vec<String>) {
    for deployment in state.deployments.active() {
        let (id, key) = (deployment.id, &deployment.job);
        match state.jobs.get(key) {
            None => broken.push(format!(
                "deployment {id} is under way, and its job {key} is gone"
            )),
            Some(job) if job.current.create_index != deployment.job_create_index => {
                broken.push(format!(
                    "deployment {id} is under way of an earlier job {key}"
                ));
            }
            Some(_) => {}
        }
    }
}

/// Checks that at most one deployment of a job is active, and that it counts its allocations.
fn deployments_count_existing_allocs(state: &State, broken: &mut Vec<String>) {
    let mut active: BTreeSet<&JobKey> = BTreeSet::new();
    for deployment in state.deployments.active() {
        let id = deployment.id;
        if !active.insert(&deployment.job) {
            broken.push(format!(
                "job {} has two deployments under way",
                deployment.job
            ));
        }
        for group in &deployment.groups {
            let of_group = || {
                state.allocs.of_job(&deployment.job).filter(|alloc| {
                    alloc.deployment() == Some(id) && alloc.group().name == group.name
                })
            };
            let healthy = of_group()
                .filter(|alloc| alloc.healthy() == Some(true))
                .count();
            // Allocations may be removed; the existing ones were counted.
            if healthy > group.healthy as usize || of_group().count() > group.placed as usize {
                broken.push(format!(
                    "deployment {id} counts {} of {} healthy in {}, but there are {healthy} of {}",
                    group.healthy,
                    group.placed,
                    group.name,
                    of_group().count()
                ));
            }
        }
    }
}

/// Checks that a one-off task has one allocation in all its life, and that a task that may run is not over.
fn one_offs_run_at_most_once(state: &State, broken: &mut Vec<String>) {
    for row in state.one_offs.iter() {
        let guid = &row.guid;
        let allocs: Vec<_> = state.allocs.of_job(&row.job_key()).collect();
        if allocs.len() > 1 {
            broken.push(format!("task {guid} has {} allocations", allocs.len()));
        }
        let is_over = match row.state {
            OneOffState::Pending | OneOffState::Running => false,
            OneOffState::Completed | OneOffState::Resolving => true,
        };
        if is_over != row.end.is_some() || is_over != row.first_completed_at.is_some() {
            broken.push(format!("task {guid} is {} with another end", row.state));
        }
        if !is_over && (row.state == OneOffState::Running) != row.alloc_id.is_some() {
            let task_state = row.state;
            broken.push(format!(
                "task {guid} is {task_state} with allocation {:?}",
                row.alloc_id
            ));
        }
        let runs_without = row.state == OneOffState::Running && allocs.is_empty();
        if runs_without {
            broken.push(format!(
                "task {guid} runs, and its allocation {:?} is gone",
                row.alloc_id
            ));
        }
        for alloc in allocs {
            if row.alloc_id != Some(alloc.id()) {
                broken.push(format!(
                    "task {guid} does not know allocation {}",
                    alloc.id()
                ));
            }
            if is_over != alloc.client_status().is_terminal() {
                let (alloc_status, task_state) = (alloc.client_status().as_str(), row.state);
                broken.push(format!(
                    "task {guid} is {task_state} and its allocation {alloc_status}"
                ));
            }
        }
        let is_stopped = state.jobs.get(&row.job_key()).is_none_or(|job| job.stop);
        if (is_over && !is_stopped) || (is_stopped && !is_over && row.ending.is_none()) {
            let task_state = row.state;
            broken.push(format!(
                "task {guid} is {task_state} and its job stopped: {is_stopped}"
            ));
        }
    }
}

fn indexes_agree_with_rows(state: &State, broken: &mut Vec<String>) {
    for (number, node_id) in state.allocs.nodes() {
        let known = state.nodes.number_of_any(&node_id);
        if let Some(other) = known.filter(|other| *other != number) {
            broken.push(format!(
                "allocations mean node {node_id} by {number:?}, but it has {other:?}"
            ));
        }
    }
    let anew = state.rebuilt();
    compare_nodes(&anew.nodes, &state.nodes, broken);
    for table in anew.differing(state) {
        broken.push(format!("indexes of the {table} differ from their rows"));
    }
}

fn compare_nodes(anew: &Nodes, state: &Nodes, broken: &mut Vec<String>) {
    for (expected, column) in anew.columns().zip(state.columns()) {
        if expected != column {
            broken.push(format!(
                "column of node {} says {column:?}, its rows {expected:?}",
                column.node_id
            ));
        }
    }
}

fn nothing_is_from_the_future(state: &State, broken: &mut Vec<String>) {
    for (table, index) in state.indexes() {
        if index > state.applied {
            broken.push(format!(
                "{table} changed at {index:?}, after {:?}",
                state.applied
            ));
        }
    }
}

fn live(state: &State) -> impl Iterator<Item = AllocView<'_>> {
    state.allocs.iter().filter(|alloc| !alloc.is_terminal())
}
