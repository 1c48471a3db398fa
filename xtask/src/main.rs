//! `cargo xtask`: the commands of developers and of the CI.
//!
//! - [`setup`] finds and installs the requirements of builds and tests; [`ebpf`] builds the eBPF object
//! - [`isolation_audits`] builds external tools that inspect a task from inside
//! - [`demo`] shows the system on this machine; [`perf`] measures it; [`dist`] builds the released program
//! - [`mod@test`] runs every test that this machine can run; [`vm`] runs tests that need their own kernel;
//!   [`sim`] runs the simulated cluster; [`cases`] compares recorded decisions with our own code
//! - [`mod@fuzz`] runs the fuzz targets
//! - [`ci`] is the complete gate: format, lints, [`tidy`], tests, documents, with [`compiler`] in place of rustc. It
//!   never writes to the tree; [`fix`] and [`bless`] do
//! - [`shell`] starts other programs for all of them; [`steps`] prints the durations of their parts
//!
//! Nothing here is part of the product. No crate depends on this one, and this one depends on none of ours.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a developer's command prints for a living"
)]

mod bless;
mod cases;
mod ci;
mod compiler;
mod demo;
mod dist;
mod ebpf;
mod fix;
mod fuzz;
mod isolation_audits;
mod perf;
mod setup;
mod shell;
mod sim;
mod steps;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

/// Muster's developer commands.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find what building and testing needs, and install what is missing
    Setup {
        /// Leave out what only other commands need
        #[arg(long = "for", value_name = "SCOPE", default_value = "tests")]
        scope: setup::Scope,
        /// Only name what is missing, install nothing
        #[arg(long)]
        check: bool,
        /// Install without asking
        #[arg(long, short)]
        yes: bool,
    },
    /// Build the eBPF object that the agent loads
    BuildEbpf,
    /// Build the program that is shipped, with the eBPF object in it and its symbols beside it
    Dist,
    /// Start a cluster on this machine, run a job, break things, clean up
    Demo(demo::Options),
    /// Run every test this machine can, and name each it cannot
    Test(test::Options),
    /// Run a command as root in a guest with its own kernel and pure cgroup v2
    Vm(vm::Options),
    /// Run the simulated cluster from seeds
    Sim(sim::Options),
    /// Run recorded decisions against our own, and say what differs
    Cases(cases::Options),
    /// Run a fuzz target for some minutes; without a target, list them
    Fuzz(fuzz::Options),
    /// Measure, and compare with the budgets (arguments go to muster-perf)
    Perf(perf::Options),
    /// Check the rules that the compiler does not know
    Tidy,
    /// The whole gate: format, lints, tidy, tests, documents; writes nothing
    Ci(ci::Options),
    /// Format, and apply the lints' own corrections
    Fix,
    /// Rewrite the golden files with what the code says today
    Bless(bless::Options),
}

fn main() -> ExitCode {
    if let Some(failure) = compiler::run_as_compiler() {
        return failure;
    }
    let result = match Cli::parse().command {
        None => Cli::command()
            .print_help()
            .map(|()| ExitCode::SUCCESS)
            .map_err(Into::into),
        Some(command) => run(command),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Setup { scope, check, yes } => {
            setup::prepare(scope, &setup::Options { check, yes })?;
        }
        Command::BuildEbpf => println!("{}", ebpf::build()?.display()),
        Command::Dist => dist::run()?,
        Command::Demo(options) => demo::run(&options)?,
        Command::Test(options) => return test::run(&options),
        Command::Vm(options) => return vm::run(&options),
        Command::Sim(options) => sim::run(&options)?,
        Command::Cases(options) => return cases::run(&options),
        Command::Fuzz(options) => fuzz::run(&options)?,
        Command::Perf(options) => perf::run(&options)?,
        Command::Tidy => tidy::run()?,
        Command::Ci(options) => return ci::run(&options),
        Command::Fix => fix::run()?,
        Command::Bless(options) => bless::run(&options)?,
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
