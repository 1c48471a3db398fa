//! `muster top`: the resource usage of every task, live from eBPF, with the totals of groups and jobs.
//!
//! Rates are the difference of two samples. Each refresh sends one request per node, to several nodes at once.

mod tree;

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use muster_wire::api::alloc::AllocListStub;
use muster_wire::api::node::NodeListStub;
use muster_wire::api::stats::{NodeStats, TaskCounters};
use serde::Serialize;

use crate::client::{Client, escape};
use crate::exit::{CliError, CliResult, Exit};
use crate::output;

use tree::{Amount, RowLevel, Sort, TreeRow};

/// Nodes that are queried at the same time. A request takes some milliseconds, and a slow node occupies one slot only.
/// Twice as many would load a server too much for one page.
const NODES_AT_ONCE: usize = 16;
/// A node that takes longer to answer is listed. By default, a page is shown for as long.
const SLOW: Duration = Duration::from_secs(1);

/// The columns of tasks besides processor and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ColumnSet {
    /// The most used columns.
    Common,
    /// Disks.
    Disk,
    /// Stalls for CPU, memory and disks.
    Stalls,
    /// Networks.
    Network,
    /// All columns.
    All,
}

/// Arguments of `muster top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only tasks of this job.
    pub job: Option<String>,
    /// Seconds between two collections.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS")]
    pub interval: f64,
    /// Show this many times, then end. Default: no limit on a terminal, otherwise 1.
    #[arg(short = 'n', long, value_name = "TIMES")]
    pub iterations: Option<u64>,
    /// Order of the rows, largest value first.
    #[arg(long, value_enum, default_value_t = Sort::Cpu)]
    pub sort: Sort,
    /// Which columns to show.
    #[arg(long, value_enum, default_value_t = ColumnSet::Common)]
    pub view: ColumnSet,
    /// Lowest level of rows.
    #[arg(long, value_enum, default_value_t = RowLevel::Tasks, value_name = "LEVEL")]
    pub down_to: RowLevel,
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
    /// Whether a row is selected.
    fn is_selected(&self, row: &Row) -> bool {
        let is = |asked: &Option<String>, value: &str| asked.as_ref().is_none_or(|it| it == value);
        is(&self.job, &row.job)
            && is(&self.group, &row.group)
            && is(&self.task, &row.task)
            && is(&self.node, &row.node)
    }
}

/// A task and its usage.
#[derive(Clone, Debug, Default, Serialize)]
struct Row {
    name: String,
    job: String,
    group: String,
    task: String,
    node: String,
    /// Percent of one core over the interval; absent if unavailable.
    cpu_percent: Option<f64>,
    /// Time that threads waited for a CPU, in percent of the interval; above 100 if several did.
    wait_percent: Option<f64>,
    switches_per_s: Option<f64>,
    memory_bytes: Option<u64>,
    memory_limit_bytes: Option<u64>,
    net_rx_bytes_per_s: Option<f64>,
    net_tx_bytes_per_s: Option<f64>,
    /// Packets that the task's network policy denied, in both directions.
    denied_per_s: Option<f64>,
    disk_read_bytes_per_s: Option<f64>,
    disk_write_bytes_per_s: Option<f64>,
    /// Requests to the task's disks.
    disk_operations_per_s: Option<f64>,
    /// Time in which the CPU quota throttled the task, in percent of the interval.
    throttled_percent: Option<f64>,
    /// Time in which at least one process waited for a CPU, in percent of the interval.
    stalled_cpu_percent: Option<f64>,
    /// As `stalled_cpu_percent`, for memory.
    stalled_memory_percent: Option<f64>,
    /// As `stalled_cpu_percent`, for disks.
    stalled_io_percent: Option<f64>,
    /// Established TCP connections, in both directions.
    connections_per_s: Option<f64>,
    /// TCP segments that were sent again.
    retransmits_per_s: Option<f64>,
    oom_kills: Option<u64>,
    processes: Option<u64>,
    counters: TaskCounters,
}

/// A node's answer about one task.
struct TaskSample {
    node: String,
    at: Instant,
    counters: TaskCounters,
}

/// Counters of every task, by allocation and task.
#[derive(Default)]
struct Collection {
    tasks: BTreeMap<(String, String), TaskSample>,
    lost: Option<u64>,
    unreachable: Vec<String>,
    slow: Vec<(String, Duration)>,
}

/// A node's answer, its time of arrival, and its duration.
type TimedAnswer = (Result<NodeStats, CliError>, Instant, Duration);

/// Shows the resource usage of tasks.
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
        rows.retain(|row| args.is_selected(row));
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
    let mut nodes: Vec<NodeListStub> = client.get("/v1/nodes")?;
    nodes.retain(|node| node.status == "ready");
    let answers = query_in_parallel(&nodes, |node| fetch_stats(client, node));
    let mut collection = Collection::default();
    for (node, answer) in nodes.iter().zip(answers) {
        collection.add(&node.name, answer)?;
    }
    Ok(collection)
}

fn fetch_stats(client: &Client, node: &NodeListStub) -> TimedAnswer {
    let id = escape(&node.id);
    let begun = Instant::now();
    let stats = client.get(&format!("/v1/client/stats?node_id={id}&counters=true"));
    (stats, Instant::now(), begun.elapsed())
}

/// The results of `look` for each of `items`, of at most [`NODES_AT_ONCE`] at a time.
fn query_in_parallel<T: Sync, R: Send>(items: &[T], look: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let place = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(place) else {
                return done;
            };
            done.push((place, look(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let workers = (0..items.len().min(NODES_AT_ONCE)).map(|_| scope.spawn(work));
        let workers: Vec<_> = workers.collect();
        let done = workers.into_iter().flat_map(|worker| {
            let done = worker.join();
            done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        done.collect()
    });
    done.sort_by_key(|(place, _)| *place);
    done.into_iter().map(|(_, result)| result).collect()
}

impl Collection {
    /// Processes a node's answer.
    ///
    /// # Errors
    ///
    /// If no server answered. A failed node is not an error.
    fn add(&mut self, node: &str, (stats, at, took): TimedAnswer) -> Result<(), CliError> {
        if took >= SLOW {
            self.slow.push((node.to_owned(), took));
        }
        let stats = match stats {
            Ok(stats) => stats,
            Err(error) if error.exit == Exit::Unreachable => return Err(error),
            Err(_) => {
                self.unreachable.push(node.to_owned());
                return Ok(());
            }
        };
        if let Some(lost) = stats.muster.ebpf_lost {
            self.lost = Some(self.lost.unwrap_or(0) + lost);
        }
        for (alloc, tasks) in stats.muster.allocs {
            for (task, counters) in tasks {
                let node = node.to_owned();
                let sample = TaskSample { node, at, counters };
                self.tasks.insert((alloc.clone(), task), sample);
            }
        }
        Ok(())
    }
}

fn rows(client: &Client, before: &Collection, now: &Collection) -> Result<Vec<Row>, CliError> {
    let allocs: Vec<AllocListStub> = client.get("/v1/allocations")?;
    let allocs: BTreeMap<&str, &AllocListStub> =
        allocs.iter().map(|alloc| (&*alloc.id, alloc)).collect();
    let rows = now.tasks.iter().filter_map(|(key, sample)| {
        let alloc = allocs.get(key.0.as_str())?;
        Some(row(alloc, &key.1, before.tasks.get(key), sample))
    });
    Ok(rows.collect())
}

fn row(alloc: &AllocListStub, task: &str, before: Option<&TaskSample>, sample: &TaskSample) -> Row {
    let counters = &sample.counters;
    let rate = |value: fn(&TaskCounters) -> Option<u64>| {
        let before = before?;
        let (new, old) = (value(counters)?, value(&before.counters)?);
        let elapsed = sample.at.saturating_duration_since(before.at);
        Some(new.saturating_sub(old) as f64 / elapsed.as_secs_f64())
    };
    let percent = |value| rate(value).map(|nanos| nanos / 1e7);
    Row {
        name: format!("{}/{task}", alloc.name),
        job: alloc.job_id.clone(),
        group: alloc.task_group.clone(),
        task: task.to_owned(),
        node: sample.node.clone(),
        cpu_percent: percent(|c| c.cpu_nanos),
        wait_percent: percent(|c| Some(c.run_delay.as_ref()?.sum_nanos)),
        switches_per_s: rate(|c| c.context_switches),
        memory_bytes: counters.memory_bytes,
        memory_limit_bytes: counters.memory_limit_bytes,
        net_rx_bytes_per_s: rate(|c| c.net_rx_bytes),
        net_tx_bytes_per_s: rate(|c| c.net_tx_bytes),
        denied_per_s: rate(|c| Some(c.net_rx_denied? + c.net_tx_denied?)),
        disk_read_bytes_per_s: rate(|c| c.block_read_bytes),
        disk_write_bytes_per_s: rate(|c| c.block_write_bytes),
        disk_operations_per_s: rate(|c| Some(c.block_reads? + c.block_writes?)),
        throttled_percent: percent(|c| c.throttled_nanos),
        stalled_cpu_percent: percent(|c| Some(c.pressure_cpu?.some_nanos)),
        stalled_memory_percent: percent(|c| Some(c.pressure_memory?.some_nanos)),
        stalled_io_percent: percent(|c| Some(c.pressure_io?.some_nanos)),
        connections_per_s: rate(|c| Some(c.tcp_opened? + c.tcp_accepted?)),
        retransmits_per_s: rate(|c| c.tcp_retransmits),
        oom_kills: counters.oom_kills,
        processes: counters.pids,
        counters: counters.clone(),
    }
}

const DASH: &str = "–";

/// A column's title, the column sets with it besides [`ColumnSet::All`], and its text for a line.
type Column = (&'static str, &'static [ColumnSet], fn(&TreeRow) -> String);

/// The columns after the task's name and its node.
const COLUMNS: [Column; 19] = {
    use ColumnSet::{Common, Disk, Network, Stalls};
    const EVERY: &[ColumnSet] = &[Common, Disk, Stalls, Network];
    [
        ("CPU % OF A CORE", EVERY, |it| {
            format_tenths(it.amounts.cpu_percent)
        }),
        ("WAITING %", &[Common, Stalls], |it| {
            format_tenths(it.amounts.wait_percent)
        }),
        ("SWITCHES/S", &[Common, Stalls], |it| {
            format_tenths(it.amounts.switches_per_s)
        }),
        ("MEMORY", EVERY, |it| bytes(it.amounts.memory_bytes)),
        ("OF LIMIT", &[Common], |it| of_limit(it)),
        ("NET IN/S", &[Common, Network], |it| {
            bytes(it.amounts.net_rx_bytes_per_s)
        }),
        ("NET OUT/S", &[Common, Network], |it| {
            bytes(it.amounts.net_tx_bytes_per_s)
        }),
        ("DENIED/S", &[Common, Network], |it| {
            format_tenths(it.amounts.denied_per_s)
        }),
        ("CONNECTIONS/S", &[Network], |it| {
            format_tenths(it.amounts.connections_per_s)
        }),
        ("RETRANSMITS/S", &[Network], |it| {
            format_tenths(it.amounts.retransmits_per_s)
        }),
        ("READ/S", &[Disk], |it| {
            bytes(it.amounts.disk_read_bytes_per_s)
        }),
        ("WRITTEN/S", &[Disk], |it| {
            bytes(it.amounts.disk_write_bytes_per_s)
        }),
        ("DISK OPS/S", &[Disk], |it| {
            format_tenths(it.amounts.disk_operations_per_s)
        }),
        ("THROTTLED %", &[Stalls], |it| {
            format_tenths(it.amounts.throttled_percent)
        }),
        ("STALLED CPU %", &[Stalls], |it| {
            format_tenths(it.amounts.stalled_cpu_percent)
        }),
        ("STALLED MEMORY %", &[Stalls], |it| {
            format_tenths(it.amounts.stalled_memory_percent)
        }),
        ("STALLED DISK %", &[Stalls, Disk], |it| {
            format_tenths(it.amounts.stalled_io_percent)
        }),
        ("PROCESSES", &[Common], |it| {
            format_whole(it.amounts.processes)
        }),
        ("OOM KILLS", &[Common], |it| {
            format_whole(it.amounts.oom_kills)
        }),
    ]
};

fn columns(view: ColumnSet) -> impl Iterator<Item = &'static Column> {
    let shown = move |(_, views, _): &&Column| view == ColumnSet::All || views.contains(&view);
    COLUMNS.iter().filter(shown)
}

fn show(rows: &[Row], args: &TopArgs, now: &Collection) -> Result<(), CliError> {
    let titles = columns(args.view).map(|(title, ..)| *title);
    let titles: Vec<&str> = ["TASK", "NODE"].into_iter().chain(titles).collect();
    let mut table = output::table(&titles);
    for line in tree::lines(rows, args.sort, args.down_to) {
        table.add_row(cells(&line, args.view));
    }
    let total = TreeRow {
        level: RowLevel::Jobs,
        name: "total".to_owned(),
        node: String::new(),
        of_limit_percent: None,
        amounts: tree::total(rows),
    };
    table.add_row(cells(&total, args.view));
    output::print_table(&table)?;
    let lost = now.lost.map_or_else(
        || "– (no programs loaded)".to_owned(),
        |lost| lost.to_string(),
    );
    output::print(&format!(
        "{} · eBPF events lost: {lost}\n",
        output::count_with_noun(rows.len(), "task")
    ))?;
    if !now.unreachable.is_empty() {
        output::print(&format!("no answer from: {}\n", now.unreachable.join(", ")))?;
    }
    if !now.slow.is_empty() {
        let slow = now.slow.iter();
        let slow = slow.map(|(node, took)| format!("{node} ({:.1} s)", took.as_secs_f64()));
        let slow: Vec<String> = slow.collect();
        output::print(&format!("slow to answer: {}\n", slow.join(", ")))?;
    }
    Ok(())
}

fn cells(line: &TreeRow, view: ColumnSet) -> Vec<String> {
    let indent = match line.level {
        RowLevel::Jobs => "",
        RowLevel::Groups => "  ",
        RowLevel::Tasks => "    ",
    };
    let name = format!("{indent}{}", output::clean(&line.name));
    let amounts = columns(view).map(|(_, _, cell)| cell(line));
    [name, output::clean(&line.node)]
        .into_iter()
        .chain(amounts)
        .collect()
}

fn format_tenths(amount: Amount) -> String {
    cell(amount, |value| format!("{value:.1}"))
}

fn format_whole(amount: Amount) -> String {
    cell(amount, |value| format!("{value:.0}"))
}

fn bytes(amount: Amount) -> String {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bytes are not negative, and only shown"
    )]
    cell(amount, |value| output::bytes(value as u64))
}

fn of_limit(line: &TreeRow) -> String {
    let share = line.of_limit_percent;
    share.map_or_else(|| DASH.to_owned(), |share| format!("{share:.0} %"))
}

/// The text of an amount. A partial amount is shown as a lower bound.
fn cell(amount: Amount, text: impl Fn(f64) -> String) -> String {
    let Some(value) = amount.value else {
        return DASH.to_owned();
    };
    let at_least = if amount.is_partial { "≥" } else { "" };
    format!("{at_least}{}", text(value))
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, Mutex};

    use super::*;

    /// Each request waits until the maximum of requests runs. Sequential requests would wait forever.
    #[test]
    fn nodes_are_asked_at_once_but_not_all() {
        let items: Vec<usize> = (0..NODES_AT_ONCE * 3).collect();
        let (looking, more) = (Mutex::new((0, 0)), Condvar::new());

        let results = query_in_parallel(&items, |item| {
            let mut count = looking.lock().unwrap();
            count.0 += 1;
            count.1 = count.1.max(count.0);
            more.notify_all();
            let patience = Duration::from_secs(30);
            let (mut count, waited) = more
                .wait_timeout_while(count, patience, |(_, most)| *most < NODES_AT_ONCE)
                .unwrap();
            count.0 -= 1;
            assert!(!waited.timed_out(), "{} look at once", count.1);
            *item
        });

        assert_eq!(results, items);
        assert_eq!(looking.into_inner().unwrap().1, NODES_AT_ONCE);
    }

    /// The node's own samples are two seconds apart, regardless of the other nodes' answers.
    #[test]
    fn rates_are_of_the_nodes_own_time() {
        let at = Instant::now();
        let sample = |at, operations, nanos| TaskSample {
            node: "n1".to_owned(),
            at,
            counters: TaskCounters {
                block_reads: Some(operations),
                block_writes: Some(0),
                throttled_nanos: Some(nanos),
                ..TaskCounters::default()
            },
        };
        let before = sample(at, 10, 0);
        let now = sample(at + Duration::from_secs(2), 30, 500_000_000);

        let row = row(&AllocListStub::default(), "web", Some(&before), &now);

        assert_eq!(row.disk_operations_per_s, Some(10.0));
        assert_eq!(row.throttled_percent, Some(25.0));
        assert_eq!(row.retransmits_per_s, None);
    }

    #[test]
    fn slow_and_silent_nodes_are_named() {
        let mut collection = Collection::default();
        let at = Instant::now();
        let failed = |exit| Err(CliError::new(exit, "no"));

        let slow = (Ok(NodeStats::default()), at, SLOW);
        collection.add("slow", slow).unwrap();
        let silent = (failed(Exit::Failed), at, Duration::ZERO);
        collection.add("silent", silent).unwrap();

        assert_eq!(collection.slow, [("slow".to_owned(), SLOW)]);
        assert_eq!(collection.unreachable, ["silent"]);
        let nobody = (failed(Exit::Unreachable), at, Duration::ZERO);
        assert!(collection.add("any", nobody).is_err());
    }

    #[test]
    fn every_view_shows_its_columns() {
        let count = |view| columns(view).count();

        assert_eq!(count(ColumnSet::All), COLUMNS.len());
        assert_eq!(count(ColumnSet::Common), 10);
        assert!(COLUMNS.iter().all(|(_, views, _)| !views.is_empty()));
        let line = TreeRow {
            level: RowLevel::Jobs,
            name: "web".to_owned(),
            node: String::new(),
            of_limit_percent: None,
            amounts: tree::total(&[]),
        };
        assert_eq!(
            cells(&line, ColumnSet::Disk).len(),
            2 + count(ColumnSet::Disk)
        );
    }
}
