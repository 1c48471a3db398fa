//! Conversions of values between types, and the common type of several values, as in go-cty.
//!
//! A *safe* conversion never fails: it converts numbers and booleans to text. The other conversions parse texts.

use std::collections::BTreeMap;

use crate::number::Number;
use crate::value::{Attribute, Type, Value};

/// The reason why a value cannot be converted to a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConversionError {
    /// The path of the part that does not fit, such as `[1].name`; empty for the value as a whole.
    pub(crate) path: String,
    pub(crate) message: String,
}

impl ConversionError {
    fn new(message: impl Into<String>) -> Self {
        Self {
            path: String::new(),
            message: message.into(),
        }
    }

    fn within(mut self, step: &str) -> Self {
        self.path.insert_str(0, step);
        self
    }
}

type Outcome = Result<Value, ConversionError>;

/// `value` as a text.
pub(crate) fn text(value: &Value) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.clone()),
        Value::Bool(yes) => Some(yes.to_string()),
        Value::Number(number) => Some(number.text()),
        _ => None,
    }
}

/// `value` as a number.
pub(crate) fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Number(number) => Some(number.clone()),
        Value::Text(text) => Number::parse(text),
        _ => None,
    }
}

/// `value` as a boolean.
pub(crate) fn boolean(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(yes) => Some(*yes),
        Value::Text(text) => match text.as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// Whether each value of the type `from` may become one of the type `to`.
fn is_convertible(from: &Type, to: &Type, safe: bool) -> bool {
    let each = |of: &[Type], to: &Type| match to {
        Type::Any => unify(of, safe).is_some(),
        to => of.iter().all(|of| of == to || is_convertible(of, to, safe)),
    };
    match (from, to) {
        (_, Type::Any) | (Type::Bool | Type::Number, Type::Text) => true,
        (Type::Any, _) | (Type::Text, Type::Bool | Type::Number) => !safe,
        (Type::Object(from), Type::Object(to)) => {
            to.iter().all(|(name, to)| match from.get(name) {
                Some(from) => from.kind == to.kind || is_convertible(&from.kind, &to.kind, safe),
                None => to.optional,
            })
        }
        (Type::Tuple(from), Type::Tuple(to)) => {
            from.len() == to.len()
                && from
                    .iter()
                    .zip(to)
                    .all(|(from, to)| from == to || is_convertible(from, to, safe))
        }
        (Type::List(from) | Type::Set(from), Type::List(to))
        | (Type::Set(from), Type::Set(to))
        | (Type::Map(from), Type::Map(to)) => from == to || is_convertible(from, to, safe),
        (Type::List(from), Type::Set(to)) => {
            !safe && (from == to || is_convertible(from, to, safe))
        }
        (Type::Tuple(from), Type::List(to) | Type::Set(to)) => from.is_empty() || each(from, to),
        (Type::Object(from), Type::Map(to)) => {
            let kinds: Vec<Type> = from.values().map(|from| from.kind.clone()).collect();
            kinds.is_empty() || each(&kinds, to)
        }
        (Type::Map(from), Type::Object(to)) => {
            !safe
                && to.values().all(|to| {
                    to.kind == **from || is_convertible(from, &to.kind, safe) || to.optional
                })
        }
        (from, to) => from == to,
    }
}

/// `value` as a value of the type `to`.
///
/// # Errors
///
/// The part that does not become one.
pub(crate) fn convert(value: Value, to: &Type) -> Outcome {
    let from = value.kind();
    if from == *to || *to == Type::Any {
        return Ok(value);
    }
    if !is_convertible(&from, to, false) {
        return Err(mismatch(&value, to));
    }
    converted(value, to)
}

/// Converts a value of which the type fits.
fn converted(value: Value, to: &Type) -> Outcome {
    if value.kind() == *to {
        return Ok(value);
    }
    let wrong = |value: &Value| mismatch(value, to);
    // An empty collection keeps its element type if the target accepts any type.
    let kept = match &value {
        Value::List(of, items) | Value::Set(of, items) if items.is_empty() => Some(of.clone()),
        Value::Map(of, entries) if entries.is_empty() => Some(of.clone()),
        _ => None,
    };
    match (value, to) {
        (value, Type::Any) => Ok(value),
        (_, Type::List(to)) if kept.is_some() && **to == Type::Any => {
            Ok(Value::List(kept.unwrap_or(Type::Any), Vec::new()))
        }
        (_, Type::Set(to)) if kept.is_some() && **to == Type::Any => {
            Ok(Value::Set(kept.unwrap_or(Type::Any), Vec::new()))
        }
        (Value::Map(..), Type::Map(to)) if kept.is_some() && **to == Type::Any => {
            Ok(Value::Map(kept.unwrap_or(Type::Any), BTreeMap::new()))
        }
        (Value::Null(_), to) => Ok(Value::Null(to.without_optional())),
        (value, Type::Text) => text(&value).map(Value::text).ok_or_else(|| wrong(&value)),
        (value, Type::Number) => number(&value)
            .map(Value::Number)
            .ok_or_else(|| wrong(&value)),
        (value, Type::Bool) => boolean(&value)
            .map(Value::Bool)
            .ok_or_else(|| wrong(&value)),
        (Value::Tuple(items), Type::Tuple(to)) if items.len() == to.len() => items
            .into_iter()
            .zip(to)
            .enumerate()
            .map(|(at, (item, to))| convert(item, to).map_err(|e| e.within(&format!("[{at}]"))))
            .collect::<Result<_, _>>()
            .map(Value::Tuple),
        (Value::Tuple(items) | Value::List(_, items) | Value::Set(_, items), Type::List(to)) => {
            let (of, items) = elements(items, to)?;
            Ok(Value::List(of, items))
        }
        (Value::Tuple(items) | Value::List(_, items) | Value::Set(_, items), Type::Set(to)) => {
            let (of, items) = elements(items, to)?;
            Ok(Value::set(of, items))
        }
        (Value::Map(_, entries) | Value::Object(entries), Type::Map(to)) => {
            let (names, values): (Vec<String>, Vec<Value>) = entries.into_iter().unzip();
            let steps: Vec<String> = names.iter().map(|name| format!(".{name}")).collect();
            let (of, values) = elements_at(values, to, |at| steps[at].clone())?;
            Ok(Value::Map(of, names.into_iter().zip(values).collect()))
        }
        (Value::Map(_, entries) | Value::Object(entries), Type::Object(to)) => {
            object(entries, to).map(Value::Object)
        }
        (value, _) => Err(wrong(&value)),
    }
}

fn object(
    mut entries: BTreeMap<String, Value>,
    to: &BTreeMap<String, Attribute>,
) -> Result<BTreeMap<String, Value>, ConversionError> {
    let mut object = BTreeMap::new();
    for (name, attribute) in to {
        let value = match entries.remove(name) {
            Some(value) => {
                convert(value, &attribute.kind).map_err(|e| e.within(&format!(".{name}")))?
            }
            None if attribute.optional => Value::Null(attribute.kind.without_optional()),
            None => return Err(ConversionError::new("is missing").within(&format!(".{name}"))),
        };
        object.insert(name.clone(), value);
    }
    Ok(object)
}

fn elements(items: Vec<Value>, to: &Type) -> Result<(Type, Vec<Value>), ConversionError> {
    elements_at(items, to, |at| format!("[{at}]"))
}

/// Converts `items` to elements of a collection of `to`, and returns their common type.
fn elements_at(
    items: Vec<Value>,
    to: &Type,
    step: impl Fn(usize) -> String,
) -> Result<(Type, Vec<Value>), ConversionError> {
    if items.is_empty() {
        return Ok((to.without_optional(), items));
    }
    let to = match to {
        Type::Any => {
            let kinds: Vec<Type> = items.iter().map(Value::kind).collect();
            unify(&kinds, false).ok_or_else(no_common_type)?
        }
        to => to.clone(),
    };
    let items: Vec<Value> = items
        .into_iter()
        .enumerate()
        .map(|(at, item)| convert(item, &to).map_err(|e| e.within(&step(at))))
        .collect::<Result<_, _>>()?;
    // Elements may still differ if their type contains `any`.
    let kinds: Vec<Type> = items.iter().map(Value::kind).collect();
    let of = kinds[0].clone();
    if kinds.iter().all(|kind| *kind == of) {
        return Ok((of, items));
    }
    let of = unify(&kinds, false).ok_or_else(no_common_type)?;
    let items = items
        .into_iter()
        .map(|item| convert(item, &of))
        .collect::<Result<Vec<Value>, _>>()?;
    // `any` in common is no type in common.
    if items.iter().any(|item| item.kind() != of) {
        return Err(no_common_type());
    }
    Ok((of, items))
}

fn no_common_type() -> ConversionError {
    ConversionError::new("the elements have no type in common")
}

/// The message for a value that is not of the type `to`, at the first part that does not fit.
fn mismatch(value: &Value, to: &Type) -> ConversionError {
    let inner = match (value, to) {
        (_, Type::List(to) | Type::Set(to)) => value.items().and_then(|items| {
            items.iter().enumerate().find_map(|(at, item)| {
                let fault = convert(item.clone(), to).err()?;
                Some(fault.within(&format!("[{at}]")))
            })
        }),
        (_, Type::Map(to)) => value.entries().and_then(|entries| {
            entries.iter().find_map(|(name, item)| {
                let fault = convert(item.clone(), to).err()?;
                Some(fault.within(&format!(".{name}")))
            })
        }),
        (_, Type::Object(to)) => value
            .entries()
            .and_then(|entries| object(entries.clone(), to).err()),
        _ => None,
    };
    inner.unwrap_or_else(|| {
        ConversionError::new(match value {
            Value::Text(text) if text.len() <= 40 => {
                format!("must be of type {to}, not the text `{text}`")
            }
            other => format!("must be of type {to}, not {}", other.describe()),
        })
    })
}

/// The type that values of all `types` become; `None` if there is none.
pub(crate) fn unify(types: &[Type], safe: bool) -> Option<Type> {
    if types.is_empty() {
        return None;
    }
    let count = |is: fn(&Type) -> bool| types.iter().filter(|kind| is(kind)).count();
    let maps = count(|kind| matches!(kind, Type::Map(_)));
    let lists = count(|kind| matches!(kind, Type::List(_)));
    let sets = count(|kind| matches!(kind, Type::Set(_)));
    let objects = count(|kind| matches!(kind, Type::Object(_)));
    let tuples = count(|kind| matches!(kind, Type::Tuple(_)));
    let unknown = count(|kind| matches!(kind, Type::Any));
    let all = types.len();
    let is_all = |count: usize| count > 0 && count + unknown == all;
    if unknown > 0
        && (is_all(maps) || is_all(lists) || is_all(sets) || is_all(objects) || is_all(tuples))
    {
        return Some(Type::Any);
    }
    if is_all(maps) || is_all(lists) || is_all(sets) {
        return unify_collections(types, safe);
    }
    let is_mixed = (maps > 0 && maps + objects + unknown == all)
        || (lists > 0 && lists + tuples + unknown == all);
    if is_mixed {
        if let Some(found) = unify_written(types, safe) {
            return Some(found);
        }
    } else if is_all(objects) {
        return unify_objects(types, safe);
    } else if is_all(tuples) {
        return unify_tuples(types, safe);
    } else if objects > 0 && tuples > 0 {
        return None;
    }
    by_preference(types)
        .into_iter()
        .find(|wanted| {
            types
                .iter()
                .all(|kind| kind == *wanted || is_convertible(kind, wanted, safe))
        })
        .cloned()
}

/// The common type of lists, sets or maps, which must all be the same kind of collection.
fn unify_collections(types: &[Type], safe: bool) -> Option<Type> {
    let elements: Vec<Type> = types
        .iter()
        .filter_map(|kind| match kind {
            Type::List(of) | Type::Set(of) | Type::Map(of) => Some(of.as_ref().clone()),
            _ => None,
        })
        .collect();
    let of = unify(&elements, safe)?;
    let unified = match types.first()? {
        Type::List(_) => Type::list(of),
        Type::Set(_) => Type::set(of),
        _ => Type::map(of),
    };
    convertible(types, unified, safe)
}

/// Maps with objects, or lists with tuples: the latter become the former first.
fn unify_written(types: &[Type], safe: bool) -> Option<Type> {
    let is_written = |kind: &Type| matches!(kind, Type::Object(_) | Type::Tuple(_));
    let written: Vec<Type> = types
        .iter()
        .filter(|kind| is_written(kind))
        .cloned()
        .collect();
    let common = unify_to_collection(&written, safe)?;
    let types: Vec<Type> = types
        .iter()
        .map(|kind| {
            if is_written(kind) {
                common.clone()
            } else {
                kind.clone()
            }
        })
        .collect();
    let found = unify(&types, safe)?;
    matches!(found, Type::Map(_) | Type::List(_)).then_some(found)
}

fn unify_objects(types: &[Type], safe: bool) -> Option<Type> {
    let objects: Vec<&BTreeMap<String, Attribute>> = types
        .iter()
        .filter_map(|kind| match kind {
            Type::Object(of) => Some(of),
            _ => None,
        })
        .collect();
    let first = objects.first()?;
    if objects.iter().any(|object| !object.keys().eq(first.keys())) {
        return unify_to_collection(types, safe);
    }
    let mut unified = BTreeMap::new();
    for name in first.keys() {
        let across: Vec<Type> = objects
            .iter()
            .map(|object| object[name].kind.clone())
            .collect();
        let kind = unify(&across, safe)?;
        unified.insert(
            name.clone(),
            Attribute {
                kind,
                optional: false,
            },
        );
    }
    convertible(types, Type::Object(unified), safe).or_else(|| unify_to_collection(types, safe))
}

fn unify_tuples(types: &[Type], safe: bool) -> Option<Type> {
    let tuples: Vec<&Vec<Type>> = types
        .iter()
        .filter_map(|kind| match kind {
            Type::Tuple(of) => Some(of),
            _ => None,
        })
        .collect();
    let first = tuples.first()?;
    if tuples.iter().any(|tuple| tuple.len() != first.len()) {
        return unify_to_collection(types, safe);
    }
    let mut unified = Vec::new();
    for at in 0..first.len() {
        let across: Vec<Type> = tuples.iter().map(|tuple| tuple[at].clone()).collect();
        unified.push(unify(&across, safe)?);
    }
    convertible(types, Type::Tuple(unified), safe).or_else(|| unify_to_collection(types, safe))
}

/// Objects to a map, tuples to a list.
fn unify_to_collection(types: &[Type], safe: bool) -> Option<Type> {
    let mut elements = Vec::new();
    for kind in types {
        match kind {
            Type::Object(of) => elements.extend(of.values().map(|of| of.kind.clone())),
            Type::Tuple(of) => elements.extend(of.iter().cloned()),
            _ => {}
        }
    }
    let of = unify(&elements, safe)?;
    let unified = match types.first()? {
        Type::Object(_) => Type::map(of),
        _ => Type::list(of),
    };
    convertible(types, unified, safe)
}

fn convertible(types: &[Type], to: Type, safe: bool) -> Option<Type> {
    types
        .iter()
        .all(|kind| *kind == to || is_convertible(kind, &to, safe))
        .then_some(to)
}

/// `types` sorted from more general to less general.
fn by_preference(types: &[Type]) -> Vec<&Type> {
    let mut left: Vec<&Type> = types.iter().collect();
    let mut sorted = Vec::new();
    while !left.is_empty() {
        let at = left
            .iter()
            .position(|kind| !left.iter().any(|other| is_more_general(other, kind)))
            .unwrap_or(0);
        sorted.push(left.remove(at));
    }
    sorted
}

fn is_more_general(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Any, _) => false,
        (Type::List(a), Type::List(b))
        | (Type::Set(a), Type::Set(b))
        | (Type::Map(a), Type::Map(b)) => is_more_general(a, b),
        (_, Type::Any)
        | (Type::Text, Type::Bool | Type::Number)
        | (Type::Tuple(_) | Type::List(_), Type::Set(_))
        | (Type::List(_), Type::Tuple(_))
        | (Type::Map(_), Type::Object(_)) => true,
        (Type::Object(a), Type::Object(b)) if a.keys().eq(b.keys()) => {
            let pairs: Vec<(&Type, &Type)> = a
                .values()
                .zip(b.values())
                .map(|(a, b)| (&a.kind, &b.kind))
                .collect();
            is_more_general_in_parts(&pairs)
        }
        (Type::Tuple(a), Type::Tuple(b)) if a.len() == b.len() => {
            let pairs: Vec<(&Type, &Type)> = a.iter().zip(b).collect();
            is_more_general_in_parts(&pairs)
        }
        _ => false,
    }
}

fn is_more_general_in_parts(pairs: &[(&Type, &Type)]) -> bool {
    pairs.iter().any(|(a, b)| is_more_general(a, b))
        && !pairs.iter().any(|(a, b)| is_more_general(b, a))
}
