//! The data of an allocation that was on another node: what `ephemeral_disk.migrate` comes to here.
//!
//! ```text
//! heir's node: fetch ─► its server ─► (another server) ─► former node: lend
//!              unpack ◄─────────────────── pieces ◄────────────── pack
//! ```
//!
//! Tasks wrote the content of those directories, so it is not trusted. [`pack`] reads it and [`unpack`] writes it by
//! directory descriptors, one name at a time and no link followed. It is unpacked beside the directories that it is for
//! ([`import`]) and moved there once it is whole. Tasks thus find all of it or nothing.
//!
//! The data are brought if they can be: an allocation that does not get them begins without, and its tasks' events say
//! why.

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
