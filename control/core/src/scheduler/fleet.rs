//! All nodes as one evaluation sees them: the columns of the snapshot, and the changes by its own plan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_domain::id::{EvalId, JobKey, NodeId, NodeNumber};
use muster_domain::job::{DEFAULT_HOST_NETWORK, PortAsk, TaskGroup};
use muster_domain::node::NodeSpec;
use muster_domain::resources::{AllocatedPort, Amount, DeviceAsk, HeldCores, HeldDevices, Holding};

use super::feasible::{Condition, device_matches};
use super::in_flight::{InFlightPlans, NodeOverlay, PlacedInstance};
use super::node_shapes::NodeShapes;
use crate::limits::{DYNAMIC_PORT_MAX, DYNAMIC_PORT_MIN};
use crate::state::{AllocView, Column, Columns, NodeHoldings, State, numbered};

/// The largest number of instances for which memory is reserved before the first place is found.
const EXPECTED_MAX: usize = 10_000;

/// The nodes, by number.
#[derive(Debug)]
pub(super) struct ProjectedNodes<'a> {
    state: &'a State,
    /// The nodes after the plan so far, and after the plans in flight.
    after: NodeOverlay,
    /// Keys of allocations whose share the plan frees.
    freed: BTreeSet<u64>,
    /// Allocations that the plan evicts, by job and group.
    evicted: BTreeMap<(Arc<JobKey>, String), u32>,
    /// The start of the search for a free port. It also decides which of equal nodes goes first.
    seed: u64,
    /// The nodes by kind, as current as their reader has made them.
    kinds: NodeShapes,
    /// Nodes that the plan changed, in the order of the changes.
    changed: Vec<usize>,
    /// The instances that the plan places.
    placed: Vec<PlacedInstance>,
}

/// The ports, cores and devices that a group asks for.
#[derive(Debug)]
pub(super) struct ExclusiveRequests<'a> {
    /// Ports of the group, then those of its tasks.
    ports: Vec<&'a PortAsk>,
    /// Cores, by the position of the task.
    cores: Vec<(u16, u16)>,
    /// Devices, by the position of the task.
    devices: Vec<(u16, &'a DeviceAsk)>,
}

impl<'a> ExclusiveRequests<'a> {
    pub(super) fn of(group: &'a TaskGroup) -> Self {
        let tasks = || (0_u16..).zip(&group.tasks);
        let cores = tasks().map(|(at, task)| (at, task.resources.cores));
        let devices =
            tasks().flat_map(|(at, task)| task.resources.devices.iter().map(move |ask| (at, ask)));
        Self {
            ports: group.ports().map(|(_, ask)| ask).collect(),
            cores: cores.filter(|(_, cores)| *cores > 0).collect(),
            devices: devices.collect(),
        }
    }

    /// Returns whether the group asks for none of these.
    pub(super) fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.cores.is_empty() && self.devices.is_empty()
    }

    /// Returns whether the group asks for ports at most.
    pub(super) fn only_ports(&self) -> bool {
        self.cores.is_empty() && self.devices.is_empty()
    }

    pub(super) fn ports(&self) -> &[&'a PortAsk] {
        &self.ports
    }

    /// Returns the number of cores of all tasks together.
    pub(super) fn core_count(&self) -> usize {
        self.cores
            .iter()
            .map(|(_, count)| usize::from(*count))
            .sum()
    }

    pub(super) fn devices(&self) -> impl Iterator<Item = &'a DeviceAsk> {
        self.devices.iter().map(|(_, ask)| *ask)
    }
}

/// The ports, cores and devices that an instance would hold of a node.
#[derive(Debug, Default)]
pub(super) struct HoldingOffer {
    pub(super) holding: Holding,
    /// The score of the devices by their affinities; `None` if these were not asked for.
    pub(super) device_score: Option<f64>,
}

impl<'a> ProjectedNodes<'a> {
    pub(super) fn new(state: &'a State, seed: u64) -> Self {
        Self::after(
            state,
            seed,
            NodeOverlay::without_plans(state),
            NodeShapes::default(),
        )
    }

    /// Returns the fleet after the plans in `ahead`, with nodes by kind.
    pub(super) fn with(
        state: &'a State,
        seed: u64,
        ahead: &InFlightPlans,
        kinds: NodeShapes,
    ) -> Self {
        Self::after(state, seed, ahead.after().clone(), kinds)
    }

    fn after(state: &'a State, seed: u64, after: NodeOverlay, kinds: NodeShapes) -> Self {
        Self {
            state,
            after,
            freed: BTreeSet::new(),
            evicted: BTreeMap::new(),
            seed,
            kinds,
            changed: Vec::new(),
            placed: Vec::new(),
        }
    }

    /// Updates the kinds from the current nodes.
    pub(super) fn follow(&mut self) {
        self.kinds.restore();
        self.kinds.follow(&self.after.columns);
    }

    /// Returns the nodes by kind as they were before the plan, and the instances that the plan places.
    pub(super) fn into_parts(mut self) -> (NodeShapes, Vec<PlacedInstance>) {
        self.kinds.restore();
        (self.kinds, self.placed)
    }

    pub(super) fn kinds(&self) -> &NodeShapes {
        &self.kinds
    }

    pub(super) fn kinds_mut(&mut self) -> &mut NodeShapes {
        &mut self.kinds
    }

    /// Updates node `number` in its kind.
    pub(super) fn write_kind(&mut self, number: usize) {
        let column = self.after.columns.get(number).unwrap_or(&Column::VACANT);
        self.kinds.set(number, column);
    }

    /// Nodes that the plan changed, in that order.
    pub(super) fn changed(&self) -> &[usize] {
        &self.changed
    }

    /// Returns the node that goes first of equal ones: the one with this number, or next after it.
    pub(super) fn first(&self) -> usize {
        let len = self.after.columns.len().max(1) as u64;
        usize::try_from(self.seed % len).unwrap_or(0)
    }

    pub(super) fn state(&self) -> &'a State {
        self.state
    }

    pub(super) fn seed(&self) -> u64 {
        self.seed
    }

    pub(super) fn columns(&self) -> &Columns {
        &self.after.columns
    }

    /// Returns the column of node `number`; a vacant one if there is none.
    pub(super) fn column(&self, number: usize) -> &Column {
        self.after.columns.get(number).unwrap_or(&Column::VACANT)
    }

    pub(super) fn number(&self, node_id: &NodeId) -> Option<usize> {
        self.state.nodes().number(node_id).map(NodeNumber::at)
    }

    /// The fingerprint of node `number`.
    pub(super) fn spec(&self, number: usize) -> Option<&'a NodeSpec> {
        let column = self.after.columns.get(number)?;
        let node = self.state.nodes().get(&column.node_id)?;
        Some(&node.spec)
    }

    /// The number of the node that `alloc` is on, if the node is there.
    pub(super) fn number_of(&self, alloc: AllocView<'_>) -> Option<usize> {
        let number = alloc.node().at();
        let column = self.after.columns.get(number)?;
        column.occupied.then_some(number)
    }

    /// Returns whether the plan frees the share of `alloc`.
    pub(super) fn is_freed(&self, alloc: AllocView<'_>) -> bool {
        self.freed.contains(&alloc.key())
    }

    /// Allocations on node `number` that run on.
    pub(super) fn running_on(&self, number: usize) -> impl Iterator<Item = AllocView<'a>> {
        let freed = &self.freed;
        self.state
            .allocs()
            .on(numbered(number))
            .filter(move |alloc| !alloc.is_terminal() && !freed.contains(&alloc.key()))
    }

    /// Replaces the used amount of node `number` by the result of `change` for it.
    fn update_used(&mut self, number: usize, change: impl FnOnce(Amount) -> Amount) {
        if let Some(column) = self.after.columns.get_mut(number) {
            column.used = change(column.used);
            self.changed.push(number);
        }
    }

    /// Reserves memory for an expected number of instances.
    pub(super) fn reserve(&mut self, instances: usize) {
        let instances = instances.min(EXPECTED_MAX);
        self.placed.reserve(instances);
        self.changed.reserve(instances);
    }

    /// Takes an instance's share of node `number`.
    pub(super) fn take(&mut self, number: usize, ask: Amount, holding: &Holding) {
        let mut amount = ask;
        amount.cpu_mhz = amount.cpu_mhz.saturating_add(holding.cores_mhz());
        self.update_used(number, |used| used.plus(amount));
        self.placed.push((number, amount, holding.clone()));
        if !holding.is_empty() {
            self.held_mut(number).take(holding);
        }
    }

    /// Frees the share of `alloc`, and returns its node; `None` if it has no share.
    pub(super) fn give_back(&mut self, alloc: AllocView<'_>) -> Option<usize> {
        let number = self.number_of(alloc)?;
        if alloc.is_terminal() || !self.freed.insert(alloc.key()) {
            return None;
        }
        self.update_used(number, |used| used.minus(alloc.ask()));
        if !alloc.holding().is_empty() {
            self.held_mut(number).give_back(alloc.holding());
        }
        Some(number)
    }

    /// Undoes [`Self::give_back`], which returned `number`.
    pub(super) fn undo_give_back(&mut self, number: usize, alloc: AllocView<'_>) {
        self.freed.remove(&alloc.key());
        self.update_used(number, |used| used.plus(alloc.ask()));
        if !alloc.holding().is_empty() {
            self.held_mut(number).take(alloc.holding());
        }
    }

    /// Changes the share of `alloc`, which stays on its node, to that of an instance of `group`.
    pub(super) fn resize(&mut self, alloc: AllocView<'_>, group: &TaskGroup) {
        let (took, takes) = (alloc.ask(), alloc.ask_with(group.ask()));
        let number = self.number_of(alloc).filter(|_| took != takes);
        let Some(number) = number.filter(|_| !alloc.is_terminal()) else {
            return;
        };
        self.update_used(number, |used| used.minus(took).plus(takes));
        let more = takes.minus(took);
        if more != Amount::default() {
            self.placed.push((number, more, Holding::default()));
        }
    }

    /// Frees the share of `alloc`, because a more important allocation takes its place.
    pub(super) fn evict(&mut self, alloc: AllocView<'_>) {
        self.give_back(alloc);
        let group = (Arc::clone(alloc.job_key()), alloc.group().name.clone());
        *self.evicted.entry(group).or_default() += 1;
    }

    /// Returns the number of allocations in the group of `alloc` that the plan evicts.
    pub(super) fn evicted_of(&self, alloc: AllocView<'_>) -> u32 {
        if self.evicted.is_empty() {
            return 0;
        }
        let group = (Arc::clone(alloc.job_key()), alloc.group().name.clone());
        self.evicted.get(&group).copied().unwrap_or(0)
    }

    /// Returns the holdings of node `number`.
    pub(super) fn held(&self, number: usize) -> &NodeHoldings {
        match self.after.held.get(&number) {
            Some(held) => held,
            None => self.state.nodes().holdings(numbered(number)),
        }
    }

    fn held_mut(&mut self, number: usize) -> &mut NodeHoldings {
        self.after.held_mut(self.state, number)
    }

    /// Returns the holding of one more instance on node `number`, or the name of the resource that is short.
    pub(super) fn assign(
        &self,
        number: usize,
        extras: &ExclusiveRequests<'_>,
    ) -> Result<HoldingOffer, &'static str> {
        if extras.is_empty() {
            return Ok(HoldingOffer::default());
        }
        let spec = self.spec(number).ok_or("node")?;
        assign(spec, self.held(number), extras, self.seed ^ number as u64)
    }

    /// Returns the MHz that the cores of one instance are worth on node `number`.
    pub(super) fn cores_mhz(&self, number: usize, extras: &ExclusiveRequests<'_>) -> u64 {
        match extras.core_count() as u64 {
            0 => 0,
            cores => self
                .spec(number)
                .map_or(0, |spec| cores * spec.resources.mhz_per_core()),
        }
    }
}

/// Returns the holding of one more instance on a node with the holdings `held`.
pub(super) fn assign(
    spec: &NodeSpec,
    held: &NodeHoldings,
    extras: &ExclusiveRequests<'_>,
    seed: u64,
) -> Result<HoldingOffer, &'static str> {
    let (devices, device_score) = assign_devices(spec, held, extras)?;
    Ok(HoldingOffer {
        holding: Holding {
            ports: assign_ports(spec, held, &extras.ports, seed).ok_or("ports")?,
            cores: assign_cores(spec, held, &extras.cores).ok_or("cores")?,
            devices,
        },
        device_score,
    })
}

/// Returns the addresses that a port may be on. A node without named addresses has one, which means every address.
fn addresses<'n>(spec: &'n NodeSpec, ask: &PortAsk) -> Vec<(&'n str, &'n [u16])> {
    let wanted = if ask.host_network.is_empty() {
        DEFAULT_HOST_NETWORK
    } else {
        &ask.host_network
    };
    let named: Vec<_> = spec
        .addresses
        .iter()
        .filter(|address| address.network == wanted)
        .map(|address| (address.address.as_str(), address.reserved_ports.as_slice()))
        .collect();
    if named.is_empty() && wanted == DEFAULT_HOST_NETWORK {
        vec![("", &[])]
    } else {
        named
    }
}

fn assign_ports(
    spec: &NodeSpec,
    held: &NodeHoldings,
    asks: &[&PortAsk],
    seed: u64,
) -> Option<Vec<AllocatedPort>> {
    let mut ports: Vec<Option<AllocatedPort>> = vec![None; asks.len()];
    let mut given: Vec<(u16, &str)> = Vec::new();
    let is_free = |given: &[(u16, &str)], value: u16, ip: &str, reserved: &[u16]| {
        spec.reserved_ports.binary_search(&value).is_err()
            && reserved.binary_search(&value).is_err()
            && !held.has_port(value, ip)
            && !given
                .iter()
                .any(|(port, at)| *port == value && (*at == ip || at.is_empty() || ip.is_empty()))
    };
    // Fixed ports come first, so that no dynamic port takes one of theirs.
    for (ask, slot) in asks.iter().zip(&mut ports) {
        if let Some(value) = ask.fixed {
            let (ip, _) = addresses(spec, ask)
                .into_iter()
                .find(|(ip, reserved)| is_free(&given, value, ip, reserved))?;
            given.push((value, ip));
            *slot = Some(allocated(ask, value, ip));
        }
    }
    for (ask, slot) in asks
        .iter()
        .zip(&mut ports)
        .filter(|(ask, _)| ask.fixed.is_none())
    {
        let (value, ip) = addresses(spec, ask)
            .into_iter()
            .find_map(|(ip, reserved)| {
                let mut values = dynamic_ports(seed);
                let value = values.find(|value| is_free(&given, *value, ip, reserved))?;
                Some((value, ip))
            })?;
        given.push((value, ip));
        *slot = Some(allocated(ask, value, ip));
    }
    ports.into_iter().collect()
}

fn allocated(ask: &PortAsk, value: u16, ip: &str) -> AllocatedPort {
    AllocatedPort {
        label: ask.label.clone(),
        value,
        to: ask.to,
        host_ip: ip.to_owned(),
    }
}

fn assign_cores(
    spec: &NodeSpec,
    held: &NodeHoldings,
    asks: &[(u16, u16)],
) -> Option<Vec<HeldCores>> {
    let mut free = free_cores(spec, held);
    let mhz = spec.resources.mhz_per_core();
    asks.iter()
        .map(|(task_at, count)| {
            let ids: Vec<u16> = free.by_ref().take(usize::from(*count)).collect();
            let is_enough = ids.len() == usize::from(*count);
            is_enough.then(|| HeldCores {
                task_at: *task_at,
                mhz: mhz * ids.len() as u64,
                ids,
            })
        })
        .collect()
}

/// Returns cores that tasks may have and that no allocation holds exclusively, lowest first.
pub(super) fn free_cores<'n>(
    spec: &'n NodeSpec,
    held: &'n NodeHoldings,
) -> impl Iterator<Item = u16> + use<'n> {
    let offered = spec.resources.core_ids.iter().copied();
    offered.filter(|id| !spec.reserved_cores.contains(id) && !held.has_core(*id))
}

type Devices = (Vec<HeldDevices>, Option<f64>);

fn assign_devices(
    spec: &NodeSpec,
    held: &NodeHoldings,
    extras: &ExclusiveRequests<'_>,
) -> Result<Devices, &'static str> {
    let mut given: Vec<HeldDevices> = Vec::new();
    let (mut met, mut weights) = (0.0, 0.0);
    for (task_at, ask) in &extras.devices {
        let mut best: Option<(f64, HeldDevices)> = None;
        for device in spec
            .devices
            .iter()
            .filter(|device| device_matches(ask, device))
        {
            let group = device.id();
            let ids: Vec<String> = device
                .instances
                .iter()
                .filter(|one| one.healthy && !held.has_device(&group, &one.id))
                .filter(|one| {
                    !given
                        .iter()
                        .any(|other| other.group == group && other.ids.contains(&one.id))
                })
                .take(ask.count as usize)
                .map(|one| one.id.clone())
                .collect();
            if ids.len() < ask.count as usize {
                continue;
            }
            let matched: f64 = ask
                .affinities
                .iter()
                .filter(|affinity| {
                    Condition::new(&affinity.left, affinity.operand, &affinity.right)
                        .holds_on(device)
                })
                .map(|affinity| f64::from(affinity.weight))
                .sum();
            if best.as_ref().is_none_or(|(score, _)| matched > *score) {
                let one = HeldDevices {
                    task_at: *task_at,
                    group,
                    ids,
                };
                best = Some((matched, one));
            }
        }
        let (matched, devices) = best.ok_or("devices")?;
        met += matched;
        weights += ask
            .affinities
            .iter()
            .map(|affinity| f64::from(affinity.weight).abs())
            .sum::<f64>();
        given.push(devices);
    }
    let score = (weights > 0.0).then(|| met / weights);
    Ok((given, score))
}

/// Returns the seed that decides which of equal nodes goes first, from the evaluation's id.
pub(super) fn seed(eval_id: &EvalId) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&eval_id.0[8..]);
    u64::from_be_bytes(bytes)
}

/// Returns every dynamic port once, from a start that depends on the seed, so that a port that was just released is not
/// the next to be assigned.
fn dynamic_ports(seed: u64) -> impl Iterator<Item = u16> {
    let span = DYNAMIC_PORT_MAX - DYNAMIC_PORT_MIN + 1;
    let start = u16::try_from(seed % u64::from(span)).unwrap_or(0);
    (0..span).map(move |step| DYNAMIC_PORT_MIN + (start + step) % span)
}
