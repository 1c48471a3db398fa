//! Traffic, as collected.

use muster_ebpf_common::{CgroupId, net::Traffic};

use crate::bpf::map::PinnedMap;

/// The maps of the stem `net`.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) counters: PinnedMap<CgroupId, Traffic>,
}
