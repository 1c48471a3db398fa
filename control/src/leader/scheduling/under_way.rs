//! The file with the scheduler's evaluations under way. After a restart it identifies an evaluation that ended the
//! process.
//!
//! The file has a fixed size and is overwritten before and after each run of the worker. It is not synced: the
//! page cache outlives the process, and a failed machine is no evidence against an evaluation.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use muster_domain::id::EvalId;
use muster_link::private;

use crate::limits;

/// The file's name in the data directory.
const FILE: &str = "raft/evaluations";
/// Bytes of an evaluation's id and its count of process ends.
const RECORD_BYTES: usize = 17;
const FILE_BYTES: usize = 1 + limits::EVALS_PER_WORKER_RUN_MAX * RECORD_BYTES;

/// The file. The drop empties it, because the end of a leadership is not the end of the process.
#[derive(Debug)]
pub(super) struct InFlightFile {
    /// The file; `None` if it cannot be used: in that case no evaluation is recorded.
    file: Option<File>,
}

impl InFlightFile {
    /// Opens the file in `data_dir`. Also returns the evaluations under way at the end of an earlier process, with
    /// the counts of such ends.
    pub(super) fn open(data_dir: &Path) -> (Self, BTreeMap<EvalId, u8>) {
        match open(&data_dir.join(FILE)) {
            Ok((file, suspects)) => (Self { file: Some(file) }, suspects),
            Err(error) => {
                tracing::warn!(%error, file = FILE, "cannot be used: an evaluation that ends the server is tried again");
                (Self { file: None }, BTreeMap::new())
            }
        }
    }

    /// Records `evals`, each with its count of process ends. No evaluations mean that the worker is idle.
    pub(super) fn note(&mut self, evals: impl Iterator<Item = (EvalId, u8)>) {
        let mut bytes = [0; FILE_BYTES];
        let (head, records) = bytes.split_at_mut(1);
        for (record, (eval_id, ends)) in records.chunks_exact_mut(RECORD_BYTES).zip(evals) {
            record[..16].copy_from_slice(&eval_id.0);
            record[16] = ends;
            head[0] += 1;
        }
        if let Some(file) = &self.file
            && let Err(error) = file.write_all_at(&bytes, 0)
        {
            tracing::warn!(%error, file = FILE, "cannot be written");
        }
    }
}

impl Drop for InFlightFile {
    fn drop(&mut self) {
        self.note(std::iter::empty());
    }
}

fn open(path: &Path) -> io::Result<(File, BTreeMap<EvalId, u8>)> {
    let mut options = private::options();
    let options = options.read(true).write(true).create(true).truncate(false);
    let mut file = options.open(path)?;
    let mut bytes = Vec::new();
    (&mut file)
        .take(FILE_BYTES as u64)
        .read_to_end(&mut bytes)?;
    let Some((count, records)) = bytes.split_first() else {
        return Ok((file, BTreeMap::new()));
    };
    let records = records.chunks_exact(RECORD_BYTES).take(usize::from(*count));
    let suspects = records.map(|record| {
        let mut id = [0; 16];
        id.copy_from_slice(&record[..16]);
        (EvalId(id), record[16].saturating_add(1))
    });
    Ok((file, suspects.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a killed process: the value is not dropped.
    fn killed(under_way: InFlightFile) {
        std::mem::forget(under_way);
    }

    #[test]
    fn evaluations_under_way_are_known_after_a_kill() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("raft")).unwrap();
        let (mut under_way, suspects) = InFlightFile::open(dir.path());
        assert!(suspects.is_empty());
        let ids = [EvalId([1; 16]), EvalId([2; 16])];
        under_way.note([(ids[0], 0), (ids[1], 1)].into_iter());
        killed(under_way);

        let (mut under_way, suspects) = InFlightFile::open(dir.path());
        assert_eq!(suspects, BTreeMap::from([(ids[0], 1), (ids[1], 2)]));
        under_way.note(std::iter::empty());
        killed(under_way);

        let (mut under_way, suspects) = InFlightFile::open(dir.path());
        assert!(suspects.is_empty());
        under_way.note([(ids[0], 0)].into_iter());
        drop(under_way);
        assert!(InFlightFile::open(dir.path()).1.is_empty());
    }
}
