//! The nodes that are connected to this server.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_domain::id::NodeId;
use muster_wire::rpc::ToAgent;
use quinn::Connection;
use tokio::sync::{Notify, Semaphore, mpsc, watch};

use super::close::Close;
use super::push_limiter::PushLimiter;
use super::reports::Reports;
use super::wake::Wake;
use crate::limits;
use crate::peers::Peers;

/// A node's session, as other parts of the server use it.
#[derive(Clone, Debug)]
struct ConnectedNode {
    connection: Connection,
    wake: Arc<Wake>,
    heartbeats: Arc<HeartbeatState>,
    outbox: mpsc::Sender<ToAgent>,
    /// Distinguishes this session from a later one of the same node.
    number: u64,
}

/// Heartbeats of a session, by their sequence numbers.
#[derive(Debug)]
struct HeartbeatState {
    received: AtomicU64,
    counted: AtomicU64,
    last_contact_at: Mutex<Instant>,
}

impl HeartbeatState {
    fn begin() -> Self {
        Self {
            received: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            last_contact_at: Mutex::new(Instant::now()),
        }
    }

    fn since_last_contact(&self) -> Duration {
        self.last_contact_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }
}

/// The nodes connected to this server. Clones share the list.
#[derive(Clone, Debug)]
pub struct Nodes {
    pub(super) shared: Arc<AgentsState>,
}

#[derive(Debug)]
pub(super) struct AgentsState {
    table: Mutex<Table>,
    reports: Reports,
    push_limiter: PushLimiter,
    pub(super) service: watch::Sender<ServiceInfo>,
    /// Semaphore for forwarded data of allocations, [`limits::DISKS_PASSED_MAX`].
    pub(super) disks: Semaphore,
    pub(super) peers: Peers,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<NodeId, ConnectedNode>,
    last_number: u64,
}

impl Nodes {
    /// Starts without nodes. Requests to nodes of other servers go through `peers`.
    #[must_use]
    pub(crate) fn new(peers: Peers) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            shared: Arc::new(AgentsState {
                table: Mutex::default(),
                reports: Reports::default(),
                push_limiter: PushLimiter::of(cores),
                service: watch::Sender::default(),
                disks: Semaphore::new(limits::DISKS_PASSED_MAX),
                peers,
            }),
        }
    }

    /// The nodes that are connected to this server, in no order.
    #[must_use]
    pub fn connected(&self) -> Vec<NodeId> {
        self.lock().sessions.keys().copied().collect()
    }

    /// The reason why this server sends agents to other servers; `None` while it serves them.
    #[must_use]
    pub fn unserved(&self) -> Option<String> {
        self.shared.service.borrow().unserved.clone()
    }

    /// Wakes the sessions of `node_ids` to check for changes.
    pub(crate) fn wake(&self, node_ids: impl IntoIterator<Item = NodeId>) {
        let before = || self.shared.push_limiter.note_change();
        self.notify(node_ids, |wake| &wake.desired, before);
    }

    /// Wakes the sessions of `node_ids` to check for forgotten allocations after a delay.
    pub(crate) fn wake_for_forgotten(&self, node_ids: impl IntoIterator<Item = NodeId>) {
        self.notify(node_ids, |wake| &wake.forgotten, || {});
    }

    /// Wakes the sessions of `node_ids` on this server. Calls `before` first if there are any.
    fn notify(
        &self,
        node_ids: impl IntoIterator<Item = NodeId>,
        what: fn(&Wake) -> &Notify,
        before: impl FnOnce(),
    ) {
        let mut node_ids = node_ids.into_iter().peekable();
        // Without nodes to wake, the lock is not taken.
        if node_ids.peek().is_none() {
            return;
        }
        let table = self.lock();
        let sessions = node_ids.filter_map(|node_id| table.sessions.get(&node_id));
        let mut sessions = sessions.peekable();
        if sessions.peek().is_some() {
            before();
        }
        for session in sessions {
            what(&session.wake).notify_one();
        }
    }

    /// Wakes every session to check for changes.
    pub(crate) fn wake_all(&self) {
        for session in self.lock().sessions.values() {
            session.wake.desired.notify_one();
        }
    }

    /// Requests garbage collection from every node of this server.
    pub(crate) fn collect_garbage(&self) {
        for session in self.lock().sessions.values() {
            session.wake.garbage.notify_one();
        }
    }

    /// The limiter of the sessions' messages.
    pub(super) fn push_limiter(&self) -> &PushLimiter {
        &self.shared.push_limiter
    }

    /// The queued reports.
    pub(super) fn reports(&self) -> &Reports {
        &self.shared.reports
    }

    /// Watches the addresses and settings that this server offers its agents.
    pub(super) fn service(&self) -> watch::Receiver<ServiceInfo> {
        self.shared.service.subscribe()
    }

    /// The sessions' numbers by node.
    pub(super) fn session_numbers(&self) -> BTreeMap<NodeId, u64> {
        self.lock()
            .sessions
            .iter()
            .map(|(node_id, session)| (*node_id, session.number))
            .collect()
    }

    /// Nodes with heartbeats since the leader last counted them.
    pub(super) fn uncounted_heartbeats(&self) -> Vec<PendingHeartbeat> {
        self.lock()
            .sessions
            .iter()
            .filter_map(|(node_id, session)| {
                let number = session.heartbeats.received.load(Ordering::Acquire);
                let counted = session.heartbeats.counted.load(Ordering::Acquire);
                (number > counted).then(|| PendingHeartbeat {
                    node_id: *node_id,
                    number,
                    outbox: session.outbox.clone(),
                })
            })
            .collect()
    }

    /// Records that the leader has counted heartbeats of `node_id` up to `number`.
    pub(super) fn record_counted(&self, node_id: NodeId, number: u64) {
        if let Some(session) = self.lock().sessions.get(&node_id) {
            // A later session of the node begins at 1 again, so the number of an earlier session must not set it
            // ahead.
            if number <= session.heartbeats.received.load(Ordering::Acquire) {
                session
                    .heartbeats
                    .counted
                    .fetch_max(number, Ordering::AcqRel);
            }
        }
    }

    /// The connection of `node_id` to this server, and the time since its agent's last message.
    pub(super) fn local(&self, node_id: NodeId) -> Option<(Connection, Duration)> {
        let table = self.lock();
        let session = table.sessions.get(&node_id)?;
        Some((
            session.connection.clone(),
            session.heartbeats.since_last_contact(),
        ))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the table whole.
        self.shared
            .table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the session of `node_id` on `connection` and closes an older one.
    pub(super) fn add_session(
        &self,
        node_id: NodeId,
        connection: &Connection,
        outbox: &mpsc::Sender<ToAgent>,
    ) -> SessionEntry {
        let wake = Arc::new(Wake::default());
        let heartbeats = Arc::new(HeartbeatState::begin());
        let mut table = self.lock();
        table.last_number += 1;
        let number = table.last_number;
        let connected = ConnectedNode {
            connection: connection.clone(),
            wake: Arc::clone(&wake),
            heartbeats: Arc::clone(&heartbeats),
            outbox: outbox.clone(),
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
        SessionEntry {
            nodes: self.clone(),
            node_id,
            number,
            wake,
            heartbeats,
        }
    }
}

/// The addresses and settings that a server offers its agents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServiceInfo {
    /// Addresses where agents reach the servers of the cluster.
    pub(super) servers: Vec<SocketAddr>,
    /// Addresses where servers listen for clients.
    pub(super) apis: Vec<SocketAddr>,
    /// The reason why agents should try another server.
    pub(super) unserved: Option<String>,
}

/// A node's newest heartbeat that no leader has counted yet.
#[derive(Debug)]
pub(super) struct PendingHeartbeat {
    pub(super) node_id: NodeId,
    pub(super) number: u64,
    pub(super) outbox: mpsc::Sender<ToAgent>,
}

/// A session in the list; leaves it when dropped.
#[derive(Debug)]
pub(super) struct SessionEntry {
    nodes: Nodes,
    node_id: NodeId,
    number: u64,
    pub(super) wake: Arc<Wake>,
    heartbeats: Arc<HeartbeatState>,
}

impl SessionEntry {
    /// Records the agent's heartbeat `number`.
    pub(super) fn record_heartbeat(&self, number: u64) {
        self.heartbeats.received.fetch_max(number, Ordering::AcqRel);
        *self
            .heartbeats
            .last_contact_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }
}

impl Drop for SessionEntry {
    fn drop(&mut self) {
        if let Entry::Occupied(session) = self.nodes.lock().sessions.entry(self.node_id)
            && session.get().number == self.number
        {
            session.remove();
        }
    }
}
