//! Networks as far as drivers have to do with them.

use std::collections::BTreeMap;

/// The tasks that share a network namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NetworkMode {
    /// Everybody on the host.
    #[default]
    Host,
    /// The tasks of an allocation.
    Group,
    /// Nobody: a namespace for each task.
    Task,
    /// Nobody, and it leads nowhere.
    None,
}

/// A network namespace for a task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkIsolation {
    /// The tasks that share it.
    pub mode: NetworkMode,
    /// File that stands for the namespace.
    pub path: String,
    /// The driver's own notes.
    pub labels: BTreeMap<String, String>,
    /// Name of the host in the namespace; empty is none.
    pub hostname: String,
    /// Address for that name.
    pub address: String,
}

/// A network that a driver made for an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreatedNetwork {
    pub isolation: NetworkIsolation,
    /// `false` when it was there before the call.
    pub created: bool,
}

/// How far a task gets where no host holds it to a network policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskReach {
    /// Every address that the machine's network, or its allocation's, leads to.
    #[default]
    Network,
    /// Nothing: it has no network but loopback of its own.
    Itself,
    /// It is not isolated: where its node allows that, it may be root, and then no policy holds it anyway.
    Machine,
}

/// Where a task is reached when its driver put it on a network of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkOverride {
    pub port_map: BTreeMap<String, i32>,
    /// Address of the task.
    pub addr: String,
    /// Services are registered with this address.
    pub auto_advertise: bool,
}
