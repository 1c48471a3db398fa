//! Policies as loaded: the packets that each task may send and receive, the counts of its rules, and refused packets.
//!
//! A policy is written once under a number of its own, which all tasks with that policy share. The task's network
//! policy is changed last, in one step. An unused policy stays complete for [`QUARANTINE`]. After that no program can
//! still be reading it. A program that read the network policy before its change may look up addresses after the
//! change.
//!
//! Counts of rules continue under the task's next policies, and under the next agent (`persisted.rs`).
//!
//! Changes are serialized. A reader waits for a change only to read the counts of the task whose policies change
//! (`counts.rs`).

mod counts;
mod persisted;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use aya::maps::{Map, MapData, RingBuf};
use muster_agent_core::policy::{
    CompiledPolicy, HELD_PORT_RULE, NO_POLICY_RULE, PRIVATE_PORT_RULE, TaskPolicies,
};
use muster_domain::job::BitRate;
use muster_domain::number;
use muster_ebpf_common::{
    CgroupId, Plain,
    limits::{INTERVALS_MAX, PORTS_MAX, TASKS_MAX},
    net::Traffic,
    policy::{
        AddressKey4, AddressKey6, BEHIND_HOST_VETH, EGRESS_LIMITED, EGRESS_OPEN, INGRESS_LIMITED,
        INGRESS_OPEN, Interval, Leaf, LeafKey4, LeafKey6, NODE, POLICY_BITS, PortKey, RuleCounters,
        RuleKey, TaskPolicyRef, Verdict,
    },
    rate::{Bucket, Rates},
};
use thiserror::Error;

use crate::bpf::{
    limits::{BATCH_WRITTEN, QUARANTINE},
    map::PinnedMap,
    open::{OpenBpfError, open_map},
};

use counts::{CarriedOverCounters, PolicyHistory, name_hash};
use persisted::{PersistedCounters, PreviousGeneration};

pub use counts::RuleCount;

/// The reason why a task has no policy and must not start.
#[derive(Debug, Error)]
pub enum LoadPolicyError {
    /// All policies of the node together have too many rules.
    #[error(
        "load the task's network policy: the policies of this node's tasks need more than the {INTERVALS_MAX} \
         intervals there is room for; give tasks the same policy, or fewer rules"
    )]
    Full,
    /// The kernel has no room for another task or prefix.
    #[error(
        "load the task's network policy: more than {TASKS_MAX} tasks, {PORTS_MAX} ports or too many prefixes"
    )]
    TooMany,
    /// The kernel refused for another reason.
    #[error("load the task's network policy")]
    Kernel(#[from] io::Error),
}

/// The maps of the stem `policy`, and the agent's record of their content.
#[derive(Debug)]
pub(super) struct Policy {
    policy_refs: PinnedMap<CgroupId, TaskPolicyRef>,
    leaves4: PinnedMap<LeafKey4, Leaf>,
    leaves6: PinnedMap<LeafKey6, Leaf>,
    intervals: PinnedMap<u32, Interval>,
    ports: PinnedMap<PortKey, u64>,
    rules: PinnedMap<RuleKey, RuleCounters>,
    rates: PinnedMap<CgroupId, Rates>,
    persisted: PersistedCounters,
    /// The map whose entry [`CHANGES`] counts the changes of tasks' policies.
    active: PinnedMap<u32, u64>,
    /// Locked from the beginning of a policy change to its end.
    loaded: Mutex<PolicyTable>,
    /// Locked after `loaded`, and only briefly.
    index: Mutex<PolicyIndex>,
}

/// See [`Policy::active`].
const CHANGES: u32 = 1;

/// The content of the maps.
#[derive(Debug, Default)]
struct PolicyTable {
    /// The number that was assigned last.
    last: u32,
    numbers: HashMap<Arc<CompiledPolicy>, u32>,
    policies: BTreeMap<u32, SharedRules>,
    /// Unused policies that programs may still be reading; the oldest first.
    retired: VecDeque<(Instant, u32, SharedRules)>,
    free_intervals: IntervalAllocator,
    /// The number of tasks that hold each port of the node.
    node_ports: BTreeMap<u16, u32>,
    /// The state of the previous agent, as far as this agent has not taken it over.
    earlier: PreviousGeneration,
}

/// The state that readers use.
#[derive(Debug, Default)]
struct PolicyIndex {
    tasks: BTreeMap<CgroupId, Arc<TaskPolicyState>>,
    /// The policies by number, including those that programs may still be reading.
    rules: BTreeMap<u32, Arc<NamedRules>>,
    /// The task whose policies are being changed.
    changing: Option<CgroupId>,
}

#[derive(Debug)]
struct SharedRules {
    rules: Arc<NamedRules>,
    ranges: Vec<(u32, u32)>,
    tasks: u32,
}

/// A policy, and the hashes of its rules' names.
#[derive(Debug)]
struct NamedRules {
    compiled: Arc<CompiledPolicy>,
    names: Vec<u64>,
}

impl NamedRules {
    fn of(compiled: CompiledPolicy) -> Self {
        let names = compiled.rules.iter().map(|(name, _)| name_hash(name));
        Self {
            names: names.collect(),
            compiled: Arc::new(compiled),
        }
    }
}

/// The policies of a task, ingress and egress, and the rest of its network policy.
#[derive(Debug)]
struct TaskPolicyState {
    numbers: [u32; 2],
    rules: [Arc<NamedRules>; 2],
    ports: TaskPorts,
    carried: CarriedOverCounters,
}

/// The ports that a task's allocation has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskPorts {
    /// Ports on which the allocation's tasks listen, and to which other allocations may connect.
    pub inside: BTreeSet<u16>,
    /// Ports of the node that lead to the allocation by other means than eBPF. Tasks with a network of their own reach
    /// them at the node's addresses.
    pub of_node: BTreeSet<u16>,
    /// Whether the allocation's network is behind a host veth. Peers outside of it then reach only the ports in
    /// `inside`.
    pub behind_host_veth: bool,
}

impl TaskPolicyState {
    fn history(&self) -> PolicyHistory<'_> {
        let [ingress, egress] = &self.rules;
        PolicyHistory {
            numbers: self.numbers,
            names: [&ingress.names, &egress.names],
            carried: &self.carried,
        }
    }
}

impl Policy {
    pub(super) fn open(maps: &Path, cpus: usize) -> Result<Self, OpenBpfError> {
        Ok(Self {
            policy_refs: PinnedMap::shared(open_map(maps, "TASK_POLICY")?),
            leaves4: PinnedMap::shared(open_map(maps, "LEAVES4")?),
            leaves6: PinnedMap::shared(open_map(maps, "LEAVES6")?),
            intervals: PinnedMap::shared(open_map(maps, "INTERVALS")?),
            ports: PinnedMap::shared(open_map(maps, "PORTS")?),
            rules: PinnedMap::per_cpu(open_map(maps, "RULES")?, cpus),
            rates: PinnedMap::shared(open_map(maps, "RATES")?),
            persisted: PersistedCounters::open(maps)?,
            active: PinnedMap::shared(open_map(maps, "ACTIVE")?),
            loaded: Mutex::default(),
            index: Mutex::default(),
        })
    }

    /// Reads the data that an earlier agent wrote, so that this agent does not overwrite it.
    pub(super) fn load_previous(&self) -> io::Result<()> {
        let mut loaded = self.locked();
        let policies4 = self.leaves4.keys()?.into_iter().map(|key| key.place.policy);
        let policies6 = self.leaves6.keys()?.into_iter().map(|key| key.place.policy);
        loaded.last = policies4.chain(policies6).max().unwrap_or(0);
        loaded.earlier = self.persisted.load_previous()?;
        self.find_used_intervals(&mut loaded)
    }

    /// Finds the intervals that any policy uses.
    fn find_used_intervals(&self, loaded: &mut PolicyTable) -> io::Result<()> {
        let leaves = [leaves_of(&self.leaves4)?, leaves_of(&self.leaves6)?];
        let ranges = leaves.iter().flatten().map(|leaf| (leaf.first, leaf.count));
        loaded.free_intervals = IntervalAllocator::without(ranges);
        Ok(())
    }

    /// Removes the data that an earlier agent wrote for tasks that are gone, and unused policies.
    pub(super) fn remove_stale(&self, alive: &BTreeSet<CgroupId>) -> io::Result<()> {
        let mut loaded = self.locked();
        let retired = loaded.retired.iter().map(|(_, number, _)| number);
        let mut known: BTreeSet<u32> = loaded.policies.keys().chain(retired).copied().collect();
        let has_policies = |task: &CgroupId| self.lock_index().tasks.contains_key(task);
        for task in self.policy_refs.keys()? {
            if has_policies(&task) {
                continue;
            }
            if !alive.contains(&task) {
                self.policy_refs.remove(task)?;
                self.rates.remove(task)?;
            } else if let Some(policy_ref) = first(self.policy_refs.lookup(task)?) {
                known.extend([policy_ref.ingress, policy_ref.egress]);
            }
        }
        let is_stale = |policy: u32| !known.contains(&policy);
        sweep_leaves(&self.leaves4, |key| {
            (is_stale(key.place.policy), key.prefix_len)
        })?;
        sweep_leaves(&self.leaves6, |key| {
            (is_stale(key.place.policy), key.prefix_len)
        })?;
        let mut stale = Vec::new();
        self.rules.visit(usize::MAX, |key, _| {
            if is_stale(key.policy) {
                stale.push(key);
            }
        })?;
        for key in stale {
            self.rules.remove(key)?;
        }
        // A task that this agent has not found yet may hold any port of the node.
        let all_found = self.policy_refs.keys()?.iter().all(&has_policies);
        for key in self.ports.keys()? {
            let is_stale = if key.task == NODE {
                let is_held = |port| loaded.node_ports.contains_key(&port);
                all_found && !u16::try_from(key.port).is_ok_and(is_held)
            } else {
                !has_policies(&key.task) && !alive.contains(&key.task)
            };
            if is_stale {
                self.ports.remove(key)?;
            }
        }
        let is_gone = |task| !has_policies(&task) && !alive.contains(&task);
        self.persisted
            .remove_stale(&mut loaded.earlier, &known, is_gone)?;
        self.find_used_intervals(&mut loaded)
    }

    /// Attaches `policies` to `task`. They apply at once, to every later packet.
    pub(super) fn attach_policy(
        &self,
        task: CgroupId,
        policies: &TaskPolicies,
        ports: &TaskPorts,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> Result<(), LoadPolicyError> {
        let mut loaded = self.locked();
        let loaded = &mut *loaded;
        let left = first(self.policy_refs.lookup(task)?)
            .map(|policy_ref| [policy_ref.ingress, policy_ref.egress]);
        let (ingress, ingress_rules) = self.load(loaded, &policies.ingress)?;
        let (egress, egress_rules) = match self.load(loaded, &policies.egress) {
            Ok(egress) => egress,
            Err(error) => {
                release(loaded, ingress);
                return Err(error);
            }
        };
        let numbers = [ingress, egress];
        let (before, _) = self.task_policy(task);
        let flag = |policy: &CompiledPolicy, flag: u64| if policy.open { flag } else { 0 };
        let policy_ref = TaskPolicyRef {
            task,
            ingress,
            egress,
            flags: flag(&policies.ingress, INGRESS_OPEN)
                | flag(&policies.egress, EGRESS_OPEN)
                | if ports.behind_host_veth {
                    BEHIND_HOST_VETH
                } else {
                    0
                }
                | policies.ingress_rate.map_or(0, |_| INGRESS_LIMITED)
                | policies.egress_rate.map_or(0, |_| EGRESS_LIMITED),
        };
        let mut task_policy = TaskPolicyState {
            numbers,
            rules: [ingress_rules, egress_rules],
            ports: ports.clone(),
            carried: CarriedOverCounters::new(),
        };
        let history = match (&before, left) {
            (Some(before), _) => Some(before.history()),
            (None, Some(left)) => Some(loaded.earlier.history(task, left)),
            (None, None) => None,
        };
        let changed = history.filter(|history| history.numbers != numbers);
        let _changing = changed.as_ref().map(|_| self.mark_changing(task));
        let no_ports = TaskPorts::default();
        let ports_before = before.as_ref().map_or(&no_ports, |before| &before.ports);
        let mut floor = None;
        let made = self
            .hold_node_ports(&mut loaded.node_ports, &ports.of_node)
            .and_then(|()| self.set_ports(task, &ports_before.inside, &ports.inside))
            .and_then(|()| self.set_rates(task, policies))
            .and_then(|()| {
                // Counts between this point and the change of the network policy may be lost.
                let changed = changed.as_ref();
                floor = changed.map(|history| self.floor(task, history, &traffic));
                self.write_policy_ref(task, policy_ref)
            });
        if let Err(error) = made {
            release(loaded, ingress);
            release(loaded, egress);
            self.release_node_ports(&mut loaded.node_ports, &ports.of_node);
            return Err(no_room(error));
        }
        self.release_node_ports(&mut loaded.node_ports, &ports_before.of_node);
        if let (Some(history), Some(floor)) = (changed, floor) {
            task_policy.carried =
                self.carry_over(task, &history, &task_policy.history(), &floor, &traffic);
            self.persisted
                .replace_counts(task, history.carried, &task_policy.carried);
            loaded.earlier.forget(task);
        } else if let Some(before) = &before {
            task_policy.carried.clone_from(&before.carried);
        }
        self.lock_index().tasks.insert(task, Arc::new(task_policy));
        let Some(before) = before else { return Ok(()) };
        for (policy, rules) in before.numbers.into_iter().zip(&before.rules) {
            if !numbers.contains(&policy) {
                self.forget_counts(task, policy, rules.names.len());
            }
            release(loaded, policy);
        }
        Ok(())
    }

    /// Sets the rate limits of a task. The task starts with a full burst, also at a new rate.
    fn set_rates(&self, task: CgroupId, policies: &TaskPolicies) -> io::Result<()> {
        let bucket = |rate: Option<BitRate>| {
            let bits = rate.map_or(0, |rate| rate.0);
            Bucket::of_bits(bits)
        };
        let rates = Rates {
            ingress: bucket(policies.ingress_rate),
            egress: bucket(policies.egress_rate),
        };
        if rates == Rates::default() {
            return self.rates.remove(task).map(drop);
        }
        let before = first(self.rates.lookup(task)?).unwrap_or_default();
        let price = |rates: Rates| [rates.ingress.ps_per_byte, rates.egress.ps_per_byte];
        if price(before) == price(rates) {
            // Unchanged rates keep their state, including an unpaid debt.
            return Ok(());
        }
        self.rates.set_all(task, rates)
    }

    /// Sets the network policy, and invalidates cached verdicts of the previous policy.
    fn write_policy_ref(&self, task: CgroupId, policy_ref: TaskPolicyRef) -> io::Result<()> {
        let before = first(self.policy_refs.lookup(task)?);
        self.policy_refs.set_all(task, policy_ref)?;
        if before.is_none_or(|before| before == policy_ref) {
            // No packet of a task without a network policy has a cached verdict.
            return Ok(());
        }
        let changes = first(self.active.lookup(CHANGES)?).unwrap_or(0);
        self.active.set_all(CHANGES, changes.wrapping_add(1))
    }

    /// Changes the owner of the entry of `task`, as the kernel may do while a program reads it.
    #[cfg(test)]
    pub(super) fn change_entry_owner(&self, task: CgroupId) -> io::Result<()> {
        let mut policy_ref = first(self.policy_refs.lookup(task)?).unwrap_or_default();
        policy_ref.task += 1;
        self.policy_refs.set_all(task, policy_ref)
    }

    /// Removes the network policy of a task whose processes are gone.
    pub(super) fn forget(&self, task: CgroupId) -> io::Result<()> {
        let mut loaded = self.locked();
        self.policy_refs.remove(task)?;
        self.rates.remove(task)?;
        let earlier = loaded.earlier.forget(task);
        self.persisted.forget(task, &earlier);
        let Some(before) = self.lock_index().tasks.remove(&task) else {
            return Ok(());
        };
        self.persisted.forget(task, &before.carried);
        self.release_node_ports(&mut loaded.node_ports, &before.ports.of_node);
        self.set_ports(task, &before.ports.inside, &BTreeSet::new())?;
        for (policy, rules) in before.numbers.into_iter().zip(&before.rules) {
            self.forget_counts(task, policy, rules.names.len());
            release(&mut loaded, policy);
        }
        Ok(())
    }

    /// The number of entries in each table that holds tasks and their policies.
    pub(super) fn entries(&self) -> io::Result<[(&'static str, usize); 8]> {
        let [names, carried] = self.persisted.entries()?;
        Ok([
            ("TASK_POLICY", self.policy_refs.keys()?.len()),
            ("RATES", self.rates.keys()?.len()),
            ("PORTS", self.ports.keys()?.len()),
            ("LEAVES4", self.leaves4.keys()?.len()),
            ("LEAVES6", self.leaves6.keys()?.len()),
            ("RULES", self.rules.keys()?.len()),
            ("NAMES", names),
            ("CARRIED_OVER", carried),
        ])
    }

    /// The name of the rule behind a verdict, and the direction of its policy.
    pub(super) fn rule(&self, policy: u32, verdict: Verdict) -> String {
        match verdict.rule() {
            Verdict::PRIVATE_PORT => PRIVATE_PORT_RULE.to_owned(),
            Verdict::HELD_PORT => HELD_PORT_RULE.to_owned(),
            Verdict::NO_POLICY => NO_POLICY_RULE.to_owned(),
            number => {
                let index = self.lock_index();
                let rules = index.rules.get(&policy);
                let rule = rules.and_then(|rules| rules.compiled.rules.get(number as usize));
                // The policy was replaced since.
                rule.map_or_else(|| format!("rule {number}"), |(name, _)| name.clone())
            }
        }
    }

    fn set_ports(
        &self,
        task: CgroupId,
        before: &BTreeSet<u16>,
        ports: &BTreeSet<u16>,
    ) -> io::Result<()> {
        let key = |port: &u16| PortKey {
            task,
            port: u64::from(*port),
        };
        for port in ports.difference(before) {
            self.ports.set_all(key(port), 1)?;
        }
        for port in before.difference(ports) {
            self.ports.remove(key(port))?;
        }
        Ok(())
    }

    /// Adds a task to the holders of these ports of the node. After an error [`Self::release_node_ports`] reverts that.
    fn hold_node_ports(
        &self,
        held: &mut BTreeMap<u16, u32>,
        ports: &BTreeSet<u16>,
    ) -> io::Result<()> {
        let mut opened = Vec::new();
        for port in ports {
            let tasks = held.entry(*port).or_default();
            *tasks += 1;
            if *tasks == 1 {
                opened.push(node_port(*port));
            }
        }
        opened
            .into_iter()
            .try_for_each(|port| self.ports.set_all(port, 1))
    }

    /// Removes a task from the holders of these ports of the node. Ports without a holder are closed.
    fn release_node_ports(&self, held: &mut BTreeMap<u16, u32>, ports: &BTreeSet<u16>) {
        for port in ports {
            let Some(tasks) = held.get_mut(port) else {
                continue;
            };
            *tasks -= 1;
            if *tasks > 0 {
                continue;
            }
            held.remove(port);
            if let Err(error) = self.ports.remove(node_port(*port)) {
                tracing::warn!(%error, port, "a port of the node that no task holds is left open to bridged tasks");
            }
        }
    }

    /// Returns the number and the rules of `compiled`, which is written if it is not loaded yet.
    fn load(
        &self,
        loaded: &mut PolicyTable,
        compiled: &CompiledPolicy,
    ) -> Result<(u32, Arc<NamedRules>), LoadPolicyError> {
        if let Some(number) = loaded.numbers.get(compiled).copied()
            && let Some(entry) = loaded.policies.get_mut(&number)
        {
            entry.tasks += 1;
            return Ok((number, Arc::clone(&entry.rules)));
        }
        self.reclaim_retired(loaded, Instant::now());
        let mut ranges = Vec::new();
        for list in &compiled.lists {
            let count = number::count(list.len());
            let Some(first) = self.allocate_interval(loaded, count) else {
                loaded.free_intervals.put_all(&ranges);
                return Err(LoadPolicyError::Full);
            };
            ranges.push((first, count));
        }
        let number = loaded.last.wrapping_add(1).max(1);
        loaded.last = number;
        if let Err(error) = self.write(number, compiled, &ranges) {
            // No network policy has ever referred to this number.
            self.remove_written(number, compiled);
            loaded.free_intervals.put_all(&ranges);
            return Err(no_room(error));
        }
        let rules = Arc::new(NamedRules::of(compiled.clone()));
        self.persisted.name(number, &rules.names);
        loaded.numbers.insert(Arc::clone(&rules.compiled), number);
        let entry = SharedRules {
            rules: Arc::clone(&rules),
            ranges,
            tasks: 1,
        };
        loaded.policies.insert(number, entry);
        self.lock_index().rules.insert(number, Arc::clone(&rules));
        Ok((number, rules))
    }

    /// Allocates room. If room is lacking only because unused policies are still in quarantine, waits for their
    /// removal.
    fn allocate_interval(&self, loaded: &mut PolicyTable, count: u32) -> Option<u32> {
        loop {
            if let Some(first) = loaded.free_intervals.take(count) {
                return Some(first);
            }
            let (since, ..) = loaded.retired.front()?;
            std::thread::sleep(QUARANTINE.saturating_sub(since.elapsed()));
            self.reclaim_retired(loaded, Instant::now());
        }
    }

    fn write(
        &self,
        policy: u32,
        compiled: &CompiledPolicy,
        ranges: &[(u32, u32)],
    ) -> io::Result<()> {
        let lists = ranges.iter().zip(&compiled.lists);
        let intervals = lists.flat_map(|((first, _), list)| (*first..).zip(list.iter().copied()));
        let intervals: Vec<_> = intervals.collect();
        for some in intervals.chunks(BATCH_WRITTEN) {
            self.intervals.set_many(some)?;
        }
        let leaf = |list: usize| {
            let (first, count) = ranges[list];
            Leaf { first, count }
        };
        let nets = compiled.v4.iter();
        let leaves: Vec<_> = nets
            .map(|(net, list)| (key4(policy, *net), leaf(*list)))
            .collect();
        for some in leaves.chunks(BATCH_WRITTEN) {
            self.leaves4.set_many(some)?;
        }
        let nets = compiled.v6.iter();
        let leaves: Vec<_> = nets
            .map(|(net, list)| (key6(policy, *net), leaf(*list)))
            .collect();
        for some in leaves.chunks(BATCH_WRITTEN) {
            self.leaves6.set_many(some)?;
        }
        Ok(())
    }

    /// Removes the written parts of a policy. A part that cannot be removed only occupies room.
    fn remove_written(&self, policy: u32, compiled: &CompiledPolicy) {
        let nets = widest_first(compiled.v4.keys(), |net| net.prefix_len().into());
        let removed4 = nets.map(|net| self.leaves4.remove(key4(policy, *net)));
        let nets = widest_first(compiled.v6.keys(), |net| net.prefix_len().into());
        let removed6 = nets.map(|net| self.leaves6.remove(key6(policy, *net)));
        if let Some(error) = removed4.chain(removed6).find_map(Result::err) {
            tracing::warn!(%error, "prefixes of an unused network policy remain");
        }
    }

    /// Removes policies that were unused for the quarantine.
    pub(super) fn forget_retired(&self) {
        self.reclaim_retired(&mut self.locked(), Instant::now());
    }

    fn reclaim_retired(&self, loaded: &mut PolicyTable, now: Instant) {
        while let Some((since, ..)) = loaded.retired.front()
            && now.duration_since(*since) >= QUARANTINE
            && let Some((_, number, entry)) = loaded.retired.pop_front()
        {
            self.lock_index().rules.remove(&number);
            self.remove_written(number, &entry.rules.compiled);
            self.persisted.remove_names(number, entry.rules.names.len());
            loaded.free_intervals.put_all(&entry.ranges);
        }
    }

    fn locked(&self) -> MutexGuard<'_, PolicyTable> {
        // A panic elsewhere at most leaks room.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_index(&self) -> MutexGuard<'_, PolicyIndex> {
        // No code that can panic runs between two changes that belong together.
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The network policy of the task, and whether it is being changed.
    fn task_policy(&self, task: CgroupId) -> (Option<Arc<TaskPolicyState>>, bool) {
        let index = self.lock_index();
        let task_policy = index.tasks.get(&task).map(Arc::clone);
        (task_policy, index.changing == Some(task))
    }

    /// Marks the task's policies as being changed for readers, until the guard is dropped.
    fn mark_changing(&self, task: CgroupId) -> PolicyChangeGuard<'_> {
        self.lock_index().changing = Some(task);
        PolicyChangeGuard(self)
    }
}

/// See [`Policy::mark_changing`].
struct PolicyChangeGuard<'a>(&'a Policy);

impl Drop for PolicyChangeGuard<'_> {
    fn drop(&mut self) {
        self.0.lock_index().changing = None;
    }
}

/// Opens the ring of verdicts of the maps pinned in `maps`.
pub(super) fn open_ring(maps: &Path) -> Result<RingBuf<MapData>, OpenBpfError> {
    let path = maps.join("VERDICTS");
    let data = open_map(maps, "VERDICTS")?;
    RingBuf::try_from(Map::RingBuf(data)).map_err(|source| OpenBpfError::OpenMap { path, source })
}

/// Removes one task from the users of the policy `number`.
fn release(loaded: &mut PolicyTable, number: u32) {
    let Some(entry) = loaded.policies.get_mut(&number) else {
        return;
    };
    entry.tasks -= 1;
    if entry.tasks > 0 {
        return;
    }
    let Some(entry) = loaded.policies.remove(&number) else {
        return;
    };
    loaded.numbers.remove(&entry.rules.compiled);
    loaded.retired.push_back((Instant::now(), number, entry));
}

fn no_room(error: io::Error) -> LoadPolicyError {
    match error.raw_os_error() {
        Some(libc::E2BIG | libc::ENOSPC) => LoadPolicyError::TooMany,
        _ => LoadPolicyError::Kernel(error),
    }
}

/// All leaves of a trie.
fn leaves_of<K: Plain>(trie: &PinnedMap<K, Leaf>) -> io::Result<Vec<Leaf>> {
    let mut leaves = Vec::new();
    for key in trie.keys()? {
        leaves.extend(first(trie.lookup(key)?));
    }
    Ok(leaves)
}

/// Removes prefixes from a trie. For each prefix, `judge` decides whether to remove it, and returns its length.
fn sweep_leaves<K: Plain>(
    trie: &PinnedMap<K, Leaf>,
    judge: impl Fn(&K) -> (bool, u32),
) -> io::Result<()> {
    let mut stale = trie.keys()?;
    stale.retain(|key| judge(key).0);
    for key in widest_first(stale, |key| judge(key).1) {
        trie.remove(key)?;
    }
    Ok(())
}

/// Sorts the prefixes of a policy into their order of removal, the widest first. A program that still reads the policy
/// finds an address in its narrowest prefix while that prefix exists. Afterwards it finds no prefix and refuses the
/// packet. If narrow prefixes were removed first, the program would find the rule of a wider prefix.
fn widest_first<T>(
    nets: impl IntoIterator<Item = T>,
    length: impl Fn(&T) -> u32,
) -> impl Iterator<Item = T> {
    let mut nets: Vec<T> = nets.into_iter().collect();
    nets.sort_by_key(|net| length(net));
    nets.into_iter()
}

fn key4(policy: u32, net: ipnet::Ipv4Net) -> LeafKey4 {
    LeafKey4 {
        prefix_len: POLICY_BITS + u32::from(net.prefix_len()),
        place: AddressKey4 {
            policy,
            address: net.addr().octets(),
        },
    }
}

fn node_port(port: u16) -> PortKey {
    PortKey {
        task: NODE,
        port: port.into(),
    }
}

fn key6(policy: u32, net: ipnet::Ipv6Net) -> LeafKey6 {
    LeafKey6 {
        prefix_len: POLICY_BITS + u32::from(net.prefix_len()),
        place: AddressKey6 {
            policy,
            address: net.addr().octets(),
        },
    }
}

fn first<V: Copy>(values: Option<Vec<V>>) -> Option<V> {
    values.and_then(|values| values.first().copied())
}

/// The free intervals, allocated first fit.
#[derive(Debug)]
struct IntervalAllocator {
    /// Free ranges: start and length.
    free: BTreeMap<u32, u32>,
}

impl Default for IntervalAllocator {
    fn default() -> Self {
        Self {
            free: BTreeMap::from([(0, INTERVALS_MAX)]),
        }
    }
}

impl IntervalAllocator {
    fn without(used: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut room = Self::default();
        used.for_each(|range| room.reserve(range));
        room
    }

    fn reserve(&mut self, (first, count): (u32, u32)) {
        let end = first + count;
        let before = self.free.range(..=first).next_back();
        let Some((start, length)) = before.map(|(start, length)| (*start, *length)) else {
            return;
        };
        if start + length < end {
            // A part of the range was removed before, because prefixes share lists.
            return;
        }
        self.free.remove(&start);
        if start < first {
            self.free.insert(start, first - start);
        }
        if end < start + length {
            self.free.insert(end, start + length - end);
        }
    }

    fn take(&mut self, count: u32) -> Option<u32> {
        let fits = self.free.iter().find(|(_, length)| **length >= count);
        let first = *fits?.0;
        self.reserve((first, count));
        Some(first)
    }

    fn put_all(&mut self, ranges: &[(u32, u32)]) {
        for range in ranges {
            self.put(*range);
        }
    }

    fn put(&mut self, (mut first, mut count): (u32, u32)) {
        let before = self.free.range(..first).next_back();
        if let Some((start, length)) = before.map(|(start, length)| (*start, *length))
            && start + length == first
        {
            self.free.remove(&start);
            (first, count) = (start, length + count);
        }
        if let Some(length) = self.free.remove(&(first + count)) {
            count += length;
        }
        self.free.insert(first, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_used_again_and_grows_together() {
        let mut room = IntervalAllocator::default();
        let first = room.take(10).unwrap();
        let second = room.take(20).unwrap();
        let third = room.take(5).unwrap();
        assert_eq!((first, second, third), (0, 10, 30));

        room.put((10, 20));
        assert_eq!(room.take(15), Some(10));
        room.put((10, 15));
        room.put((0, 10));
        assert_eq!(
            room.free,
            BTreeMap::from([(0, 30), (35, INTERVALS_MAX - 35)])
        );
        assert_eq!(room.take(INTERVALS_MAX), None);
    }

    /// While a policy is removed, a program finds the same result for an address as before, or none.
    #[test]
    fn partially_removed_policy_never_matches_wider_prefix() {
        let nets = ["0.0.0.0/0", "127.0.0.0/8", "127.0.0.1/32", "200.0.0.0/5"];
        let nets: BTreeSet<ipnet::Ipv4Net> = nets.iter().map(|net| net.parse().unwrap()).collect();
        let found = |nets: &BTreeSet<ipnet::Ipv4Net>, address: &str| {
            let address: std::net::Ipv4Addr = address.parse().unwrap();
            let around = nets.iter().filter(|net| net.contains(&address));
            around.max_by_key(|net| net.prefix_len()).copied()
        };
        let mut left = nets.clone();

        for net in widest_first(&nets, |net| net.prefix_len().into()) {
            left.remove(net);

            for address in ["127.0.0.1", "127.0.0.2", "201.0.0.1", "9.9.9.9"] {
                let now = found(&left, address);
                assert!(
                    now.is_none() || now == found(&nets, address),
                    "{address}: {now:?}"
                );
            }
        }
        assert!(left.is_empty());
    }

    #[test]
    fn intervals_of_earlier_agents_are_not_free() {
        let room = IntervalAllocator::without([(5, 5), (20, 1), (5, 5)].into_iter());

        let expected = BTreeMap::from([(0, 5), (10, 10), (21, INTERVALS_MAX - 21)]);
        assert_eq!(room.free, expected);
    }
}
