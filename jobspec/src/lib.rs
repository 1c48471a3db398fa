//! Job files: HCL2 in Nomad's jobspec form, or JSON in the API's form.
//!
//! The result is the JSON body of `PUT /v1/jobs`. All faults in the file are returned with their places. The tables in
//! `schema` define the fields of a job. The server fills in defaults and validates the values.
//!
//! A file may declare variables and locals and use them in expressions. `variable` holds the given values, `eval`
//! evaluates expressions. References for the agent (`${NOMAD_PORT_http}`, `${attr.cpu.arch}`) stay text.

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
mod json_syntax;
mod kind;
mod limits;
mod locals;
mod locate;
mod number;
mod quote;
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
pub use locate::ConfigSpans;
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

/// Reads the job in `text`. A text that starts with a brace, or a name that ends in `.json`, is JSON: the API's form,
/// or HCL's JSON syntax. Referenced files are looked up next to `name`.
///
/// # Errors
///
/// [`ReadJobFileError`], with every fault in the text, or the first in the values of `inputs`.
pub fn parse(name: &str, text: &str, inputs: &Inputs) -> Result<Value, ReadJobFileError> {
    let failed = |faults| ReadJobFileError::new(name, text, faults);
    let body = match read_syntax(name, text).map_err(|fault| failed(vec![fault]))? {
        ParsedFile::Api(job) => return Ok(job),
        ParsedFile::Hcl(body) => body,
    };
    let evaluator = Evaluator::for_file(Path::new(name));
    match JobFile::open(&body, inputs, evaluator) {
        Ok(file) => file.decode().map_err(failed),
        Err(Failure::Here(faults)) => Err(failed(faults)),
        Err(Failure::Given(error)) => Err(error),
    }
}

/// A job file of which only the syntax was read.
enum ParsedFile {
    /// A job in the API's form.
    Api(Value),
    Hcl(syntax::Body),
}

/// Whether a file is JSON, by its name or by its first character.
fn is_json(name: &str, text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let extension = Path::new(name).extension();
    extension.is_some_and(|extension| extension == "json") || text.starts_with('{')
}

fn read_syntax(name: &str, text: &str) -> Result<ParsedFile, JobFileFault> {
    if !is_json(name, text) {
        return syntax::parse_body(text)
            .map(ParsedFile::Hcl)
            .map_err(from_parser);
    }
    let node = syntax::json::parse(text, 0).map_err(|error| {
        JobFileFault::at(error.span, format!("invalid JSON: {}", error.message))
    })?;
    if node.has("job") {
        return json_syntax::job_file(&node).map(ParsedFile::Hcl);
    }
    let json = serde_json::from_str(text.trim_start_matches('\u{feff}'));
    match json.map_err(|error| JobFileFault::at(0..0, format!("invalid JSON: {error}")))? {
        Value::Object(mut map) if map.contains_key("Job") => {
            Ok(ParsedFile::Api(map.remove("Job").unwrap_or_default()))
        }
        Value::Object(map) if map.contains_key("ID") => Ok(ParsedFile::Api(Value::Object(map))),
        _ => Err(JobFileFault::at(0..0, "has no job").help(
            "write {\"Job\": {\"ID\": …}}, as `muster job inspect` prints it, or {\"job\": {\"name\": {…}}} in HCL's JSON syntax",
        )),
    }
}

#[cfg(test)]
mod corners;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;
