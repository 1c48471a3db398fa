//! The node has every host network that the group's ports are on.

use muster_domain::node::NodeSpec;

use super::{Needs, Rule};

pub(super) const RULE: Rule = Rule { refuses };

fn refuses(needs: &Needs, node: &NodeSpec) -> Option<String> {
    let missing = needs.asks.host_networks.iter().find(|name| {
        let mut addresses = node.addresses.iter();
        !addresses.any(|address| address.network == **name)
    })?;
    Some(format!("missing host network {missing}"))
}
