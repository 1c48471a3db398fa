//! The `muster` binary as its users meet it.

mod dev;
mod mistakes;
mod support;
