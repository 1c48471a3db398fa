//! Kinds of variables: `string`, `list(number)`, `object({ … })`.

use std::collections::BTreeMap;
use std::fmt;

use hcl_edit::expr::{Expression, ObjectKey};
use serde_json::{Map, Value};

use super::convert::{self, describe};
use super::eval::span;
use super::fault::JobFileFault;

/// What a variable's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum VarKind {
    /// Anything.
    Any,
    Bool,
    Number,
    Text,
    List(Box<VarKind>),
    /// A list in order, each value once.
    Set(Box<VarKind>),
    Map(Box<VarKind>),
    /// One of each, by name. A field that may be missing is null then.
    Object(BTreeMap<String, Field>),
    /// One of each, in order.
    Tuple(Vec<VarKind>),
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    kind: VarKind,
    optional: bool,
}

impl VarKind {
    /// The kind that `expression` names.
    pub(super) fn parse(expression: &Expression) -> Result<Self, JobFileFault> {
        let failed = |message: String| {
            JobFileFault::at(span(expression), message).help(
                "types are any, bool, number, string, list(…), set(…), map(…), object({…}) and tuple([…])",
            )
        };
        match expression {
            Expression::Variable(name) => match name.as_str() {
                "any" => Ok(Self::Any),
                "bool" => Ok(Self::Bool),
                "number" => Ok(Self::Number),
                "string" => Ok(Self::Text),
                "list" => Ok(Self::List(Box::new(Self::Any))),
                "map" => Ok(Self::Map(Box::new(Self::Any))),
                "set" => Ok(Self::Set(Box::new(Self::Any))),
                other => Err(failed(format!("`{other}` is no type"))),
            },
            Expression::FuncCall(call) => match (call.args.get(0), call.args.len()) {
                (Some(argument), 1) => {
                    constructed(call.name.name.as_str(), argument)?.ok_or_else(|| {
                        failed(format!("`{}` is no such type", call.name.name.as_str()))
                    })
                }
                (_, _) => Err(failed("a type takes one argument".to_owned())),
            },
            Expression::Parenthesis(inner) => Self::parse(inner.inner()),
            _ => Err(failed("this is no type".to_owned())),
        }
    }

    /// The kind of a variable that only has a default.
    pub(super) fn of(value: &Value) -> Self {
        match value {
            Value::Bool(_) => Self::Bool,
            Value::Number(_) => Self::Number,
            Value::String(_) => Self::Text,
            Value::Null | Value::Array(_) | Value::Object(_) => Self::Any,
        }
    }

    /// Whether a value on a command line is the text itself, not an expression.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self, Self::Number | Self::Text | Self::Bool)
    }

    /// `value` as this kind.
    ///
    /// # Errors
    ///
    /// What must be what; names the place inside the value.
    pub(super) fn convert(&self, value: Value) -> Result<Value, String> {
        self.convert_at("it", value)
    }

    fn convert_at(&self, place: &str, value: Value) -> Result<Value, String> {
        let wrong = |value: &Value| match value {
            Value::String(text) if text.len() <= 40 => {
                format!("{place} must be of type {self}, not the text `{text}`")
            }
            other => format!("{place} must be of type {self}, not {}", describe(other)),
        };
        match (self, value) {
            (_, Value::Null) => Ok(Value::Null),
            (Self::Any, value) => Ok(value),
            (Self::Bool, value) => convert::boolean(&value)
                .map(Value::Bool)
                .ok_or_else(|| wrong(&value)),
            (Self::Number, value) => convert::number(&value)
                .map(Value::Number)
                .ok_or_else(|| wrong(&value)),
            (Self::Text, value) => convert::text(&value)
                .map(Value::String)
                .ok_or_else(|| wrong(&value)),
            (Self::List(kind), Value::Array(items)) => kind.convert_all(place, items),
            (Self::Set(kind), Value::Array(items)) => kind.convert_all(place, items).map(once_each),
            (Self::Map(kind), Value::Object(entries)) => entries
                .into_iter()
                .map(|(name, value)| {
                    let value = kind.convert_at(&format!("{place}.{name}"), value)?;
                    Ok((name, value))
                })
                .collect::<Result<_, _>>()
                .map(Value::Object),
            (Self::Tuple(kinds), Value::Array(items)) if kinds.len() == items.len() => kinds
                .iter()
                .zip(items)
                .enumerate()
                .map(|(at, (kind, item))| kind.convert_at(&format!("{place}[{at}]"), item))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            (Self::Object(fields), Value::Object(entries)) => {
                converted_object(fields, place, entries)
            }
            (
                Self::List(_) | Self::Set(_) | Self::Map(_) | Self::Object(_) | Self::Tuple(_),
                value,
            ) => Err(wrong(&value)),
        }
    }

    fn convert_all(&self, place: &str, items: Vec<Value>) -> Result<Value, String> {
        items
            .into_iter()
            .enumerate()
            .map(|(at, item)| self.convert_at(&format!("{place}[{at}]"), item))
            .collect::<Result<_, _>>()
            .map(Value::Array)
    }
}

impl fmt::Display for VarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::Bool => f.write_str("bool"),
            Self::Number => f.write_str("number"),
            Self::Text => f.write_str("string"),
            Self::List(kind) => write!(f, "list({kind})"),
            Self::Set(kind) => write!(f, "set({kind})"),
            Self::Map(kind) => write!(f, "map({kind})"),
            Self::Object(fields) => {
                let fields: Vec<String> = fields
                    .iter()
                    .map(|(name, field)| format!("{name} = {}", field.kind))
                    .collect();
                write!(f, "object({{{}}})", fields.join(", "))
            }
            Self::Tuple(kinds) => {
                let kinds: Vec<String> = kinds.iter().map(Self::to_string).collect();
                write!(f, "tuple([{}])", kinds.join(", "))
            }
        }
    }
}

/// `None` if there is no type `name` that takes such an argument.
fn constructed(name: &str, argument: &Expression) -> Result<Option<VarKind>, JobFileFault> {
    let inner = || VarKind::parse(argument).map(Box::new);
    Ok(match (name, argument) {
        ("list", _) => Some(VarKind::List(inner()?)),
        ("set", _) => Some(VarKind::Set(inner()?)),
        ("map", _) => Some(VarKind::Map(inner()?)),
        ("tuple", Expression::Array(items)) => {
            let kinds: Result<_, _> = items.iter().map(VarKind::parse).collect();
            Some(VarKind::Tuple(kinds?))
        }
        ("object", Expression::Object(entries)) => {
            let mut fields = BTreeMap::new();
            for (key, value) in entries {
                let name = match key {
                    ObjectKey::Ident(name) => name.value().to_string(),
                    ObjectKey::Expression(Expression::String(name)) => name.value().clone(),
                    ObjectKey::Expression(other) => {
                        return Err(JobFileFault::at(span(other), "a field needs a name"));
                    }
                };
                fields.insert(name, field(value.expr())?);
            }
            Some(VarKind::Object(fields))
        }
        (_, _) => None,
    })
}

fn field(expression: &Expression) -> Result<Field, JobFileFault> {
    if let Expression::FuncCall(call) = expression
        && call.name.name.as_str() == "optional"
        && let (Some(kind), 1) = (call.args.get(0), call.args.len())
    {
        return Ok(Field {
            kind: VarKind::parse(kind)?,
            optional: true,
        });
    }
    Ok(Field {
        kind: VarKind::parse(expression)?,
        optional: false,
    })
}

fn converted_object(
    fields: &BTreeMap<String, Field>,
    place: &str,
    mut entries: Map<String, Value>,
) -> Result<Value, String> {
    let mut object = Map::new();
    for (name, field) in fields {
        let value = match entries.remove(name) {
            Some(value) => field.kind.convert_at(&format!("{place}.{name}"), value)?,
            None if field.optional => Value::Null,
            None => return Err(format!("{place}.{name} is missing")),
        };
        object.insert(name.clone(), value);
    }
    Ok(Value::Object(object))
}

/// Each item once, texts in order: what a set is to whoever walks through it.
pub(super) fn once_each(list: Value) -> Value {
    let Value::Array(items) = list else {
        return list;
    };
    let by_text: BTreeMap<String, Value> = items
        .into_iter()
        .map(|item| {
            (
                convert::text(&item).unwrap_or_else(|| item.to_string()),
                item,
            )
        })
        .collect();
    Value::Array(by_text.into_values().collect())
}
