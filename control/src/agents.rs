//! Agents: the sessions of nodes connected to this server.
//!
//! One connection per node. A connection's certificate must say `agent` and name this cluster before a
//! frame is read. A node that connects again replaces its older connection: the older one is most often
//! a path that has died without saying so.

mod desired;
mod reports;
mod request;
mod session;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_domain::id::NodeId;
use muster_link::peer;
use muster_link::tls::Role;
use muster_wire::rpc::{NodeReply, NodeRequest};
use quinn::{Connection, VarInt};
use tokio::sync::{Notify, mpsc};

use crate::handle::Control;

pub use request::NodeRequestError;

/// Why the server closed a connection, as the code of QUIC's close frame.
#[derive(Clone, Copy, Debug)]
enum Close {
    /// The peer may not connect here.
    Refused,
    /// A newer connection of the same node took its place.
    Replaced,
    /// The session is over.
    Ended,
}

impl Close {
    fn code(self) -> VarInt {
        VarInt::from_u32(match self {
            Self::Refused => 2,
            Self::Replaced => 3,
            Self::Ended => 4,
        })
    }
}

/// A node's session, as others see it.
#[derive(Clone, Debug)]
struct Connected {
    connection: Connection,
    wake: Arc<Wake>,
    /// Tells this session from a later one of the same node.
    number: u64,
}

/// What a session may be woken for.
#[derive(Debug, Default)]
struct Wake {
    /// The node's desired allocations may have changed.
    desired: Notify,
    /// The node should destroy what is over.
    garbage: Notify,
}

/// The nodes connected to this server. Clones share the list.
#[derive(Clone, Debug, Default)]
pub struct Nodes {
    table: Arc<Mutex<Table>>,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<NodeId, Connected>,
    last_number: u64,
}

impl Nodes {
    /// The nodes that are connected, in no order.
    #[must_use]
    pub fn connected(&self) -> Vec<NodeId> {
        self.lock().sessions.keys().copied().collect()
    }

    /// Asks `node_id`. The channel ends with the node's answer; dropping it cancels the question. If the
    /// answer breaks off, its last part is a [`NodeReply::Failed`].
    ///
    /// # Errors
    ///
    /// [`NodeRequestError`] if the node cannot be asked.
    pub async fn request(
        &self,
        node_id: NodeId,
        request: NodeRequest,
    ) -> Result<mpsc::Receiver<NodeReply>, NodeRequestError> {
        let connection = self
            .lock()
            .sessions
            .get(&node_id)
            .map(|session| session.connection.clone())
            .ok_or(NodeRequestError::NotConnected { node_id })?;
        request::ask(node_id, &connection, request).await
    }

    /// Tells the session of `node_id` to look for changes.
    pub(crate) fn wake(&self, node_id: NodeId) {
        if let Some(session) = self.lock().sessions.get(&node_id) {
            session.wake.desired.notify_one();
        }
    }

    /// Tells every session to look for changes.
    pub(crate) fn wake_all(&self) {
        for session in self.lock().sessions.values() {
            session.wake.desired.notify_one();
        }
    }

    /// Tells every node to destroy what is over.
    pub(crate) fn collect_garbage(&self) {
        for session in self.lock().sessions.values() {
            session.wake.garbage.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the table whole.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the session of `node_id` on `connection` and closes an older one.
    fn enter(&self, node_id: NodeId, connection: &Connection) -> Entered {
        let wake = Arc::new(Wake::default());
        let mut table = self.lock();
        table.last_number += 1;
        let number = table.last_number;
        let connected = Connected {
            connection: connection.clone(),
            wake: Arc::clone(&wake),
            number,
        };
        let old = table.sessions.insert(node_id, connected);
        drop(table);
        if let Some(old) = old {
            old.connection.close(
                Close::Replaced.code(),
                b"a newer connection of the same node took its place",
            );
        }
        Entered {
            nodes: self.clone(),
            node_id,
            number,
            wake,
        }
    }
}

/// A session in the list; leaves it when dropped.
#[derive(Debug)]
struct Entered {
    nodes: Nodes,
    node_id: NodeId,
    number: u64,
    wake: Arc<Wake>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Entry::Occupied(session) = self.nodes.lock().sessions.entry(self.node_id)
            && session.get().number == self.number
        {
            session.remove();
        }
    }
}

/// Checks who is there before a frame is read, and serves it.
pub(crate) async fn admit(connection: Connection, control: &Control) {
    let peer = connection.remote_address();
    let refusal = match peer::role(&connection, &control.server_info().cluster) {
        Ok(Role::Agent) => None,
        Ok(Role::Operator | Role::Server) => {
            Some("only an agent's certificate speaks for an agent".to_owned())
        }
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = refusal {
        tracing::warn!(%peer, reason, "refused a connection");
        connection.close(Close::Refused.code(), reason.as_bytes());
        return;
    }
    match session::run(&connection, control).await {
        Ok(()) => tracing::debug!(%peer, "an agent left"),
        Err(error) => tracing::info!(%peer, error = %chain(&error), "an agent's session ended"),
    }
    connection.close(Close::Ended.code(), b"the session is over");
}

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
