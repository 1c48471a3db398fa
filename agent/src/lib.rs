//! The agent's shell: bpf, cgroup, ring, logs, drivers, state, fingerprint.

pub mod bpf;
pub mod cgroup;
pub mod logs;
pub mod ring;
