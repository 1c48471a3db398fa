//! The driver plugin protocol: gRPC over a unix socket, with Nomad's packages and field numbers.
//!
//! [`Client`] is the host's side, [`serve`] the driver's. Extensions of Nomad's protocol are in fields numbered 1000
//! and above, in the service `muster.driver.v1.MusterDriver`, and in the metadata key of `status`. A peer without the
//! extensions still works.
//!
//! [`PluginCommand`] starts a plugin's process and performs the handshake; [`FollowLog`] forwards the plugin's log.
//! [`announce()`] is the plugin's side of the handshake. The agent keeps a plugin alive.

pub(crate) mod convert;
pub(crate) mod proto;

mod announce;
mod client;
mod ends;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod handshake;
mod launch;
mod output;
mod presence;
mod server;
mod status;

pub use self::announce::{AnnounceError, AnnouncedSocket, announce, started_by_host};
pub use self::client::Client;
pub use self::handshake::HandshakeError;
pub use self::launch::{LaunchError, PluginCommand, UnusedFile, discover};
pub use self::output::FollowLog;
pub use self::server::{ServeError, serve};

#[cfg(test)]
mod tests;
