//! QUIC between the processes of a cluster: the code that both ends of a link share.
//!
//! | module | content |
//! |---|---|
//! | [`tls`] | certificates of a cluster: made once, loaded by each process |
//! | [`certificates`] | certificates of a running process, replaced without a restart |
//! | [`endpoint`] | QUIC endpoints with mutual TLS 1.3 |
//! | [`peer`] | the role that a peer's certificate grants |
//! | [`frames`] | framed messages on a stream |
//! | [`private`] | files and directories that only their owner may use |
//! | [`window`] | a bound on the data in flight on a stream |
//!
//! Deliberately absent: the meaning of the messages. It is defined in `wire`, `control` and `agent`.

#![forbid(unsafe_code)]

pub mod certificates;
pub mod endpoint;
pub mod frames;
pub mod peer;
pub mod private;
pub mod tls;
pub mod window;
