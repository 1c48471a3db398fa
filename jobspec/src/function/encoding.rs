//! Other ways to write a value.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};

use super::call::{Args, CallFault, Function, Outcome, Param, argument, function, text_answer};
use crate::number::Number;
use crate::quote::quoted;
use crate::syntax::json::{self, Node, NodeKind};
use crate::value::{Attribute, Type, Value};

/// Base64 as Go decodes it: bits behind the last byte are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true),
);

pub(super) const FUNCTIONS: &[Function] = &[
    function(
        "base64decode",
        &[Param::Text],
        |args| match String::from_utf8(from_base64(args, 0)?) {
            Ok(text) => text_answer(text),
            Err(_) => Err(argument(0, "the decoded bytes are not UTF-8 text")),
        },
    ),
    function("base64encode", &[Param::Text], |args| {
        text_answer(to_base64(args.text(0)?.as_bytes()))
    }),
    function("csvdecode", &[Param::Text], csvdecode),
    function("jsondecode", &[Param::Text], jsondecode),
    function("jsonencode", &[Param::Nullable], |args| {
        text_answer(to_json(args.value(0)).map_err(|message| argument(0, message))?)
    }),
    function("urlencode", &[Param::Text], urlencode),
];

pub(super) fn to_base64(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// The bytes that argument `at` encodes. Newlines do not count.
pub(super) fn from_base64(args: &Args<'_>, at: usize) -> Result<Vec<u8>, CallFault> {
    let text: String = args
        .text(at)?
        .chars()
        .filter(|c| !matches!(c, '\r' | '\n'))
        .collect();
    BASE64
        .decode(text)
        .map_err(|error| argument(at, format!("not base64: {error}")))
}

fn jsondecode(args: &Args<'_>) -> Outcome {
    let node = json::parse(args.text(0)?, 0)
        .map_err(|error| argument(0, format!("not JSON: {}", error.message)))?;
    from_json(&node).ok_or_else(|| argument(0, "a number is out of range"))
}

fn from_json(node: &Node) -> Option<Value> {
    Some(match &node.kind {
        NodeKind::Null => Value::NULL,
        NodeKind::Bool(yes) => Value::Bool(*yes),
        NodeKind::Number(digits) => Value::Number(Number::parse(digits)?),
        NodeKind::Text(text) => Value::text(text.as_str()),
        NodeKind::List(items) => Value::Tuple(items.iter().map(from_json).collect::<Option<_>>()?),
        NodeKind::Object(entries) => {
            let mut map = BTreeMap::new();
            for (key, value) in entries {
                map.insert(key.text.clone(), from_json(value)?);
            }
            Value::Object(map)
        }
    })
}

/// Encodes `value` as JSON, as Go does.
pub(super) fn to_json(value: &Value) -> Result<String, String> {
    let mut text = String::new();
    write_json(&mut text, value)?;
    Ok(text)
}

fn write_json(text: &mut String, value: &Value) -> Result<(), String> {
    match value {
        Value::Null(_) => text.push_str("null"),
        Value::Bool(yes) => text.push_str(if *yes { "true" } else { "false" }),
        Value::Number(number) if number.is_infinite() => {
            return Err("JSON has no infinite numbers".to_owned());
        }
        Value::Number(number) => text.push_str(&number.text()),
        Value::Text(found) => text.push_str(&quoted(found)),
        Value::List(_, items) | Value::Set(_, items) | Value::Tuple(items) => {
            text.push('[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                write_json(text, item)?;
            }
            text.push(']');
        }
        Value::Map(_, entries) | Value::Object(entries) => {
            text.push('{');
            for (at, (name, item)) in entries.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                text.push_str(&quoted(name));
                text.push(':');
                write_json(text, item)?;
            }
            text.push('}');
        }
    }
    Ok(())
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
                let _infallible = write!(encoded, "%{other:02X}");
            }
        }
    }
    text_answer(encoded)
}

/// Parses a table. Its first line names the columns.
fn csvdecode(args: &Args<'_>) -> Outcome {
    let failed = |(line, message): (usize, &str)| argument(0, format!("line {line}: {message}"));
    let mut rows = csv_rows(args.text(0)?).map_err(failed)?.into_iter();
    let (_, names) = rows
        .next()
        .ok_or_else(|| argument(0, "a line with the names of the columns is missing"))?;
    let mut known = BTreeSet::new();
    if let Some(name) = names.iter().find(|name| !known.insert(*name)) {
        return Err(argument(0, format!("a second column `{name}`")));
    }
    let mut objects = Vec::new();
    for (line, row) in rows {
        if row.len() != names.len() {
            let message = format!("line {line}: {} fields, not {}", row.len(), names.len());
            return Err(argument(0, message));
        }
        let entries = names.iter().cloned().zip(row.into_iter().map(Value::text));
        objects.push(Value::Object(entries.collect()));
    }
    let columns = names.into_iter().map(|name| {
        let kind = Type::Text;
        (
            name,
            Attribute {
                kind,
                optional: false,
            },
        )
    });
    Ok(Value::List(Type::Object(columns.collect()), objects))
}

type CsvRow = (usize, Vec<String>);

/// The rows of `text` with their line numbers, by RFC 4180 as Go implements it. Empty lines are skipped.
fn csv_rows(text: &str) -> Result<Vec<CsvRow>, (usize, &'static str)> {
    let text = text.replace("\r\n", "\n");
    let mut rows = Vec::new();
    let mut lines = text.split_inclusive('\n').enumerate();
    while let Some((at, line)) = lines.next() {
        let first = at + 1;
        let mut line = line
            .strip_suffix('\n')
            .unwrap_or_else(|| line.strip_suffix('\r').unwrap_or(line));
        if line.is_empty() {
            continue;
        }
        let mut fields = Vec::new();
        let mut has_more = true;
        while has_more {
            let Some(mut quoted) = line.strip_prefix('"') else {
                let end = line.find(',').unwrap_or(line.len());
                let field = &line[..end];
                if field.contains('"') {
                    return Err((first, "a quote in a field without quotes"));
                }
                fields.push(field.to_owned());
                has_more = end < line.len();
                line = line.get(end + 1..).unwrap_or("");
                continue;
            };
            let mut field = String::new();
            loop {
                match quoted.find('"') {
                    Some(end) => {
                        field.push_str(&quoted[..end]);
                        quoted = &quoted[end + 1..];
                        if let Some(rest) = quoted.strip_prefix('"') {
                            field.push('"');
                            quoted = rest;
                        } else {
                            break;
                        }
                    }
                    None => {
                        field.push_str(quoted);
                        let Some((_, more)) = lines.next() else {
                            return Err((first, "a quoted field has no end"));
                        };
                        field.push('\n');
                        quoted = more.strip_suffix('\n').unwrap_or(more);
                    }
                }
            }
            fields.push(field);
            has_more = quoted.starts_with(',');
            if !has_more && !quoted.is_empty() {
                return Err((first, "text after a quoted field"));
            }
            line = quoted.get(1..).unwrap_or("");
        }
        rows.push((first, fields));
    }
    Ok(rows)
}
