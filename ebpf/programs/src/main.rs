//! The eBPF programs, one object for every supported kernel (6.1 and newer).
//!
//! They are attached once and look a task up by the id of its cgroup, the ancestor at a fixed level
//! of whatever cgroup an event belongs to. The agent registers a task by making its entries in the
//! maps of counters, so a program updates entries and makes none; the main process and the exit
//! ledger are the exceptions, and what they cannot record is counted in `LOST`.
//!
//! Two loads of the programs can be attached at once while an agent replaces an older one. `ACTIVE`
//! names the one that counts, so the change happens in one instant. An event can be under way at that instant, seen by the
//! older while it still counted and by the other after. What is counted in steps from a mark in the maps (time, waits,
//! requests to disks) counts once even so, and so does what happens to a process, for which `exec` keeps a mark of its own.
//! A context switch, a packet or a connection has none: of these, one on each CPU can be counted by both.
//!
//! On other targets than eBPF this is an empty program: the rules that can be tested without a
//! kernel are in `muster-ebpf-common`.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]
// One instruction that adds for all CPUs: this target has it, but the language no name for it.
#![cfg_attr(target_arch = "bpf", feature(asm_experimental_arch))]
#![cfg_attr(
    target_arch = "bpf",
    expect(
        unsafe_code,
        reason = "programs read kernel memory and share maps by pointer"
    )
)]

#[cfg(target_arch = "bpf")]
mod block;
#[cfg(target_arch = "bpf")]
mod exec;
#[cfg(target_arch = "bpf")]
mod group;
#[cfg(target_arch = "bpf")]
mod kernel;
#[cfg(target_arch = "bpf")]
mod nat;
#[cfg(target_arch = "bpf")]
mod net;
#[cfg(target_arch = "bpf")]
mod oom;
#[cfg(target_arch = "bpf")]
mod policy;
#[cfg(target_arch = "bpf")]
mod sched;

#[cfg(not(target_arch = "bpf"))]
fn main() {}

/// The helpers that read kernel memory are for programs under a licence the kernel calls
/// compatible; this is the one of its list that this crate is offered under.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MPL/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
