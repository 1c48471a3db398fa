//! The nodes that subjects register.

use muster_domain::fixture;
use muster_domain::id::{LogIndex, NodeId};
use muster_domain::node::NodeSpec;

/// Returns a node of one of nine sizes, with the attributes that constraints use.
pub(super) fn node_of_nine_sizes(number: u32) -> NodeSpec {
    let cpu_mhz = [8_000, 16_000, 32_000][number as usize % 3];
    let memory_mb = [16_384, 32_768, 65_536][number as usize / 3 % 3];
    let mut spec = fixture::node(&format!("n{number}"))
        .cpu_mhz(cpu_mhz)
        .memory_mb(memory_mb)
        .build();
    spec.id = NodeId::at(LogIndex(1), number);
    spec
}
