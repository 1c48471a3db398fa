//! A server's settings for keeping and reporting one-off tasks. Times are Diego's by default.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use muster_control::server::TasksConfig;
use muster_wire::api::duration;

use super::super::absolute;
use crate::exit::CliError;

/// Times of one-off tasks, such as `30s`, `5m` or `24h`.
#[derive(Debug, Args)]
#[command(next_help_heading = "One-off tasks")]
pub struct TasksArgs {
    /// Time in which a task must start.
    #[arg(long, default_value = "30m", value_name = "TIME", value_parser = duration::parse)]
    pub task_start_timeout: Duration,
    /// Time for which a completed task is kept.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration::parse)]
    pub task_retention: Duration,
    /// Time for which a client's claim on a completed task holds.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration::parse)]
    pub task_claim: Duration,
    /// Time after which a task on a node that is down is lost. Its agent stops it 30 s earlier. The leader's value
    /// counts for the cluster.
    #[arg(long, default_value = "1m", value_name = "TIME", value_parser = duration::parse)]
    pub task_lost_after: Duration,
    /// Time for which one server owns a callback, at least three times its wait. The leader's value counts for the
    /// cluster.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_claim: Duration,
    /// Time in which a callback must be answered, redirects included.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_wait: Duration,
    /// Pause after a callback's first failure. It doubles with every failure.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_pause: Duration,
    /// Longest pause between two calls.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_pause_max: Duration,
    /// Time from a task's completion to the end of its callback attempts.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_deadline: Duration,
    /// Redirects that a callback follows, with the same body. With 0, a redirect is a failure.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub task_callback_redirects: u32,
    /// Allow loopback and private addresses only as listed in --task-callback-allow. Without this flag they are
    /// allowed, because clients are usually in the same private network. Servers and cloud metadata are never called.
    #[arg(long)]
    pub task_callback_public_only: bool,
    /// Addresses that callbacks may reach, such as 10.1.0.0/16. The longest prefix of allowed and denied ones
    /// decides.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub task_callback_allow: Vec<IpNet>,
    /// Addresses that callbacks may not reach.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub task_callback_deny: Vec<IpNet>,
    /// Certificates in PEM to check callbacks by HTTPS. Default: the machine's.
    #[arg(long, value_name = "FILE")]
    pub task_callback_ca: Option<PathBuf>,
    /// File with the key that signs callbacks. Default: no signature.
    #[arg(long, value_name = "FILE")]
    pub task_callback_key: Option<PathBuf>,
}

impl TasksArgs {
    /// The configuration.
    ///
    /// # Errors
    ///
    /// If the working directory was deleted.
    pub(super) fn config(&self) -> Result<TasksConfig, CliError> {
        let file = |path: &Option<PathBuf>| {
            path.as_deref()
                .map(|path: &Path| absolute(path))
                .transpose()
        };
        Ok(TasksConfig {
            start_timeout: self.task_start_timeout,
            retention: self.task_retention,
            claim: self.task_claim,
            lost_after: self.task_lost_after,
            callback_claim: self.task_callback_claim,
            callback_wait: self.task_callback_wait,
            callback_pause: self.task_callback_pause,
            callback_pause_max: self.task_callback_pause_max,
            callback_deadline: self.task_callback_deadline,
            callback_redirects: self.task_callback_redirects,
            callback_private: !self.task_callback_public_only,
            callback_allow: self.task_callback_allow.clone(),
            callback_deny: self.task_callback_deny.clone(),
            callback_ca: file(&self.task_callback_ca)?,
            callback_key: file(&self.task_callback_key)?,
        })
    }
}
