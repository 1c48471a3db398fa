//! Recorded decisions that no single part of the scheduler answers alone.

use std::collections::BTreeMap;

use muster_domain::fixture::recorded::{self, Judge, Kind, Outcome};
use muster_domain::job::JobSpec;
use muster_wire::api::job::request;
use serde_json::{Map, Value, json};

use super::super::update::{self, Change};

const UPDATE: Kind = Kind {
    name: "job_diff: needs_destructive_update",
    is: |row| row.get("needs_destructive_update").is_some(),
    judge: Judge::Row(judge_update),
};

/// [`super::super::fleet::Fleet::assign_ports`] is where an answer comes from once it tells addresses
/// apart: each of `node_addresses` and what is reserved on it, `running_allocs_ports` taken, the asks, and
/// then `offers` to compare, a `value` of null standing for any free dynamic port.
const PORTS: Kind = Kind {
    name: "ports",
    is: |row| row.get("offers").is_some(),
    judge: Judge::NotRun("a port is taken on all addresses of a node, not on one"),
};

/// Fields that this version refuses, or that the server derives.
const REFUSED: [&str; 19] = [
    "Services",
    "Vault",
    "Consul",
    "Templates",
    "Artifacts",
    "ScalingPolicies",
    "Kind",
    "CSIPluginConfig",
    "Networks",
    "Multiregion",
    "Payload",
    "ConsulToken",
    "ConsulNamespace",
    "VaultToken",
    "VaultNamespace",
    "Stop",
    "Region",
    "Dispatched",
    "ParentID",
];

/// Takes out of both what is the same in both and refused here: it changes no answer.
fn without_same(old: &mut Map<String, Value>, new: &mut Map<String, Value>) {
    for key in REFUSED {
        if old.get(key) == new.get(key) {
            old.remove(key);
            new.remove(key);
        }
    }
    for (key, old) in old {
        match (old, new.get_mut(key)) {
            (Value::Object(old), Some(Value::Object(new))) => without_same(old, new),
            (Value::Array(old), Some(Value::Array(new))) => {
                for old in old {
                    let same = new.iter_mut().find(|new| new["Name"] == old["Name"]);
                    if let (Value::Object(old), Some(Value::Object(new))) = (old, same) {
                        without_same(old, new);
                    }
                }
            }
            _ => {}
        }
    }
}

fn spec(job: &Value) -> Option<JobSpec> {
    let body = json!({"Job": job}).to_string();
    request::read(body.as_bytes()).ok().map(|read| read.spec)
}

/// Which groups that both versions have must be replaced.
fn judge_update(case: &Value) -> Outcome {
    let expected: BTreeMap<&str, bool> = case["needs_destructive_update"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(group, needs)| (group.as_str(), needs == true))
        .collect();
    if expected.is_empty() {
        return Outcome::Same;
    }
    let (mut old, mut new) = (case["old_job"].clone(), case["new_job"].clone());
    if let (Value::Object(old), Value::Object(new)) = (&mut old, &mut new) {
        without_same(old, new);
    }
    let (Some(old), Some(new)) = (spec(&old), spec(&new)) else {
        return Outcome::LeftOut("what changes is not supported by this version");
    };
    let mut differences = Vec::new();
    for (name, needs) in expected {
        let group = |job: &JobSpec| job.groups.iter().find(|group| group.name == name).cloned();
        let (Some(old_group), Some(new_group)) = (group(&old), group(&new)) else {
            differences.push(format!("{name} is gone"));
            continue;
        };
        let ours = update::change((&old, &old_group), (&new, &new_group)) == Change::Destructive;
        if ours != needs {
            let edits = &case["edits"];
            differences.push(format!("{name}: destructive is {ours} after {edits}"));
        }
    }
    Outcome::from_differences(&differences)
}

/// Where ours replaces more: tasks see the job's name, their volumes and the file of their payload.
const REPLACED_HERE: [&str; 4] = [
    "\"group_volume\"",
    "\"name\"",
    "\"task_dispatch_payload\"",
    "\"task_volume_mount\"",
];

#[test]
fn updates_replace_what_nomads_do() {
    let test = "updates_replace_what_nomads_do";
    let Some(mut tally) = recorded::beside(test, "job_diff.jsonl.gz", &UPDATE) else {
        return;
    };
    let is_known = |difference: &String| {
        difference.contains("destructive is true")
            && REPLACED_HERE.iter().any(|edit| difference.contains(edit))
    };
    tally.differences.retain(|difference| !is_known(difference));
    tally.assert_same(170);
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[UPDATE, PORTS]);
}
