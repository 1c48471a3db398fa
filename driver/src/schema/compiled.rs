//! Checks configurations against a schema, and gives them the shape of the schema.
//!
//! A configuration is JSON in the form that HCL defines. An attribute is an entry. A nested block is an object, or a
//! list of objects if several are allowed. The labels of a block are entries around it. The result contains every name
//! of the schema, with null for an absent value. Nomad's drivers receive this form.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::expression::{literal, parse_type};
use super::kind::{Type, describe};
use super::path::Path;
use super::{ConfigFault, SchemaError, Spec};
use crate::limits::SCHEMA_DEPTH_MAX;

/// A schema with parsed types and literals.
#[derive(Clone, Debug)]
pub struct Schema {
    root: Node,
}

#[derive(Clone, Debug)]
enum Node {
    Object(BTreeMap<String, Node>),
    Array(Vec<Node>),
    Attr {
        name: String,
        kind: Type,
        required: bool,
    },
    Block {
        name: String,
        required: bool,
        nested: Box<Node>,
    },
    BlockAttrs {
        name: String,
        kind: Type,
        required: bool,
    },
    BlockList {
        name: String,
        min: u64,
        max: u64,
        set: bool,
        nested: Box<Node>,
    },
    BlockMap {
        name: String,
        labels: Vec<String>,
        nested: Box<Node>,
    },
    Default(Box<Node>, Box<Node>),
    Literal(Value),
}

/// One nested block: its labels, its path and its content.
struct NestedBlock<'a> {
    labels: Vec<&'a str>,
    field: String,
    body: &'a Map<String, Value>,
}

impl Schema {
    /// Parses `spec`.
    ///
    /// # Errors
    ///
    /// [`SchemaError`] when `spec` has an invalid type or literal, or is too deep. Each is a mistake of the driver.
    pub fn new(spec: &Spec) -> Result<Self, SchemaError> {
        Ok(Self {
            root: compile(spec, &Path::Root("schema"), 0)?,
        })
    }

    /// Returns `config` in the shape of the schema; null is an empty configuration. Faults use `name` for `config`.
    ///
    /// # Errors
    ///
    /// All faults of the configuration, each with the path of its field.
    pub fn decode(&self, name: &str, config: &Value) -> Result<Value, Vec<ConfigFault>> {
        let path = Path::Root(name);
        let mut faults = Vec::new();
        let empty = Map::new();
        let body = match config {
            Value::Null => &empty,
            Value::Object(body) => body,
            other => {
                let message = format!("must be a block, not {}", describe(other));
                return Err(vec![path.fault(message)]);
            }
        };
        let value = self.root.decode_body(body, &path, &mut faults);
        if faults.is_empty() {
            Ok(value)
        } else {
            Err(faults)
        }
    }
}

fn compile(spec: &Spec, path: &Path<'_>, depth: usize) -> Result<Node, SchemaError> {
    let failed = |reason: String| SchemaError {
        place: path.to_string(),
        reason,
    };
    if depth > SCHEMA_DEPTH_MAX {
        return Err(failed(format!("it is deeper than {SCHEMA_DEPTH_MAX}")));
    }
    let deeper =
        |spec: &Spec, name: &str| compile(spec, &path.field(name), depth + 1).map(Box::new);
    Ok(match spec {
        Spec::Object(fields) => {
            let fields = fields.iter().map(|(name, spec)| {
                let node = compile(spec, &path.field(name), depth + 1)?;
                Ok((name.clone(), node))
            });
            Node::Object(fields.collect::<Result<_, _>>()?)
        }
        Spec::Array(items) => Node::Array(compile_all(items, path, depth)?),
        Spec::Attr {
            name,
            type_expr,
            required,
        } => Node::Attr {
            name: name.clone(),
            kind: parse_type(type_expr).map_err(failed)?,
            required: *required,
        },
        Spec::Block {
            name,
            required,
            nested,
        } => Node::Block {
            name: name.clone(),
            required: *required,
            nested: deeper(nested, name)?,
        },
        Spec::BlockAttrs {
            name,
            type_expr,
            required,
        } => Node::BlockAttrs {
            name: name.clone(),
            kind: parse_type(type_expr).map_err(failed)?,
            required: *required,
        },
        Spec::BlockList {
            name,
            items_min,
            items_max,
            nested,
        }
        | Spec::BlockSet {
            name,
            items_min,
            items_max,
            nested,
        } => Node::BlockList {
            name: name.clone(),
            min: *items_min,
            max: *items_max,
            set: matches!(spec, Spec::BlockSet { .. }),
            nested: deeper(nested, name)?,
        },
        Spec::BlockMap {
            name,
            labels,
            nested,
        } => Node::BlockMap {
            name: name.clone(),
            labels: labels.clone(),
            nested: deeper(nested, name)?,
        },
        Spec::Default { primary, default } => {
            Node::Default(deeper(primary, "primary")?, deeper(default, "default")?)
        }
        Spec::Literal(text) => Node::Literal(literal(text).map_err(failed)?),
    })
}

fn compile_all(items: &[Spec], path: &Path<'_>, depth: usize) -> Result<Vec<Node>, SchemaError> {
    let items = items.iter().enumerate();
    items
        .map(|(at, spec)| compile(spec, &path.item(at), depth + 1))
        .collect()
}

impl Node {
    /// Decodes a whole body. An entry that the schema does not name is a fault.
    fn decode_body(
        &self,
        body: &Map<String, Value>,
        path: &Path<'_>,
        faults: &mut Vec<ConfigFault>,
    ) -> Value {
        let mut known = BTreeSet::new();
        self.collect_names(&mut known);
        for name in body.keys().filter(|name| !known.contains(name.as_str())) {
            let known: Vec<&str> = known.iter().copied().collect();
            faults.push(
                path.field(name)
                    .fault(format!("is unknown; known here: {}", known.join(", "))),
            );
        }
        self.read(body, path, faults)
    }

    /// Collects the names that this node reads from its body.
    fn collect_names<'a>(&'a self, names: &mut BTreeSet<&'a str>) {
        match self {
            Self::Object(fields) => fields.values().for_each(|node| node.collect_names(names)),
            Self::Array(items) => items.iter().for_each(|node| node.collect_names(names)),
            Self::Attr { name, .. }
            | Self::Block { name, .. }
            | Self::BlockAttrs { name, .. }
            | Self::BlockList { name, .. }
            | Self::BlockMap { name, .. } => {
                names.insert(name);
            }
            Self::Default(primary, default) => {
                primary.collect_names(names);
                default.collect_names(names);
            }
            Self::Literal(_) => {}
        }
    }

    fn read(
        &self,
        body: &Map<String, Value>,
        path: &Path<'_>,
        faults: &mut Vec<ConfigFault>,
    ) -> Value {
        match self {
            Self::Object(fields) => {
                let fields = fields.iter();
                let fields =
                    fields.map(|(name, node)| (name.clone(), node.read(body, path, faults)));
                Value::Object(fields.collect())
            }
            Self::Array(items) => {
                let items = items.iter().map(|node| node.read(body, path, faults));
                Value::Array(items.collect())
            }
            Self::Attr {
                name,
                kind,
                required,
            } => match body.get(name) {
                None | Some(Value::Null) => {
                    missing_value(*required, &path.field(name), kind, faults)
                }
                Some(value) => kind.convert(value, &path.field(name), faults),
            },
            Self::Block {
                name,
                required,
                nested,
            } => find_single_block(body, name, *required, path, faults)
                .map_or(Value::Null, |block| {
                    nested.decode_body(block.body, &Path::Root(&block.field), faults)
                }),
            Self::BlockAttrs {
                name,
                kind,
                required,
            } => find_single_block(body, name, *required, path, faults).map_or(
                Value::Null,
                |block| {
                    let place = Path::Root(&block.field);
                    let entries = block.body.iter().map(|(name, value)| {
                        let value = kind.convert(value, &place.field(name), faults);
                        (name.clone(), value)
                    });
                    Value::Object(entries.collect())
                },
            ),
            Self::BlockList { .. } => self.read_list(body, path, faults),
            Self::BlockMap {
                name,
                labels,
                nested,
            } => read_map(body, name, labels.len(), nested, path, faults),
            Self::Default(primary, default) => match primary.read(body, path, faults) {
                Value::Null => default.read(body, path, faults),
                value => value,
            },
            Self::Literal(value) => value.clone(),
        }
    }

    fn read_list(
        &self,
        body: &Map<String, Value>,
        path: &Path<'_>,
        faults: &mut Vec<ConfigFault>,
    ) -> Value {
        let Self::BlockList {
            name,
            min,
            max,
            set,
            nested,
        } = self
        else {
            return Value::Null;
        };
        let blocks = find_blocks(body, name, 0, path, faults);
        let count = blocks.len() as u64;
        if count < *min {
            let message = format!("at least {min} such blocks are needed, there are {count}");
            faults.push(path.field(name).fault(message));
        }
        if *max > 0 && count > *max {
            let message = format!("at most {max} such blocks are allowed, there are {count}");
            faults.push(path.field(name).fault(message));
        }
        let mut items: Vec<Value> = Vec::new();
        for block in blocks {
            let item = nested.decode_body(block.body, &Path::Root(&block.field), faults);
            if !(*set && items.contains(&item)) {
                items.push(item);
            }
        }
        Value::Array(items)
    }
}

fn read_map(
    body: &Map<String, Value>,
    name: &str,
    labels: usize,
    nested: &Node,
    path: &Path<'_>,
    faults: &mut Vec<ConfigFault>,
) -> Value {
    let mut answer = Map::new();
    for block in find_blocks(body, name, labels, path, faults) {
        let value = nested.decode_body(block.body, &Path::Root(&block.field), faults);
        if !insert_below_labels(&mut answer, &block.labels, value) {
            let place = Path::Root(&block.field);
            faults.push(place.fault("there is another block with the same labels".to_owned()));
        }
    }
    Value::Object(answer)
}

/// Inserts `value` below `labels`; returns `false` if a value existed there.
fn insert_below_labels(map: &mut Map<String, Value>, labels: &[&str], value: Value) -> bool {
    match labels {
        [] => false,
        [last] => map.insert((*last).to_owned(), value).is_none(),
        [first, rest @ ..] => {
            let inner = map
                .entry(*first)
                .or_insert_with(|| Value::Object(Map::new()));
            inner
                .as_object_mut()
                .is_some_and(|inner| insert_below_labels(inner, rest, value))
        }
    }
}

fn missing_value(
    required: bool,
    path: &Path<'_>,
    kind: &Type,
    faults: &mut Vec<ConfigFault>,
) -> Value {
    if required {
        faults.push(path.fault(format!("is missing; it must be {kind}")));
    }
    Value::Null
}

/// Returns the only block with a name.
fn find_single_block<'a>(
    body: &'a Map<String, Value>,
    name: &str,
    required: bool,
    path: &Path<'_>,
    faults: &mut Vec<ConfigFault>,
) -> Option<NestedBlock<'a>> {
    let mut blocks = find_blocks(body, name, 0, path, faults);
    if blocks.len() > 1 {
        let message = format!("only one such block is allowed, there are {}", blocks.len());
        faults.push(path.field(name).fault(message));
    }
    if blocks.is_empty() {
        if required && !body.contains_key(name) {
            faults.push(path.field(name).fault("the block is missing".to_owned()));
        }
        return None;
    }
    Some(blocks.swap_remove(0))
}

/// Returns the blocks with a name, each below `labels` labels.
fn find_blocks<'a>(
    body: &'a Map<String, Value>,
    name: &str,
    labels: usize,
    path: &Path<'_>,
    faults: &mut Vec<ConfigFault>,
) -> Vec<NestedBlock<'a>> {
    let mut blocks = Vec::new();
    if let Some(value) = body.get(name) {
        let field = path.field(name).to_string();
        collect_blocks(value, labels, &mut Vec::new(), field, &mut blocks, faults);
    }
    blocks
}

fn collect_blocks<'a>(
    value: &'a Value,
    labels_left: usize,
    labels: &mut Vec<&'a str>,
    field: String,
    blocks: &mut Vec<NestedBlock<'a>>,
    faults: &mut Vec<ConfigFault>,
) {
    match value {
        Value::Null => {}
        Value::Array(items) => {
            for (at, item) in items.iter().enumerate() {
                let field = format!("{field}[{at}]");
                if item.is_array() {
                    faults.push(Path::Root(&field).fault("must be a block, not a list".to_owned()));
                } else {
                    collect_blocks(item, labels_left, labels, field, blocks, faults);
                }
            }
        }
        Value::Object(entries) if labels_left > 0 => {
            for (label, value) in entries {
                labels.push(label);
                let field = format!("{field}.{label}");
                collect_blocks(value, labels_left - 1, labels, field, blocks, faults);
                labels.pop();
            }
        }
        Value::Object(body) => blocks.push(NestedBlock {
            labels: labels.clone(),
            field,
            body,
        }),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let message = format!("must be a block, not {}", describe(value));
            faults.push(Path::Root(&field).fault(message));
        }
    }
}

#[cfg(test)]
mod tests;
