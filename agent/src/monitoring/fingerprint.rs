//! The description of this machine: the `NodeSpec` that is registered.
//!
//! Each aspect has one file; each adds attributes, and some an amount. Attribute names are Nomad's where Nomad has one;
//! else they begin with `muster.`, `cgroup.`, `ebpf.` or `io_uring`. A fact that cannot be found is absent, never a
//! made-up value.

mod cpu;
mod facts;
mod host;
mod memory;
mod network;
mod storage;
mod topology;

use std::path::Path;

pub(crate) use facts::Facts;
pub(crate) use host::{boot_id, hostname, kernel_release};
pub(crate) use memory::meminfo;
pub(crate) use network::address_towards;
pub(crate) use storage::disk_usage;
pub(crate) use topology::topology;

/// Reads the facts of this machine. `data_dir` selects the disk.
pub(crate) fn gather(data_dir: &Path) -> Facts {
    let mut facts = Facts::default();
    cpu::add(&mut facts);
    memory::add(&mut facts);
    storage::add(&mut facts, data_dir);
    host::add(&mut facts);
    facts
}

#[cfg(test)]
mod tests;
