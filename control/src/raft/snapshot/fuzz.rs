//! The fuzz target of snapshots: files that an operator gives a server, and the records in them.

use std::path::Path;

use muster_control_core::snapshot::{Record, RestoreError, StateRestore};
use muster_wire::codec;

use super::inspect;

/// Reads `data` as a file, and then as records: each after its length in two bytes.
///
/// # Panics
///
/// If a file is accepted whose end is missing.
pub(crate) fn snapshot(data: &[u8]) {
    let size = data.len() as u64;
    if let Ok(info) = inspect(data, size, Path::new("fuzz")) {
        assert!(info.bytes <= size, "a snapshot is in its file");
    }

    let mut restoring = StateRestore::default();
    let mut rest = data;
    while let Some((length, behind)) = rest.split_first_chunk() {
        let length = usize::from(u16::from_le_bytes(*length));
        let Some((body, behind)) = behind.split_at_checked(length) else {
            break;
        };
        let Ok(record) = codec::decode::<Record>(body) else {
            return;
        };
        let taken: Result<(), RestoreError<()>> = restoring.take(record);
        if taken.is_err() {
            return;
        }
        rest = behind;
    }
    // Most inputs end here, because the hash in the header does not match the rows.
    drop(restoring.finish::<()>());
}

#[cfg(test)]
mod tests {
    use muster_domain::fixture::corpus::replay;

    #[test]
    fn snapshots_of_the_corpus_are_read_or_refused() {
        replay("snapshot", super::snapshot);
    }
}
