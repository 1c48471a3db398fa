//! The node has every host volume that the group asks for, as it wants it.

use muster_domain::node::NodeSpec;

use super::check::{FeasibilityCheck, FeasibilityRule};

pub(super) const RULE: FeasibilityRule = FeasibilityRule { refuses };

fn refuses(needs: &FeasibilityCheck, node: &NodeSpec) -> Option<String> {
    needs
        .asks
        .volumes
        .iter()
        .find_map(|ask| match node.volumes.get(&ask.source) {
            None => Some(format!("missing host volume {}", ask.source)),
            Some(volume) if volume.read_only && !ask.read_only => {
                Some(format!("host volume {} is read-only", ask.source))
            }
            Some(_) => None,
        })
}
