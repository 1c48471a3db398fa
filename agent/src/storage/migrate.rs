//! The data of an allocation that ran on another node, which `ephemeral_disk.migrate` transfers to this node.
//!
//! ```text
//! heir's node: fetch ─► its server ─► (another server) ─► former node: lend
//!              unpack ◄─────────────────── pieces ◄────────────── pack
//! ```
//!
//! Tasks wrote the content of those directories, so it is not trusted. [`pack`] reads it and [`unpack`] writes it by
//! directory descriptors, one name at a time, without following links. The data are unpacked next to their final
//! directories ([`import`]) and moved there once they are complete. So a task finds either all of the data or none.
//!
//! The transfer is best effort. An allocation whose data cannot be transferred begins without them, and its tasks'
//! events give the reason.

pub(crate) mod dir_leases;
mod fetch;
mod import;
mod pack;
mod serve;
#[cfg(test)]
mod tests;
mod unpack;

pub(crate) use fetch::fetch;
pub(crate) use import::{discard, settle};
pub(crate) use serve::send_alloc_dir;
