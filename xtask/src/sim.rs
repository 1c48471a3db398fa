//! `cargo xtask sim`: runs the simulated cluster from seeds.

use std::path::Path;
use std::process::Command;

use anyhow::Context as _;

use crate::shell;
use crate::shell::artifact::Artifact;

/// The name of the simulator's program.
pub(crate) const PROGRAM: &str = "muster-control-sim";

/// The packages that compute while the simulator runs. With optimisation, a seed takes a sixth of the time: 0.4 s of
/// one core instead of 2.4 s.
///
/// The other tests mostly wait, so optimisation would not pay off: the library `muster-control-core` compiles in 68 s
/// of CPU time instead of 20 s. A separate profile would compile all dependencies once more.
const OPTIMISED: [&str; 3] = ["muster-control-core", "muster-control-sim", "muster-domain"];

/// The number of seeds in the gate: a minute and a half of processor time.
const GATE_SEEDS: u64 = 200;

/// The number of seeds in a long run: 75 minutes of processor time.
const LONG_SEEDS: u64 = 10_000;

/// Whether `artifact` is the simulator's program.
pub(crate) fn is_program(artifact: &Artifact) -> bool {
    !artifact.is_test && artifact.target == PROGRAM
}

/// Options of `sim`: the seeds.
#[derive(Debug, Default, clap::Args)]
pub(crate) struct Options {
    /// The first seed, decimal or 0x…
    #[arg(long, default_value = "1")]
    seed: String,
    /// How many seeds, one after the other; one alone shows its trace
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// How many servers, 1, 3 or 5; without it, the seed decides
    #[arg(long)]
    servers: Option<u64>,
    /// Ten minutes of storm instead of a hundred seconds
    #[arg(long)]
    long: bool,
    /// Further arguments for the simulator, such as `--bug NAME`
    #[arg(last = true)]
    more: Vec<String>,
}

/// Runs the `sim` command.
///
/// # Errors
///
/// When the simulation found a fault.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["run", "--quiet", "--package", PROGRAM]);
    optimise(&mut cargo);
    cargo.arg("--");
    cargo.args(["--seed", &options.seed]);
    cargo.args(["--seeds", &options.seeds.to_string()]);
    if let Some(servers) = options.servers {
        cargo.args(["--servers", &servers.to_string()]);
    }
    if options.long {
        cargo.arg("--long");
    }
    shell::run(cargo.args(&options.more))
}

/// Adds to `cargo` the arguments that build the simulator and its tests.
pub(crate) fn build_arguments(cargo: &mut Command) {
    cargo.args(["--package", PROGRAM, "--all-targets"]);
    optimise(cargo);
}

fn optimise(cargo: &mut Command) {
    for package in OPTIMISED {
        let setting = format!("profile.dev.package.{package}.opt-level=1");
        cargo.args(["--config", &setting]);
    }
}

/// Runs the gate's seeds with `program`, one process per processor, and returns the number of seeds that ran.
///
/// # Errors
///
/// When a seed found a fault, or fewer seeds ran than the gate requires.
pub(crate) fn gate(program: &Path, long: bool) -> anyhow::Result<u64> {
    let wanted = if long { LONG_SEEDS } else { GATE_SEEDS };
    let processes = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let results: Vec<anyhow::Result<u64>> = std::thread::scope(|scope| {
        let running: Vec<_> = ranges(wanted, processes)
            .into_iter()
            .map(|(first, count)| scope.spawn(move || run_seeds(program, first, count)))
            .collect();
        let joined = running.into_iter().map(std::thread::ScopedJoinHandle::join);
        joined
            .map(|result| result.expect("a range reports its errors"))
            .collect()
    });
    let mut ran = 0;
    for result in results {
        ran += result?;
    }
    anyhow::ensure!(ran >= wanted, "only {ran} of {wanted} seeds ran");
    println!("  ok     simulator {ran} seeds");
    Ok(ran)
}

/// Splits seeds 1 to `count` into at most `parts` ranges. Returns the first seed and the length of each.
fn ranges(count: u64, parts: u64) -> Vec<(u64, u64)> {
    let length = count.div_ceil(parts.max(1)).max(1);
    (0..count)
        .step_by(usize::try_from(length).expect("a range of seeds fits in memory"))
        .map(|start| (start + 1, length.min(count - start)))
        .collect()
}

fn run_seeds(program: &Path, first: u64, count: u64) -> anyhow::Result<u64> {
    let mut command = Command::new(program);
    command.args(["--seed", &first.to_string(), "--seeds", &count.to_string()]);
    let mut text = String::new();
    let status = shell::lines(&mut command, &mut |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    if !status.success() {
        print!("{text}");
        anyhow::bail!("the simulator of seeds from {first} ended with {status}");
    }
    seeds_that_ran(&text).context("the simulator did not print its count of seeds")
}

/// Returns the count at the beginning of the simulator's last line: `200 seeds: ...`.
fn seeds_that_ran(output: &str) -> Option<u64> {
    let last = output
        .lines()
        .rev()
        .find(|line| line.contains(" seeds: "))?;
    last.split_once(" seeds: ")?.0.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_seeds_is_read() {
        let output = "\rseed 1    \rseed 2    \n2 seeds: 10 events, 3 entries\n";

        assert_eq!(seeds_that_ran(output), Some(2));
        assert_eq!(seeds_that_ran("seed 1\n"), None);
    }

    #[test]
    fn every_seed_is_in_one_range() {
        assert_eq!(ranges(200, 2), [(1, 100), (101, 100)]);
        assert_eq!(ranges(5, 3), [(1, 2), (3, 2), (5, 1)]);
        assert_eq!(ranges(1, 4), [(1, 1)]);
    }
}
