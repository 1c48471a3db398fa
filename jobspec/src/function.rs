//! Functions: Nomad's, as far as their answer depends on nothing but their arguments and files.
//!
//! Deliberately absent: what answers differently each time (`timestamp`, `uuidv4`), for a job that is
//! read twice must be the same job.

mod collection;
mod encoding;
mod format;
mod network;
mod number;
mod path;
mod text;
mod time;

use std::ops::Range;
use std::path::Path;

use serde_json::{Map, Number, Value};

use super::convert::{self, describe};
use super::fault::{JobFileFault, nearest};

/// What a function answers.
type Outcome = Result<Value, CallFault>;

/// Why a call failed.
#[derive(Debug)]
pub(super) struct CallFault {
    /// Which argument is to blame; `None` is the call as a whole.
    pub(super) argument: Option<usize>,
    pub(super) message: String,
}

/// A function, and how many arguments it takes.
#[derive(Debug)]
pub(super) struct Function {
    name: &'static str,
    least: usize,
    most: usize,
    answer: fn(&Args<'_>) -> Outcome,
}

const ANY: usize = usize::MAX;

const fn function(
    name: &'static str,
    least: usize,
    most: usize,
    answer: fn(&Args<'_>) -> Outcome,
) -> Function {
    Function {
        name,
        least,
        most,
        answer,
    }
}

/// Nomad's functions that are not here, and why.
const ABSENT: [(&str, &str); 14] = [
    ("bcrypt", "its answer differs each time"),
    ("cidrsubnets", "cidrsubnet makes one subnet"),
    ("csvdecode", "write the list itself, or use jsondecode"),
    ("env", "declare a variable and set NOMAD_VAR_name"),
    ("fileset", "name the files"),
    ("md5", "use sha256"),
    ("rsadecrypt", "keep secrets out of job files"),
    ("sha1", "use sha256"),
    ("templatefile", "use file, or a template in the job file"),
    ("timestamp", "its answer differs each time"),
    ("uuidv4", "its answer differs each time"),
    ("uuidv5", "write the id itself"),
    ("yamldecode", "use jsondecode"),
    ("yamlencode", "use jsonencode"),
];

/// Functions that take expressions rather than values; the evaluator carries them out.
const SPECIAL: [&str; 3] = ["can", "convert", "try"];

fn all() -> impl Iterator<Item = &'static Function> + Clone {
    collection::FUNCTIONS
        .iter()
        .chain(encoding::FUNCTIONS)
        .chain(format::FUNCTIONS)
        .chain(network::FUNCTIONS)
        .chain(number::FUNCTIONS)
        .chain(path::FUNCTIONS)
        .chain(text::FUNCTIONS)
        .chain(time::FUNCTIONS)
}

/// The function called `name`.
///
/// # Errors
///
/// There is none; the fault is at `place`.
pub(super) fn find(name: &str, place: Range<usize>) -> Result<&'static Function, JobFileFault> {
    if let Some(found) = all().find(|function| function.name == name) {
        return Ok(found);
    }
    if let Some((_, instead)) = ABSENT.iter().find(|(absent, _)| *absent == name) {
        let message = format!("the function `{name}` is not supported");
        return Err(JobFileFault::at(place, message).help(*instead));
    }
    let fault = JobFileFault::at(place, format!("there is no function `{name}`"));
    let known = all().map(|function| function.name).chain(SPECIAL);
    Err(nearest(fault, name, known))
}

impl Function {
    /// What it answers to `args`.
    pub(super) fn call(&self, args: &Args<'_>) -> Outcome {
        let count = args.values.len();
        if (self.least..=self.most).contains(&count) {
            return (self.answer)(args);
        }
        let wanted = match (self.least, self.most) {
            (least, ANY) => format!("at least {least}"),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least} to {most}"),
        };
        Err(whole(format!("takes {wanted} arguments, not {count}")))
    }
}

/// The arguments of a call.
#[derive(Debug)]
pub(super) struct Args<'a> {
    values: Vec<Value>,
    dir: &'a Path,
}

impl<'a> Args<'a> {
    /// `values`; files are looked for in `dir`.
    pub(super) fn new(values: Vec<Value>, dir: &'a Path) -> Self {
        Self { values, dir }
    }

    fn len(&self) -> usize {
        self.values.len()
    }

    fn value(&self, at: usize) -> &Value {
        self.values.get(at).unwrap_or(&Value::Null)
    }

    fn text(&self, at: usize) -> Result<String, CallFault> {
        convert::text(self.value(at)).ok_or_else(|| self.wrong(at, "a text"))
    }

    fn number(&self, at: usize) -> Result<Number, CallFault> {
        convert::number(self.value(at)).ok_or_else(|| self.wrong(at, "a number"))
    }

    fn real(&self, at: usize) -> Result<f64, CallFault> {
        let number = self.number(at)?;
        number.as_f64().ok_or_else(|| self.wrong(at, "a number"))
    }

    fn whole(&self, at: usize) -> Result<i64, CallFault> {
        let number = self.number(at)?;
        number
            .as_i64()
            .ok_or_else(|| self.wrong(at, "a whole number"))
    }

    /// A whole number from 0.
    fn count(&self, at: usize) -> Result<usize, CallFault> {
        usize::try_from(self.whole(at)?)
            .ok()
            .ok_or_else(|| self.wrong(at, "a whole number from 0"))
    }

    fn list(&self, at: usize) -> Result<&[Value], CallFault> {
        match self.value(at) {
            Value::Array(items) => Ok(items),
            _ => Err(self.wrong(at, "a list")),
        }
    }

    fn texts(&self, at: usize) -> Result<Vec<String>, CallFault> {
        let texts: Option<Vec<String>> = self.list(at)?.iter().map(convert::text).collect();
        texts.ok_or_else(|| self.wrong(at, "a list of texts"))
    }

    fn object(&self, at: usize) -> Result<&Map<String, Value>, CallFault> {
        match self.value(at) {
            Value::Object(entries) => Ok(entries),
            _ => Err(self.wrong(at, "an object")),
        }
    }

    fn wrong(&self, at: usize, wanted: &str) -> CallFault {
        let found = describe(self.value(at));
        argument(
            at,
            format!("argument {} must be {wanted}, not {found}", at + 1),
        )
    }
}

/// A fault of one argument.
fn argument(at: usize, message: impl Into<String>) -> CallFault {
    CallFault {
        argument: Some(at),
        message: message.into(),
    }
}

/// A fault of a call as a whole.
fn whole(message: impl Into<String>) -> CallFault {
    CallFault {
        argument: None,
        message: message.into(),
    }
}

/// A text as an answer.
#[expect(clippy::unnecessary_wraps, reason = "it is what a function answers")]
fn said(text: impl Into<String>) -> Outcome {
    Ok(Value::String(text.into()))
}

#[cfg(test)]
mod tests;
