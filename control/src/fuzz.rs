//! Fuzz targets: bytes that a server gets from a disk or an operator.

/// Reads a segment of Raft's log.
///
/// # Panics
///
/// If a frame does not read back.
pub fn raft_log(data: &[u8]) {
    crate::raft::fuzz_log(data);
}

/// Reads a snapshot.
///
/// # Panics
///
/// If a cut file is accepted.
pub fn snapshot(data: &[u8]) {
    crate::raft::fuzz_snapshot(data);
}
