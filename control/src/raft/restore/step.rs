//! Steps of a restore, as entries of the log, and the chunks that have arrived with them.

use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use muster_wire::codec;
use serde::{Deserialize, Serialize};

use crate::raft::snapshot::{self, Contents};

/// The format of these entries. Formats from this number on are Raft's own: a command never has one.
pub(in crate::raft) const FORMAT: u32 = 1 << 31;

/// One entry of a restore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum RestoreStep {
    /// Extends the log by one entry.
    Empty,
    /// Announces a snapshot of `bytes` bytes; an earlier attempt is void.
    Begin { attempt: u64, bytes: u64 },
    /// The bytes from `offset` on.
    Chunk {
        attempt: u64,
        offset: u64,
        #[serde(with = "raw")]
        bytes: Arc<[u8]>,
    },
    /// Replaces the state by the one in the bytes.
    Commit { attempt: u64 },
}

/// The received chunks.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedChunks {
    attempt: u64,
    bytes: u64,
    got: u64,
    chunks: Vec<Arc<[u8]>>,
}

/// The work of a step for the machine.
#[derive(Debug)]
pub(in crate::raft) enum Outcome {
    Noted,
    /// The machine replaces its state by these contents.
    Restore {
        attempt: u64,
        contents: Box<Contents>,
    },
}

/// The last attempt that was carried out here. Clones share the value.
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct LastRestored(Arc<AtomicU64>);

impl LastRestored {
    pub(in crate::raft) fn set(&self, attempt: u64) {
        self.0.store(attempt, Ordering::Release);
    }

    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }
}

/// Carries out the entry `body`. An error stops the server, because it would differ from the others.
pub(in crate::raft) fn step(
    restoring: &mut Option<ReceivedChunks>,
    body: &[u8],
) -> io::Result<Outcome> {
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

    /// Encodes the chunks as the steps that lead to them, for a snapshot.
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

pub(super) fn encode(step: &RestoreStep) -> io::Result<Vec<u8>> {
    codec::encode(step).map_err(io::Error::other)
}

/// A reader of chunks, one after the other.
struct Chunks<'a> {
    chunks: &'a [Arc<[u8]>],
    /// Bytes of the first chunk that were read.
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

/// The encoding of bytes as one run; serde would write them one by one.
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
