//! The identity of a driver, its capabilities and its state on this node.

use std::collections::BTreeMap;

use crate::network::NetworkMode;

/// The identity of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginInfo {
    /// Name that jobs use as `driver = "…"`.
    pub name: String,
    /// Version of the driver.
    pub version: String,
    /// Versions of the plugin interface that it speaks.
    pub api_versions: Vec<String>,
}

/// How a task's file system is kept from the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FsIsolation {
    /// It is the host's.
    #[default]
    None,
    /// A root directory made from the host's files.
    Chroot,
    Image,
    /// The host's, with only named paths to be seen.
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
    /// It can send signals to tasks.
    pub send_signals: bool,
    /// It can run commands in tasks.
    pub exec: bool,
    /// How it isolates file systems.
    pub fs_isolation: FsIsolation,
    /// Network modes it can run a task in; empty is the host's only.
    pub network_modes: Vec<NetworkMode>,
    /// The host must leave network namespaces to the driver.
    pub must_create_network: bool,
    /// Whether jobs may ask for mounts.
    pub mount_configs: MountConfigs,
    /// Its tasks run elsewhere and outlive the node.
    pub remote_tasks: bool,
    /// It takes its tasks' output itself: the host collects none.
    pub disable_log_collection: bool,
    /// It can run tasks as users that no database knows.
    pub dynamic_workload_users: bool,
    /// It puts tasks into the cgroup that the host names, whose limits are the host's to set and to change. Beyond
    /// Nomad's protocol.
    pub joins_cgroup: bool,
}

/// Whether a driver can work on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// A prerequisite is missing.
    Undetected,
    /// A prerequisite is there and does not work.
    Unhealthy,
    Healthy,
}

/// A value that a driver adds to its node.
#[derive(Clone, Debug, PartialEq)]
pub enum Attribute {
    Bool(bool),
    /// A number, with its unit or an empty one.
    Int(i64, String),
    /// A fractional number, with its unit or an empty one.
    Float(f64, String),
    Text(String),
}

/// How a driver is at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Fingerprint {
    /// Attributes that the driver adds to the node, by full name (`driver.<name>…`).
    pub attributes: BTreeMap<String, Attribute>,
    pub health: Health,
    /// The same in words, with the way out if it does not.
    pub health_description: String,
    /// The error that kept the driver from finding out.
    pub err: Option<String>,
}
