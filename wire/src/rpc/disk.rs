//! The transfer of an allocation's data to its replacement on another node.
//!
//! Agents do not connect to each other. The agent of the replacement opens a stream to its server, sends an
//! [`AgentRequest`], and reads [`AgentReply`]s. The server finds the node with the data and opens a stream to it with a
//! [`DiskRequest`]. From then on it forwards the data from the node, and [`DiskAck`] in the other direction. At most
//! [`DISK_WINDOW_BYTES`] may be sent and unacknowledged, end to end.
//!
//! A tree is sent as a walk: a directory is entered, its content follows, and it is left. No name is a path, so no
//! entry can name a place outside of the tree. Only [`DiskSum`] marks the end of the walk. A stream that ends before it
//! is truncated.
//!
//! [`DISK_WINDOW_BYTES`]: crate::limits::DISK_WINDOW_BYTES

use muster_domain::id::AllocId;
use serde::{Deserialize, Serialize};

/// A request of an agent to its server, on a stream of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentRequest {
    /// Requests the data of an allocation that another one replaces.
    FetchDisk {
        /// The replacement, an allocation of the requesting node.
        alloc_id: AllocId,
        /// The allocation whose data are requested.
        previous: AllocId,
    },
}

/// An answer to an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AgentReply {
    /// The data are not ready yet; the answering side is alive.
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
    /// The tasks whose `local` directories are requested in addition to the group's `data`.
    pub tasks: Vec<String>,
}

/// A part of a tree, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskPiece {
    /// The entries in the order of the walk. Their total [`DiskEntry::cost`] is at most
    /// [`crate::limits::DISK_PIECE_BYTES_MAX`], unless there is only one.
    pub entries: Vec<DiskEntry>,
}

impl DiskPiece {
    /// The size that counts in the window.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.entries.iter().map(DiskEntry::cost).sum()
    }
}

/// A directory that is transferred with its content.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum DiskDir {
    /// The directory that the group's tasks share: `alloc/data`.
    Shared,
    /// The `local` directory of this task.
    Local(String),
}

/// A step of the walk. A name is one component of a path, in any bytes of the file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DiskEntry {
    /// The place of the following entries in the allocation. The place before has ended.
    Place(DiskDir),
    /// Enters a directory. The following entries are in it, until it is left.
    Enter {
        name: Vec<u8>,
        /// Its owner, permissions and time of change.
        meta: FileMeta,
    },
    /// The directory that was entered last is complete.
    Leave,
    /// A file. Its bytes follow; a range without bytes is a hole.
    File {
        name: Vec<u8>,
        /// Its owner, permissions and time of change.
        meta: FileMeta,
        /// Its size in bytes, holes included.
        bytes: u64,
    },
    /// Bytes of the last entered file.
    Data {
        /// The position of the bytes in the file.
        offset: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    Link {
        name: Vec<u8>,
        /// Its owner, permissions and time of change.
        meta: FileMeta,
        /// The target of the link, which is never followed.
        target: Vec<u8>,
    },
    /// A further name (hard link) of an earlier file.
    Again {
        name: Vec<u8>,
        /// The earlier name of the file, by the components of its path in the same tree.
        former: Vec<Vec<u8>>,
    },
}

impl DiskEntry {
    /// The size that counts in the window: the bytes and a flat amount for the rest.
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
    /// The user id of the owner.
    pub uid: u32,
    /// The group id of the owner.
    pub gid: u32,
    /// The permissions, never with a set-id bit.
    pub mode: u32,
    /// Time of the last change: seconds since 1970.
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
    /// Devices, FIFOs, sockets, mounts and files of other file systems; they are not transferred.
    pub left: u64,
}

/// An acknowledgement by the unpacking node for pieces on its disk. It is sent at the latest when they add up to
/// [`crate::limits::DISK_TAKEN_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskAck {
    /// The sum of their [`DiskPiece::cost`].
    pub bytes: u64,
}
