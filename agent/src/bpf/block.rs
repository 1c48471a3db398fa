//! Block I/O, as read from the map.

use muster_ebpf_common::{CgroupId, block::BlockCounters};

use crate::bpf::map::PinnedMap;

/// The map of the stem `block` that the agent reads. Only the programs use the map of requests under way.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) counters: PinnedMap<CgroupId, BlockCounters>,
}
