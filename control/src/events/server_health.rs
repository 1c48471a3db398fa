//! Faults of a server, as the leader recorded them.
//!
//! Only the entry carries them and no row keeps them, so they add nothing to the state.

use muster_control_core::fsm::{Command, Entry, ServerCommand};
use muster_domain::id::Timestamp;
use muster_wire::api::event::ServerHealthChange;
use muster_wire::api::time;

/// The health of a server at the time of a recorded change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerHealthNote {
    server_id: u64,
    name: String,
    faults: Vec<String>,
    at: Timestamp,
}

impl ServerHealthNote {
    /// The recorded change in `entry`, if there is one.
    pub(crate) fn of(entry: &Entry) -> Option<Self> {
        if let Command::Server(ServerCommand::NoteHealth {
            server_id,
            name,
            faults,
        }) = &entry.command
        {
            Some(Self {
                server_id: *server_id,
                name: name.clone(),
                faults: faults.clone(),
                at: entry.at,
            })
        } else {
            None
        }
    }

    pub(crate) fn server_id(&self) -> u64 {
        self.server_id
    }

    pub(crate) fn is_well(&self) -> bool {
        self.faults.is_empty()
    }

    pub(super) fn shape(&self) -> ServerHealthChange {
        ServerHealthChange {
            id: self.server_id.to_string(),
            name: self.name.clone(),
            healthy: self.is_well(),
            faults: self.faults.clone(),
            at: time::text(self.at),
        }
    }
}
