//! Keeps the node's registered description up to date.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use muster_domain::id::NodeId;
use muster_domain::job::DEFAULT_HOST_NETWORK;
use muster_domain::node::{
    HostAddress, HostVolume, NETWORK_BRIDGE, NodeResources, NodeSecret, NodeSpec,
};
use muster_domain::resources::Amount;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bpf::{Adoption, Bpf};
use crate::limits::FINGERPRINT_INTERVAL;
use crate::monitoring::conditions::Conditions;
use crate::monitoring::fingerprint::{self, Facts, address_towards};
use crate::monitoring::start_health;
use crate::network::cni::CniNetworks;
use crate::node::config::AgentConfig;
use crate::resources::cgroup::{Hierarchies, Unenforced};
use crate::ring::Engine;
use crate::storage::allocdir::DataDir;
use crate::storage::disk::DiskEnforcementMode;
use crate::tasks::drivers::DriverHealth;
use crate::tasks::drivers::nomad::NomadDrivers;

/// Facts that come from the opened parts of the node.
#[derive(Debug)]
pub(super) struct NodeFacts {
    pub(super) node_id: NodeId,
    pub(super) hierarchies: Hierarchies,
    pub(super) bpf: Result<Adoption, String>,
    /// Why allocations cannot have networks of their own.
    pub(super) no_bridge: Option<String>,
    pub(super) engine: Engine,
    pub(super) disks: DiskEnforcementMode,
    pub(super) unenforced: Vec<Unenforced>,
    pub(super) core_ids: Vec<u16>,
    pub(super) node_secret: NodeSecret,
    pub(super) nomad_drivers: NomadDrivers,
    pub(super) cni: Arc<CniNetworks>,
    /// Plugins and networks that the last look found.
    pub(super) cni_attributes: BTreeMap<String, String>,
}

impl NodeFacts {
    fn attributes(&self) -> BTreeMap<String, String> {
        let mut attributes = self.hierarchies.attributes();
        let mut add = |name: &str, value: String| attributes.insert(name.to_owned(), value);
        match &self.bpf {
            Ok(adoption) => {
                let hash = Bpf::object().map(|object| format!("{:016x}", object.hash()));
                add("ebpf.object", hash.unwrap_or_default());
                add("ebpf.adoption", format!("{adoption:?}").to_lowercase());
            }
            Err(reason) => {
                add("ebpf.object", "absent".to_owned());
                add("ebpf.reason", reason.clone());
            }
        }
        match &self.no_bridge {
            None => add(NETWORK_BRIDGE, "true".to_owned()),
            Some(reason) => add("network.bridge.reason", reason.clone()),
        };
        match &self.engine {
            Engine::IoUring => add("io_uring", "true".to_owned()),
            Engine::Epoll { .. } => add("io_uring", "false".to_owned()),
        };
        add("muster.log_engine", self.engine.to_string());
        add("storage.quota", self.disks.as_str().to_owned());
        if let DiskEnforcementMode::Accounted { reason } = &self.disks {
            add("storage.quota.reason", reason.clone());
        }
        if let Some(reason) = self.hierarchies.unreserved() {
            add("cgroup.memory.low.reason", reason);
        }
        for limit in &self.unenforced {
            add(
                &format!("cgroup.{}.unenforced", limit.controller),
                limit.reason.clone(),
            );
        }
        attributes.extend(self.cni_attributes.clone());
        attributes
    }
}

/// Publishes the description and each change of it.
#[derive(Debug)]
pub(super) struct Publisher {
    base: NodeSpec,
    data: DataDir,
    parts: NodeFacts,
    health: watch::Receiver<DriverHealth>,
    conditions: Conditions,
    spec: watch::Sender<Arc<NodeSpec>>,
}

impl Publisher {
    pub(super) fn new(
        config: &AgentConfig,
        data: DataDir,
        parts: NodeFacts,
        health: watch::Receiver<DriverHealth>,
        conditions: Conditions,
    ) -> (Self, watch::Receiver<Arc<NodeSpec>>) {
        let server = config.servers.first().copied();
        let address = server
            .and_then(address)
            .unwrap_or_else(|| "127.0.0.1".to_owned());
        let base = NodeSpec {
            id: parts.node_id,
            name: config.name.clone(),
            datacenter: config.datacenter.clone(),
            class: config.class.clone(),
            pool: config.pool.clone(),
            attributes: BTreeMap::new(),
            meta: config.meta.clone(),
            resources: NodeResources {
                max_allocs: start_health::max_allocs(config.max_allocs),
                ..NodeResources::default()
            },
            reserved: config.reserved,
            reserved_cores: config.reserved_cores.clone(),
            reserved_ports: config.reserved_ports.clone(),
            addresses: addresses(config, &address),
            volumes: config.host_volumes.clone(),
            devices: config.devices.clone(),
            drivers: BTreeMap::new(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            address,
            secret_hash: parts.node_secret.hash(),
        };
        let (spec, published) = watch::channel(Arc::new(base.clone()));
        let publisher = Self {
            base,
            data,
            parts,
            health,
            conditions,
            spec,
        };
        publisher.publish();
        (publisher, published)
    }

    /// Follows the drivers' health and the node's conditions immediately, and the machine's facts at intervals.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut interval = tokio::time::interval(FINGERPRINT_INTERVAL);
        let mut conditions = self.conditions.changes();
        while !stop.is_cancelled() {
            tokio::select! {
                _ = interval.tick() => {
                    self.parts.cni_attributes = self.parts.cni.attributes().await;
                }
                changed = self.health.changed() => if changed.is_err() { return },
                changed = conditions.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
            self.publish();
        }
    }

    fn publish(&self) {
        let facts = fingerprint::gather(self.data.root());
        self.spec.send_if_modified(|known| {
            let wanted = self.describe(facts, known);
            let changed = **known != wanted;
            *known = Arc::new(wanted);
            changed
        });
    }

    fn describe(&self, facts: Facts, known: &NodeSpec) -> NodeSpec {
        let Facts {
            mut attributes,
            mut total,
            cores,
        } = facts;
        attributes.extend(self.parts.attributes());
        attributes.insert(
            "unique.network.ip-address".to_owned(),
            self.base.address.clone(),
        );
        let mut drivers = self.health.borrow().clone();
        self.parts.nomad_drivers.add_health(&mut drivers);
        withhold(&mut drivers, &mut attributes, &self.conditions.all());
        for (name, driver) in &drivers {
            if driver.healthy {
                attributes.insert(format!("driver.{name}"), "1".to_owned());
            }
            attributes.extend(driver.attributes.clone());
        }
        smooth_disk_space(&mut total, &mut attributes, known);
        NodeSpec {
            attributes,
            drivers,
            resources: NodeResources {
                total,
                cores,
                core_ids: self.parts.core_ids.clone(),
                max_allocs: self.base.resources.max_allocs,
            },
            volumes: offered(&self.base.volumes),
            ..self.base.clone()
        }
    }
}

/// Makes all drivers of the node unhealthy during a condition, with its reason.
fn withhold(
    drivers: &mut DriverHealth,
    attributes: &mut BTreeMap<String, String>,
    conditions: &BTreeMap<String, String>,
) {
    let Some(reason) = conditions.values().next() else {
        return;
    };
    for driver in drivers.values_mut() {
        if driver.healthy {
            driver.healthy = false;
            driver.description = format!("the node takes no new tasks: {reason}");
        }
    }
    for (name, reason) in conditions {
        attributes.insert(format!("node.condition.{name}"), reason.clone());
    }
}

/// The node's addresses by network: those that the operator names, and the one towards the servers.
fn addresses(config: &AgentConfig, towards_servers: &str) -> Vec<HostAddress> {
    let mut addresses = config.addresses.clone();
    let is_default = |address: &HostAddress| address.network == DEFAULT_HOST_NETWORK;
    if !addresses.iter().any(is_default) {
        let default = HostAddress {
            network: DEFAULT_HOST_NETWORK.to_owned(),
            address: towards_servers.to_owned(),
            reserved_ports: Vec::new(),
        };
        addresses.insert(0, default);
    }
    addresses
}

/// Returns the volumes whose directories exist.
fn offered(volumes: &BTreeMap<String, HostVolume>) -> BTreeMap<String, HostVolume> {
    let there = volumes.iter().filter(|(name, volume)| {
        let there = Path::new(&volume.path).is_dir();
        if !there {
            tracing::warn!(
                name,
                path = volume.path,
                "a host volume is not there and not offered"
            );
        }
        there
    });
    there
        .map(|(name, volume)| (name.clone(), volume.clone()))
        .collect()
}

/// Smooths the free disk space, whose every change would be a registration. The first value stays until it is off
/// by a tenth.
fn smooth_disk_space(
    total: &mut Amount,
    attributes: &mut BTreeMap<String, String>,
    known: &NodeSpec,
) {
    let before = known.resources.total.disk_mb;
    if before.abs_diff(total.disk_mb) * 10 > before {
        return;
    }
    total.disk_mb = before;
    let name = "unique.storage.bytesfree";
    if let Some(free) = known.attributes.get(name) {
        attributes.insert(name.to_owned(), free.clone());
    }
}

fn address(server: SocketAddr) -> Option<String> {
    address_towards(server).map(|address| address.to_string())
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture;

    use super::*;

    fn known(disk_mb: u64) -> NodeSpec {
        let mut spec = fixture::node("n1")
            .attribute("unique.storage.bytesfree", "old")
            .build();
        spec.resources.total.disk_mb = disk_mb;
        spec
    }

    fn steady(before: u64, found: u64) -> (u64, String) {
        let mut total = Amount {
            disk_mb: found,
            ..Amount::default()
        };
        let mut attributes =
            BTreeMap::from([("unique.storage.bytesfree".to_owned(), "new".to_owned())]);
        smooth_disk_space(&mut total, &mut attributes, &known(before));
        (
            total.disk_mb,
            attributes["unique.storage.bytesfree"].clone(),
        )
    }

    #[test]
    fn a_condition_makes_every_driver_unhealthy() {
        let healthy = muster_domain::node::DriverInfo {
            detected: true,
            healthy: true,
            description: "Healthy".to_owned(),
            attributes: BTreeMap::new(),
        };
        let mut drivers = DriverHealth::from([("native".to_owned(), healthy)]);
        let mut attributes = BTreeMap::new();
        let conditions = BTreeMap::from([("store".to_owned(), "disk full".to_owned())]);

        withhold(&mut drivers, &mut attributes, &conditions);

        assert!(!drivers["native"].healthy);
        assert_eq!(
            drivers["native"].description,
            "the node takes no new tasks: disk full"
        );
        assert_eq!(attributes["node.condition.store"], "disk full");
    }

    #[test]
    fn small_loss_of_space_is_not_reported() {
        assert_eq!(steady(1_000, 950), (1_000, "old".to_owned()));
    }

    #[test]
    fn large_loss_of_space_is_reported() {
        assert_eq!(steady(1_000, 800), (800, "new".to_owned()));
    }
}
