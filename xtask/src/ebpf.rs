//! Placeholder: builds the eBPF object.

use std::path::PathBuf;

/// Not written yet.
pub(crate) fn build() -> anyhow::Result<PathBuf> {
    anyhow::bail!("build-ebpf is not written yet")
}
