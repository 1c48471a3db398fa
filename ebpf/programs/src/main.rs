//! The eBPF programs, one object for every supported kernel (6.1 and newer).
//!
//! They are attached once and find a task by the id of its cgroup: the ancestor at a fixed level of an event's cgroup.
//! The agent registers a task by making its entries in the maps of counters, so a program updates entries and makes
//! none. The main process and the exit ledger are the exceptions. Records of these that do not fit are counted in
//! `LOST`.
//!
//! Two loads of the programs can be attached at once while an agent replaces an older one. `ACTIVE` contains the number
//! of the load that counts, so the change happens in one instant. An event can be under way at that instant. The older
//! load sees it while it is still active, and the newer load sees it afterwards. Quantities that are counted in steps
//! from a mark in the maps (time, waits, requests to disks) still count once. Process events also count once, because
//! `exec` keeps a mark of its own. A context switch, a packet or a connection has no mark. Both loads can count one of
//! these on each CPU.
//!
//! On other targets than eBPF this is an empty program. The rules that can be tested without a kernel are in
//! `muster-ebpf-common`.

#![cfg_attr(target_arch = "bpf", no_std, no_main)]
// One atomic instruction adds for all CPUs. The target has it, but the language has no intrinsic for it.
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

/// The helpers that read kernel memory require a licence that the kernel calls compatible. This one is on the kernel's
/// list, and this crate is offered under it.
#[cfg(target_arch = "bpf")]
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MPL/GPL\0";

#[cfg(target_arch = "bpf")]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
