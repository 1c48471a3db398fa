//! `largest_job`: the memory for placing a job with the largest allowed number of instances.
//!
//! A child process places the job in slices, as a worker and the applier do, and publishes the state after each
//! slice. The state goes through no log and no disk. `memory` is the resident memory of the placed job. `extra` is
//! the peak during the planning of slices, above the memory at the end.

use std::ffi::OsString;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use muster_control_core::applier;
use muster_control_core::fsm::{self, Entry, JobCommand, NodeCommand, Response};
use muster_control_core::scheduler::Scheduler;
use muster_control_core::state::State;
use muster_domain::fixture;
use muster_domain::id::{EvalId, LogIndex, NodeId, Timestamp};
use muster_domain::limits::JOB_INSTANCES_MAX;
use muster_domain::node::NodeStatus;

use crate::harness::{Context, CpuClock, Metric, MetricSet};
use crate::subject::child::child_command;
use crate::subject::state_memory::{peak, resident};

/// The name of the child process of this subject.
pub(super) const CHILD: &str = "largest_job";

const NODES: u32 = 10_000;
const NOW: Timestamp = Timestamp(1_700_000_000_000_000_000);

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let mut tally = MetricSet::default();
    for _ in 0..context.rounds() {
        let output = child_command(CHILD, [])?.output()?;
        ensure!(
            output.status.success(),
            "the child failed: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let found: Vec<(String, f64)> = serde_json::from_slice(&output.stdout)?;
        for (name, value) in found {
            tally.add_muster_value(&name, unit(&name), value);
        }
    }
    Ok(tally.finish())
}

fn unit(name: &str) -> &'static str {
    match name {
        "placements" => "1/s",
        _ => "B/allocation",
    }
}

/// Places the job, and prints the measurements.
pub(super) fn child(_: &[OsString]) -> anyhow::Result<()> {
    let mut state = State::default();
    register_nodes(&mut state)?;
    let eval_id = register_job(&mut state)?;
    let before = resident()?;
    // Writing 5 resets the peak, so that it counts from here on.
    std::fs::write("/proc/self/clear_refs", "5")?;

    let clock = CpuClock::of_thread()?;
    place(&mut state, eval_id)?;
    let took = clock.elapsed()?;

    let (peak, after) = (peak()?, resident()?);
    let allocs = JOB_INSTANCES_MAX as f64;
    let found = [
        ("memory", after.saturating_sub(before) as f64 / allocs),
        ("extra", peak.saturating_sub(after) as f64 / allocs),
        ("placements", allocs / took.as_secs_f64()),
    ];
    serde_json::to_writer(std::io::stdout(), &found)?;
    Ok(())
}

fn register_nodes(state: &mut State) -> anyhow::Result<()> {
    for number in 0..NODES {
        let mut spec = fixture::node(&format!("n{number}"))
            .cpu_mhz(1_000_000)
            .memory_mb(1_000_000)
            .build();
        spec.id = NodeId::at(LogIndex(1), number);
        spec.resources.total.disk_mb = 1_000_000;
        let node_id = spec.id;
        let register = NodeCommand::Register {
            spec: Box::new(spec),
        };
        apply(state, register.at(NOW));
        let ready = NodeCommand::SetStatus {
            node_id,
            status: NodeStatus::Ready,
        };
        let response = apply(state, ready.at(NOW));
        ensure!(response == Response::Done, "node {number} is not ready");
    }
    Ok(())
}

fn register_job(state: &mut State) -> anyhow::Result<EvalId> {
    let spec = fixture::job("largest")
        .count(u32::try_from(JOB_INSTANCES_MAX)?)
        .cpu_mhz(50)
        .memory_mb(64)
        .build();
    let register = JobCommand::Register {
        spec: Box::new(spec),
        check_index: None,
        places: None,
    };
    match apply(state, register.at(NOW)) {
        Response::JobRegistered { eval_id, .. } => eval_id.context("the job has no evaluation"),
        other => anyhow::bail!("the job was answered with {other:?}"),
    }
}

/// Plans and applies the job slice after slice.
fn place(state: &mut State, eval_id: EvalId) -> anyhow::Result<()> {
    let mut scheduler = Scheduler::default();
    let mut placed = 0;
    loop {
        // Readers hold this copy of the state.
        let published = state.clone();
        let eval = published.evals().get(&eval_id).map(Arc::clone);
        let eval = eval.context("the evaluation is there")?;
        let outcome = scheduler.schedule(&published, &eval, NOW);
        let is_partial = outcome.is_partial;
        let merged = applier::merge(state, vec![outcome], Vec::new(), NOW);
        let command = merged.command.context("the plan places something")?;
        let Response::PlansApplied { outcomes } = apply(state, command) else {
            anyhow::bail!("the plan was refused");
        };
        placed += outcomes
            .iter()
            .map(|outcome| u64::from(outcome.placed))
            .sum::<u64>();
        if !is_partial {
            break;
        }
    }
    ensure!(
        placed == JOB_INSTANCES_MAX,
        "{placed} of {JOB_INSTANCES_MAX} instances were placed"
    );
    Ok(())
}

fn apply(state: &mut State, entry: Entry) -> Response {
    let index = LogIndex(state.applied().0 + 1);
    fsm::apply(state, index, entry).response
}
