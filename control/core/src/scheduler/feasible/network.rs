//! The node has every host network that the group's ports are on, and the group's network mode.

use muster_domain::node::{NETWORK_BRIDGE, NodeSpec, cni_network_attribute};

use super::check::{FeasibilityCheck, FeasibilityRule};

pub(super) const RULE: FeasibilityRule = FeasibilityRule { refuses };

fn refuses(needs: &FeasibilityCheck, node: &NodeSpec) -> Option<String> {
    if needs.asks.bridge && !node.attributes.contains_key(NETWORK_BRIDGE) {
        return Some("missing network mode bridge".to_owned());
    }
    if let Some(name) = &needs.asks.cni
        && !node.attributes.contains_key(&cni_network_attribute(name))
    {
        return Some(format!("missing CNI network {name}"));
    }
    let missing = needs.asks.host_networks.iter().find(|name| {
        let mut addresses = node.addresses.iter();
        !addresses.any(|address| address.network == **name)
    })?;
    Some(format!("missing host network {missing}"))
}
