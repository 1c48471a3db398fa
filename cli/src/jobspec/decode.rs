//! Blocks to JSON objects, by the tables in `schema`.

use std::ops::Range;

use hcl_edit::Span as _;
use hcl_edit::structure::{Attribute, Block as HclBlock, Body, Structure};
use serde_json::{Map, Value};

use super::fault::JobFileFault;
use super::schema::{Attr, Block, JOB, Kind, Nested, Shape};
use super::value;

/// The job in `body`, as the API's JSON.
pub(super) fn job_file(body: &Body) -> Result<Value, Vec<JobFileFault>> {
    let mut faults = Vec::new();
    let mut job = None;
    for structure in body {
        match structure {
            Structure::Block(block) if block.has_ident("job") => {
                if job.is_some() {
                    faults.push(JobFileFault::at(
                        ident_span(block),
                        "a second `job` block: a file holds one job",
                    ));
                } else {
                    job = Some(job_object(block, &mut faults));
                }
            }
            Structure::Block(block) => {
                let name = block.ident.value().to_string();
                let message = match name.as_str() {
                    "variable" | "variables" | "locals" => {
                        format!("`{name}` blocks are not supported yet")
                    }
                    _ => format!("unknown block `{name}`: a job file holds one `job` block"),
                };
                faults.push(JobFileFault::at(ident_span(block), message));
            }
            Structure::Attribute(attribute) => faults.push(JobFileFault::at(
                key_span(attribute),
                format!("`{}` stands outside the `job` block", attribute.key.value()),
            )),
        }
    }
    match job {
        Some(job) if faults.is_empty() => Ok(job),
        Some(_) => Err(faults),
        None => {
            if faults.is_empty() {
                faults.push(
                    JobFileFault::at(0..0, "holds no `job` block")
                        .help("start with job \"name\" { … }"),
                );
            }
            Err(faults)
        }
    }
}

fn job_object(block: &HclBlock, faults: &mut Vec<JobFileFault>) -> Value {
    let mut job = object(block, &JOB, faults);
    if let Some(name) = job.get("Name").cloned() {
        job.entry("ID").or_insert(name);
    }
    Value::Object(job)
}

/// `block` as an object, by `schema`. Everything wrong with it is added to `faults`.
fn object(block: &HclBlock, schema: &Block, faults: &mut Vec<JobFileFault>) -> Map<String, Value> {
    let mut object = Map::new();
    label(block, schema, &mut object, faults);
    for structure in &block.body {
        match structure {
            Structure::Attribute(attribute) => {
                put_attribute(block, schema, attribute, &mut object, faults);
            }
            Structure::Block(inner) => put_block(block, schema, inner, &mut object, faults),
        }
    }
    object
}

fn label(
    block: &HclBlock,
    schema: &Block,
    object: &mut Map<String, Value>,
    faults: &mut Vec<JobFileFault>,
) {
    let name = block.ident.value();
    match (schema.labelled, block.labels.as_slice()) {
        (true, [label]) => {
            let label = Value::String(label.as_str().to_owned());
            if name.as_str() == "job" {
                object.insert("ID".to_owned(), label.clone());
            }
            object.insert("Name".to_owned(), label);
        }
        (true, []) => faults.push(
            JobFileFault::at(ident_span(block), format!("`{name}` needs a name"))
                .help(format!("write {name} \"name\" {{ … }}")),
        ),
        (false, []) => {}
        (true | false, _) => faults.push(JobFileFault::at(
            ident_span(block),
            format!(
                "`{name}` has {} labels too many",
                block.labels.len() - usize::from(schema.labelled)
            ),
        )),
    }
}

fn put_attribute(
    block: &HclBlock,
    schema: &Block,
    attribute: &Attribute,
    object: &mut Map<String, Value>,
    faults: &mut Vec<JobFileFault>,
) {
    let name = attribute.key.value().as_str();
    let Some(attr) = schema.attrs.iter().find(|attr| attr.name == name) else {
        // Nomad also takes `config = { … }`.
        if let Some(nested) = schema.blocks.iter().find(|nested| nested.name == name) {
            if nested.shape == Shape::Free {
                match value::any(name, &attribute.value) {
                    Ok(Value::Object(map)) => {
                        object.insert(nested.json.to_owned(), Value::Object(map));
                    }
                    Ok(_) => faults.push(JobFileFault::at(
                        value::span(&attribute.value),
                        format!("`{name}` must be a block: {name} {{ … }}"),
                    )),
                    Err(fault) => faults.push(fault),
                }
            } else {
                faults.push(
                    JobFileFault::at(
                        key_span(attribute),
                        format!("`{name}` is a block, not a value"),
                    )
                    .help(format!("write {name} {{ … }} without `=`")),
                );
            }
            return;
        }
        faults.push(unknown(block, schema, name, key_span(attribute)));
        return;
    };
    match value::of_kind(name, attr.kind, &attribute.value) {
        Ok(Value::Null) => {}
        Ok(value) => put(attr, value, object),
        Err(fault) => faults.push(fault),
    }
}

fn put(attr: &Attr, value: Value, object: &mut Map<String, Value>) {
    object.insert(attr.json.to_owned(), value);
    if attr.name == "regexp" {
        object.insert("Operand".to_owned(), Value::String("regexp".to_owned()));
    }
}

fn put_block(
    block: &HclBlock,
    schema: &Block,
    inner: &HclBlock,
    object: &mut Map<String, Value>,
    faults: &mut Vec<JobFileFault>,
) {
    let name = inner.ident.value().as_str();
    if let Some(attr) = schema.attrs.iter().find(|attr| attr.name == name) {
        if attr.kind == Kind::TextMap {
            text_map(inner, attr, object, faults);
        } else {
            faults.push(
                JobFileFault::at(
                    ident_span(inner),
                    format!("`{name}` is a value, not a block"),
                )
                .help(format!("write {name} = … ({})", attr.kind.describe())),
            );
        }
        return;
    }
    let Some(nested) = schema.blocks.iter().find(|nested| nested.name == name) else {
        faults.push(unknown(block, schema, name, ident_span(inner)));
        return;
    };
    match nested.shape {
        Shape::One => {
            let value = Value::Object(self::object(inner, nested.block, faults));
            if object.insert(nested.json.to_owned(), value).is_some() {
                faults.push(JobFileFault::at(
                    ident_span(inner),
                    format!("a second `{name}` block"),
                ));
            }
        }
        Shape::Many => many(inner, nested, object, faults),
        Shape::Free => {
            if let Some(map) = free(inner, faults) {
                object.insert(nested.json.to_owned(), Value::Object(map));
            }
        }
        Shape::Ports => port(inner, nested, object, faults),
        Shape::Constraints => {
            let mut constraint = self::object(inner, nested.block, faults);
            constraint
                .entry("Operand")
                .or_insert_with(|| Value::String("=".to_owned()));
            push(object, nested.json, Value::Object(constraint));
        }
    }
}

fn many(
    inner: &HclBlock,
    nested: &Nested,
    object: &mut Map<String, Value>,
    faults: &mut Vec<JobFileFault>,
) {
    let value = self::object(inner, nested.block, faults);
    if nested.json.is_empty() {
        // A task outside a group is a group of its own with the same name.
        let mut group = Map::new();
        group.insert(
            "Name".to_owned(),
            value.get("Name").cloned().unwrap_or_default(),
        );
        group.insert("Tasks".to_owned(), Value::Array(vec![Value::Object(value)]));
        push(object, "TaskGroups", Value::Object(group));
    } else {
        push(object, nested.json, Value::Object(value));
    }
}

fn port(
    inner: &HclBlock,
    nested: &Nested,
    object: &mut Map<String, Value>,
    faults: &mut Vec<JobFileFault>,
) {
    let mut port = self::object(inner, nested.block, faults);
    if let Some(name) = port.remove("Name") {
        port.insert("Label".to_owned(), name);
    }
    let list = if port.contains_key("Value") {
        "ReservedPorts"
    } else {
        "DynamicPorts"
    };
    push(object, list, Value::Object(port));
}

fn push(object: &mut Map<String, Value>, name: &str, value: Value) {
    let list = object
        .entry(name)
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(items) = list {
        items.push(value);
    }
}

fn text_map(
    block: &HclBlock,
    attr: &Attr,
    object: &mut Map<String, Value>,
    faults: &mut Vec<JobFileFault>,
) {
    let mut map = Map::new();
    for structure in &block.body {
        match structure {
            Structure::Attribute(attribute) => {
                let key = attribute.key.value().to_string();
                let field = format!("{}.{key}", attr.name);
                match value::any(&field, &attribute.value) {
                    Ok(Value::String(text)) => {
                        map.insert(key, Value::String(text));
                    }
                    Ok(Value::Bool(yes)) => {
                        map.insert(key, Value::String(yes.to_string()));
                    }
                    Ok(Value::Number(number)) => {
                        map.insert(key, Value::String(number.to_string()));
                    }
                    Ok(Value::Null | Value::Array(_) | Value::Object(_)) => {
                        faults.push(JobFileFault::at(
                            value::span(&attribute.value),
                            format!("`{field}` must be a text in quotes"),
                        ));
                    }
                    Err(fault) => faults.push(fault),
                }
            }
            Structure::Block(inner) => faults.push(JobFileFault::at(
                ident_span(inner),
                format!("`{}` holds keys with texts, not blocks", attr.name),
            )),
        }
    }
    object.insert(attr.json.to_owned(), Value::Object(map));
}

/// A driver's configuration.
fn free(block: &HclBlock, faults: &mut Vec<JobFileFault>) -> Option<Map<String, Value>> {
    let before = faults.len();
    let (map, _places) = super::free::read("config", block, faults);
    (faults.len() == before).then_some(map)
}

fn unknown(block: &HclBlock, schema: &Block, name: &str, span: Range<usize>) -> JobFileFault {
    let owner = block.ident.value();
    if schema.later.contains(&name) {
        return JobFileFault::at(
            span,
            format!("`{name}` in `{owner}` is not supported by this version of Muster yet"),
        )
        .help("leave it out; nothing is ignored silently");
    }
    let known = schema
        .attrs
        .iter()
        .map(|attr| attr.name)
        .chain(schema.blocks.iter().map(|b| b.name));
    let nearest = known
        .clone()
        .map(|known| (strsim::damerau_levenshtein(known, name), known))
        .filter(|(distance, known)| *distance <= known.len().div_ceil(3))
        .min();
    let fault = JobFileFault::at(span, format!("unknown field `{name}` in `{owner}`"));
    match nearest {
        Some((_, known)) => fault.help(format!("did you mean `{known}`?")),
        None => fault.help(format!(
            "known here: {}",
            known.collect::<Vec<_>>().join(", ")
        )),
    }
}

fn ident_span(block: &HclBlock) -> Range<usize> {
    block.ident.span().unwrap_or_default()
}

fn key_span(attribute: &Attribute) -> Range<usize> {
    attribute.key.span().unwrap_or_default()
}
