//! The driver plugin protocol: gRPC over a unix socket, with Nomad's packages and field numbers.
//!
//! [`Client`] is the host's side, [`serve`] the driver's. What goes beyond Nomad's protocol is in
//! fields numbered 1000 and above, in the service `muster.driver.v1.MusterDriver`, and in the
//! metadata key of `status`; a peer that does not know them works without.
//!
//! Not here yet: launching executables with the handshake line, and the interpreter of schemas.

pub(crate) mod convert;
pub(crate) mod proto;

mod client;
mod server;
mod status;

pub use self::client::Client;
pub use self::server::{ServeError, serve};

#[cfg(test)]
mod tests;
