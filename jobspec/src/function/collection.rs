//! Lists and objects.

use std::collections::BTreeMap;

use muster_domain::saturating;

use super::call::{Args, CallFault, Function, Outcome, Param, argument, function, variadic, whole};
use crate::convert;
use crate::limits::{RANGE_MAX, WORK_BYTES_MAX};
use crate::number::Number;
use crate::value::{Type, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    function("chunklist", &[Param::List, Param::Number], chunklist),
    variadic("coalesce", &[], Param::Nullable, coalesce),
    variadic("coalescelist", &[], Param::Nullable, coalescelist),
    function("compact", &[Param::Texts], compact),
    variadic("concat", &[], Param::Any, concat),
    function("contains", &[Param::Any, Param::Nullable], |args| {
        let wanted = args.value(1);
        let is_in = args.items(0)?.iter().any(|item| wanted.equals(item));
        Ok(Value::Bool(is_in))
    }),
    function("distinct", &[Param::List], distinct),
    function("element", &[Param::Any, Param::Number], element),
    function("flatten", &[Param::Any], flatten),
    function("index", &[Param::Any, Param::Any], index),
    function("keys", &[Param::Any], keys),
    function("length", &[Param::Any], length),
    Function {
        optional: 1,
        ..function("lookup", &[Param::Any, Param::Text, Param::Any], lookup)
    },
    variadic("merge", &[], Param::Nullable, merge),
    variadic("range", &[], Param::Number, range),
    function("slice", &[Param::Any, Param::Number, Param::Number], slice),
    function("sort", &[Param::Texts], |args| {
        let mut texts = args.texts(0)?;
        texts.sort_unstable();
        Ok(Value::texts(texts.into_iter().map(str::to_owned)))
    }),
    function("sum", &[Param::List], super::number::sum),
    function("tobool", &[Param::Nullable], |args| {
        converted(args, &Type::Bool)
    }),
    function("tolist", &[Param::Nullable], |args| {
        converted(args, &Type::list(Type::Any))
    }),
    function("tomap", &[Param::Nullable], |args| {
        converted(args, &Type::map(Type::Any))
    }),
    function("tonumber", &[Param::Nullable], |args| {
        converted(args, &Type::Number)
    }),
    function("toset", &[Param::Nullable], |args| {
        converted(args, &Type::set(Type::Any))
    }),
    function("tostring", &[Param::Nullable], |args| {
        converted(args, &Type::Text)
    }),
    function("values", &[Param::Any], values),
    function("zipmap", &[Param::Texts, Param::Any], zipmap),
];

fn converted(args: &Args<'_>, kind: &Type) -> Outcome {
    convert::convert(args.value(0).clone(), kind)
        .map_err(|fault| argument(0, format!("it{} {}", fault.path, fault.message)))
}

/// The list in the first argument, which is a parameter of type list: its element type and its items.
fn list<'a>(args: &'a Args<'_>) -> Result<(&'a Type, &'a [Value]), CallFault> {
    match args.value(0) {
        Value::List(kind, items) => Ok((kind, items)),
        _ => Err(args.wrong(0, "a list")),
    }
}

/// Items as a value of the same kind of list as `like`, with elements of the same type.
fn list_like(like: &Value, items: Vec<Value>) -> Value {
    match like {
        Value::List(kind, _) | Value::Set(kind, _) => Value::List(kind.clone(), items),
        _ => Value::Tuple(items),
    }
}

fn chunklist(args: &Args<'_>) -> Outcome {
    let ((kind, items), size) = (list(args)?, args.count(1)?);
    let size = if size == 0 { items.len().max(1) } else { size };
    let chunks = items
        .chunks(size)
        .map(|chunk| Value::List(kind.clone(), chunk.to_vec()));
    Ok(Value::List(Type::list(kind.clone()), chunks.collect()))
}

fn coalesce(args: &Args<'_>) -> Outcome {
    let kinds: Vec<Type> = args.values.iter().map(Value::kind).collect();
    let kind = convert::unify(&kinds, false)
        .ok_or_else(|| whole("the arguments have no type in common"))?;
    let found = args.values.iter().find(|value| !value.is_null());
    let found = found.ok_or_else(|| whole("all arguments are null"))?;
    convert::convert(found.clone(), &kind).map_err(|fault| whole(fault.message))
}

fn coalescelist(args: &Args<'_>) -> Outcome {
    for at in 0..args.len() {
        let is_list = matches!(
            args.value(at),
            Value::List(..) | Value::Tuple(_) | Value::Null(Type::List(_) | Type::Tuple(_))
        );
        if !is_list {
            return Err(args.wrong(at, "a list"));
        }
    }
    let mut lists = args.values.iter();
    let found = lists.find(|list| list.items().is_some_and(|items| !items.is_empty()));
    found.cloned().ok_or_else(|| whole("all lists are empty"))
}

fn compact(args: &Args<'_>) -> Outcome {
    let texts = args.items(0)?.iter().filter_map(|item| match item {
        Value::Text(text) if !text.is_empty() => Some(text.clone()),
        _ => None,
    });
    Ok(Value::texts(texts))
}

fn concat(args: &Args<'_>) -> Outcome {
    if args.len() == 0 {
        return Err(whole("takes at least 1 argument"));
    }
    let mut all = Vec::new();
    for at in 0..args.len() {
        if !matches!(args.value(at), Value::List(..) | Value::Tuple(_)) {
            return Err(args.wrong(at, "a list"));
        }
        all.extend_from_slice(args.items(at)?);
    }
    let kinds: Vec<Type> = args.values.iter().map(Value::kind).collect();
    let is_all_lists = kinds.iter().all(|kind| matches!(kind, Type::List(_)));
    if is_all_lists && let Some(Type::List(kind)) = convert::unify(&kinds, false) {
        let items = all.into_iter().map(|item| convert::convert(item, &kind));
        let items = items.collect::<Result<_, _>>();
        return Ok(Value::List(
            *kind,
            items.map_err(|fault| whole(fault.message))?,
        ));
    }
    Ok(Value::Tuple(all))
}

fn distinct(args: &Args<'_>) -> Outcome {
    let (kind, items) = list(args)?;
    let weight: usize = items.len().saturating_mul(items.len());
    if weight > WORK_BYTES_MAX {
        return Err(argument(0, "the list is too long"));
    }
    let mut kept: Vec<Value> = Vec::new();
    for item in items {
        if !kept.iter().any(|known| known.equals(item)) {
            kept.push(item.clone());
        }
    }
    Ok(Value::List(kind.clone(), kept))
}

/// The element at a position; a position behind the end begins again.
fn element(args: &Args<'_>) -> Outcome {
    if matches!(args.value(0), Value::Set(..)) {
        return Err(args.wrong(0, "a list"));
    }
    let items = args.items(0)?;
    let count = saturating::to_i64(items.len());
    if count == 0 {
        return Err(argument(0, "the list is empty"));
    }
    let at = usize::try_from(args.whole(1)?.rem_euclid(count)).unwrap_or(0);
    Ok(items[at].clone())
}

fn flatten(args: &Args<'_>) -> Outcome {
    fn add(items: &[Value], flat: &mut Vec<Value>) {
        for item in items {
            match item.items() {
                Some(inner) => add(inner, flat),
                None => flat.push(item.clone()),
            }
        }
    }
    let mut flat = Vec::new();
    add(args.items(0)?, &mut flat);
    Ok(Value::Tuple(flat))
}

fn index(args: &Args<'_>) -> Outcome {
    let none = || argument(1, "the element does not exist");
    match (args.value(0), args.value(1)) {
        (Value::Tuple(items) | Value::List(_, items), Value::Number(_)) => {
            let at = args.whole(1)?;
            let at = usize::try_from(at).ok();
            at.and_then(|at| items.get(at)).cloned().ok_or_else(none)
        }
        (Value::Map(_, entries), Value::Text(name)) => entries.get(name).cloned().ok_or_else(none),
        (Value::Tuple(_) | Value::List(..), _) => Err(args.wrong(1, "a number")),
        (Value::Map(..), _) => Err(args.wrong(1, "a text")),
        (_, _) => Err(args.wrong(0, "a list or a map")),
    }
}

fn keys(args: &Args<'_>) -> Outcome {
    let names = args.entries(0)?.keys().cloned();
    Ok(match args.value(0) {
        Value::Map(..) => Value::texts(names),
        _ => Value::Tuple(names.map(Value::text).collect()),
    })
}

fn length(args: &Args<'_>) -> Outcome {
    let value = args.value(0);
    match (value.items(), value) {
        (Some(items), _) => Ok(Value::count(items.len())),
        (None, Value::Map(_, entries)) => Ok(Value::count(entries.len())),
        (None, _) => Err(args.wrong(0, "a list, a set or a map (strlen counts characters)")),
    }
}

fn lookup(args: &Args<'_>) -> Outcome {
    let (entries, name) = (args.entries(0)?, args.text(1)?);
    let default = (args.len() == 3).then(|| args.value(2).clone());
    let default = match (args.value(0), default) {
        (Value::Map(kind, _), Some(default)) => {
            Some(convert::convert(default, kind).map_err(|fault| argument(2, fault.message))?)
        }
        (_, default) => default,
    };
    entries
        .get(name)
        .cloned()
        .or(default)
        .ok_or_else(|| argument(1, format!("unknown key `{name}`, and no default")))
}

fn merge(args: &Args<'_>) -> Outcome {
    let mut merged = BTreeMap::new();
    for (at, value) in args.values.iter().enumerate() {
        match value {
            Value::Null(Type::Any | Type::Map(_) | Type::Object(_)) => {}
            _ => merged.extend(args.entries(at)?.clone()),
        }
    }
    // Arguments of one type make a collection of that type, others an object.
    let mut kinds = args.values.iter().map(Value::kind);
    let first = kinds.next();
    Ok(match first {
        Some(Type::Map(kind)) if kinds.all(|other| other == Type::map(*kind.clone())) => {
            Value::Map(*kind, merged)
        }
        _ => Value::Object(merged),
    })
}

fn range(args: &Args<'_>) -> Outcome {
    let zero = Number::integer(0);
    let (start, end) = match args.len() {
        1 => (&zero, args.number(0)?),
        2 | 3 => (args.number(0)?, args.number(1)?),
        count => return Err(whole(format!("takes 1 to 3 arguments, not {count}"))),
    };
    let step = match args.len() {
        3 => args.number(2)?.clone(),
        _ if end.order(start).is_lt() => Number::integer(-1),
        _ => Number::integer(1),
    };
    if step.is_zero() && start.order(end).is_ne() {
        return Err(argument(2, "the step must not be 0"));
    }
    let is_down = step.is_negative();
    let order = end.order(start);
    if (is_down && order.is_gt()) || (!is_down && order.is_lt()) {
        return Err(argument(2, "the step leads away from the end"));
    }
    let mut numbers = Vec::new();
    let mut next = start.clone();
    loop {
        let order = next.order(end);
        if (is_down && order.is_le()) || (!is_down && order.is_ge()) {
            return Ok(Value::List(Type::Number, numbers));
        }
        if numbers.len() == RANGE_MAX {
            return Err(whole(format!("makes more than {RANGE_MAX} numbers")));
        }
        numbers.push(Value::Number(next.clone()));
        next = next
            .plus(&step)
            .ok_or_else(|| whole("a number is out of range"))?;
    }
}

fn slice(args: &Args<'_>) -> Outcome {
    if matches!(args.value(0), Value::Set(..)) {
        return Err(args.wrong(0, "a list"));
    }
    let (items, start, end) = (args.items(0)?, args.count(1)?, args.count(2)?);
    let Some(part) = items.get(start..end) else {
        let message = format!("{start} to {end} is not a part of {} elements", items.len());
        return Err(argument(1, message));
    };
    Ok(list_like(args.value(0), part.to_vec()))
}

/// The items in reverse order.
pub(super) fn reversed(args: &Args<'_>) -> Outcome {
    let items = args.items(0)?.iter().rev().cloned().collect();
    Ok(list_like(args.value(0), items))
}

fn values(args: &Args<'_>) -> Outcome {
    let values: Vec<Value> = args.entries(0)?.values().cloned().collect();
    Ok(match args.value(0) {
        Value::Map(kind, _) => Value::List(kind.clone(), values),
        _ => Value::Tuple(values),
    })
}

fn zipmap(args: &Args<'_>) -> Outcome {
    let (names, values) = (args.texts(0)?, args.value(1));
    let (Value::List(_, items) | Value::Tuple(items)) = values else {
        return Err(args.wrong(1, "a list"));
    };
    if names.len() != items.len() {
        let message = format!("{} keys and {} values", names.len(), items.len());
        return Err(whole(message));
    }
    let names = names.into_iter().map(str::to_owned);
    let entries = names.zip(items.iter().cloned()).collect();
    Ok(match values {
        Value::List(kind, _) => Value::Map(kind.clone(), entries),
        _ => Value::Object(entries),
    })
}
