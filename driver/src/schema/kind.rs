//! The types of attributes, and the conversion of values to them.
//!
//! The conversions are those of HCL. Numbers, booleans and strings convert into each other if the text has the same
//! value. A list converts to a set. Nothing converts to a list.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Number, Value};

use super::path::Path;
use super::{ConfigFault, whole};

/// A type of HCL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Any,
    Bool,
    Number,
    String,
    /// Any number of values of a type.
    List(Box<Type>),
    /// Any number of values of a type, each at most once.
    Set(Box<Type>),
    /// Values of a type by name.
    Map(Box<Type>),
    /// One value of each type.
    Tuple(Vec<Type>),
    /// One value of each type, by name.
    Object(BTreeMap<String, Type>),
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Bool => f.write_str("bool"),
            Self::Number => f.write_str("number"),
            Self::String => f.write_str("string"),
            Self::List(element) => write!(f, "list({element})"),
            Self::Set(element) => write!(f, "set({element})"),
            Self::Map(element) => write!(f, "map({element})"),
            Self::Tuple(types) => {
                let types: Vec<String> = types.iter().map(Self::to_string).collect();
                write!(f, "tuple([{}])", types.join(", "))
            }
            Self::Object(types) => {
                let types: Vec<String> = types
                    .iter()
                    .map(|(name, kind)| format!("{name}={kind}"))
                    .collect();
                write!(f, "object({{{}}})", types.join(", "))
            }
        }
    }
}

impl Type {
    /// Converts `value` to this type. A value that does not fit adds a fault to `faults`, and the result has null in
    /// its place.
    pub(super) fn convert(
        &self,
        value: &Value,
        path: &Path<'_>,
        faults: &mut Vec<ConfigFault>,
    ) -> Value {
        let converted = match (self, value) {
            (_, Value::Null) => Some(Value::Null),
            (Self::Any, value) => Some(value.clone()),
            (Self::Bool, value) => as_bool(value).map(Value::Bool),
            (Self::Number, value) => as_number(value).map(Value::Number),
            (Self::String, value) => as_text(value).map(Value::String),
            (Self::List(element), Value::Array(items)) => {
                Some(Value::Array(element.convert_all(items, path, faults)))
            }
            (Self::Set(element), Value::Array(items)) => Some(Value::Array(deduplicate(
                element.convert_all(items, path, faults),
            ))),
            (Self::Map(element), Value::Object(entries)) => Some(Value::Object(
                entries
                    .iter()
                    .map(|(name, value)| {
                        let value = element.convert(value, &path.field(name), faults);
                        (name.clone(), value)
                    })
                    .collect(),
            )),
            // A map that was written as a block is a list of one object.
            (Self::Map(_), Value::Array(blocks)) => match blocks.as_slice() {
                [block @ Value::Object(_)] => Some(self.convert(block, path, faults)),
                _ => None,
            },
            (Self::Tuple(types), Value::Array(items)) if types.len() == items.len() => {
                let items = types.iter().zip(items).enumerate();
                let items = items
                    .map(|(at, (kind, item))| kind.convert(item, &path.item(at), faults))
                    .collect();
                Some(Value::Array(items))
            }
            (Self::Object(types), Value::Object(entries)) => {
                Some(object(types, entries, path, faults))
            }
            _ => None,
        };
        converted.unwrap_or_else(|| {
            let message = format!("must be {self}, not {}", describe(value));
            faults.push(path.fault(message));
            Value::Null
        })
    }

    fn convert_all(
        &self,
        items: &[Value],
        path: &Path<'_>,
        faults: &mut Vec<ConfigFault>,
    ) -> Vec<Value> {
        let items = items.iter().enumerate();
        items
            .map(|(at, item)| self.convert(item, &path.item(at), faults))
            .collect()
    }
}

fn object(
    types: &BTreeMap<String, Type>,
    entries: &Map<String, Value>,
    path: &Path<'_>,
    faults: &mut Vec<ConfigFault>,
) -> Value {
    for name in entries.keys().filter(|name| !types.contains_key(*name)) {
        let known: Vec<&str> = types.keys().map(String::as_str).collect();
        faults.push(
            path.field(name)
                .fault(format!("is unknown; known here: {}", known.join(", "))),
        );
    }
    let converted = types.iter().map(|(name, kind)| {
        let path = path.field(name);
        let value = match entries.get(name) {
            Some(value) => kind.convert(value, &path, faults),
            None => {
                faults.push(path.fault(format!("is missing; it must be {kind}")));
                Value::Null
            }
        };
        (name.clone(), value)
    });
    Value::Object(converted.collect())
}

fn deduplicate(items: Vec<Value>) -> Vec<Value> {
    let mut seen = BTreeSet::new();
    let mut kept: Vec<Value> = items
        .into_iter()
        .filter(|item| seen.insert(item.to_string()))
        .collect();
    if kept.iter().all(Value::is_string) {
        kept.sort_by(|a, b| a.as_str().cmp(&b.as_str()));
    }
    kept
}

fn as_bool(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(yes) => Some(*yes),
        Value::String(text) => match text.as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        },
        Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn as_number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(whole(number)),
        Value::String(text) => {
            let text = text.trim();
            let number = text
                .parse::<i64>()
                .map(Number::from)
                .or_else(|_| text.parse::<u64>().map(Number::from));
            number.ok().or_else(|| {
                // The parser of floats accepts words such as `inf`; HCL has no such numbers.
                let real = text.parse::<f64>().ok().filter(|real| real.is_finite())?;
                Some(whole(&Number::from_f64(real)?))
            })
        }
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}

fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) => Some(whole(number).to_string()),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

pub(super) fn describe(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(yes) => format!("the truth value {yes}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(_) => "a text".to_owned(),
        Value::Array(items) => format!("a list of {}", items.len()),
        Value::Object(_) => "an object or block".to_owned(),
    }
}
