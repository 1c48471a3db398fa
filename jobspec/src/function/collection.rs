//! Lists and objects.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{Args, CallFault, Function, Outcome, argument, function, whole};
use crate::convert;
use crate::kind::{VarKind, once_each};
use crate::limits::{RANGE_MAX, WORK_BYTES_MAX};
use crate::number;

const ANY: usize = usize::MAX;

pub(super) const FUNCTIONS: &[Function] = &[
    function("chunklist", 2, 2, chunklist),
    function("coalesce", 1, ANY, coalesce),
    function("coalescelist", 1, ANY, coalescelist),
    function("compact", 1, 1, compact),
    function("concat", 1, ANY, concat),
    function("contains", 2, 2, |args| {
        Ok(Value::Bool(args.list(0)?.contains(args.value(1))))
    }),
    function("distinct", 1, 1, distinct),
    function("element", 2, 2, element),
    function("flatten", 1, 1, flatten),
    function("index", 2, 2, index),
    function("keys", 1, 1, keys),
    function("length", 1, 1, length),
    function("lookup", 2, 3, lookup),
    function("merge", 0, ANY, merge),
    function("range", 1, 3, range),
    function("reverse", 1, 1, reverse),
    function("setintersection", 1, ANY, |args| sets(args, |a, b| &a & &b)),
    function("setproduct", 2, ANY, setproduct),
    function("setsubtract", 2, 2, |args| sets(args, |a, b| &a - &b)),
    function("setunion", 1, ANY, |args| sets(args, |a, b| &a | &b)),
    function("slice", 3, 3, slice),
    function("sort", 1, 1, sort),
    function("sum", 1, 1, sum),
    function("tobool", 1, 1, |args| converted(args, &VarKind::Bool)),
    function("tolist", 1, 1, |args| listed(args, false)),
    function("tomap", 1, 1, |args| {
        Ok(Value::Object(args.object(0)?.clone()))
    }),
    function("tonumber", 1, 1, |args| converted(args, &VarKind::Number)),
    function("toset", 1, 1, |args| listed(args, true)),
    function("tostring", 1, 1, |args| converted(args, &VarKind::Text)),
    function("values", 1, 1, values),
    function("zipmap", 2, 2, zipmap),
];

fn chunklist(args: &Args<'_>) -> Outcome {
    let (list, size) = (args.list(0)?, args.count(1)?);
    let size = if size == 0 { list.len().max(1) } else { size };
    let chunks = list.chunks(size).map(|chunk| Value::Array(chunk.to_vec()));
    Ok(Value::Array(chunks.collect()))
}

fn coalesce(args: &Args<'_>) -> Outcome {
    let found = args.values.iter().find(|value| !value.is_null());
    found
        .cloned()
        .ok_or_else(|| whole("all arguments are null"))
}

fn coalescelist(args: &Args<'_>) -> Outcome {
    for at in 0..args.len() {
        let list = args.list(at)?;
        if !list.is_empty() {
            return Ok(Value::Array(list.to_vec()));
        }
    }
    Err(whole("all lists are empty"))
}

fn compact(args: &Args<'_>) -> Outcome {
    let items = args.list(0)?.iter();
    let kept = items.filter(|item| !item.is_null() && item.as_str() != Some(""));
    Ok(Value::Array(kept.cloned().collect()))
}

fn concat(args: &Args<'_>) -> Outcome {
    let mut all = Vec::new();
    for at in 0..args.len() {
        all.extend_from_slice(args.list(at)?);
    }
    Ok(Value::Array(all))
}

fn distinct(args: &Args<'_>) -> Outcome {
    let mut seen = BTreeSet::new();
    let items = args.list(0)?.iter();
    let kept = items.filter(|item| seen.insert(item.to_string()));
    Ok(Value::Array(kept.cloned().collect()))
}

/// The element at a position; a position behind the end begins again.
fn element(args: &Args<'_>) -> Outcome {
    let list = args.list(0)?;
    let count = i64::try_from(list.len()).unwrap_or(i64::MAX);
    if count == 0 {
        return Err(argument(0, "the list is empty"));
    }
    let at = usize::try_from(args.whole(1)?.rem_euclid(count)).unwrap_or(0);
    Ok(list[at].clone())
}

fn flatten(args: &Args<'_>) -> Outcome {
    fn add(items: &[Value], flat: &mut Vec<Value>) {
        for item in items {
            match item {
                Value::Array(inner) => add(inner, flat),
                other => flat.push(other.clone()),
            }
        }
    }
    let mut flat = Vec::new();
    add(args.list(0)?, &mut flat);
    Ok(Value::Array(flat))
}

fn index(args: &Args<'_>) -> Outcome {
    let mut items = args.list(0)?.iter();
    let at = items.position(|item| item == args.value(1));
    at.map(Value::from)
        .ok_or_else(|| argument(1, "the list does not hold it"))
}

fn keys(args: &Args<'_>) -> Outcome {
    let names = args.object(0)?.keys();
    Ok(Value::Array(names.cloned().map(Value::String).collect()))
}

fn length(args: &Args<'_>) -> Outcome {
    match args.value(0) {
        Value::Array(items) => Ok(Value::from(items.len())),
        Value::Object(entries) => Ok(Value::from(entries.len())),
        Value::String(text) => Ok(Value::from(text.chars().count())),
        Value::Null | Value::Bool(_) | Value::Number(_) => {
            Err(args.wrong(0, "a list, an object or a text"))
        }
    }
}

fn lookup(args: &Args<'_>) -> Outcome {
    let (entries, name) = (args.object(0)?, args.text(1)?);
    match entries.get(&name) {
        Some(value) => Ok(value.clone()),
        None if args.len() == 3 => Ok(args.value(2).clone()),
        None => Err(argument(1, format!("there is no `{name}`, and no default"))),
    }
}

fn merge(args: &Args<'_>) -> Outcome {
    let mut merged = Map::new();
    for at in 0..args.len() {
        if !args.value(at).is_null() {
            merged.extend(args.object(at)?.clone());
        }
    }
    Ok(Value::Object(merged))
}

fn range(args: &Args<'_>) -> Outcome {
    let (start, end) = match args.len() {
        1 => (0.0, args.real(0)?),
        _ => (args.real(0)?, args.real(1)?),
    };
    let step = match args.len() {
        3 => args.real(2)?,
        _ if end < start => -1.0,
        _ => 1.0,
    };
    if step == 0.0 {
        return Err(argument(2, "the step must not be 0"));
    }
    let mut numbers = Vec::new();
    let mut next = start;
    while (step > 0.0 && next < end) || (step < 0.0 && next > end) {
        if numbers.len() == RANGE_MAX {
            return Err(whole(format!("makes more than {RANGE_MAX} numbers")));
        }
        numbers.extend(number::value(next));
        next += step;
    }
    Ok(Value::Array(numbers))
}

fn reverse(args: &Args<'_>) -> Outcome {
    Ok(Value::Array(args.list(0)?.iter().rev().cloned().collect()))
}

/// All lists as sets, combined from the left.
fn sets(
    args: &Args<'_>,
    combine: fn(BTreeSet<String>, BTreeSet<String>) -> BTreeSet<String>,
) -> Outcome {
    let set = |at: usize| -> Result<BTreeSet<String>, CallFault> {
        Ok(args.list(at)?.iter().map(Value::to_string).collect())
    };
    let mut combined = set(0)?;
    for at in 1..args.len() {
        combined = combine(combined, set(at)?);
    }
    let items = combined
        .iter()
        .filter_map(|text| serde_json::from_str(text).ok());
    Ok(once_each(Value::Array(items.collect())))
}

fn setproduct(args: &Args<'_>) -> Outcome {
    let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
    for at in 0..args.len() {
        let list = args.list(at)?;
        let weight: usize = list.iter().map(convert::weight).sum();
        let before: usize = rows.iter().flatten().map(convert::weight).sum();
        let more = weight
            .saturating_mul(rows.len())
            .saturating_add(before.saturating_mul(list.len()));
        if more > WORK_BYTES_MAX {
            return Err(whole("the result is too large"));
        }
        rows = rows
            .iter()
            .flat_map(|row| {
                list.iter().map(|item| {
                    let mut row = row.clone();
                    row.push(item.clone());
                    row
                })
            })
            .collect();
    }
    Ok(Value::Array(rows.into_iter().map(Value::Array).collect()))
}

fn slice(args: &Args<'_>) -> Outcome {
    let (list, start, end) = (args.list(0)?, args.count(1)?, args.count(2)?);
    let Some(part) = list.get(start..end) else {
        let message = format!("{start} to {end} is no part of {} elements", list.len());
        return Err(argument(1, message));
    };
    Ok(Value::Array(part.to_vec()))
}

fn sort(args: &Args<'_>) -> Outcome {
    let mut texts = args.texts(0)?;
    texts.sort();
    Ok(Value::Array(texts.into_iter().map(Value::String).collect()))
}

fn sum(args: &Args<'_>) -> Outcome {
    let numbers: Option<Vec<f64>> = args
        .list(0)?
        .iter()
        .map(|item| convert::number(item)?.as_f64())
        .collect();
    let numbers = numbers.ok_or_else(|| args.wrong(0, "a list of numbers"))?;
    number::value(numbers.iter().sum()).ok_or_else(|| whole("the result is out of range"))
}

fn converted(args: &Args<'_>, kind: &VarKind) -> Outcome {
    let value = args.value(0).clone();
    kind.convert(value).map_err(|message| argument(0, message))
}

fn listed(args: &Args<'_>, once: bool) -> Outcome {
    let list = Value::Array(args.list(0)?.to_vec());
    Ok(if once { once_each(list) } else { list })
}

fn values(args: &Args<'_>) -> Outcome {
    Ok(Value::Array(args.object(0)?.values().cloned().collect()))
}

fn zipmap(args: &Args<'_>) -> Outcome {
    let (names, values) = (args.texts(0)?, args.list(1)?);
    if names.len() != values.len() {
        let message = format!("{} keys and {} values", names.len(), values.len());
        return Err(whole(message));
    }
    let entries = names.into_iter().zip(values.iter().cloned());
    Ok(Value::Object(entries.collect()))
}
