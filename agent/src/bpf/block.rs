//! Block I/O, as collected.

use muster_ebpf_common::{CgroupId, block::BlockCounters};

use crate::bpf::map::PinnedMap;

/// The map of the stem `block` that is read here; requests under way are the programs' own.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) counters: PinnedMap<CgroupId, BlockCounters>,
}
