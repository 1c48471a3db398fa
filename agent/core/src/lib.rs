//! The pure agent: allocation and task runners, restart policy, kill sequence.
//!
//! Events go in with the time they happened at, effects come out; the shell (`agent`) carries them
//! out and reports back with the next event. Nothing here reads a clock, draws a random number, does
//! I/O or starts work, so a test moves time by passing another number.
//!
//! | module | what it decides |
//! |---|---|
//! | [`task`] | when one task is started, restarted, stopped, forced and given up |
//! | [`lifecycle`] | what tasks of one allocation wait for, and why they end together |
//! | [`health`] | whether an allocation is healthy, as deployments count it |
//! | [`alloc`] | the same for all tasks of an allocation, and what is reported of it |
//! | [`node`] | which messages of the control plane are news |
//! | [`heartbeat_lease`] | what stops because no server was in reach for too long |
//! | [`servers`] | which server the agent tries next, and when |
//! | [`start_order`] | which allocation waits for others to end |
//! | [`gc`] | which finished allocation is destroyed next |
//! | [`policy`] | what a task may send and receive, compiled for the packet path |
//! | [`limits`] | bounds of all of it |

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
