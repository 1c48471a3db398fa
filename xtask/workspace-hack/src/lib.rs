//! No code: only the list of features in `Cargo.toml`. Nothing depends on this crate, so nothing builds it.
