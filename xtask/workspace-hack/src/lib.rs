//! This crate contains no code. Its purpose is the list of features in `Cargo.toml`. No crate depends on it, so it is
//! never built.
