//! The list of subjects. Each subject has a file of its own and one row here.

mod bpf_cost;
pub(crate) mod child;
mod client;
mod collection;
mod driver_process;
mod gc;
mod gc_node;
mod largest_job;
mod log_throughput;
mod net_setup;
mod node_spec;
mod place;
mod raft_cluster;
mod raft_commit;
mod schedule;
mod state_memory;
mod task_fleet;
mod task_start;
mod tasks;

use std::path::Path;
use std::process::ExitCode;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::harness::{Context, Metric};
use child::CHILD_ENV;

/// A function that measures one subject.
pub(crate) type Run = fn(&Context) -> anyhow::Result<Vec<Metric>>;

/// All subjects, in the order in which they run.
pub(crate) const ALL: &[(&str, Run)] = &[
    ("schedule", schedule::run),
    ("place", place::run),
    ("state_memory", state_memory::run),
    ("largest_job", largest_job::run),
    ("raft_commit", raft_commit::run),
    ("raft_cluster", raft_cluster::run),
    ("task_start", task_start::run),
    ("task_fleet", task_fleet::run),
    ("tasks", tasks::run),
    ("tasks_real", tasks::run_real),
    ("log_throughput", log_throughput::run),
    ("bpf_cost", bpf_cost::run),
    ("collection", collection::run),
    ("net_setup", net_setup::run),
    ("gc", gc::run),
    ("gc_node", gc_node::run),
    ("gc_node_starts", gc_node::starts),
    ("gc_node_restart", gc_node::restart),
];

/// Returns the names of all subjects.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Runs this process as the child of a subject.
pub(crate) fn run_child() -> anyhow::Result<ExitCode> {
    // The kernel ends this child if the subject fails or is interrupted.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let what = std::env::var(CHILD_ENV)?;
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    match (what.as_str(), args.as_slice()) {
        (driver_process::CHILD, [socket]) => driver_process::child(Path::new(socket))?,
        (task_start::oci::CHILD, [runtime, bundle, times]) => {
            task_start::oci::child(runtime, Path::new(bundle), times)?;
        }
        (task_fleet::CHILD, args) => task_fleet::child(args)?,
        (state_memory::CHILD, args) => state_memory::child(args)?,
        (largest_job::CHILD, args) => largest_job::child(args)?,
        (place::CHILD, args) => place::child(args)?,
        (bpf_cost::CHILD, args) => bpf_cost::child(args)?,
        (gc::CHILD, args) => gc::child(args)?,
        (log_throughput::CHILD, args) => log_throughput::child(args)?,
        _ => anyhow::bail!("unknown child `{what}` with {} arguments", args.len()),
    }
    Ok(ExitCode::SUCCESS)
}
