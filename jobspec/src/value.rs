//! Expressions as values of a field, each kind checked where it stands.

use hcl_edit::expr::Expression;
use muster_wire::api::duration;
use serde_json::{Map, Value};

use super::convert::{self, describe};
use super::eval::{Evaluator, Outcome};
use super::fault::JobFileFault;
use super::schema::Kind;
use super::scope::Scope;

pub use super::eval::span;

/// The value of `expression` for the field `field`, of a file that has no names of its own.
pub fn any(field: &str, expression: &Expression) -> Outcome {
    let evaluator = Evaluator::new("");
    evaluator
        .eval(expression, &Scope::default())
        .map_err(|fault| fault.about(field))
}

/// `value`, which was found at `expression`, as a value of `kind` for the field `field`.
pub(super) fn of_kind(field: &str, kind: Kind, value: Value, expression: &Expression) -> Outcome {
    let wrong = |found: &Value| {
        let found = match found {
            Value::Array(items) => match items.iter().find(|item| convert::text(item).is_none()) {
                Some(item) if kind == Kind::Texts => {
                    format!("{} with {} in it", describe(found), describe(item))
                }
                Some(_) | None => describe(found).to_owned(),
            },
            other => describe(other).to_owned(),
        };
        let message = format!("`{field}` must be {}, not {found}", kind.describe());
        JobFileFault::at(span(expression), message)
    };
    match (kind, value) {
        (_, Value::Null) => Ok(Value::Null),
        (Kind::Text, value) => convert::text(&value)
            .map(Value::String)
            .ok_or_else(|| wrong(&value)),
        (Kind::Word(words), Value::String(word)) if words.contains(&word.as_str()) => {
            Ok(Value::String(word))
        }
        (Kind::Int, value) => match convert::number(&value) {
            Some(number) if !number.is_f64() => Ok(Value::Number(number)),
            Some(_) | None => Err(wrong(&value)),
        },
        (Kind::Bool, value) => convert::boolean(&value)
            .map(Value::Bool)
            .ok_or_else(|| wrong(&value)),
        (Kind::Duration, Value::String(text)) => match duration::parse(&text) {
            Ok(parsed) => Ok(Value::from(duration::nanos(parsed))),
            Err(error) => Err(JobFileFault::at(span(expression), error.to_string()).about(field)),
        },
        (Kind::Texts, Value::Array(items)) => {
            let texts: Option<Vec<String>> = items.iter().map(convert::text).collect();
            texts
                .map(Value::from)
                .ok_or_else(|| wrong(&Value::Array(items)))
        }
        (Kind::TextMap, Value::Object(map)) => {
            text_map(&map).ok_or_else(|| wrong(&Value::Object(map)))
        }
        (Kind::Word(_) | Kind::Duration | Kind::Texts | Kind::TextMap, value) => Err(wrong(&value)),
    }
}

/// Numbers and booleans in a map of texts become texts, as in Nomad.
fn text_map(map: &Map<String, Value>) -> Option<Value> {
    let texts = map
        .iter()
        .map(|(name, value)| Some((name.clone(), Value::String(convert::text(value)?))));
    texts.collect::<Option<Map<_, _>>>().map(Value::Object)
}
