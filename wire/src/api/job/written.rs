//! Answers fields as they were written.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Job;

/// `job` with each JSON text of `as_written` at its JSON pointer. What has no place in the job any more is left out.
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
        // A list that is answered as `null` while it is empty.
        Some(none @ Value::Null) if name == "0" => *none = Value::Array(vec![written]),
        Some(_) | None => {}
    }
}
