//! The kernel's resource controllers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kernel resource controller that the agent supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Controller {
    /// CPU time: weight and quota.
    Cpu,
    /// CPU time used. It is a separate controller only in v1, and part of `cpu` in v2.
    Cpuacct,
    /// CPUs and memory nodes.
    Cpuset,
    /// Block I/O: `io` in v2, `blkio` in v1.
    Io,
    Memory,
    Pids,
}

impl Controller {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Cpu,
        Self::Cpuacct,
        Self::Cpuset,
        Self::Io,
        Self::Memory,
        Self::Pids,
    ];

    /// The controllers that a task's limits need. Every v2 group counts used CPU time, also if controllers are bound to
    /// v1, so `cpuacct` is not included.
    pub(crate) const USED: [Self; 3] = [Self::Cpu, Self::Memory, Self::Pids];

    /// The controller's name in v2, and in attributes.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Io => "io",
            Self::Memory => "memory",
            Self::Pids => "pids",
        }
    }

    pub(super) fn v1_name(self) -> &'static str {
        if self == Self::Io {
            "blkio"
        } else {
            self.name()
        }
    }

    /// The controller that provides its numbers in v2.
    pub(super) fn v2_name(self) -> &'static str {
        if self == Self::Cpuacct {
            "cpu"
        } else {
            self.name()
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
