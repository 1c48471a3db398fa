//! Blocks to JSON objects, by the tables in `schema`.

use std::ops::Range;

use muster_wire::api::job::JOB;
use muster_wire::api::job::schema::{ALONE, BlockShape, Field, FieldKind, Schema, ValueKind};
use muster_wire::api::job::unsupported::{self, FieldTreatment, Row};
use serde_json::{Map, Value};

use crate::convert;
use crate::dynamic::{ExpandedBlock, Item, place};
use crate::eval::Evaluator;
use crate::fault::{JobFileFault, ReadJobFileError, nearest};
use crate::field;
use crate::free;
use crate::locals;
use crate::scope::Scope;
use crate::syntax::{Attribute, Block as HclBlock, Body, Structure};
use crate::variable::{Inputs, Variables};

/// The blocks of a job file.
#[derive(Debug)]
pub(crate) struct JobFile<'a> {
    /// The `job` block.
    pub(crate) job: ExpandedBlock<'a>,
    pub(crate) evaluator: Evaluator,
}

/// The reason why a job file cannot be read.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The file is wrong.
    Here(Vec<JobFileFault>),
    /// A value of an input is faulty, such as one of the command line.
    Given(ReadJobFileError),
}

impl<'a> JobFile<'a> {
    /// Finds the `job` block in `body`, and the names in its scope.
    pub(crate) fn open(
        body: &'a Body,
        inputs: &Inputs,
        evaluator: Evaluator,
    ) -> Result<Self, Failure> {
        let mut faults = Vec::new();
        let mut job: Option<&HclBlock> = None;
        let mut variables = Variables::default();
        let mut locals = Vec::new();
        for structure in &body.items {
            let block = match structure {
                Structure::Block(block) => block,
                Structure::Attribute(attribute) => {
                    faults.push(JobFileFault::at(
                        attribute.key.span.clone(),
                        format!(
                            "`{}` stands outside the `job` block",
                            attribute.key.as_str()
                        ),
                    ));
                    continue;
                }
            };
            match block.ident.as_str() {
                "job" if job.is_some() => faults.push(JobFileFault::at(
                    place(block),
                    "a second `job` block: a file holds one job",
                )),
                "job" => job = Some(block),
                "variable" => faults.extend(variables.declare(block, &evaluator)),
                "variables" => faults.extend(variables.declare_all(block, &evaluator)),
                "locals" => locals.push(block),
                other => {
                    let message = format!("unknown block `{other}`");
                    faults.push(
                        JobFileFault::at(place(block), message)
                            .help("a job file holds one `job` block, variables and locals"),
                    );
                }
            }
        }
        if job.is_none() && faults.is_empty() {
            faults.push(
                JobFileFault::at(0..0, "holds no `job` block")
                    .help("start with job \"name\" { … }"),
            );
        }
        if !faults.is_empty() {
            return Err(Failure::Here(faults));
        }
        variables.take(inputs).map_err(Failure::Given)?;
        let variables = variables.values(&evaluator, &mut faults);
        let scope = if faults.is_empty() {
            locals::read(&locals, variables, &evaluator, &mut faults)
        } else {
            Scope::default()
        };
        match job {
            Some(job) if faults.is_empty() => Ok(Self {
                job: ExpandedBlock::written(job, &scope),
                evaluator,
            }),
            Some(_) | None => Err(Failure::Here(faults)),
        }
    }

    /// The job, as the API's JSON.
    pub(crate) fn decode(&self) -> Result<Value, Vec<JobFileFault>> {
        let mut decoder = Decoder {
            evaluator: &self.evaluator,
            faults: Vec::new(),
        };
        let mut job = decoder.object(&self.job, &JOB);
        if let Some(Value::Array(mut alone)) = job.remove(ALONE) {
            if let Some(Value::Array(groups)) = job.remove("TaskGroups") {
                alone.extend(groups);
            }
            job.insert("TaskGroups".to_owned(), Value::Array(alone));
        }
        if decoder.faults.is_empty() {
            Ok(Value::Object(job))
        } else {
            Err(decoder.faults)
        }
    }
}

/// Collects everything wrong with a job on the way.
#[derive(Debug)]
struct Decoder<'a> {
    evaluator: &'a Evaluator,
    faults: Vec<JobFileFault>,
}

impl Decoder<'_> {
    /// `block` as an object, by `schema`.
    fn object(&mut self, block: &ExpandedBlock<'_>, schema: &Schema) -> Map<String, Value> {
        let mut object = Map::new();
        self.label(block, schema, &mut object);
        for item in block.items(self.evaluator, &mut self.faults) {
            match item {
                Item::Attribute(attribute) => {
                    self.attribute(block, schema, attribute, &mut object);
                }
                Item::Block(inner) => self.block(block, schema, &inner, &mut object),
            }
        }
        for name in schema.required {
            let field = schema.in_file(name);
            if field.is_some_and(|field| !object.contains_key(field.json)) {
                let message = format!("`{}` needs `{name}`", block.name);
                self.fault(block.place.clone(), message);
            }
        }
        for (name, text) in schema.defaults {
            object
                .entry(*name)
                .or_insert_with(|| Value::String((*text).to_owned()));
        }
        object
    }

    fn fault(&mut self, place: Range<usize>, message: impl Into<String>) {
        self.faults.push(JobFileFault::at(place, message));
    }

    fn label(
        &mut self,
        block: &ExpandedBlock<'_>,
        schema: &Schema,
        object: &mut Map<String, Value>,
    ) {
        let name = block.name;
        let is_labelled = !schema.label.is_empty();
        match (is_labelled, block.labels.as_slice()) {
            (true, [label]) => {
                for json in schema.label {
                    object.insert((*json).to_owned(), Value::String(label.clone()));
                }
            }
            (true, []) => self.faults.push(
                JobFileFault::at(block.place.clone(), format!("`{name}` needs a name"))
                    .help(format!("write {name} \"name\" {{ … }}")),
            ),
            (false, []) => {}
            (true | false, labels) => {
                let more = labels.len() - usize::from(is_labelled);
                self.fault(
                    block.place.clone(),
                    format!("`{name}` has {more} labels too many"),
                );
            }
        }
    }

    fn attribute(
        &mut self,
        block: &ExpandedBlock<'_>,
        schema: &Schema,
        attribute: &Attribute,
        object: &mut Map<String, Value>,
    ) {
        let name = attribute.key.as_str();
        let (attr, kind) = match schema.in_file(name) {
            Some(field) => match field.kind {
                FieldKind::Value(kind) => (field, kind),
                FieldKind::Block(shape, _) => {
                    self.block_as_value(block, field, shape, attribute, object);
                    return;
                }
            },
            None => {
                let key = attribute.key.span.clone();
                self.faults.push(unknown(block, schema, name, key));
                return;
            }
        };
        let value = self
            .evaluator
            .eval(&attribute.value, &block.scope)
            .map_err(|fault| fault.about(name))
            .and_then(|found| field::of_kind(name, kind, &found, &attribute.value));
        match value {
            Ok(Value::Null) => {}
            Ok(value) => {
                object.insert(attr.json.to_owned(), value);
            }
            Err(fault) => self.faults.push(fault),
        }
    }

    /// Reads an attribute with the name of a block. Nomad also accepts `config = { … }`.
    fn block_as_value(
        &mut self,
        block: &ExpandedBlock<'_>,
        field: &Field,
        shape: BlockShape,
        attribute: &Attribute,
        object: &mut Map<String, Value>,
    ) {
        let name = attribute.key.as_str();
        if shape != BlockShape::Free {
            let key = attribute.key.span.clone();
            self.faults.push(
                JobFileFault::at(key, format!("`{name}` is a block, not a value"))
                    .help(format!("write {name} {{ … }} without `=`")),
            );
            return;
        }
        let value = self.evaluator.eval(&attribute.value, &block.scope);
        match value.map_err(|fault| fault.about(name)) {
            Ok(found) if found.entries().is_some() => {
                match field::to_json(&found, &attribute.value) {
                    Ok(map) => {
                        object.insert(field.json.to_owned(), map);
                    }
                    Err(fault) => self.faults.push(fault.about(name)),
                }
            }
            Ok(_) => self.fault(
                attribute.value.span.clone(),
                format!("`{name}` must be a block: {name} {{ … }}"),
            ),
            Err(fault) => self.faults.push(fault),
        }
    }

    fn block(
        &mut self,
        block: &ExpandedBlock<'_>,
        schema: &Schema,
        inner: &ExpandedBlock<'_>,
        object: &mut Map<String, Value>,
    ) {
        let name = inner.name;
        let Some(nested) = schema.in_file(name) else {
            let place = inner.place.clone();
            self.faults.push(unknown(block, schema, name, place));
            return;
        };
        let (shape, inner_schema) = match nested.kind {
            FieldKind::Block(shape, inner_schema) => (shape, inner_schema),
            FieldKind::Value(ValueKind::TextMap) => {
                self.text_map(inner, nested, object);
                return;
            }
            FieldKind::Value(kind) => {
                self.faults.push(
                    JobFileFault::at(
                        inner.place.clone(),
                        format!("`{name}` is a value, not a block"),
                    )
                    .help(format!("write {name} = … ({})", field::describe(kind))),
                );
                return;
            }
        };
        match shape {
            BlockShape::One => {
                let value = self.object(inner, inner_schema);
                self.write_unique_block(inner, nested, value, object);
            }
            BlockShape::Free => {
                let mut faults = Vec::new();
                let (map, _places) = free::read_in(inner.name, inner, self.evaluator, &mut faults);
                self.faults.append(&mut faults);
                self.write_unique_block(inner, nested, map, object);
            }
            BlockShape::Many | BlockShape::ManyByName => {
                let mut value = self.object(inner, inner_schema);
                if nested.json == "ScalingPolicies" {
                    self.task_scaling(inner, &mut value);
                }
                let is_scaling = nested.json == "ScalingPolicies";
                let before = object.get(nested.json).and_then(Value::as_array);
                let is_again =
                    |before: &Vec<Value>| before.iter().any(|it| it["Type"] == value["Type"]);
                if is_scaling && before.is_some_and(is_again) {
                    let message = format!("a second `{}` of the same kind", inner.name);
                    self.fault(inner.place.clone(), message);
                }
                push(object, nested.json, Value::Object(value));
            }
            BlockShape::Named => self.named(inner, nested, inner_schema, object),
            BlockShape::Ports => {
                let port = self.object(inner, inner_schema);
                let list = if port.contains_key("Value") {
                    "ReservedPorts"
                } else {
                    "DynamicPorts"
                };
                push(object, list, Value::Object(port));
            }
            BlockShape::Conditions => self.condition(inner, nested, inner_schema, object),
            BlockShape::Alone => self.wrap_task_in_group(inner, nested, inner_schema, object),
        }
    }

    /// Translates the label of a task's scaling. The API and job files use different words.
    fn task_scaling(&mut self, inner: &ExpandedBlock<'_>, value: &mut Map<String, Value>) {
        let written = value.remove("type");
        let label = value
            .get("Type")
            .and_then(Value::as_str)
            .unwrap_or_default();
        match label {
            "cpu" | "mem" => {
                let kind = format!("vertical_{label}");
                if let Some(written) = written.filter(|written| *written != kind.as_str()) {
                    let message =
                        format!("invalid scaling type {written}: use \"{kind}\", or leave it out");
                    self.fault(inner.place.clone(), message);
                }
                value.insert("Type".to_owned(), Value::String(kind));
            }
            other => {
                let message = format!("`scaling` of a task is \"cpu\" or \"mem\", not \"{other}\"");
                self.fault(inner.place.clone(), message);
            }
        }
    }

    /// Writes a block that may appear once.
    fn write_unique_block(
        &mut self,
        inner: &ExpandedBlock<'_>,
        nested: &Field,
        value: Map<String, Value>,
        object: &mut Map<String, Value>,
    ) {
        let before = object.insert(nested.json.to_owned(), Value::Object(value));
        if before.is_some() {
            let message = format!("a second `{}` block", inner.name);
            self.fault(inner.place.clone(), message);
        }
    }

    fn named(
        &mut self,
        inner: &ExpandedBlock<'_>,
        nested: &Field,
        inner_schema: &Schema,
        object: &mut Map<String, Value>,
    ) {
        let value = self.object(inner, inner_schema);
        let Some(label) = inner.labels.first() else {
            return;
        };
        let all = object
            .entry(nested.json)
            .or_insert_with(|| Value::Object(Map::new()));
        if let Value::Object(all) = all
            && all.insert(label.clone(), Value::Object(value)).is_some()
        {
            let message = format!("a second `{}` of the name `{label}`", inner.name);
            self.fault(inner.place.clone(), message);
        }
    }

    /// A constraint or an affinity; a short form implies its operator.
    fn condition(
        &mut self,
        inner: &ExpandedBlock<'_>,
        nested: &Field,
        inner_schema: &Schema,
        object: &mut Map<String, Value>,
    ) {
        let mut condition = self.object(inner, inner_schema);
        let short: Vec<&str> = inner_schema
            .fields
            .iter()
            .map(|attr| attr.json)
            .filter(|json| SHORT_FORMS.iter().any(|(short, _)| short == json))
            .filter(|json| condition.contains_key(*json))
            .collect();
        if let [first, second, ..] = short.as_slice() {
            let message = format!(
                "`{}` says both `{first}` and `{second}`: write two",
                inner.name
            );
            self.fault(inner.place.clone(), message);
        }
        for (name, side) in SHORT_FORMS {
            let Some(value) = condition.remove(name) else {
                continue;
            };
            condition.insert("Operand".to_owned(), Value::String(name.to_owned()));
            match (side, value.as_bool()) {
                // `distinct_hosts = false` adds no condition.
                (ConditionSide::Neither, Some(false)) => return,
                // `is_set = true` may accompany an attribute.
                (ConditionSide::Neither, _) | (ConditionSide::Alone, Some(true)) => {}
                (ConditionSide::Alone | ConditionSide::Left, _) => {
                    condition.insert("LTarget".to_owned(), value);
                }
                (ConditionSide::Right, _) => {
                    condition.insert("RTarget".to_owned(), value);
                }
            }
        }
        push(object, nested.json, Value::Object(condition));
    }

    /// Wraps a task outside a group in a group with the same name. Nomad lists such groups first.
    fn wrap_task_in_group(
        &mut self,
        inner: &ExpandedBlock<'_>,
        nested: &Field,
        inner_schema: &Schema,
        object: &mut Map<String, Value>,
    ) {
        let task = self.object(inner, inner_schema);
        let mut group = Map::new();
        group.insert(
            "Name".to_owned(),
            task.get("Name").cloned().unwrap_or_default(),
        );
        group.insert("Tasks".to_owned(), Value::Array(vec![Value::Object(task)]));
        push(object, nested.json, Value::Object(group));
    }

    fn text_map(
        &mut self,
        block: &ExpandedBlock<'_>,
        attr: &Field,
        object: &mut Map<String, Value>,
    ) {
        let mut map = Map::new();
        for item in block.items(self.evaluator, &mut self.faults) {
            let attribute = match item {
                Item::Attribute(attribute) => attribute,
                Item::Block(inner) => {
                    let message = format!("`{}` holds keys with texts, not blocks", attr.file);
                    self.fault(inner.place, message);
                    continue;
                }
            };
            let key = attribute.key.as_str();
            let field = format!("{}.{key}", attr.file);
            let value = self.evaluator.eval(&attribute.value, &block.scope);
            match value.map_err(|fault| fault.about(&field)) {
                Ok(value) => match convert::text(&value) {
                    Some(text) => {
                        map.insert(key.to_owned(), Value::String(text));
                    }
                    None => self.fault(
                        attribute.value.span.clone(),
                        format!("`{field}` must be a text in quotes"),
                    ),
                },
                Err(fault) => self.faults.push(fault),
            }
        }
        if object
            .insert(attr.json.to_owned(), Value::Object(map))
            .is_some()
        {
            let message = format!("a second `{}`", attr.file);
            self.fault(block.place.clone(), message);
        }
    }
}

/// The meaning of the value of a short form.
#[derive(Clone, Copy, Debug)]
enum ConditionSide {
    /// The short form has a boolean value and replaces neither side.
    Neither,
    Left,
    /// The attribute, or only that the form is meant.
    Alone,
    Right,
}

/// The operators that are attributes as well.
const SHORT_FORMS: [(&str, ConditionSide); 10] = [
    ("distinct_hosts", ConditionSide::Neither),
    ("distinct_property", ConditionSide::Left),
    ("is_not_set", ConditionSide::Alone),
    ("is_set", ConditionSide::Alone),
    ("regexp", ConditionSide::Right),
    ("semver", ConditionSide::Right),
    ("set_contains", ConditionSide::Right),
    ("set_contains_all", ConditionSide::Right),
    ("set_contains_any", ConditionSide::Right),
    ("version", ConditionSide::Right),
];

fn push(object: &mut Map<String, Value>, name: &str, value: Value) {
    let list = object
        .entry(name)
        .or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(items) = list {
        items.push(value);
    }
}

fn unknown(
    block: &ExpandedBlock<'_>,
    schema: &Schema,
    name: &str,
    span: Range<usize>,
) -> JobFileFault {
    let owner = block.name;
    if let Some(Row {
        answer: FieldTreatment::Refused(instead),
        ..
    }) = unsupported::in_file(owner, name)
    {
        return JobFileFault::at(span, format!("`{name}` in `{owner}` is not supported"))
            .help(*instead);
    }
    let names = schema.fields.iter().map(|field| field.file);
    let known = names.filter(|name| !name.is_empty());
    let fault = JobFileFault::at(span, format!("unknown field `{name}` in `{owner}`"));
    nearest(fault, name, known)
}
