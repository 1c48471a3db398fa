//! Functions: Nomad's, with the results of go-cty's standard library.
//!
//! A function declares its parameters. Arguments are converted to them as in go-cty. `can`, `convert` and `try` take
//! expressions, and the evaluator implements them.

mod call;
mod collection;
mod crypto;
mod encoding;
mod format;
mod network;
mod number;
mod path;
mod set;
mod text;
mod time;
mod yaml;

use std::ops::Range;

use crate::fault::{JobFileFault, nearest};
use call::Function;
pub(crate) use call::{Args, CallFault};

/// Names that people try, which Nomad does not have either.
const ABSENT: [(&str, &str); 5] = [
    ("env", "declare a variable and set NOMAD_VAR_name"),
    ("regex", "use regex_replace with groups"),
    ("regexall", "use regex_replace with groups"),
    ("templatefile", "use file, or a template in the job file"),
    ("timestamp", "give the time as a variable"),
];

/// Functions that take expressions.
const SPECIAL: [&str; 3] = ["can", "convert", "try"];

fn all() -> impl Iterator<Item = &'static Function> + Clone {
    collection::FUNCTIONS
        .iter()
        .chain(crypto::FUNCTIONS)
        .chain(encoding::FUNCTIONS)
        .chain(format::FUNCTIONS)
        .chain(network::FUNCTIONS)
        .chain(number::FUNCTIONS)
        .chain(path::FUNCTIONS)
        .chain(set::FUNCTIONS)
        .chain(text::FUNCTIONS)
        .chain(time::FUNCTIONS)
        .chain(yaml::FUNCTIONS)
}

/// The function called `name`.
///
/// # Errors
///
/// There is none; the fault is at `place`.
pub(crate) fn find(name: &str, place: Range<usize>) -> Result<&'static Function, JobFileFault> {
    if let Some(found) = all().find(|function| function.name == name) {
        return Ok(found);
    }
    let fault = JobFileFault::at(place, format!("unknown function `{name}`"));
    if let Some((_, instead)) = ABSENT.iter().find(|(absent, _)| *absent == name) {
        return Err(fault.help(*instead));
    }
    let known = all().map(|function| function.name).chain(SPECIAL);
    Err(nearest(fault, name, known))
}

#[cfg(test)]
mod tests;
