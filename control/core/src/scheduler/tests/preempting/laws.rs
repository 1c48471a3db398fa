//! Checks the evicted allocations on small nodes with ports, cores and devices. They are checked against every possible
//! set of victims and against Nomad's rule.
//!
//! If no allocation is evicted for a port, a core or a device, Nomad's rule applies exactly. The tests of that rule are
//! in `preempt/tests/laws.rs`. In all other cases each eviction is necessary: without any one of them there is not
//! enough room.

use std::collections::BTreeSet;

use muster_domain::alloc::Allocation;
use muster_domain::fixture;
use muster_domain::id::{AllocId, JobKey};
use muster_domain::job::JobSpec;
use muster_domain::node::{DeviceGroup, DeviceInstance, HostAddress, NodeSpec};
use muster_domain::resources::{Amount, DeviceAsk, Mb};
use proptest::prelude::*;

use super::cluster;
use crate::chance::config;
use crate::fixture::Cluster;
use crate::fsm::JobCommand;
use crate::scheduler::preempt::tests::laws::nomads as nomads_for_amounts;
use crate::scheduler::preempt::{Candidate, NodeUsage, PreemptionCost};

const ASKER: &str = "asker";
const CORES: u16 = 4;
/// The kinds of devices on a node, and the number of each.
const DEVICES: [(&str, usize); 2] = [("t4", 3), ("v100", 4)];

/// The ask of a job.
#[derive(Clone, Debug)]
struct Ask {
    priority: u8,
    cpu: u32,
    memory: u32,
    disk: u32,
    ports: Vec<u16>,
    cores: u16,
    devices: Vec<(&'static str, u32)>,
}

fn ask(priority: impl Strategy<Value = u8>) -> impl Strategy<Value = Ask> {
    let amount = || prop_oneof![3 => Just(100_u32), 2 => Just(500), 1 => 100..3_000_u32];
    let device = (prop::sample::select(vec!["gpu", "nvidia/gpu/t4"]), 1..4_u32);
    let ports = prop::sample::subsequence(vec![8_001_u16, 8_002], 0..=2);
    (
        priority,
        (amount(), amount(), amount()),
        prop_oneof![2 => Just(Vec::new()), 1 => ports],
        prop_oneof![3 => Just(0), 1 => 1..4_u16],
        prop_oneof![2 => prop::collection::vec(device.clone(), 0..1), 2 => prop::collection::vec(device, 1..3)],
    )
        .prop_map(|(priority, (cpu, memory, disk), ports, cores, mut devices)| {
            // Devices are assigned in the order of the job: a request for any kind would take the only device that the
            // next can use.
            devices.sort_by_key(|(name, _)| *name == "gpu");
            Ask {
                priority,
                cpu,
                memory,
                disk,
                ports,
                cores,
                devices,
            }
        })
}

fn spec(name: &str, ask: &Ask) -> JobSpec {
    let job = fixture::job(name)
        .priority(ask.priority)
        .cpu_mhz(ask.cpu)
        .memory_mb(ask.memory);
    let with_port = |job: fixture::JobBuilder, port: &u16| job.port(&format!("p{port}"), *port);
    let mut spec = ask.ports.iter().fold(job, with_port).build();
    spec.groups[0].ephemeral_disk.size = Mb(ask.disk);
    let resources = &mut spec.groups[0].tasks[0].resources;
    resources.cores = ask.cores;
    resources.devices = ask
        .devices
        .iter()
        .map(|(name, count)| DeviceAsk {
            name: (*name).to_owned(),
            count: *count,
            constraints: Vec::new(),
            affinities: Vec::new(),
        })
        .collect();
    spec
}

fn machine(has_two_addresses: bool) -> NodeSpec {
    let mut spec = fixture::node("n1").cpu_mhz(4_000).memory_mb(4_000).build();
    spec.resources.total.disk_mb = 4_000;
    spec.resources.cores = u32::from(CORES);
    spec.resources.core_ids = (0..CORES).collect();
    if has_two_addresses {
        spec.addresses.push(HostAddress {
            network: "default".to_owned(),
            address: "127.0.0.2".to_owned(),
            reserved_ports: Vec::new(),
        });
    }
    let devices = DEVICES.iter().map(|(name, count)| DeviceGroup {
        vendor: "nvidia".to_owned(),
        kind: "gpu".to_owned(),
        name: (*name).to_owned(),
        attributes: std::collections::BTreeMap::new(),
        instances: (0..*count)
            .map(|id| DeviceInstance {
                id: id.to_string(),
                healthy: true,
            })
            .collect(),
    });
    spec.devices = devices.collect();
    spec
}

/// Returns the amounts that `alloc` takes of the node, its cores included.
fn amount_of(alloc: &Allocation) -> Amount {
    let mut amount = alloc.group().ask();
    amount.cpu_mhz += alloc.holding.cores_mhz();
    amount
}

fn devices_of(alloc: &Allocation, kind: &str) -> usize {
    let held = alloc.holding.devices.iter();
    held.filter(|held| held.group.ends_with(kind))
        .map(|held| held.ids.len())
        .sum()
}

/// The kinds of [`DEVICES`] that an ask for `name` takes.
fn kinds(name: &str) -> impl Iterator<Item = (usize, &'static str, usize)> + '_ {
    let all = DEVICES.iter().enumerate();
    all.filter(move |(_, (kind, _))| name == "gpu" || name.ends_with(kind))
        .map(|(at, (kind, count))| (at, *kind, *count))
}

/// A node, the allocations that run on it, and the asking job.
struct Case {
    node: NodeSpec,
    running: Vec<Allocation>,
    ask: Ask,
    /// The ask of the group, cores included.
    amount: Amount,
}

impl Case {
    fn may_go(&self, at: usize) -> bool {
        let JobSpec { id, priority, .. } = &self.running[at].job.spec;
        id != ASKER && priority + 10 <= self.ask.priority
    }

    fn room(&self, gone: &[usize]) -> NodeUsage {
        let stay = (0..self.running.len()).filter(|at| !gone.contains(at));
        let used = stay.fold(Amount::default(), |used, at| {
            used.plus(amount_of(&self.running[at]))
        });
        NodeUsage {
            total: self.node.usable(),
            used,
        }
    }

    fn has_extras(&self, gone: &[usize]) -> bool {
        let stay = || {
            let all = self.running.iter().enumerate();
            all.filter(|(at, _)| !gone.contains(at))
                .map(|(_, alloc)| alloc)
        };
        let is_free = |port: u16, ip: &str| {
            let mut held = stay().flat_map(|alloc| &alloc.holding.ports);
            held.all(|held| held.value != port || held.host_ip != ip)
        };
        let has_ports = self.ask.ports.iter().all(|port| {
            let mut addresses = self.node.addresses.iter();
            addresses.any(|address| is_free(*port, &address.address))
        });
        let held = stay().flat_map(|alloc| &alloc.holding.cores);
        let cores: usize = held.map(|cores| cores.ids.len()).sum();
        let has_cores = cores + usize::from(self.ask.cores) <= usize::from(CORES);
        let mut given = [0; DEVICES.len()];
        let has_devices = self.ask.devices.iter().all(|(name, count)| {
            let count = *count as usize;
            let fits = |(at, kind, all): &(usize, &str, usize)| {
                let held: usize = stay().map(|alloc| devices_of(alloc, kind)).sum();
                held + given[*at] + count <= *all
            };
            let found = kinds(name).find(fits);
            if let Some((at, ..)) = found {
                given[at] += count;
            }
            found.is_some()
        });
        has_ports && has_cores && has_devices
    }

    fn suffices(&self, gone: &[usize]) -> bool {
        self.room(gone).fits(self.amount) && self.has_extras(gone)
    }

    fn loss(&self, gone: &[usize]) -> PreemptionCost {
        let priorities = gone.iter().map(|at| self.running[*at].job.spec.priority);
        PreemptionCost::of(priorities)
    }

    /// Returns every set of allocations that may be evicted and that is enough.
    fn sets(&self) -> Vec<Vec<usize>> {
        let may_go: Vec<usize> = (0..self.running.len())
            .filter(|at| self.may_go(*at))
            .collect();
        let set = |mask: u32| -> Vec<usize> {
            let set = may_go.iter().enumerate();
            set.filter(|(bit, _)| mask & (1 << bit) != 0)
                .map(|(_, at)| *at)
                .collect()
        };
        let all = (0..1 << may_go.len()).map(set);
        all.filter(|set| self.suffices(set)).collect()
    }

    /// Returns the victims by Nomad's rule: ports, then devices, then amounts. The rule has no victims for cores.
    fn nomads(&self) -> Option<Vec<usize>> {
        let mut gone: Vec<usize> = Vec::new();
        for port in &self.ask.ports {
            for (at, alloc) in self.running.iter().enumerate() {
                if alloc.holding.ports.iter().any(|held| held.value == *port) {
                    if !self.may_go(at) {
                        return None;
                    }
                    gone.push(at);
                }
            }
        }
        gone.sort_unstable();
        gone.dedup();
        let mut given = [0; DEVICES.len()];
        for (name, count) in &self.ask.devices {
            let options = kinds(name).filter_map(|(kind_at, kind, all)| {
                let wanted = *count as usize + given[kind_at];
                let option = self.nomads_for_device(&gone, kind, all, wanted)?;
                let priorities: BTreeSet<u8> = option
                    .iter()
                    .map(|at| self.running[*at].job.spec.priority)
                    .collect();
                let sum: u32 = priorities.into_iter().map(u32::from).sum();
                Some((sum, kind_at, option))
            });
            let (_, kind_at, option) = options.min_by_key(|(sum, ..)| *sum)?;
            given[kind_at] += *count as usize;
            gone.extend(option);
        }
        let room = self.room(&gone);
        if !room.fits(self.amount) {
            let rest: Vec<usize> = (0..self.running.len())
                .filter(|at| self.may_go(*at) && !gone.contains(at))
                .collect();
            let candidates: Vec<Candidate> = rest
                .iter()
                .map(|at| {
                    let alloc = &self.running[*at];
                    Candidate {
                        id: alloc.id,
                        priority: alloc.job.spec.priority,
                        amount: amount_of(alloc),
                        max_parallel: 0,
                        evicted: 0,
                        age: alloc.create_index.0,
                    }
                })
                .collect();
            let asking = self.ask.priority;
            let chosen = nomads_for_amounts(asking, self.amount, room, &candidates)?;
            gone.extend(chosen.into_iter().map(|at| rest[at]));
        }
        Some(gone).filter(|gone| self.suffices(gone))
    }

    fn nomads_for_device(
        &self,
        gone: &[usize],
        kind: &str,
        all: usize,
        wanted: usize,
    ) -> Option<Vec<usize>> {
        let share = |at: usize| devices_of(&self.running[at], kind);
        let mut holders: Vec<usize> = (0..self.running.len())
            .filter(|at| !gone.contains(at) && share(*at) > 0)
            .collect();
        let mut free = all - holders.iter().map(|at| share(*at)).sum::<usize>();
        let mut missing = wanted.saturating_sub(free);
        holders.retain(|at| self.may_go(*at));
        holders.sort_by_key(|at| {
            let alloc = &self.running[*at];
            let age = std::cmp::Reverse(alloc.create_index);
            (alloc.job.spec.priority, age, alloc.id)
        });
        let mut option = Vec::new();
        for at in holders {
            if free < wanted {
                free += share(at);
                option.push(at);
            }
        }
        if free < wanted {
            return None;
        }
        option.sort_by_key(|at| std::cmp::Reverse(share(*at)));
        option.retain(|at| {
            let is_needed = missing > 0;
            missing = missing.saturating_sub(share(*at));
            is_needed
        });
        Some(option)
    }
}

/// Returns the allocations that run on the only node.
fn running(cluster: &Cluster) -> Vec<Allocation> {
    let all = cluster.state.allocs().iter();
    all.filter(|alloc| !alloc.is_terminal())
        .map(crate::state::AllocView::unpack)
        .collect()
}

/// Returns the allocations that one more instance of the asking job would evict; `None` if it is not placed.
fn preempted(cluster: &mut Cluster, spec: JobSpec) -> Option<Vec<AllocId>> {
    cluster.apply(
        JobCommand::Register {
            spec: Box::new(spec),
            check_index: None,
            places: None,
        }
        .at(cluster.now),
    );
    let outcome = cluster.schedule_next().unwrap();
    assert_eq!(outcome.plan.job, JobKey::in_default(ASKER));
    let groups = outcome.plan.groups.iter();
    let mut runs = groups.flat_map(|group| &group.placements);
    let detail = runs.next().map(|run| run.detail.as_deref());
    detail.map(|detail| detail.map_or_else(Vec::new, |detail| detail.preempted.clone()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: config().cases.max(256), max_global_rejects: 100_000, ..config() })]

    #[test]
    fn victims_are_allowed_and_no_worse_than_nomads(
        others in prop::collection::vec(ask(prop_oneof![3 => (1..8_u8).prop_map(|tens| tens * 10), 1 => 1..100_u8]), 0..=8),
        ask in ask(40..=100_u8),
        runs_already in prop::bool::weighted(0.2),
        has_two_addresses in prop::bool::weighted(0.2),
    ) {
        let mut cluster = cluster();
        let node = machine(has_two_addresses);
        cluster.node(node.clone());
        for (at, other) in others.iter().enumerate() {
            cluster.run(spec(&format!("other{at}"), other));
        }
        let mut asker = spec(ASKER, &ask);
        if runs_already {
            cluster.run(asker.clone());
            prop_assume!(cluster.live(ASKER).len() == 1);
            asker.groups[0].count = 2;
        }
        let mut amount = asker.groups[0].ask();
        amount.cpu_mhz += u64::from(ask.cores) * node.resources.mhz_per_core();
        let case = Case { running: running(&cluster), node, ask, amount };

        let chosen = preempted(&mut cluster, asker);

        let sets = case.sets();
        let Some(chosen) = chosen else {
            prop_assert_eq!(sets, Vec::<Vec<usize>>::new(), "somebody goes if that helps");
            return Ok(());
        };
        let at = |id: &AllocId| case.running.iter().position(|alloc| alloc.id == *id).unwrap();
        let mut chosen: Vec<usize> = chosen.iter().map(at).collect();
        chosen.sort_unstable();
        prop_assert!(sets.contains(&chosen), "{chosen:?} may go and is enough");
        prop_assert!(!case.suffices(&[]) || chosen.is_empty(), "nobody has to go");
        if !case.has_extras(&[]) {
            for spared in &chosen {
                let rest: Vec<usize> = chosen.iter().filter(|at| *at != spared).copied().collect();
                prop_assert!(!case.suffices(&rest), "{spared} of {chosen:?} has to go");
            }
        }
        if case.ask.devices.is_empty() {
            let lowest = sets.iter().map(|set| case.loss(set).highest).min();
            prop_assert_eq!(Some(case.loss(&chosen).highest), lowest);
        }
        if let (Some(theirs), false) = (case.nomads(), has_two_addresses) {
            let is_no_worse = case.loss(&chosen).is_no_worse_than(case.loss(&theirs));
            prop_assert!(is_no_worse, "{chosen:?}, Nomad {theirs:?}");
        }
    }
}
