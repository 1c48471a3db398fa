//! Slots: numbers by which the programs find a task's counters of switches and packets.
//!
//! Finding counters by a task's cgroup id costs a program more than counting. There are [`SLOTS_MAX`] slots; further
//! tasks are counted by cgroup id. Only the agent assigns a slot, and writes the owner into it. So a program that holds
//! an outdated number sees that the slot has another owner.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use muster_ebpf_common::{CgroupId, limits::SLOTS_MAX};

use crate::bpf::{
    id_hash::IdHash,
    limits::QUARANTINE,
    map::PinnedMap,
    open::{OpenBpfError, open_map},
};

/// The index in `ACTIVE` of the count of registrations and removals of tasks.
const REGISTRATIONS: u32 = 2;

/// The slots of a node.
#[derive(Debug)]
pub(super) struct Slots {
    numbers: PinnedMap<CgroupId, u64>,
    active: PinnedMap<u32, u64>,
    table: Mutex<SlotTable>,
}

/// The owners of slots, as far as this agent assigned or found them. Reading the kernel's map instead would cost one
/// more look-up for every task in each collection.
pub(super) type SlotOwners = HashMap<CgroupId, u32, IdHash>;

impl Slots {
    pub(super) fn open(maps: &Path) -> Result<Self, OpenBpfError> {
        Ok(Self {
            numbers: PinnedMap::shared(open_map(maps, "SLOTS")?),
            active: PinnedMap::shared(open_map(maps, "ACTIVE")?),
            table: Mutex::default(),
        })
    }

    /// Reads the slots that an earlier agent assigned.
    pub(super) fn load_previous(&self) -> io::Result<()> {
        let owners: SlotOwners = self.all()?.into_iter().collect();
        let taken: BTreeSet<u32> = owners.values().copied().collect();
        let mut table = self.locked();
        table.free.retain(|slot| !taken.contains(slot));
        table.owners = owners;
        Ok(())
    }

    /// The task's slot, if it has one.
    pub(super) fn of(&self, task: CgroupId) -> io::Result<Option<u32>> {
        let numbers = self.numbers.lookup(task)?;
        Ok(numbers.and_then(|numbers| number(*numbers.first()?)))
    }

    /// The slots of all tasks that have one.
    pub(super) fn all(&self) -> io::Result<BTreeMap<CgroupId, u32>> {
        let mut all = BTreeMap::new();
        self.numbers.sums(|task, slot| {
            all.extend(number(slot).map(|slot| (task, slot)));
        })?;
        Ok(all)
    }

    /// Passes the assigned slots to `use_them`, with the number of slots from the first to the last assigned one.
    pub(super) fn with_owners<T>(&self, use_them: impl FnOnce(&SlotOwners, usize) -> T) -> T {
        let table = self.locked();
        use_them(&table.owners, len_to_highest(table.owners.values()))
    }

    /// Takes a slot without an owner.
    pub(super) fn take(&self) -> Option<u32> {
        self.locked().take(Instant::now())
    }

    /// Makes the task the owner of `slot`. The programs use the slot from now on.
    pub(super) fn set_owner(&self, task: CgroupId, slot: u32) -> io::Result<()> {
        self.numbers.set_all(task, u64::from(slot))?;
        self.locked().owners.insert(task, slot);
        Ok(())
    }

    /// Releases the slot. A program that found it before may still be counting there.
    pub(super) fn release(&self, task: CgroupId, slot: u32) -> io::Result<()> {
        self.numbers.remove(task)?;
        let mut table = self.locked();
        table.owners.remove(&task);
        table.retired.push_back((Instant::now(), slot));
        Ok(())
    }

    /// Makes every CPU drop its cached knowledge of cgroups.
    pub(super) fn count_registration(&self) -> io::Result<()> {
        // Two registrations at once must not count as one.
        let _table = self.locked();
        let counted = self.active.lookup(REGISTRATIONS)?;
        let counted = counted.and_then(|values| values.first().copied());
        let next = counted.unwrap_or(0).wrapping_add(1);
        self.active.set_all(REGISTRATIONS, next)
    }

    fn locked(&self) -> MutexGuard<'_, SlotTable> {
        // A panic elsewhere leaves at most a slot without an owner.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of slots from the first to the highest of `slots`.
pub(super) fn len_to_highest<'a>(slots: impl Iterator<Item = &'a u32>) -> usize {
    slots.max().map_or(0, |last| *last as usize + 1)
}

/// The owners of the slots, and the slots without an owner.
#[derive(Debug)]
struct SlotTable {
    owners: SlotOwners,
    /// Slots without an owner.
    free: BTreeSet<u32>,
    /// Slots without an owner in which programs may still be counting, each with the time of its release.
    retired: VecDeque<(Instant, u32)>,
}

impl Default for SlotTable {
    fn default() -> Self {
        Self {
            owners: SlotOwners::default(),
            free: (0..SLOTS_MAX).collect(),
            retired: VecDeque::new(),
        }
    }
}

impl SlotTable {
    /// Takes the first free slot. Each collection reads all slots up to the highest assigned one, so low numbers are
    /// cheaper.
    fn take(&mut self, now: Instant) -> Option<u32> {
        while let Some((since, slot)) = self.retired.front().copied() {
            if now.duration_since(since) < QUARANTINE {
                break;
            }
            self.retired.pop_front();
            self.free.insert(slot);
        }
        self.free.pop_first()
    }
}

fn number(slot: u64) -> Option<u32> {
    u32::try_from(slot).ok().filter(|slot| *slot < SLOTS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_was_given_back_waits() {
        let mut table = SlotTable::default();
        let now = Instant::now();
        assert_eq!(table.take(now), Some(0));
        assert_eq!(table.take(now), Some(1));

        table.retired.push_back((now, 0));

        assert_eq!(table.take(now), Some(2));
        assert_eq!(table.take(now + QUARANTINE), Some(0));
    }

    #[test]
    fn slots_come_to_an_end() {
        let mut table = SlotTable::default();
        let now = Instant::now();

        let taken = std::iter::from_fn(|| table.take(now)).count();

        assert_eq!(u32::try_from(taken).unwrap(), SLOTS_MAX);
    }
}
