//! Bounds of what the agent asks of the kernel's eBPF side.

use std::time::Duration;

/// Entries fetched by one batch look-up.
///
/// 256 of the largest value on 128 CPUs are 7 MiB. Half of it doubles the system calls of a
/// node with more than 256 tasks, twice of it saves none of a smaller one. It grows by
/// itself when the kernel says that one bucket holds more.
pub(super) const BATCH_ENTRIES: usize = 256;

/// Bytes of an eBPF object that are read.
///
/// Ours has about one megabyte with its debug information. The bound keeps a wrong path from filling the memory.
pub(super) const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// Bytes to which an eBPF object is aligned: the headers of a 64-bit ELF file have fields of eight.
pub(super) const OBJECT_ALIGNMENT: usize = 8;

/// Directories above a program in which cargo's target directory is looked for.
///
/// A test is three levels down (`target/debug/deps`), with a target triple four. One more is for a build directory
/// inside.
pub(super) const TARGET_DIR_ANCESTORS_MAX: usize = 5;

/// Lines kept of what the verifier says when it refuses a program: the reason is at the end.
pub(super) const VERIFIER_LOG_LINES_MAX: usize = 20;

/// How often an entry is tried to be made while the kernel says that it has no memory.
///
/// Memory for every CPU's part of an entry comes from a stock that a kernel thread fills again. On a
/// busy machine of two CPUs one in about a million fast insertions found it empty. With
/// [`INSERT_WAIT`] between them, five hundred attempts give that thread half a second: when a node's worth of tasks
/// with histograms is registered at once on a machine whose CPUs are busy, a tenth was not always enough. A machine
/// that needs longer is out of memory, and the task is better started uncounted than later.
pub(super) const INSERT_ATTEMPTS_MAX: u32 = 500;

/// How long to leave the CPU to the kernel thread that fills the stock.
pub(super) const INSERT_WAIT: Duration = Duration::from_millis(1);

/// How often a bpffs that is in use is tried to be unmounted.
///
/// The use is that of a child of this process between its birth and its program, which still holds a
/// copy of every descriptor; it is over in milliseconds. A second, with [`UNMOUNT_WAIT`] between the
/// attempts, tells that from a shell whose working directory is in there.
pub(super) const UNMOUNT_ATTEMPTS_MAX: u32 = 100;

/// How long to wait before the next attempt to unmount.
pub(super) const UNMOUNT_WAIT: Duration = Duration::from_millis(10);

/// Keys that are listed of one map: twice of what the largest of them holds. The kernel starts again from the
/// first when an entry is removed under it.
pub(super) const KEYS_MAX: usize = 262_144;

/// How long policies that nobody has, and slots, stay as they are.
///
/// A program that found them before they were given up may still be using them; it runs for microseconds,
/// and no program is interrupted for longer than the kernel lets a reader of RCU be, which it reports after
/// seconds as its own fault.
pub(super) const QUARANTINE: Duration = Duration::from_secs(2);

/// Entries that are written by one system call: at most 32 KiB of keys and values.
pub(super) const BATCH_WRITTEN: usize = 1_024;

/// Rules of a task whose counters are looked up one by one; those of one with more are found by going through the map.
///
/// Going through it costs as much as a thousand look-ups where few rules of the node have met a packet, and some ten
/// times that where the map is full: half of this would make the common case slower, and twice of it would save only a full map.
pub(super) const RULES_LOOKED_UP_MAX: usize = 2_048;
