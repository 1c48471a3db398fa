//! Values as other values, by HCL's rules: numbers, booleans and texts turn into each other where the
//! text says the same.

use serde_json::{Number, Value};

use super::limits::VALUE_BYTES;
use super::number;

/// `value` as a text.
pub(super) fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) => Some(number::text(number)),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

/// `value` as a number.
pub(super) fn number(value: &Value) -> Option<Number> {
    let found = match value {
        Value::Number(number) => number::normal(number),
        Value::String(text) => number::parse(text)?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    match found {
        Value::Number(number) => Some(number),
        _ => None,
    }
}

/// `value` as a boolean.
pub(super) fn boolean(value: &Value) -> Option<bool> {
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

/// What `value` is, for people.
pub(super) fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_f64() => "a fraction",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// What `value` weighs, in bytes or so.
pub(super) fn weight(value: &Value) -> usize {
    VALUE_BYTES
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(weight).sum(),
            Value::Object(entries) => entries
                .iter()
                .map(|(name, value)| name.len() + weight(value))
                .sum(),
        }
}

/// Lists and objects inside each other in `value`.
pub(super) fn depth(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(entries) => 1 + entries.values().map(depth).max().unwrap_or(0),
    }
}
