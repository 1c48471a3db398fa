//! The agent with a real driver process, real cgroups and a fake server over real QUIC.

#[cfg(test)]
mod adopt;
#[cfg(test)]
mod beside;
#[cfg(test)]
mod busy;
#[cfg(test)]
mod cni;
#[cfg(test)]
mod collect;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod failover;
#[cfg(test)]
mod holding;
#[cfg(test)]
#[path = "../packet/ipv6.rs"]
mod ipv6;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod migrate;
#[cfg(test)]
mod mock;
#[cfg(test)]
mod network_paths;
#[cfg(test)]
mod one_off;
#[cfg(test)]
mod plugin;
#[cfg(test)]
mod pressure;
#[cfg(test)]
mod remote;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod run;
#[cfg(test)]
mod session;
#[cfg(test)]
mod silent;
#[cfg(test)]
mod stuck;
#[cfg(test)]
mod support;
#[cfg(test)]
mod survival;
#[cfg(test)]
mod turns;
