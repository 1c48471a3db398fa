//! The native driver against the kernel: real processes, real cgroups, real kills.
//!
//! What needs root or a cgroup of version 2 says that it was skipped, and why.

mod cgroup;
mod conformance;
mod fixture;
mod life;
mod survival;
