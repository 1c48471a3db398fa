//! The driver plugin protocol: gRPC over a unix socket, with Nomad's packages and field numbers.
//!
//! [`Client`] is the host's side, [`serve`] the driver's. What goes beyond Nomad's protocol is in
//! fields numbered 1000 and above, in the service `muster.driver.v1.MusterDriver`, and in the
//! metadata key of `status`; a peer that does not know them works without.
//!
//! [`PluginCommand`] starts a plugin's process and shakes hands with it, [`FollowLog`] passes its log on;
//! [`announce()`] is the other side of the handshake. Who keeps a plugin alive is the agent.

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
