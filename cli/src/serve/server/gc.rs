//! The garbage collection of a server: Nomad's names and defaults.

use std::time::Duration;

use clap::Args;
use muster_control::server::GcConfig;
use muster_wire::api::duration;

/// Intervals and thresholds of garbage collection, such as `30s`, `5m` or `24h`. All servers should have the same values:
/// the leader's values decide which objects are deleted. A server's own values appear in its answers about allocations.
#[derive(Debug, Args)]
#[command(next_help_heading = "Garbage collection")]
pub struct GcArgs {
    /// Interval between collections of evaluations and allocations.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = interval)]
    pub eval_gc_interval: Duration,
    /// Age at which evaluations and their allocations are deleted. Set the same thresholds on every server: the
    /// leader's decide, but each server predicts by its own when an allocation becomes eligible.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration::parse)]
    pub eval_gc_threshold: Duration,
    /// The same threshold for batch jobs.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = duration::parse)]
    pub batch_eval_gc_threshold: Duration,
    /// Interval between collections of jobs.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = interval)]
    pub job_gc_interval: Duration,
    /// Age at which ended jobs are deleted with everything below them.
    #[arg(long, default_value = "4h", value_name = "TIME", value_parser = duration::parse)]
    pub job_gc_threshold: Duration,
    /// Interval between collections of deployments.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = interval)]
    pub deployment_gc_interval: Duration,
    /// Age at which ended deployments are deleted.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration::parse)]
    pub deployment_gc_threshold: Duration,
    /// Interval between collections of nodes.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = interval)]
    pub node_gc_interval: Duration,
    /// Time a node is down before it is deleted.
    #[arg(long, default_value = "24h", value_name = "TIME", value_parser = duration::parse)]
    pub node_gc_threshold: Duration,
}

impl GcArgs {
    /// The settings in the server's form.
    pub(super) fn config(&self) -> GcConfig {
        let Self {
            eval_gc_interval,
            eval_gc_threshold,
            batch_eval_gc_threshold,
            job_gc_interval,
            job_gc_threshold,
            deployment_gc_interval,
            deployment_gc_threshold,
            node_gc_interval,
            node_gc_threshold,
        } = *self;
        GcConfig {
            eval_interval: eval_gc_interval,
            eval_threshold: eval_gc_threshold,
            batch_eval_threshold: batch_eval_gc_threshold,
            job_interval: job_gc_interval,
            job_threshold: job_gc_threshold,
            deployment_interval: deployment_gc_interval,
            deployment_threshold: deployment_gc_threshold,
            node_interval: node_gc_interval,
            node_threshold: node_gc_threshold,
        }
    }
}

/// Parses the interval of collections. Each collection writes one log entry per rule, even without objects to delete.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text).map_err(|error| error.to_string())?;
    if interval < Duration::from_secs(1) {
        return Err(format!("`{text}` is less than 1s"));
    }
    Ok(interval)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TestArgs {
        #[command(flatten)]
        gc: GcArgs,
    }

    #[test]
    fn the_defaults_are_the_servers() {
        let given = TestArgs::try_parse_from(["muster"]).unwrap();

        assert_eq!(given.gc.config(), GcConfig::default());
    }

    #[test]
    fn each_flag_sets_its_own() {
        let flags = [
            "eval-gc-interval",
            "eval-gc-threshold",
            "batch-eval-gc-threshold",
            "job-gc-interval",
            "job-gc-threshold",
            "deployment-gc-interval",
            "deployment-gc-threshold",
            "node-gc-interval",
            "node-gc-threshold",
        ];
        let args = flags.iter().zip(1..);
        let args = args.map(|(flag, seconds)| format!("--{flag}={seconds}s"));
        let given = TestArgs::try_parse_from(std::iter::once("muster".to_owned()).chain(args));

        let seconds = Duration::from_secs;
        assert_eq!(
            given.unwrap().gc.config(),
            GcConfig {
                eval_interval: seconds(1),
                eval_threshold: seconds(2),
                batch_eval_threshold: seconds(3),
                job_interval: seconds(4),
                job_threshold: seconds(5),
                deployment_interval: seconds(6),
                deployment_threshold: seconds(7),
                node_interval: seconds(8),
                node_threshold: seconds(9),
            }
        );
    }

    #[test]
    fn an_interval_of_nothing_is_refused() {
        assert!(TestArgs::try_parse_from(["muster", "--job-gc-interval=0"]).is_err());
    }
}
