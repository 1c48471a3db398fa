//! The data of an allocation on their way to the one that replaces it on another node.
//!
//! Agents do not know each other. The agent of the replacement opens a stream to its server, sends an [`AgentRequest`],
//! and reads [`AgentReply`]s. The server finds the node with the data and opens a stream to it with a [`DiskRequest`].
//! From then on it passes the data from the node on, and [`DiskAck`] in the other direction. At most
//! [`DISK_WINDOW_BYTES`] may be sent and not taken, all the way from node to node.
//!
//! A tree comes as a walk: a directory is entered, its content follows, and it is left. No name is a path, so nothing
//! that is sent can name a place outside. Only [`DiskSum`] says that the walk is over: a stream that ends before it was
//! cut.
//!
//! [`DISK_WINDOW_BYTES`]: crate::limits::DISK_WINDOW_BYTES

use muster_domain::id::AllocId;
use serde::{Deserialize, Serialize};

/// A question of an agent to its server, on a stream of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentRequest {
    /// The data of an allocation that another one replaces.
    FetchDisk {
        /// The replacement, an allocation of the node that asks.
        alloc_id: AllocId,
        /// The allocation whose data are wanted.
        previous: AllocId,
    },
}

/// An answer to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentReply {
    /// The data are yet to come; the answering side is alive.
    Idle,
    /// Some of the data.
    DiskPiece(DiskPiece),
    /// All of the data were sent.
    DiskEnd(DiskSum),
    /// The data cannot be had at this moment.
    Later { reason: String },
    /// The data will never be had.
    Gone { reason: String },
}

/// A request for the data of an allocation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskRequest {
    pub alloc_id: AllocId,
    /// The tasks whose `local` directories are wanted besides the group's `data`.
    pub tasks: Vec<String>,
}

/// Some of a tree: what follows on what came before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPiece {
    /// In the order of the walk; their [`DiskEntry::cost`] is at most [`crate::limits::DISK_PIECE_BYTES_MAX`], unless
    /// it is one.
    pub entries: Vec<DiskEntry>,
}

impl DiskPiece {
    /// The size that counts in the window.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.entries.iter().map(DiskEntry::cost).sum()
    }
}

/// A directory that goes over with what is in it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DiskDir {
    /// The directory that the group's tasks share: `alloc/data`.
    Shared,
    /// The `local` directory of this task.
    Local(String),
}

/// A step of the walk. Names are one part of a path, in whatever bytes the file system has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskEntry {
    /// The place of the following entries in the allocation. The place before has ended.
    Place(DiskDir),
    /// A directory: what follows is in it, until it is left.
    Enter {
        name: Vec<u8>,
        /// Its owner, permissions and age.
        meta: FileMeta,
    },
    /// The directory that was entered last is complete.
    Leave,
    /// A file. Its bytes follow; what of them does not follow is a hole.
    File {
        name: Vec<u8>,
        /// Its owner, permissions and age.
        meta: FileMeta,
        /// Its bytes, holes included.
        bytes: u64,
    },
    /// Bytes of the file that came last.
    Data {
        /// Their position in it.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    Link {
        name: Vec<u8>,
        /// Its owner, permissions and age.
        meta: FileMeta,
        /// The target of the link, which is never followed.
        target: Vec<u8>,
    },
    /// One more name of a file that came before.
    Again {
        name: Vec<u8>,
        /// The former name, by the parts of its path in the same place.
        former: Vec<Vec<u8>>,
    },
}

impl DiskEntry {
    /// The size that counts in the window: its bytes and a flat rate for the rest.
    #[must_use]
    pub fn cost(&self) -> u64 {
        const REST_BYTES: u64 = 64;
        let bytes = match self {
            Self::Place(_) | Self::Leave => 0,
            Self::Enter { name, .. } | Self::File { name, .. } => name.len(),
            Self::Data { bytes, .. } => bytes.len(),
            Self::Link { name, target, .. } => name.len() + target.len(),
            Self::Again { name, former } => name.len() + former.iter().map(Vec::len).sum::<usize>(),
        };
        bytes as u64 + REST_BYTES
    }
}

/// Owner, permissions and age of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileMeta {
    /// The number of its owner.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// Its permissions, never with a set-id bit.
    pub mode: u32,
    /// Time of its last change: seconds since 1970.
    pub changed_s: i64,
    /// Nanoseconds beyond `changed_s`.
    pub changed_ns: u32,
}

/// The totals of a walk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSum {
    /// Directories, files and links that were sent, each name for itself.
    pub inodes: u64,
    /// Bytes of files that were sent, without holes.
    pub bytes: u64,
    /// Devices, FIFOs and sockets that stay, and what is mounted or belongs to another file system.
    pub left: u64,
}

/// An acknowledgement by the node that unpacks: pieces are on its disk. It is sent at the latest when they add up to
/// [`crate::limits::DISK_TAKEN_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAck {
    /// The sum of their [`DiskPiece::cost`].
    pub bytes: u64,
}
