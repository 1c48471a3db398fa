//! Nodes, whole and in lists.

#![expect(missing_docs, reason = "fields carry Nomad's names and meaning")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use muster_domain::node as domain;
use muster_domain::node::{DrainSpec, Eligibility};
use muster_domain::resources::Amount;
use serde::{Deserialize, Serialize};

use crate::api::alloc::NodeRef;
use crate::api::block::{self, FieldNames};
use crate::api::duration;
use crate::api::null::{self, Null};
use crate::api::read_error::ReadJobError;
use crate::api::resources::{Network, Resources};
use crate::api::route::Route;
use crate::api::time::Rfc3339;

/// Routes of nodes.
pub const ROUTES: &[Route] = &[
    Route::read("/v1/nodes"),
    Route::read("/v1/node/{node_id}"),
    Route::read("/v1/node/{node_id}/allocations"),
    Route::write("/v1/node/{node_id}/drain"),
    Route::write("/v1/node/{node_id}/eligibility"),
];

/// The range of dynamic ports: 20000 to 32000, as in Nomad.
const DYNAMIC_PORTS: (u16, u16) = (20_000, 32_000);

/// The value of a drain deadline that expires at once.
const AT_ONCE: i64 = -1;

/// The host part of an agent's address.
fn ip(address: &str) -> String {
    address
        .parse::<SocketAddr>()
        .map(|socket| socket.ip())
        .or_else(|_| address.parse::<IpAddr>())
        .map_or_else(|_| address.to_owned(), |ip| ip.to_string())
}

impl From<&domain::Node> for NodeRef {
    fn from(node: &domain::Node) -> Self {
        Self {
            name: node.spec.name.clone(),
            ip: ip(&node.spec.address),
        }
    }
}

/// A driver on a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverInfo {
    pub attributes: BTreeMap<String, String>,
    pub detected: bool,
    pub healthy: bool,
    pub health_description: String,
    pub update_time: Rfc3339,
}

fn drivers(node: &domain::Node) -> BTreeMap<String, DriverInfo> {
    let shape = |info: &domain::DriverInfo| DriverInfo {
        attributes: info.attributes.clone(),
        detected: info.detected,
        healthy: info.healthy,
        health_description: info.description.clone(),
        update_time: Rfc3339(node.status_at),
    };
    node.spec
        .drivers
        .iter()
        .map(|(name, info)| (name.clone(), shape(info)))
        .collect()
}

/// A node in `GET /v1/nodes`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeListStub {
    pub address: String,
    #[serde(rename = "ID")]
    pub id: String,
    /// The attribute `os.name`; only with `?os=true`.
    #[serde(with = "null")]
    pub attributes: BTreeMap<String, String>,
    pub datacenter: String,
    pub name: String,
    pub node_class: String,
    pub node_pool: String,
    pub version: String,
    pub drain: bool,
    pub scheduling_eligibility: String,
    pub status: String,
    pub status_description: String,
    pub drivers: BTreeMap<String, DriverInfo>,
    pub host_volumes: Null,
    /// The resources; only with `?resources=true`.
    pub node_resources: Option<NodeResources>,
    /// The reserved resources; only with `?resources=true`.
    pub reserved_resources: Option<ReservedResources>,
    pub last_drain: Null,
    pub create_index: u64,
    pub modify_index: u64,
}

impl NodeListStub {
    /// Converts `node`, with its resources if `resources` is set, and with its operating system if `os` is set.
    #[must_use]
    pub fn new(node: &domain::Node, resources: bool, os: bool) -> Self {
        let spec = &node.spec;
        let os_name = spec.attributes.get_key_value("os.name").filter(|_| os);
        Self {
            address: ip(&spec.address),
            id: spec.id.to_string(),
            attributes: os_name
                .map(|(key, value)| (key.clone(), value.clone()))
                .into_iter()
                .collect(),
            datacenter: spec.datacenter.clone(),
            name: spec.name.clone(),
            node_class: spec.class.clone(),
            node_pool: spec.pool.clone(),
            version: spec.version.clone(),
            drain: node.drain.is_some(),
            scheduling_eligibility: node.eligibility.as_str().to_owned(),
            status: node.status.as_str().to_owned(),
            drivers: drivers(node),
            node_resources: resources.then(|| NodeResources::new(spec)),
            reserved_resources: resources.then(|| ReservedResources::new(spec.reserved)),
            create_index: node.create_index.0,
            modify_index: node.modify_index.0,
            ..Self::default()
        }
    }
}

/// A node as `GET /v1/node/:id` answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    pub attributes: BTreeMap<String, String>,
    #[serde(rename = "CSIControllerPlugins")]
    pub csi_controller_plugins: Null,
    #[serde(rename = "CSINodePlugins")]
    pub csi_node_plugins: Null,
    pub cgroup_parent: String,
    pub computed_class: String,
    pub create_index: u64,
    pub datacenter: String,
    pub drain: bool,
    /// The running drain, if there is one.
    pub drain_strategy: Option<DrainStrategy>,
    pub drivers: BTreeMap<String, DriverInfo>,
    pub events: Vec<NodeEvent>,
    /// Always empty, so that clients send requests to the server, which forwards them to the node.
    #[serde(rename = "HTTPAddr")]
    pub http_addr: String,
    pub host_networks: Null,
    pub host_volumes: Null,
    #[serde(rename = "ID")]
    pub id: String,
    pub last_drain: Null,
    pub links: Null,
    #[serde(with = "null")]
    pub meta: BTreeMap<String, String>,
    pub modify_index: u64,
    pub name: String,
    pub node_class: String,
    /// Allocations that may be on the node at once; 0 means no limit.
    pub node_max_allocs: u32,
    pub node_pool: String,
    pub node_resources: NodeResources,
    pub reserved: Resources,
    pub reserved_resources: ReservedResources,
    pub resources: Resources,
    pub scheduling_eligibility: String,
    #[serde(rename = "SecretID")]
    pub secret_id: String,
    pub status: String,
    pub status_description: String,
    /// Seconds since the epoch.
    pub status_updated_at: u64,
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
}

impl From<&domain::Node> for Node {
    fn from(node: &domain::Node) -> Self {
        let domain::Node {
            spec,
            status,
            status_at,
            eligibility,
            drain,
            events,
            create_index,
            modify_index,
        } = node;
        let node_resources = NodeResources::new(spec);
        Self {
            attributes: spec.attributes.clone(),
            create_index: create_index.0,
            datacenter: spec.datacenter.clone(),
            drain: drain.is_some(),
            drain_strategy: drain.as_ref().map(DrainStrategy::from),
            drivers: drivers(node),
            events: events.iter().map(NodeEvent::from).collect(),
            id: spec.id.to_string(),
            meta: spec.meta.clone(),
            modify_index: modify_index.0,
            name: spec.name.clone(),
            node_class: spec.class.clone(),
            node_max_allocs: spec.resources.max_allocs,
            node_pool: spec.pool.clone(),
            reserved: Resources::from(spec.reserved),
            reserved_resources: ReservedResources::new(spec.reserved),
            resources: Resources {
                networks: node_resources.networks.clone(),
                ..Resources::from(spec.resources.total)
            },
            node_resources,
            scheduling_eligibility: eligibility.as_str().to_owned(),
            status: status.as_str().to_owned(),
            status_updated_at: status_at.0 / 1_000_000_000,
            ..Self::default()
        }
    }
}

/// The drain of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainStrategy {
    /// Nanoseconds; 0 for no limit, below 0 for at once.
    pub deadline: i64,
    pub ignore_system_jobs: bool,
    /// The time at which everything that is left must go.
    pub force_deadline: Option<Rfc3339>,
    pub started_at: Rfc3339,
}

impl From<&domain::Drain> for DrainStrategy {
    fn from(drain: &domain::Drain) -> Self {
        let domain::Drain {
            spec:
                DrainSpec {
                    deadline,
                    ignore_system_jobs,
                },
            started_at,
        } = drain;
        let limit = deadline.filter(|limit| !limit.is_zero());
        Self {
            deadline: match deadline {
                None => 0,
                Some(Duration::ZERO) => AT_ONCE,
                Some(limit) => duration::nanos(*limit),
            },
            ignore_system_jobs: *ignore_system_jobs,
            force_deadline: limit.and(drain.deadline()).map(Rfc3339),
            started_at: Rfc3339(*started_at),
        }
    }
}

/// An event of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeEvent {
    pub message: String,
    pub subsystem: String,
    #[serde(with = "null")]
    pub details: BTreeMap<String, String>,
    pub timestamp: Rfc3339,
    pub create_index: u64,
}

impl From<&domain::NodeEvent> for NodeEvent {
    fn from(event: &domain::NodeEvent) -> Self {
        Self {
            message: event.message.clone(),
            subsystem: event.subsystem.as_str().to_owned(),
            details: event.details.clone(),
            timestamp: Rfc3339(event.at),
            create_index: event.index.0,
        }
    }
}

/// Resources of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeResources {
    pub cpu: NodeCpu,
    pub memory: NodeMemory,
    pub disk: NodeDisk,
    #[serde(with = "null")]
    pub networks: Vec<Network>,
    #[serde(with = "null")]
    pub node_networks: Vec<NodeNetwork>,
    pub devices: Null,
    pub min_dynamic_port: u16,
    pub max_dynamic_port: u16,
}

impl NodeResources {
    fn new(spec: &domain::NodeSpec) -> Self {
        let domain::NodeResources {
            total,
            cores,
            core_ids,
            max_allocs: _,
        } = &spec.resources;
        let address = ip(&spec.address);
        let bits = if address.contains(':') { 128 } else { 32 };
        Self {
            cpu: NodeCpu {
                cpu_shares: total.cpu_mhz,
                total_cpu_cores: *cores,
                reservable_cpu_cores: core_ids.iter().map(|core| u32::from(*core)).collect(),
            },
            memory: NodeMemory {
                memory_mb: total.memory_mb,
            },
            disk: NodeDisk {
                disk_mb: total.disk_mb,
            },
            networks: vec![Network {
                mode: "host".to_owned(),
                cidr: format!("{address}/{bits}"),
                ip: address.clone(),
                ..Network::default()
            }],
            node_networks: vec![NodeNetwork {
                mode: "host".to_owned(),
                addresses: vec![NodeAddress {
                    family: if bits == 32 { "ipv4" } else { "ipv6" }.to_owned(),
                    alias: "default".to_owned(),
                    address,
                    ..NodeAddress::default()
                }],
                ..NodeNetwork::default()
            }],
            devices: Null,
            min_dynamic_port: DYNAMIC_PORTS.0,
            max_dynamic_port: DYNAMIC_PORTS.1,
        }
    }
}

/// CPU of a node, in MHz over all cores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeCpu {
    pub cpu_shares: u64,
    pub total_cpu_cores: u32,
    #[serde(with = "null")]
    pub reservable_cpu_cores: Vec<u32>,
}

/// Memory of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
}

/// Disk of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeDisk {
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
}

/// A network of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeNetwork {
    pub mode: String,
    pub device: String,
    pub mac_address: String,
    pub speed: u32,
    pub addresses: Vec<NodeAddress>,
}

/// An address of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeAddress {
    pub family: String,
    pub alias: String,
    pub address: String,
    pub reserved_ports: String,
    pub gateway: String,
}

/// Resources that the operator keeps from tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedResources {
    pub cpu: ReservedCpu,
    pub memory: NodeMemory,
    pub disk: NodeDisk,
    pub networks: ReservedNetworks,
}

impl ReservedResources {
    fn new(reserved: Amount) -> Self {
        Self {
            cpu: ReservedCpu {
                cpu_shares: reserved.cpu_mhz,
                reserved_cpu_cores: Null,
            },
            memory: NodeMemory {
                memory_mb: reserved.memory_mb,
            },
            disk: NodeDisk {
                disk_mb: reserved.disk_mb,
            },
            networks: ReservedNetworks::default(),
        }
    }
}

/// CPU reserved from tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedCpu {
    pub cpu_shares: u64,
    pub reserved_cpu_cores: Null,
}

/// Ports reserved from tasks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedNetworks {
    pub reserved_host_ports: String,
}

/// The body of `PUT /v1/node/:id/eligibility`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EligibilityRequest {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// `eligible` or `ineligible`.
    pub eligibility: String,
}

/// The answer to `PUT /v1/node/:id/eligibility` and `PUT /v1/node/:id/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeUpdateResponse {
    pub node_modify_index: u64,
    #[serde(rename = "EvalIDs", with = "null")]
    pub eval_ids: Vec<String>,
    pub eval_create_index: u64,
    pub index: u64,
    /// Beyond Nomad: fields of the request that are ignored.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub warnings: String,
}

/// Fields that every request of Nomad's clients may have.
const COMMON_FIELDS: &[&str] = &["Region", "Namespace", "SecretID", "AuthToken"];

/// The body of `PUT /v1/node/:id/drain`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainRequest {
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// `null`: no longer.
    pub drain_spec: Option<DrainSpecRequest>,
    /// Whether the node takes new allocations again, in a request without `drain_spec`.
    pub mark_eligible: bool,
}

/// The settings of a drain, in [`DrainRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainSpecRequest {
    /// Nanoseconds; 0 for no limit, below 0 for at once.
    pub deadline: i64,
    pub ignore_system_jobs: bool,
}

impl From<DrainSpec> for DrainSpecRequest {
    fn from(spec: DrainSpec) -> Self {
        let DrainSpec {
            deadline,
            ignore_system_jobs,
        } = spec;
        Self {
            deadline: match deadline {
                None => 0,
                Some(Duration::ZERO) => AT_ONCE,
                Some(limit) => duration::nanos(limit),
            },
            ignore_system_jobs,
        }
    }
}

/// The parsed body of `PUT /v1/node/:id/drain`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainUpdate {
    /// `None`: no longer.
    pub spec: Option<DrainSpec>,
    /// Whether the node takes new allocations again, in a request without `spec`.
    pub mark_eligible: bool,
    /// Fields that are ignored.
    pub warnings: Vec<String>,
}

/// Reads the body of `PUT /v1/node/:id/drain`. It may repeat the id of the path.
///
/// # Errors
///
/// [`ReadJobError`] for malformed bodies.
pub fn read_drain(body: &[u8], id: &str) -> Result<DrainUpdate, ReadJobError> {
    const KNOWN: FieldNames = FieldNames {
        derived: COMMON_FIELDS,
        harmless: &["Meta"],
        unsupported: &[],
        rows: &[],
    };
    const SPEC_KNOWN: FieldNames = FieldNames {
        derived: &[],
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };
    let read = block::read_with_warnings(body, &KNOWN, |block| {
        block.id_of_path("NodeID", id);
        let spec = block.block("DrainSpec").map(|mut block| {
            let deadline = block.signed("Deadline", i64::MIN..=i64::MAX);
            let ignore_system_jobs = block.boolean("IgnoreSystemJobs").unwrap_or_default();
            block.finish(&SPEC_KNOWN);
            DrainSpec {
                deadline: match deadline.unwrap_or_default() {
                    0 => None,
                    nanos => Some(Duration::from_nanos(u64::try_from(nanos).unwrap_or(0))),
                },
                ignore_system_jobs,
            }
        });
        // Nomad's command line sends the field with every drain it begins, where it has no effect.
        let mark_eligible = block.boolean("MarkEligible").unwrap_or_default() && spec.is_none();
        Some(DrainUpdate {
            spec,
            mark_eligible,
            warnings: Vec::new(),
        })
    });
    read.map(|(order, warnings)| DrainUpdate { warnings, ..order })
}

/// Reads the body of `PUT /v1/node/:id/eligibility`. It may repeat the id of the path.
///
/// # Errors
///
/// [`ReadJobError`] for anything but `{"Eligibility": "eligible"}` or `"ineligible"`.
pub fn read_eligibility(body: &[u8], id: &str) -> Result<Eligibility, ReadJobError> {
    const KNOWN: FieldNames = FieldNames {
        derived: COMMON_FIELDS,
        harmless: &[],
        unsupported: &[],
        rows: &[],
    };
    block::read(body, &KNOWN, |block| {
        block.id_of_path("NodeID", id);
        let word = block.string("Eligibility").unwrap_or_default();
        block.choice_named("Eligibility", &word)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eligibility_is_one_of_two_words() {
        assert_eq!(
            read_eligibility(br#"{"Eligibility":"ineligible"}"#, "n").unwrap(),
            Eligibility::Ineligible
        );
        assert!(
            read_eligibility(br#"{"Eligibility":"maybe"}"#, "n")
                .unwrap_err()
                .to_string()
                .contains("`maybe`")
        );
        assert!(
            read_eligibility(br#"{"Eligible":true}"#, "n")
                .unwrap_err()
                .to_string()
                .contains("did you mean `Eligibility`")
        );
    }

    /// A deadline below 0 means at once, and 0 means no limit. The domain uses zero for at once and `None` for no
    /// limit.
    #[test]
    fn a_drain_has_three_kinds_of_deadline() {
        let read = |deadline: &str| {
            let body = format!(r#"{{"NodeID":"n","DrainSpec":{{"Deadline":{deadline}}}}}"#);
            read_drain(body.as_bytes(), "n").unwrap().spec.unwrap()
        };

        for (deadline, wanted) in [
            ("-1000000000", Some(Duration::ZERO)),
            ("0", None),
            ("3600000000000", Some(Duration::from_hours(1))),
        ] {
            let spec = read(deadline);
            assert_eq!(spec.deadline, wanted, "{deadline}");
            let again = serde_json::to_string(&DrainSpecRequest::from(spec)).unwrap();
            let body = format!(r#"{{"DrainSpec":{again}}}"#);
            assert_eq!(read_drain(body.as_bytes(), "n").unwrap().spec, Some(spec));
        }
    }

    #[test]
    fn a_body_may_not_name_another_node() {
        let drain = read_drain(br#"{"NodeID":"other"}"#, "n").unwrap_err();
        let eligibility = br#"{"NodeID":"other","Eligibility":"eligible"}"#;
        let eligibility = read_eligibility(eligibility, "n").unwrap_err();

        for error in [drain, eligibility] {
            assert!(error.to_string().contains("does not match"), "{error}");
        }
        assert!(read_drain(br#"{"NodeID":"n","Region":"global"}"#, "n").is_ok());
    }

    #[test]
    fn drain_meta_produces_warning() {
        let order = read_drain(br#"{"Meta":{"message":"new disks"}}"#, "n").unwrap();
        assert!(order.warnings[0].contains("Meta"), "{:?}", order.warnings);
        let order = read_drain(br#"{"Meta":{}}"#, "n").unwrap();
        assert!(order.warnings.is_empty());
    }

    #[test]
    fn a_drain_ends_without_a_spec() {
        let order = read_drain(br#"{"DrainSpec":null,"MarkEligible":true}"#, "n").unwrap();

        assert_eq!((order.spec, order.mark_eligible), (None, true));
        let begun =
            read_drain(br#"{"DrainSpec":{"Deadline":0},"MarkEligible":true}"#, "n").unwrap();
        assert!(begun.spec.is_some() && !begun.mark_eligible);
        assert!(
            read_drain(br#"{"DrainSpec":{"Dedline":0}}"#, "n")
                .unwrap_err()
                .to_string()
                .contains("did you mean `Deadline`")
        );
    }

    #[test]
    fn an_address_loses_its_port() {
        assert_eq!(ip("10.0.0.1:4647"), "10.0.0.1");
        assert_eq!(ip("[::1]:4647"), "::1");
        assert_eq!(ip("10.0.0.1"), "10.0.0.1");
        assert_eq!(ip("node-1"), "node-1");
    }
}
