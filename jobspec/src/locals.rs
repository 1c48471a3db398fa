//! The `locals` blocks of a job file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::eval::Evaluator;
use crate::fault::JobFileFault;
use crate::limits::{LOCALS_MAX, VALUE_DEPTH_MAX};
use crate::scope::Scope;
use crate::syntax::{Block, ExprKind, Expression, Step};
use crate::value::Value;

/// A local that has no value yet.
#[derive(Debug)]
struct Local<'a> {
    place: Range<usize>,
    expression: &'a Expression,
    /// The locals that the expression references.
    needs: BTreeSet<String>,
}

/// The names of a file: `variables`, and all locals in `blocks`. A local is evaluated after the locals that it needs.
pub(crate) fn read(
    blocks: &[&Block],
    variables: BTreeMap<String, Value>,
    evaluator: &Evaluator,
    faults: &mut Vec<JobFileFault>,
) -> Scope {
    let mut left = collect(blocks, faults);
    let mut scope = Scope::of_file(variables, BTreeMap::new());
    let mut broken = BTreeSet::new();
    loop {
        let ready: Vec<String> = left
            .iter()
            .filter(|(_, local)| !local.needs.iter().any(|needed| left.contains_key(needed)))
            .map(|(name, _)| name.clone())
            .collect();
        if ready.is_empty() {
            break;
        }
        let mut found = Vec::new();
        for name in ready {
            let Some(local) = left.remove(&name) else {
                continue;
            };
            if !local.needs.is_disjoint(&broken) {
                // The fault in the local that it needs has been reported.
                broken.insert(name);
                continue;
            }
            match value(&name, &local, &scope, evaluator) {
                Ok(value) => found.push((name, value)),
                Err(fault) => {
                    faults.push(fault);
                    broken.insert(name);
                }
            }
        }
        scope = scope.with_locals(found);
    }
    faults.extend(dependency_cycle_fault(&left));
    scope
}

fn collect<'a>(
    blocks: &[&'a Block],
    faults: &mut Vec<JobFileFault>,
) -> BTreeMap<String, Local<'a>> {
    let mut locals = BTreeMap::new();
    for block in blocks {
        for inner in block.body.blocks() {
            let message = "`locals` holds names with values, not blocks";
            faults.push(JobFileFault::at(super::dynamic::place(inner), message));
        }
        for attribute in block.body.attributes() {
            let name = attribute.key.as_str().to_owned();
            let place = attribute.key.span.clone();
            if locals.len() == LOCALS_MAX {
                let message = format!("more than {LOCALS_MAX} locals");
                faults.push(JobFileFault::at(place, message));
                return locals;
            }
            if locals.contains_key(&name) {
                let message = format!("a second local `{name}`");
                faults.push(JobFileFault::at(place, message));
                continue;
            }
            let local = Local {
                place,
                expression: &attribute.value,
                needs: referenced_locals(&attribute.value),
            };
            locals.insert(name, local);
        }
    }
    locals
}

fn value(
    name: &str,
    local: &Local<'_>,
    scope: &Scope,
    evaluator: &Evaluator,
) -> Result<Value, JobFileFault> {
    let value = evaluator
        .eval(local.expression, scope)
        .map_err(|fault| fault.about(&format!("local.{name}")))?;
    if value.depth() > VALUE_DEPTH_MAX {
        let message = format!("`local.{name}` is nested deeper than {VALUE_DEPTH_MAX}");
        return Err(JobFileFault::at(local.place.clone(), message));
    }
    Ok(value)
}

/// A fault for locals that depend on each other, at the first of them.
fn dependency_cycle_fault(left: &BTreeMap<String, Local<'_>>) -> Option<JobFileFault> {
    let mut way: Vec<&str> = vec![left.keys().next()?];
    loop {
        let here = &left[*way.last()?];
        let next = here.needs.iter().find(|name| left.contains_key(*name))?;
        if let Some(start) = way.iter().position(|name| name == next) {
            let names: Vec<String> = way[start..]
                .iter()
                .chain([&next.as_str()])
                .map(|name| format!("local.{name}"))
                .collect();
            let place = left[way[start]].place.clone();
            let message = format!("locals that need each other: {}", names.join(" → "));
            return Some(JobFileFault::at(place, message));
        }
        way.push(next);
    }
}

/// The locals that an expression names.
fn referenced_locals(expression: &Expression) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    expression.walk(&mut |inner| {
        if let ExprKind::Reference(root, steps) = &inner.kind
            && root == "local"
        {
            let name = match steps.first() {
                Some(Step::Attribute(name)) => Some(name.as_str()),
                Some(Step::Index(index)) => index.literal_key(),
                Some(_) | None => None,
            };
            names.extend(name.map(str::to_owned));
        }
    });
    names
}
