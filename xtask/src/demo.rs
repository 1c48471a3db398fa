//! Placeholder: shows a job on this machine from start to clean-up, and checks every number.

/// How the demo runs.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Leave the cluster up at the end.
    #[arg(long)]
    pub(crate) keep: bool,
}

/// Not written yet.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    anyhow::bail!("demo is not written yet (keep {})", options.keep)
}
