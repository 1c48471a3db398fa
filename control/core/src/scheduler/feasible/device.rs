//! The node has devices of every kind that the group's tasks ask for. How many are healthy and free is asked when a
//! place is chosen.

use muster_domain::node::{DeviceGroup, NodeSpec};
use muster_domain::resources::DeviceAsk;

use super::{Condition, Needs, Rule};

pub(super) const RULE: Rule = Rule { refuses };

fn refuses(needs: &Needs<'_>, node: &NodeSpec) -> Option<String> {
    let tasks = needs.group.tasks.iter();
    let mut asks = tasks.flat_map(|task| &task.resources.devices);
    let missing = asks.find(|ask| !node.devices.iter().any(|device| matches(ask, device)))?;
    Some(format!("missing devices {}", missing.name))
}

/// Whether `device` is of the kind asked for and meets the conditions.
pub(in crate::scheduler) fn matches(ask: &DeviceAsk, device: &DeviceGroup) -> bool {
    device.is_called(&ask.name)
        && ask
            .constraints
            .iter()
            .all(|constraint| Condition::of(constraint).holds_on(device))
}
