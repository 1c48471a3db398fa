//! Definition files: HCL or JSON.
//!
//! In JSON a file is the body of `PUT /v1/tasks`, or its `task_definition` alone. In HCL it is one `task` block with
//! the same names. An object in JSON is a block or an object in HCL, and `env` may be a block of names and values. The
//! server validates the definition.

use serde_json::{Map, Value, json};

use super::DesireArgs;
use crate::exit::{CliError, Exit};
use muster_jobspec::{JobFileFault, ReadJobFileError, free, from_parser, load};

/// Fields that are lists, at any place.
const LISTS: [&str; 11] = [
    "actions",
    "annotations",
    "args",
    "constraints",
    "datacenters",
    "destinations",
    "egress_rules",
    "env",
    "placement_tags",
    "ports",
    "tasks",
];

/// The body of `PUT /v1/tasks` for the task in `args`.
pub(super) fn request(args: &DesireArgs) -> Result<Value, CliError> {
    let read = load(&args.file).and_then(|(name, text)| parse(&name, &text));
    let mut request = read.map_err(|error| shown(&error))?;
    if let Some(guid) = &args.guid {
        request.insert("task_guid".to_owned(), json!(guid));
    }
    if let Some(domain) = &args.domain {
        request.insert("domain".to_owned(), json!(domain));
    }
    request
        .entry("task_guid")
        .or_insert_with(|| json!(format!("task-{}", uuid::Uuid::new_v4())));
    request.entry("domain").or_insert_with(|| json!("default"));
    Ok(Value::Object(request))
}

fn shown(error: &ReadJobFileError) -> CliError {
    let reports = error.reports();
    let texts: Vec<String> = reports.iter().map(|report| format!("{report:?}")).collect();
    CliError::new(Exit::Usage, texts.join("\n"))
}

fn parse(name: &str, text: &str) -> Result<Map<String, Value>, ReadJobFileError> {
    let fault = |fault| ReadJobFileError::new(name, text, vec![fault]);
    if text.trim_start().starts_with('{') {
        let value: Value = serde_json::from_str(text)
            .map_err(|error| fault(JobFileFault::at(0..0, format!("invalid JSON: {error}"))))?;
        return match value {
            Value::Object(fields) => Ok(split(fields)),
            _ => Err(fault(JobFileFault::at(0..0, "expected a JSON object"))),
        };
    }
    let body =
        muster_jobspec::syntax::parse_body(text).map_err(|error| fault(from_parser(error)))?;
    let mut tasks = body.blocks();
    let block = tasks.next().filter(|block| block.ident.as_str() == "task");
    let (Some(block), None) = (block, tasks.next()) else {
        let found = JobFileFault::at(
            0..0,
            "must have one `task \"GUID\" { … }` block and nothing else",
        );
        return Err(fault(found));
    };
    let mut faults = Vec::new();
    let (fields, _places) = free::read("task", block, &mut faults);
    if !faults.is_empty() {
        return Err(ReadJobFileError::new(name, text, faults));
    }
    let mut fields = plain(fields);
    if let Some(label) = block.labels.first() {
        fields.insert("task_guid".to_owned(), json!(label.as_str()));
    }
    Ok(split(fields))
}

/// Returns `fields` as a request, or wraps them as the definition of one.
fn split(mut fields: Map<String, Value>) -> Map<String, Value> {
    if fields.contains_key("task_definition") {
        return fields;
    }
    let mut request = Map::new();
    for name in ["task_guid", "domain"] {
        if let Some(value) = fields.remove(name) {
            request.insert(name.to_owned(), value);
        }
    }
    request.insert("task_definition".to_owned(), Value::Object(fields));
    request
}

/// Converts free blocks, which are read as lists of objects. Only fields that are lists stay lists.
fn plain(fields: Map<String, Value>) -> Map<String, Value> {
    let each = fields.into_iter();
    each.map(|(name, value)| {
        let value = match value {
            Value::Array(items) if name == "env" => Value::Array(env(items)),
            Value::Array(mut items) if !LISTS.contains(&name.as_str()) && items.len() == 1 => {
                plain_value(items.remove(0))
            }
            other => plain_value(other),
        };
        (name, value)
    })
    .collect()
}

fn plain_value(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(plain(fields)),
        Value::Array(items) => Value::Array(items.into_iter().map(plain_value).collect()),
        other => other,
    }
}

/// Converts variables to a list of names and values, from a list, a block or an object.
fn env(items: Vec<Value>) -> Vec<Value> {
    let each = items.into_iter().flat_map(|item| match item {
        Value::Object(fields) if !fields.contains_key("name") => fields
            .into_iter()
            .map(|(name, value)| json!({ "name": name, "value": text(value) }))
            .collect(),
        other => vec![other],
    });
    each.collect()
}

fn text(value: Value) -> Value {
    match value {
        Value::Number(_) | Value::Bool(_) => Value::String(value.to_string()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hcl_and_json_give_equal_definitions() {
        let hcl = r#"
            task "report-1" {
              domain      = "apps"
              rootfs      = "preloaded:host"
              result_file = "/tmp/result"
              env { LEVEL = 3 }
              action {
                serial {
                  actions = [
                    { run = { path = "/bin/echo", args = ["a"], user = "vcap" } },
                    { timeout = { timeout_ms = 500, action = { run = { path = "/bin/true", user = "vcap" } } } },
                  ]
                }
              }
            }"#;
        let json = r#"{"task_guid":"report-1","domain":"apps","rootfs":"preloaded:host",
            "result_file":"/tmp/result","env":[{"name":"LEVEL","value":"3"}],
            "action":{"serial":{"actions":[
                {"run":{"path":"/bin/echo","args":["a"],"user":"vcap"}},
                {"timeout":{"timeout_ms":500,"action":{"run":{"path":"/bin/true","user":"vcap"}}}}]}}}"#;

        let (hcl, json) = (parse("a.hcl", hcl).unwrap(), parse("a.json", json).unwrap());

        assert_eq!(Value::Object(hcl.clone()), Value::Object(json));
        let body = serde_json::to_vec(&hcl).unwrap();
        muster_wire::api::task::read_desire(&body).unwrap();
    }

    #[test]
    fn a_whole_request_is_taken_as_it_is() {
        let text = r#"{"task_guid":"a","domain":"d","task_definition":{"rootfs":"x"}}"#;

        let read = parse("a.json", text).unwrap();

        assert_eq!(
            Value::Object(read),
            serde_json::from_str::<Value>(text).unwrap()
        );
    }

    #[test]
    fn invalid_definitions_are_refused() {
        for text in [
            "job \"x\" {}",
            "",
            "task \"a\" {}\ntask \"b\" {}",
            "{",
            "task {",
            "{1}",
        ] {
            assert!(parse("a.hcl", text).is_err(), "{text}");
        }
    }
}
