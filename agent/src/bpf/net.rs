//! Traffic, as read from the maps.

use std::io;

use muster_ebpf_common::{
    CgroupId,
    net::{NetSlot, Traffic},
};

use crate::bpf::map::PinnedMap;

/// The maps of the stem `net`.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) counters: PinnedMap<CgroupId, Traffic>,
    pub(super) slots: PinnedMap<u32, NetSlot>,
}

impl Net {
    /// The traffic counters of the task for each CPU; `None` if the task is not registered.
    pub(super) fn of(&self, task: CgroupId, slot: Option<u32>) -> io::Result<Option<Vec<Traffic>>> {
        let Some(slot) = slot else {
            return self.counters.lookup(task);
        };
        let slots = self.slots.lookup(slot)?.unwrap_or_default();
        let is_its_own = slots.iter().any(|slot| slot.task == task);
        Ok(is_its_own.then(|| slots.into_iter().map(|slot| slot.traffic).collect()))
    }
}
