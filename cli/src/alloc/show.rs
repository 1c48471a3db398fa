//! An allocation in human-readable form.

use muster_wire::api::alloc::{Allocation, DeploymentStatus, GarbageCollection, RescheduleTracker};
use muster_wire::api::eval::Evaluation;
use muster_wire::api::resources::AllocatedTask;
use muster_wire::api::stats::TaskNetwork;

use crate::client::Client;
use crate::exit::CliError;
use crate::output;
use crate::usage;

/// Shows `alloc`, and fetches its follow-up evaluation.
///
/// # Errors
///
/// If standard output is closed.
pub(super) fn show(client: &Client, alloc: &Allocation) -> Result<(), CliError> {
    output::print(&format!(
        "{}  {}\njob {} version {} · node {} · wanted: {} {}· is: {} {}\n",
        alloc.id,
        output::clean(&alloc.name),
        output::clean(&alloc.job_id),
        alloc.job.as_ref().map_or(0, |job| job.version),
        alloc.node_name,
        alloc.desired_status,
        if alloc.desired_description.is_empty() {
            String::new()
        } else {
            format!("({}) ", output::clean(&alloc.desired_description))
        },
        alloc.client_status,
        output::clean(&alloc.client_description),
    ))?;
    for line in relations(alloc) {
        output::print(&format!("{line}\n"))?;
    }
    if !alloc.followup_eval_id.is_empty() {
        let path = format!("/v1/evaluation/{}", alloc.followup_eval_id);
        // The servers may have deleted the evaluation already.
        let eval: Option<Evaluation> = client.get(&path).ok();
        output::print(&format!("{}\n", follow_up(alloc, eval.as_ref())))?;
    }
    if let Some(collection) = &alloc.garbage_collection {
        output::print(&format!("{}\n", format_deletion_time(collection)))?;
    }
    show_held(alloc)?;
    show_scores(alloc)?;
    show_tasks(alloc)
}

/// The time at which the servers delete the allocation.
fn format_deletion_time(collection: &GarbageCollection) -> String {
    let GarbageCollection {
        eligible,
        eligible_at,
        kept: _,
        reason,
    } = collection;
    let reason = output::clean(reason);
    match (eligible, eligible_at) {
        (true, at) => format!(
            "garbage collection: eligible since {}",
            output::time_since(*at)
        ),
        (false, 0) => format!("garbage collection: not eligible: {reason}"),
        (false, at) => format!(
            "garbage collection: eligible {} ({reason})",
            output::time_until(*at)
        ),
    }
}

/// The health of the allocation in its deployment, and whether it is a canary. Empty without a deployment.
pub(crate) fn health(status: Option<&DeploymentStatus>) -> String {
    let Some(DeploymentStatus {
        healthy,
        canary,
        modify_index: _,
    }) = status
    else {
        return String::new();
    };
    let health = match healthy {
        Some(true) => "healthy",
        Some(false) => "unhealthy",
        None => "not known yet",
    };
    let canary = if *canary { "canary, " } else { "" };
    format!("{canary}{health}")
}

/// The lines about an allocation's deployment and about related allocations.
fn relations(alloc: &Allocation) -> Vec<String> {
    let mut lines = Vec::new();
    let health = health(alloc.deployment_status.as_ref());
    if !alloc.deployment_id.is_empty() {
        let health = if health.is_empty() {
            "health not known yet"
        } else {
            &health
        };
        let id = output::short_id(&alloc.deployment_id);
        lines.push(format!("deployment {id} · {health}"));
    } else if !health.is_empty() {
        lines.push(format!("health: {health}"));
    }
    let transition = &alloc.desired_transition;
    for (asked, text) in [
        (transition.migrate, "asked to go elsewhere"),
        (
            transition.reschedule,
            "may be replaced while its deployment is under way",
        ),
        (transition.force_reschedule, "asked to be replaced at once"),
    ] {
        if asked == Some(true) {
            lines.push(text.to_owned());
        }
    }
    for (text, id) in [
        ("replaces", &alloc.previous_allocation),
        ("replaced by", &alloc.next_allocation),
        ("had to make room for", &alloc.preempted_by_allocation),
    ] {
        if !id.is_empty() {
            lines.push(format!("{text} {}", output::short_id(id)));
        }
    }
    if !alloc.preempted_allocations.is_empty() {
        let ids = alloc.preempted_allocations.iter();
        let ids: Vec<&str> = ids.map(|id| output::short_id(id)).collect();
        lines.push(format!("took the place of {}", ids.join(", ")));
    }
    lines.extend(
        alloc
            .reschedule_tracker
            .as_ref()
            .map(|tracker| reschedules(alloc, tracker)),
    );
    lines
}

/// The number of replacements, the limit, and the time of the last one.
fn reschedules(alloc: &Allocation, tracker: &RescheduleTracker) -> String {
    let groups = alloc.job.iter().flat_map(|job| &job.task_groups);
    let mut groups = groups.filter(|group| group.name == alloc.task_group);
    let policy = groups
        .next()
        .and_then(|group| group.reschedule_policy.as_ref());
    let limit = match policy {
        Some(policy) if policy.unlimited => ", without limit".to_owned(),
        Some(policy) => {
            let nanos = u64::try_from(policy.interval).unwrap_or_default();
            let interval = output::span(std::time::Duration::from_nanos(nanos));
            format!(" of {} in {interval}", policy.attempts)
        }
        None => String::new(),
    };
    let last = tracker.events.last().map_or_else(String::new, |event| {
        format!(
            "; last {} from {} on node {}",
            output::time_since(event.reschedule_time),
            output::short_id(&event.prev_alloc_id),
            output::short_id(&event.prev_node_id)
        )
    });
    format!("reschedule attempts: {}{limit}{last}", tracker.events.len())
}

fn follow_up(alloc: &Allocation, eval: Option<&Evaluation>) -> String {
    let id = output::short_id(&alloc.followup_eval_id);
    let at = eval.and_then(|eval| eval.wait_until.filter(|_| eval.status == "pending"));
    match (at, eval) {
        (Some(at), _) => format!(
            "evaluation {id} goes on with it {}",
            output::time_until(at.0.0)
        ),
        (None, Some(eval)) => format!("evaluation {id} goes on with it; it is {}", eval.status),
        (None, None) => format!("evaluation {id} went on with it"),
    }
}

/// Ports with their addresses, cores and devices.
fn show_held(alloc: &Allocation) -> Result<(), CliError> {
    let Some(held) = &alloc.allocated_resources else {
        return Ok(());
    };
    for port in &held.shared.ports {
        let to = match port.to {
            0 => String::new(),
            to if to == port.value => String::new(),
            to => format!(" → {to}"),
        };
        output::print(&format!(
            "port {} = {}:{}{to}\n",
            output::clean(&port.label),
            port.host_ip,
            port.value
        ))?;
    }
    for (name, task) in &held.tasks {
        for line in format_held_resources(task) {
            output::print(&format!("task {} holds {line}\n", output::clean(name)))?;
        }
    }
    Ok(())
}

fn format_held_resources(task: &AllocatedTask) -> Vec<String> {
    let mut lines = Vec::new();
    let cores: Vec<String> = task
        .cpu
        .reserved_cores
        .iter()
        .map(ToString::to_string)
        .collect();
    if !cores.is_empty() {
        lines.push(format!("cores {} for itself", cores.join(", ")));
    }
    for devices in &task.devices {
        lines.push(format!(
            "{}/{}/{}: {}",
            output::clean(&devices.vendor),
            output::clean(&devices.kind),
            output::clean(&devices.name),
            output::clean(&devices.device_ids.join(", "))
        ));
    }
    lines
}

/// Shows the scores that led to the choice of the node.
fn show_scores(alloc: &Allocation) -> Result<(), CliError> {
    if let Some(metrics) = &alloc.metrics {
        for meta in metrics.score_meta_data.iter().take(3) {
            let chosen = if meta.node_id == alloc.node_id {
                "  ← chosen"
            } else {
                ""
            };
            let parts: Vec<String> = meta
                .scores
                .iter()
                .map(|(name, score)| format!("{name} {score:.3}"))
                .collect();
            output::print(&format!(
                "score {:.3} on {} ({}){chosen}\n",
                meta.norm_score,
                output::short_id(&meta.node_id),
                parts.join(", ")
            ))?;
        }
    }
    Ok(())
}

fn show_tasks(alloc: &Allocation) -> Result<(), CliError> {
    for (name, task) in &alloc.task_states {
        output::print(&format!(
            "\ntask {}: {}{}, {} restarts\n",
            output::clean(name),
            task.state,
            if task.failed { " (failed)" } else { "" },
            task.restarts
        ))?;
        if let Some(network) = &task.network {
            output::print(&format!("  {}\n", reached_at(network)))?;
        }
        for event in &task.events {
            output::print(&format!(
                "  {:>14}  {:<16} {}\n",
                output::time_since(event.time),
                event.kind,
                output::clean(&event.display_message)
            ))?;
        }
    }
    Ok(())
}

/// The address from the driver, and whether the task is advertised at it or at the node's.
fn reached_at(network: &TaskNetwork) -> String {
    let whose = if network.auto_advertise {
        "which other services should use"
    } else {
        "while other services should use the node's"
    };
    format!("reached at {}, {whose}", usage::reached_at(network))
}

#[cfg(test)]
mod tests {
    use muster_wire::api::alloc::RescheduleEvent;
    use muster_wire::api::resources::{AllocatedCpu, AllocatedDevices};

    use super::*;

    #[test]
    fn alloc_status_lists_relations_to_other_allocs() {
        let mut alloc = Allocation {
            deployment_id: "18cc7616-1332".to_owned(),
            deployment_status: Some(DeploymentStatus {
                healthy: Some(false),
                canary: true,
                modify_index: 7,
            }),
            next_allocation: "aaaaaaaa-1".to_owned(),
            preempted_by_allocation: "bbbbbbbb-1".to_owned(),
            preempted_allocations: vec!["cccccccc-1".to_owned(), "dddddddd-1".to_owned()],
            ..Allocation::default()
        };
        alloc.desired_transition.migrate = Some(true);

        assert_eq!(
            relations(&alloc),
            [
                "deployment 18cc7616 · canary, unhealthy",
                "asked to go elsewhere",
                "replaced by aaaaaaaa",
                "had to make room for bbbbbbbb",
                "took the place of cccccccc, dddddddd",
            ]
        );
        assert!(relations(&Allocation::default()).is_empty());
    }

    #[test]
    fn task_shows_its_driver_network() {
        let mut network = TaskNetwork {
            address: "10.88.0.3".to_owned(),
            ports: [("http".to_owned(), 80)].into(),
            auto_advertise: true,
        };

        let expected = "reached at 10.88.0.3, http 80, which other services should use";
        assert_eq!(reached_at(&network), expected);
        network.auto_advertise = false;
        assert!(reached_at(&network).ends_with("should use the node's"));
    }

    #[test]
    fn alloc_shows_its_garbage_collection_time() {
        let kept = |eligible_at, reason: &str| {
            let collection = GarbageCollection {
                eligible: false,
                eligible_at,
                kept: String::new(),
                reason: reason.to_owned(),
            };
            format_deletion_time(&collection)
        };
        let eligible = format_deletion_time(&GarbageCollection {
            eligible: true,
            eligible_at: 1,
            ..GarbageCollection::default()
        });

        assert_eq!(
            kept(0, "not over"),
            "garbage collection: not eligible: not over"
        );
        let young = kept(u64::MAX, "ended too recently");
        assert!(
            young.starts_with("garbage collection: eligible in ")
                && young.ends_with(" (ended too recently)"),
            "{young}"
        );
        assert!(
            eligible.starts_with("garbage collection: eligible since "),
            "{eligible}"
        );
    }

    #[test]
    fn reschedules_are_counted() {
        let event = RescheduleEvent {
            prev_alloc_id: "aaaaaaaa-1".to_owned(),
            prev_node_id: "bbbbbbbb-1".to_owned(),
            ..RescheduleEvent::default()
        };
        let tracker = RescheduleTracker {
            events: vec![event.clone(), event],
        };

        let line = reschedules(&Allocation::default(), &tracker);

        assert!(line.starts_with("reschedule attempts: 2; last "), "{line}");
        assert!(line.ends_with(" from aaaaaaaa on node bbbbbbbb"), "{line}");
    }

    #[test]
    fn cores_and_devices_are_named() {
        let task = AllocatedTask {
            cpu: AllocatedCpu {
                reserved_cores: vec![2, 3],
                ..AllocatedCpu::default()
            },
            devices: vec![AllocatedDevices {
                vendor: "nvidia".to_owned(),
                kind: "gpu".to_owned(),
                name: "t4".to_owned(),
                device_ids: vec!["GPU-1".to_owned()],
            }],
            ..AllocatedTask::default()
        };

        assert_eq!(
            format_held_resources(&task),
            ["cores 2, 3 for itself", "nvidia/gpu/t4: GPU-1"]
        );
    }
}
