use serde_json::{Value, json};

use super::*;
use crate::api::job::Job;
use crate::api::job::tests::valid;

/// A job of `job_type` with required fields only. A service does not even name its type.
fn minimal(job_type: JobType) -> Value {
    let mut job = json!({
        "ID": "JOB-ID",
        "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "native"}]}],
    });
    if job_type != JobType::Service {
        job["Type"] = job_type.as_str().into();
    }
    job
}

fn put(job: &mut Value, at: &str, block: &str) {
    let at = expand(at);
    let (parent, name) = at.rsplit_once('/').unwrap();
    let block = serde_json::from_str(block).unwrap();
    match job.pointer_mut(parent).unwrap() {
        Value::Array(list) => list.push(block),
        parent => parent[name] = block,
    }
}

/// The job as the response of `GET /v1/job/ID`.
fn stored(job: &Value) -> Result<Value, String> {
    let spec = valid(&json!({ "Job": job })).map_err(|faults| faults.join("\n"))?;
    Ok(json!(Job::from_spec(&spec)))
}

fn check_row(row: &DefaultRow, job_type: JobType) -> Result<(), String> {
    let mut job = minimal(job_type);
    if let Some((at, block)) = row.within {
        put(&mut job, at, block);
    }
    let stored = stored(&job)?;
    let found = stored
        .pointer(&expand(row.json))
        .cloned()
        .unwrap_or_default();
    let expected: Value = serde_json::from_str(row.value()).unwrap();
    (found == expected)
        .then_some(())
        .ok_or_else(|| format!("stores {found}, not {expected}"))
}

#[test]
fn stored_defaults_match_their_rows() {
    let mut wrong = Vec::new();
    for row in ROWS {
        for job_type in row.types {
            if let Err(why) = check_row(row, *job_type) {
                wrong.push(format!("{} of {job_type}: {why}", row.json));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn differences_have_values_and_reasons() {
    for row in ROWS {
        let nomad: Value = serde_json::from_str(row.nomad).unwrap();
        let Some((ours, reason)) = row.ours else {
            continue;
        };
        let ours: Value = serde_json::from_str(ours).unwrap();
        assert_ne!(nomad, ours, "{} is not a difference", row.json);
        assert!(!reason.is_empty(), "{}", row.json);
    }
}

/// Collects the pointers to all leaves of `value`.
fn leaves(at: &str, value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                leaves(&format!("{at}/{name}"), value, found);
            }
        }
        Value::Array(list) if list.iter().any(Value::is_object) => {
            for (ordinal, value) in list.iter().enumerate() {
                leaves(&format!("{at}/{ordinal}"), value, found);
            }
        }
        _ => found.push(at.to_owned()),
    }
}

/// Fields of a minimal job that the author or the server sets.
const NOT_DEFAULTS: &[&str] = &["/ID", "@G/Name", "@T/Name", "@T/Driver", "@T/Config"];

#[test]
fn every_stored_value_has_a_row() {
    for job_type in ALL {
        let job = stored(&minimal(*job_type)).unwrap();
        let mut found = Vec::new();
        leaves("", &job, &mut found);
        for at in found {
            let value = job.pointer(&at).unwrap();
            let is_empty = matches!(value, Value::Null | Value::Bool(false))
                || value == &json!("")
                || value == &json!(0);
            let is_listed = NOT_DEFAULTS.iter().any(|it| expand(it) == at)
                || (at == "/Type" && *job_type != JobType::Service)
                || ROWS
                    .iter()
                    .any(|row| row.types.contains(job_type) && at.starts_with(&expand(row.json)));
            assert!(is_empty || is_listed, "{at} of {job_type} has no row");
        }
    }
}
