//! The identity of a driver, its capabilities and its health on this node.

use std::collections::BTreeMap;

use crate::network::NetworkMode;

/// The identity of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginInfo {
    /// Name that jobs use as `driver = "…"`.
    pub name: String,
    /// Version of the driver.
    pub version: String,
    /// The versions of the plugin interface that the plugin supports.
    pub api_versions: Vec<String>,
}

/// The isolation of a task's file system from the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsIsolation {
    /// The task uses the host's file system.
    #[default]
    None,
    /// A root directory made from the host's files.
    Chroot,
    Image,
    /// The host's file system with only the named paths visible.
    Unveil,
}

/// Whether a job may ask for mounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MountConfigs {
    #[default]
    Any,
    None,
}

/// The capabilities of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent capability of the protocol"
)]
pub struct Capabilities {
    /// The driver can send signals to tasks.
    pub send_signals: bool,
    /// The driver can run commands in tasks.
    pub exec: bool,
    /// The isolation of the tasks' file systems.
    pub fs_isolation: FsIsolation,
    /// The network modes in which the driver can run a task; empty means only the host's.
    pub network_modes: Vec<NetworkMode>,
    /// The host must leave network namespaces to the driver.
    pub must_create_network: bool,
    /// Whether jobs may ask for mounts.
    pub mount_configs: MountConfigs,
    /// The tasks run on other machines and outlive the node.
    pub remote_tasks: bool,
    /// The driver collects its tasks' output itself; the host collects none.
    pub disable_log_collection: bool,
    /// The driver can run tasks as users without an entry in a user database.
    pub dynamic_workload_users: bool,
    /// The driver puts tasks into the cgroup that the host names, and the host sets and changes the limits of that
    /// cgroup. This field extends Nomad's protocol.
    pub joins_cgroup: bool,
}

/// Whether a driver can work on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// A prerequisite is missing.
    Undetected,
    /// A prerequisite is present and does not work.
    Unhealthy,
    Healthy,
}

/// A value that a driver adds to its node.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Bool(bool),
    /// An integer and its unit; the unit may be empty.
    Int(i64, String),
    /// A fractional number and its unit; the unit may be empty.
    Float(f64, String),
    Text(String),
}

/// The state of a driver at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Fingerprint {
    /// Attributes that the driver adds to the node, by full name (`driver.<name>…`).
    pub attributes: BTreeMap<String, Attribute>,
    pub health: Health,
    /// The health as text, with a remedy if the driver is not healthy.
    pub health_description: String,
    /// The error that prevented the driver from determining its health.
    pub err: Option<String>,
}
