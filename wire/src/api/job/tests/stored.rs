//! A server's treatment of a submitted job: refused, or stored with all defaults.

use std::path::Path;

use muster_domain::fixture::recorded::{self, CaseKind, CaseRunner, Outcome};
use serde_json::{Value, json};

use crate::api::job::Job;
use crate::api::job::tests::valid;

const STORED: CaseKind = CaseKind {
    name: "stored",
    is: |row| row.get("http_status").is_some(),
    judge: CaseRunner::RowIn(run_case),
};

/// The body that was sent: the file, then each `Field=JSON` of the changes.
fn body(folder: &Path, case: &Value) -> Value {
    let text = std::fs::read_to_string(folder.join(case["json"].as_str().unwrap())).unwrap();
    let mut body: Value = serde_json::from_str(&text).unwrap();
    if body.get("Job").is_none() {
        body = json!({ "Job": body });
    }
    for change in case["changes"].as_array().into_iter().flatten() {
        let (field, value) = change.as_str().unwrap().split_once('=').unwrap();
        body["Job"][field] = serde_json::from_str(value).unwrap();
    }
    body
}

/// Whether all faults of a job are about unsupported features.
fn is_unsupported(faults: &[String]) -> bool {
    faults.iter().all(|fault| fault.contains("not supported"))
}

/// Whether a field is empty.
fn is_empty_value(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(value) => value.is_empty(),
        Value::Array(value) => value.is_empty(),
        Value::Object(value) => value.values().all(is_empty_value),
    }
}

/// Every place where the job that we answer is not the recorded one. Fields that later versions brought
/// are not compared.
fn differences(at: &str, ours: &Value, theirs: &Value, found: &mut Vec<String>) {
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            for (key, theirs) in theirs {
                let ours = ours.get(key).unwrap_or(&Value::Null);
                differences(&format!("{at}.{key}"), ours, theirs, found);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            for (position, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                differences(&format!("{at}[{position}]"), ours, theirs, found);
            }
        }
        (ours, theirs) if is_empty_value(ours) && is_empty_value(theirs) => {}
        // Parsing loses the original notation of a number.
        (Value::Number(ours), Value::Number(theirs)) if ours.as_f64() == theirs.as_f64() => {}
        (ours, theirs) if ours == theirs => {}
        (ours, theirs) => found.push(format!("{at}: {ours} not {theirs}")),
    }
}

fn run_case(folder: &Path, case: &Value) -> Outcome {
    let stored = valid(&body(folder, case)).map(|spec| Job::from_spec(&spec));
    match (stored, case["accepted"] == true) {
        // It is unknown whether Muster would also refuse the job for Nomad's reason.
        (Err(faults), false) if is_unsupported(&faults) => {
            Outcome::LeftOut("both refuse it, ours only for what is not supported")
        }
        (Err(_), false) => Outcome::Same,
        (Err(faults), true) => Outcome::Differs(format!("refused: {}", faults.join("; "))),
        (Ok(_), false) => Outcome::Differs(format!("accepted, not refused: {}", case["error"])),
        (Ok(job), true) => {
            let mut found = Vec::new();
            differences("", &json!(job), &case["job"], &mut found);
            Outcome::from_differences(&found)
        }
    }
}

/// A floor, to be raised: the answer to a job that is stored lacks some of Nomad's defaults.
#[test]
fn jobs_that_nomad_refuses_are_refused() {
    let test = "jobs_that_nomad_refuses_are_refused";
    if let Some(tally) = recorded::beside(test, "jobspec/stored.jsonl", &STORED) {
        assert!(tally.passed >= 29, "{tally:#?}");
    }
}

#[test]
fn recorded_cases_in_named_files() {
    recorded::named(&[STORED]);
}
