//! QUIC between the processes of a cluster: what both ends of a link share.
//!
//! | module | what |
//! |---|---|
//! | [`tls`] | certificates of a cluster: made once, loaded by each process |
//! | [`certificates`] | those of a running process, replaced without a restart |
//! | [`endpoint`] | QUIC endpoints with mutual TLS 1.3 |
//! | [`peer`] | the role a peer's certificate gives it |
//! | [`frames`] | framed messages on a stream |
//! | [`private`] | files and directories that only their owner may use |
//! | [`window`] | bounds what is on its way over a stream |
//!
//! Deliberately absent: what the messages mean. That is in `wire`, `control` and `agent`.

#![forbid(unsafe_code)]

pub mod certificates;
pub mod endpoint;
pub mod frames;
pub mod peer;
pub mod private;
pub mod tls;
pub mod window;
