//! The data that the next agent needs to continue counting: the rules' names, and the counts carried over to them. The
//! programs read neither.
//!
//! If the data cannot be written, the next agent starts its counts anew, with no other effect. If the agent is killed
//! during a change of a task's policies, the task's counts from before the change are lost too.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
};

use muster_ebpf_common::{
    CgroupId,
    limits::NAMES_MAX,
    policy::{CarriedCounters, CarriedKey, NameKey},
};

use super::counts::{CarriedOverCounters, PolicyHistory};
use crate::bpf::{
    limits::BATCH_WRITTEN,
    map::PinnedMap,
    open::{OpenBpfError, open_map},
};

/// The two maps.
#[derive(Debug)]
pub(super) struct PersistedCounters {
    names: PinnedMap<NameKey, u64>,
    carried: PinnedMap<CarriedKey, CarriedCounters>,
}

/// The data that an earlier agent left about tasks that have no policies of this agent yet.
#[derive(Debug, Default)]
pub(super) struct PreviousGeneration {
    /// Hashes of rules' names by policy; 0 for a rule without a name.
    names: BTreeMap<u32, Vec<u64>>,
    carried: BTreeMap<CgroupId, CarriedOverCounters>,
}

impl PreviousGeneration {
    /// The history of the task whose policies have these numbers.
    pub(super) fn history(&self, task: CgroupId, numbers: [u32; 2]) -> PolicyHistory<'_> {
        static NO_COUNTERS: CarriedOverCounters = CarriedOverCounters::new();
        PolicyHistory {
            numbers,
            names: numbers.map(|number| self.names.get(&number).map_or(&[][..], Vec::as_slice)),
            carried: self.carried.get(&task).unwrap_or(&NO_COUNTERS),
        }
    }

    /// Removes a task that has policies of this agent, or that is gone. Returns the task's carried-over counts.
    pub(super) fn forget(&mut self, task: CgroupId) -> CarriedOverCounters {
        self.carried.remove(&task).unwrap_or_default()
    }

    fn retain(&mut self, policies: &BTreeSet<u32>, is_gone: impl Fn(CgroupId) -> bool) {
        self.names.retain(|policy, _| policies.contains(policy));
        self.carried.retain(|task, _| !is_gone(*task));
    }
}

impl PersistedCounters {
    pub(super) fn open(maps: &Path) -> Result<Self, OpenBpfError> {
        Ok(Self {
            names: PinnedMap::shared(open_map(maps, "NAMES")?),
            carried: PinnedMap::shared(open_map(maps, "CARRIED_OVER")?),
        })
    }

    /// Reads the data that an earlier agent wrote.
    pub(super) fn load_previous(&self) -> io::Result<PreviousGeneration> {
        let mut earlier = PreviousGeneration::default();
        self.names.visit(usize::MAX, |key, values| {
            let names = earlier.names.entry(key.policy).or_default();
            if key.rule < NAMES_MAX {
                let at = key.rule as usize;
                names.resize(names.len().max(at + 1), 0);
                names[at] = values.copied().next().unwrap_or_default();
            }
        })?;
        self.carried.visit(usize::MAX, |key, values| {
            let of_task = earlier.carried.entry(key.task).or_default();
            let direction = u8::try_from(key.direction).ok();
            let counters = values.copied().next();
            if let (Some(direction), Some(it)) = (direction, counters) {
                of_task.insert((direction, key.name), (it.packets, it.bytes));
            }
        })?;
        Ok(earlier)
    }

    /// Writes the hashes of the names of a policy's rules.
    pub(super) fn name(&self, policy: u32, names: &[u64]) {
        let key = |rule| NameKey { policy, rule };
        let named: Vec<_> = (0..).map(key).zip(names.iter().copied()).collect();
        let mut written = named.chunks(BATCH_WRITTEN);
        if let Err(error) = written.try_for_each(|some| self.names.set_many(some)) {
            tracing::warn!(%error, policy, "counts of a policy's rules will begin anew with the next agent");
        }
    }

    /// Removes the names of a policy that had `rules` rules.
    pub(super) fn remove_names(&self, policy: u32, rules: usize) {
        let mut keys = (0..).take(rules).map(|rule| NameKey { policy, rule });
        if let Err(error) = keys.try_for_each(|key| self.names.remove(key).map(drop)) {
            tracing::warn!(%error, policy, "rule names of an unused policy remain");
        }
    }

    /// Replaces the counts that are carried over to the task's rules.
    pub(super) fn replace_counts(
        &self,
        task: CgroupId,
        before: &CarriedOverCounters,
        after: &CarriedOverCounters,
    ) {
        let entry = |(name, sum): (&(u8, u64), &(u64, u64))| {
            let (packets, bytes) = *sum;
            (carried_key(task, *name), CarriedCounters { packets, bytes })
        };
        let differing = after
            .iter()
            .filter(|(name, sum)| before.get(name) != Some(sum));
        let written: Vec<_> = differing.map(entry).collect();
        let mut written = written.chunks(BATCH_WRITTEN);
        if let Err(error) = written.try_for_each(|some| self.carried.set_many(some)) {
            tracing::warn!(%error, task, "what a task's rules have counted will be less with the next agent");
        }
        let gone = before.keys().filter(|name| !after.contains_key(name));
        self.remove(task, gone);
    }

    /// Removes the counts that were carried over to the rules of a task that is gone.
    pub(super) fn forget(&self, task: CgroupId, carried: &CarriedOverCounters) {
        self.remove(task, carried.keys());
    }

    fn remove<'a>(&self, task: CgroupId, names: impl Iterator<Item = &'a (u8, u64)>) {
        let mut keys = names.map(|name| carried_key(task, *name));
        if let Err(error) = keys.try_for_each(|key| self.carried.remove(key).map(drop)) {
            tracing::warn!(%error, task, "counts of rules that a task has no more are left");
        }
    }

    /// Removes the names of policies outside `policies` and the counts of tasks that are gone, here and in `earlier`.
    pub(super) fn remove_stale(
        &self,
        earlier: &mut PreviousGeneration,
        policies: &BTreeSet<u32>,
        is_gone: impl Fn(CgroupId) -> bool,
    ) -> io::Result<()> {
        let mut stale = Vec::new();
        self.names.visit(usize::MAX, |key, _| {
            if !policies.contains(&key.policy) {
                stale.push(key);
            }
        })?;
        for key in stale {
            self.names.remove(key)?;
        }
        let mut stale = Vec::new();
        self.carried.visit(usize::MAX, |key, _| {
            if is_gone(key.task) {
                stale.push(key);
            }
        })?;
        for key in stale {
            self.carried.remove(key)?;
        }
        earlier.retain(policies, is_gone);
        Ok(())
    }

    /// The number of names and the number of sums.
    pub(super) fn entries(&self) -> io::Result<[usize; 2]> {
        Ok([self.names.keys()?.len(), self.carried.keys()?.len()])
    }
}

fn carried_key(task: CgroupId, (direction, name): (u8, u64)) -> CarriedKey {
    CarriedKey {
        task,
        name,
        direction: u64::from(direction),
    }
}
