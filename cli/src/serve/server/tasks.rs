//! How a server keeps one-off tasks and tells of them. Times are Diego's unless given.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
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
    /// From a task's completion, after which a callback that nobody took is given up.
    #[arg(long, default_value = "1h", value_name = "TIME", value_parser = duration::parse)]
    pub task_callback_deadline: Duration,
    /// Keep callbacks from loopback and private addresses.
    #[arg(long)]
    pub task_callback_public_only: bool,
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
            callback_deadline: self.task_callback_deadline,
            callback_private: !self.task_callback_public_only,
            callback_ca: file(&self.task_callback_ca)?,
            callback_key: file(&self.task_callback_key)?,
        })
    }
}
