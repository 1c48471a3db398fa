//! Tests that need a kernel to play with: root, cgroups, eBPF.
//!
//! `cargo xtask vm` runs them in a guest with pure cgroup v2; on a machine where they can run they
//! are ordinary tests too. One that cannot says so on stderr and, for `cargo xtask test`, in the
//! file that `MUSTER_SKIP_FILE` names.

#[cfg(test)]
mod adoption;
#[cfg(test)]
mod block;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod group;
#[cfg(test)]
#[path = "../packet/ipv6.rs"]
mod ipv6;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod memory;
#[cfg(test)]
mod nat;
#[cfg(test)]
mod net;
#[cfg(test)]
mod network_paths;
#[cfg(test)]
mod node;
#[cfg(test)]
mod oom;
#[cfg(test)]
mod policy;
mod rates;
#[cfg(test)]
mod sched;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod stress_ng;
#[cfg(test)]
mod support;

use muster_agent::bpf;
