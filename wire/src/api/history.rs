//! Resources that allocations used in the last minutes.

#![expect(missing_docs, reason = "fields are those of the node's answer")]

use std::collections::BTreeMap;
use std::time::Duration;

use muster_domain::saturating::nanos;
use serde::{Deserialize, Serialize};

use crate::api::route::Route;
use crate::rpc;

/// Routes of past resource usage.
pub const ROUTES: &[Route] = &[Route::read("/v1/client/allocation/{alloc_id}/history")];

/// The answer to `GET /v1/client/allocation/:id/history`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocHistory {
    /// Time from one point to the next.
    pub step_nanos: u64,
    /// The time for which a point is kept.
    pub kept_nanos: u64,
    /// Start of the node's measurements, in nanoseconds since the epoch; there are no values from before.
    pub since: u64,
    pub tasks: BTreeMap<String, TaskHistory>,
}

/// The history of one task of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskHistory {
    /// The points, oldest first.
    pub points: Vec<Point>,
    /// Periods without values: the task did not run, or was not measured.
    pub gaps: Vec<Gap>,
    /// Names of absent values, or `history`, with the reasons.
    pub absent: BTreeMap<String, String>,
}

/// Resources used in a span of time. Absent values are `null`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Point {
    /// The span's end, in nanoseconds since the epoch.
    pub at: u64,
    /// The length of the span in nanoseconds.
    pub span_nanos: u64,
    #[serde(rename = "CPUNanos")]
    pub cpu_nanos: Option<u64>,
    pub run_delay_nanos: Option<u64>,
    pub context_switches: Option<u64>,
    /// Added up over processors.
    pub throttled_nanos: Option<u64>,
    /// Memory at the end of the span.
    pub memory_bytes: Option<u64>,
    pub net_rx_bytes: Option<u64>,
    pub net_tx_bytes: Option<u64>,
    #[serde(rename = "TCPRetransmits")]
    pub tcp_retransmits: Option<u64>,
    pub block_read_bytes: Option<u64>,
    pub block_write_bytes: Option<u64>,
    /// Time in which at least one thread waited for a CPU; the next fields are for memory and for disks.
    #[serde(rename = "PressureCPUNanos")]
    pub pressure_cpu_nanos: Option<u64>,
    pub pressure_memory_nanos: Option<u64>,
    #[serde(rename = "PressureIONanos")]
    pub pressure_io_nanos: Option<u64>,
}

/// A period without values, in nanoseconds since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Gap {
    pub from: u64,
    pub to: u64,
}

impl From<&rpc::AllocHistory> for AllocHistory {
    fn from(history: &rpc::AllocHistory) -> Self {
        let rpc::AllocHistory {
            alloc_id: _,
            step,
            kept,
            since,
            tasks,
        } = history;
        let tasks = tasks.iter();
        Self {
            step_nanos: nanos(*step),
            kept_nanos: nanos(*kept),
            since: since.0,
            tasks: tasks
                .map(|(name, task)| (name.clone(), TaskHistory::new(task, *step)))
                .collect(),
        }
    }
}

impl TaskHistory {
    fn new(task: &rpc::TaskHistory, step: Duration) -> Self {
        let rpc::TaskHistory { points, absent } = task;
        let points: Vec<Point> = points.iter().map(Point::from).collect();
        // The two ends of a span come from two clocks.
        let least = nanos(step / GAP_PART);
        let gaps = points.windows(2).filter_map(|pair| {
            let gap = Gap {
                from: pair[0].at,
                to: pair[1].at.saturating_sub(pair[1].span_nanos),
            };
            (gap.to.saturating_sub(gap.from) > least).then_some(gap)
        });
        Self {
            gaps: gaps.collect(),
            points,
            absent: absent.clone(),
        }
    }
}

/// A gap is longer than this part of a step.
const GAP_PART: u32 = 10;

impl From<&rpc::HistoryPoint> for Point {
    fn from(point: &rpc::HistoryPoint) -> Self {
        let rpc::HistoryPoint {
            at,
            span,
            cpu,
            run_delay,
            context_switches,
            throttled,
            memory_bytes,
            net_rx_bytes,
            net_tx_bytes,
            tcp_retransmits,
            block_read_bytes,
            block_write_bytes,
            pressure_cpu,
            pressure_memory,
            pressure_io,
        } = *point;
        Self {
            at: at.0,
            span_nanos: nanos(span),
            cpu_nanos: cpu.map(nanos),
            run_delay_nanos: run_delay.map(nanos),
            context_switches,
            throttled_nanos: throttled.map(nanos),
            memory_bytes,
            net_rx_bytes,
            net_tx_bytes,
            tcp_retransmits,
            block_read_bytes,
            block_write_bytes,
            pressure_cpu_nanos: pressure_cpu.map(nanos),
            pressure_memory_nanos: pressure_memory.map(nanos),
            pressure_io_nanos: pressure_io.map(nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_domain::id::Timestamp;

    use super::*;

    fn point(at_s: u64, span_s: u64) -> rpc::HistoryPoint {
        rpc::HistoryPoint {
            at: Timestamp::from_millis(at_s * 1_000),
            span: Duration::from_secs(span_s),
            ..rpc::HistoryPoint::default()
        }
    }

    /// The task ended after 20 s and began again at 54. Two samples failed before 90, so the point at 90 covers their
    /// time too.
    #[test]
    fn unsampled_time_is_a_gap() {
        let points = vec![point(10, 10), point(20, 10), point(60, 6), point(90, 30)];
        let task = rpc::TaskHistory {
            points,
            ..rpc::TaskHistory::default()
        };

        let history = TaskHistory::new(&task, Duration::from_secs(10));

        let (from, to) = (20_000_000_000, 54_000_000_000);
        assert_eq!(history.gaps, [Gap { from, to }]);
        assert_eq!(history.points.len(), 4);
    }

    #[test]
    fn two_clocks_make_no_gap() {
        let mut late = point(20, 10);
        late.at = Timestamp(late.at.0 + 3_000_000);
        let task = rpc::TaskHistory {
            points: vec![point(10, 10), late],
            ..rpc::TaskHistory::default()
        };

        assert_eq!(TaskHistory::new(&task, Duration::from_secs(10)).gaps, []);
    }
}
