//! Parses, runs, prints the error once.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use muster_cli::args::{Args, run};
use muster_cli::{output, serve};

fn main() -> ExitCode {
    let result = match serve::as_plugin() {
        Some(served) => served,
        None => run(&Args::parse()),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::say(&error.to_string());
            error.exit.into()
        }
    }
}
