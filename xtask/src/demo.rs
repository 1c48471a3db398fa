//! `cargo xtask demo`: the life of a job on this machine, with every number checked.
//!
//! The demo starts a server and an agent in its own directory, runs the jobs in `examples/`, and inspects them with
//! users' commands. It kills the agent, cleans up, and then checks the kernel itself for anything left behind. The
//! code that checks a number also prints it. The exit status is the sum of the checks.
//!
//! - [`cluster`] the processes and their API
//! - [`http`] a client without TLS
//! - [`checks`] promises and observations
//! - [`leftovers`] remains of a cluster in the kernel

mod checks;
mod cluster;
mod http;
mod leftovers;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use serde_json::Value;

use crate::setup::Scope;
use crate::{ebpf, setup, shell, steps};
use checks::CheckCounts;
use cluster::Cluster;

/// How the demo runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Leave the cluster up at the end.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Show this program: install and build nothing.
    #[arg(long, value_name = "FILE")]
    pub(crate) program: Option<PathBuf>,
}

/// The longest wait for any condition. It allows for a slow machine, not for a slow program.
const WAIT_MAX: Duration = Duration::from_mins(1);

/// Runs the demo.
///
/// # Errors
///
/// When a check fails.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let muster = match &options.program {
        Some(program) => program.clone(),
        None => {
            build()?;
            program()
        }
    };

    let mut checks = CheckCounts::default();
    println!("\nmuster demo · one server, one agent, this machine only (127.0.0.1)\n");
    let mut cluster = Cluster::start(&muster)?;
    let outcome = run_all_steps(&mut cluster, &mut checks);
    if options.keep && outcome.is_ok() {
        cluster.leave_running();
        return checks.result();
    }
    let cleaned = clean_up(&mut cluster, &mut checks);
    if outcome.is_err() || cleaned.is_err() || checks.has_failed() {
        cluster.print_logs();
    }
    outcome?;
    cleaned?;
    checks.result()?;
    print_next_steps();
    Ok(())
}

/// Returns the path of the program. It is the one that the tests start, so that nothing is compiled for the demo
/// alone.
fn program() -> PathBuf {
    shell::target_dir().join("debug/muster")
}

/// Builds the program, and concurrently the eBPF object and its requirements.
fn build() -> anyhow::Result<()> {
    if !setup::can_compile(false) {
        install()?;
    }
    std::thread::scope(|scope| {
        let ebpf = scope.spawn(|| {
            install()?;
            if let Err(error) = steps::run("build the eBPF object", ebpf::build) {
                println!(
                    "  the eBPF object cannot be built here, so counters will be absent: {error:#}"
                );
            }
            anyhow::Ok(())
        });
        let built = steps::run("build muster", build_muster);
        let ebpf = ebpf
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        // Both errors are printed, because neither explains the other.
        if let (Err(error), Err(_)) = (&ebpf, &built) {
            println!("  {error:#}");
        }
        built.and(ebpf)
    })
}

fn install() -> anyhow::Result<()> {
    setup::prepare(
        Scope::Demo,
        &setup::Options {
            check: false,
            yes: true,
        },
    )
}

/// Builds with the features of the whole workspace, as the tests do, so that both builds share all artifacts.
fn build_muster() -> anyhow::Result<()> {
    shell::run(shell::cargo_build().args(["--workspace", "--bin", "muster"]))
}

fn print_next_steps() {
    let program = program();
    let program = program.strip_prefix(shell::root()).unwrap_or(&program);
    let muster = program.display();
    println!(
        "\nTo go on by hand, in two terminals in {}:\n  \
         {muster} dev                          # a server and an agent; Ctrl-C removes everything\n  \
         {muster} job run examples/web.hcl     # two web servers\n  \
         {muster} job status web\n\
         README.md has more. `cargo xtask demo --keep` leaves this cluster up.",
        shell::root().display()
    );
}

fn run_all_steps(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    run_doctor(cluster, checks)?;
    run_web_job(cluster, checks)?;
    query_web_job(cluster, checks)?;
    run_batch_job(cluster, checks)?;
    show_task_stats(cluster, checks)?;
    exceed_memory_limit(cluster, checks)?;
    kill_and_restart_agent(cluster, checks)
}

fn run_doctor(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    let data = cluster.dir().join("agent").display().to_string();
    cluster.run_muster(&["doctor", "--data-dir", &data])?;
    let ready = cluster.wait("the node to be ready", |cluster| {
        let nodes = cluster.get("/v1/nodes")?;
        let healthy = nodes[0]["Drivers"]["native"]["Healthy"] == true;
        Ok((nodes[0]["Status"] == "ready" && healthy).then(|| nodes[0].clone()))
    })?;
    checks.record(
        "the node is ready",
        ready["SchedulingEligibility"] == "eligible",
        &ready["Name"],
    );
    let node = cluster.get(&format!("/v1/node/{}", text(&ready, "ID")?))?;
    cluster.store_node(&node)?;
    Ok(())
}

fn run_web_job(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    cluster.run_muster(&["job", "run", "examples/web.hcl"])?;
    let allocs = cluster.running("web")?;
    checks.record(
        "both instances of web run",
        allocs.len() == 2,
        &allocs.len(),
    );
    for alloc in &allocs {
        let whole = cluster.get(&format!("/v1/allocation/{}", text(alloc, "ID")?))?;
        let score = whole["Metrics"]["ScoreMetaData"][0]["NormScore"].as_f64();
        checks.record(
            &format!("{} has a node and a score", text(alloc, "Name")?),
            score.is_some_and(|score| (-1.0..=1.0).contains(&score)),
            &format!(
                "{} at {:.3}",
                text(alloc, "NodeName")?,
                score.unwrap_or(f64::NAN)
            ),
        );
    }
    Ok(())
}

/// Sends a request to each instance over TCP, as its users would.
fn query_web_job(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    for alloc in cluster.running("web")? {
        let name = text(&alloc, "Name")?;
        let port = port_of(cluster, &alloc)?;
        let answer = cluster.wait("the web server to answer", |_| {
            Ok(http::get(&format!("127.0.0.1:{port}"), "/").ok())
        })?;
        checks.record(
            &format!("{name} answers on port {port}"),
            answer.starts_with(&format!("hello from {name}")),
            &answer.trim(),
        );
    }
    Ok(())
}

fn run_batch_job(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    cluster.run_muster(&["job", "run", "examples/batch.hcl"])?;
    cluster.wait("the batch job to complete", |cluster| {
        let allocs = cluster.get("/v1/job/count/allocations")?;
        Ok((allocs[0]["ClientStatus"] == "complete").then_some(()))
    })?;
    let lines = cluster.capture(&["alloc", "logs", "count"])?;
    let expected: Vec<String> = (1..=1000).map(|i| format!("line {i}")).collect();
    println!(
        "$ muster alloc logs count | tail -1\n{}",
        lines.lines().last().unwrap_or_default()
    );
    checks.record(
        "every line of the batch job is in its log, once and in order",
        lines.lines().eq(&expected),
        &format!("{} lines", lines.lines().count()),
    );
    let errors = cluster.capture(&["alloc", "logs", "--stderr", "count"])?;
    checks.record(
        "its standard error is kept apart",
        errors == "done\n",
        &errors.trim(),
    );
    Ok(())
}

/// Shows live resource usage, from eBPF if this machine supports it.
fn show_task_stats(cluster: &Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    if !cluster.has_ebpf() {
        checks.skipped(
            "live eBPF numbers",
            "the agent has no programs loaded; see doctor above",
        );
        return Ok(());
    }
    cluster.run_muster(&["top", "web"])?;
    for alloc in cluster.running("web")? {
        let id = text(&alloc, "ID")?;
        let stats = cluster.get(&format!("/v1/client/allocation/{id}/stats?counters=true"))?;
        let counters = &stats["Tasks"]["server"]["Muster"];
        for (field, what) in [
            ("CPUNanos", "ns of CPU time"),
            ("ContextSwitches", "context switches"),
            ("NetRxBytes", "bytes received"),
            ("NetTxPackets", "packets sent"),
        ] {
            let value = counters[field].as_u64();
            checks.record(
                &format!("{} has counted {what}", text(&alloc, "Name")?),
                value.is_some_and(|value| value > 0),
                &value.map_or_else(|| "absent".to_owned(), |value| value.to_string()),
            );
        }
    }
    Ok(())
}

/// Shows that the kernel kills a task above its memory limit, and that Muster reports the reason.
fn exceed_memory_limit(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    if !cluster.limits_memory() {
        checks.skipped(
            "a memory-limit kill",
            "this machine has no memory controller for us; `cargo xtask vm` has one",
        );
        return Ok(());
    }
    // The job is meant to fail.
    cluster.run_muster_any_status(&["job", "run", "--detach", "examples/hungry.hcl"])?;
    let event = cluster.wait("the hungry task to be killed", |cluster| {
        let allocs = cluster.get("/v1/job/hungry/allocations")?;
        let events = allocs[0]["TaskStates"]["hungry"]["Events"]
            .as_array()
            .cloned();
        Ok(events
            .unwrap_or_default()
            .into_iter()
            .find(|event| event["Type"] == "Terminated"))
    })?;
    let message = text(&event, "DisplayMessage")?;
    println!("  hungry: {message}");
    checks.record(
        "the kill is reported as out of memory",
        event["Details"]["oom_killed"] == "true" && message.to_lowercase().contains("oom"),
        &message,
    );
    Ok(())
}

/// Shows that tasks survive `kill -9` of the agent and that the next agent finds them.
fn kill_and_restart_agent(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    let before = processes(cluster)?;
    println!("\n$ kill -9 {}   # the agent", cluster.agent_pid());
    cluster.kill_agent()?;
    for (name, (pid, start)) in &before {
        checks.record(
            &format!("{name} goes on without an agent"),
            cluster::start_ticks(*pid) == Some(*start),
            &format!("pid {pid}"),
        );
    }
    query_web_job(cluster, checks)?;
    let started = Instant::now();
    cluster.start_agent()?;
    let after = cluster.wait("the new agent to find its tasks", |cluster| {
        Ok(processes(cluster)
            .ok()
            .filter(|found| found.len() == before.len()))
    })?;
    println!(
        "  the new agent found {} tasks in {:.1} s",
        after.len(),
        started.elapsed().as_secs_f64()
    );
    checks.record(
        "the same processes, none restarted",
        before == after,
        &format!("{after:?}"),
    );
    for alloc in cluster.running("web")? {
        let restarts = alloc["TaskStates"]["server"]["Restarts"].as_u64();
        checks.record(
            &format!("{} was not restarted", text(&alloc, "Name")?),
            restarts == Some(0),
            &restarts.map_or_else(
                || "unknown restarts".to_owned(),
                |restarts| format!("{restarts} restarts"),
            ),
        );
    }
    query_web_job(cluster, checks)?;
    let log = cluster.wait("the log to show a request from after the kill", |cluster| {
        let log = cluster.capture(&["alloc", "logs", "web/web.0"])?;
        Ok((log.matches("GET / HTTP/1.1 200").count() >= 3).then_some(log))
    })?;
    checks.record(
        "its log has every request, from before, during and after, once",
        log.matches("listening on").count() == 1 && log.matches("GET / HTTP/1.1 200").count() == 3,
        &format!("{} requests", log.matches("GET / HTTP/1.1 200").count()),
    );
    Ok(())
}

fn clean_up(cluster: &mut Cluster, checks: &mut CheckCounts) -> anyhow::Result<()> {
    println!();
    for job in ["web", "count", "hungry"] {
        if cluster.get(&format!("/v1/job/{job}")).is_ok() {
            cluster.run_muster(&["job", "stop", job])?;
        }
    }
    cluster.run_muster(&["system", "gc"])?;
    cluster.stop()?;
    let left = leftovers::find(cluster.node_short(), cluster.dir())?;
    for thing in &left {
        println!("  left behind: {thing}");
    }
    checks.record(
        "no process, cgroup, FIFO, mount or pinned object is left",
        left.is_empty(),
        &format!("{} found", left.len()),
    );
    Ok(())
}

/// Returns the process id and the start time of each instance of web, by name.
fn processes(cluster: &Cluster) -> anyhow::Result<std::collections::BTreeMap<String, (u32, u64)>> {
    let mut found = std::collections::BTreeMap::new();
    for alloc in cluster.running("web")? {
        let id = text(&alloc, "ID")?;
        let stats = cluster.get(&format!("/v1/client/allocation/{id}/stats?counters=true"))?;
        let pid = stats["Tasks"]["server"]["Muster"]["Pid"]
            .as_u64()
            .unwrap_or(0);
        let pid = u32::try_from(pid).context("a process id")?;
        let Some(start) = cluster::start_ticks(pid) else {
            bail!("{} has no process {pid}", text(&alloc, "Name")?);
        };
        found.insert(text(&alloc, "Name")?, (pid, start));
    }
    Ok(found)
}

fn port_of(cluster: &Cluster, alloc: &Value) -> anyhow::Result<u64> {
    let whole = cluster.get(&format!("/v1/allocation/{}", text(alloc, "ID")?))?;
    whole["AllocatedResources"]["Shared"]["Ports"][0]["Value"]
        .as_u64()
        .with_context(|| format!("{} has no port", alloc["Name"]))
}

fn text(value: &Value, field: &str) -> anyhow::Result<String> {
    value[field]
        .as_str()
        .map(str::to_owned)
        .with_context(|| format!("an answer of the API has no {field}"))
}
