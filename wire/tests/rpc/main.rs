//! The bytes of the agent protocol.

#[cfg(test)]
mod golden;
