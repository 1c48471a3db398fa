//! Job files.
#![no_main]

/// The module is compiled here by itself: its crate needs every other one of the workspace.
#[path = "../../../cli/src"]
#[expect(dead_code, reason = "the command line uses more of it")]
mod cli {
    pub mod jobspec;
}

use cli::jobspec;

libfuzzer_sys::fuzz_target!(|data: &[u8]| jobspec::fuzz::job_file(data));
