//! Jobs, their groups and their tasks, with totals that add up.

use clap::ValueEnum;

use super::Row;

/// Order of rows: largest value first, names from A.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Sort {
    /// CPU time.
    Cpu,
    /// Time that threads waited for a CPU.
    Wait,
    /// Memory.
    Memory,
    /// Context switches.
    Switches,
    /// Bytes received and sent.
    Network,
    /// Packets refused by policies.
    Denied,
    /// Bytes read from disks and written to them.
    Disk,
    /// Disk requests.
    Operations,
    /// Time throttled by the CPU quota.
    Throttled,
    /// Time stalled for CPU, memory or disk.
    Stalled,
    /// TCP connections established.
    Connections,
    /// TCP segments retransmitted.
    Retransmits,
    /// Name.
    Name,
}

/// Depth of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum RowLevel {
    /// Jobs.
    Jobs,
    /// Jobs and groups.
    Groups,
    /// Jobs, groups and tasks.
    Tasks,
}

/// An amount, or its known part.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Amount {
    /// The sum of the available values; `None` if there are none.
    pub(super) value: Option<f64>,
    /// Whether a value of the sum is unavailable.
    pub(super) is_partial: bool,
}

/// The amounts in one line.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct RowAmounts {
    pub(super) cpu_percent: Amount,
    pub(super) wait_percent: Amount,
    pub(super) switches_per_s: Amount,
    pub(super) memory_bytes: Amount,
    pub(super) net_rx_bytes_per_s: Amount,
    pub(super) net_tx_bytes_per_s: Amount,
    pub(super) denied_per_s: Amount,
    pub(super) disk_read_bytes_per_s: Amount,
    pub(super) disk_write_bytes_per_s: Amount,
    pub(super) disk_operations_per_s: Amount,
    pub(super) throttled_percent: Amount,
    pub(super) stalled_cpu_percent: Amount,
    pub(super) stalled_memory_percent: Amount,
    pub(super) stalled_io_percent: Amount,
    pub(super) connections_per_s: Amount,
    pub(super) retransmits_per_s: Amount,
    pub(super) processes: Amount,
    pub(super) oom_kills: Amount,
}

/// A job, a group or a task.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TreeRow {
    pub(super) level: RowLevel,
    pub(super) name: String,
    /// The node of the task; empty for a line of several nodes.
    pub(super) node: String,
    /// The memory in percent of the task's limit.
    pub(super) of_limit_percent: Option<f64>,
    pub(super) amounts: RowAmounts,
}

/// A line with its child lines.
struct TreeNode {
    line: TreeRow,
    below: Vec<TreeNode>,
}

impl Amount {
    fn of(value: Option<f64>) -> Self {
        Self {
            value,
            is_partial: false,
        }
    }

    fn plus(self, other: Self) -> Self {
        let value = match (self.value, other.value) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
        let is_partial =
            self.is_partial || other.is_partial || self.value.is_some() != other.value.is_some();
        Self { value, is_partial }
    }
}

impl RowAmounts {
    pub(super) fn of(row: &Row) -> Self {
        let count = |value: Option<u64>| Amount::of(value.map(|value| value as f64));
        Self {
            cpu_percent: Amount::of(row.cpu_percent),
            wait_percent: Amount::of(row.wait_percent),
            switches_per_s: Amount::of(row.switches_per_s),
            memory_bytes: count(row.memory_bytes),
            net_rx_bytes_per_s: Amount::of(row.net_rx_bytes_per_s),
            net_tx_bytes_per_s: Amount::of(row.net_tx_bytes_per_s),
            denied_per_s: Amount::of(row.denied_per_s),
            disk_read_bytes_per_s: Amount::of(row.disk_read_bytes_per_s),
            disk_write_bytes_per_s: Amount::of(row.disk_write_bytes_per_s),
            disk_operations_per_s: Amount::of(row.disk_operations_per_s),
            throttled_percent: Amount::of(row.throttled_percent),
            stalled_cpu_percent: Amount::of(row.stalled_cpu_percent),
            stalled_memory_percent: Amount::of(row.stalled_memory_percent),
            stalled_io_percent: Amount::of(row.stalled_io_percent),
            connections_per_s: Amount::of(row.connections_per_s),
            retransmits_per_s: Amount::of(row.retransmits_per_s),
            processes: count(row.processes),
            oom_kills: count(row.oom_kills),
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            cpu_percent: self.cpu_percent.plus(other.cpu_percent),
            wait_percent: self.wait_percent.plus(other.wait_percent),
            switches_per_s: self.switches_per_s.plus(other.switches_per_s),
            memory_bytes: self.memory_bytes.plus(other.memory_bytes),
            net_rx_bytes_per_s: self.net_rx_bytes_per_s.plus(other.net_rx_bytes_per_s),
            net_tx_bytes_per_s: self.net_tx_bytes_per_s.plus(other.net_tx_bytes_per_s),
            denied_per_s: self.denied_per_s.plus(other.denied_per_s),
            disk_read_bytes_per_s: self.disk_read_bytes_per_s.plus(other.disk_read_bytes_per_s),
            disk_write_bytes_per_s: self
                .disk_write_bytes_per_s
                .plus(other.disk_write_bytes_per_s),
            disk_operations_per_s: self.disk_operations_per_s.plus(other.disk_operations_per_s),
            throttled_percent: self.throttled_percent.plus(other.throttled_percent),
            stalled_cpu_percent: self.stalled_cpu_percent.plus(other.stalled_cpu_percent),
            stalled_memory_percent: self
                .stalled_memory_percent
                .plus(other.stalled_memory_percent),
            stalled_io_percent: self.stalled_io_percent.plus(other.stalled_io_percent),
            connections_per_s: self.connections_per_s.plus(other.connections_per_s),
            retransmits_per_s: self.retransmits_per_s.plus(other.retransmits_per_s),
            processes: self.processes.plus(other.processes),
            oom_kills: self.oom_kills.plus(other.oom_kills),
        }
    }

    fn amount_by(&self, sort: Sort) -> Option<f64> {
        match sort {
            Sort::Cpu => self.cpu_percent.value,
            Sort::Wait => self.wait_percent.value,
            Sort::Memory => self.memory_bytes.value,
            Sort::Switches => self.switches_per_s.value,
            Sort::Network => self.net_rx_bytes_per_s.plus(self.net_tx_bytes_per_s).value,
            Sort::Denied => self.denied_per_s.value,
            Sort::Disk => {
                let written = self.disk_write_bytes_per_s;
                self.disk_read_bytes_per_s.plus(written).value
            }
            Sort::Operations => self.disk_operations_per_s.value,
            Sort::Throttled => self.throttled_percent.value,
            Sort::Stalled => {
                let memory_and_io = self.stalled_memory_percent.plus(self.stalled_io_percent);
                self.stalled_cpu_percent.plus(memory_and_io).value
            }
            Sort::Connections => self.connections_per_s.value,
            Sort::Retransmits => self.retransmits_per_s.value,
            Sort::Name => None,
        }
    }
}

/// The total of some rows.
pub(super) fn total(rows: &[Row]) -> RowAmounts {
    let amounts = rows.iter().map(RowAmounts::of);
    amounts.reduce(RowAmounts::plus).unwrap_or_default()
}

/// The lines of `rows` down to `level`: groups below their job, tasks below their group.
pub(super) fn lines(rows: &[Row], sort: Sort, level: RowLevel) -> Vec<TreeRow> {
    let jobs = branches(
        rows,
        |row| row.job.clone(),
        |job, rows| {
            let groups = branches(
                rows,
                |row| row.group.clone(),
                |group, rows| {
                    let tasks = rows.iter().map(|row| TreeNode {
                        line: task(row),
                        below: Vec::new(),
                    });
                    branch(RowLevel::Groups, group, rows, tasks.collect())
                },
            );
            branch(RowLevel::Jobs, job, rows, groups)
        },
    );
    let mut lines = Vec::new();
    flatten(jobs, sort, level, &mut lines);
    lines
}

/// A branch for each name that rows have.
fn branches(
    rows: &[Row],
    name: impl Fn(&Row) -> String,
    make: impl Fn(String, &[Row]) -> TreeNode,
) -> Vec<TreeNode> {
    let mut rows = rows.to_vec();
    rows.sort_by_key(&name);
    let chunks = rows.chunk_by(|one, other| name(one) == name(other));
    chunks.map(|rows| make(name(&rows[0]), rows)).collect()
}

fn branch(level: RowLevel, name: String, rows: &[Row], below: Vec<TreeNode>) -> TreeNode {
    let line = TreeRow {
        level,
        name,
        node: String::new(),
        of_limit_percent: None,
        amounts: total(rows),
    };
    TreeNode { line, below }
}

fn task(row: &Row) -> TreeRow {
    let of_limit_percent = match (row.memory_bytes, row.memory_limit_bytes) {
        (Some(used), Some(limit)) if limit > 0 => Some(used as f64 / limit as f64 * 100.0),
        _ => None,
    };
    TreeRow {
        level: RowLevel::Tasks,
        name: row.name.clone(),
        node: row.node.clone(),
        of_limit_percent,
        amounts: RowAmounts::of(row),
    }
}

fn flatten(mut branches: Vec<TreeNode>, sort: Sort, level: RowLevel, lines: &mut Vec<TreeRow>) {
    branches.sort_by(|a, b| {
        let key = |branch: &TreeNode| branch.line.amounts.amount_by(sort).unwrap_or(-1.0);
        let most = key(b).total_cmp(&key(a));
        most.then_with(|| a.line.name.cmp(&b.line.name))
    });
    for TreeNode { line, below } in branches {
        if line.level <= level {
            lines.push(line);
            flatten(below, sort, level, lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(job: &str, group: &str, task: &str, cpu: Option<f64>, memory: Option<u64>) -> Row {
        Row {
            name: format!("{job}.{group}[0]/{task}"),
            job: job.to_owned(),
            group: group.to_owned(),
            task: task.to_owned(),
            node: "n1".to_owned(),
            cpu_percent: cpu,
            memory_bytes: memory,
            memory_limit_bytes: memory.map(|bytes| bytes * 4),
            ..Row::default()
        }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("web", "front", "server", Some(10.0), Some(100)),
            row("db", "main", "server", Some(25.0), Some(50)),
            row("web", "front", "proxy", Some(5.0), None),
            row("web", "back", "server", Some(30.0), Some(7)),
        ]
    }

    fn shown(rows: &[Row], sort: Sort, level: RowLevel) -> Vec<String> {
        let lines = lines(rows, sort, level);
        let shown = lines.iter().map(|line| {
            let memory = line.amounts.memory_bytes;
            let partial = if memory.is_partial { "≥" } else { "" };
            let cpu = line.amounts.cpu_percent.value.unwrap_or(-1.0);
            let bytes = memory.value.unwrap_or(-1.0);
            format!("{} {cpu} {partial}{bytes}", line.name)
        });
        shown.collect()
    }

    #[test]
    fn totals_are_sums_of_rows_below() {
        assert_eq!(
            shown(&rows(), Sort::Cpu, RowLevel::Tasks),
            [
                "web 45 ≥107",
                "back 30 7",
                "web.back[0]/server 30 7",
                "front 15 ≥100",
                "web.front[0]/server 10 100",
                "web.front[0]/proxy 5 -1",
                "db 25 50",
                "main 25 50",
                "db.main[0]/server 25 50",
            ]
        );
        let total = total(&rows());
        assert_eq!(total.cpu_percent, Amount::of(Some(70.0)));
        assert!(total.memory_bytes.is_partial);
        assert_eq!(total.switches_per_s, Amount::default());
    }

    #[test]
    fn rows_are_ordered_at_each_level() {
        assert_eq!(
            shown(&rows(), Sort::Memory, RowLevel::Groups),
            [
                "web 45 ≥107",
                "front 15 ≥100",
                "back 30 7",
                "db 25 50",
                "main 25 50"
            ]
        );
        assert_eq!(
            shown(&rows(), Sort::Name, RowLevel::Jobs),
            ["db 25 50", "web 45 ≥107"]
        );
    }

    /// The first has the most of each alone, the second of both together.
    #[test]
    fn rows_are_ordered_by_the_sum_of_parts() {
        let mut rows = [("a", 5.0, 1.0), ("b", 4.0, 4.0)].map(|(job, read, written)| {
            let mut row = row(job, "g", "t", None, None);
            row.disk_read_bytes_per_s = Some(read);
            row.disk_write_bytes_per_s = Some(written);
            row.stalled_cpu_percent = Some(written);
            row.stalled_io_percent = Some(read);
            row
        });
        rows[0].disk_operations_per_s = Some(9.0);
        rows[0].retransmits_per_s = Some(1.0);
        let first = |sort| lines(&rows, sort, RowLevel::Jobs).remove(0).name;

        assert_eq!([Sort::Disk, Sort::Stalled].map(first), ["b", "b"]);
        let first = |sort| lines(&rows, sort, RowLevel::Jobs).remove(0).name;
        assert_eq!([Sort::Operations, Sort::Retransmits].map(first), ["a", "a"]);
    }

    #[test]
    fn memory_is_shown_as_percent_of_limit() {
        let lines = lines(&rows(), Sort::Name, RowLevel::Tasks);

        assert_eq!(lines[2].of_limit_percent, Some(25.0));
        assert_eq!(lines[0].of_limit_percent, None);
    }
}
