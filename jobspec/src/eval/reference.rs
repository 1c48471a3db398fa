//! References to variables and locals, to names of an expression, and to values that only the agent has.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Evaluator, Outcome, span, wrong};
use crate::convert;
use crate::fault::{JobFileFault, nearest};
use crate::scope::Scope;
use crate::syntax::{ExprKind, Expression, Step};
use crate::value::{Type, Value};

/// First words of runtime references. The agent fills them in at the start of a task, or the scheduler at the
/// comparison of a constraint.
const RUNTIME_ROOTS: [&str; 5] = ["attr", "device", "env", "meta", "node"];
/// The prefix of all variables of the agent.
const RUNTIME_PREFIX: &str = "NOMAD_";
/// Common mistakes for `var` and `local`. As text, they would reach the task unnoticed.
const MISTAKEN_ROOTS: [(&str, &str); 6] = [
    ("local", "local"),
    ("locals", "local"),
    ("var", "var"),
    ("variable", "var"),
    ("variables", "var"),
    ("vars", "var"),
];

impl Evaluator {
    /// The value of the name `root`, or of a path in it.
    pub(super) fn reference(
        &self,
        expression: &Expression,
        root: &str,
        steps: &[Step],
        scope: &Scope,
    ) -> Outcome {
        let Some(value) = scope.find(root) else {
            if self.keeps_references && is_runtime(root) {
                return Ok(Value::text(as_written(root, steps)));
            }
            return Err(unknown_root(expression, root));
        };
        undeclared(root, value, steps)?;
        // The loop moves along the path, so only the last value is copied.
        let mut value = value;
        let mut rest = steps;
        while let [Step::Attribute(name), after @ ..] = rest {
            match value.entries().and_then(|entries| entries.get(&name.name)) {
                Some(inner) => value = inner,
                None => break,
            }
            rest = after;
        }
        self.follow(value.clone(), rest, scope)
    }

    /// The value at the end of a path into `value`.
    pub(super) fn follow(&self, value: Value, steps: &[Step], scope: &Scope) -> Outcome {
        let mut value = value;
        for step in steps {
            value = match step {
                Step::Attribute(name) => attribute(value, name.as_str(), name.span.clone())?,
                Step::Index(index) => {
                    let found = self.eval(index, scope)?;
                    indexed(value, &found, index)?
                }
                Step::AttributeSplat(each, place) | Step::FullSplat(each, place) => {
                    self.splat(value, each, place, scope)?
                }
            };
        }
        Ok(value)
    }

    /// The value at the end of a path into each element.
    fn splat(&self, value: Value, steps: &[Step], place: &Range<usize>, scope: &Scope) -> Outcome {
        let is_list = matches!(value, Value::List(..) | Value::Set(..));
        let element = match &value {
            Value::List(kind, _) | Value::Set(kind, _) => kind.clone(),
            _ => Type::Any,
        };
        let items = match value {
            Value::Null(Type::List(_) | Type::Set(_) | Type::Tuple(_)) => {
                let message = "a list that is null has no elements";
                return Err(JobFileFault::at(place.clone(), message));
            }
            Value::Null(_) => Vec::new(),
            Value::Tuple(items) | Value::List(_, items) | Value::Set(_, items) => items,
            one => vec![one],
        };
        let mut found = Vec::with_capacity(items.len());
        for item in items {
            let value = self.follow(item, steps, scope)?;
            self.charge(value.weight(), || place.clone())?;
            found.push(value);
        }
        if !is_list {
            return Ok(Value::Tuple(found));
        }
        let Some(kind) = found.first().map(Value::kind) else {
            let kind = kind_after(&element, steps).ok_or_else(|| {
                let message = format!("elements of type {element} do not have this path");
                JobFileFault::at(place.clone(), message)
            })?;
            return Ok(Value::List(kind, found));
        };
        if found.iter().any(|item| item.kind() != kind) {
            let message = "the elements differ in type: write a `for` expression";
            return Err(JobFileFault::at(place.clone(), message));
        }
        Ok(Value::List(kind, found))
    }
}

/// The type at the end of a path in a value of the type `kind`, if the type determines it. `None` if there is no such
/// path.
fn kind_after(kind: &Type, steps: &[Step]) -> Option<Type> {
    let mut kind = kind.clone();
    for step in steps {
        kind = match (step, kind) {
            (_, Type::Any)
            | (Step::Index(_), Type::Tuple(_) | Type::Object(_))
            | (Step::AttributeSplat(..) | Step::FullSplat(..), _) => Type::Any,
            (Step::Attribute(name), Type::Object(attributes)) => {
                attributes.get(name.as_str())?.kind.clone()
            }
            (Step::Attribute(_) | Step::Index(_), Type::Map(of))
            | (Step::Index(_), Type::List(of)) => *of,
            (Step::Attribute(_) | Step::Index(_), _) => return None,
        };
    }
    Some(kind)
}

/// Returns `${…}` as written if `expression` is a reference that the file does not resolve. The agent or a shell
/// resolves it.
///
/// # Errors
///
/// The reference looks like a variable or local of the file.
pub(super) fn reference_as_text(
    expression: &Expression,
    scope: &Scope,
) -> Result<Option<String>, JobFileFault> {
    let ExprKind::Reference(root, steps) = &expression.kind else {
        return Ok(None);
    };
    if scope.find(root).is_some() {
        return Ok(None);
    }
    if !steps.is_empty() && MISTAKEN_ROOTS.iter().any(|(name, _)| name == root) {
        return Err(unknown_root(expression, root));
    }
    Ok(Some(as_written(root, steps)))
}

fn is_runtime(root: &str) -> bool {
    root.starts_with(RUNTIME_PREFIX) || RUNTIME_ROOTS.contains(&root)
}

fn as_written(root: &str, steps: &[Step]) -> String {
    let mut text = format!("${{{root}");
    write_steps(&mut text, steps);
    text + "}"
}

fn write_steps(text: &mut String, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Attribute(name) => {
                text.push('.');
                text.push_str(name.as_str());
            }
            Step::Index(index) => {
                text.push('[');
                write_index(text, index);
                text.push(']');
            }
            Step::AttributeSplat(each, _) => {
                text.push_str(".*");
                write_steps(text, each);
            }
            Step::FullSplat(each, _) => {
                text.push_str("[*]");
                write_steps(text, each);
            }
        }
    }
}

/// Writes an index as text: a number, a text or a reference. An agent cannot fill in other indexes.
fn write_index(text: &mut String, index: &Expression) {
    match &index.kind {
        ExprKind::Number(number) => text.push_str(&number.text()),
        ExprKind::Text(key) => text.push_str(&crate::quote::quoted(key)),
        ExprKind::Reference(root, steps) => {
            text.push_str(root);
            write_steps(text, steps);
        }
        _ => text.push('…'),
    }
}

fn unknown_root(expression: &Expression, root: &str) -> JobFileFault {
    let fault = JobFileFault::at(span(expression), format!("unknown name `{root}`"));
    match MISTAKEN_ROOTS.iter().find(|(name, _)| *name == root) {
        Some((_, meant)) if *meant != root => fault.help(format!("did you mean `{meant}`?")),
        Some((_, _)) => fault.help("this file has no variables and no locals"),
        None => fault.help(
            "a text needs quotes; variables are var.name, locals local.name, and what the agent fills in starts with NOMAD_, attr, device, env, meta or node",
        ),
    }
}

/// Refuses a variable or local that the file does not have.
fn undeclared(root: &str, value: &Value, steps: &[Step]) -> Result<(), JobFileFault> {
    let what = match root {
        "var" => "variable",
        "local" => "local",
        _ => return Ok(()),
    };
    let (Some(Step::Attribute(name)), Some(entries)) = (steps.first(), value.entries()) else {
        return Ok(());
    };
    if entries.contains_key(name.as_str()) {
        return Ok(());
    }
    let message = format!("unknown {what} `{}`", name.as_str());
    let fault = JobFileFault::at(name.span.clone(), message);
    if entries.is_empty() {
        return Err(fault.help(match what {
            "variable" => "declare it: variable \"name\" { default = … }",
            _ => "declare it: locals { name = … }",
        }));
    }
    let known = entries.keys().map(String::as_str);
    Err(nearest(fault, name.as_str(), known))
}

fn attribute(value: Value, name: &str, place: Range<usize>) -> Outcome {
    match value {
        Value::Object(mut entries) | Value::Map(_, mut entries) => match entries.remove(name) {
            Some(value) => Ok(value),
            None => Err(missing(&entries, name, place)),
        },
        other => {
            let message = format!(
                "`.{name}` asks for a field, but this is {}",
                other.describe()
            );
            Err(JobFileFault::at(place, message))
        }
    }
}

fn missing(entries: &BTreeMap<String, Value>, name: &str, place: Range<usize>) -> JobFileFault {
    let known = entries.keys().map(String::as_str);
    nearest(
        JobFileFault::at(place, format!("unknown field `{name}`")),
        name,
        known,
    )
}

fn indexed(value: Value, index: &Value, expression: &Expression) -> Outcome {
    let place = span(expression);
    match value {
        Value::Object(_) | Value::Map(..) => match convert::text(index) {
            Some(name) => attribute(value, &name, place),
            None => Err(wrong(expression, "the index of an object is a text", index)),
        },
        Value::Tuple(mut items) | Value::List(_, mut items) => {
            let Some(number) = convert::number(index) else {
                return Err(wrong(expression, "the index of a list is a number", index));
            };
            let at = number.as_u64().and_then(|at| usize::try_from(at).ok());
            match at.filter(|at| *at < items.len()) {
                Some(at) => Ok(items.swap_remove(at)),
                None => {
                    let message = format!("the list has {} elements, counted from 0", items.len());
                    Err(JobFileFault::at(place, message))
                }
            }
        }
        other => {
            let message = format!("only a list has positions; this is {}", other.describe());
            Err(JobFileFault::at(place, message))
        }
    }
}
