//! Messages between processes.
//!
//! | module | content |
//! |---|---|
//! | [`codec`] | bincode with a byte limit on every decode |
//! | [`frame`] | the frame around every message on a QUIC stream |
//! | [`rpc`] | messages between agents and the control plane |
//! | [`api`] | HTTP bodies, with Nomad's field names |
//! | [`limits`] | bounds on all messages |
//! | `fuzz` | fuzz targets (feature `fuzz`) |
//!
//! Deliberately absent: sockets, async, TLS. They are in `link`, `control` and `agent`.

#![forbid(unsafe_code)]

pub mod api;
pub mod codec;
pub mod frame;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
pub mod limits;
pub mod rpc;
pub mod task_stats;
