//! Networks of allocations, and refused packets.
//!
//! | module | subject |
//! |---|---|
//! | `alloc_network` | the network of one allocation |
//! | `bridge` | network mode `bridge` |
//! | `cni` | networks that CNI plugins make |
//! | `listeners` | sockets on which server processes of this machine listen |
//! | `names`, `namespace` | host names, ports and namespaces of allocations |
//! | `node_rules` | the node's additions to policies of tasks |
//! | `setup` | parts of the agent that set up networks |
//! | `verdicts` | packets that network policies refused |

pub(crate) mod alloc_network;
pub(crate) mod bridge;
pub(crate) mod cni;
mod listeners;
pub(crate) mod names;
pub(crate) mod namespace;
pub(crate) mod node_rules;
pub(crate) mod setup;
pub(crate) mod verdicts;

use std::sync::Arc;

use muster_domain::id::AllocId;

use crate::tasks::drivers::networks::DriverNetworks;
use alloc_network::AllocNetwork;
use bridge::Bridge;
use cni::CniNetworks;
use node_rules::NodeRules;
use verdicts::VerdictLog;

/// Networks and network policy of one node.
#[derive(Debug)]
pub(crate) struct NetworkContext {
    /// The node's additions to every task's network policy.
    pub(crate) rules: NodeRules,
    pub(crate) bridge: Bridge,
    /// Networks of allocations that CNI plugins set up.
    pub(crate) cni: Arc<CniNetworks>,
    /// Network namespaces that drivers made.
    pub(crate) driver_networks: DriverNetworks,
    /// The newest verdicts on packets of tasks.
    pub(crate) verdicts: VerdictLog,
    /// A task that has a network starts although no eBPF program enforces its policy.
    pub(crate) allow_tasks_without_network_policy: bool,
}

impl NetworkContext {
    /// The current network of an allocation that has its own network.
    pub(crate) fn of(&self, alloc_id: AllocId) -> Option<Arc<AllocNetwork>> {
        let bridged = self.bridge.of(alloc_id);
        bridged.or_else(|| self.cni.of(alloc_id))
    }
}
