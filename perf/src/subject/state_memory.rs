//! `state_memory`: the cost of a running allocation in memory, in the log and in a snapshot, and the cost of applying
//! it.
//!
//! A child process builds the state from encoded commands, as a server does from its log. The commands are nodes,
//! jobs of 10 000 instances each on distinct nodes, and the reports of their agents. Each instance has one task and
//! the events of a start. The state is published after each entry, so that readers hold the previous one. Memory is
//! the final resident memory of the process, less the resident memory before the first placement. Rates use the
//! thread's CPU time, without decoding.

use std::convert::Infallible;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use muster_control_core::fsm::{
    self, AllocCommand, Entry, EvalCommand, JobCommand, NodeCommand, Response,
};
use muster_control_core::snapshot::{self, Record, StateRestore};
use muster_control_core::state::{State, check};
use muster_domain::alloc::{
    AllocReport, ClientStatus, NodeScore, PlacementMetrics, Score, TaskEvent, TaskEventKind,
    TaskPhase, TaskState,
};
use muster_domain::fixture;
use muster_domain::id::{AllocId, EvalId, JobKey, LogIndex, NodeId, NodeNumber, Timestamp};
use muster_domain::node::NodeStatus;
use muster_domain::plan::{GroupPlacements, PlacementRun, Plan};
use muster_wire::codec;

use crate::harness::{Context, CpuClock, Metric, MetricSet};
use crate::subject::child::child_command;

/// The name of the child process of this subject.
pub(super) const CHILD: &str = "state_memory";

/// The number of nodes, and of the instances of each job: one instance per node.
const NODES: u32 = 10_000;
const NOW: Timestamp = Timestamp(1_700_000_000_000_000_000);
/// The number of timed writes after a snapshot.
const WRITES: u32 = 2_000;

/// The subject.
pub(crate) fn run(context: &Context) -> anyhow::Result<Vec<Metric>> {
    let jobs = context.pick(100, 20).to_string();
    let mut tally = MetricSet::default();
    for _ in 0..context.rounds() {
        let output = child_command(CHILD, [jobs.as_ref()])?.output()?;
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
        "placements" | "reports" => "1/s",
        "snapshot" | "restore" | "longest_apply" => "ms",
        "write_after_snapshot" => "µs",
        "snapshot_extra_memory" => "% of resident memory",
        _ => "B/allocation",
    }
}

/// Builds the state and prints the measurements.
pub(super) fn child(args: &[OsString]) -> anyhow::Result<()> {
    let jobs = args
        .first()
        .and_then(|jobs| jobs.to_str())
        .context("how many jobs?")?
        .parse()?;
    let mut builder = Builder::default();
    builder.register_nodes()?;
    builder.register_jobs(jobs)?;
    let before = resident()?;
    builder.place(jobs)?;
    builder.report()?;
    let after = resident()?;
    let allocs = f64::from(jobs) * f64::from(NODES);
    builder.add_metric("memory", after.saturating_sub(before) as f64 / allocs);
    builder.snapshot(allocs)?;
    builder.write_after_snapshots()?;
    serde_json::to_writer(std::io::stdout(), &builder.found)?;
    Ok(())
}

/// A state under construction.
#[derive(Default)]
struct Builder {
    state: State,
    /// The copy of the state that readers hold.
    published: State,
    nodes: Vec<NodeId>,
    evals: Vec<EvalId>,
    longest: Duration,
    found: Vec<(String, f64)>,
}

impl Builder {
    fn add_metric(&mut self, name: &str, value: f64) {
        self.found.push((name.to_owned(), value));
    }

    /// Applies a command as it would come from the log. Returns the response, the encoded bytes and the time of the
    /// application.
    fn apply(&mut self, entry: Entry) -> anyhow::Result<(Response, usize, Duration)> {
        let bytes = codec::encode(&entry)?;
        drop(entry);
        let entry: Entry = codec::decode(&bytes)?;
        let index = LogIndex(self.state.applied().0 + 1);
        let clock = CpuClock::of_thread()?;
        let applied = fsm::apply(&mut self.state, index, entry);
        self.published = self.state.clone();
        let took = clock.elapsed()?;
        self.longest = self.longest.max(took);
        Ok((applied.response, bytes.len(), took))
    }

    fn register_nodes(&mut self) -> anyhow::Result<()> {
        for number in 0..NODES {
            let mut spec = fixture::node(&format!("n{number}"))
                .cpu_mhz(1_000_000)
                .memory_mb(1_000_000)
                .build();
            spec.id = NodeId::at(LogIndex(1), number);
            let node_id = spec.id;
            self.nodes.push(node_id);
            self.apply(
                NodeCommand::Register {
                    spec: Box::new(spec),
                }
                .at(NOW),
            )?;
            self.apply(
                NodeCommand::SetStatus {
                    node_id,
                    status: NodeStatus::Ready,
                }
                .at(NOW),
            )?;
        }
        Ok(())
    }

    fn register_jobs(&mut self, jobs: u32) -> anyhow::Result<()> {
        for number in 0..jobs {
            let spec = fixture::job(&format!("job-{number}"))
                .count(NODES)
                .cpu_mhz(50)
                .memory_mb(64)
                .build();
            let command = JobCommand::Register {
                spec: Box::new(spec),
                check_index: None,
                places: None,
            }
            .at(NOW);
            match self.apply(command)?.0 {
                Response::JobRegistered { eval_id, .. } => self.evals.extend(eval_id),
                other => anyhow::bail!("the job was answered with {other:?}"),
            }
        }
        Ok(())
    }

    fn place(&mut self, jobs: u32) -> anyhow::Result<()> {
        let (mut bytes, mut time) = (0, Duration::ZERO);
        self.longest = Duration::ZERO;
        for number in 0..jobs {
            let plan = self.plan(number);
            let command = EvalCommand::ApplyPlans {
                plans: vec![plan],
                evals: Vec::new(),
            }
            .at(NOW);
            let (response, size, took) = self.apply(command)?;
            bytes += size;
            time += took;
            let Response::PlansApplied { outcomes } = response else {
                anyhow::bail!("the plan was answered with {response:?}");
            };
            ensure!(
                outcomes.iter().all(|outcome| outcome.placed == NODES),
                "instances were refused"
            );
        }
        let allocs = f64::from(jobs) * f64::from(NODES);
        self.add_metric("log", bytes as f64 / allocs);
        self.add_metric("placements", allocs / time.as_secs_f64());
        let longest = self.longest.as_secs_f64() * 1e3;
        self.add_metric("longest_apply", longest);
        Ok(())
    }

    /// Returns a plan with one instance on each node, each with a different score.
    fn plan(&self, number: u32) -> Plan {
        let run = |at: u32| PlacementRun {
            node: NodeNumber(at),
            first_index: at,
            count: 1,
            score: Score(pseudo_random_score(at)),
            detail: None,
        };
        let scores = (0..5).map(|at| NodeScore {
            node_id: self.nodes[at],
            components: [("binpack".into(), Score(500_000))].into(),
            normalised: Score(500_000),
        });
        let metrics = PlacementMetrics {
            nodes_evaluated: NODES,
            nodes_available: vec![("dc1".to_owned(), NODES)],
            scores: scores.collect(),
            ..PlacementMetrics::default()
        };
        let key = JobKey::in_default(format!("job-{number}"));
        let eval_id = self.evals[number as usize];
        let mut plan = Plan::empty(eval_id, key, 0, self.state.applied());
        plan.groups.push(GroupPlacements {
            group_at: 0,
            in_place: false,
            left_behind: Vec::new(),
            metrics: metrics.into(),
            placements: (0..NODES).map(run).collect(),
        });
        plan
    }

    fn report(&mut self) -> anyhow::Result<()> {
        let (mut reports, mut time) = (0, Duration::ZERO);
        for node_id in self.nodes.clone() {
            let of_node: Vec<AllocReport> = self
                .state
                .allocs_on(&node_id)
                .map(|alloc| report(alloc.id()))
                .collect();
            reports += of_node.len();
            let command = AllocCommand::Report {
                reports: vec![(node_id, of_node)],
            }
            .at(NOW.plus(Duration::from_millis(90)));
            time += self.apply(command)?.2;
        }
        self.add_metric("reports", reports as f64 / time.as_secs_f64());
        Ok(())
    }

    fn snapshot(&mut self, allocs: f64) -> anyhow::Result<()> {
        // Writing 5 resets the peak, so that it counts from here on.
        std::fs::write("/proc/self/clear_refs", "5")?;
        let before = resident()?;
        let clock = CpuClock::of_thread()?;
        let mut bytes = 0;
        for record in snapshot::records(&self.state) {
            bytes += codec::encode(&record)?.len();
        }
        let took = clock.elapsed()?;
        let extra = peak()?.saturating_sub(before) as f64 / before as f64 * 100.0;
        self.add_metric("snapshot", took.as_secs_f64() * 1e3);
        self.add_metric("snapshot_bytes", bytes as f64 / allocs);
        self.add_metric("snapshot_extra_memory", extra);

        let clock = CpuClock::of_thread()?;
        let mut restoring = StateRestore::default();
        for record in snapshot::records(&self.state) {
            let record: Record = codec::decode(&codec::encode(&record)?)?;
            restoring.take::<Infallible>(record)?;
        }
        let restored = restoring.finish::<Infallible>()?;
        self.add_metric("restore", clock.elapsed()?.as_secs_f64() * 1e3);
        ensure!(restored.hash() == self.state.hash(), "another state");
        let broken = check::broken(&self.state);
        ensure!(
            broken.is_empty(),
            "the state is broken: {}",
            broken.join("; ")
        );
        Ok(())
    }

    /// Changes one allocation at a time, while a reader holds the whole previous state.
    fn write_after_snapshots(&mut self) -> anyhow::Result<()> {
        let mut time = Duration::ZERO;
        for at in 0..WRITES {
            let node_id = self.nodes[(at * 7_919 % NODES) as usize];
            let alloc = self.state.allocs_on(&node_id).last();
            let mut report = report(alloc.context("the node has one")?.id());
            "all tasks have ended".clone_into(&mut report.client_description);
            let command = AllocCommand::Report {
                reports: vec![(node_id, vec![report])],
            }
            .at(NOW.plus(Duration::from_secs(1)));
            time += self.apply(command)?.2;
        }
        let each = time.as_secs_f64() * 1e6 / f64::from(WRITES);
        self.add_metric("write_after_snapshot", each);
        Ok(())
    }
}

/// Returns the report of an agent about an allocation that it has started.
fn report(alloc_id: AllocId) -> AllocReport {
    let after = |micros| NOW.plus(Duration::from_micros(micros));
    let mut task = TaskState::pending("main");
    task.phase = TaskPhase::Running;
    task.started_at = Some(after(58_731));
    for (micros, kind, message) in [
        (41_297, TaskEventKind::Received, "the agent has the task"),
        (
            42_113,
            TaskEventKind::Setup,
            "cgroup, FIFOs and directories are being made",
        ),
        (58_731, TaskEventKind::Started, "the process runs"),
    ] {
        task.push(TaskEvent {
            at: after(micros),
            kind,
            message: message.to_owned(),
        });
    }
    AllocReport {
        alloc_id,
        client_status: ClientStatus::Running,
        client_description: "tasks are running".to_owned(),
        task_states: vec![task],
        healthy: None,
        end: None,
        remote: Vec::new(),
    }
}

/// Returns a number of up to six digits without a pattern, like the scores of different nodes.
fn pseudo_random_score(at: u32) -> i32 {
    let mixed = at.wrapping_mul(0x9e37_79b9) >> 12;
    i32::try_from(mixed % 1_000_000).unwrap_or_default()
}

/// Returns the resident bytes of this process.
pub(super) fn resident() -> anyhow::Result<u64> {
    status("VmRSS:")
}

/// Returns the peak of this process's resident bytes since the last reset.
pub(super) fn peak() -> anyhow::Result<u64> {
    status("VmHWM:")
}

/// Returns the value of a line of the process's status, in bytes.
fn status(name: &str) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("the kernel says no size")?.parse::<u64>()? * 1_024)
}
