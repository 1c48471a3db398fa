//! The subjects: one file each, one row here.

mod bpf_cost;
mod client;
mod collection;
mod driver_process;
mod gc;
mod gc_node;
mod log_throughput;
mod net_setup;
mod place;
mod raft_cluster;
mod raft_commit;
mod schedule;
mod state_memory;
mod task_fleet;
mod task_start;
mod tasks;

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::Context as _;
use muster_domain::fixture;
use muster_domain::id::{LogIndex, NodeId};
use muster_domain::node::NodeSpec;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::harness::{Context, Metric};

/// Measures one subject.
pub(crate) type Run = fn(&Context) -> anyhow::Result<Vec<Metric>>;

/// Every subject, in the order in which they run.
pub(crate) const ALL: &[(&str, Run)] = &[
    ("schedule", schedule::run),
    ("place", place::run),
    ("state_memory", state_memory::run),
    ("raft_commit", raft_commit::run),
    ("raft_cluster", raft_cluster::run),
    ("task_start", task_start::run),
    ("task_fleet", task_fleet::run),
    ("tasks", tasks::run),
    ("tasks_real", tasks::real),
    ("log_throughput", log_throughput::run),
    ("bpf_cost", bpf_cost::run),
    ("collection", collection::run),
    ("net_setup", net_setup::run),
    ("gc", gc::run),
    ("gc_node", gc_node::run),
    ("gc_node_starts", gc_node::starts),
    ("gc_node_restart", gc_node::restart),
];

/// The names of all subjects.
pub(crate) fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// A node of one of nine sizes, with the attributes that a constraint asks for.
fn node_of_nine_sizes(number: u32) -> NodeSpec {
    let cpu_mhz = [8_000, 16_000, 32_000][number as usize % 3];
    let memory_mb = [16_384, 32_768, 65_536][number as usize / 3 % 3];
    let mut spec = fixture::node(&format!("n{number}"))
        .cpu_mhz(cpu_mhz)
        .memory_mb(memory_mb)
        .build();
    spec.id = NodeId::at(LogIndex(1), number);
    spec
}

/// Set in a process that a subject started from this very program: what it is to be.
const CHILD_ENV: &str = "MUSTER_PERF_CHILD";

/// Whether this process is a child of a subject.
pub(crate) fn is_child() -> bool {
    std::env::var_os(CHILD_ENV).is_some()
}

/// This program again, as the child `what`.
pub(crate) fn child_command<'a>(
    what: &str,
    args: impl IntoIterator<Item = &'a OsStr>,
) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(CHILD_ENV, what).args(args);
    Ok(command)
}

/// Whether the machine has such a program.
fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

/// CPU time of a thread, to the nanosecond, from its file `schedstat`.
fn ran(schedstat: &Path) -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string(schedstat)?;
    let nanos = text.split(' ').next().context("schedstat has numbers")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

/// Runs the child of a subject.
pub(crate) fn run_child() -> anyhow::Result<ExitCode> {
    // A subject that fails, or is interrupted, leaves nobody behind.
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
        (place::CHILD, args) => place::child(args)?,
        (bpf_cost::CHILD, args) => bpf_cost::child(args)?,
        (gc::CHILD, args) => gc::child(args)?,
        (log_throughput::CHILD, args) => log_throughput::child(args)?,
        _ => anyhow::bail!("unknown child `{what}` with {} arguments", args.len()),
    }
    Ok(ExitCode::SUCCESS)
}
