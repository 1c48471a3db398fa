//! The types openraft is parameterised with.

use std::fmt;
use std::sync::Arc;

use muster_control_core::fsm::Response;
use openraft::alias::{LogIdOf, VoteOf};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::peers::message::ServerNode;

openraft::declare_raft_types!(
    /// The type parameters of Muster's Raft.
    pub(crate) TypeConfig:
        D = EncodedCommand,
        R = Answer,
        NodeId = u64,
        Node = ServerNode,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>
);

/// A position in the log with the term that wrote it.
pub(crate) type LogId = LogIdOf<TypeConfig>;
/// A vote.
pub(crate) type Vote = VoteOf<TypeConfig>;
/// An entry of the log.
pub(crate) type Entry = openraft::alias::EntryOf<TypeConfig>;
/// A membership and its position in the log.
pub(crate) type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// A snapshot's position and membership.
pub(crate) type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;

/// A command in the log's form: its format, and bytes that only that format can decode.
///
/// The bytes stay opaque until they are applied. So a server can store and send on an entry that it cannot read,
/// and refuses it only when it applies it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct EncodedCommand {
    /// The lowest format whose readers can decode `body`.
    pub(crate) format: u32,
    pub(crate) body: Arc<[u8]>,
}

impl fmt::Debug for EncodedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for EncodedCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "command of format {} and {} bytes",
            self.format,
            self.body.len()
        )
    }
}

impl Serialize for EncodedCommand {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // This encodes the bytes as one run; serde would write them one by one.
        struct Bytes<'a>(&'a [u8]);
        impl Serialize for Bytes<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_bytes(self.0)
            }
        }
        (self.format, Bytes(&self.body)).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for EncodedCommand {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes(Arc<[u8]>);
        struct BytesVisitor;
        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(Arc::from(bytes)))
            }

            fn visit_byte_buf<E: de::Error>(self, bytes: Vec<u8>) -> Result<Bytes, E> {
                Ok(Bytes(Arc::from(bytes)))
            }
        }
        impl<'de> Deserialize<'de> for Bytes {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_byte_buf(BytesVisitor)
            }
        }
        let (format, Bytes(body)) = Deserialize::deserialize(deserializer)?;
        Ok(Self { format, body })
    }
}

/// The answer of an applied entry; `None` for entries of Raft's own.
///
/// The answer never leaves the process of the proposal. openraft requires a serialised form because an application
/// might send it on. Muster would use its own messages for that.
#[derive(Clone, Debug)]
pub(crate) struct Answer(pub(crate) Option<Response>);

impl Serialize for Answer {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom(
            "an answer stays in the process that proposed",
        ))
    }
}

impl<'de> Deserialize<'de> for Answer {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(de::Error::custom(
            "an answer stays in the process that proposed",
        ))
    }
}
