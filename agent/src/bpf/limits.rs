//! Bounds of the agent's requests to the kernel's eBPF side.

use std::time::Duration;

/// Entries fetched by one batch look-up.
///
/// 256 entries of the largest value on 128 CPUs are 7 MiB. Half would double the system calls of a node with more than
/// 256 tasks. Double would save none on a smaller node. The number grows when the kernel reports that one bucket holds
/// more.
pub(super) const BATCH_ENTRIES: usize = 256;

/// Most bytes of an eBPF object that are read.
///
/// The object has about one megabyte with its debug information. The bound keeps a wrong path from filling the memory.
pub(super) const OBJECT_BYTES_MAX: u64 = 16 << 20;

/// Bytes to which an eBPF object is aligned: the headers of a 64-bit ELF file have fields of eight.
pub(super) const OBJECT_ALIGNMENT: usize = 8;

/// Number of directories above a program that are searched for cargo's target directory.
///
/// A test is three levels down (`target/debug/deps`), with a target triple four. One more level allows for a build
/// directory inside.
pub(super) const TARGET_DIR_ANCESTORS_MAX: usize = 5;

/// Lines kept of the verifier's log when it refuses a program. The reason is at the end.
pub(super) const VERIFIER_LOG_LINES_MAX: usize = 20;

/// Most attempts to create an entry while the kernel reports that it has no memory.
///
/// Memory for every CPU's part of an entry comes from a stock that a kernel thread refills. On a busy machine of two
/// CPUs about one in a million fast insertions found the stock empty. With [`INSERT_WAIT`] between them, five hundred
/// attempts give that thread half a second. A tenth was not always enough when a node's whole set of tasks with
/// histograms was registered at once on a machine with busy CPUs. A machine that needs longer is out of memory.
/// Starting the task uncounted is then better than a delay.
pub(super) const INSERT_ATTEMPTS_MAX: u32 = 500;

/// Time for which the agent leaves the CPU to the kernel thread that refills the stock.
pub(super) const INSERT_WAIT: Duration = Duration::from_millis(1);

/// Most attempts to unmount a bpffs that is in use.
///
/// A child of this process holds a copy of every descriptor between its fork and its exec. This use is over in
/// milliseconds. Attempts for a second, with [`UNMOUNT_WAIT`] between them, distinguish it from a shell whose working
/// directory is in the bpffs.
pub(super) const UNMOUNT_ATTEMPTS_MAX: u32 = 100;

/// Pause before the next attempt to unmount.
pub(super) const UNMOUNT_WAIT: Duration = Duration::from_millis(10);

/// Most keys that are listed of one map: twice the number in the largest map. The kernel starts again from the first
/// key when an entry is removed during the listing.
pub(super) const KEYS_MAX: usize = 262_144;

/// Time for which unused policies, and slots, stay unchanged.
///
/// A program that found them before their release may still be using them. Programs run for microseconds. No program is
/// interrupted for longer than an RCU reader may be, and the kernel reports a longer reader after seconds as its own
/// fault.
pub(super) const QUARANTINE: Duration = Duration::from_secs(2);

/// Most entries that one system call writes: at most 32 KiB of keys and values.
pub(super) const BATCH_WRITTEN: usize = 1_024;

/// Most rules of a task whose counters are looked up one by one. For more rules, the agent iterates over the map.
///
/// Iterating over the map costs as much as a thousand look-ups if few rules of the node have matched a packet. It costs
/// some ten times that if the map is full. Half of this bound would make the common case slower. Double would save time
/// only for a full map.
pub(super) const RULES_LOOKED_UP_MAX: usize = 2_048;
