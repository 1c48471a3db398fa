use std::collections::BTreeSet;

use muster_domain::alloc::DesiredStatus;
use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use muster_domain::id::{DeploymentId, JobKey, LogIndex};
use muster_domain::job::DelayFunction;
use serde_json::Value;

use super::*;
use crate::scheduler::update::Change;

const RECONCILER: CaseKind = CaseKind {
    name: "reconciler",
    is: |row| row.get("tainted_nodes").is_some(),
    judge: CaseRunner::Row(judge),
};

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn small(value: &Value) -> u32 {
    u32::try_from(number(value)).unwrap()
}

fn id(text: &str) -> AllocId {
    text.parse().unwrap()
}

/// A time long after the epoch, so that all other times can be before it.
const NOW: Timestamp = Timestamp(10_000_000_000_000_000_000);

fn before(value: &Value) -> Option<Timestamp> {
    value.as_u64().map(|ns| Timestamp(NOW.0 - ns))
}

fn update(group: &Value) -> Option<UpdateStrategy> {
    let update = &group["update"];
    (!update.is_null()).then(|| UpdateStrategy {
        max_parallel: small(&update["max_parallel"]),
        canary: small(&update["canary"]),
        auto_revert: update["auto_revert"].as_bool().unwrap(),
        auto_promote: update["auto_promote"].as_bool().unwrap(),
        progress_deadline: Duration::from_nanos(number(&update["progress_deadline_ns"])),
        ..UpdateStrategy::default()
    })
}

fn policy(group: &Value) -> Option<ReschedulePolicy> {
    let policy = &group["reschedule"];
    (!policy.is_null()).then(|| ReschedulePolicy {
        attempts: small(&policy["attempts"]),
        interval: Duration::from_nanos(number(&policy["interval_ns"])),
        delay: Duration::from_nanos(number(&policy["delay_ns"])),
        delay_function: DelayFunction::from_name(text(policy, "delay_function")).unwrap(),
        max_delay: Duration::from_nanos(number(&policy["max_delay_ns"])),
        unlimited: policy["unlimited"].as_bool().unwrap(),
    })
}

fn deployment(case: &Value) -> Option<Deployment> {
    let from = &case["deployment"];
    if from.is_null() {
        return None;
    }
    let words = [
        DeploymentStatus::Running,
        DeploymentStatus::Paused,
        DeploymentStatus::Successful,
        DeploymentStatus::Failed,
        DeploymentStatus::Cancelled,
    ];
    let groups = from["groups"].as_array().unwrap().iter();
    Some(Deployment {
        id: text(from, "id").parse().unwrap(),
        job: JobKey::in_default("app"),
        job_version: number(&from["job_version"]),
        job_modify_index: LogIndex(0),
        job_create_index: LogIndex(number(&from["job_create_index"])),
        status: words
            .into_iter()
            .find(|status| status.as_str() == text(from, "status"))
            // In Nomad, a region that waits for another region pauses; Muster has one region.
            .unwrap_or(DeploymentStatus::Paused),
        status_description: String::new(),
        groups: groups
            .map(|group| DeploymentGroup {
                name: text(group, "task_group").to_owned(),
                promoted: group["promoted"].as_bool().unwrap(),
                placed_canaries: group["placed_canaries"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(|canary| id(canary.as_str().unwrap()))
                    .collect(),
                desired_canaries: small(&group["desired_canaries"]),
                desired_total: small(&group["desired_total"]),
                placed: small(&group["placed_allocs"]),
                healthy: small(&group["healthy_allocs"]),
                ..DeploymentGroup::default()
            })
            .collect(),
        create_index: LogIndex(0),
        modify_index: LogIndex(0),
        create_time: Timestamp(0),
        modify_time: Timestamp(0),
    })
}

/// The client states in the recorded cases.
const CLIENTS: [ClientStatus; 5] = [
    ClientStatus::Pending,
    ClientStatus::Running,
    ClientStatus::Complete,
    ClientStatus::Failed,
    ClientStatus::Lost,
];

fn instance(case: &Value, alloc: &Value) -> Instance {
    let taint = case["tainted_nodes"]
        .as_array()
        .into_iter()
        .flatten()
        .find(|node| node["node_id"] == alloc["node_id"])
        .map_or(Taint::Healthy, |node| match text(node, "state") {
            "draining" => Taint::Draining,
            _ => Taint::Down,
        });
    let name = text(alloc, "name");
    let name_index = name[name.rfind('[').unwrap() + 1..name.len() - 1]
        .parse()
        .unwrap();
    let version = number(&alloc["job_version"]);
    let created = number(&alloc["job_create_index"]);
    let (now_version, now_created) = (
        number(&case["job_version"]),
        number(&case["job_create_index"]),
    );
    let optional = |key: &str| Some(text(alloc, key)).filter(|id| !id.is_empty());
    let ended_at = before(&alloc["task_finished_before_now_ns"])
        .or(before(&alloc["modified_before_now_ns"]))
        .unwrap();
    Instance {
        id: id(text(alloc, "id")),
        name_index,
        taint,
        is_older: version < now_version || created < now_created,
        is_of_other_type: false,
        is_current: version == now_version && created == now_created,
        version,
        change: match text(alloc, "change_needed") {
            "none" => Change::None,
            "in_place" => Change::InPlace,
            "destructive" => Change::Destructive,
            other => panic!("{other}"),
        },
        desired: match text(alloc, "desired_status") {
            "run" => DesiredStatus::Run,
            "stop" => DesiredStatus::Stop,
            "evict" => DesiredStatus::Evict,
            other => panic!("{other}"),
        },
        client: CLIENTS
            .into_iter()
            .find(|status| status.as_str() == text(alloc, "client_status"))
            .unwrap(),
        ran_successfully: alloc["has_task_state"] == true
            && alloc["task_failed"] == false
            && text(alloc, "client_status") != "running"
            && text(alloc, "client_status") != "pending",
        deployment: optional("deployment_id").map(|id| id.parse::<DeploymentId>().unwrap()),
        reconnect_facts: ReconnectFacts::default(),
        healthy: alloc["deployment_healthy"].as_bool(),
        canary: alloc["deployment_canary"].as_bool().unwrap(),
        has_next: optional("next_allocation").is_some(),
        follow_up: optional("followup_eval_id").map(|id| id.parse().unwrap()),
        transition: Transition {
            migrate: alloc["transition_migrate"].as_bool().unwrap(),
            reschedule: alloc["transition_reschedule"].as_bool().unwrap(),
            force_reschedule: alloc["transition_force_reschedule"].as_bool().unwrap(),
        },
        ended_at,
        lost_at: before(&alloc["marked_lost_before_now_ns"]),
        events: alloc["reschedule_events"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|event| RescheduleEvent {
                at: before(&event["before_now_ns"]).unwrap(),
                delay: Duration::from_nanos(number(&event["delay_ns"])),
            })
            .collect(),
    }
}

/// Returns the decisions, in one form for both sides.
fn ours(work: &JobWork, names: &[&str]) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (group, name) in work.groups.iter().zip(names) {
        let counts = group.counts;
        lines.insert(format!(
            "counts {name} canary {} destructive {} ignore {} in-place {} migrate {} place {} stop {}",
            counts.canary,
            counts.destructive,
            counts.ignore,
            counts.in_place,
            counts.migrate,
            counts.place,
            counts.stop
        ));
        for place in &group.place {
            lines.insert(format!(
                "place app.{name}[{}] canary {} previous {} reschedule {} lost {} stable {} version {}",
                place.name_index,
                place.canary,
                place.previous.map_or(String::new(), |id| id.to_string()),
                place.reschedule,
                place.lost,
                place.last_stable,
                place.version_min
            ));
        }
        for stop in &group.stop {
            let client = stop.client_status.map_or("", ClientStatus::as_str);
            let follow_up = stop
                .follow_up
                .map_or(String::new(), |at| format!("{name}/{at}"));
            lines.insert(format!(
                "stop {} {client:?} {} {follow_up}",
                stop.alloc_id, stop.why
            ));
        }
        for id in &group.destructive {
            lines.insert(format!("destructive {id}"));
        }
        for id in &group.in_place {
            lines.insert(format!("in-place {id}"));
        }
        for (at, follow_up) in group.follow_ups.iter().enumerate() {
            let ids: BTreeSet<String> = follow_up.allocs.iter().map(AllocId::to_string).collect();
            lines.insert(format!(
                "follow-up {name}/{at} {} {ids:?}",
                follow_up.wait_until.since(NOW).as_nanos()
            ));
        }
    }
    if let Some((status, why)) = work.deployment_update {
        lines.insert(format!("deployment {} {why}", status.as_str()));
    }
    if let Some(new) = &work.new_deployment {
        lines.insert(format!("new deployment {}", new.description));
        for group in &new.groups {
            lines.insert(format!(
                "new deployment {} total {} canaries {}",
                group.name, group.desired_total, group.desired_canaries
            ));
        }
    }
    lines
}

fn theirs(case: &Value) -> BTreeSet<String> {
    let result = &case["result"];
    let list = |key: &str| result[key].as_array().cloned().unwrap_or_default();
    let mut lines = BTreeSet::new();
    for (name, counts) in result["desired_updates"].as_object().unwrap() {
        lines.insert(format!(
            "counts {name} canary {} destructive {} ignore {} in-place {} migrate {} place {} stop {}",
            counts["canary"],
            counts["destructive_update"],
            counts["ignore"],
            counts["in_place_update"],
            counts["migrate"],
            counts["place"],
            counts["stop"]
        ));
    }
    for place in list("place") {
        lines.insert(format!(
            "place {} canary {} previous {} reschedule {} lost {} stable {} version {}",
            text(&place, "name"),
            place["canary"],
            text(&place, "previous_alloc_id"),
            place["reschedule"],
            place["lost"],
            place["use_last_stable_job_version"],
            place["min_job_version"]
        ));
    }
    for stop in list("stop") {
        lines.insert(format!(
            "stop {} {:?} {} {}",
            text(&stop, "alloc_id"),
            text(&stop, "client_status"),
            text(&stop, "description"),
            text(&stop, "followup")
        ));
    }
    for update in list("destructive_update") {
        lines.insert(format!("destructive {}", text(&update, "stop_alloc_id")));
    }
    for id in list("in_place_update") {
        lines.insert(format!("in-place {}", id.as_str().unwrap()));
    }
    for (name, follow_ups) in result["followup_evals"].as_object().into_iter().flatten() {
        for (at, follow_up) in follow_ups.as_array().unwrap().iter().enumerate() {
            let ids: BTreeSet<String> = follow_up["alloc_ids"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|id| id.as_str().unwrap().to_owned())
                .collect();
            lines.insert(format!(
                "follow-up {name}/{at} {} {ids:?}",
                follow_up["wait_until_after_now_ns"]
            ));
        }
    }
    for update in list("deployment_updates") {
        lines.insert(format!(
            "deployment {} {}",
            text(&update, "status"),
            text(&update, "status_description")
        ));
    }
    let new = &result["created_deployment"];
    if !new.is_null() {
        lines.insert(format!(
            "new deployment {}",
            text(new, "status_description")
        ));
        for (name, group) in new["groups"].as_object().unwrap() {
            lines.insert(format!(
                "new deployment {name} total {} canaries {}",
                group["desired_total"], group["desired_canaries"]
            ));
        }
    }
    lines
}

fn decide(case: &Value) -> BTreeSet<String> {
    let deployment = deployment(case);
    let specs: Vec<_> = case["groups"]
        .as_array()
        .unwrap()
        .iter()
        .map(|group| (text(group, "name"), update(group), policy(group), group))
        .collect();
    let groups: Vec<GroupInput<'_>> = specs
        .iter()
        .map(|(name, update, policy, group)| {
            let stop_after = number(&group["stop_after_client_disconnect_ns"]);
            let removed = group["removed_from_current_version"] == true;
            GroupInput {
                name,
                spec: (!removed).then(|| GroupSpec {
                    count: small(&group["count"]),
                    update: update.as_ref(),
                    reschedule: policy.as_ref(),
                    disconnect: None,
                    stop_after: (stop_after > 0)
                        .then(|| Duration::from_nanos(stop_after) + Duration::from_secs(5)),
                }),
                instances: case["allocs"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .filter(|alloc| text(alloc, "task_group") == *name)
                    .map(|alloc| instance(case, alloc))
                    .collect(),
            }
        })
        // Of a removed job only its allocations are known.
        .filter(|group| case["job_purged"] != true || !group.instances.is_empty())
        .collect();
    let is_current = deployment.as_ref().is_some_and(|deployment| {
        deployment.job_version == number(&case["job_version"])
            && deployment.job_create_index == LogIndex(number(&case["job_create_index"]))
    });
    let names: Vec<&str> = groups.iter().map(|group| group.name).collect();
    let input = Input {
        batch: case["batch"] == true,
        stopped: case["job_purged"] == true || case["job_stopped"] == true,
        deployment: deployment.as_ref(),
        deployment_is_current: is_current,
        groups,
        eval_id: text(case, "eval_id").parse().unwrap(),
        next_look: None,
        now: NOW,
    };
    ours(&reconcile(&input), &names)
}

fn judge(case: &Value) -> Outcome {
    let (ours, theirs) = (decide(case), theirs(case));
    if ours == theirs {
        return Outcome::Same;
    }
    let only = |left: &BTreeSet<String>, right: &BTreeSet<String>| {
        let lines: Vec<String> = left.difference(right).cloned().collect();
        lines.join("\n    ")
    };
    Outcome::Differs(format!(
        "{}\n  ours:\n    {}\n  theirs:\n    {}",
        case["kind"],
        only(&ours, &theirs),
        only(&theirs, &ours)
    ))
}

#[test]
fn decisions_are_nomads() {
    let test = "decisions_are_nomads";
    let Some(tally) = recorded::beside(test, "reconciler.jsonl.gz", &RECONCILER) else {
        return;
    };
    tally.assert_same(400);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[RECONCILER]);
}
