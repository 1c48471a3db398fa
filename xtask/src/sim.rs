//! `cargo xtask sim`: the simulated cluster, from seeds.

use crate::shell;

/// Seeds that the gate runs: about half a minute.
const CI_SEEDS: u64 = 200;

/// Which seeds.
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
    /// What else the simulator takes, such as `--bug NAME`
    #[arg(last = true)]
    more: Vec<String>,
}

/// The `sim` command.
///
/// # Errors
///
/// When the simulation found something.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let mut cargo = shell::cargo();
    cargo.args(["run", "--quiet", "--profile", "sim"]);
    cargo.args(["--package", "muster-control-sim", "--"]);
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

/// What the gate runs.
///
/// # Errors
///
/// When a seed found something.
pub(crate) fn ci() -> anyhow::Result<()> {
    run(&Options {
        seed: "1".to_owned(),
        seeds: CI_SEEDS,
        ..Options::default()
    })
}
