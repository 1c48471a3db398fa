//! `muster top`: what every task uses, live from eBPF, with the totals of groups and jobs.
//!
//! Rates are the difference of two collections. One request a node and refresh.

mod tree;

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

use tree::{Amount, Amounts, Level, Line, Sort};

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
    /// What to order by, the most first.
    #[arg(long, value_enum, default_value_t = Sort::Cpu)]
    pub sort: Sort,
    /// How far down to show.
    #[arg(long, value_enum, default_value_t = Level::Tasks, value_name = "LEVEL")]
    pub down_to: Level,
    /// Only tasks of this group.
    #[arg(long)]
    pub group: Option<String>,
    /// Only tasks of this name.
    #[arg(long)]
    pub task: Option<String>,
    /// Only tasks on the node of this name.
    #[arg(long)]
    pub node: Option<String>,
}

impl TopArgs {
    /// Whether a row is asked for.
    fn shows(&self, row: &Row) -> bool {
        let is = |asked: &Option<String>, value: &str| asked.as_ref().is_none_or(|it| it == value);
        is(&self.job, &row.job)
            && is(&self.group, &row.group)
            && is(&self.task, &row.task)
            && is(&self.node, &row.node)
    }
}

/// A task and what it uses.
#[derive(Clone, Debug, Serialize)]
struct Row {
    name: String,
    job: String,
    group: String,
    task: String,
    node: String,
    /// Percent of one core over the interval; absent if it cannot be had.
    cpu_percent: Option<f64>,
    /// Time that threads waited for a CPU, in percent of the interval; above 100 if several did.
    wait_percent: Option<f64>,
    switches_per_s: Option<f64>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    net_rx_bytes_per_s: Option<f64>,
    net_tx_bytes_per_s: Option<f64>,
    /// Packets that its network policy refused, of either direction.
    denied_per_s: Option<f64>,
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
        let mut rows = rows(client, &before, &now)?;
        rows.retain(|row| args.shows(row));
        if json {
            output::print_json(&rows)?;
        } else {
            if live {
                output::print("\u{1b}[2J\u{1b}[H")?;
            }
            show(&rows, args, &now)?;
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

fn rows(client: &Client, before: &Collection, now: &Collection) -> Result<Vec<Row>, CliError> {
    let allocs: Vec<AllocListStub> = client.get("/v1/allocations")?;
    let elapsed = now.at.duration_since(before.at).as_secs_f64();
    let mut rows = Vec::new();
    for ((alloc_id, task), (node, counters)) in &now.tasks {
        let Some(alloc) = allocs.iter().find(|alloc| alloc.id == *alloc_id) else {
            continue;
        };
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
            job: alloc.job_id.clone(),
            group: alloc.task_group.clone(),
            task: task.clone(),
            node: node.clone(),
            cpu_percent: rate(|c| c.cpu_nanos).map(|nanos| nanos / 1e7),
            wait_percent: rate(|c| Some(c.run_delay.as_ref()?.sum_nanos)).map(|nanos| nanos / 1e7),
            switches_per_s: rate(|c| c.context_switches),
            memory_bytes: counters.memory_bytes,
            memory_limit_bytes: counters.memory_limit_bytes,
            net_rx_bytes_per_s: rate(|c| c.net_rx_bytes),
            net_tx_bytes_per_s: rate(|c| c.net_tx_bytes),
            denied_per_s: rate(|c| Some(c.net_rx_denied? + c.net_tx_denied?)),
            oom_kills: counters.oom_kills,
            processes: counters.pids,
            counters: counters.clone(),
        });
    }
    Ok(rows)
}

const DASH: &str = "–";

fn show(rows: &[Row], args: &TopArgs, now: &Collection) -> Result<(), CliError> {
    let mut table = output::table(&[
        "TASK",
        "NODE",
        "CPU % OF A CORE",
        "WAITING %",
        "SWITCHES/S",
        "MEMORY",
        "OF LIMIT",
        "NET IN/S",
        "NET OUT/S",
        "DENIED/S",
        "PROCESSES",
        "OOM KILLS",
    ]);
    for line in tree::lines(rows, args.sort, args.down_to) {
        table.add_row(cells(&line));
    }
    let total = Line {
        level: Level::Jobs,
        name: "total".to_owned(),
        node: String::new(),
        of_limit_percent: None,
        amounts: tree::total(rows),
    };
    table.add_row(cells(&total));
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

fn cells(line: &Line) -> [String; 12] {
    let indent = match line.level {
        Level::Jobs => "",
        Level::Groups => "  ",
        Level::Tasks => "    ",
    };
    let Amounts {
        cpu_percent,
        wait_percent,
        switches_per_s,
        memory_bytes,
        net_rx_bytes_per_s,
        net_tx_bytes_per_s,
        denied_per_s,
        processes,
        oom_kills,
    } = line.amounts;
    let tenths = |value: f64| format!("{value:.1}");
    let whole = |value: f64| format!("{value:.0}");
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes are not negative, and only shown"
    )]
    let bytes = |value: f64| output::bytes(value as u64);
    let share = line.of_limit_percent;
    [
        format!("{indent}{}", output::clean(&line.name)),
        output::clean(&line.node),
        cell(cpu_percent, tenths),
        cell(wait_percent, tenths),
        cell(switches_per_s, tenths),
        cell(memory_bytes, bytes),
        share.map_or_else(|| DASH.to_owned(), |share| format!("{share:.0} %")),
        cell(net_rx_bytes_per_s, bytes),
        cell(net_tx_bytes_per_s, bytes),
        cell(denied_per_s, tenths),
        cell(processes, whole),
        cell(oom_kills, whole),
    ]
}

/// An amount as shown; of which a part cannot be had, it is at least what is there.
fn cell(amount: Amount, text: impl Fn(f64) -> String) -> String {
    let Some(value) = amount.value else {
        return DASH.to_owned();
    };
    let at_least = if amount.is_partial { "≥" } else { "" };
    format!("{at_least}{}", text(value))
}
