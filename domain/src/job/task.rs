//! Tasks: one process tree each.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Constraint;
use crate::resources::{Mb, TaskResources};

/// One process tree, run by a driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// Unique within the group.
    pub name: String,
    /// The driver's name, such as `native`.
    pub driver: String,
    /// The driver's configuration: a JSON object, kept as text so that no recursive value is ever
    /// decoded from the log.
    pub config_json: String,
    /// User to run as, by name or number; empty means the driver's default.
    pub user: String,
    /// Environment, besides what the agent adds.
    pub env: BTreeMap<String, String>,
    /// What it asks for.
    pub resources: TaskResources,
    /// Conditions on the node, besides the job's and the group's.
    pub constraints: Vec<Constraint>,
    /// From the kill signal to force; 5 s unless said.
    pub kill_timeout: Duration,
    /// The signal that asks it to stop; `SIGTERM` unless said.
    pub kill_signal: String,
    /// Rotation of its output.
    pub logs: LogConfig,
    /// Free key-value pairs.
    pub meta: BTreeMap<String, String>,
}

impl Task {
    /// The kill timeout of a task that names none.
    pub const DEFAULT_KILL_TIMEOUT: Duration = Duration::from_secs(5);
    /// The kill signal of a task that names none.
    pub const DEFAULT_KILL_SIGNAL: &'static str = "SIGTERM";
}

/// Rotation of a task's output. Each of stdout and stderr has its own files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogConfig {
    /// Files kept; 10 unless said.
    pub max_files: u32,
    /// Size of each; 10 MiB unless said.
    pub max_file_size: Mb,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            max_files: 10,
            max_file_size: Mb(10),
        }
    }
}
