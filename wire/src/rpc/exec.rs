//! A command in a task, with input and output as streams.
//!
//! Frames of both directions use one stream: [`ExecInput`] to the node, after the initial [`ExecSession`], and
//! [`NodeReply`](super::NodeReply) back. Each side may have at most [`EXEC_WINDOW_BYTES`] in flight and unacknowledged.
//! So a stalled session does not delay other streams of the connection. The end of the frames to the node ends the
//! session.
//!
//! [`EXEC_WINDOW_BYTES`]: crate::limits::EXEC_WINDOW_BYTES

use muster_domain::id::AllocId;
use serde::{Deserialize, Serialize};

use super::LogStream;

/// A command, and the task in which it runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSession {
    pub alloc_id: AllocId,
    pub task: String,
    /// Program and arguments; at most [`crate::limits::EXEC_COMMAND_BYTES_MAX`] together.
    pub command: Vec<String>,
    /// Whether the command gets a terminal.
    pub tty: bool,
}

/// Input of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExecInput {
    /// Bytes for the command's standard input; at most [`crate::limits::EXEC_CHUNK_BYTES_MAX`].
    Stdin(Vec<u8>),
    /// The end of the command's standard input.
    StdinClosed,
    /// The terminal changed its size, in characters.
    Resize { height: u16, width: u16 },
    /// Output was passed on.
    Taken {
        /// The total [`ExecPiece::cost`] of that output.
        bytes: u64,
    },
}

/// Bytes that count for a message's other fields.
const REST_OF_MESSAGE_BYTES: u64 = 128;

impl ExecInput {
    /// The size that counts in the window.
    #[must_use]
    pub fn cost(&self) -> u64 {
        match self {
            Self::Stdin(bytes) => bytes.len() as u64 + REST_OF_MESSAGE_BYTES,
            Self::StdinClosed | Self::Resize { .. } => REST_OF_MESSAGE_BYTES,
            Self::Taken { .. } => 0,
        }
    }
}

/// Bytes that a command wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecPiece {
    /// The output stream; with a terminal there is one, [`LogStream::Stdout`].
    pub stream: LogStream,
    /// The bytes; at most [`crate::limits::EXEC_CHUNK_BYTES_MAX`].
    pub data: Vec<u8>,
}

impl ExecPiece {
    /// The size that counts in the window.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.data.len() as u64 + REST_OF_MESSAGE_BYTES
    }
}

/// The end of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecExit {
    /// The exit code of the command; 128 plus the signal's number if a signal ended it.
    pub code: i32,
    /// The signal that ended the command; 0 is none.
    pub signal: i32,
    /// A remark of the driver about the end; absent if there is none.
    pub note: Option<String>,
}
