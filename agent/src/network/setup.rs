//! The parts of the agent that set up networks of allocations.

use muster_domain::node::NodeSpec;

use crate::bpf::Bpf;
use crate::resources::cgroup::NodeTree;
use crate::storage::allocdir::DataDir;
use crate::storage::store::Store;
use crate::tasks::drivers::Drivers;
use crate::tasks::drivers::networks::DriverNetworks;

/// The parts of the agent that set up networks of allocations.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NetworkSetup<'a> {
    /// The eBPF programs, or the reason why there are none.
    pub(crate) bpf: Result<&'a Bpf, &'a str>,
    pub(crate) spec: &'a NodeSpec,
    pub(crate) data: &'a DataDir,
    pub(crate) tree: &'a NodeTree,
    pub(crate) drivers: &'a Drivers,
    pub(crate) driver_networks: &'a DriverNetworks,
    pub(crate) store: &'a Store,
}
