//! The description of this machine: the `NodeSpec` that is registered.
//!
//! Each aspect has one file; each adds attributes, and some an amount. Attribute names are Nomad's where Nomad has one;
//! else they begin with `muster.`, `cgroup.`, `ebpf.` or `io_uring`. A fact that cannot be found is absent, never a
//! made-up value.

mod cpu;
mod host;
mod memory;
mod network;
mod storage;
mod topology;

use std::collections::BTreeMap;
use std::path::Path;

use muster_domain::resources::Amount;

pub(crate) use host::{boot_id, hostname, kernel_release};
pub(crate) use memory::meminfo;
pub(crate) use network::address_towards;
pub(crate) use storage::disk_usage;
pub(crate) use topology::topology;

/// Facts of the machine that need nothing but reading.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) attributes: BTreeMap<String, String>,
    /// The total amount of the machine.
    pub(crate) total: Amount,
    pub(crate) cores: u32,
}

impl Facts {
    /// Looks at the machine; `data_dir` decides which disk is meant.
    pub(crate) fn gather(data_dir: &Path) -> Self {
        let mut facts = Self::default();
        cpu::add(&mut facts);
        memory::add(&mut facts);
        storage::add(&mut facts, data_dir);
        host::add(&mut facts);
        facts
    }

    fn attribute(&mut self, name: &str, value: impl ToString) {
        self.attributes.insert(name.to_owned(), value.to_string());
    }
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests;
