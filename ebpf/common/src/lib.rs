//! Map keys and values shared by the eBPF programs and the agent.
//!
//! Every type here is `repr(C)` without padding. The kernel and user space exchange it as bytes. A change of one of
//! them, or of a map's kind, raises [`LAYOUT`]. The agent pins maps below a directory of that number and never reads
//! another layout's maps.
//! | file | content |
//! |---|---|
//! | `sched.rs` | CPU time, context switches, waiting for a CPU |
//! | `exec.rs` | process counts, the main process, the exit ledger |
//! | `net.rs` | bytes, packets, connections |
//! | `block.rs` | bytes read from disks and written to them |
//! | `policy.rs` | packets that a task may send and receive |
//! | `rate.rs` | rate limits of a task |
//! | `nat.rs` | networks of allocations and published ports |
//! | `oom.rs` | processes killed because memory ran out |
//! | `group.rs` | the kernel's counters of a control group |
//! | `histogram.rs` | histograms of durations |
//! | `kernel.rs` | offsets of kernel structures, filled in at load |
//! | `limits.rs` | the number of entries of each map |
//!
//! Absent: names of programs and pins (`agent/src/bpf`), and all code that reads the kernel.

#![no_std]
#![expect(
    unsafe_code,
    reason = "the marker for types that cross the border as bytes"
)]

pub mod block;
pub mod exec;
pub mod group;
pub mod histogram;
pub mod kernel;
pub mod limits;
pub mod nat;
pub mod net;
pub mod oom;
pub mod policy;
pub mod rate;
pub mod sched;

/// The number of the maps' layout.
pub const LAYOUT: u32 = 9;

/// The value that stands for the slot of a task without a slot.
pub const NO_SLOT: u64 = u64::MAX;

/// The v2 cgroup id of a task's cgroup (its kernfs inode number): the key of every map of tasks.
pub type CgroupId = u64;

/// A type that can be copied to and from a map as its bytes.
///
/// # Safety
///
/// The type is `repr(C)` without padding, and every pattern of bits is a valid value of it.
pub unsafe trait Plain: Copy + Default + 'static {}

// SAFETY: a primitive integer has neither padding nor invalid values.
unsafe impl Plain for u32 {}
// SAFETY: a primitive integer has neither padding nor invalid values.
unsafe impl Plain for u64 {}

/// The kinds of lost records; the index into the map `LOST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum LostRecord {
    /// A process became the main process of its task, and the map of main processes had no room.
    Main = 0,
    /// A main process ended, and the exit ledger had no room.
    Exit = 1,
    /// A task was started for which the maps of counters had no room. The agent counts it.
    Task = 2,
    /// A process was killed because memory ran out, and the map of victims had no room.
    Oom = 3,
    /// A packet matched a rule of its policy, and the map of rules had no room to count it.
    Rule = 4,
    /// A verdict was to be reported, and the ring was full.
    Verdict = 5,
    /// A thread waited for a CPU, and another thread had taken its place in the table of threads.
    Wait = 6,
    /// A device got a request, and the map of requests had no room.
    Flight = 7,
    /// A packet to or from a published port was dropped. There was no room to record its exchange, or the packet was
    /// too short to be rewritten.
    NatEntry = 8,
}

impl LostRecord {
    /// The number of kinds of lost records.
    pub const COUNT: u32 = 9;
}
