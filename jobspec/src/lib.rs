//! Job files: HCL2 in Nomad's jobspec form, or JSON in the API's form.
//!
//! The result is the JSON body that `PUT /v1/jobs` takes. Every fault found in the file is returned,
//! each with its place. What a job may say is the table in `schema`; what its values mean is decided
//! by the server, which fills in defaults and validates.
//!
//! A file may declare variables and locals and compute values of them: `variable` holds the values it is
//! given, `eval` computes. References that the agent fills in (`${NOMAD_PORT_http}`, `${attr.cpu.arch}`)
//! stay as they are.

#![forbid(unsafe_code)]

mod convert;
mod decode;
mod dynamic;
mod eval;
mod fault;
mod field;
pub mod free;
mod function;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod kind;
mod limits;
mod locals;
mod locate;
mod number;
mod schema;
mod scope;
pub mod syntax;
mod value;
mod variable;

use std::path::Path;

use serde_json::Value;

use decode::{Failure, JobFile};
use eval::Evaluator;
pub use eval::span;
pub use fault::{JobFileFault, ReadJobFileError};
pub use fault::{from_parser, load};
pub use field::any;
pub use locate::ConfigPlaces;
pub use variable::Inputs;

/// Reads the job file at `path`; `-` is standard input.
///
/// # Errors
///
/// [`ReadJobFileError`], with every fault in the file, or the first in the values of `inputs`.
pub fn read(path: &Path, inputs: &Inputs) -> Result<Value, ReadJobFileError> {
    let (name, text) = load(path)?;
    parse(&name, &text, inputs)
}

/// The job in `text`. A text that starts with a brace, or a name that ends in `.json`, is JSON. Files
/// that it names are looked for beside `name`.
///
/// # Errors
///
/// [`ReadJobFileError`], with every fault in the text, or the first in the values of `inputs`.
pub fn parse(name: &str, text: &str, inputs: &Inputs) -> Result<Value, ReadJobFileError> {
    let is_json = Path::new(name)
        .extension()
        .is_some_and(|extension| extension == "json");
    if is_json || text.trim_start().starts_with('{') {
        return parse_json(name, text);
    }
    let body = syntax::parse_body(text)
        .map_err(|error| ReadJobFileError::new(name, text, vec![from_parser(error)]))?;
    let evaluator = Evaluator::beside(Path::new(name));
    match JobFile::open(&body, inputs, evaluator) {
        Ok(file) => file
            .decode()
            .map_err(|faults| ReadJobFileError::new(name, text, faults)),
        Err(Failure::Here(faults)) => Err(ReadJobFileError::new(name, text, faults)),
        Err(Failure::Given(error)) => Err(error),
    }
}

fn parse_json(name: &str, text: &str) -> Result<Value, ReadJobFileError> {
    let value: Value = serde_json::from_str(text).map_err(|error| {
        let at = fault::offset(text, error.line(), error.column());
        let found = JobFileFault::at(at..at, format!("is no JSON: {error}"));
        ReadJobFileError::new(name, text, vec![found])
    })?;
    match value {
        Value::Object(mut map) if map.contains_key("Job") => {
            Ok(map.remove("Job").unwrap_or_default())
        }
        Value::Object(map) if map.contains_key("ID") => Ok(Value::Object(map)),
        Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_) => {
            let found = JobFileFault::at(0..0, "holds no job")
                .help("write {\"Job\": {\"ID\": …}}, as `muster job inspect` prints it");
            Err(ReadJobFileError::new(name, text, vec![found]))
        }
    }
}

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
