//! The node has every driver the group's tasks need, and it is healthy there.

use muster_domain::node::NodeSpec;

use super::check::{FeasibilityCheck, FeasibilityRule};

pub(super) const RULE: FeasibilityRule = FeasibilityRule { refuses };

fn refuses(needs: &FeasibilityCheck, node: &NodeSpec) -> Option<String> {
    let mut drivers = needs.asks.drivers.iter();
    let driver = drivers.find(|driver| !node.has_driver(driver))?;
    Some(match node.drivers.get(driver) {
        Some(found) if found.detected => format!("unhealthy driver {driver}"),
        Some(_) | None => format!("missing driver {driver}"),
    })
}
