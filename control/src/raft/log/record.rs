//! How one value lies in a log record: a `u32` length, its complement, both little endian, and its
//! bytes.
//!
//! The length lets a value that a crash cut short be told from one that is wrong: the former must
//! read as an unexpected end of file, or the log would refuse to open over a torn tail. The complement
//! guards the length: damaged, it would claim bytes that are not there, and everything from here to the
//! end of the log, acknowledged entries and all, would be cut off as a torn tail.

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
        writer.write_all(&(!length).to_le_bytes())?;
        writer.write_all(&body)?;
        Ok(2 * size_of::<u32>() + body.len())
    }
}

impl<T: DeserializeOwned> codeq::Decode for Record<T> {
    fn decode<R: Read>(mut reader: R) -> io::Result<Self> {
        let (mut length, mut complement) = ([0; 4], [0; 4]);
        reader.read_exact(&mut length)?;
        reader.read_exact(&mut complement)?;
        if length.map(|byte| !byte) != complement {
            return Err(invalid("a log record's length is damaged".to_owned()));
        }
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
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use expect_test::expect;
    use openraft::entry::RaftEntry;
    use openraft::{BasicNode, Membership};
    use raft_log::codeq::{Decode, Encode};

    use super::*;
    use crate::raft::types::{LogId, Logged, TypeConfig, Vote};

    fn hex(value: &impl Encode) -> String {
        use std::fmt::Write;

        let mut bytes = Vec::new();
        value.encode(&mut bytes).unwrap();
        bytes.iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        })
    }

    fn at(index: u64) -> LogId {
        openraft::testing::log_id::<TypeConfig>(2, 1, index)
    }

    /// These bytes are on disks: a change needs a new version of the data directory.
    #[test]
    fn the_bytes_on_disk_stay_as_they_are() {
        let members = [(7, BasicNode::new("127.0.0.1:4647"))];
        let members = Membership::new(vec![[7].into()], BTreeMap::from(members)).unwrap();

        expect!["04000000fbffffff02fb2c01"].assert_eq(&hex(&Record(at(300))));
        expect!["04000000fbffffff02010700"].assert_eq(&hex(&Record(Vote::new(2, 7))));
        expect!["03000000fcffffff020100"].assert_eq(&hex(&Record(Entry::new_blank(at(1)))));
        expect!["1b000000e4ffffff02fb2c01010114666f75722073636f726520616e6420736576656e"]
            .assert_eq(&hex(&Record(Entry::new_normal(at(300), command().0))));
        expect!["17000000e8ffffff02000201010701070e3132372e302e302e313a34363437"]
            .assert_eq(&hex(&Record(Entry::new_membership(at(0), members))));
    }

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

    /// Damage is never taken for a torn tail, whichever bit it hits.
    #[test]
    fn no_flipped_bit_is_an_early_end() {
        let mut bytes = Vec::new();
        command().encode(&mut bytes).unwrap();

        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let kind = Record::<Logged>::decode(damaged.as_slice()).map_err(|error| error.kind());
            assert_ne!(kind.err(), Some(io::ErrorKind::UnexpectedEof), "bit {bit}");
        }
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
