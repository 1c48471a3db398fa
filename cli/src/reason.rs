//! Reasons as text: for an allocation's status, and for a group that could not be placed.

use muster_wire::api::alloc::{AllocListStub, Metric};

use crate::output;

/// The reason of an allocation's status: an event of a task, or a description by the control plane or the agent.
///
/// Of an allocation that failed only the events of tasks that failed count: a poststop task or a sidecar may end later
/// and well.
pub(crate) fn reason(alloc: &AllocListStub) -> String {
    if alloc.client_status == "running" && alloc.desired_status == "run" {
        return String::new();
    }
    let descriptions = [&alloc.desired_description, &alloc.client_description];
    let description = || {
        let given = descriptions.into_iter().find(|text| !text.is_empty());
        given.cloned().unwrap_or_default()
    };
    if matches!(alloc.client_status.as_str(), "lost" | "unknown") {
        return description();
    }
    let has_failed = alloc.task_states.values().any(|state| state.failed);
    let events = alloc
        .task_states
        .iter()
        .filter(|(_, state)| state.failed || !has_failed)
        .flat_map(|(task, state)| state.events.iter().map(move |event| (task, event)));
    let event = events
        .filter(|(_, event)| {
            matches!(
                event.kind.as_str(),
                "Terminated" | "Driver Failure" | "Restarting" | "Disk Resources Exceeded"
            )
        })
        .max_by_key(|(_, event)| event.time)
        .map(|(task, event)| format!("{task}: {}", event.display_message));
    event.unwrap_or_else(description)
}

/// The reasons why a group could not be placed.
pub(crate) fn reasons(metric: &Metric) -> String {
    let mut parts = Vec::new();
    if metric.nodes_evaluated == 0 {
        parts.push("no node is ready in its datacenters and pool".to_owned());
    }
    for (constraint, count) in &metric.constraint_filtered {
        let fail = if *count == 1 {
            "node fails"
        } else {
            "nodes fail"
        };
        parts.push(format!("{count} {fail} `{}`", output::clean(constraint)));
    }
    for (dimension, count) in &metric.dimension_exhausted {
        let lack = if *count == 1 {
            "node lacks"
        } else {
            "nodes lack"
        };
        // The agent's setting is the only limit of this dimension.
        let lacking = match dimension.as_str() {
            "allocations" => "room for more allocations (node_max_allocs)",
            other => other,
        };
        parts.push(format!("{count} {lack} {lacking}"));
    }
    if parts.is_empty() {
        parts.push(format!(
            "{} looked at, {} filtered, {} full",
            output::count_with_noun(metric.nodes_evaluated, "node"),
            metric.nodes_filtered,
            metric.nodes_exhausted
        ));
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use muster_wire::api::alloc::{TaskEvent, TaskState};

    use super::*;

    fn ended(failed: bool, time: u64, message: &str) -> TaskState {
        TaskState {
            failed,
            events: vec![TaskEvent {
                kind: "Terminated".to_owned(),
                time,
                display_message: message.to_owned(),
                ..TaskEvent::default()
            }],
            ..TaskState::default()
        }
    }

    #[test]
    fn the_reason_is_of_the_failed_task() {
        let mut alloc = AllocListStub {
            client_status: "failed".to_owned(),
            task_states: [
                ("main".to_owned(), ended(true, 1, "Exit Code: 3")),
                ("stop".to_owned(), ended(false, 2, "Exit Code: 0")),
            ]
            .into(),
            ..AllocListStub::default()
        };
        assert_eq!(reason(&alloc), "main: Exit Code: 3");

        alloc.client_status = "lost".to_owned();
        alloc.desired_description = "alloc is lost since its node is down".to_owned();
        assert_eq!(reason(&alloc), "alloc is lost since its node is down");
    }
}
