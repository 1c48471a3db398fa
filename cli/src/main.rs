//! Parses, runs, prints the error once.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use muster_cli::args::{Args, run};
use muster_cli::{output, serve};

/// The C library's spends half again as much on a server's many small rows, which one thread makes and another frees.
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
