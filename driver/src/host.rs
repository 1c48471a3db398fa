//! Facts that a host tells its drivers about itself: its topology, and the ports that they may listen on.
//!
//! Drivers made for Nomad compute with it: shares of the machine from a task's MHz, sets of cores. Some refuse to be
//! configured without it.

use std::ops::RangeInclusive;

use crate::limits::{DRIVER_PORT_MAX, DRIVER_PORT_MIN};

/// Facts that a host tells its drivers about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostInfo {
    /// Ports of the loopback that drivers may listen on; none that tasks are given.
    pub ports: RangeInclusive<u16>,
    pub topology: Topology,
}

impl HostInfo {
    /// A host on a machine like that, with the ports that drivers expect.
    pub fn new(topology: Topology) -> Self {
        Self {
            ports: DRIVER_PORT_MIN..=DRIVER_PORT_MAX,
            topology,
        }
    }
}

/// The processors of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// Numbers of the NUMA nodes, sorted.
    pub numa_nodes: Vec<u32>,
    /// The kernel's distances, a row for each node in their order; empty where it does not say.
    pub distances: Vec<Vec<u32>>,
    /// Every core that there is.
    pub cores: Vec<Core>,
    /// MHz that are kept from tasks.
    pub withheld_mhz: u64,
}

/// A logical core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Core {
    pub id: u32,
    /// The NUMA node that it is of.
    pub numa_node: u32,
    /// The socket that it is in.
    pub socket: u32,
    /// Its weight in placement, in MHz.
    pub mhz: u64,
    /// No task may run on it.
    pub is_reserved: bool,
}
