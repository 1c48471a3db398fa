//! Expressions to values.
//!
//! The crate `hcl-rs` evaluates expressions too. A job file needs what it does not offer: the place of
//! a fault inside an expression, references that stay text for the agent, arguments that may fail
//! (`try`), and a bound on the work that a file can ask for. Nesting is bounded by the parser.

mod operator;
mod reference;
mod template;

use std::cell::Cell;
use std::ops::Range;
use std::path::{Path, PathBuf};

use hcl_edit::Span as _;
use hcl_edit::expr::{Conditional, Expression, ForExpr, FuncCall, Object, ObjectKey};
use serde_json::{Map, Value};

use super::convert::{self, describe, weight};
use super::fault::JobFileFault;
use super::function::{self, Args, CallFault};
use super::kind::VarKind;
use super::limits::WORK_BYTES_MAX;
use super::number;
use super::scope::Scope;

/// What becomes of an expression.
pub(super) type Outcome = Result<Value, JobFileFault>;

/// Evaluates the expressions of one file.
#[derive(Debug)]
pub(super) struct Evaluator {
    /// Where `file` begins.
    dir: PathBuf,
    /// Bytes of values that may still be made.
    left: Cell<usize>,
}

impl Evaluator {
    /// For a file in `dir`.
    pub(super) fn new(dir: impl Into<PathBuf>) -> Self {
        Self {
            dir: dir.into(),
            left: Cell::new(WORK_BYTES_MAX),
        }
    }

    /// For the file at `path`, of which nothing is read.
    pub(super) fn beside(path: &Path) -> Self {
        Self::new(path.parent().unwrap_or(Path::new("")))
    }

    /// The value of `expression`.
    pub(super) fn eval(&self, expression: &Expression, scope: &Scope) -> Outcome {
        let value = self.made(expression, scope)?;
        self.charge(weight(&value), || span(expression))?;
        Ok(value)
    }

    /// Counts `bytes` against what a file may make.
    pub(super) fn charge(
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

    fn made(&self, expression: &Expression, scope: &Scope) -> Outcome {
        match expression {
            Expression::Null(_) => Ok(Value::Null),
            Expression::Bool(yes) => Ok(Value::Bool(*yes.value())),
            Expression::Number(number) => literal_number(expression, number.value()),
            Expression::String(text) => Ok(Value::String(text.value().clone())),
            Expression::Array(items) => items
                .iter()
                .map(|item| self.eval(item, scope))
                .collect::<Result<_, _>>()
                .map(Value::Array),
            Expression::Object(object) => self.object(object, scope),
            Expression::StringTemplate(template) => self.string_template(template, scope),
            Expression::HeredocTemplate(heredoc) => self.heredoc(heredoc, scope),
            Expression::Parenthesis(inner) => self.made(inner.inner(), scope),
            Expression::UnaryOp(operation) => self.unary(operation, scope),
            Expression::BinaryOp(operation) => self.binary(operation, scope),
            Expression::Variable(_) | Expression::Traversal(_) => self.reference(expression, scope),
            Expression::FuncCall(call) => self.call(expression, call, scope),
            Expression::Conditional(conditional) => self.conditional(conditional, scope),
            Expression::ForExpr(each) => self.for_each(each, scope),
        }
    }

    fn object(&self, object: &Object, scope: &Scope) -> Outcome {
        let mut map = Map::new();
        for (key, value) in object {
            let name = match key {
                ObjectKey::Ident(name) => name.value().to_string(),
                ObjectKey::Expression(key) => self.key(key, scope)?,
            };
            map.insert(name, self.eval(value.expr(), scope)?);
        }
        Ok(Value::Object(map))
    }

    /// The value of a key of an object.
    fn key(&self, expression: &Expression, scope: &Scope) -> Result<String, JobFileFault> {
        let value = self.eval(expression, scope)?;
        convert::text(&value).ok_or_else(|| wrong(expression, "a key must be a text", &value))
    }

    fn conditional(&self, conditional: &Conditional, scope: &Scope) -> Outcome {
        if self.condition(&conditional.cond_expr, scope)? {
            self.eval(&conditional.true_expr, scope)
        } else {
            self.eval(&conditional.false_expr, scope)
        }
    }

    /// Whether the condition `expression` holds.
    pub(super) fn condition(
        &self,
        expression: &Expression,
        scope: &Scope,
    ) -> Result<bool, JobFileFault> {
        let value = self.eval(expression, scope)?;
        convert::boolean(&value)
            .ok_or_else(|| wrong(expression, "a condition must be true or false", &value))
    }

    fn for_each(&self, each: &ForExpr, scope: &Scope) -> Outcome {
        let intro = &each.intro;
        let key_name = intro.key_var.as_ref().map(|name| name.as_str());
        let mut list = Vec::new();
        let mut map = Map::new();
        for (key, value) in self.elements(&intro.collection_expr, scope)? {
            let mut inner = scope.clone();
            if let Some(name) = key_name {
                inner = inner.with(name, key);
            }
            let inner = inner.with(intro.value_var.as_str(), value);
            if let Some(condition) = &each.cond
                && !self.condition(&condition.expr, &inner)?
            {
                continue;
            }
            let value = self.eval(&each.value_expr, &inner)?;
            let Some(key_expr) = &each.key_expr else {
                list.push(value);
                continue;
            };
            let key = self.key(key_expr, &inner)?;
            if each.grouping {
                let group = map.entry(key).or_insert_with(|| Value::Array(Vec::new()));
                if let Value::Array(group) = group {
                    group.push(value);
                }
            } else if map.contains_key(&key) {
                let message = format!("two elements have the key `{key}`");
                return Err(JobFileFault::at(span(key_expr), message)
                    .help("write `...` after the value to collect them in lists"));
            } else {
                map.insert(key, value);
            }
        }
        Ok(if each.key_expr.is_some() {
            Value::Object(map)
        } else {
            Value::Array(list)
        })
    }

    /// The elements of the collection `expression`, each with its key or position.
    pub(super) fn elements(
        &self,
        expression: &Expression,
        scope: &Scope,
    ) -> Result<Vec<(Value, Value)>, JobFileFault> {
        match self.eval(expression, scope)? {
            Value::Array(items) => Ok(items
                .into_iter()
                .enumerate()
                .map(|(at, item)| (Value::from(at), item))
                .collect()),
            Value::Object(entries) => Ok(entries
                .into_iter()
                .map(|(name, value)| (Value::String(name), value))
                .collect()),
            other => Err(wrong(
                expression,
                "only a list or an object has elements",
                &other,
            )),
        }
    }

    fn call(&self, whole: &Expression, call: &FuncCall, scope: &Scope) -> Outcome {
        let name = call.name.name.as_str();
        let place = || call.name.name.span().unwrap_or_else(|| span(whole));
        if call.name.is_namespaced() {
            let message = "functions have no namespaces here";
            return Err(JobFileFault::at(place(), message));
        }
        match name {
            "can" => return self.can(call, scope, place()),
            "try" => return self.first_that_works(call, scope, place()),
            "convert" => return self.convert(call, scope, place()),
            _ => {}
        }
        let function = function::find(name, place())?;
        let mut values = Vec::new();
        let count = call.args.len();
        for (at, argument) in call.args.iter().enumerate() {
            let value = self.eval(argument, scope)?;
            match value {
                Value::Array(items) if call.args.expand_final() && at + 1 == count => {
                    values.extend(items);
                }
                value => values.push(value),
            }
        }
        let args = Args::new(values, &self.dir);
        function.call(&args).map_err(|fault| {
            let CallFault { argument, message } = fault;
            let place = argument
                .and_then(|at| call.args.get(at))
                .map_or_else(place, span);
            JobFileFault::at(place, format!("`{name}`: {message}"))
        })
    }

    /// `can(expression)`: whether it has a value.
    fn can(&self, call: &FuncCall, scope: &Scope, place: Range<usize>) -> Outcome {
        match (call.args.get(0), call.args.len()) {
            (Some(argument), 1) => Ok(Value::Bool(self.eval(argument, scope).is_ok())),
            (_, _) => Err(JobFileFault::at(place, "`can` takes one argument")),
        }
    }

    /// `try(expression, …)`: the first that has a value.
    fn first_that_works(&self, call: &FuncCall, scope: &Scope, place: Range<usize>) -> Outcome {
        let mut last = JobFileFault::at(place, "`try` needs an argument");
        for argument in &call.args {
            match self.eval(argument, scope) {
                Ok(value) => return Ok(value),
                Err(fault) => last = fault,
            }
        }
        Err(last)
    }

    /// `convert(value, type)`.
    fn convert(&self, call: &FuncCall, scope: &Scope, place: Range<usize>) -> Outcome {
        let (Some(value), Some(kind), 2) = (call.args.get(0), call.args.get(1), call.args.len())
        else {
            let message = "`convert` takes a value and a type";
            return Err(JobFileFault::at(place, message));
        };
        let kind = VarKind::parse(kind)?;
        let found = self.eval(value, scope)?;
        kind.convert(found)
            .map_err(|message| JobFileFault::at(span(value), format!("`convert`: {message}")))
    }
}

fn literal_number(expression: &Expression, number: &hcl_edit::Number) -> Outcome {
    if let Some(whole) = number.as_i64() {
        return Ok(Value::from(whole));
    }
    if let Some(whole) = number.as_u64() {
        return Ok(Value::from(whole));
    }
    number
        .as_f64()
        .and_then(number::value)
        .ok_or_else(|| JobFileFault::at(span(expression), "the number is out of range"))
}

/// A fault of a value that is of the wrong kind for its place.
fn wrong(expression: &Expression, rule: &str, found: &Value) -> JobFileFault {
    JobFileFault::at(
        span(expression),
        format!("{rule}; this is {}", describe(found)),
    )
}

/// Where `expression` stands.
pub fn span(expression: &Expression) -> Range<usize> {
    expression.span().unwrap_or_default()
}

#[cfg(test)]
mod tests;
