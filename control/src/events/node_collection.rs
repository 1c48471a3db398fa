//! Results of a collection on a node, as its agent reported them.
//!
//! Only the entry carries them and no row keeps them, so they add nothing to the state.

use muster_control_core::fsm::{Command, Entry, NodeCommand};
use muster_control_core::state::State;
use muster_domain::id::NodeId;
use muster_domain::node::NodeCollected;
use muster_wire::api::operator::NodeGcRound;

/// A node, and the report of its collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeCollection {
    node_id: NodeId,
    name: String,
    report: NodeCollected,
}

impl NodeCollection {
    /// The collections that `entry` reports. Collections of a node that is not registered are left out: its
    /// agent registers and reports them again.
    pub(crate) fn all_of(entry: &Entry, state: &State) -> Vec<Self> {
        let Command::Node(NodeCommand::NoteCollections { collections }) = &entry.command else {
            return Vec::new();
        };
        let registered = collections.iter().filter_map(|(node_id, report)| {
            let node = state.nodes().get(node_id)?;
            Some(Self {
                node_id: *node_id,
                name: node.spec.name.clone(),
                report: report.clone(),
            })
        });
        registered.collect()
    }

    pub(super) fn node_id(&self) -> NodeId {
        self.node_id
    }

    pub(super) fn shape(&self) -> NodeGcRound {
        NodeGcRound::new(self.node_id, &self.name, &self.report)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use muster_control_core::fixture::Cluster;
    use muster_domain::fixture::node;
    use muster_domain::id::Timestamp;
    use muster_domain::node::GcReason;

    use super::*;

    #[test]
    fn gc_report_of_unregistered_node_is_ignored() {
        let mut cluster = Cluster::new();
        let node_id = cluster.node(node("n1").build());
        let report = NodeCollected {
            destroyed: BTreeMap::from([(GcReason::Disk, 2)]),
            ..NodeCollected::default()
        };
        let stranger = NodeId([9; 16]);
        let command = NodeCommand::NoteCollections {
            collections: vec![(stranger, report.clone()), (node_id, report)],
        }
        .at(Timestamp(7));

        let collections = NodeCollection::all_of(&command, &cluster.state);

        let shapes: Vec<NodeGcRound> = collections.iter().map(NodeCollection::shape).collect();
        assert_eq!(shapes.len(), 1);
        assert_eq!(
            (&*shapes[0].node_id, &*shapes[0].node_name),
            (&*node_id.to_string(), "n1")
        );
        assert_eq!(shapes[0].destroyed["disk usage"], 2);
    }
}
