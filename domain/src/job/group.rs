//! Task groups: tasks that are placed together.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Constraint, JobType, Task};
use crate::resources::{Amount, Mb};

/// Tasks that share a node, an allocation directory and a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskGroup {
    /// Unique within the job.
    pub name: String,
    /// Instances; 1 unless said.
    pub count: u32,
    /// Conditions on the node, besides the job's.
    pub constraints: Vec<Constraint>,
    /// What happens when a task of the group ends by itself.
    pub restart: RestartPolicy,
    /// Disk shared by the group's tasks.
    pub ephemeral_disk: EphemeralDisk,
    /// Network and ports; `None` means the host's network and no ports.
    pub network: Option<GroupNetwork>,
    /// Free key-value pairs.
    pub meta: BTreeMap<String, String>,
    /// At least one.
    pub tasks: Vec<Task>,
}

impl TaskGroup {
    /// What one instance asks for.
    #[must_use]
    pub fn ask(&self) -> Amount {
        let mut sum = Amount {
            disk_mb: u64::from(self.ephemeral_disk.size.0),
            ..Amount::default()
        };
        for task in &self.tasks {
            sum.cpu_mhz += u64::from(task.resources.cpu.0);
            sum.memory_mb += u64::from(task.resources.memory.0);
        }
        sum
    }

    /// The task called `name`.
    #[must_use]
    pub fn task(&self, name: &str) -> Option<&Task> {
        self.tasks.iter().find(|task| task.name == name)
    }
}

/// Disk shared by a group's tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EphemeralDisk {
    /// Counted in placement; 300 MiB unless said.
    pub size: Mb,
}

impl Default for EphemeralDisk {
    fn default() -> Self {
        Self { size: Mb(300) }
    }
}

/// What happens when a task ends by itself: it is started again on the same node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartPolicy {
    /// Restarts allowed within `interval`.
    pub attempts: u32,
    /// The window in which restarts are counted.
    pub interval: Duration,
    /// The pause before each restart.
    pub delay: Duration,
    /// What happens when the attempts are used up.
    pub mode: RestartMode,
}

impl RestartPolicy {
    /// Nomad's default for a job of type `job_type`.
    #[must_use]
    pub fn default_for(job_type: JobType) -> Self {
        match job_type {
            JobType::Service | JobType::System => Self {
                attempts: 2,
                interval: Duration::from_mins(30),
                delay: Duration::from_secs(15),
                mode: RestartMode::Fail,
            },
            JobType::Batch | JobType::SysBatch => Self {
                attempts: 3,
                interval: Duration::from_hours(24),
                delay: Duration::from_secs(15),
                mode: RestartMode::Fail,
            },
        }
    }
}

/// What happens when a task's restarts are used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RestartMode {
    /// Wait until the interval is over, then count afresh.
    Delay,
    /// The task has failed, and its allocation with it.
    Fail,
}

impl RestartMode {
    /// The word used in job files and in the API.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Delay => "delay",
            Self::Fail => "fail",
        }
    }

    /// The mode that `word` names.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Delay, Self::Fail]
            .into_iter()
            .find(|mode| mode.word() == word)
    }
}

/// How a group is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkMode {
    /// The host's network stack.
    Host,
}

/// Network and ports of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupNetwork {
    /// How it is connected.
    pub mode: NetworkMode,
    /// Ports it needs.
    pub ports: Vec<PortAsk>,
}

/// A port that a group needs on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortAsk {
    /// The name by which tasks find it: `NOMAD_PORT_<label>`.
    pub label: String,
    /// This host port and no other; `None` means any free one.
    pub fixed: Option<u16>,
    /// The port inside the allocation's network; 0 means the same.
    pub to: u16,
}
