//! The pure part of the agent: allocation and task runners, restart policy, kill sequence.
//!
//! Events go in with the time they happened at, and effects come out. The shell (`agent`) carries the effects out and
//! reports the outcome in the next event. No code here reads a clock, draws a random number, does I/O or starts work.
//! So a test moves time by passing another number.
//!
//! | module | decides |
//! |---|---|
//! | [`task`] | when one task is started, restarted, stopped, killed and given up |
//! | [`lifecycle`] | which tasks an allocation's task waits for, and why tasks end together |
//! | [`health`] | whether an allocation is healthy, as deployments count it |
//! | [`alloc`] | the same for all tasks of an allocation, and its report |
//! | [`node`] | which messages of the control plane change the desired state |
//! | [`heartbeat_lease`] | which allocations stop because no server was in reach for too long |
//! | [`servers`] | which server the agent tries next, and when |
//! | [`start_order`] | which allocation waits for others to end |
//! | [`gc`] | which finished allocation is destroyed next |
//! | [`policy`] | which packets a task may send and receive, compiled for the packet path |
//! | [`limits`] | bounds of all modules |

#![forbid(unsafe_code)]
#![warn(clippy::wildcard_enum_match_arm)]

pub mod addresses;
pub mod alloc;
pub mod gc;
pub mod health;
pub mod heartbeat_lease;
pub mod lifecycle;
pub mod limits;
pub mod node;
pub mod policy;
pub mod servers;
pub mod start_order;
pub mod task;
