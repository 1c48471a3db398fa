//! Converts values to fields of the API. Each kind is checked at its place in the file.

use std::collections::BTreeMap;

use muster_wire::api::duration;
use muster_wire::api::job::schema::ValueKind;
use serde_json::{Map, Value as Json};

use crate::convert;
use crate::eval::{Evaluator, span};
use crate::fault::JobFileFault;
use crate::scope::Scope;
use crate::syntax::Expression;
use crate::value::Value;

/// The value of `expression` for the field `field`, in a file without variables and locals.
///
/// # Errors
///
/// The expression has no value.
pub fn any(field: &str, expression: &Expression) -> Result<Json, JobFileFault> {
    let value = Evaluator::new("").eval(expression, &Scope::default());
    value
        .and_then(|value| to_json(&value, expression))
        .map_err(|fault| fault.about(field))
}

/// `value`, which was found at `expression`, in JSON.
pub(crate) fn to_json(value: &Value, expression: &Expression) -> Result<Json, JobFileFault> {
    value
        .to_json()
        .map_err(|message| JobFileFault::at(span(expression), message))
}

/// `value`, which was found at `expression`, as a value of `kind` for the field `field`.
pub(crate) fn of_kind(
    field: &str,
    kind: ValueKind,
    value: &Value,
    expression: &Expression,
) -> Result<Json, JobFileFault> {
    let wrong = || {
        let odd = value
            .items()
            .and_then(|items| items.iter().find(|item| convert::text(item).is_none()));
        let found = match odd {
            Some(item) if kind == ValueKind::Texts => {
                format!("{} with {} in it", value.describe(), item.describe())
            }
            Some(_) | None => value.describe().to_owned(),
        };
        let message = format!("`{field}` must be {}, not {found}", describe(kind));
        JobFileFault::at(span(expression), message)
    };
    if value.is_null() {
        return Ok(Json::Null);
    }
    match kind {
        ValueKind::Text => convert::text(value).map(Json::String),
        ValueKind::Word(words) => match value {
            Value::Text(word) if words.contains(&word.as_str()) => Some(Json::String(word.clone())),
            _ => None,
        },
        ValueKind::Int => whole(value),
        ValueKind::Bool => convert::boolean(value).map(Json::Bool),
        ValueKind::Duration => match value {
            Value::Text(text) => {
                return match duration::parse(text) {
                    Ok(parsed) => Ok(Json::from(duration::nanos(parsed))),
                    Err(error) => {
                        Err(JobFileFault::at(span(expression), error.to_string()).about(field))
                    }
                };
            }
            // Nanoseconds.
            Value::Number(number) => number
                .as_u64()
                .filter(|nanos| i64::try_from(*nanos).is_ok())
                .map(Json::from),
            _ => None,
        },
        ValueKind::Texts => value.items().and_then(|items| {
            let texts: Option<Vec<String>> = items.iter().map(convert::text).collect();
            texts.map(Json::from)
        }),
        ValueKind::TextMap => value.entries().and_then(text_map),
    }
    .ok_or_else(wrong)
}

/// A whole number that 64 bits hold.
fn whole(value: &Value) -> Option<Json> {
    let number = convert::number(value)?;
    number
        .as_i64()
        .map(Json::from)
        .or_else(|| number.as_u64().map(Json::from))
}

/// Numbers and booleans in a map of texts become texts, as in Nomad.
fn text_map(map: &BTreeMap<String, Value>) -> Option<Json> {
    let texts = map
        .iter()
        .map(|(name, value)| Some((name.clone(), Json::String(convert::text(value)?))));
    texts.collect::<Option<Map<_, _>>>().map(Json::Object)
}

/// Describes the kind in messages.
pub(crate) fn describe(kind: ValueKind) -> String {
    match kind {
        ValueKind::Text => "a text in quotes".to_owned(),
        ValueKind::Word(words) => format!("one of {}", words.join(", ")),
        ValueKind::Int => "a whole number".to_owned(),
        ValueKind::Bool => "true or false".to_owned(),
        ValueKind::Duration => {
            "a duration such as \"30s\" or \"1h15m\", or whole nanoseconds".to_owned()
        }
        ValueKind::Texts => "a list of texts, such as [\"a\", \"b\"]".to_owned(),
        ValueKind::TextMap => "keys with texts, such as { KEY = \"value\" }".to_owned(),
    }
}
