//! Putting a saved snapshot in the place of the state, on all servers at once.
//!
//! The snapshot goes through the log: a beginning, its bytes in chunks, and a commit. Every server gathers
//! the chunks, and exchanges its state where it applies the commit, so that all of them do it at the same
//! entry. Writes before that entry are gone with the old state; writes after it apply to the restored one.
//! Membership stays as it is. Until the commit nothing has changed: an attempt whose leader goes away is
//! void, and the next beginning forgets its chunks.
//!
//! Ids are derived from log indexes, so indexes never go back: into a cluster whose log is shorter than the
//! snapshot's, the leader writes empty entries first until it is as long.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::TryStreamExt;
use muster_domain::id::LogIndex;
use muster_wire::codec;
use serde::{Deserialize, Serialize};

use super::snapshot::{self, Contents, SavedSnapshot, SnapshotReader, SnapshotWriter};
use super::types::EncodedCommand;
use super::{Raft, WriteError};

/// The format of these entries. Formats from here on are Raft's own: a command never has one.
pub(super) const FORMAT: u32 = 1 << 31;
/// Bytes of a snapshot that can be restored: each server holds them while they arrive.
const BYTES_MAX: u64 = 1 << 30;
/// Empty entries proposed at once.
const EMPTY_ENTRIES: u64 = 4096;

/// One entry of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum RestoreStep {
    /// Makes the log longer.
    Empty,
    /// A snapshot of so many bytes follows; an earlier attempt is void.
    Begin { attempt: u64, bytes: u64 },
    /// The bytes from `offset` on.
    Chunk {
        attempt: u64,
        offset: u64,
        #[serde(with = "raw")]
        bytes: Arc<[u8]>,
    },
    /// The state is what the bytes say.
    Commit { attempt: u64 },
}

/// The chunks that have arrived.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedChunks {
    attempt: u64,
    bytes: u64,
    got: u64,
    chunks: Vec<Arc<[u8]>>,
}

/// The work that a step leaves to the machine.
#[derive(Debug)]
pub(super) enum Outcome {
    Noted,
    /// The machine takes the state of these contents.
    Restore {
        attempt: u64,
        contents: Box<Contents>,
    },
}

/// The last attempt that was carried out here. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct LastRestored(Arc<AtomicU64>);

impl LastRestored {
    pub(super) fn set(&self, attempt: u64) {
        self.0.store(attempt, Ordering::Release);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Carries out the entry `body`. An error stops the server: it cannot do what the others do.
pub(super) fn step(restoring: &mut Option<ReceivedChunks>, body: &[u8]) -> io::Result<Outcome> {
    match decode(body)? {
        RestoreStep::Empty => {}
        RestoreStep::Begin { attempt, bytes } => {
            *restoring = Some(ReceivedChunks {
                attempt,
                bytes,
                got: 0,
                chunks: Vec::new(),
            });
        }
        RestoreStep::Chunk {
            attempt,
            offset,
            bytes,
        } => {
            if let Some(under_way) = restoring
                && under_way.attempt == attempt
                && under_way.got == offset
            {
                under_way.got += bytes.len() as u64;
                under_way.chunks.push(bytes);
            }
        }
        RestoreStep::Commit { attempt } => {
            let complete = restoring.take_if(|under_way| {
                under_way.attempt == attempt && under_way.got == under_way.bytes
            });
            if let Some(complete) = complete {
                let contents = complete.read()?;
                return Ok(Outcome::Restore {
                    attempt,
                    contents: Box::new(contents),
                });
            }
        }
    }
    Ok(Outcome::Noted)
}

fn decode(body: &[u8]) -> io::Result<RestoreStep> {
    codec::decode(body).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

impl ReceivedChunks {
    fn read(&self) -> io::Result<Contents> {
        let input = Chunks {
            chunks: &self.chunks,
            at: 0,
        };
        let name = Path::new("that is being restored");
        snapshot::read_from(input, self.bytes, name)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
    }

    /// It as the steps that lead to it, for a snapshot.
    pub(crate) fn parts(&self) -> io::Result<Vec<Vec<u8>>> {
        let begin = RestoreStep::Begin {
            attempt: self.attempt,
            bytes: self.bytes,
        };
        let mut parts = vec![encode(&begin)?];
        let mut offset = 0;
        for bytes in &self.chunks {
            parts.push(encode(&RestoreStep::Chunk {
                attempt: self.attempt,
                offset,
                bytes: Arc::clone(bytes),
            })?);
            offset += bytes.len() as u64;
        }
        Ok(parts)
    }

    /// The reverse of [`Self::parts`].
    pub(crate) fn of_parts(parts: Vec<Vec<u8>>) -> io::Result<Option<Self>> {
        let mut restoring = None;
        for part in parts {
            step(&mut restoring, &part)?;
        }
        Ok(restoring)
    }
}

fn encode(step: &RestoreStep) -> io::Result<Vec<u8>> {
    codec::encode(step).map_err(io::Error::other)
}

/// Reads chunks one after the other.
struct Chunks<'a> {
    chunks: &'a [Arc<[u8]>],
    /// Bytes of the first that were read.
    at: usize,
}

impl Read for Chunks<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        while let Some((first, rest)) = self.chunks.split_first() {
            let read = (&first[self.at..]).read(bytes)?;
            if read > 0 || bytes.is_empty() {
                self.at += read;
                return Ok(read);
            }
            (self.chunks, self.at) = (rest, 0);
        }
        Ok(0)
    }
}

/// The reason why a snapshot was not restored. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum RestoreSnapshotError {
    /// It is too large.
    #[error("the snapshot has {bytes} bytes, a restore takes up to {BYTES_MAX}")]
    TooLarge { bytes: u64 },
    /// Its file cannot be read.
    #[error("the snapshot cannot be read")]
    Read(#[from] io::Error),
    /// The log does not take it.
    #[error("the restore was given up: {reason}; nothing has changed, try again")]
    Write { reason: String },
    /// Another restore began meanwhile, or leadership changed.
    #[error("another restore has taken the place of this one")]
    Void,
}

impl Raft {
    /// Takes a snapshot of all that is applied here and opens it.
    pub(crate) async fn save_snapshot(&self) -> Result<SnapshotReader, WriteError> {
        self.snapshot().await?;
        let stopped = |reason: String| WriteError::Stopped { reason };
        let (_, file) = (self.snapshots.current())
            .ok_or_else(|| stopped("the snapshot that was taken is missing".to_owned()))?;
        file.reader().map_err(|error| stopped(error.to_string()))
    }

    /// Takes the bytes of a saved snapshot, for [`Self::restore_snapshot`].
    pub(crate) fn receive_snapshot(&self) -> io::Result<SnapshotWriter> {
        self.snapshots.receive()
    }

    /// Puts `saved` in the place of the state of all servers. Works on the leader. Returns the entry with
    /// which it has happened.
    pub(crate) async fn restore_snapshot(
        &self,
        saved: SavedSnapshot,
    ) -> Result<LogIndex, RestoreSnapshotError> {
        let _turn = self.snapshots.restoring.lock().await;
        let mut reader = saved.reader()?;
        let bytes = reader.bytes();
        if bytes > BYTES_MAX {
            return Err(RestoreSnapshotError::TooLarge { bytes });
        }
        let attempt = rand::random();
        self.lengthen(saved.index()).await?;
        self.take_step(&RestoreStep::Begin { attempt, bytes })
            .await?;
        let mut offset = 0;
        while let Some(chunk) = tokio::task::block_in_place(|| reader.next_chunk())? {
            let length = chunk.len() as u64;
            let bytes = Arc::from(&*chunk);
            let step = RestoreStep::Chunk {
                attempt,
                offset,
                bytes,
            };
            self.take_step(&step).await?;
            offset += length;
        }
        let index = self.take_step(&RestoreStep::Commit { attempt }).await?;
        if self.restored.get() != attempt {
            return Err(RestoreSnapshotError::Void);
        }
        tracing::warn!(
            index,
            snapshot_index = saved.index(),
            "the state was restored from a saved snapshot"
        );
        Ok(LogIndex(index))
    }

    /// Makes the log reach `index`.
    async fn lengthen(&self, index: u64) -> Result<(), RestoreSnapshotError> {
        let empty = logged(&RestoreStep::Empty)?;
        loop {
            let missing = index.saturating_sub(self.last_log_index().0);
            if missing == 0 {
                return Ok(());
            }
            let count = usize::try_from(missing.min(EMPTY_ENTRIES)).unwrap_or_default();
            let entries = std::iter::repeat_n(empty.clone(), count);
            let written = (self.raft.client_write_many(entries).await).map_err(given_up)?;
            let written: Vec<_> = written.try_collect().await.map_err(given_up)?;
            for one in written {
                one.map_err(given_up)?;
            }
        }
    }

    async fn take_step(&self, step: &RestoreStep) -> Result<u64, RestoreSnapshotError> {
        let written = self.raft.client_write(logged(step)?).await;
        Ok(written.map_err(given_up)?.log_id.index)
    }
}

fn logged(step: &RestoreStep) -> io::Result<EncodedCommand> {
    Ok(EncodedCommand {
        format: FORMAT,
        body: encode(step)?.into(),
    })
}

fn given_up(error: impl std::fmt::Display) -> RestoreSnapshotError {
    RestoreSnapshotError::Write {
        reason: error.to_string(),
    }
}

/// A run of bytes, which serde would otherwise write one by one.
mod raw {
    use std::sync::Arc;

    use serde::de::{Error, Visitor};
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Arc<[u8]>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(bytes)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[u8]>, D::Error> {
        struct Bytes;
        impl Visitor<'_> for Bytes {
            type Value = Arc<[u8]>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Arc<[u8]>, E> {
                Ok(Arc::from(bytes))
            }

            fn visit_byte_buf<E: Error>(self, bytes: Vec<u8>) -> Result<Arc<[u8]>, E> {
                Ok(Arc::from(bytes))
            }
        }
        deserializer.deserialize_byte_buf(Bytes)
    }
}

#[cfg(test)]
mod tests;
