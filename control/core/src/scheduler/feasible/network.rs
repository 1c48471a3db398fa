//! The node has every host network that the group's ports are on.

use muster_domain::job::DEFAULT_HOST_NETWORK;
use muster_domain::node::NodeSpec;

use super::{Needs, Rule};

pub(super) const RULE: Rule = Rule { refuses };

fn refuses(needs: &Needs<'_>, node: &NodeSpec) -> Option<String> {
    let network = needs.group.network.as_ref()?;
    let missing = network.ports.iter().find(|port| {
        // A node that names no address has one all the same.
        let is_default = port.host_network.is_empty() || port.host_network == DEFAULT_HOST_NETWORK;
        !is_default
            && !node
                .addresses
                .iter()
                .any(|address| address.network == port.host_network)
    })?;
    Some(format!("missing host network {}", missing.host_network))
}
