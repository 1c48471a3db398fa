//! The context that every allocation of the node shares, one part for each subject.

use std::sync::Arc;

use muster_domain::alloc::DesiredAlloc;
use muster_domain::error_chain::chain;
use muster_domain::id::AllocId;
use muster_domain::node::NodeSpec;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::bpf::Bpf;
use crate::monitoring::MonitoringContext;
use crate::network::NetworkContext;
use crate::network::alloc_network::AllocNetwork;
use crate::network::setup::NetworkSetup;
use crate::resources::ResourceContext;
use crate::resources::cgroup::CgroupRows;
use crate::ring::LogRing;
use crate::session::SessionContext;
use crate::storage::StorageContext;
use crate::tasks::TaskContext;

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
    /// The id of the current boot of the kernel.
    pub(crate) boot_id: String,
    pub(crate) node: mpsc::Sender<crate::node::event::Event>,
}

impl AgentContext {
    /// The eBPF programs, if there are any.
    pub(crate) fn bpf(&self) -> Option<&Bpf> {
        self.bpf.as_ref().ok()
    }

    fn network_setup<'a>(&'a self, spec: &'a NodeSpec) -> NetworkSetup<'a> {
        NetworkSetup {
            bpf: self.bpf.as_ref().map_err(String::as_str),
            spec,
            data: &self.storage.data,
            tree: &self.resources.tree,
            drivers: &self.tasks.drivers,
            driver_networks: &self.network.driver_networks,
            store: &self.storage.store,
        }
    }

    /// Returns the network of an allocation whose group asks for its own network. All tasks of the allocation share
    /// it. Once the allocation is `stopped`, a driver has little time left to make the network.
    ///
    /// # Errors
    ///
    /// The reason why the allocation has no network.
    pub(crate) async fn ensure_network(
        &self,
        desired: &DesiredAlloc,
        stopped: &CancellationToken,
    ) -> Result<Option<Arc<AllocNetwork>>, String> {
        let spec = self.session.spec();
        let bridged = self
            .network
            .bridge
            .ensure(self.network_setup(&spec), desired, stopped)
            .await;
        if let Some(network) = bridged.map_err(|error| chain(&error))? {
            return Ok(Some(network));
        }
        let was_there = self.network.cni.of(desired.alloc_id).is_some();
        let ensured = self
            .network
            .cni
            .ensure(self.network_setup(&spec), desired, stopped)
            .await;
        if !was_there && matches!(ensured, Ok(Some(_))) {
            // The plugins may have given the machine new addresses, at which servers listen too.
            self.cover_new_addresses().await;
        }
        ensured.map_err(|error| chain(&error))
    }

    /// Takes over the network that an earlier agent made for an allocation. `is_lost` means that the store of that
    /// agent is lost as well.
    pub(crate) async fn adopt_network(&self, desired: &DesiredAlloc, is_lost: bool) {
        let spec = self.session.spec();
        let setup = self.network_setup(&spec);
        self.network.bridge.adopt(setup, desired, is_lost).await;
        self.network.cni.adopt(setup, desired).await;
    }

    /// Removes the network of an allocation that has no running task. The next call removes the remains of a failed
    /// removal.
    ///
    /// # Errors
    ///
    /// A description of the remains.
    pub(crate) async fn give_network_back(&self, alloc_id: AllocId) -> Result<(), String> {
        // CNI plugins work in the namespace, so they run before a driver destroys it.
        let cni_released = self.network.cni.release(alloc_id).await;
        cni_released.map_err(|error| chain(&error))?;
        let spec = self.session.spec();
        let given = self
            .network
            .bridge
            .release(self.network_setup(&spec), alloc_id)
            .await;
        given.map_err(|error| chain(&error))
    }

    /// Denies tasks the servers of this machine at addresses that the machine has received since the last call.
    pub(crate) async fn cover_new_addresses(&self) {
        if self.network.rules.cover_new_addresses() {
            // The send fails only without the node's loop, when the agent is stopping.
            drop(
                self.node
                    .send(crate::node::event::Event::RulesChanged)
                    .await,
            );
        }
    }

    /// Returns the result of one walk over the cgroups of all tasks. Returns `None` where the eBPF programs cannot
    /// walk and the caller has to read files.
    pub(crate) fn walked(&self) -> Option<CgroupRows> {
        let bpf = self.bpf()?;
        let walked = self
            .resources
            .tree
            .walk(|root, is_v2| bpf.groups_below(root, is_v2));
        let log_error =
            |error: &std::io::Error| tracing::debug!(%error, "groups are read by files");
        walked.inspect_err(log_error).ok()
    }
}
