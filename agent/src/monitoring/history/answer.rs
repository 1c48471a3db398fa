//! Answers about the usage of an allocation in the last minutes.

use crate::bpf::Bpf;
use crate::context::AgentContext;
use crate::limits::{HISTORY_KEPT, HISTORY_STEP, HISTORY_TASKS_MAX};
use crate::monitoring::history::series::{AbsenceReasons, Series};
use crate::monitoring::history::{EBPF_VALUES, PRESSURE_VALUES};
use crate::session::clock::now;
use muster_domain::id::AllocId;
use muster_domain::id::Timestamp;
use muster_domain::saturating::nanos;
use muster_wire::rpc::AllocHistory;
use muster_wire::rpc::TaskHistory;
use std::collections::BTreeMap;

/// Returns the usage of one allocation. Returns `None` if none of its tasks runs or ran in the last minutes.
pub(crate) fn alloc(context: &AgentContext, alloc_id: AllocId) -> Option<AllocHistory> {
    let histories = &context.monitoring.histories;
    let mut tasks: BTreeMap<String, TaskHistory> = BTreeMap::new();
    let oldest = Timestamp(now().0.saturating_sub(nanos(HISTORY_KEPT)));
    let kept = histories.locked();
    for (name, series) in kept.of(alloc_id) {
        let mut history = TaskHistory {
            points: series.points(oldest),
            absent: absent(context.bpf(), series),
        };
        if history.points.is_empty() {
            history
                .absent
                .insert("history".to_owned(), no_history(false));
        }
        tasks.insert(name.clone(), history);
    }
    let is_full = kept.tasks.len() >= HISTORY_TASKS_MAX;
    drop(kept);
    for (_, name, _) in context.tasks.live.of(Some(alloc_id)) {
        tasks.entry(name).or_insert_with(|| TaskHistory {
            absent: BTreeMap::from([("history".to_owned(), no_history(is_full))]),
            ..TaskHistory::default()
        });
    }
    if tasks.is_empty() {
        return None;
    }
    Some(AllocHistory {
        alloc_id,
        step: HISTORY_STEP,
        kept: HISTORY_KEPT,
        since: histories.since,
        tasks,
    })
}

fn no_history(is_full: bool) -> String {
    if is_full {
        format!("this node keeps the histories of {HISTORY_TASKS_MAX} tasks, the most it does")
    } else {
        format!("the task was not looked at twice yet: that is done every {HISTORY_STEP:?}")
    }
}

/// Why values of a task are absent.
fn absent(bpf: Option<&Bpf>, series: &Series) -> BTreeMap<String, String> {
    let AbsenceReasons {
        memory,
        counts,
        throttled,
        pressure,
    } = &series.absent;
    let parts = bpf.map(Bpf::absent);
    let values = EBPF_VALUES.into_iter().filter_map(|(value, part)| {
        let of_part = || Some(parts?.get(part?)?.as_str());
        let reason = counts.as_deref().or_else(of_part)?;
        Some((value.to_owned(), reason.to_owned()))
    });
    let mut absent: BTreeMap<String, String> = values.collect();
    if series.has_cpu() {
        absent.remove("cpu");
    }
    let pressure = PRESSURE_VALUES.map(|value| (value, pressure));
    let values = [("memory_bytes", memory), ("throttled", throttled)].into_iter();
    for (value, reason) in values.chain(pressure) {
        if let Some(reason) = reason {
            absent.insert(value.to_owned(), reason.to_string());
        }
    }
    absent
}
