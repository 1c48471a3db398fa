//! How one value lies in a log record: a `u32` length, little endian, and its bytes.
//!
//! The length lets a value that a crash cut short be told from one that is wrong: the former must
//! read as an unexpected end of file, or the log would refuse to open over a torn tail.

use std::io::{self, Read, Write};

use muster_wire::codec;
use openraft::EntryPayload;
use raft_log::codeq;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits;
use crate::raft::types::Entry;

/// Bytes of an entry besides its command, roughly: it only weighs the log's cache.
const ENTRY_OVERHEAD_BYTES: u64 = 64;

/// A value in a log record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Record<T>(pub(crate) T);

impl<T: Serialize> codeq::Encode for Record<T> {
    fn encode<W: Write>(&self, mut writer: W) -> io::Result<usize> {
        let body = codec::encode(&self.0).map_err(io::Error::other)?;
        let length = u32::try_from(body.len())
            .ok()
            .filter(|_| body.len() <= limits::ENTRY_BYTES_MAX)
            .ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidInput, "a log record is too large")
            })?;
        writer.write_all(&length.to_le_bytes())?;
        writer.write_all(&body)?;
        Ok(size_of::<u32>() + body.len())
    }
}

impl<T: DeserializeOwned> codeq::Decode for Record<T> {
    fn decode<R: Read>(mut reader: R) -> io::Result<Self> {
        let mut length = [0; 4];
        reader.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > limits::ENTRY_BYTES_MAX {
            return Err(invalid(format!("a log record claims {length} bytes")));
        }
        // Not allocated ahead: a damaged length must not cost memory.
        let mut body = Vec::new();
        reader.take(length as u64).read_to_end(&mut body)?;
        if body.len() < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        codec::decode(&body)
            .map(Self)
            .map_err(|error| invalid(error.to_string()))
    }
}

fn invalid(reason: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

/// What `entry` weighs in the log's cache.
pub(crate) fn payload_bytes(entry: &Entry) -> u64 {
    let body = match &entry.payload {
        EntryPayload::Normal(command) => command.body.len() as u64,
        EntryPayload::Blank | EntryPayload::Membership(_) => 0,
    };
    body + ENTRY_OVERHEAD_BYTES
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use raft_log::codeq::{Decode, Encode};

    use super::*;
    use crate::raft::types::Logged;

    fn command() -> Record<Logged> {
        Record(Logged {
            format: 1,
            body: Arc::from(&b"four score and seven"[..]),
        })
    }

    #[test]
    fn a_command_reads_back() {
        let mut bytes = Vec::new();
        let written = command().encode(&mut bytes).unwrap();

        let read = Record::<Logged>::decode(bytes.as_slice()).unwrap();

        assert_eq!(written, bytes.len());
        assert_eq!((read.0.format, &read.0.body), (1, &command().0.body));
    }

    /// A crash can cut a record anywhere: each cut reads as an early end, never as damage.
    #[test]
    fn every_cut_is_an_early_end() {
        let mut bytes = Vec::new();
        command().encode(&mut bytes).unwrap();

        for cut in 0..bytes.len() {
            let error = Record::<Logged>::decode(&bytes[..cut]).unwrap_err();
            assert_eq!(
                error.kind(),
                io::ErrorKind::UnexpectedEof,
                "cut after {cut}"
            );
        }
    }
}
