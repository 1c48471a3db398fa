//! The context that every allocation of the node shares, one part for each subject.

use std::sync::Arc;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::id::AllocId;
use tokio::sync::mpsc;

use crate::bpf::Bpf;
use crate::monitoring::MonitoringContext;
use crate::network::NetworkContext;
use crate::network::bridge::AllocNetwork;
use crate::resources::ResourceContext;
use crate::resources::cgroup::CgroupRows;
use crate::ring::LogRing;
use crate::session::SessionContext;
use crate::storage::StorageContext;
use crate::tasks::TaskContext;
use crate::tasks::task::chain;

/// Shared by all runners of one agent.
#[derive(Debug)]
pub(crate) struct AgentContext {
    pub(crate) storage: StorageContext,
    pub(crate) network: NetworkContext,
    pub(crate) resources: ResourceContext,
    pub(crate) monitoring: MonitoringContext,
    pub(crate) tasks: TaskContext,
    pub(crate) session: SessionContext,
    /// The eBPF programs, or the reason why there are none.
    pub(crate) bpf: Result<Bpf, String>,
    pub(crate) ring: LogRing,
    /// This run of the kernel.
    pub(crate) boot_id: String,
    pub(crate) node: mpsc::Sender<crate::node::Event>,
}

impl AgentContext {
    /// The eBPF programs, if there are any.
    pub(crate) fn bpf(&self) -> Option<&Bpf> {
        self.bpf.as_ref().ok()
    }

    /// The network of an allocation whose group wants one of its own. All its tasks have the same.
    ///
    /// # Errors
    ///
    /// The reason why there is none.
    pub(crate) async fn ensure_network(
        &self,
        desired: &DesiredAlloc,
    ) -> Result<Option<Arc<AllocNetwork>>, String> {
        let bridged = self.network.bridge.ensure(self, desired).await;
        if let Some(network) = bridged.map_err(|error| chain(&error))? {
            return Ok(Some(network));
        }
        let ensured = self.network.cni.ensure(self, desired).await;
        ensured.map_err(|error| chain(&error))
    }

    /// Takes the network up that an earlier agent made for an allocation. `is_lost`: so is what that agent had stored.
    pub(crate) async fn adopt_network(&self, desired: &DesiredAlloc, is_lost: bool) {
        self.network.bridge.adopt(self, desired, is_lost).await;
        self.network.cni.adopt(self, desired).await;
    }

    /// Removes the network of an allocation of which nothing runs. The next call removes what is left.
    ///
    /// # Errors
    ///
    /// A description of what is left.
    pub(crate) async fn give_network_back(&self, alloc_id: AllocId) -> Result<(), String> {
        // Before a driver takes its namespace back, in which the plugins work.
        let unplugged = self.network.cni.give_back(alloc_id).await;
        unplugged.map_err(|error| chain(&error))?;
        let given = self.network.bridge.give_back(self, alloc_id).await;
        given.map_err(|error| chain(&error))
    }

    /// Keeps tasks from the servers of this machine at addresses that the machine has got since.
    pub(crate) async fn cover_new_addresses(&self) {
        if self.network.rules.cover_new_addresses() {
            // Without the node's loop the agent is stopping.
            drop(self.node.send(crate::node::Event::RulesChanged).await);
        }
    }

    /// Returns the result of one walk over all tasks' groups. Returns `None` where the programs cannot walk, and files
    /// have to be read.
    pub(crate) fn walked(&self) -> Option<CgroupRows> {
        let bpf = self.bpf()?;
        let walked = self
            .resources
            .tree
            .walk(|root, is_v2| bpf.groups_below(root, is_v2));
        let told = |error: &std::io::Error| tracing::debug!(%error, "groups are read by files");
        walked.inspect_err(told).ok()
    }
}
