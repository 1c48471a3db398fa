//! Sets.

use super::call::{Args, Function, Outcome, Param, argument, function, variadic, whole};
use crate::convert;
use crate::limits::WORK_BYTES_MAX;
use crate::value::{Type, Value};

pub(super) const FUNCTIONS: &[Function] = &[
    variadic("setintersection", &[Param::Set], Param::Set, |args| {
        combined(args, |all, other| {
            all.retain(|item| is_in(item, other));
        })
    }),
    variadic("setproduct", &[], Param::Any, setproduct),
    function("setsubtract", &[Param::Set, Param::Set], |args| {
        combined(args, |all, other| all.retain(|item| !is_in(item, other)))
    }),
    variadic("setunion", &[Param::Set], Param::Set, |args| {
        combined(args, Vec::extend_from_slice)
    }),
];

fn is_in(item: &Value, items: &[Value]) -> bool {
    items.iter().any(|other| other.equals(item))
}

/// All sets as sets of one type, combined from the left.
fn combined(args: &Args<'_>, combine: fn(&mut Vec<Value>, &[Value])) -> Outcome {
    let mut kinds = Vec::new();
    let mut work = 1_usize;
    for at in 0..args.len() {
        if let Value::Set(kind, items) = args.value(at) {
            work = work.saturating_mul(items.len().max(1));
            if !items.is_empty() || *kind != Type::Any {
                kinds.push(kind.clone());
            }
        }
    }
    if work > WORK_BYTES_MAX {
        return Err(whole("the sets are too large"));
    }
    let kind = if kinds.is_empty() {
        Type::Any
    } else {
        convert::unify(&kinds, false).ok_or_else(|| whole("the sets have no type in common"))?
    };
    let set = |at: usize| {
        convert::convert(args.value(at).clone(), &Type::set(kind.clone()))
            .map_err(|fault| argument(at, fault.message))
    };
    let mut all = set(0)?.items().unwrap_or_default().to_vec();
    for at in 1..args.len() {
        combine(&mut all, set(at)?.items().unwrap_or_default());
    }
    Ok(Value::set(kind, all))
}

/// All combinations of an element of each list.
fn setproduct(args: &Args<'_>) -> Outcome {
    if args.len() < 2 {
        return Err(whole("takes at least 2 arguments"));
    }
    let mut kinds = Vec::new();
    let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
    let mut is_set = false;
    for at in 0..args.len() {
        let value = args.value(at);
        let kind = match value {
            Value::Set(kind, _) => {
                is_set = true;
                kind.clone()
            }
            Value::List(kind, _) => kind.clone(),
            Value::Tuple(items) if items.is_empty() => Type::Any,
            Value::Tuple(items) => {
                let kinds: Vec<Type> = items.iter().map(Value::kind).collect();
                convert::unify(&kinds, false)
                    .ok_or_else(|| argument(at, "the elements have no type in common"))?
            }
            _ => return Err(args.wrong(at, "a list or a set")),
        };
        let items: Result<Vec<Value>, _> = args
            .items(at)?
            .iter()
            .map(|item| convert::convert(item.clone(), &kind))
            .collect();
        let items = items.map_err(|fault| argument(at, fault.message))?;
        if items
            .iter()
            .any(|item| kind == Type::Any && !item.is_null())
        {
            return Err(argument(at, "the elements have no type in common"));
        }
        kinds.push(kind);
        let weight: usize = items.iter().map(Value::weight).sum();
        let before: usize = rows.iter().flatten().map(Value::weight).sum();
        let more = weight
            .saturating_mul(rows.len())
            .saturating_add(before.saturating_mul(items.len()));
        if more > WORK_BYTES_MAX {
            return Err(whole("the result is too large"));
        }
        rows = rows
            .iter()
            .flat_map(|row| {
                items.iter().map(|item| {
                    let mut row = row.clone();
                    row.push(item.clone());
                    row
                })
            })
            .collect();
    }
    let rows: Vec<Value> = rows.into_iter().map(Value::Tuple).collect();
    let kind = Type::Tuple(kinds);
    Ok(if is_set {
        Value::set(kind, rows)
    } else {
        Value::List(kind, rows)
    })
}
