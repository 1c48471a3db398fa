//! The native driver against the kernel: real processes, real cgroups, real kills.
//!
//! A test that needs root or cgroup v2 reports that it was skipped, and why.
#![expect(
    clippy::unwrap_used,
    reason = "everything here is a test, also what stands outside of test functions"
)]

mod actions;
mod cgroup;
mod conformance;
mod fixture;
mod life;
mod session;
mod survival;
mod transfers;
