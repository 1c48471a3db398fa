//! Parses, runs, prints the error once.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use muster_cli::{Args, output, run, serve};

/// The allocator for servers and agents. In a server, one thread allocates many small rows and another frees them. A
/// placement took 3.3 µs of CPU time, 6.3 µs with mimalloc (`muster-perf place --quick`), and more with the C library's
/// allocator. An agent returns memory to the system after a burst of starts. `.cargo/config.toml` has the settings.
#[cfg(feature = "jemalloc")]
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
