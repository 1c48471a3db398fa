//! The agent protocol as it crosses the wire.

#[cfg(test)]
mod golden;
