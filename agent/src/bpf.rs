//! The eBPF side of the agent: programs that count the resources of tasks, and the ledger of task exits.
//!
//! Programs are attached once for the node. A task is identified by the id of its cgroup. [`Bpf::watch`] registers the
//! id before the task starts, and it is read until [`Bpf::forget`]. Programs, links and maps are pinned, so they
//! continue without an agent; [`Bpf::open`] adopts them.
//!
//! | file | content |
//! |---|---|
//! | `bpf/sched.rs`, `exec.rs`, `net.rs`, `block.rs`, `oom.rs`, `group.rs` | one stem of `ebpf/programs` each |
//! | `bpf/slots.rs` | numbers by which the programs find a task's counters |
//! | `bpf/nat.rs` | host veths of allocations and published ports |
//! | `bpf/policy.rs`, `verdicts.rs` | allowed packets of tasks, and reported verdicts |
//! | `bpf/object.rs` | finding and checking the object |
//! | `bpf/load.rs` | loading, attaching and pinning through aya |
//! | `bpf/pins.rs`, `bpffs.rs` | pins, and their filesystem |
//! | `bpf/kernel.rs`, `btf.rs` | offsets of the kernel's structures |
//! | `bpf/cost.rs`, `empty.rs` | cost of the programs, and the share of measuring in it |
//! | `bpf/open.rs`, `map.rs` | opening pinned maps, and `bpf(2)` for their entries |
//! | `bpf/id_hash.rs` | the hash of ids that the kernel assigns |
//!
//! Invariants: in user space only this module writes the maps. A program creates no entry for a task that is not
//! watched. At every moment at most one load of the programs counts. Absent: the meaning of a wait status (agent-core).

mod block;
mod bpffs;
mod btf;
mod cost;
mod empty;
mod exec;
mod group;
mod id_hash;
mod kernel;
mod limits;
mod load;
mod map;
mod nat;
mod net;
mod object;
mod oom;
mod open;
mod pins;
mod policy;
mod sched;
mod slots;
mod verdicts;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs::File,
    io,
    net::Ipv4Addr,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use nix::{
    sys::statfs::{CGROUP2_SUPER_MAGIC, fstatfs},
    unistd::geteuid,
};
use thiserror::Error;

use muster_agent_core::policy::TaskPolicies;
use muster_ebpf_common::{
    CgroupId, LostRecord,
    net::{NetSlot, Traffic},
    sched::SchedSlot,
};

use crate::bpf::{
    block::Block,
    btf::KernelTypes,
    exec::Exec,
    group::Groups,
    map::{PinnedMap, first},
    nat::Nat,
    net::Net,
    oom::Oom,
    open::open_map,
    pins::Pins,
    policy::Policy,
    sched::Sched,
    slots::Slots,
};

pub use crate::bpf::{
    bpffs::{EnsureBpffsError, SYSTEM_BPFFS, UnmountBpffsError, ensure_bpffs, unmount_bpffs},
    btf::ReadTypesError,
    cost::{MeasureCostError, ProgramCost, measure_cost},
    empty::EmptyPrograms,
    exec::{ExitRecord, MainProcess},
    group::GroupRows,
    id_hash::{IdHash, IdHasher},
    load::LoadProgramsError,
    object::{FindObjectError, OBJECT_FILE, Object, ObjectSource},
    oom::OomRecord,
    open::OpenBpfError,
    pins::remove_pins,
    policy::{LoadPolicyError, RuleCount, TaskPorts},
    verdicts::{PacketVerdict, Verdicts},
};
pub(crate) use crate::bpf::{
    bpffs::{is_bpffs, own_mount},
    btf::VMLINUX,
    object::hash,
};
pub use muster_ebpf_common::{
    LAYOUT,
    block::BlockCounters,
    exec::ExecCounters,
    group::GroupRow,
    histogram::{BUCKETS, Histogram, bound_ns},
    nat::{GATEWAY, PublishedKey, PublishedPort},
    net::NetCounters,
    policy::Direction,
    sched::SchedCounters,
};

/// The place of the pins and of the cgroup tree that the programs observe.
#[derive(Clone, Debug)]
pub struct BpfConfig {
    /// The node's directory in a bpffs. Made if it is absent.
    pub pin_dir: PathBuf,
    /// The root of the node's cgroup tree in the v2 hierarchy. Traffic is counted below it.
    pub cgroup_dir: PathBuf,
    /// The distance of a task's cgroup from the root of the v2 hierarchy, whose level is 0.
    pub task_level: u32,
}

/// The reason why a task could not be registered.
#[derive(Debug, Error)]
pub enum WatchTaskError {
    /// As many tasks are registered as the maps hold. The task is counted as lost.
    #[error("count cgroup {task}: {max} tasks are counted already, and no map has room")]
    Full {
        /// The task's cgroup id.
        task: CgroupId,
        /// The number of tasks that the maps hold.
        max: u32,
    },
    /// The kernel refused for another reason.
    #[error("count cgroup {task}")]
    Kernel {
        /// The task's cgroup id.
        task: CgroupId,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

/// The state of the pins that [`Bpf::open`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adoption {
    /// No pins existed: programs and maps are fresh.
    Fresh,
    /// The same programs were pinned and continue.
    Same,
    /// Maps were pinned. Other programs were replaced, or missing ones attached.
    Replaced,
}

/// All counters of one task, of all CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskCounters {
    /// CPU time and switches.
    pub sched: SchedCounters,
    pub exec: ExecCounters,
    pub net: NetCounters,
    pub block: BlockCounters,
}

impl TaskCounters {
    /// Time the task's threads ran.
    pub fn cpu_time(&self) -> Duration {
        Duration::from_nanos(self.sched.cpu_ns)
    }

    /// Processes born in the task's cgroup that have not ended. A process that was moved into or out of the cgroup
    /// makes this wrong by one.
    pub fn processes_live(&self) -> u64 {
        self.exec.forks.saturating_sub(self.exec.exits)
    }
}

/// The resources that a task used on all CPUs, from which its history is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskTotals {
    /// Nanoseconds that the task's threads ran.
    pub cpu_ns: u64,
    /// Nanoseconds that the threads waited for a CPU.
    pub run_delay_ns: u64,
    /// Switches away from the threads, voluntary or not.
    pub context_switches: u64,
    /// Bytes received.
    pub net_rx_bytes: u64,
    /// Bytes sent.
    pub net_tx_bytes: u64,
    /// TCP segments that were retransmitted.
    pub tcp_retransmits: u64,
    /// Bytes read from block devices.
    pub block_read_bytes: u64,
    /// Bytes written to block devices.
    pub block_write_bytes: u64,
}

impl TaskTotals {
    fn add_sched(&mut self, counted: &SchedCounters) {
        self.cpu_ns += counted.cpu_ns;
        self.run_delay_ns += counted.waits.sum_ns;
        self.context_switches += counted.switches_voluntary + counted.switches_involuntary;
    }

    fn add_net(&mut self, counted: &NetCounters) {
        self.net_rx_bytes += counted.ingress_bytes;
        self.net_tx_bytes += counted.egress_bytes;
        self.tcp_retransmits += counted.tcp_retransmits;
    }
}

/// The resources that tasks used, by their cgroups.
pub type TotalsByCgroup = HashMap<CgroupId, TaskTotals, IdHash>;

/// The node's programs and maps.
///
/// Dropping it changes nothing in the kernel.
#[derive(Debug)]
pub struct Bpf {
    slots: Slots,
    sched: Sched,
    exec: Exec,
    net: Net,
    block: Block,
    oom: Oom,
    groups: Groups,
    policy: Policy,
    nat: Nat,
    verdicts: PathBuf,
    lost: PinnedMap<u32, u64>,
    active: PinnedMap<u32, u64>,
    charge_running: OwnedFd,
    absent: load::MissingParts,
    cpus: Vec<u32>,
    adoption: Adoption,
}

/// Programs that are loaded, and may not count yet.
#[derive(Debug)]
pub struct LoadedPrograms {
    bpf: Bpf,
    pins: Pins,
    generation: u64,
    pin_dir: PathBuf,
}

impl LoadedPrograms {
    /// The programs' maps.
    pub fn bpf(&self) -> &Bpf {
        &self.bpf
    }

    /// Makes these programs count and judge, and stops all others of the node.
    ///
    /// # Errors
    ///
    /// [`OpenBpfError::Pins`].
    pub fn activate(self) -> Result<Bpf, OpenBpfError> {
        let at = |source| OpenBpfError::Pins {
            path: self.pin_dir.clone(),
            source,
        };
        self.bpf.activate(&self.pins, self.generation).map_err(at)?;
        self.pins.remove_all_but(self.generation).map_err(at)?;
        Ok(self.bpf)
    }
}

impl Bpf {
    /// The object with the programs. A process searches for it once.
    ///
    /// # Errors
    ///
    /// [`FindObjectError`]; every call returns the same error.
    pub fn object() -> Result<&'static Object, &'static FindObjectError> {
        object::find()
    }

    /// Adopts the pins below `pin_dir`, and loads and pins the missing parts; see [`Self::prepare`].
    ///
    /// # Errors
    ///
    /// [`OpenBpfError`]. The pinned programs continue as before, except after an error while detaching old programs,
    /// which then no longer count.
    pub fn open(config: &BpfConfig) -> Result<Self, OpenBpfError> {
        Self::prepare(config, LAYOUT)?.activate()
    }

    /// Adopts the pins below `pin_dir`, and loads and pins the missing parts, with maps of this `layout`.
    ///
    /// Counters and the exit ledger are kept. Programs of another version, of another level or of another cgroup tree
    /// are replaced. The new programs are attached first, take over at once, and then the old ones are detached. At one
    /// cgroup the older of two programs runs first. The newer one judges each packet that the older one leaves to it,
    /// so the network policy has no gap.
    ///
    /// Maps of another layout cannot be used. The programs with those maps continue until [`LoadedPrograms::activate`].
    /// Before that, running tasks can be added to the fresh maps ([`Self::watch_running`], [`Self::attach_policy`]).
    ///
    /// # Errors
    ///
    /// [`OpenBpfError`]. The pinned programs continue as before.
    pub fn prepare(config: &BpfConfig, layout: u32) -> Result<LoadedPrograms, OpenBpfError> {
        let object = object::find()?.bytes();
        if !geteuid().is_root() {
            return Err(OpenBpfError::NotRoot);
        }
        let (cgroup, cgroup_id) = open_cgroup(&config.cgroup_dir)?;
        let at = |source| OpenBpfError::Pins {
            path: config.pin_dir.clone(),
            source,
        };
        if !config
            .pin_dir
            .ancestors()
            .find(|path| path.exists())
            .is_some_and(is_bpffs)
        {
            return Err(OpenBpfError::NotBpffs {
                path: config.pin_dir.clone(),
            });
        }
        let pins = Pins::below(&config.pin_dir, layout).map_err(at)?;

        let generation = generation(object, layout, config.task_level, cgroup_id);
        let had_maps = pins.maps().exists();
        let adopted = pins.is_complete(generation);
        if !adopted {
            let types = KernelTypes::of_running_kernel()?;
            let facts = kernel::facts(&types, config.task_level, generation)?;
            pins.remove_programs(generation).map_err(at)?;
            load::load(
                object,
                &facts,
                &cgroup,
                &pins.maps(),
                &pins.programs(generation),
            )?;
        }
        let adoption = match (adopted, had_maps) {
            (true, _) => Adoption::Same,
            (false, true) => Adoption::Replaced,
            (false, false) => Adoption::Fresh,
        };
        let bpf = Self::open_maps(&pins, generation, adoption, at)?;
        bpf.policy.load_previous().map_err(at)?;
        bpf.slots.load_previous().map_err(at)?;
        Ok(LoadedPrograms {
            bpf,
            pins,
            generation,
            pin_dir: config.pin_dir.clone(),
        })
    }

    /// Attaches the counting programs a second time, so that they also count.
    #[cfg(test)]
    fn attach_second_load(config: &BpfConfig) -> Result<(), OpenBpfError> {
        let object = object::find()?.bytes();
        let (cgroup, cgroup_id) = open_cgroup(&config.cgroup_dir)?;
        let generation = generation(object, LAYOUT, config.task_level, cgroup_id);
        let types = KernelTypes::of_running_kernel()?;
        let facts = kernel::facts(&types, config.task_level, generation)?;
        let pins = Pins::below(&config.pin_dir, LAYOUT).map_err(|source| OpenBpfError::Pins {
            path: config.pin_dir.clone(),
            source,
        })?;
        let programs = pins.programs(generation.wrapping_add(1));
        Ok(load::load(
            object,
            &facts,
            &cgroup,
            &pins.maps(),
            &programs,
        )?)
    }

    fn open_maps(
        pins: &Pins,
        generation: u64,
        adoption: Adoption,
        at: impl Fn(io::Error) -> OpenBpfError,
    ) -> Result<Self, OpenBpfError> {
        let maps = pins.maps();
        let cpus = sched::possible_cpus().map_err(&at)?;
        let count = cpus.len();
        Ok(Self {
            slots: Slots::open(&maps)?,
            sched: Sched {
                counters: PinnedMap::per_cpu(open_map(&maps, "SCHED")?, count),
                slots: PinnedMap::per_cpu(open_map(&maps, "SCHED_SLOTS")?, count),
                cpus: PinnedMap::per_cpu(open_map(&maps, "CPUS")?, count),
            },
            exec: Exec {
                counters: PinnedMap::per_cpu(open_map(&maps, "EXEC")?, count),
                main: PinnedMap::shared(open_map(&maps, "MAIN")?),
                exits: PinnedMap::shared(open_map(&maps, "EXITS")?),
            },
            net: Net {
                counters: PinnedMap::per_cpu(open_map(&maps, "NET")?, count),
                slots: PinnedMap::per_cpu(open_map(&maps, "NET_SLOTS")?, count),
            },
            block: Block {
                counters: PinnedMap::per_cpu(open_map(&maps, "BLOCK")?, count),
            },
            oom: Oom {
                entries: PinnedMap::shared(open_map(&maps, "OOM")?),
            },
            groups: Groups {
                rows: PinnedMap::shared(open_map(&maps, "GROUPS")?),
                walk: Mutex::new(PinnedMap::shared(open_map(&maps, "WALK")?)),
                program: group::open_walk_groups(&pins.programs(generation)).map_err(&at)?,
            },
            policy: Policy::open(&maps, count)?,
            nat: Nat::open(&maps, &pins.programs(generation))?,
            verdicts: maps.clone(),
            lost: PinnedMap::per_cpu(open_map(&maps, "LOST")?, count),
            active: PinnedMap::shared(open_map(&maps, "ACTIVE")?),
            absent: load::absent(&pins.programs(generation)),
            charge_running: sched::open_charge_running(&pins.programs(generation)).map_err(&at)?,
            cpus,
            adoption,
        })
    }

    /// Makes `generation` the load that counts.
    fn activate(&self, pins: &Pins, generation: u64) -> io::Result<()> {
        let active = first(self.active.lookup(0)?);
        if active == generation {
            return Ok(());
        }
        if !pins.is_complete(active) {
            // No programs counted until now, so the threads that ran since the clocks were read are unknown.
            self.sched.restart_clocks()?;
        }
        self.active.set_all(0, generation)
    }

    /// Registers the task with this cgroup, from zero, before it is started.
    ///
    /// A task that is registered already keeps its counts.
    ///
    /// # Errors
    ///
    /// [`WatchTaskError`]. The task is not counted then, and its exit not recorded.
    pub fn watch(&self, task: CgroupId) -> Result<(), WatchTaskError> {
        let made = self
            .make_counters(task)
            .and_then(|()| self.block.counters.insert_zero(task))
            // The last insertion opens the ledger for the task.
            .and_then(|_| self.exec.counters.insert_zero(task))
            .and_then(|_| self.slots.count_registration());
        let Err(source) = made else {
            return Ok(());
        };
        // A partial registration is useless. The first error is the one to return.
        drop(self.forget(task));
        if matches!(source.raw_os_error(), Some(libc::E2BIG | libc::ENOSPC)) {
            self.count_lost_task();
            return Err(WatchTaskError::Full {
                task,
                max: muster_ebpf_common::limits::TASKS_MAX,
            });
        }
        Err(WatchTaskError::Kernel { task, source })
    }

    /// Registers a task that runs already, from zero; `false` if it is registered. The caller uses it for tasks that
    /// were started without programs, and for tasks whose maps are gone.
    ///
    /// The first process of the task is unknown, so it has no main process and the ledger stays empty. Otherwise a
    /// child that executes a program would be mistaken for the main process.
    ///
    /// # Errors
    ///
    /// [`WatchTaskError`].
    pub fn watch_running(&self, task: CgroupId) -> Result<bool, WatchTaskError> {
        let kernel = |source| WatchTaskError::Kernel { task, source };
        if self.exec.counters.lookup(task).map_err(kernel)?.is_some() {
            return Ok(false);
        }
        self.exec.main.insert_zero(task).map_err(kernel)?;
        self.watch(task)?;
        Ok(true)
    }

    /// Creates the counters of switches and packets: in a slot, or by cgroup id if no slot is free.
    fn make_counters(&self, task: CgroupId) -> io::Result<()> {
        if self.slots.of(task)?.is_some() || self.sched.counters.lookup(task)?.is_some() {
            return Ok(());
        }
        let Some(slot) = self.slots.take() else {
            self.sched.counters.insert_zero(task)?;
            return self.net.counters.insert_zero(task).map(drop);
        };
        let (sched, net) = (SchedSlot::default(), NetSlot::default());
        let made = self
            .sched
            .slots
            .set_all(slot, SchedSlot { task, ..sched })
            .and_then(|()| self.net.slots.set_all(slot, NetSlot { task, ..net }))
            .and_then(|()| self.slots.set_owner(task, slot));
        if made.is_err() {
            // The first of the two errors is the one to report.
            drop(self.slots.release(task, slot));
        }
        made
    }

    /// Removes the counters that [`Self::make_counters`] made.
    fn remove_counters(&self, task: CgroupId) -> io::Result<()> {
        if let Some(slot) = self.slots.of(task)? {
            self.slots.release(task, slot)?;
            self.sched.slots.set_all(slot, SchedSlot::default())?;
            self.net.slots.set_all(slot, NetSlot::default())?;
        }
        self.sched.counters.remove(task)?;
        self.net.counters.remove(task)?;
        self.slots.count_registration()
    }

    /// Removes all records of a task, its exit record included.
    ///
    /// # Errors
    ///
    /// The error of the kernel. A task that is not registered causes none.
    pub fn forget(&self, task: CgroupId) -> io::Result<()> {
        // The counters of processes come first: without them no program writes the other three.
        self.exec.counters.remove(task)?;
        self.exec.main.remove(task)?;
        self.exec.exits.remove(task)?;
        self.oom.entries.remove(task)?;
        self.remove_counters(task)?;
        self.block.counters.remove(task)?;
        self.policy.forget(task)
    }

    /// Attaches the policy of a task in the node's network: before the task starts, or at once if it runs. `ports` are
    /// the ports to which other allocations of this machine may connect, if the policy allows it.
    ///
    /// # Errors
    ///
    /// [`LoadPolicyError`]. The task keeps its previous policy.
    pub fn attach_policy(
        &self,
        task: CgroupId,
        policies: &TaskPolicies,
        ports: &BTreeSet<u16>,
    ) -> Result<(), LoadPolicyError> {
        let ports = TaskPorts {
            inside: ports.clone(),
            of_node: ports.clone(),
            behind_host_veth: false,
        };
        self.attach_policy_with_ports(task, policies, &ports)
    }

    /// Like [`Self::attach_policy`], for a task with all kinds of ports.
    ///
    /// # Errors
    ///
    /// [`LoadPolicyError`]. The task keeps its previous policy.
    pub fn attach_policy_with_ports(
        &self,
        task: CgroupId,
        policies: &TaskPolicies,
        ports: &TaskPorts,
    ) -> Result<(), LoadPolicyError> {
        self.policy
            .attach_policy(task, policies, ports, || self.traffic_of(task))
    }

    /// The programs for packets that enter by a device and that leave by it, in this order.
    pub(crate) fn device_programs(&self) -> [Arc<OwnedFd>; 2] {
        self.nat.programs()
    }

    /// Runs the program for packets that enter by a device, or leave by it. Returns the program's answer (`TC_ACT_…`)
    /// and the packet after it. No packet is sent.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn judge_packet(
        &self,
        inward: bool,
        packet: &[u8],
        device: u32,
    ) -> io::Result<(u32, Vec<u8>)> {
        self.nat.test_packet(inward, packet, device)
    }

    /// Records that the device `host_veth` leads only to the allocation with this address.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn set_host_veth(&self, host_veth: u32, address: Ipv4Addr) -> io::Result<()> {
        self.nat.set_host_veth(host_veth, address)
    }

    /// Publishes a port of the machine through a host veth.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn publish(&self, key: PublishedKey, leads_to: PublishedPort) -> io::Result<()> {
        self.nat.publish(key, leads_to)
    }

    /// Removes a host veth, and those of `ports` that lead through it.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn remove_host_veth(&self, host_veth: u32, ports: &[PublishedKey]) -> io::Result<()> {
        self.nat.remove(host_veth, ports)
    }

    /// The host veths in the maps.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn host_veths(&self) -> io::Result<BTreeSet<u32>> {
        self.nat.host_veths()
    }

    /// Every published port.
    #[cfg(test)]
    pub(crate) fn published(&self) -> io::Result<Vec<PublishedKey>> {
        self.nat.ports()
    }

    /// Removes host veths whose devices are gone, and the ports that lead through them.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn remove_host_veths(&self, gone: &BTreeSet<u32>) -> io::Result<()> {
        self.nat.forget(gone)
    }

    /// The number of entries in each table that holds tasks and their policies. A forgotten task has none.
    ///
    /// # Errors
    ///
    /// The error of the kernel.
    pub fn policy_entries(&self) -> io::Result<[(&'static str, usize); 8]> {
        self.policy.entries()
    }

    /// Removes the policies of tasks of an earlier agent whose cgroups are not among `alive`.
    ///
    /// # Errors
    ///
    /// The error of the kernel. The next agent removes policies that could not be removed.
    pub fn sweep_policies(&self, alive: &BTreeSet<CgroupId>) -> io::Result<()> {
        self.policy.remove_stale(alive)
    }

    /// Removes policies that no task has had for so long that no program is still reading them.
    pub fn forget_retired_policies(&self) {
        self.policy.forget_retired();
    }

    /// The counts of each rule of a task's policies. They include the counts under earlier policies with a rule of the
    /// same name.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn rule_counts(&self, task: CgroupId) -> io::Result<Vec<RuleCount>> {
        self.policy.counts(task, || self.traffic_of(task))
    }

    /// The counts of each CPU of a task's traffic.
    fn traffic_of(&self, task: CgroupId) -> io::Result<Option<Vec<Traffic>>> {
        self.net.of(task, self.slots.of(task)?)
    }

    /// The verdicts that the programs report from now on.
    ///
    /// # Errors
    ///
    /// [`OpenBpfError::OpenMap`].
    pub fn verdicts(&self) -> Result<Verdicts, OpenBpfError> {
        Verdicts::open(&self.verdicts)
    }

    /// The counters of every registered task, up to this moment.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn collect(&self) -> io::Result<HashMap<CgroupId, TaskCounters>> {
        self.sched
            .charge_running(&self.charge_running, &self.cpus)?;
        let mut tasks: HashMap<CgroupId, TaskCounters> = HashMap::new();
        let (slots, used) = self.slots_in_use()?;
        self.sched.slots.first_sums(used, |_, slot| {
            if slots.contains_key(&slot.task) {
                tasks.entry(slot.task).or_default().sched = slot.counters;
            }
        })?;
        self.net.slots.first_sums(used, |_, slot| {
            if slots.contains_key(&slot.task) {
                tasks.entry(slot.task).or_default().net = slot.traffic.counters;
            }
        })?;
        self.sched
            .counters
            .sums(|task, sum| tasks.entry(task).or_default().sched = sum)?;
        self.exec
            .counters
            .sums(|task, sum| tasks.entry(task).or_default().exec = sum)?;
        self.net
            .counters
            .sums(|task, sum| tasks.entry(task).or_default().net = sum.counters)?;
        self.block
            .counters
            .sums(|task, sum| tasks.entry(task).or_default().block = sum)?;
        Ok(tasks)
    }

    /// The tasks that have a slot, and the number of slots from the first to the highest of theirs.
    fn slots_in_use(&self) -> io::Result<(BTreeMap<CgroupId, u32>, usize)> {
        let slots = self.slots.all()?;
        let len = slots::len_to_highest(slots.values());
        Ok((slots, len))
    }

    /// The resources that every registered task used, up to this moment. This is a part of the result of
    /// [`Self::collect`], at half its price. `expected` is the approximate number of tasks.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn collect_totals(&self, expected: usize) -> io::Result<TotalsByCgroup> {
        self.sched
            .charge_running(&self.charge_running, &self.cpus)?;
        let mut tasks = TotalsByCgroup::with_capacity_and_hasher(expected, IdHash::default());
        self.slots.with_owners(|owners, len| {
            self.sched.slots.visit(len, |_, values| {
                let (mut task, mut used) = (0, TaskTotals::default());
                for slot in values {
                    task = task.max(slot.task);
                    used.add_sched(&slot.counters);
                }
                if owners.contains_key(&task) {
                    let total = tasks.entry(task).or_default();
                    total.cpu_ns += used.cpu_ns;
                    total.run_delay_ns += used.run_delay_ns;
                    total.context_switches += used.context_switches;
                }
            })?;
            self.net.slots.visit(len, |_, values| {
                let (mut task, mut used) = (0, TaskTotals::default());
                for slot in values {
                    task = task.max(slot.task);
                    used.add_net(&slot.traffic.counters);
                }
                if owners.contains_key(&task) {
                    let total = tasks.entry(task).or_default();
                    total.net_rx_bytes += used.net_rx_bytes;
                    total.net_tx_bytes += used.net_tx_bytes;
                    total.tcp_retransmits += used.tcp_retransmits;
                }
            })
        })?;
        self.sched.counters.visit(usize::MAX, |task, values| {
            let total = tasks.entry(task).or_default();
            for each in values {
                total.add_sched(each);
            }
        })?;
        self.net.counters.visit(usize::MAX, |task, values| {
            let total = tasks.entry(task).or_default();
            for Traffic { counters, .. } in values {
                total.add_net(counters);
            }
        })?;
        self.block.counters.visit(usize::MAX, |task, values| {
            let total = tasks.entry(task).or_default();
            for each in values {
                total.block_read_bytes += each.read_bytes;
                total.block_write_bytes += each.write_bytes;
            }
        })?;
        Ok(tasks)
    }

    /// The counters that the kernel keeps of the groups of all tasks in one hierarchy, by one walk. `root` is the
    /// node's tree in the hierarchy, and `is_v2` is whether it is v2. The walk blocks the creation and removal of
    /// groups.
    ///
    /// Some groups may be missing if there are many; see [`muster_ebpf_common::limits::GROUPS_MAX`].
    ///
    /// # Errors
    ///
    /// The error of the kernel; [`io::ErrorKind::Unsupported`] if it refused the program.
    pub fn groups_below(&self, root: &Path, is_v2: bool) -> io::Result<GroupRows> {
        self.groups.below(root, is_v2)
    }

    /// The counters of one task; `None` if it is not registered. The CPU time of a running thread is included up to its
    /// last switch. So the counters of a task that has ended are complete.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn counters_of(&self, task: CgroupId) -> io::Result<Option<TaskCounters>> {
        let slot = self.slots.of(task)?;
        let Some(sched) = self.sched.of(task, slot)? else {
            return Ok(None);
        };
        let mut net = Traffic::default();
        for each in self.net.of(task, slot)?.unwrap_or_default() {
            net += each;
        }
        Ok(Some(TaskCounters {
            sched,
            exec: self.exec.counters.sum(task)?.unwrap_or_default(),
            net: net.counters,
            block: self.block.counters.sum(task)?.unwrap_or_default(),
        }))
    }

    /// Parts of the counters that are not counted on this machine, by name, with the reason: `run_delay`,
    /// `connections`, `tcp_retransmits`, `block`.
    pub fn absent(&self) -> &BTreeMap<&'static str, String> {
        &self.absent
    }

    /// The end of the task's main process; `None` while it runs, and for a task that was not registered when it
    /// started.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn exit_of(&self, task: CgroupId) -> io::Result<Option<ExitRecord>> {
        self.exec.exit_of(task)
    }

    /// The task's main process; `None` before it executed its program, and if the main process is unknown.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn main_of(&self, task: CgroupId) -> io::Result<Option<MainProcess>> {
        self.exec.main_of(task)
    }

    /// The task's processes that the kernel killed because memory ran out; `None` if there are none.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn oom_of(&self, task: CgroupId) -> io::Result<Option<OomRecord>> {
        self.oom.of(task)
    }

    /// The number of records that were lost since the maps were made because there was no room.
    ///
    /// # Errors
    ///
    /// The error of the kernel on a look-up.
    pub fn lost(&self) -> io::Result<u64> {
        let mut lost = 0_u64;
        for kind in 0..LostRecord::COUNT {
            lost += self.lost.lookup(kind)?.into_iter().flatten().sum::<u64>();
        }
        Ok(lost)
    }

    /// The state of the pins that [`Bpf::open`] found.
    pub fn adoption(&self) -> Adoption {
        self.adoption
    }

    /// Counts a task for which there was no room. Only the agent writes this slot, so no count is overwritten.
    fn count_lost_task(&self) {
        let slot = LostRecord::Task as u32;
        let counted = self.lost.lookup(slot).and_then(|counts| {
            let sum: u64 = counts.iter().flatten().sum();
            self.lost.set_first(slot, sum + 1)
        });
        if let Err(error) = counted {
            tracing::warn!(%error, "a task runs uncounted, and this could not be counted either");
        }
    }
}

/// The identity of one load: the programs, their parameters, and the cgroup that they are attached to.
fn generation(object: &[u8], layout: u32, task_level: u32, cgroup_id: CgroupId) -> u64 {
    hash([
        object,
        &layout.to_ne_bytes(),
        &task_level.to_ne_bytes(),
        &cgroup_id.to_ne_bytes(),
    ])
}

/// Opens the root of the node's tree, and returns its id.
fn open_cgroup(path: &Path) -> Result<(File, CgroupId), OpenBpfError> {
    let opened = File::open(path).and_then(|file| {
        let id = file.metadata()?.ino();
        let kind = fstatfs(&file)?.filesystem_type();
        Ok((file, id, kind))
    });
    match opened {
        Ok((file, id, kind)) if kind == CGROUP2_SUPER_MAGIC => Ok((file, id)),
        Ok(_) => Err(OpenBpfError::NotCgroupV2 {
            path: path.to_owned(),
        }),
        Err(source) => Err(OpenBpfError::OpenCgroup {
            path: path.to_owned(),
            source,
        }),
    }
}

#[cfg(test)]
pub(crate) mod tests;
