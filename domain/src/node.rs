//! Nodes: the machines of the fleet.
//!
//! A [`NodeSpec`] is the fingerprint of the agent. A [`Node`] is the row of the state table: the newest spec and the
//! node's state as the control plane sees it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::fault::Fault;
use crate::id::{LogIndex, NodeId, Timestamp};
use crate::limits;
use crate::resources::Amount;

mod collected;
mod device;
mod drain;

pub use collected::{GcReason, KeptReason, NodeCollected, Thresholds};
pub use device::{DeviceGroup, DeviceInstance, HostAddress, HostVolume};
pub use drain::{Drain, DrainSpec};

/// The attribute of a node that can connect allocations with networks of their own by a bridge.
pub const NETWORK_BRIDGE: &str = "network.bridge";

/// The prefix of the attributes that list a node's CNI networks.
pub const NETWORK_CNI_PREFIX: &str = "network.cni.";

/// The attribute of a node that has the CNI network `name`; its value is the version of the configuration.
#[must_use]
pub fn cni_network_attribute(name: &str) -> String {
    format!("{NETWORK_CNI_PREFIX}{name}")
}

/// Events that are kept of a node, as in Nomad.
pub const NODE_EVENTS_MAX: usize = 10;
/// Bytes of the message of an event.
pub const NODE_EVENT_BYTES_MAX: usize = 512;

/// A secret that an agent creates at its first start and keeps in its data directory. A caller without the secret
/// cannot register as the node.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSecret(pub [u8; 32]);

impl NodeSecret {
    /// The hash that servers keep.
    #[must_use]
    pub fn hash(&self) -> NodeSecretHash {
        NodeSecretHash(Sha256::digest(self.0).into())
    }
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSecret")
    }
}

/// The SHA-256 of a [`NodeSecret`].
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSecretHash(pub [u8; 32]);

impl fmt::Debug for NodeSecretHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSecretHash")
    }
}

/// The part of Muster that an event of a node is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NodeSubsystem {
    /// Registration, heartbeats and eligibility.
    Cluster,
    /// The emptying of the node.
    Drain,
    /// The node's own storage.
    Storage,
    Driver,
}

crate::text_enum!(pub NodeSubsystem {
    Cluster => "Cluster",
    Drain => "Drain",
    Storage => "Storage",
    Driver => "Driver",
});

/// An event of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeEvent {
    /// The part of Muster that it is about.
    pub subsystem: NodeSubsystem,
    /// A sentence for a human reader, at most [`NODE_EVENT_BYTES_MAX`] bytes.
    pub message: String,
    /// Facts for programs, such as `agent_address`. Keys and values have at most [`NODE_EVENT_BYTES_MAX`] bytes together.
    pub details: BTreeMap<String, String>,
    /// The time of the entry that recorded it.
    pub at: Timestamp,
    /// The entry that recorded it.
    pub index: LogIndex,
}

/// The machine's properties as its agent found them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeSpec {
    /// Chosen at the first start, kept in the data directory.
    pub id: NodeId,
    /// The display name; default is the host name.
    pub name: String,
    /// The datacenter of the node; default `dc1`.
    pub datacenter: String,
    /// Free classification by the operator; may be empty.
    pub class: String,
    /// The pool of the node; default `default`.
    pub pool: String,
    /// Facts found, such as `cpu.arch` = `amd64`. Keys starting with `unique.` differ on every node.
    pub attributes: BTreeMap<String, String>,
    /// Free key-value pairs by the operator.
    pub meta: BTreeMap<String, String>,
    /// Resources of the machine.
    pub resources: NodeResources,
    /// Resources that the operator withholds from tasks.
    pub reserved: Amount,
    /// Cores reserved from tasks.
    pub reserved_cores: Vec<u16>,
    /// Ports on every address that are reserved from tasks, sorted.
    pub reserved_ports: Vec<u16>,
    /// The node's addresses by the name of their host network; `default` is the one that tasks use.
    pub addresses: Vec<HostAddress>,
    /// Host volumes by name.
    pub volumes: BTreeMap<String, HostVolume>,
    pub devices: Vec<DeviceGroup>,
    pub drivers: BTreeMap<String, DriverInfo>,
    /// Muster's version on the node.
    pub version: String,
    /// The address from which the agent connects, for display.
    pub address: String,
    /// The hash of the secret with which the node registers.
    pub secret_hash: NodeSecretHash,
}

impl NodeSpec {
    /// Resources that tasks may use: the total minus the reservation.
    #[must_use]
    pub fn usable(&self) -> Amount {
        Amount {
            allocs: match self.resources.max_allocs {
                0 => u64::MAX,
                max => max.into(),
            },
            ..self.resources.total.minus(self.reserved)
        }
    }

    /// Whether the driver `name` is there and healthy.
    #[must_use]
    pub fn has_driver(&self, name: &str) -> bool {
        self.drivers
            .get(name)
            .is_some_and(|driver| driver.detected && driver.healthy)
    }

    /// Returns all faults in a spec that an agent sent.
    #[must_use]
    pub fn faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (field, text) in [
            ("name", &self.name),
            ("datacenter", &self.datacenter),
            ("pool", &self.pool),
        ] {
            if text.is_empty() || text.len() > limits::NAME_BYTES_MAX {
                faults.push(Fault::new(
                    format!("node → {field}"),
                    format!("must have 1 to {} bytes", limits::NAME_BYTES_MAX),
                ));
            }
        }
        if self.attributes.len() + self.meta.len() > limits::NODE_ATTRIBUTES_MAX {
            faults.push(Fault::new(
                "node → attributes",
                format!(
                    "more than {} attributes and metadata",
                    limits::NODE_ATTRIBUTES_MAX
                ),
            ));
        }
        faults
    }
}

/// The resources of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeResources {
    /// MHz over all cores, memory, disk for allocations.
    pub total: Amount,
    pub cores: u32,
    /// Cores that tasks may hold exclusively, by number, sorted; empty if the node cannot assign cores.
    pub core_ids: Vec<u16>,
    /// Allocations that may be on the node at once, `node_max_allocs`; 0 means no limit.
    pub max_allocs: u32,
}

impl NodeResources {
    /// The speed of one core, in MHz.
    #[must_use]
    pub fn mhz_per_core(&self) -> u64 {
        self.total.cpu_mhz / u64::from(self.cores.max(1))
    }
}

/// A driver as the agent found it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    /// Whether the driver's dependencies are installed.
    pub detected: bool,
    /// Whether the driver can run tasks.
    pub healthy: bool,
    /// Reason for the bad health, or `Healthy`.
    pub description: String,
    pub attributes: BTreeMap<String, String>,
}

/// The attribute of a node that is `1` if `driver` can change a running task's limits.
#[must_use]
pub fn limits_in_place(driver: &str) -> String {
    format!("driver.{driver}.limits_in_place")
}

/// The state of a node as the control plane sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum NodeStatus {
    /// Registered, no heartbeat yet.
    Initializing,
    Ready,
    /// Heartbeats stopped; its allocations are lost.
    Down,
    /// Heartbeats stopped; some of its allocations may come back with it.
    Disconnected,
}

crate::text_enum!(pub NodeStatus {
    Initializing => "initializing",
    Ready => "ready",
    Down => "down",
    Disconnected => "disconnected",
});

/// Whether a node takes new allocations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Eligibility {
    Eligible,
    /// An operator set the node ineligible.
    Ineligible,
}

crate::text_enum!(pub Eligibility: "eligibility" {
    Eligible => "eligible",
    Ineligible => "ineligible",
});

/// A registered node: a row of the state table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub spec: Arc<NodeSpec>,
    /// State of the node as the control plane sees it.
    pub status: NodeStatus,
    /// Time of the last status change.
    pub status_at: Timestamp,
    /// Whether the node takes new allocations.
    pub eligibility: Eligibility,
    /// The drain under way, if there is one.
    pub drain: Option<Drain>,
    /// The newest [`NODE_EVENTS_MAX`] events, oldest first.
    pub events: Arc<Vec<NodeEvent>>,
    /// The entry that registered it.
    pub create_index: LogIndex,
    /// The last entry that changed this row.
    pub modify_index: LogIndex,
}

impl Node {
    /// Whether the scheduler may place allocations on the node.
    #[must_use]
    pub fn takes_work(&self) -> bool {
        self.status == NodeStatus::Ready
            && self.eligibility == Eligibility::Eligible
            && self.drain.is_none()
    }

    /// The events of the node with `event` as the newest.
    #[must_use]
    pub fn events_with(&self, event: NodeEvent) -> Arc<Vec<NodeEvent>> {
        let mut events = (*self.events).clone();
        events.push(event);
        let surplus = events.len().saturating_sub(NODE_EVENTS_MAX);
        events.drain(..surplus);
        Arc::new(events)
    }
}
