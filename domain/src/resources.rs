//! Amounts of CPU, memory, disk and ports.

use serde::{Deserialize, Serialize};

use crate::job::block::job_block;
use crate::job::constraint::{Affinity, Constraint};
use crate::job::group::{PortAsk, TaskGroup};
use crate::job::task::ByteRate;

/// CPU in MHz of one core.
///
/// Placement subtracts it from the CPU of the node's fingerprint. The agent does not reserve it: it is a share under
/// contention, so a task may also use idle cores.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct CpuMhz(pub u32);

/// Memory or disk in MiB.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct Mb(pub u32);

impl Mb {
    /// No limit. Only [`TaskResources::memory_max`] may be it.
    pub const UNLIMITED: Self = Self(u32::MAX);

    /// The amount in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.0) << 20
    }
}

job_block! {
    /// The resources that one task asks for.
    pub struct TaskResources {
        /// CPU share in MHz; default 100. With `cores`, placement sets it to the speed of the given cores.
        pub cpu: CpuMhz = CpuMhz(100) => InPlace;
        /// Exclusive cores of the task; 0 means a share of all cores.
        // Cores are chosen at placement.
        pub cores: u16 = 0 => Replace;
        /// Memory limit in MiB; default 300.
        // `is_same_for_running` compares both memory limits.
        pub memory: Mb = Mb(300) => InPlace;
        /// Hard limit above `memory` where the node oversubscribes; `None` means `memory`, [`Mb::UNLIMITED`] no limit.
        pub memory_max: Option<Mb> = None => InPlace;
        pub devices: Vec<DeviceAsk> = Vec::new() => Replace;
        /// Whether `cpu` is an upper limit even if cores are idle.
        pub cpu_hard_limit: bool = false => InPlace;
        /// Limits on the task's disk reads and writes.
        pub io: IoLimits = IoLimits::default() => InPlace;
        /// Ports of the task in the host's network, besides those of its group.
        pub ports: Vec<PortAsk> = Vec::new() => Replace;
    }
}

impl TaskResources {
    /// Returns the task's part of the group's sum. Disk belongs to the group.
    #[must_use]
    pub fn amount(&self) -> Amount {
        Amount {
            cpu_mhz: if self.cores == 0 {
                u64::from(self.cpu.0)
            } else {
                0
            },
            memory_mb: u64::from(self.memory.0),
            disk_mb: 0,
            allocs: 0,
        }
    }

    /// Whether `new` applies to a task that was started with `old`. A lower memory limit requires a replacement. A task
    /// above the new limit would be killed, and only its node knows its usage.
    pub(crate) fn is_same_for_running(old: &Self, new: &Self) -> bool {
        let most = |of: &Self| of.memory_max.unwrap_or(of.memory);
        Self::updates_in_place(old, new) && most(old) <= most(new)
    }
}

job_block! {
    /// Devices of one kind that a task asks for.
    pub struct DeviceAsk {
        /// `type`, `vendor/type` or `vendor/type/name`, such as `nvidia/gpu`.
        pub name: String = String::new();
        /// Number of devices; default 1.
        pub count: u32 = 1;
        /// Conditions on the device: `${device.attr.NAME}`, `${device.model}`, `${device.vendor}`,
        /// `${device.type}`, `${device.ids}`.
        pub constraints: Vec<Constraint> = Vec::new();
        /// Preferences about the device.
        pub affinities: Vec<Affinity> = Vec::new();
    }
}

impl TaskResources {
    /// The most memory that the task may have; `None` means no limit.
    #[must_use]
    pub fn memory_limit(&self) -> Option<Mb> {
        let max = self.memory_max.unwrap_or(self.memory);
        (max != Mb::UNLIMITED).then_some(max)
    }
}

/// The limits on a task's reads and writes on each disk of its node; `None` is as fast as the disk. Placement does not
/// count them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoLimits {
    /// Bytes read in a second.
    pub read_rate: Option<ByteRate>,
    /// Bytes written in a second.
    pub write_rate: Option<ByteRate>,
    /// Reads in a second.
    pub read_ops: Option<u32>,
    /// Writes in a second.
    pub write_ops: Option<u32>,
    /// The weight of the task on a busy disk, from 1 to 10 000. The kernel's default is 100.
    pub weight: Option<u16>,
}

impl IoLimits {
    /// The lowest rate. Below it, loading the first page of a program takes longer than the kill timeout.
    pub const RATE_MIN: ByteRate = ByteRate(4 * 1024);
    /// The highest rate. No disk reaches it, and sums stay far from overflow.
    pub const RATE_MAX: ByteRate = ByteRate(1 << 40);
    /// The fewest operations in a second. With fewer, a task takes too long to start.
    pub const OPS_MIN: u32 = 10;
    /// The highest weight that the kernel accepts (`Documentation/admin-guide/cgroup-v2.rst`, "IO"). The `bfq`
    /// scheduler accepts at most 1 000.
    pub const WEIGHT_MAX: u16 = 10_000;

    /// Whether there are no limits.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// A sum of CPU, memory, disk and allocations: the request of a group, or the used or free part of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amount {
    /// MHz.
    pub cpu_mhz: u64,
    /// MiB of memory.
    pub memory_mb: u64,
    /// MiB of disk.
    pub disk_mb: u64,
    pub allocs: u64,
}

impl Amount {
    /// The sum of `self` and `other`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            cpu_mhz: self.cpu_mhz.saturating_add(other.cpu_mhz),
            memory_mb: self.memory_mb.saturating_add(other.memory_mb),
            disk_mb: self.disk_mb.saturating_add(other.disk_mb),
            allocs: self.allocs.saturating_add(other.allocs),
        }
    }

    /// `self` multiplied by `count`.
    #[must_use]
    pub fn times(self, count: u32) -> Self {
        let count = u64::from(count);
        Self {
            cpu_mhz: self.cpu_mhz.saturating_mul(count),
            memory_mb: self.memory_mb.saturating_mul(count),
            disk_mb: self.disk_mb.saturating_mul(count),
            allocs: self.allocs.saturating_mul(count),
        }
    }

    /// `self` minus `other`, never below zero.
    #[must_use]
    pub fn minus(self, other: Self) -> Self {
        Self {
            cpu_mhz: self.cpu_mhz.saturating_sub(other.cpu_mhz),
            memory_mb: self.memory_mb.saturating_sub(other.memory_mb),
            disk_mb: self.disk_mb.saturating_sub(other.disk_mb),
            allocs: self.allocs.saturating_sub(other.allocs),
        }
    }

    /// The larger of both, in each dimension.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            cpu_mhz: self.cpu_mhz.max(other.cpu_mhz),
            memory_mb: self.memory_mb.max(other.memory_mb),
            disk_mb: self.disk_mb.max(other.disk_mb),
            allocs: self.allocs.max(other.allocs),
        }
    }

    /// The smaller of both, in each dimension.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self {
            cpu_mhz: self.cpu_mhz.min(other.cpu_mhz),
            memory_mb: self.memory_mb.min(other.memory_mb),
            disk_mb: self.disk_mb.min(other.disk_mb),
            allocs: self.allocs.min(other.allocs),
        }
    }

    /// The first dimension in which `self` is more than `room`, in Nomad's words, if any.
    #[must_use]
    pub fn exceeds(self, room: Self) -> Option<&'static str> {
        if self.cpu_mhz > room.cpu_mhz {
            Some("cpu")
        } else if self.memory_mb > room.memory_mb {
            Some("memory")
        } else if self.disk_mb > room.disk_mb {
            Some("disk")
        } else if self.allocs > room.allocs {
            Some("allocations")
        } else {
            None
        }
    }
}

/// A port that an allocation holds on its node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatedPort {
    /// The label in the job file, such as `http`.
    pub label: String,
    /// The port on the host.
    pub value: u16,
    /// The port inside the allocation's network; 0 means the same.
    pub to: u16,
    /// The address on the host; empty if the node named none, which means every address.
    pub host_ip: String,
}

impl AllocatedPort {
    /// Whether `other` has the same port on an address that overlaps.
    fn meets(&self, other: &Self) -> bool {
        let is_every = self.host_ip.is_empty() || other.host_ip.is_empty();
        self.value == other.value && (is_every || self.host_ip == other.host_ip)
    }
}

/// Exclusive parts of a node that an allocation holds besides amounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holding {
    /// Ports, in the order of [`TaskGroup::ports`].
    pub ports: Vec<AllocatedPort>,
    /// Cores, by the position of the task in its group.
    pub cores: Vec<HeldCores>,
    /// Devices, by the position of the task in its group.
    pub devices: Vec<HeldDevices>,
}

impl Holding {
    /// Whether the holding is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ports.is_empty() && self.cores.is_empty() && self.devices.is_empty()
    }

    /// Whether both holdings have a port, core or device in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        let ports = self.ports.iter().any(|port| {
            let mut ports = other.ports.iter();
            ports.any(|other| port.meets(other))
        });
        let cores = |of: &Self, id: &u16| of.cores.iter().any(|cores| cores.ids.contains(id));
        let devices = |of: &Self, group: &str, id: &String| {
            let mut devices = of.devices.iter();
            devices.any(|held| held.group == group && held.ids.contains(id))
        };
        let mut held = self.devices.iter();
        ports
            || self
                .cores
                .iter()
                .flat_map(|cores| &cores.ids)
                .any(|id| cores(other, id))
            || held.any(|held| held.ids.iter().any(|id| devices(other, &held.group, id)))
    }

    /// The ports, each with the position of its task in `group`; `None` for a port of the group. The holding belongs to
    /// an instance of `group`.
    pub fn ports_of<'a>(
        &'a self,
        group: &'a TaskGroup,
    ) -> impl Iterator<Item = (Option<usize>, &'a AllocatedPort)> {
        let owners = group.ports().map(|(owner, _)| owner);
        // Ports that no task asks for belong to the group.
        owners.chain(std::iter::repeat(None)).zip(&self.ports)
    }

    /// The speed of all cores together, in MHz.
    #[must_use]
    pub fn cores_mhz(&self) -> u64 {
        let mhz = self.cores.iter().map(|cores| cores.mhz);
        mhz.fold(0, u64::saturating_add)
    }
}

/// Exclusive cores of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldCores {
    /// Position of the task in its group.
    pub task_at: u16,
    pub ids: Vec<u16>,
    /// The speed of the cores together, in MHz.
    pub mhz: u64,
}

/// Exclusive devices of one task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDevices {
    /// Position of the task in its group.
    pub task_at: u16,
    /// `vendor/type/name`.
    pub group: String,
    /// The ids of the devices within the group.
    pub ids: Vec<String>,
}
