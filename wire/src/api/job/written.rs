//! Restores fields in responses as they were submitted.

use std::collections::BTreeMap;

use muster_domain::job::JobSpec;
use serde_json::Value;

use super::spec::Job;

/// The fields of `spec.as_written` in the form of responses, without those that the job implies anyway. A job from a
/// response then reads back as the same job.
pub(super) fn canonical(spec: &JobSpec) -> BTreeMap<String, String> {
    let mut canonical = BTreeMap::new();
    if spec.as_written.is_empty() {
        return canonical;
    }
    let plain = JobSpec {
        as_written: BTreeMap::new(),
        ..spec.clone()
    };
    let answer = serde_json::to_value(Job::from_spec(spec));
    let plain_answer = serde_json::to_value(Job::from_spec(&plain));
    let (Ok(answer), Ok(mut plain_answer)) = (answer, plain_answer) else {
        return spec.as_written.clone();
    };
    // A block must be restored before its fields.
    for pointer in spec.as_written.keys() {
        let Some(written) = answer.pointer(pointer) else {
            continue;
        };
        if plain_answer.pointer(pointer) != Some(written) {
            put(&mut plain_answer, pointer, written.clone());
            canonical.insert(pointer.clone(), written.to_string());
        }
    }
    canonical
}

/// Inserts each JSON text of `as_written` into `job` at its JSON pointer. Values whose place no longer exists are left
/// out.
pub(super) fn overlay(job: Job, as_written: &BTreeMap<String, String>) -> Job {
    if as_written.is_empty() {
        return job;
    }
    let Ok(mut value) = serde_json::to_value(&job) else {
        return job;
    };
    for (pointer, text) in as_written {
        if let Ok(written) = serde_json::from_str(text) {
            put(&mut value, pointer, written);
        }
    }
    serde_json::from_value(value).unwrap_or(job)
}

fn put(value: &mut Value, pointer: &str, written: Value) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return;
    };
    let name = name.replace("~1", "/").replace("~0", "~");
    match value.pointer_mut(parent) {
        Some(Value::Object(fields)) => {
            fields.insert(name, written);
        }
        Some(Value::Array(items)) => match name.parse::<usize>() {
            Ok(at) if at < items.len() => items[at] = written,
            Ok(at) if at == items.len() => items.push(written),
            Ok(_) | Err(_) => {}
        },
        // An empty list is `null` in responses.
        Some(none @ Value::Null) if name == "0" => *none = Value::Array(vec![written]),
        Some(_) | None => {}
    }
}
