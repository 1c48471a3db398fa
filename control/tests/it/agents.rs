//! Agents and the servers they hang on: one server, and clusters of three.

mod disk;
mod failover;
mod herd;
mod light;
mod link;
mod questions;
