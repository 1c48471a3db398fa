//! Other ways to write a value.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256, Sha512};

use super::{Args, Function, Outcome, argument, function, said};
use crate::number;

pub(super) const FUNCTIONS: &[Function] = &[
    function("base64decode", 1, 1, base64decode),
    function("base64encode", 1, 1, |args| {
        said(STANDARD.encode(args.text(0)?))
    }),
    function("jsondecode", 1, 1, jsondecode),
    function("jsonencode", 1, 1, jsonencode),
    function("sha256", 1, 1, |args| {
        said(hex(&Sha256::digest(args.text(0)?)))
    }),
    function("sha512", 1, 1, |args| {
        said(hex(&Sha512::digest(args.text(0)?)))
    }),
    function("urlencode", 1, 1, urlencode),
];

fn base64decode(args: &Args<'_>) -> Outcome {
    let bytes = STANDARD
        .decode(args.text(0)?)
        .map_err(|error| argument(0, format!("is no base64: {error}")))?;
    match String::from_utf8(bytes) {
        Ok(text) => said(text),
        Err(_) => Err(argument(0, "what it encodes is no UTF-8 text")),
    }
}

fn jsondecode(args: &Args<'_>) -> Outcome {
    let value: Value = serde_json::from_str(&args.text(0)?)
        .map_err(|error| argument(0, format!("is no JSON: {error}")))?;
    Ok(normal(value))
}

/// `value` with whole numbers as such.
fn normal(value: Value) -> Value {
    match value {
        Value::Number(found) => number::normal(&found),
        Value::Array(items) => Value::Array(items.into_iter().map(normal).collect()),
        Value::Object(entries) => {
            let entries = entries.into_iter();
            let entries: Map<String, Value> = entries.map(|(k, v)| (k, normal(v))).collect();
            Value::Object(entries)
        }
        Value::Null | Value::Bool(_) | Value::String(_) => value,
    }
}

/// As Go writes JSON: what could end a script in a web page is escaped.
fn jsonencode(args: &Args<'_>) -> Outcome {
    let text = args.value(0).to_string();
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            c => escaped.push(c),
        }
    }
    said(escaped)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a String takes all that is written");
        text
    })
}

fn urlencode(args: &Args<'_>) -> Outcome {
    let mut encoded = String::new();
    for byte in args.text(0)?.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                encoded.push(char::from(byte));
            }
            b' ' => encoded.push('+'),
            other => {
                write!(encoded, "%{other:02X}").expect("a String takes all that is written");
            }
        }
    }
    said(encoded)
}
