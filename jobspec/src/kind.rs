//! Expressions to types: `string`, `list(number)`, `object({ … })`.

use std::collections::BTreeMap;

use crate::eval::span;
use crate::fault::JobFileFault;
use crate::syntax::{ExprKind, Expression};
use crate::value::{Attribute, Type, Value};

/// The type that `expression` names.
pub(crate) fn parse(expression: &Expression) -> Result<Type, JobFileFault> {
    let failed = |message: String| {
        JobFileFault::at(span(expression), message).help(
            "types are any, bool, number, string, list(…), set(…), map(…), object({…}) and tuple([…])",
        )
    };
    match &expression.kind {
        ExprKind::Paren(inner) => parse(inner),
        ExprKind::Call(call) => match call.args.as_slice() {
            [argument] => constructed(call.name.as_str(), argument)?
                .ok_or_else(|| failed(format!("unknown type `{}(…)`", call.name.as_str()))),
            _ => Err(failed("a type takes one argument".to_owned())),
        },
        _ => match expression.keyword() {
            Some("any") => Ok(Type::Any),
            Some("bool") => Ok(Type::Bool),
            Some("number") => Ok(Type::Number),
            Some("string") => Ok(Type::Text),
            Some(name @ ("list" | "map" | "set")) => Err(failed(format!(
                "`{name}` needs the type of its elements: write {name}(any)"
            ))),
            Some(other) => Err(failed(format!("unknown type `{other}`"))),
            None => Err(failed("expected a type".to_owned())),
        },
    }
}

/// The type of a variable that only has a default.
pub(crate) fn of_default(value: &Value) -> Type {
    match value {
        Value::Bool(_) => Type::Bool,
        Value::Number(_) => Type::Number,
        Value::Text(_) => Type::Text,
        _ => Type::Any,
    }
}

/// Parses a type with an argument. `None` if no type `name` takes such an argument.
fn constructed(name: &str, argument: &Expression) -> Result<Option<Type>, JobFileFault> {
    Ok(match (name, &argument.kind) {
        ("list", _) => Some(Type::list(parse(argument)?)),
        ("set", _) => Some(Type::set(parse(argument)?)),
        ("map", _) => Some(Type::map(parse(argument)?)),
        ("tuple", ExprKind::Tuple(items)) => {
            let kinds: Result<_, _> = items.iter().map(parse).collect();
            Some(Type::Tuple(kinds?))
        }
        ("object", ExprKind::Object(entries)) => {
            let mut attributes = BTreeMap::new();
            for (key, value) in entries {
                let Some(name) = key.literal_key() else {
                    return Err(JobFileFault::at(span(key), "a field needs a name"));
                };
                attributes.insert(name.to_owned(), attribute(value)?);
            }
            Some(Type::Object(attributes))
        }
        (_, _) => None,
    })
}

fn attribute(expression: &Expression) -> Result<Attribute, JobFileFault> {
    if let ExprKind::Call(call) = &expression.kind
        && call.name.as_str() == "optional"
        && let [kind] = call.args.as_slice()
    {
        return Ok(Attribute {
            kind: parse(kind)?,
            optional: true,
        });
    }
    Ok(Attribute {
        kind: parse(expression)?,
        optional: false,
    })
}
