//! The variables of a job file: their declarations and their values.
//!
//! Sources by precedence, lowest first: the default, the environment (`NOMAD_VAR_name`), files of values, the command
//! line.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::convert;
use crate::dynamic::place;
use crate::eval::{Evaluator, span};
use crate::fault::{self, JobFileFault, ReadJobFileError, from_parser, nearest};
use crate::kind;
use crate::scope::Scope;
use crate::syntax::{self, Block, Expression, Structure};
use crate::value::{Type, Value};

/// The prefix of a variable's name in the environment.
const ENV_PREFIX: &str = "NOMAD_VAR_";

/// Values from outside of a job file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// The environment: names with values. Names without the prefix `NOMAD_VAR_` and undeclared variables are ignored.
    pub env: Vec<(String, String)>,
    /// Files with a value per line; later files win.
    pub files: Vec<PathBuf>,
    /// `name=value`; later ones win.
    pub values: Vec<String>,
}

/// A `variable` block.
#[derive(Debug)]
pub(crate) struct Variable<'a> {
    place: Range<usize>,
    kind: Type,
    value: Option<Value>,
    checks: Vec<ValidationRule<'a>>,
}

/// A `validation` block.
#[derive(Debug)]
struct ValidationRule<'a> {
    condition: &'a Expression,
    message: &'a Expression,
}

/// The source text of a value, for faults.
#[derive(Clone, Copy, Debug)]
struct Source<'a> {
    name: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn failed(self, fault: JobFileFault) -> ReadJobFileError {
        ReadJobFileError::new(self.name, self.text, vec![fault])
    }
}

/// The variables of a file, by name.
#[derive(Debug, Default)]
pub(crate) struct Variables<'a>(BTreeMap<String, Variable<'a>>);

impl<'a> Variables<'a> {
    /// Adds the variable that a `variable` block declares.
    pub(crate) fn declare(&mut self, block: &'a Block, evaluator: &Evaluator) -> Vec<JobFileFault> {
        let mut faults = Vec::new();
        let [name] = block.labels.as_slice() else {
            let fault = JobFileFault::at(place(block), "`variable` needs a name, and only one");
            return vec![fault.help("write variable \"name\" { … }")];
        };
        let name = name.as_str();
        if self.0.contains_key(name) {
            let message = format!("a second variable `{name}`");
            return vec![JobFileFault::at(place(block), message)];
        }
        let mut kind = None;
        let mut default = None;
        let mut checks = Vec::new();
        for structure in &block.body.items {
            match structure {
                Structure::Attribute(attribute) => match attribute.key.as_str() {
                    "default" => default = Some(&attribute.value),
                    "description" | "sensitive" | "nullable" => {}
                    "type" => match kind::parse(&attribute.value) {
                        Ok(found) => kind = Some(found),
                        Err(fault) => faults.push(fault),
                    },
                    other => {
                        let at = attribute.key.span.clone();
                        faults.push(unknown(at, other));
                    }
                },
                Structure::Block(inner) if inner.has_ident("validation") => {
                    match ValidationRule::read(inner) {
                        Ok(check) => checks.push(check),
                        Err(fault) => faults.push(fault),
                    }
                }
                Structure::Block(inner) => {
                    faults.push(unknown(place(inner), inner.ident.as_str()));
                }
            }
        }
        let declared = Declaration { name, kind };
        match declared.value(default, evaluator) {
            Ok((kind, value)) => {
                let variable = Variable {
                    place: place(block),
                    kind,
                    value,
                    checks,
                };
                self.0.insert(name.to_owned(), variable);
            }
            Err(fault) => faults.push(fault),
        }
        faults
    }

    /// Adds all of a `variables` block: names with defaults.
    pub(crate) fn declare_all(
        &mut self,
        block: &'a Block,
        evaluator: &Evaluator,
    ) -> Vec<JobFileFault> {
        let mut faults = Vec::new();
        for structure in &block.body.items {
            let Structure::Attribute(attribute) = structure else {
                let message = "`variables` holds names with values, not blocks";
                faults.push(JobFileFault::at(place(block), message));
                continue;
            };
            let (name, at) = (attribute.key.as_str(), attribute.key.span.clone());
            if self.0.contains_key(name) {
                let message = format!("a second variable `{name}`");
                faults.push(JobFileFault::at(at, message));
                continue;
            }
            let declared = Declaration { name, kind: None };
            match declared.value(Some(&attribute.value), evaluator) {
                Ok((kind, value)) => {
                    let variable = Variable {
                        place: at,
                        kind,
                        value,
                        checks: Vec::new(),
                    };
                    self.0.insert(name.to_owned(), variable);
                }
                Err(fault) => faults.push(fault),
            }
        }
        faults
    }

    /// Applies the values of `inputs`.
    ///
    /// # Errors
    ///
    /// The first value that cannot be read, names no variable or does not fit it. Its place is in its source text.
    pub(crate) fn take(&mut self, inputs: &Inputs) -> Result<(), ReadJobFileError> {
        for (name, value) in &inputs.env {
            let Some(variable) = name.strip_prefix(ENV_PREFIX) else {
                continue;
            };
            if self.0.contains_key(variable) {
                let source = Source { name, text: value };
                self.take_text(variable, value, 0, source)?;
            }
        }
        for path in &inputs.files {
            self.take_file(path)?;
        }
        for given in &inputs.values {
            let source = Source {
                name: "--var",
                text: given,
            };
            let Some((name, value)) = given.split_once('=') else {
                let fault = JobFileFault::at(0..given.len(), format!("`{given}` has no `=`"));
                return Err(source.failed(fault.help("write --var name=value")));
            };
            self.take_text(name.trim(), value, name.len() + 1, source)?;
        }
        Ok(())
    }

    /// Parses `text` at `offset` of `source` as the value of `name`.
    fn take_text(
        &mut self,
        name: &str,
        text: &str,
        offset: usize,
        source: Source<'_>,
    ) -> Result<(), ReadJobFileError> {
        let at = offset..source.text.len();
        let kind = match self.0.get(name) {
            Some(variable) => &variable.kind,
            None => return Err(source.failed(self.undeclared(name, 0..name.len()))),
        };
        let value = if kind.is_primitive() {
            Value::text(text)
        } else {
            let expression = syntax::parse_expression(text, offset)
                .map_err(|error| source.failed(from_parser(error).about(name)))?;
            Evaluator::new("")
                .eval(&expression, &Scope::default())
                .map_err(|fault| source.failed(fault.about(name)))?
        };
        self.put(name, value, at)
            .map_err(|fault| source.failed(fault))
    }

    fn take_file(&mut self, path: &Path) -> Result<(), ReadJobFileError> {
        let (name, text) = fault::load(path)?;
        let source = Source {
            name: &name,
            text: &text,
        };
        let body = if crate::is_json(&name, &text) {
            syntax::json::parse(&text, 0)
                .map_err(|error| {
                    JobFileFault::at(error.span, format!("invalid JSON: {}", error.message))
                })
                .and_then(|node| crate::json_syntax::values(&node))
        } else {
            syntax::parse_body(&text).map_err(from_parser)
        };
        let body = body.map_err(|fault| source.failed(fault))?;
        let evaluator = Evaluator::for_file(path);
        for structure in &body.items {
            let attribute = match structure {
                Structure::Attribute(attribute) => attribute,
                Structure::Block(block) => {
                    let message = "a file of values holds no blocks";
                    let fault = JobFileFault::at(place(block), message);
                    return Err(source.failed(fault.help("write name = value")));
                }
            };
            let name = attribute.key.as_str();
            if !self.0.contains_key(name) {
                let at = attribute.key.span.clone();
                return Err(source.failed(self.undeclared(name, at)));
            }
            evaluator
                .eval(&attribute.value, &Scope::default())
                .map_err(|fault| fault.about(name))
                .and_then(|value| self.put(name, value, span(&attribute.value)))
                .map_err(|fault| source.failed(fault))?;
        }
        Ok(())
    }

    fn put(&mut self, name: &str, value: Value, at: Range<usize>) -> Result<(), JobFileFault> {
        if let Some(variable) = self.0.get_mut(name) {
            let converted = convert::convert(value, &variable.kind);
            let converted = converted.map_err(|fault| mismatch(&fault, at).about(name));
            variable.value = Some(converted?);
        }
        Ok(())
    }

    fn undeclared(&self, name: &str, at: Range<usize>) -> JobFileFault {
        let message = format!("the job file declares no variable `{name}`");
        let known = self.0.keys().map(String::as_str);
        nearest(JobFileFault::at(at, message), name, known)
    }

    /// The checked values of all variables.
    pub(crate) fn values(
        self,
        evaluator: &Evaluator,
        faults: &mut Vec<JobFileFault>,
    ) -> BTreeMap<String, Value> {
        let mut values = BTreeMap::new();
        let mut checks = Vec::new();
        for (name, variable) in self.0 {
            let Some(value) = variable.value else {
                let message = format!("the variable `{name}` has no value");
                faults.push(JobFileFault::at(variable.place, message).help(format!(
                    "give it with --var {name}=…, {ENV_PREFIX}{name}=… or a default"
                )));
                continue;
            };
            checks.extend(
                variable
                    .checks
                    .into_iter()
                    .map(|check| (name.clone(), check)),
            );
            values.insert(name, value);
        }
        let scope = Scope::of_file(values.clone(), BTreeMap::new());
        for (name, check) in checks {
            faults.extend(check.fault(&name, &scope, evaluator));
        }
        values
    }
}

impl<'a> ValidationRule<'a> {
    fn read(block: &'a Block) -> Result<Self, JobFileFault> {
        let part = |name: &str| {
            let mut parts = block.body.attributes();
            parts
                .find(|part| part.key.as_str() == name)
                .map(|part| &part.value)
        };
        match (part("condition"), part("error_message")) {
            (Some(condition), Some(message)) => Ok(Self { condition, message }),
            (_, _) => {
                let message = "`validation` needs `condition` and `error_message`";
                Err(JobFileFault::at(place(block), message))
            }
        }
    }

    /// Returns the fault of the value of the variable `name`.
    fn fault(&self, name: &str, scope: &Scope, evaluator: &Evaluator) -> Option<JobFileFault> {
        match evaluator.condition(self.condition, scope) {
            Ok(true) => None,
            Ok(false) => {
                let message = evaluator.eval(self.message, scope);
                let message = message.ok().and_then(|message| convert::text(&message));
                let message = message.unwrap_or_else(|| "does not hold".to_owned());
                Some(JobFileFault::at(span(self.condition), message).about(name))
            }
            Err(fault) => Some(fault.about(name)),
        }
    }
}

/// A variable with its name, and with its type if known.
#[derive(Debug)]
struct Declaration<'a> {
    name: &'a str,
    kind: Option<Type>,
}

impl Declaration<'_> {
    /// Returns the type and the value of `default`.
    fn value(
        self,
        default: Option<&Expression>,
        evaluator: &Evaluator,
    ) -> Result<(Type, Option<Value>), JobFileFault> {
        let Some(default) = default else {
            // The value for a variable without a type is the given text.
            return Ok((self.kind.unwrap_or(Type::Text), None));
        };
        let value = evaluator
            .eval(default, &Scope::default())
            .map_err(|fault| fault.about(self.name))?;
        let kind = self.kind.unwrap_or_else(|| kind::of_default(&value));
        let value = convert::convert(value, &kind)
            .map_err(|fault| mismatch(&fault, span(default)).about(self.name))?;
        Ok((kind, Some(value)))
    }
}

fn unknown(at: Range<usize>, name: &str) -> JobFileFault {
    JobFileFault::at(at, format!("unknown field `{name}` in `variable`"))
        .help("known here: type, default, description, validation")
}

fn mismatch(fault: &convert::ConversionError, at: Range<usize>) -> JobFileFault {
    JobFileFault::at(at, format!("it{} {}", fault.path, fault.message))
}
