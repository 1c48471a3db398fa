//! References: to variables, locals and what is around, and to what only the agent knows.

use std::borrow::Cow;
use std::ops::Range;

use hcl_edit::expr::{Expression, TraversalOperator};
use hcl_edit::{Decorated, Span as _};
use serde_json::{Map, Value};

use super::{Evaluator, Outcome, span, wrong};
use crate::convert::describe;
use crate::fault::{JobFileFault, nearest};
use crate::scope::Scope;

/// First words of references that the agent fills in when it starts the task, or the scheduler when
/// it compares a constraint.
const RUNTIME_ROOTS: [&str; 5] = ["attr", "device", "env", "meta", "node"];
/// What all of the agent's own variables begin with.
const RUNTIME_PREFIX: &str = "NOMAD_";
/// What people write for `var` and `local`. Left as text it would reach the task unnoticed.
const MISTAKEN_ROOTS: [(&str, &str); 6] = [
    ("local", "local"),
    ("locals", "local"),
    ("var", "var"),
    ("variable", "var"),
    ("variables", "var"),
    ("vars", "var"),
];

type Operators = [Decorated<TraversalOperator>];

impl Evaluator {
    /// The value of a variable, with or without a path into it.
    pub(super) fn reference(&self, expression: &Expression, scope: &Scope) -> Outcome {
        let Some(root) = root(expression) else {
            // A path into something that was computed, such as `merge(a, b).x`.
            let Expression::Traversal(traversal) = expression else {
                return Err(JobFileFault::at(span(expression), "is no reference"));
            };
            let value = self.eval(&traversal.expr, scope)?;
            return self.follow(Cow::Owned(value), &traversal.operators, scope);
        };
        let Some(value) = scope.find(root) else {
            if is_runtime(root) {
                return Ok(Value::String(as_written(expression)));
            }
            return Err(unknown_root(expression, root));
        };
        match expression {
            Expression::Traversal(traversal) => {
                undeclared(root, value, &traversal.operators)?;
                self.follow(Cow::Borrowed(value), &traversal.operators, scope)
            }
            _ => Ok(value.clone()),
        }
    }

    fn follow(&self, value: Cow<'_, Value>, operators: &Operators, scope: &Scope) -> Outcome {
        let mut value = value;
        let mut rest = operators;
        while let [operator, after @ ..] = rest {
            rest = after;
            let place = || operator.span().unwrap_or_default();
            value = match operator.value() {
                TraversalOperator::GetAttr(name) => {
                    attribute(value, name.as_str(), || name.span().unwrap_or_else(place))?
                }
                TraversalOperator::LegacyIndex(at) => {
                    element(value, usize::try_from(*at.value()).ok(), place)?
                }
                TraversalOperator::Index(index) => {
                    let index_value = self.eval(index, scope)?;
                    indexed(value, &index_value, index)?
                }
                TraversalOperator::AttrSplat(_) => {
                    let names = rest
                        .iter()
                        .take_while(|next| matches!(next.value(), TraversalOperator::GetAttr(_)));
                    let (each, after) = rest.split_at(names.count());
                    rest = after;
                    Cow::Owned(self.splat(value, each, scope)?)
                }
                TraversalOperator::FullSplat(_) => {
                    let each = std::mem::take(&mut rest);
                    Cow::Owned(self.splat(value, each, scope)?)
                }
            };
        }
        Ok(value.into_owned())
    }

    fn splat(&self, value: Cow<'_, Value>, operators: &Operators, scope: &Scope) -> Outcome {
        let items = match value.into_owned() {
            Value::Null => Vec::new(),
            Value::Array(items) => items,
            one => vec![one],
        };
        items
            .into_iter()
            .map(|item| self.follow(Cow::Owned(item), operators, scope))
            .collect::<Result<_, _>>()
            .map(Value::Array)
    }
}

/// `${…}` as it stands, if `expression` is a reference that nothing here resolves: the agent fills
/// it in, or a shell does.
///
/// # Errors
///
/// It looks like a variable or local of the file.
pub(super) fn left_as_text(
    expression: &Expression,
    scope: &Scope,
) -> Result<Option<String>, JobFileFault> {
    let Some(root) = root(expression).filter(|root| scope.find(root).is_none()) else {
        return Ok(None);
    };
    let is_path = matches!(expression, Expression::Traversal(_));
    if is_path && MISTAKEN_ROOTS.iter().any(|(name, _)| *name == root) {
        return Err(unknown_root(expression, root));
    }
    Ok(Some(as_written(expression)))
}

/// The first word of a reference.
pub(super) fn root(expression: &Expression) -> Option<&str> {
    match expression {
        Expression::Variable(name) => Some(name.as_str()),
        Expression::Traversal(traversal) => match &traversal.expr {
            Expression::Variable(name) => Some(name.as_str()),
            _ => None,
        },
        _ => None,
    }
}

fn is_runtime(root: &str) -> bool {
    root.starts_with(RUNTIME_PREFIX) || RUNTIME_ROOTS.contains(&root)
}

fn as_written(expression: &Expression) -> String {
    format!("${{{}}}", expression.to_string().trim())
}

fn unknown_root(expression: &Expression, root: &str) -> JobFileFault {
    let fault = JobFileFault::at(
        span(expression),
        format!("there is nothing called `{root}`"),
    );
    match MISTAKEN_ROOTS.iter().find(|(name, _)| *name == root) {
        Some((_, meant)) if *meant != root => fault.help(format!("did you mean `{meant}`?")),
        Some((_, _)) => fault.help("this file has no variables and no locals"),
        None => fault.help(
            "a text needs quotes; variables are var.name, locals local.name, and what the agent fills in starts with NOMAD_, attr, device, env, meta or node",
        ),
    }
}

/// Refuses a variable or local that the file does not have.
fn undeclared(root: &str, value: &Value, operators: &Operators) -> Result<(), JobFileFault> {
    let what = match root {
        "var" => "variable",
        "local" => "local",
        _ => return Ok(()),
    };
    let Some(TraversalOperator::GetAttr(name)) = operators.first().map(Decorated::value) else {
        return Ok(());
    };
    match value {
        Value::Object(entries) if !entries.contains_key(name.as_str()) => {
            let message = format!("there is no {what} `{}`", name.as_str());
            let fault = JobFileFault::at(name.span().unwrap_or_default(), message);
            if entries.is_empty() {
                return Err(fault.help(match what {
                    "variable" => "declare it: variable \"name\" { default = … }",
                    _ => "declare it: locals { name = … }",
                }));
            }
            let known = entries.keys().map(String::as_str);
            Err(nearest(fault, name.as_str(), known))
        }
        _ => Ok(()),
    }
}

fn attribute<'a>(
    value: Cow<'a, Value>,
    name: &str,
    place: impl FnOnce() -> Range<usize>,
) -> Result<Cow<'a, Value>, JobFileFault> {
    let found = match value {
        Cow::Borrowed(Value::Object(entries)) => match entries.get(name) {
            Some(value) => return Ok(Cow::Borrowed(value)),
            None => return Err(missing(entries, name, place())),
        },
        Cow::Owned(Value::Object(mut entries)) => match entries.remove(name) {
            Some(value) => return Ok(Cow::Owned(value)),
            None => return Err(missing(&entries, name, place())),
        },
        other => other,
    };
    let message = format!(
        "`.{name}` asks for a field, but this is {}",
        describe(&found)
    );
    Err(JobFileFault::at(place(), message))
}

fn missing(entries: &Map<String, Value>, name: &str, place: Range<usize>) -> JobFileFault {
    let known = entries.keys().map(String::as_str);
    nearest(
        JobFileFault::at(place, format!("there is no `{name}` here")),
        name,
        known,
    )
}

fn element(
    value: Cow<'_, Value>,
    at: Option<usize>,
    place: impl FnOnce() -> Range<usize>,
) -> Result<Cow<'_, Value>, JobFileFault> {
    let Value::Array(items) = value.as_ref() else {
        let message = format!("only a list has positions; this is {}", describe(&value));
        return Err(JobFileFault::at(place(), message));
    };
    let Some(at) = at.filter(|at| *at < items.len()) else {
        let message = format!("the list has {} elements, counted from 0", items.len());
        return Err(JobFileFault::at(place(), message));
    };
    Ok(match value {
        Cow::Borrowed(Value::Array(items)) => Cow::Borrowed(&items[at]),
        Cow::Owned(Value::Array(mut items)) => Cow::Owned(items.swap_remove(at)),
        other => other,
    })
}

fn indexed<'a>(
    value: Cow<'a, Value>,
    index: &Value,
    expression: &Expression,
) -> Result<Cow<'a, Value>, JobFileFault> {
    let place = || span(expression);
    match (value.as_ref(), index) {
        (Value::Object(_), _) => match crate::convert::text(index) {
            Some(name) => attribute(value, &name, place),
            None => Err(wrong(expression, "the index of an object is a text", index)),
        },
        (_, _) => match crate::convert::number(index) {
            Some(number) => {
                let at = number.as_u64().and_then(|at| usize::try_from(at).ok());
                element(value, at, place)
            }
            None => Err(wrong(expression, "the index of a list is a number", index)),
        },
    }
}
