//! The networks of tasks, as far as drivers handle them.

use std::collections::BTreeMap;

/// The tasks that share a network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// All processes on the host.
    #[default]
    Host,
    /// The tasks of an allocation.
    Group,
    /// No other task: each task has its own namespace.
    Task,
    /// No other task, and the namespace has no connection to a network.
    None,
}

/// A network namespace for a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkIsolation {
    /// The tasks that share the namespace.
    pub mode: NetworkMode,
    /// The file that represents the namespace.
    pub path: String,
    /// Labels that the driver stores for itself.
    pub labels: BTreeMap<String, String>,
    /// The host name in the namespace; empty means none.
    pub hostname: String,
    /// The address of that host name.
    pub address: String,
}

/// A network that a driver created for an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreatedNetwork {
    pub isolation: NetworkIsolation,
    /// `false` when the network existed before the call.
    pub created: bool,
}

/// The reach of a task while no host enforces a network policy on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReach {
    /// Every address that the network of the machine or of the allocation leads to.
    #[default]
    Network,
    /// No network except the task's own loopback.
    Itself,
    /// The task is not isolated. Where the node allows it, the task may be root, and then no policy can be enforced on
    /// it.
    Machine,
}

/// The address of a task whose driver put it on a separate network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkOverride {
    pub port_map: BTreeMap<String, i32>,
    /// Address of the task.
    pub addr: String,
    /// Services are registered with this address.
    pub auto_advertise: bool,
}
