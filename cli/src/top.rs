//! `muster top`: what every task uses, live from eBPF.
//!
//! Rates are the difference of two collections. One request a node and refresh.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::node::NodeListStub;
use muster_wire::api::stats::{NodeStats, TaskCounters};
use serde::Serialize;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

/// Arguments of `muster top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only tasks of this job.
    pub job: Option<String>,
    /// Seconds between two collections.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// Show this many times, then end. For ever on a terminal, once otherwise, unless given.
    #[arg(short = 'n', long, value_name = "TIMES")]
    pub iterations: Option<u64>,
}

/// A task and what it uses.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    node: String,
    /// Percent of one core over the interval; absent if it cannot be had.
    cpu_percent: Option<f64>,
    switches_per_s: Option<f64>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    net_rx_bytes_per_s: Option<f64>,
    net_tx_bytes_per_s: Option<f64>,
    oom_kills: Option<u64>,
    processes: Option<u64>,
    counters: TaskCounters,
}

/// Counters of every task, by allocation and task, at one time.
struct Collection {
    at: Instant,
    tasks: BTreeMap<(String, String), (String, TaskCounters)>,
    lost: Option<u64>,
    unreachable: Vec<String>,
}

/// Shows what tasks use.
///
/// # Errors
///
/// [`CliError`].
pub fn run(client: &Client, json: bool, args: &TopArgs) -> CliResult {
    if !(0.05..=3600.0).contains(&args.interval) {
        return Err(CliError::new(
            Exit::Usage,
            "--interval must be between 0.05 and 3600 seconds",
        ));
    }
    let interval = Duration::from_secs_f64(args.interval);
    let live = std::io::stdout().is_terminal() && !json;
    let times = args.iterations.unwrap_or(if live { u64::MAX } else { 1 });
    let mut before = collect(client)?;
    for _ in 0..times {
        std::thread::sleep(interval);
        let now = collect(client)?;
        let rows = rows(client, args.job.as_deref(), &before, &now)?;
        if json {
            output::print_json(&rows)?;
        } else {
            if live {
                output::print("\u{1b}[2J\u{1b}[H")?;
            }
            show(&rows, &now)?;
        }
        before = now;
    }
    Ok(Exit::Done)
}

fn collect(client: &Client) -> Result<Collection, CliError> {
    let nodes: Vec<NodeListStub> = client.get("/v1/nodes")?;
    let mut collection = Collection {
        at: Instant::now(),
        tasks: BTreeMap::new(),
        lost: None,
        unreachable: Vec::new(),
    };
    for node in nodes.iter().filter(|node| node.status == "ready") {
        let path = format!(
            "/v1/client/stats?node_id={}&counters=true",
            escape(&node.id)
        );
        let stats: NodeStats = match client.get(&path) {
            Ok(stats) => stats,
            Err(error) if error.exit == Exit::Unreachable => return Err(error),
            Err(_) => {
                collection.unreachable.push(node.name.clone());
                continue;
            }
        };
        if let Some(lost) = stats.muster.ebpf_lost {
            collection.lost = Some(collection.lost.unwrap_or(0) + lost);
        }
        for (alloc, tasks) in stats.muster.allocs {
            for (task, counters) in tasks {
                collection
                    .tasks
                    .insert((alloc.clone(), task), (node.name.clone(), counters));
            }
        }
    }
    collection.at = Instant::now();
    Ok(collection)
}

fn rows(
    client: &Client,
    job: Option<&str>,
    before: &Collection,
    now: &Collection,
) -> Result<Vec<Row>, CliError> {
    let allocs: Vec<AllocListStub> = client.get("/v1/allocations")?;
    let elapsed = now.at.duration_since(before.at).as_secs_f64();
    let mut rows = Vec::new();
    for ((alloc_id, task), (node, counters)) in &now.tasks {
        let Some(alloc) = allocs.iter().find(|alloc| alloc.id == *alloc_id) else {
            continue;
        };
        if job.is_some_and(|job| alloc.job_id != job) {
            continue;
        }
        let old = before
            .tasks
            .get(&(alloc_id.clone(), task.clone()))
            .map(|(_, counters)| counters);
        let rate = |value: fn(&TaskCounters) -> Option<u64>| {
            let (new, old) = (value(counters)?, value(old?)?);
            Some(new.saturating_sub(old) as f64 / elapsed)
        };
        rows.push(Row {
            name: format!("{}/{task}", alloc.name),
            node: node.clone(),
            cpu_percent: rate(|c| c.cpu_nanos).map(|nanos| nanos / 1e7),
            switches_per_s: rate(|c| c.context_switches),
            memory_bytes: counters.memory_bytes,
            memory_limit_bytes: counters.memory_limit_bytes,
            net_rx_bytes_per_s: rate(|c| c.net_rx_bytes),
            net_tx_bytes_per_s: rate(|c| c.net_tx_bytes),
            oom_kills: counters.oom_kills,
            processes: counters.pids,
            counters: counters.clone(),
        });
    }
    rows.sort_by(|a, b| {
        b.cpu_percent
            .unwrap_or(-1.0)
            .total_cmp(&a.cpu_percent.unwrap_or(-1.0))
            .then(a.name.cmp(&b.name))
    });
    Ok(rows)
}

fn show(rows: &[Row], now: &Collection) -> Result<(), CliError> {
    let mut table = output::table(&[
        "TASK",
        "NODE",
        "CPU % OF A CORE",
        "SWITCHES/S",
        "MEMORY",
        "OF LIMIT",
        "NET IN/S",
        "NET OUT/S",
        "PROCESSES",
        "OOM KILLS",
    ]);
    let dash = || "–".to_owned();
    let amount = |value: Option<f64>| value.map_or_else(dash, |value| format!("{value:.1}"));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rate of bytes is positive, and only shown"
    )]
    let rate = |value: Option<f64>| value.map_or_else(dash, |value| output::bytes(value as u64));
    let count = |value: Option<u64>| value.map_or_else(dash, |value| value.to_string());
    for row in rows {
        let share = match (row.memory_bytes, row.memory_limit_bytes) {
            (Some(used), Some(limit)) if limit > 0 => {
                format!("{:.0} %", used as f64 / limit as f64 * 100.0)
            }
            _ => dash(),
        };
        table.add_row([
            output::clean(&row.name),
            row.node.clone(),
            amount(row.cpu_percent),
            amount(row.switches_per_s),
            row.memory_bytes.map_or_else(dash, output::bytes),
            share,
            rate(row.net_rx_bytes_per_s),
            rate(row.net_tx_bytes_per_s),
            count(row.processes),
            count(row.oom_kills),
        ]);
    }
    output::print_table(&table)?;
    let lost = now.lost.map_or_else(
        || "– (no programs loaded)".to_owned(),
        |lost| lost.to_string(),
    );
    output::print(&format!(
        "{} tasks · eBPF events lost: {lost}\n",
        rows.len()
    ))?;
    if !now.unreachable.is_empty() {
        output::print(&format!("no answer from: {}\n", now.unreachable.join(", ")))?;
    }
    Ok(())
}
