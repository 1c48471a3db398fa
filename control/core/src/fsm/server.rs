//! Commands about the servers themselves.

use serde::{Deserialize, Serialize};

use super::response::Response;

/// A note about a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerCommand {
    /// The leader found faults of a server, or found that they are over. No row keeps the note. It is in the log so
    /// that every server reports it in its event stream at the same index.
    NoteHealth {
        server_id: u64,
        name: String,
        /// The faults, as text; empty: the server is healthy again.
        faults: Vec<String>,
    },
}

impl ServerCommand {
    /// The kind of change, as Nomad's event type.
    pub(super) fn cause(&self) -> &'static str {
        match self {
            Self::NoteHealth { .. } => "ServerHealthChanged",
        }
    }

    pub(super) fn version(&self) -> u32 {
        match self {
            Self::NoteHealth { .. } => 2,
        }
    }
}

/// Changes nothing: the note is for readers of the log.
pub(super) fn apply(command: &ServerCommand) -> Response {
    match command {
        ServerCommand::NoteHealth { .. } => Response::Done,
    }
}
