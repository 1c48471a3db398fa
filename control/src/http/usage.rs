//! Usage of a node's tasks, as Prometheus text: one scrape a node.
//!
//! The route is `GET /v1/client/stats?node_id=…&format=prometheus`.
//!
//! The specifications bound the labels; the number of runs does not. A task's labels are namespace, job, group,
//! task and the instance's index, never its allocation. A job that another job launched has the other job's id.
//! Where allocations share labels, the newest one is reported, so that a counter starts again instead of jumping.
//! `muster_task_instances` counts the allocations that share labels.
//!
//! A one-off task is reported under its client's name for its metrics, the label `metrics_guid`, with its domain
//! as the job. One-off tasks without that name are left out, because nothing bounds their names. An unavailable
//! value has no sample. Ephemeral disks belong to an allocation, so their samples have no task.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_control_core::state::State;
use muster_domain::alloc::Allocation;
use muster_domain::id::LogIndex;
use muster_domain::one_off::{META_DOMAIN, META_METRICS_GUID};
use muster_wire::rpc::{AllocDisk, AllocStats, Histogram, NodeCollection, NodeStats, TaskStats};
use muster_wire::task_stats::{MetricKind, Sample, TASK_METRICS, TaskMetric};

/// One metric, with a sample for each of several objects.
struct MetricFamily<T> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
}

/// Metrics of an allocation's ephemeral disk.
const DISK_FAMILIES: &[MetricFamily<AllocDisk>] = &[
    gauge(
        "muster_alloc_disk_used_bytes",
        "Bytes of the ephemeral disk in use.",
        |disk| number(disk.used_bytes),
    ),
    gauge(
        "muster_alloc_disk_limit_bytes",
        "Limit of the ephemeral disk, in bytes.",
        |disk| number(Some(disk.limit_bytes)),
    ),
    gauge(
        "muster_alloc_disk_used_inodes",
        "Files and directories of the ephemeral disk.",
        |disk| number(disk.used_inodes),
    ),
    gauge(
        "muster_alloc_disk_limit_inodes",
        "Limit of files and directories of the ephemeral disk.",
        |disk| number(Some(disk.limit_inodes)),
    ),
];

/// Metrics of a node's collection of finished allocations.
const COLLECTION_FAMILIES: &[MetricFamily<NodeCollection>] = &[
    counter(
        "muster_node_gc_refusals_total",
        "Failed releases of an allocation by a driver or the kernel. Each is retried while the driver is there.",
        |node| Some(node.refusals as f64),
    ),
    gauge(
        "muster_node_gc_under_way",
        "Allocations that are being destroyed.",
        |node| Some(node.under_way as f64),
    ),
    gauge(
        "muster_node_gc_deleting",
        "Directories of destroyed allocations that are still being deleted.",
        |node| Some(node.deleting as f64),
    ),
    counter(
        "muster_node_gc_deleted_inodes_total",
        "Deleted files and directories (inodes).",
        |node| Some(node.deleted_inodes as f64),
    ),
    counter(
        "muster_node_gc_deleted_bytes_total",
        "Bytes of the deleted files.",
        |node| Some(node.deleted_bytes as f64),
    ),
    counter(
        "muster_node_gc_delete_seconds_total",
        "Time that all threads together spent on deletion.",
        |node| Some(node.delete_busy.as_secs_f64()),
    ),
    counter(
        "muster_node_gc_delete_failures_total",
        "Failed deletions. Each is retried.",
        |node| Some(node.delete_failures as f64),
    ),
    gauge(
        "muster_node_gc_stuck",
        "Entries that cannot be deleted at present.",
        |node| Some(node.stuck.len() as f64),
    ),
];

/// The labels of a task, in their order. The labels of an allocation have an empty task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct TaskLabels {
    namespace: String,
    job: String,
    group: String,
    task: String,
    index: u32,
    /// The client's name for the metrics of a one-off task; empty for every other task.
    metrics_guid: String,
}

/// The newest task with the same labels, and the number of tasks that share them.
struct LabelledTask<'a> {
    made: LogIndex,
    instances: u32,
    stats: &'a TaskStats,
}

/// A metric that only grows.
const fn counter<T>(
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> MetricFamily<T> {
    MetricFamily {
        name,
        kind: "counter",
        help,
        value,
    }
}

/// A metric that may grow and shrink.
const fn gauge<T>(
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> MetricFamily<T> {
    MetricFamily {
        name,
        kind: "gauge",
        help,
        value,
    }
}

fn number(value: Option<u64>) -> Option<f64> {
    value.map(|value| value as f64)
}

/// The text for one node.
pub(super) fn prometheus(state: &State, stats: &NodeStats) -> String {
    let tasks = tasks(state, stats);
    let mut text = String::new();
    if let Some(lost) = stats.ebpf_lost {
        header(
            &mut text,
            "muster_node_ebpf_lost_total",
            "counter",
            "Events that eBPF programs could not count.",
        );
        line(&mut text, "muster_node_ebpf_lost_total", "", lost as f64);
    }
    let name = "muster_node_limits_repaired_total";
    let help = "Limits of tasks that were changed from outside, and that were set again.";
    header(&mut text, name, "counter", help);
    line(&mut text, name, "", stats.limits_repaired as f64);
    let name = "muster_node_ebpf_stale_removed_total";
    let help = "Entries of eBPF maps whose cgroup was gone, and that were removed.";
    header(&mut text, name, "counter", help);
    line(&mut text, name, "", stats.ebpf_stale_removed as f64);
    let name = "muster_node_condition";
    let help = "1 while the node takes no new tasks for this reason.";
    header(&mut text, name, "gauge", help);
    for condition in stats.conditions.keys() {
        let label = format!("condition=\"{condition}\"");
        line(&mut text, name, &label, 1.0);
    }
    add_collection(&mut text, &stats.collection);
    let name = "muster_task_instances";
    let help = "Allocations that share this place; the newest is shown.";
    header(&mut text, name, "gauge", help);
    for (place, task) in &tasks {
        line(&mut text, name, &labels(place), f64::from(task.instances));
    }
    add_task_metrics(&mut text, &tasks);
    add_disks(&mut text, state, stats);
    text
}

/// Adds the metrics of tasks, histograms last. A metric without any sample is left out.
fn add_task_metrics(text: &mut String, tasks: &BTreeMap<TaskLabels, LabelledTask<'_>>) {
    let is_histogram = |metric: &&TaskMetric| metric.kind == MetricKind::Histogram;
    let (histograms, numbers): (Vec<&TaskMetric>, Vec<&TaskMetric>) =
        TASK_METRICS.iter().partition(is_histogram);
    for metric in numbers.into_iter().chain(histograms) {
        let samples = tasks
            .iter()
            .filter_map(|(place, task)| Some((place, (metric.sample)(task.stats)?)));
        let mut samples = samples.peekable();
        if samples.peek().is_some() {
            header(text, metric.name, metric.kind.as_str(), metric.help);
        }
        for (place, sample) in samples {
            match sample {
                Sample::Number(value) => line(text, metric.name, &labels(place), value),
                Sample::Histogram(value) => buckets(text, metric.name, &labels(place), value),
            }
        }
    }
}

/// Adds the node's garbage collection since its agent's start. Also adds the kept allocations: finished ones
/// without pressure to destroy them, and those whose destruction was refused.
fn add_collection(text: &mut String, node: &NodeCollection) {
    let name = "muster_node_gc_destroyed_total";
    header(text, name, "counter", "Finished allocations destroyed.");
    for (reason, count) in &node.destroyed {
        let label = format!("reason=\"{}\"", escape(reason));
        line(text, name, &label, *count as f64);
    }
    let name = "muster_node_gc_kept";
    header(text, name, "gauge", "Finished allocations that are there.");
    let idle = node.finished.saturating_sub(node.refused + node.under_way);
    for (reason, count) in [("no pressure", idle), ("refused", node.refused)] {
        line(text, name, &format!("reason=\"{reason}\""), count as f64);
    }
    for family in COLLECTION_FAMILIES {
        if let Some(value) = (family.value)(node) {
            header(text, family.name, family.kind, family.help);
            line(text, family.name, "", value);
        }
    }
}

/// Adds the disks of the newest allocation for each set of labels, as for tasks.
fn add_disks(text: &mut String, state: &State, stats: &NodeStats) {
    let mut disks: BTreeMap<TaskLabels, (LogIndex, &AllocDisk)> = BTreeMap::new();
    for on_node in &stats.allocs {
        let (Some(alloc), Some(disk)) = (reported_alloc(state, on_node), &on_node.disk) else {
            continue;
        };
        let candidate = (alloc.create_index, disk);
        let newest = disks.entry(place(&alloc, "")).or_insert(candidate);
        if candidate.0 > newest.0 {
            *newest = candidate;
        }
    }
    for family in DISK_FAMILIES {
        let samples = disks.iter().map(|(place, (_, disk))| (place, *disk));
        add_family(text, family, samples);
    }
}

/// Adds the lines of a family, if any of `places` has its value.
fn add_family<'a, T: 'a>(
    text: &mut String,
    family: &MetricFamily<T>,
    places: impl Iterator<Item = (&'a TaskLabels, &'a T)>,
) {
    let samples = places.filter_map(|(place, of)| Some((place, (family.value)(of)?)));
    let mut samples = samples.peekable();
    if samples.peek().is_some() {
        header(text, family.name, family.kind, family.help);
    }
    for (place, value) in samples {
        line(text, family.name, &labels(place), value);
    }
}

/// Adds a histogram's lines: each bucket includes the counts of the shorter ones.
fn buckets(text: &mut String, name: &str, labels: &str, histogram: &Histogram) {
    let mut below = 0;
    for at in 0..Histogram::BUCKETS {
        below += histogram.counts.get(at).copied().unwrap_or(0);
        let bound = Histogram::bound_ns(at).map_or_else(
            || "+Inf".to_owned(),
            |nanos| (nanos as f64 / 1e9).to_string(),
        );
        let labels = format!("{labels},le=\"{bound}\"");
        line(text, &format!("{name}_bucket"), &labels, below as f64);
    }
    let sum = histogram.sum.as_secs_f64();
    line(text, &format!("{name}_sum"), labels, sum);
    line(text, &format!("{name}_count"), labels, below as f64);
}

/// Returns the allocation. Returns `None` for a one-off task without a name for its metrics.
fn reported_alloc(state: &State, on_node: &AllocStats) -> Option<Allocation> {
    let alloc = state.allocs().get(&on_node.alloc_id)?;
    let job = &alloc.job().spec;
    let is_reported = !job.is_one_off() || job.meta.contains_key(META_METRICS_GUID);
    is_reported.then(|| alloc.unpack())
}

fn tasks<'a>(state: &State, stats: &'a NodeStats) -> BTreeMap<TaskLabels, LabelledTask<'a>> {
    let mut tasks: BTreeMap<TaskLabels, LabelledTask<'a>> = BTreeMap::new();
    for on_node in &stats.allocs {
        let Some(alloc) = reported_alloc(state, on_node) else {
            continue;
        };
        for (name, stats) in &on_node.tasks {
            let task = tasks.entry(place(&alloc, name)).or_insert(LabelledTask {
                made: alloc.create_index,
                instances: 0,
                stats,
            });
            task.instances += 1;
            if alloc.create_index > task.made {
                (task.made, task.stats) = (alloc.create_index, stats);
            }
        }
    }
    tasks
}

fn place(alloc: &Allocation, task: &str) -> TaskLabels {
    let job = &alloc.job.spec;
    let launched = job.launched.as_ref();
    let meta_value = |key: &str| job.meta.get(key).cloned().unwrap_or_default();
    if job.is_one_off() {
        return TaskLabels {
            namespace: job.namespace.clone(),
            job: meta_value(META_DOMAIN),
            group: alloc.group().name.clone(),
            task: task.to_owned(),
            index: alloc.name_index,
            metrics_guid: meta_value(META_METRICS_GUID),
        };
    }
    TaskLabels {
        namespace: job.namespace.clone(),
        job: launched.map_or_else(|| job.id.clone(), |launched| launched.parent_id.clone()),
        group: alloc.group().name.clone(),
        task: task.to_owned(),
        index: alloc.name_index,
        metrics_guid: String::new(),
    }
}

/// Formats labels as they appear between braces.
fn labels(place: &TaskLabels) -> String {
    let TaskLabels {
        namespace,
        job,
        group,
        task,
        index,
        metrics_guid,
    } = place;
    let [namespace, job, group, task, metrics_guid] =
        [namespace, job, group, task, metrics_guid].map(|text| escape(text));
    let metrics_guid = if metrics_guid.is_empty() {
        metrics_guid
    } else {
        format!(",metrics_guid=\"{metrics_guid}\"")
    };
    let task = if task.is_empty() {
        task
    } else {
        format!("task=\"{task}\",")
    };
    format!(
        "namespace=\"{namespace}\",job=\"{job}\",group=\"{group}\",{task}index=\"{index}\"{metrics_guid}"
    )
}

/// Escapes a label's value for the text format: characters that would end it get a backslash.
fn escape(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn header(text: &mut String, name: &str, kind: &str, help: &str) {
    // Writing to a `String` cannot fail.
    let written = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    debug_assert!(written.is_ok());
}

fn line(text: &mut String, name: &str, labels: &str, value: f64) {
    let written = if labels.is_empty() {
        writeln!(text, "{name} {value}")
    } else {
        writeln!(text, "{name}{{{labels}}} {value}")
    };
    debug_assert!(written.is_ok());
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_label_cannot_end_early() {
        assert_eq!(escape("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn gc_metrics_count_destroyed_and_kept_allocs() {
        let node = NodeCollection {
            finished: 7,
            under_way: 1,
            refused: 2,
            destroyed: BTreeMap::from([("disk usage".to_owned(), 3)]),
            deleted_bytes: 4_096,
            delete_busy: Duration::from_millis(1_500),
            ..NodeCollection::default()
        };
        let mut text = String::new();

        add_collection(&mut text, &node);

        for sample in [
            "muster_node_gc_destroyed_total{reason=\"disk usage\"} 3",
            "muster_node_gc_kept{reason=\"no pressure\"} 4",
            "muster_node_gc_kept{reason=\"refused\"} 2",
            "muster_node_gc_deleted_bytes_total 4096",
            "muster_node_gc_delete_seconds_total 1.5",
        ] {
            assert!(text.lines().any(|line| line == sample), "{sample}: {text}");
        }
    }

    #[test]
    fn metric_names_are_unique_with_matching_suffix() {
        let mut names: Vec<&str> = TASK_METRICS.iter().map(|metric| metric.name).collect();
        for metric in TASK_METRICS {
            let is_total = metric.name.ends_with("_total");
            let is_counter = metric.kind == MetricKind::Counter;
            assert_eq!(is_total, is_counter, "{}", metric.name);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), TASK_METRICS.len());
    }
}
