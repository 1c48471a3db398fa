//! Evaluates expressions to values.
//!
//! A general evaluator lacks three things that a job file needs. Faults need a place inside an expression. References
//! for the agent must stay text. The work that a file can cause must be bounded. The parser bounds nesting.

mod operator;
mod reference;
mod template;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::convert;
use crate::fault::JobFileFault;
use crate::function::{self, Args, CallFault};
use crate::kind;
use crate::limits::WORK_BYTES_MAX;
use crate::scope::Scope;
use crate::syntax::{Call, ExprKind, Expression, ForExpr, ForPart, Step};
use crate::value::{Attribute, Type, Value};

/// The value of an expression, or the reason for its absence.
pub(crate) type Outcome = Result<Value, JobFileFault>;

/// Evaluates the expressions of one file.
#[derive(Debug)]
pub(crate) struct Evaluator {
    /// The directory in which `file` looks.
    dir: PathBuf,
    /// The remaining budget of values in bytes.
    left: Cell<usize>,
    /// Whether references that only the agent can resolve stay text.
    keeps_references: bool,
    /// Whether an unchosen result has no value. Its type is then a guess.
    #[cfg(test)]
    pub(crate) guesses: Cell<bool>,
}

impl Evaluator {
    /// An evaluator for a file in `dir`.
    pub(crate) fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            left: Cell::new(WORK_BYTES_MAX),
            keeps_references: true,
            #[cfg(test)]
            guesses: Cell::new(false),
        }
    }

    /// An evaluator for plain HCL: an unknown name is a fault.
    #[cfg(test)]
    pub(crate) fn plain() -> Self {
        Self {
            keeps_references: false,
            ..Self::new("")
        }
    }

    /// An evaluator for the file at `path`, which is not read.
    pub(crate) fn for_file(path: &Path) -> Self {
        Self::new(path.parent().unwrap_or(Path::new("")))
    }

    /// The value of `expression`.
    pub(crate) fn eval(&self, expression: &Expression, scope: &Scope) -> Outcome {
        let value = self.eval_uncounted(expression, scope)?;
        self.charge(value.weight(), || span(expression))?;
        Ok(value)
    }

    /// Counts `bytes` against the limit of a file.
    pub(crate) fn charge(
        &self,
        bytes: usize,
        place: impl FnOnce() -> Range<usize>,
    ) -> Result<(), JobFileFault> {
        match self.left.get().checked_sub(bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => {
                self.left.set(0);
                let message = format!(
                    "the values of this file take more than {} MiB",
                    WORK_BYTES_MAX >> 20
                );
                Err(JobFileFault::at(place(), message)
                    .help("look for a value that is doubled again and again"))
            }
        }
    }

    fn eval_uncounted(&self, expression: &Expression, scope: &Scope) -> Outcome {
        match &expression.kind {
            ExprKind::Null => Ok(Value::NULL),
            ExprKind::Bool(yes) => Ok(Value::Bool(*yes)),
            ExprKind::Number(number) => Ok(Value::Number(number.clone())),
            ExprKind::Text(text) => Ok(Value::text(text.as_str())),
            ExprKind::Tuple(items) => items
                .iter()
                .map(|item| self.eval(item, scope))
                .collect::<Result<_, _>>()
                .map(Value::Tuple),
            ExprKind::Object(entries) => self.object(entries, scope),
            ExprKind::Template(template) => self.template(template, scope).map(Value::text),
            ExprKind::Wrap(only) => self.wrapped(only, scope),
            ExprKind::Paren(inner) => self.eval_uncounted(inner, scope),
            ExprKind::Not(operand) => self.not(operand, scope),
            ExprKind::Negate(operand) => self.negated(operand, scope),
            ExprKind::Binary(first, rest) => self.binary(first, rest, scope),
            ExprKind::Reference(name, steps) => self.reference(expression, name, steps, scope),
            ExprKind::Path(source, steps) => {
                let value = self.eval(source, scope)?;
                self.follow(value, steps, scope)
            }
            ExprKind::Call(call) => self.call(call, scope),
            ExprKind::Conditional(parts) => self.conditional(parts, scope),
            ExprKind::For(each) => self.for_each(each, scope),
        }
    }

    fn object(&self, written: &[(Expression, Expression)], scope: &Scope) -> Outcome {
        let mut entries = BTreeMap::new();
        for (key, value) in written {
            let name = self.key(key, scope)?;
            entries.insert(name, self.eval(value, scope)?);
        }
        Ok(Value::Object(entries))
    }

    /// The text of an object's key.
    fn key(&self, expression: &Expression, scope: &Scope) -> Result<String, JobFileFault> {
        if let Some(name) = expression.keyword() {
            return Ok(name.to_owned());
        }
        if let ExprKind::Reference(..) = expression.kind {
            let message = "a key with a path is ambiguous";
            return Err(JobFileFault::at(span(expression), message)
                .help("write (a.b) for its value, or \"a.b\" for the text"));
        }
        self.key_value(expression, scope)
    }

    fn key_value(&self, expression: &Expression, scope: &Scope) -> Result<String, JobFileFault> {
        let value = self.eval(expression, scope)?;
        match convert::text(&value) {
            // Texts are in Unicode's composed form.
            Some(text) => match Value::text(text) {
                Value::Text(text) => Ok(text),
                _ => Ok(String::new()),
            },
            None => Err(wrong(expression, "a key must be a text", &value)),
        }
    }

    /// The chosen value, as the type that both have in common. A fault of the other does not count.
    fn conditional(&self, parts: &[Expression; 3], scope: &Scope) -> Outcome {
        let [condition, yes, no] = parts;
        let (yes_value, no_value) = (self.eval(yes, scope), self.eval(no, scope));
        #[cfg(test)]
        if yes_value.is_err() || no_value.is_err() {
            self.guesses.set(true);
        }
        let common = match (&yes_value, &no_value) {
            (Ok(Value::Null(Type::Any)), Ok(other)) | (Ok(other), Ok(Value::Null(Type::Any))) => {
                Some(other.kind())
            }
            (Ok(yes), Ok(no)) => {
                let kinds = [yes.kind(), no.kind()];
                let common = convert::unify(&kinds, false).ok_or_else(|| {
                    let message = format!(
                        "both results of a condition need one type, not {} and {}",
                        yes.describe(),
                        no.describe()
                    );
                    JobFileFault::at(parts[1].span.start..parts[2].span.end, message)
                })?;
                Some(common)
            }
            (Ok(value), Err(_)) => self.common_type(&value.kind(), no, scope)?,
            (Err(_), Ok(value)) => self.common_type(&value.kind(), yes, scope)?,
            (Err(_), Err(_)) => None,
        };
        let (chosen, place) = if self.condition(condition, scope)? {
            (yes_value?, yes)
        } else {
            (no_value?, no)
        };
        match common {
            None => Ok(chosen),
            Some(common) => convert::convert(chosen, &common).map_err(|fault| {
                JobFileFault::at(span(place), format!("the result {}", fault.message))
            }),
        }
    }

    /// The common type of a result of the type `kind` and of `failed`, which has no value. The form of `failed` may
    /// show that there is no common type.
    fn common_type(
        &self,
        kind: &Type,
        failed: &Expression,
        scope: &Scope,
    ) -> Result<Option<Type>, JobFileFault> {
        let form = match &failed.kind {
            ExprKind::Paren(inner) => return self.common_type(kind, inner, scope),
            ExprKind::Template(_) => Type::Text,
            ExprKind::Not(_) => Type::Bool,
            ExprKind::Negate(_) => Type::Number,
            ExprKind::Binary(_, rest) => {
                match rest.last().map(|(operator, _)| operator.is_arithmetic()) {
                    Some(true) => Type::Number,
                    Some(false) | None => Type::Bool,
                }
            }
            ExprKind::Reference(_, steps) | ExprKind::Path(_, steps)
                if matches!(
                    steps.last(),
                    Some(Step::FullSplat(..) | Step::AttributeSplat(..))
                ) =>
            {
                Type::Tuple(Vec::new())
            }
            ExprKind::Tuple(items) => Type::Tuple(vec![Type::Any; items.len()]),
            ExprKind::Object(entries) => {
                let attribute = || Attribute {
                    kind: Type::Any,
                    optional: false,
                };
                let names = entries.iter().map(|(key, _)| self.key(key, scope).ok());
                match names.collect::<Option<Vec<String>>>() {
                    Some(names) => {
                        let attributes = names.into_iter().map(|name| (name, attribute()));
                        Type::Object(attributes.collect())
                    }
                    None => return Ok(None),
                }
            }
            ExprKind::For(each) => match self.type_of_failed_for(each, scope) {
                Some(form) => form,
                None => return Ok(None),
            },
            _ => return Ok(None),
        };
        match convert::unify(&[kind.clone(), form], false) {
            Some(common) => Ok(Some(common)),
            None => {
                let message = "both results of a condition need one type";
                Err(JobFileFault::at(span(failed), message))
            }
        }
    }

    /// The type of a failed `for` expression, if only its values are faulty.
    fn type_of_failed_for(&self, each: &ForExpr, scope: &Scope) -> Option<Type> {
        let mut attributes = BTreeMap::new();
        let mut kinds = Vec::new();
        for (key, value) in self.elements(&each.names.list, scope).ok()? {
            let inner = each_scope(&each.names, key, value, scope);
            let is_in = match &each.condition {
                Some(condition) => self.condition(condition, &inner).ok()?,
                None => true,
            };
            if !is_in {
                continue;
            }
            let value = self.eval(&each.value, &inner);
            let kind = value.map_or(Type::Any, |value| value.kind());
            match &each.key {
                Some(key) => {
                    let name = self.key_value(key, &inner).ok()?;
                    let attribute = Attribute {
                        kind,
                        optional: false,
                    };
                    attributes.entry(name).or_insert(attribute);
                }
                None => kinds.push(kind),
            }
        }
        Some(match each.key {
            Some(_) => Type::Object(attributes),
            None => Type::Tuple(kinds),
        })
    }

    /// Whether the condition `expression` holds.
    pub(crate) fn condition(
        &self,
        expression: &Expression,
        scope: &Scope,
    ) -> Result<bool, JobFileFault> {
        let value = self.eval(expression, scope)?;
        convert::boolean(&value)
            .ok_or_else(|| wrong(expression, "a condition must be true or false", &value))
    }

    fn for_each(&self, each: &ForExpr, scope: &Scope) -> Outcome {
        let names = &each.names;
        let mut list = Vec::new();
        let mut map: BTreeMap<String, Value> = BTreeMap::new();
        let elements = self.elements(&names.list, scope)?;
        if let Some(condition) = &each.condition
            && elements.is_empty()
            && !uses_element_name(condition, names)
        {
            // A faulty condition is reported even without elements.
            self.condition(condition, scope)?;
        }
        for (key, value) in elements {
            let inner = each_scope(names, key, value, scope);
            if let Some(condition) = &each.condition
                && !self.condition(condition, &inner)?
            {
                continue;
            }
            let Some(key_expr) = &each.key else {
                list.push(self.eval(&each.value, &inner)?);
                continue;
            };
            let key = self.key_value(key_expr, &inner)?;
            let value = self.eval(&each.value, &inner)?;
            if each.groups {
                let group = map.entry(key).or_insert_with(|| Value::Tuple(Vec::new()));
                if let Value::Tuple(group) = group {
                    group.push(value);
                }
            } else if map.insert(key.clone(), value).is_some() {
                let message = format!("two elements have the key `{key}`");
                return Err(JobFileFault::at(span(key_expr), message)
                    .help("write `...` after the value to collect them in lists"));
            }
        }
        Ok(if each.key.is_some() {
            Value::Object(map)
        } else {
            Value::Tuple(list)
        })
    }

    /// The elements of the collection `expression`, each with its key or position.
    pub(crate) fn elements(
        &self,
        expression: &Expression,
        scope: &Scope,
    ) -> Result<Vec<(Value, Value)>, JobFileFault> {
        match self.eval(expression, scope)? {
            Value::Set(_, items) => {
                Ok(items.into_iter().map(|item| (item.clone(), item)).collect())
            }
            Value::Tuple(items) | Value::List(_, items) => Ok(items
                .into_iter()
                .enumerate()
                .map(|(at, item)| (Value::count(at), item))
                .collect()),
            Value::Object(entries) | Value::Map(_, entries) => Ok(entries
                .into_iter()
                .map(|(name, value)| (Value::text(name), value))
                .collect()),
            other => Err(wrong(
                expression,
                "only a list or an object has elements",
                &other,
            )),
        }
    }

    fn call(&self, call: &Call, scope: &Scope) -> Outcome {
        let name = call.name.as_str();
        let place = || call.name.span.clone();
        if name.contains("::") {
            let message = "functions have no namespaces here";
            return Err(JobFileFault::at(place(), message));
        }
        match name {
            "can" => return self.can(call, scope),
            "try" => return self.first_without_fault(call, scope),
            "convert" => return self.convert(call, scope),
            _ => {}
        }
        let function = function::find(name, place())?;
        let mut values = Vec::new();
        for argument in &call.args {
            values.push(self.eval(argument, scope)?);
        }
        if call.expands
            && let Some(last) = values.pop()
        {
            match last.items() {
                Some(items) => values.extend_from_slice(items),
                None => {
                    let argument = call.args.last().map_or_else(place, span);
                    let message = format!("`...` needs a list; this is {}", last.describe());
                    return Err(JobFileFault::at(argument, message));
                }
            }
        }
        let answer = Args::new(function, values, &self.dir).and_then(|args| function.call(&args));
        answer.map_err(|fault| {
            let CallFault { argument, message } = fault;
            let place = argument
                .and_then(|at| call.args.get(at))
                .map_or_else(place, span);
            JobFileFault::at(place, format!("`{name}`: {message}"))
        })
    }

    /// `can(expression)`: whether the expression has a value.
    fn can(&self, call: &Call, scope: &Scope) -> Outcome {
        match call.args.as_slice() {
            [argument] if !call.expands => Ok(Value::Bool(self.eval(argument, scope).is_ok())),
            _ => Err(JobFileFault::at(
                call.name.span.clone(),
                "`can` takes one argument",
            )),
        }
    }

    /// `try(expression, …)`: the first that has a value.
    fn first_without_fault(&self, call: &Call, scope: &Scope) -> Outcome {
        let mut last = JobFileFault::at(call.name.span.clone(), "`try` needs an argument");
        for argument in &call.args {
            match self.eval(argument, scope) {
                Ok(value) => return Ok(value),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    /// `convert(value, type)`.
    fn convert(&self, call: &Call, scope: &Scope) -> Outcome {
        let [value, kind] = call.args.as_slice() else {
            let message = "`convert` takes a value and a type";
            return Err(JobFileFault::at(call.name.span.clone(), message));
        };
        let kind = kind::parse(kind)?;
        let found = self.eval(value, scope)?;
        convert::convert(found, &kind).map_err(|fault| {
            let message = format!("`convert`: it{} {}", fault.path, fault.message);
            JobFileFault::at(span(value), message)
        })
    }
}

/// `scope` with the names of one element.
fn each_scope(names: &ForPart, key: Value, value: Value, scope: &Scope) -> Scope {
    let scope = match &names.key {
        Some(name) => scope.with(name, key),
        None => scope.clone(),
    };
    scope.with(&names.value, value)
}

/// Whether `expression` uses a name of an element.
fn uses_element_name(expression: &Expression, names: &ForPart) -> bool {
    let mut found = false;
    expression.walk(&mut |inner| {
        if let ExprKind::Reference(root, _) = &inner.kind {
            found |= *root == names.value || names.key.as_ref() == Some(root);
        }
    });
    found
}

/// A fault for a value of the wrong type.
fn wrong(expression: &Expression, rule: &str, found: &Value) -> JobFileFault {
    JobFileFault::at(
        span(expression),
        format!("{rule}; this is {}", found.describe()),
    )
}

/// The place of `expression`.
#[must_use]
pub fn span(expression: &Expression) -> Range<usize> {
    expression.span.clone()
}

#[cfg(test)]
mod tests;
