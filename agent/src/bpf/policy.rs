//! Policies as loaded: what each task may send and receive, what its rules counted, what was refused.
//!
//! A policy is written once under a number of its own, whichever tasks have it, and the task's fence is
//! changed last, in one step. A policy that nobody has any more stays whole for [`QUARANTINE`], after which no program
//! can still be reading it: one that read the fence before it was changed may look addresses up after.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use aya::maps::{Map, MapData, RingBuf};
use muster_agent_core::policy::{Compiled, NO_POLICY_RULE, PRIVATE_PORT_RULE, TaskPolicies};
use muster_domain::job::BitRate;
use muster_ebpf_common::{
    CgroupId,
    limits::{INTERVALS_MAX, PORTS_MAX, TASKS_MAX},
    net::{MetRule, Traffic},
    policy::{
        BEHIND_DOOR, Direction, EGRESS_LIMITED, EGRESS_OPEN, Fence, INGRESS_LIMITED, INGRESS_OPEN,
        Interval, Leaf, LeafKey4, LeafKey6, POLICY_BITS, Place4, Place6, PortKey, RuleCounters,
        RuleKey, Verdict,
    },
    rate::{Bucket, Rates},
};
use thiserror::Error;

use crate::bpf::{
    OpenBpfError,
    limits::{BATCH_WRITTEN, QUARANTINE},
    map::PinnedMap,
    open_map,
};

/// Why a task has no policy, and must not start.
#[derive(Debug, Error)]
pub enum FenceError {
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

/// What one rule of a task has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleCount {
    /// Which policy it is of.
    pub direction: Direction,
    /// Its name.
    pub rule: String,
    /// Whether it lets packets pass.
    pub allows: bool,
    /// Packets that met it.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The maps of the stem `policy`, and what this agent wrote into them.
#[derive(Debug)]
pub(super) struct Policy {
    fence: PinnedMap<CgroupId, Fence>,
    leaves4: PinnedMap<LeafKey4, Leaf>,
    leaves6: PinnedMap<LeafKey6, Leaf>,
    intervals: PinnedMap<u32, Interval>,
    ports: PinnedMap<PortKey, u64>,
    rules: PinnedMap<RuleKey, RuleCounters>,
    rates: PinnedMap<CgroupId, Rates>,
    /// At [`CHANGES`], how often the policies of a task were changed.
    active: PinnedMap<u32, u64>,
    loaded: Mutex<Loaded>,
}

/// See [`Policy::active`].
const CHANGES: u32 = 1;

/// How often counts are read again because a rule's were moved meanwhile. Then they may be short of what was moved.
const READ_AGAIN_MAX: usize = 3;

/// What is in the maps.
#[derive(Debug, Default)]
struct Loaded {
    /// The number that was given last.
    last: u32,
    /// Policies by what they say.
    numbers: HashMap<Arc<Compiled>, u32>,
    policies: BTreeMap<u32, Entry>,
    tasks: BTreeMap<CgroupId, Fenced>,
    /// Policies that nobody has, which programs may still be reading; the oldest first.
    retired: VecDeque<(Instant, u32, Entry)>,
    room: Room,
}

#[derive(Debug)]
struct Entry {
    compiled: Arc<Compiled>,
    ranges: Vec<(u32, u32)>,
    tasks: u32,
}

#[derive(Clone, Debug, Default)]
struct Fenced {
    ingress: u32,
    egress: u32,
    ports: BTreeSet<u16>,
    carried: Carried,
}

impl Fenced {
    fn policies(&self) -> [u32; 2] {
        [self.ingress, self.egress]
    }
}

/// Packets and bytes that rules of a task met under its earlier policies, by direction and name. None is here that
/// its present policies do not have.
type Carried = BTreeMap<(u8, String), (u64, u64)>;

impl Policy {
    pub(super) fn open(maps: &Path, cpus: usize) -> Result<Self, OpenBpfError> {
        Ok(Self {
            fence: PinnedMap::shared(open_map(maps, "FENCE")?),
            leaves4: PinnedMap::shared(open_map(maps, "LEAVES4")?),
            leaves6: PinnedMap::shared(open_map(maps, "LEAVES6")?),
            intervals: PinnedMap::shared(open_map(maps, "INTERVALS")?),
            ports: PinnedMap::shared(open_map(maps, "PORTS")?),
            rules: PinnedMap::per_cpu(open_map(maps, "RULES")?, cpus),
            rates: PinnedMap::shared(open_map(maps, "RATES")?),
            active: PinnedMap::shared(open_map(maps, "ACTIVE")?),
            loaded: Mutex::default(),
        })
    }

    /// Learns what an earlier agent wrote, so that nothing of it is overwritten.
    pub(super) fn take_up(&self) -> io::Result<()> {
        let mut loaded = self.locked();
        let mut used = Vec::new();
        for key in self.leaves4.keys()? {
            loaded.last = loaded.last.max(key.place.policy);
            used.extend(first(self.leaves4.lookup(key)?));
        }
        for key in self.leaves6.keys()? {
            loaded.last = loaded.last.max(key.place.policy);
            used.extend(first(self.leaves6.lookup(key)?));
        }
        let ranges = used.iter().map(|leaf| (leaf.first, leaf.count));
        loaded.room = Room::without(ranges);
        Ok(())
    }

    /// Removes what an earlier agent wrote for tasks that are gone, and policies that nobody has.
    pub(super) fn sweep(&self, alive: &BTreeSet<CgroupId>) -> io::Result<()> {
        let mut loaded = self.locked();
        let retired = loaded.retired.iter().map(|(_, number, _)| number);
        let mut known: BTreeSet<u32> = loaded.policies.keys().chain(retired).copied().collect();
        for task in self.fence.keys()? {
            if loaded.tasks.contains_key(&task) {
                continue;
            }
            if !alive.contains(&task) {
                self.fence.remove(task)?;
                self.rates.remove(task)?;
            } else if let Some(fence) = first(self.fence.lookup(task)?) {
                known.extend([fence.ingress, fence.egress]);
            }
        }
        let is_stale = |policy: u32| !known.contains(&policy);
        let mut stale4 = self.leaves4.keys()?;
        stale4.retain(|key| is_stale(key.place.policy));
        for key in widest_first(stale4, |key| key.prefix_len) {
            self.leaves4.remove(key)?;
        }
        let mut stale6 = self.leaves6.keys()?;
        stale6.retain(|key| is_stale(key.place.policy));
        for key in widest_first(stale6, |key| key.prefix_len) {
            self.leaves6.remove(key)?;
        }
        for key in self.rules.keys()? {
            if is_stale(key.policy) {
                self.rules.remove(key)?;
            }
        }
        for key in self.ports.keys()? {
            if !loaded.tasks.contains_key(&key.task) && !alive.contains(&key.task) {
                self.ports.remove(key)?;
            }
        }
        let mut used = Vec::new();
        for key in self.leaves4.keys()? {
            used.extend(first(self.leaves4.lookup(key)?));
        }
        for key in self.leaves6.keys()? {
            used.extend(first(self.leaves6.lookup(key)?));
        }
        let ranges = used.iter().map(|leaf| (leaf.first, leaf.count));
        loaded.room = Room::without(ranges);
        Ok(())
    }

    /// Puts `task` behind `policies`, at once and for every packet from now on.
    pub(super) fn fence(
        &self,
        task: CgroupId,
        policies: &TaskPolicies,
        ports: &BTreeSet<u16>,
        behind_door: bool,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> Result<(), FenceError> {
        let mut loaded = self.locked();
        let ingress = self.load(&mut loaded, &policies.ingress)?;
        let egress = match self.load(&mut loaded, &policies.egress) {
            Ok(egress) => egress,
            Err(error) => {
                release(&mut loaded, ingress);
                return Err(error);
            }
        };
        let before = loaded.tasks.get(&task).cloned().unwrap_or_default();
        let flag = |policy: &Compiled, flag: u64| if policy.open { flag } else { 0 };
        let fence = Fence {
            task,
            ingress,
            egress,
            flags: flag(&policies.ingress, INGRESS_OPEN)
                | flag(&policies.egress, EGRESS_OPEN)
                | if behind_door { BEHIND_DOOR } else { 0 }
                | policies.ingress_rate.map_or(0, |_| INGRESS_LIMITED)
                | policies.egress_rate.map_or(0, |_| EGRESS_LIMITED),
        };
        let changed = before.policies() != [0; 2] && before.policies() != [ingress, egress];
        let met = if changed {
            self.floor(&loaded, task, &before, &traffic)
        } else {
            Vec::new()
        };
        let made = self
            .set_ports(task, &before.ports, ports)
            .and_then(|()| self.set_rates(task, policies))
            .and_then(|()| self.set_fence(task, fence));
        if let Err(error) = made {
            release(&mut loaded, ingress);
            release(&mut loaded, egress);
            return Err(no_room(error));
        }
        let mut fenced = Fenced {
            ingress,
            egress,
            ports: ports.clone(),
            carried: before.carried.clone(),
        };
        if changed {
            fenced.carried = self.carry(&loaded, task, &before, &fenced, met, &traffic);
            for policy in before.policies() {
                if !fenced.policies().contains(&policy) {
                    self.forget_counts(&loaded, task, policy);
                }
            }
        }
        for policy in before.policies() {
            release(&mut loaded, policy);
        }
        loaded.tasks.insert(task, fenced);
        Ok(())
    }

    /// Counts, before policies change, of the rules that are met at this moment: a program that meets a rule of another
    /// policy forgets what it had not added to theirs.
    fn floor(
        &self,
        loaded: &Loaded,
        task: CgroupId,
        before: &Fenced,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> Vec<RuleCount> {
        let counts = met_now(traffic).and_then(|met| {
            let is_met = |policy, rule| {
                met.iter()
                    .flatten()
                    .any(|met| (met.policy, met.rule) == (policy, rule))
            };
            let policies = loaded.compiled(before);
            self.counts_with(task, before, &policies, &met, is_met)
        });
        counts.unwrap_or_else(|error| {
            tracing::warn!(%error, "counts of rules that are met while a policy changes are not kept");
            Vec::new()
        })
    }

    /// What rules of `after` met under the policies `before`, which no packet meets any more, and earlier. It is never
    /// less than was read of them before.
    fn carry(
        &self,
        loaded: &Loaded,
        task: CgroupId,
        before: &Fenced,
        after: &Fenced,
        floor: Vec<RuleCount>,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> Carried {
        let counts = self.counts_of(loaded, task, before, traffic);
        let counts = counts.unwrap_or_else(|error| {
            tracing::warn!(%error, "counts of rules before a policy changed are not kept");
            Vec::new()
        });
        let mut sums = Carried::new();
        for count in counts {
            let sum = sums.entry((count.direction as u8, count.rule)).or_default();
            sum.0 += count.packets;
            sum.1 += count.bytes;
        }
        for count in floor {
            let sum = sums.entry((count.direction as u8, count.rule)).or_default();
            *sum = (sum.0.max(count.packets), sum.1.max(count.bytes));
        }
        let mut carried = Carried::new();
        let directions = [Direction::Ingress, Direction::Egress].into_iter();
        let numbers = before.policies().into_iter().zip(after.policies());
        for ((direction, (old, new)), compiled) in
            directions.zip(numbers).zip(loaded.compiled(after))
        {
            // Of a policy that stays, the counts go on where they are.
            let from = if old == new { &before.carried } else { &sums };
            let rules = compiled.iter().flat_map(|compiled| named(compiled));
            for (_, rule, _) in rules.chain(built_in(direction)) {
                let key = (direction as u8, rule.to_owned());
                if let Some(sum) = from.get(&key) {
                    carried.insert(key, *sum);
                }
            }
        }
        carried
    }

    /// Removes what rules of a policy counted for a task that has it no more.
    fn forget_counts(&self, loaded: &Loaded, task: CgroupId, policy: u32) {
        let Some(entry) = loaded.policies.get(&policy) else {
            return;
        };
        let special = [Verdict::PRIVATE_PORT, Verdict::NO_POLICY];
        let rules = named(&entry.compiled).map(|(rule, ..)| rule);
        for rule in rules.chain(special) {
            if let Err(error) = self.rules.remove(RuleKey { task, policy, rule }) {
                tracing::warn!(%error, "counts of a rule that no task has are left");
                return;
            }
        }
    }

    /// Sets the rates of a task. It starts with a burst, also at a new rate.
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
            // What is not paid for stays so.
            return Ok(());
        }
        self.rates.set_all(task, rates)
    }

    /// Sets the fence, and has verdicts forgotten that were made with another one.
    fn set_fence(&self, task: CgroupId, fence: Fence) -> io::Result<()> {
        let before = first(self.fence.lookup(task)?);
        self.fence.set_all(task, fence)?;
        if before.is_none_or(|before| before == fence) {
            // No packet of a task without a fence has a verdict.
            return Ok(());
        }
        let changes = first(self.active.lookup(CHANGES)?).unwrap_or(0);
        self.active.set_all(CHANGES, changes.wrapping_add(1))
    }

    /// Gives the entry of `task` to another one, as the kernel may while a program reads it.
    #[cfg(test)]
    pub(super) fn give_away(&self, task: CgroupId) -> io::Result<()> {
        let mut fence = first(self.fence.lookup(task)?).unwrap_or_default();
        fence.task += 1;
        self.fence.set_all(task, fence)
    }

    /// Takes the fence of a task away whose processes are gone.
    pub(super) fn forget(&self, task: CgroupId) -> io::Result<()> {
        let mut loaded = self.locked();
        self.fence.remove(task)?;
        self.rates.remove(task)?;
        let Some(before) = loaded.tasks.remove(&task) else {
            return Ok(());
        };
        self.set_ports(task, &before.ports, &BTreeSet::new())?;
        for policy in before.policies() {
            self.forget_counts(&loaded, task, policy);
            release(&mut loaded, policy);
        }
        Ok(())
    }

    /// How many entries each table has in which tasks and their policies are.
    pub(super) fn entries(&self) -> io::Result<[(&'static str, usize); 6]> {
        Ok([
            ("FENCE", self.fence.keys()?.len()),
            ("RATES", self.rates.keys()?.len()),
            ("PORTS", self.ports.keys()?.len()),
            ("LEAVES4", self.leaves4.keys()?.len()),
            ("LEAVES6", self.leaves6.keys()?.len()),
            ("RULES", self.rules.keys()?.len()),
        ])
    }

    /// What the rules of `task` have counted, those of the same name in its earlier policies included; those that met
    /// nothing are left out. `traffic` looks up what each CPU keeps of the task's traffic: counts of the rules met last
    /// are there. No policy changes meanwhile.
    pub(super) fn counts(
        &self,
        task: CgroupId,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> io::Result<Vec<RuleCount>> {
        let loaded = self.locked();
        match loaded.tasks.get(&task) {
            Some(fenced) => self.counts_of(&loaded, task, fenced, traffic),
            None => Ok(Vec::new()),
        }
    }

    fn counts_of(
        &self,
        loaded: &Loaded,
        task: CgroupId,
        fenced: &Fenced,
        traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
    ) -> io::Result<Vec<RuleCount>> {
        let policies = loaded.compiled(fenced);
        let every = |_, _| true;
        let mut met = met_now(&traffic)?;
        for _ in 0..READ_AGAIN_MAX {
            let counts = self.counts_with(task, fenced, &policies, &met, every)?;
            let now = met_now(&traffic)?;
            if !was_moved(&met, &now) {
                return Ok(counts);
            }
            met = now;
        }
        self.counts_with(task, fenced, &policies, &met, every)
    }

    fn counts_with(
        &self,
        task: CgroupId,
        fenced: &Fenced,
        policies: &[Option<Arc<Compiled>>; 2],
        met: &[[MetRule; 2]],
        wanted: impl Fn(u32, u32) -> bool,
    ) -> io::Result<Vec<RuleCount>> {
        let mut carried = fenced.carried.clone();
        let mut counts = Vec::new();
        let directions = [
            (Direction::Ingress, fenced.ingress),
            (Direction::Egress, fenced.egress),
        ];
        for ((direction, policy), compiled) in directions.into_iter().zip(policies) {
            let Some(compiled) = compiled else { continue };
            for (number, rule, allows) in named(compiled).chain(built_in(direction)) {
                if !wanted(policy, number) {
                    continue;
                }
                let rule_key = RuleKey {
                    task,
                    policy,
                    rule: number,
                };
                let mut sum = RuleCounters::default();
                for count in self.rules.lookup(rule_key)?.unwrap_or_default() {
                    sum += count;
                }
                let last = met.iter().map(|each| each[direction as usize]);
                for met in last.filter(|met| met.policy == policy && met.rule == number) {
                    sum.packets += met.packets;
                    sum.bytes += met.bytes;
                }
                if let Some((packets, bytes)) = carried.remove(&(direction as u8, rule.to_owned()))
                {
                    sum.packets += packets;
                    sum.bytes += bytes;
                }
                if sum.packets == 0 {
                    continue;
                }
                counts.push(RuleCount {
                    direction,
                    rule: rule.to_owned(),
                    allows,
                    packets: sum.packets,
                    bytes: sum.bytes,
                });
            }
        }
        Ok(counts)
    }

    /// The name of the rule behind a verdict, and the direction of its policy.
    pub(super) fn rule(&self, policy: u32, verdict: Verdict) -> String {
        match verdict.rule() {
            Verdict::PRIVATE_PORT => PRIVATE_PORT_RULE.to_owned(),
            Verdict::NO_POLICY => NO_POLICY_RULE.to_owned(),
            number => {
                let loaded = self.locked();
                let retired = || {
                    loaded
                        .retired
                        .iter()
                        .find(|(_, number, _)| *number == policy)
                };
                let entry = loaded.policies.get(&policy);
                let entry = entry.or_else(|| retired().map(|(.., entry)| entry));
                let rule = entry.and_then(|entry| entry.compiled.rules.get(number as usize));
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

    /// The number of `compiled`, written if it is not there.
    fn load(&self, loaded: &mut Loaded, compiled: &Compiled) -> Result<u32, FenceError> {
        if let Some(number) = loaded.numbers.get(compiled).copied()
            && let Some(entry) = loaded.policies.get_mut(&number)
        {
            entry.tasks += 1;
            return Ok(number);
        }
        self.take_back(loaded, Instant::now());
        let mut ranges = Vec::new();
        for list in &compiled.lists {
            let count = u32::try_from(list.len()).unwrap_or(u32::MAX);
            let Some(first) = loaded.room.take(count) else {
                loaded.room.put_all(&ranges);
                return Err(FenceError::Full);
            };
            ranges.push((first, count));
        }
        let number = loaded.last.wrapping_add(1).max(1);
        loaded.last = number;
        if let Err(error) = self.write(number, compiled, &ranges) {
            // No fence has ever named it.
            self.unwrite(number, compiled);
            loaded.room.put_all(&ranges);
            return Err(no_room(error));
        }
        let compiled = Arc::new(compiled.clone());
        loaded.numbers.insert(Arc::clone(&compiled), number);
        let entry = Entry {
            compiled,
            ranges,
            tasks: 1,
        };
        loaded.policies.insert(number, entry);
        Ok(number)
    }

    fn write(&self, policy: u32, compiled: &Compiled, ranges: &[(u32, u32)]) -> io::Result<()> {
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

    /// Removes what of a policy is there. What cannot be removed is only room that is lost.
    fn unwrite(&self, policy: u32, compiled: &Compiled) {
        let nets = widest_first(compiled.v4.keys(), |net| net.prefix_len().into());
        let removed4 = nets.map(|net| self.leaves4.remove(key4(policy, *net)));
        let nets = widest_first(compiled.v6.keys(), |net| net.prefix_len().into());
        let removed6 = nets.map(|net| self.leaves6.remove(key6(policy, *net)));
        if let Some(error) = removed4.chain(removed6).find_map(Result::err) {
            tracing::warn!(%error, "prefixes of a network policy that nobody has are left");
        }
    }

    /// Removes policies that nobody has had for a while.
    pub(super) fn forget_retired(&self) {
        self.take_back(&mut self.locked(), Instant::now());
    }

    fn take_back(&self, loaded: &mut Loaded, now: Instant) {
        while let Some((since, ..)) = loaded.retired.front()
            && now.duration_since(*since) >= QUARANTINE
            && let Some((_, number, entry)) = loaded.retired.pop_front()
        {
            self.unwrite(number, &entry.compiled);
            loaded.room.put_all(&entry.ranges);
        }
    }

    fn locked(&self) -> MutexGuard<'_, Loaded> {
        // A panic elsewhere leaves at most room that is lost.
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Opens the ring of verdicts of the maps pinned in `maps`.
pub(super) fn open_ring(maps: &Path) -> Result<RingBuf<MapData>, OpenBpfError> {
    let path = maps.join("VERDICTS");
    let data = open_map(maps, "VERDICTS")?;
    RingBuf::try_from(Map::RingBuf(data)).map_err(|source| OpenBpfError::OpenMap { path, source })
}

impl Loaded {
    /// The policies of a task, ingress and egress.
    fn compiled(&self, fenced: &Fenced) -> [Option<Arc<Compiled>>; 2] {
        fenced.policies().map(|policy| {
            let entry = self.policies.get(&policy);
            entry.map(|entry| Arc::clone(&entry.compiled))
        })
    }
}

/// One task fewer has the policy `number`.
fn release(loaded: &mut Loaded, number: u32) {
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
    loaded.numbers.remove(&entry.compiled);
    loaded.retired.push_back((Instant::now(), number, entry));
}

/// The rules that each CPU met last, ingress and egress.
fn met_now(
    traffic: impl Fn() -> io::Result<Option<Vec<Traffic>>>,
) -> io::Result<Vec<[MetRule; 2]>> {
    let traffic = traffic()?.unwrap_or_default();
    Ok(traffic.iter().map(|each| each.met).collect())
}

/// Numbers, names and deeds of a policy's rules.
fn named(compiled: &Compiled) -> impl Iterator<Item = (u32, &str, bool)> {
    let rules = (0..).zip(&compiled.rules);
    rules.map(|(number, (name, allows))| (number, name.as_str(), *allows))
}

/// Refusals that are no policy's own, and of which packets they can be. Only who begins an exchange is
/// told that a port is private.
fn built_in<'a>(direction: Direction) -> impl Iterator<Item = (u32, &'a str, bool)> {
    let private_port = match direction {
        Direction::Ingress => None,
        Direction::Egress => Some((Verdict::PRIVATE_PORT, PRIVATE_PORT_RULE, false)),
    };
    private_port
        .into_iter()
        .chain([(Verdict::NO_POLICY, NO_POLICY_RULE, false)])
}

/// Whether counts of a rule were added to its own between these two looks.
fn was_moved(before: &[[MetRule; 2]], now: &[[MetRule; 2]]) -> bool {
    let pairs = before.iter().flatten().zip(now.iter().flatten());
    pairs
        .filter(|(before, _)| before.packets != 0)
        .any(|(before, now)| {
            (before.policy, before.rule) != (now.policy, now.rule) || now.packets < before.packets
        })
}

fn no_room(error: io::Error) -> FenceError {
    match error.raw_os_error() {
        Some(libc::E2BIG | libc::ENOSPC) => FenceError::TooMany,
        _ => FenceError::Kernel(error),
    }
}

/// In the order in which prefixes of a policy are removed: a program that still reads it finds an address in the narrowest
/// prefix as long as there is one, and then nothing, which refuses. Were the narrow ones removed first, it would find
/// what holds for addresses around.
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
        place: Place4 {
            policy,
            address: net.addr().octets(),
        },
    }
}

fn key6(policy: u32, net: ipnet::Ipv6Net) -> LeafKey6 {
    LeafKey6 {
        prefix_len: POLICY_BITS + u32::from(net.prefix_len()),
        place: Place6 {
            policy,
            address: net.addr().octets(),
        },
    }
}

fn first<V: Copy>(values: Option<Vec<V>>) -> Option<V> {
    values.and_then(|values| values.first().copied())
}

/// Which intervals are free: first fit.
#[derive(Debug)]
struct Room {
    /// Free ranges: first and length.
    free: BTreeMap<u32, u32>,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            free: BTreeMap::from([(0, INTERVALS_MAX)]),
        }
    }
}

impl Room {
    fn without(used: impl Iterator<Item = (u32, u32)>) -> Self {
        let mut room = Self::default();
        used.for_each(|range| room.take_out(range));
        room
    }

    fn take_out(&mut self, (first, count): (u32, u32)) {
        let end = first + count;
        let before = self.free.range(..=first).next_back();
        let Some((start, length)) = before.map(|(start, length)| (*start, *length)) else {
            return;
        };
        if start + length < end {
            // Part of it was taken out before: prefixes share lists.
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
        self.take_out((first, count));
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
        let mut room = Room::default();
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

    /// While a policy is removed, what a program finds of an address is what was found before, or nothing.
    #[test]
    fn what_is_left_of_a_policy_never_says_something_else() {
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
    fn counts_are_read_again_if_a_rule_was_left_meanwhile() {
        let met = |policy, rule, packets| {
            let met = MetRule {
                policy,
                rule,
                packets,
                bytes: 0,
            };
            vec![[MetRule::default(), met]]
        };
        assert!(!was_moved(&met(1, 2, 3), &met(1, 2, 4)));
        assert!(!was_moved(&met(0, 0, 0), &met(1, 2, 4)));
        assert!(was_moved(&met(1, 2, 3), &met(1, 3, 1)));
        assert!(was_moved(&met(1, 2, 3), &met(1, 2, 1)));
    }

    #[test]
    fn what_an_earlier_agent_used_is_not_free() {
        let room = Room::without([(5, 5), (20, 1), (5, 5)].into_iter());

        let expected = BTreeMap::from([(0, 5), (10, 10), (21, INTERVALS_MAX - 21)]);
        assert_eq!(room.free, expected);
    }
}
