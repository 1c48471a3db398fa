//! Three servers and two agents as real processes, each in a network namespace of its own, and what can
//! happen to them.
//!
//! Clients write and read jobs all the while. What they saw is checked for linearizability by `todc-utils`:
//! Wing and Gong's algorithm with Lowe's memory, the one of Porcupine, tested by its authors on the same
//! recorded histories of etcd. It is not ours, has no dependencies, and is on crates.io; Porcupine itself is
//! not packaged where we can get it, and its port to Rust brings a benchmark harness along.
//!
//! Most faults meet the same cluster, one after the other (`shared.rs`). `MUSTER_TEST_LONG=1` asks for fifty deaths of a
//! leader in place of two.

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
