//! Parses, runs, prints the error once.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use muster_cli::{Args, output, run, serve};

/// A server has many small rows that one thread makes and another frees: a placement took 3.3 µs of processor time, with
/// mimalloc 6.3 (`muster-perf place --quick`), and with the C library's allocator more than with that. An agent
/// gives back what a burst of starts took. How: `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let result = match serve::as_plugin() {
        Some(served) => served,
        None => run(&Args::parse()),
    };
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::eprint(&error.to_string());
            error.exit.into()
        }
    }
}
