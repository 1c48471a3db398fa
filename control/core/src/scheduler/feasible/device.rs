//! The node has devices of every kind that the group's tasks ask for. How many are healthy and free is asked when a
//! place is chosen.

use muster_domain::job::Constraint;
use muster_domain::node::{DeviceGroup, NodeSpec};
use muster_domain::resources::DeviceAsk;

use super::check::{FeasibilityCheck, FeasibilityRule};
use super::constraint::Condition;

pub(super) const RULE: FeasibilityRule = FeasibilityRule { refuses };

fn refuses(needs: &FeasibilityCheck, node: &NodeSpec) -> Option<String> {
    let (missing, _) = needs.asks.devices.iter().find(|(name, constraints)| {
        let mut devices = node.devices.iter();
        !devices.any(|device| is_one(name, constraints, device))
    })?;
    Some(format!("missing devices {missing}"))
}

/// Returns whether `device` is of the requested kind and meets the conditions.
pub(in crate::scheduler) fn matches(ask: &DeviceAsk, device: &DeviceGroup) -> bool {
    is_one(&ask.name, &ask.constraints, device)
}

fn is_one(name: &str, constraints: &[Constraint], device: &DeviceGroup) -> bool {
    let mut conditions = constraints.iter().map(Condition::of);
    device.is_called(name) && conditions.all(|condition| condition.holds_on(device))
}
