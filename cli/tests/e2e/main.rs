//! Tests of the `muster` binary from a user's point of view.

#[cfg(test)]
mod bridge;
#[cfg(test)]
mod deployment;
#[cfg(test)]
mod dev;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod gap;
#[cfg(test)]
mod gc;
#[cfg(test)]
mod logs;
#[cfg(test)]
mod migrate;
#[cfg(test)]
mod mistakes;
#[cfg(test)]
mod net;
#[cfg(test)]
mod operator;
#[cfg(test)]
mod plugin;
#[cfg(test)]
mod private;
#[cfg(test)]
mod remote;
#[cfg(test)]
mod resize;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tasks;
