//! The configuration of an agent.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use ipnet::Ipv4Net;
use muster_agent_core::gc::GcConfig;
use muster_agent_core::policy::NodePolicy;
use muster_domain::job::DEFAULT_NODE_POOL;
use muster_domain::node::{DeviceGroup, HostAddress, HostVolume};
use muster_domain::resources::Amount;
use muster_driver::TaskDriver;
use muster_link::certificates::Certificates;

use crate::monitoring::fingerprint::hostname;
use crate::network::bridge::DEFAULT_SUBNET;
use crate::network::cni::CniSettings;
use crate::resources::users::UserRange;
use crate::ring::RingConfig;
use crate::storage::disk::DiskEnforcement;
use crate::storage::roots::ChrootEnv;
use crate::tasks::drivers::plugin::PluginSettings;

/// The fate of tasks when the agent stops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownPolicy {
    /// Tasks run on, and the next agent on the data directory adopts them.
    KeepTasks,
    /// Tasks are stopped first, and then the driver's process.
    StopTasks,
}

/// The configuration of an agent.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a setting of the operator"
)]
#[derive(Debug)]
pub struct AgentConfig {
    /// The directory of all files of the agent.
    pub data_dir: PathBuf,
    /// Initial servers; one connection is held. The servers then report the addresses of all servers.
    pub servers: Vec<SocketAddr>,
    /// The agent's certificates; they name the cluster.
    pub certificates: Certificates,
    /// The node's name for people; the host's name unless set.
    pub name: String,
    /// The datacenter of the node.
    pub datacenter: String,
    /// Free classification by the operator; may be empty.
    pub class: String,
    /// The pool of the node.
    pub pool: String,
    /// Free key-value pairs by the operator.
    pub meta: BTreeMap<String, String>,
    /// The resources that are kept from tasks.
    pub reserved: Amount,
    /// Cores that are kept from tasks, sorted.
    pub reserved_cores: Vec<u16>,
    /// Ports that are kept from tasks on every address, sorted.
    pub reserved_ports: Vec<u16>,
    /// Addresses besides the one towards the servers. That one is `default` unless an address here has this name.
    pub addresses: Vec<HostAddress>,
    /// Directories that jobs may ask for, by name. A missing directory is not offered.
    pub host_volumes: BTreeMap<String, HostVolume>,
    /// Devices that jobs may ask for. The agent passes a task the ids of its devices, and does not prevent other
    /// tasks from using them.
    pub devices: Vec<DeviceGroup>,
    /// The command of the native driver's process; the path of its socket is added as the last argument. Without a
    /// command, the node has no native driver.
    pub driver_command: Vec<OsString>,
    /// Variables for the native driver's process, besides PATH and a few more of the agent's own.
    pub driver_env: Vec<(OsString, OsString)>,
    /// Directory of driver plugins: every executable in it is one.
    pub plugin_dir: Option<PathBuf>,
    /// The settings of drivers, by name of the driver or of its file in `plugin_dir`.
    pub plugins: BTreeMap<String, PluginSettings>,
    /// Drivers that live in the agent's process, by name.
    pub drivers: Vec<(String, Arc<dyn TaskDriver>)>,
    /// The node's additions to every task's network policy, besides its servers.
    pub network: NodePolicy,
    /// Addresses of allocations that have a network of their own.
    pub bridge_subnet: Ipv4Net,
    /// The directories of CNI plugins and configurations.
    pub cni: CniSettings,
    /// The host paths that appear in the roots of tasks whose drivers change into such a root.
    pub chroot_env: ChrootEnv,
    /// Users for tasks that name none, where drivers run tasks as users that no database knows.
    pub users: UserRange,
    /// The treatment of allocations that write more than their ephemeral disk.
    pub disk: DiskEnforcement,
    /// Collection of finished allocations.
    pub gc: GcConfig,
    /// The settings of the log loop.
    pub ring: RingConfig,
    /// Allocations that the node takes at once; 0 leaves the number to the machine's limits.
    pub max_allocs: u32,
    /// Refuses tasks whose memory or number of processes cannot be limited on this machine. Otherwise the task
    /// runs, and an event names the missing limits.
    pub strict_limits: bool,
    /// Runs tasks with a network although eBPF programs are absent, with an event about it. Without the programs,
    /// tasks can reach metadata, control plane and private ports. Such tasks are refused by default. A task with a
    /// requested policy is refused in any case.
    pub allow_tasks_without_network_policy: bool,
    /// Tasks may speak to servers as clients do, if their policies let them. A task that reaches a server's HTTP port
    /// has full control of the cluster.
    pub allow_api_from_tasks: bool,
    /// Lets tasks with their own network reach every listener of this machine, if their policies allow it.
    /// Otherwise they reach ports that allocations of the node hold, and their configured resolver.
    pub allow_host_from_bridge: bool,
    /// The agent's own `/proc/self/oom_score_adj`, by which the kernel prefers other processes as victims when
    /// memory runs out. `None` leaves it as it is. Drivers and tasks do not inherit it.
    pub oom_score_adj: Option<i16>,
}

impl AgentConfig {
    /// Returns defaults for a data directory, servers, certificates and the native driver's command.
    #[must_use]
    pub fn new(
        data_dir: PathBuf,
        servers: Vec<SocketAddr>,
        certificates: impl Into<Certificates>,
        driver_command: Vec<OsString>,
    ) -> Self {
        Self {
            data_dir,
            servers,
            certificates: certificates.into(),
            name: hostname(),
            datacenter: "dc1".to_owned(),
            class: String::new(),
            pool: DEFAULT_NODE_POOL.to_owned(),
            meta: BTreeMap::new(),
            reserved: Amount::default(),
            reserved_cores: Vec::new(),
            reserved_ports: Vec::new(),
            addresses: Vec::new(),
            host_volumes: BTreeMap::new(),
            devices: Vec::new(),
            driver_command,
            driver_env: Vec::new(),
            plugin_dir: None,
            plugins: BTreeMap::new(),
            drivers: Vec::new(),
            network: NodePolicy::default(),
            bridge_subnet: DEFAULT_SUBNET,
            cni: CniSettings::default(),
            chroot_env: ChrootEnv::default(),
            users: UserRange::default(),
            disk: DiskEnforcement::default(),
            gc: GcConfig::default(),
            ring: RingConfig::from_env(),
            max_allocs: 0,
            strict_limits: false,
            allow_tasks_without_network_policy: false,
            allow_api_from_tasks: false,
            allow_host_from_bridge: false,
            oom_score_adj: None,
        }
    }
}

/// A host volume as the command line has it: `name=path`, with `:ro` behind it if it may only be read.
///
/// # Errors
///
/// A description of the fault.
pub fn parse_host_volume(text: &str) -> Result<(String, HostVolume), String> {
    let malformed = || format!("`{text}` is not NAME=PATH or NAME=PATH:ro with an absolute path");
    let (name, path) = text.split_once('=').ok_or_else(malformed)?;
    let (path, read_only) = match path.strip_suffix(":ro") {
        Some(path) => (path, true),
        None => (path, false),
    };
    if name.is_empty() || !path.starts_with('/') {
        return Err(malformed());
    }
    let path = path.to_owned();
    Ok((name.to_owned(), HostVolume { path, read_only }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_volumes_are_read() {
        let (name, volume) = parse_host_volume("certs=/etc/ssl:ro").unwrap();

        assert_eq!((name.as_str(), volume.path.as_str()), ("certs", "/etc/ssl"));
        assert!(volume.read_only);
        assert!(!parse_host_volume("a=/b").unwrap().1.read_only);
        for wrong in ["", "a", "a=", "a=b", "=/b", "a=:ro"] {
            assert!(parse_host_volume(wrong).is_err(), "{wrong}");
        }
    }
}
