//! The server as a whole, with real sockets and files.

mod agents;
mod cluster;
mod crash;
mod data_dir;
mod disk;
mod fixture;
mod http;
mod placement;
mod restart;
