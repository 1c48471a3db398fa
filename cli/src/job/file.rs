//! Job files, and the values of their variables.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::Value;

use crate::exit::{CliError, Exit};
use crate::output;

/// Values of a job file's variables. The environment gives some as well: `NOMAD_VAR_name`.
#[derive(Debug, Args)]
pub struct ValueArgs {
    /// Value of a variable of the job file. May be repeated.
    #[arg(long = "var", value_name = "NAME=VALUE")]
    pub values: Vec<String>,
    /// File with values of variables, one `name = value` a line. May be repeated.
    #[arg(long = "var-file", value_name = "FILE")]
    pub files: Vec<PathBuf>,
}

impl ValueArgs {
    /// The inputs of the command line with the environment.
    pub(crate) fn inputs(&self) -> muster_jobspec::Inputs {
        // A name or value that is not valid Unicode cannot be a variable.
        let env = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        });
        muster_jobspec::Inputs {
            env: env.collect(),
            files: self.files.clone(),
            values: self.values.clone(),
        }
    }
}

/// Reads a job file; faults are shown with their lines.
pub(super) fn read(file: &Path, values: &ValueArgs) -> Result<Value, CliError> {
    muster_jobspec::read(file, &values.inputs()).map_err(|error| {
        for report in error.reports() {
            output::eprint(&format!("{report:?}"));
        }
        CliError::new(Exit::Usage, error.to_string())
    })
}
