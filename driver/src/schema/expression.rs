//! The HCL expressions of a schema: types and literals.

use std::collections::BTreeMap;

use hcl_edit::expr::{Expression, ObjectKey, UnaryOperator};
use serde_json::{Map, Number, Value};

use super::kind::Type;

/// Parses `text`. The parser bounds nesting by itself.
fn parse_expression(text: &str) -> Result<Expression, String> {
    text.parse()
        .map_err(|error| format!("`{text}` is not an expression: {error}"))
}

/// Returns the type of a type expression such as `list(map(string))`.
pub(super) fn parse_type(text: &str) -> Result<Type, String> {
    read_type(&parse_expression(text)?)
        .map_err(|reason| format!("type expression `{text}`: {reason}"))
}

fn read_type(expression: &Expression) -> Result<Type, String> {
    match expression {
        Expression::Variable(name) => match name.value().as_str() {
            "any" => Ok(Type::Any),
            "bool" => Ok(Type::Bool),
            "number" => Ok(Type::Number),
            "string" => Ok(Type::String),
            word @ ("list" | "set" | "map" | "object" | "tuple") => {
                Err(format!("`{word}` needs an argument in parentheses"))
            }
            other => Err(format!("`{other}` is not a type")),
        },
        Expression::FuncCall(call) => {
            let name = call.name.name.value().as_str();
            let arguments: Vec<&Expression> = call.args.iter().collect();
            let [argument] = arguments.as_slice() else {
                return Err(format!("`{name}` takes one argument"));
            };
            read_constructor(name, argument)
        }
        Expression::Parenthesis(inner) => read_type(inner.inner()),
        _ => Err("a type is a name, or a name with an argument in parentheses".to_owned()),
    }
}

fn read_constructor(name: &str, argument: &Expression) -> Result<Type, String> {
    let element = || read_type(argument).map(Box::new);
    match (name, argument) {
        ("list", _) => Ok(Type::List(element()?)),
        ("set", _) => Ok(Type::Set(element()?)),
        ("map", _) => Ok(Type::Map(element()?)),
        ("tuple", Expression::Array(items)) => {
            let types: Result<_, _> = items.iter().map(read_type).collect();
            Ok(Type::Tuple(types?))
        }
        ("tuple", _) => Err("`tuple` takes a list of types".to_owned()),
        ("object", Expression::Object(fields)) => {
            let mut types = BTreeMap::new();
            for (key, value) in fields {
                types.insert(read_key(key)?, read_type(value.expr())?);
            }
            Ok(Type::Object(types))
        }
        ("object", _) => Err("`object` takes names with types in braces".to_owned()),
        (other, _) => Err(format!("`{other}` is not a type")),
    }
}

/// Returns the value of an expression without variables and function calls.
pub(super) fn literal(text: &str) -> Result<Value, String> {
    read_literal(&parse_expression(text)?).map_err(|reason| format!("literal `{text}`: {reason}"))
}

fn read_literal(expression: &Expression) -> Result<Value, String> {
    match expression {
        Expression::Null(_) => Ok(Value::Null),
        Expression::Bool(yes) => Ok(Value::Bool(*yes.value())),
        Expression::Number(number) => {
            let number = number.value();
            if let Some(whole) = number.as_i64() {
                return Ok(Value::from(whole));
            }
            let real = number.as_f64().and_then(Number::from_f64);
            real.map(Value::Number)
                .ok_or_else(|| "the number is out of range".to_owned())
        }
        Expression::String(text) => Ok(Value::String(text.value().clone())),
        Expression::Array(items) => items.iter().map(read_literal).collect(),
        Expression::Object(fields) => {
            let mut map = Map::new();
            for (key, value) in fields {
                map.insert(read_key(key)?, read_literal(value.expr())?);
            }
            Ok(Value::Object(map))
        }
        Expression::Parenthesis(inner) => read_literal(inner.inner()),
        Expression::UnaryOp(operation) => {
            let value = read_literal(&operation.expr)?;
            match (operation.operator.value(), &value) {
                (UnaryOperator::Not, Value::Bool(yes)) => Ok(Value::Bool(!yes)),
                (UnaryOperator::Neg, Value::Number(number)) => negate(number),
                (UnaryOperator::Not | UnaryOperator::Neg, _) => {
                    Err("the operator does not fit the value".to_owned())
                }
            }
        }
        _ => Err("only plain values can be used here".to_owned()),
    }
}

fn negate(number: &Number) -> Result<Value, String> {
    if let Some(whole) = number.as_i64().and_then(i64::checked_neg) {
        return Ok(Value::from(whole));
    }
    let real = number.as_f64().and_then(|real| Number::from_f64(-real));
    real.map(Value::Number)
        .ok_or_else(|| "the number is out of range".to_owned())
}

fn read_key(key: &ObjectKey) -> Result<String, String> {
    match key {
        ObjectKey::Ident(name) | ObjectKey::Expression(Expression::Variable(name)) => {
            Ok(name.value().to_string())
        }
        ObjectKey::Expression(Expression::String(text)) => Ok(text.value().clone()),
        ObjectKey::Expression(_) => Err("a key must be a name".to_owned()),
    }
}
