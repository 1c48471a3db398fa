//! `cargo xtask sim`: the simulated cluster, from seeds.

use anyhow::bail;

use crate::shell;

/// Which seeds.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The first seed, decimal or 0x…; without it, the simulator draws one and prints it
    #[arg(long)]
    seed: Option<String>,
    /// How many seeds, one after the other
    #[arg(long)]
    seeds: Option<u64>,
    /// What else the simulator takes
    #[arg(last = true)]
    more: Vec<String>,
}

/// The `sim` command.
///
/// # Errors
///
/// When the simulation found something, or there is no simulator.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    if !shell::root().join("control/sim/src/main.rs").is_file() {
        bail!(
            "muster-control-sim has no program yet; its tests run with: cargo test -p muster-control-sim"
        );
    }
    let mut cargo = shell::cargo();
    cargo.args([
        "run",
        "--quiet",
        "--release",
        "--package",
        "muster-control-sim",
        "--",
    ]);
    if let Some(seed) = &options.seed {
        cargo.args(["--seed", seed]);
    }
    if let Some(seeds) = options.seeds {
        cargo.args(["--seeds", &seeds.to_string()]);
    }
    shell::run(cargo.args(&options.more))
}
