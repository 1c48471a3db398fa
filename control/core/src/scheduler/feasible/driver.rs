//! The node has every driver the group's tasks need, and it is healthy there.

use muster_domain::node::NodeSpec;

use super::{Needs, Rule};

pub(super) const RULE: Rule = Rule { refuses };

fn refuses(needs: &Needs<'_>, node: &NodeSpec) -> Option<String> {
    let missing = needs
        .group
        .tasks
        .iter()
        .find(|task| !node.has_driver(&task.driver))?;
    let driver = &missing.driver;
    Some(match node.drivers.get(driver) {
        Some(found) if found.detected => format!("unhealthy driver {driver}"),
        Some(_) | None => format!("missing driver {driver}"),
    })
}
