//! Devices: resources of a node besides CPU, memory and disk.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Devices of one vendor, type and name. They differ only in their ids.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceGroup {
    /// The vendor, such as `nvidia`.
    pub vendor: String,
    /// The type, such as `gpu`.
    pub kind: String,
    /// The name, such as `1080ti`.
    pub name: String,
    pub attributes: BTreeMap<String, String>,
    pub instances: Vec<DeviceInstance>,
}

impl DeviceGroup {
    /// Whether a request for `name` matches this group: `type`, `vendor/type` or `vendor/type/name`.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let mut parts = name.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(kind), None, ..) => kind == self.kind,
            (Some(vendor), Some(kind), None, _) => vendor == self.vendor && kind == self.kind,
            (Some(vendor), Some(kind), Some(name), None) => {
                vendor == self.vendor && kind == self.kind && name == self.name
            }
            _ => false,
        }
    }

    /// `vendor/type/name`.
    #[must_use]
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.vendor, self.kind, self.name)
    }
}

/// A device of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DeviceInstance {
    /// The id, unique within the group.
    pub id: String,
    /// Whether the device can be used.
    pub healthy: bool,
}

/// A directory of the node that tasks may ask for by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostVolume {
    /// The path of the directory on the node.
    pub path: String,
    /// Whether the volume is read-only.
    pub read_only: bool,
}

/// An address of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostAddress {
    /// The name of its host network.
    pub network: String,
    pub address: String,
    /// Ports on this address that are reserved from tasks, sorted.
    pub reserved_ports: Vec<u16>,
}
