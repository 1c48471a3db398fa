//! How a server keeps one-off tasks and tells of them. Times are Diego's unless given.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use muster_control::server::TasksConfig;
use muster_wire::api::duration;

use super::super::absolute;
use crate::exit::CliError;

/// How one-off tasks are kept and told of; times such as `30s`, `5m` or `24h`.
#[derive(Debug, Args)]
#[command(next_help_heading = "One-off tasks")]
pub struct TasksArgs {
    /// In which a task must start.
    #[arg(long, default_value = "30m", value_name = "TIME", value_parser = duration::parse)]
    pub task_start_timeout: Duration,
    /// For which a completed task is kept.
    #[arg(long, default_value = "2m", value_name = "TIME", value_parser = duration::parse)]
    pub task_retention: Duration,
    /// For which a client's claim on a completed task holds.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration::parse)]
    pub task_claim: Duration,
    /// After which a task is taken for gone whose node was found gone; its agent ends it 30 s before that. The leader's counts
    /// for all.
    #[arg(long, default_value = "1m", value_name = "TIME", value_parser = duration::parse)]
    pub task_lost_after: Duration,
    /// For which a callback that is being made is nobody else's, three times its wait at least. The leader's counts for all.
    #[arg(long, default_value = "30s", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_claim: Duration,
    /// In which a call must be answered, redirects and all.
    #[arg(long, default_value = "10s", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_wait: Duration,
    /// Between a callback's first failure and the next call; it doubles with every failure.
    #[arg(long, default_value = "1s", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_pause: Duration,
    /// The longest such pause.
    #[arg(long, default_value = "5m", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_pause_max: Duration,
    /// From a task's completion, after which a callback that nobody took is given up.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_deadline: Duration,
    /// Redirects that a callback follows, with the same body; 0: a redirect is a failure.
    #[arg(long, default_value_t = 0, value_name = "COUNT")]
    pub task_callback_redirects: u32,
    /// Keep callbacks from loopback and private addresses that are not allowed below. Without this flag they may go there:
    /// clients of one-off tasks are usually in the same private network. Servers and cloud metadata are never called.
    #[arg(long)]
    pub task_callback_public_only: bool,
    /// Addresses that callbacks may go to, such as 10.1.0.0/16; of those allowed and denied the longest prefix decides.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub task_callback_allow: Vec<IpNet>,
    /// Addresses that callbacks may not go to.
    #[arg(long, value_name = "CIDR", value_delimiter = ',')]
    pub task_callback_deny: Vec<IpNet>,
    /// Certificates that callbacks by HTTPS are checked with, in PEM; the machine's unless given.
    #[arg(long, value_name = "FILE")]
    pub task_callback_ca: Option<PathBuf>,
    /// A file with the key that callbacks are signed with; they are not unless given.
    #[arg(long, value_name = "FILE")]
    pub task_callback_key: Option<PathBuf>,
}

impl TasksArgs {
    /// The configuration.
    ///
    /// # Errors
    ///
    /// If the working directory is gone.
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
