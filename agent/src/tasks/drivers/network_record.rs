//! Stored records of networks that drivers make.

use std::collections::BTreeMap;

use muster_driver::{NetworkIsolation, NetworkMode};
use serde::{Deserialize, Serialize};

/// The stored record of a network that a driver makes or made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DriverNetwork {
    pub(crate) driver: String,
    /// The host name in the network.
    pub(crate) hostname: String,
    /// The network that was made; `None` while it is unknown.
    pub(crate) made: Option<NetworkDescription>,
}

/// The description that a driver gives of a network that it made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NetworkDescription {
    /// The file of the namespace.
    pub(crate) path: String,
    /// The driver's own notes.
    pub(crate) labels: BTreeMap<String, String>,
    /// Name of the host in the network.
    pub(crate) hostname: String,
    /// Address for that name.
    pub(crate) address: String,
}

impl NetworkDescription {
    pub(crate) fn isolation(self) -> NetworkIsolation {
        let Self {
            path,
            labels,
            hostname,
            address,
        } = self;
        NetworkIsolation {
            mode: NetworkMode::Group,
            path,
            labels,
            hostname,
            address,
        }
    }
}
