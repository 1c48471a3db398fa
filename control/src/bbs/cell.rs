//! Cells: the nodes that run tasks, in the form that Diego's clients expect.

use std::sync::Arc;

use muster_domain::node::{Node, NodeStatus};
use muster_domain::saturating;

use super::proto::{Anything, CellCapacity, CellPresence, CellsResponse, Error, Provider};
use super::{Context, Table};
use crate::handle::Consistency;

pub(super) fn routes(table: Table) -> Table {
    table.on("/v1/cells/list.r1", list)
}

async fn list(context: Context, _: Anything) -> Result<CellsResponse, Error> {
    let read = context.control.read(Consistency::Leader).await?;
    let nodes = read.state.nodes().iter();
    let present = nodes.filter(|node| node.status == NodeStatus::Ready);
    Ok(CellsResponse {
        error: None,
        cells: present.map(presence).collect(),
    })
}

fn presence(node: &Arc<Node>) -> CellPresence {
    /// The prefix of node metadata that names a root file system.
    const ROOTS: &str = "rootfs.";
    let spec = &node.spec;
    let usable = spec.usable();
    let roots = spec.meta.keys().filter_map(|key| key.strip_prefix(ROOTS));
    let roots = std::iter::once("host").chain(roots);
    let tags = spec.meta.get("placement_tags");
    let tags = tags.into_iter().flat_map(|tags| tags.split(','));
    CellPresence {
        cell_id: spec.id.to_string(),
        rep_address: spec.address.clone(),
        zone: spec.datacenter.clone(),
        capacity: Some(CellCapacity {
            memory_mb: number(usable.memory_mb),
            disk_mb: number(usable.disk_mb),
            // The number of containers has no bound.
            containers: i32::MAX,
        }),
        rootfs_providers: vec![Provider {
            name: "preloaded".to_owned(),
            properties: roots.map(ToOwned::to_owned).collect(),
        }],
        placement_tags: tags.map(ToOwned::to_owned).collect(),
        optional_placement_tags: Vec::new(),
        rep_url: String::new(),
    }
}

fn number(value: u64) -> i32 {
    saturating::to_i32(value)
}
