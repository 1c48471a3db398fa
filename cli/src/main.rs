//! Parses, runs, prints the error once.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use muster_cli::args::{Args, run};
use muster_cli::{output, serve};

/// A server has many small rows that one thread makes and another frees: with the C library's allocator it took 1.4 to 1.7
/// times the processor time a placement (`muster-perf place --quick`).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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
