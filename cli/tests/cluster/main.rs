//! Three servers and two agents as real processes, each in a network namespace of its own, under faults.
//!
//! Clients write and read jobs during the faults. `todc-utils` checks their history for linearizability. It has Wing
//! and Gong's algorithm with Lowe's memoization, as Porcupine does, and its authors test it with the same recorded
//! histories of etcd. It is independent of Muster, has no dependencies, and is on crates.io. Porcupine itself is not
//! available as a package here. Its Rust port depends on a benchmark harness.
//!
//! Most tests share two clusters, which run at once (`shared.rs`). With `MUSTER_TEST_LONG=1`, the leader is killed
//! fifty times instead of twice.

#[cfg(test)]
mod client;
#[cfg(test)]
mod cluster;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod history;
#[cfg(test)]
mod kill;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod network;
#[cfg(test)]
mod one_offs;
#[cfg(test)]
mod partition;
#[cfg(test)]
mod relay;
#[cfg(test)]
mod restart;
#[cfg(test)]
mod shared;
