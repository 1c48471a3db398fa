//! Map keys and values shared by the eBPF programs and the agent.
//!
//! Every type here is `repr(C)`, has no padding and is read as bytes on the other side of the
//! kernel's border. A change of one of them, or of a map's kind, raises [`LAYOUT`]: the agent pins
//! maps below a directory of that number and never reads another layout's maps.
//!
//! | file | content |
//! |---|---|
//! | `sched.rs` | CPU time, context switches, waiting for a CPU |
//! | `exec.rs` | process counts, the main process, the exit ledger |
//! | `net.rs` | bytes, packets, connections |
//! | `block.rs` | what is read from disks and written to them |
//! | `policy.rs` | what a task may send and receive |
//! | `rate.rs` | how fast |
//! | `nat.rs` | networks of allocations and published ports |
//! | `oom.rs` | processes killed for want of memory |
//! | `group.rs` | what the kernel keeps of a control group |
//! | `histogram.rs` | how long things took |
//! | `kernel.rs` | offsets of kernel structures, filled in at load |
//! | `limits.rs` | how many entries each map holds |
//!
//! Absent: names of programs and pins (`agent/src/bpf`), and everything that reads the kernel.

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

/// The value in place of a slot where a task has none.
pub const NO_SLOT: u64 = u64::MAX;

/// The v2 cgroup id of a task's cgroup (its kernfs inode number): the key of every map of tasks.
pub type CgroupId = u64;

/// A type that may be copied to and from a map as its bytes.
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
    /// A process became the main one of its task, and the map of main processes had no room.
    Main = 0,
    /// A main process ended, and the exit ledger had no room.
    Exit = 1,
    /// A task was started that the maps of counters had no room for. Counted by the agent.
    Task = 2,
    /// A process was killed for want of memory, and the map of victims had no room.
    Oom = 3,
    /// A packet met a rule of its policy, and the map of rules had no room to count it.
    Rule = 4,
    /// A verdict was to be told, and the ring was full.
    Verdict = 5,
    /// A thread waited for a CPU, and another one had taken its place in the table of threads.
    Wait = 6,
    /// A device was given a request, and the map of requests had no room.
    Flight = 7,
    /// A packet to or from a published port was thrown away: there was no room to remember its exchange, or it was too
    /// short to be rewritten.
    NatEntry = 8,
}

impl LostRecord {
    /// How many kinds of loss there are.
    pub const COUNT: u32 = 9;
}
