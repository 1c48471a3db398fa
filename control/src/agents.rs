//! Agents: the sessions of nodes connected to this server.
//!
//! One connection per node. A connection's certificate must say `agent` and name this cluster before a
//! frame is read. A node that connects again replaces its older connection: the older one is most often
//! a path that has died without saying so.
//!
//! Heartbeats and reports of all nodes are gathered and sent on together ([`beats`], [`reports`]). A node that
//! hangs on another server is asked through that one ([`route`]). An agent that wants an allocation's data from another
//! node asks its own server ([`disk`]).

mod admission;
mod beats;
mod desired;
mod disk;
mod exec;
mod push_limiter;
mod reports;
mod request;
mod route;
mod session;
mod wake;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_domain::id::NodeId;
use muster_link::peer;
use muster_link::tls::Role;
use muster_wire::rpc::{ExecSession, NodeReply, NodeRequest, ToAgent};
use quinn::{Connection, VarInt};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;

use self::beats::{PendingHeartbeat, ServiceInfo};
use self::push_limiter::PushLimiter;
use self::reports::Reports;
use self::wake::Wake;
use crate::handle::Control;
use crate::limits;
use crate::peers::Peers;

pub(crate) use admission::Admission;
pub use exec::ExecLine;
pub use request::NodeRequestError;
pub(crate) use route::{answer_for_server, collect_for_server, count_for_server, heard_ago};

/// The reason why the server closed a connection, as the code of QUIC's close frame.
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
struct ConnectedNode {
    connection: Connection,
    wake: Arc<Wake>,
    pulse: Arc<HeartbeatState>,
    outbox: mpsc::Sender<ToAgent>,
    /// Tells this session from a later one of the same node.
    number: u64,
}

/// Heartbeats of a session, by their numbers.
#[derive(Debug)]
struct HeartbeatState {
    heard: AtomicU64,
    counted: AtomicU64,
    heard_at: Mutex<Instant>,
}

impl HeartbeatState {
    fn begin() -> Self {
        Self {
            heard: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            heard_at: Mutex::new(Instant::now()),
        }
    }

    fn heard_ago(&self) -> Duration {
        self.heard_at
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .elapsed()
    }
}

/// The nodes connected to this server. Clones share the list.
#[derive(Clone, Debug)]
pub struct Nodes {
    shared: Arc<AgentsState>,
}

#[derive(Debug)]
struct AgentsState {
    table: Mutex<Table>,
    reports: Reports,
    pace: PushLimiter,
    service: watch::Sender<ServiceInfo>,
    /// Places for data that are passed on, [`limits::DISKS_PASSED_MAX`].
    disks: Semaphore,
    peers: Peers,
}

#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<NodeId, ConnectedNode>,
    last_number: u64,
}

impl Nodes {
    /// Starts without nodes; those of the other servers are asked through `peers`.
    #[must_use]
    pub(crate) fn new(peers: Peers) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self {
            shared: Arc::new(AgentsState {
                table: Mutex::default(),
                reports: Reports::default(),
                pace: PushLimiter::of(cores),
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

    /// Asks `node_id`, whichever server it hangs on. The channel ends with the node's answer; dropping it cancels
    /// the question. If the answer breaks off, its last part is a [`NodeReply::Failed`].
    ///
    /// # Errors
    ///
    /// [`NodeRequestError`] if the node cannot be asked.
    pub async fn request(
        &self,
        node_id: NodeId,
        request: NodeRequest,
    ) -> Result<mpsc::Receiver<NodeReply>, NodeRequestError> {
        route::ask(self, &self.shared.peers, node_id, request).await
    }

    /// Opens a session with a command on `node_id`, whichever server it hangs on. Dropping what it gives hangs up.
    ///
    /// # Errors
    ///
    /// [`NodeRequestError`] if the node cannot be asked.
    pub async fn exec(
        &self,
        node_id: NodeId,
        session: ExecSession,
    ) -> Result<ExecLine, NodeRequestError> {
        route::open(self, &self.shared.peers, node_id, session).await
    }

    /// The reason why this server sends agents to other servers; `None` while it serves them.
    #[must_use]
    pub fn unserved(&self) -> Option<String> {
        self.shared.service.borrow().unserved.clone()
    }

    /// Tells the sessions of `node_ids` to look for changes.
    pub(crate) fn wake(&self, node_ids: impl IntoIterator<Item = NodeId>) {
        let before = || self.shared.pace.note();
        self.notify(node_ids, |wake| &wake.desired, before);
    }

    /// Tells the sessions of `node_ids` to look, by and by, for allocations that were forgotten.
    pub(crate) fn wake_for_forgotten(&self, node_ids: impl IntoIterator<Item = NodeId>) {
        self.notify(node_ids, |wake| &wake.forgotten, || {});
    }

    /// Wakes those sessions of `node_ids` that are here; if there are any, `before` is called first.
    fn notify(
        &self,
        node_ids: impl IntoIterator<Item = NodeId>,
        what: fn(&Wake) -> &Notify,
        before: impl FnOnce(),
    ) {
        let mut node_ids = node_ids.into_iter().peekable();
        // Nobody waits for the lock for nothing.
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

    /// Tells every session to look for changes.
    pub(crate) fn wake_all(&self) {
        for session in self.lock().sessions.values() {
            session.wake.desired.notify_one();
        }
    }

    /// Tells every node of this server to destroy what is over.
    pub(crate) fn collect_garbage(&self) {
        for session in self.lock().sessions.values() {
            session.wake.garbage.notify_one();
        }
    }

    /// Turns of the sessions.
    fn pace(&self) -> &PushLimiter {
        &self.shared.pace
    }

    /// Gathered reports.
    fn reports(&self) -> &Reports {
        &self.shared.reports
    }

    /// Watches what this server offers its agents.
    fn service(&self) -> watch::Receiver<ServiceInfo> {
        self.shared.service.subscribe()
    }

    /// The sessions' numbers by node.
    fn numbers(&self) -> BTreeMap<NodeId, u64> {
        self.lock()
            .sessions
            .iter()
            .map(|(node_id, session)| (*node_id, session.number))
            .collect()
    }

    /// Nodes that were heard of since the leader last counted them.
    fn uncounted(&self) -> Vec<PendingHeartbeat> {
        self.lock()
            .sessions
            .iter()
            .filter_map(|(node_id, session)| {
                let number = session.pulse.heard.load(Ordering::Acquire);
                let counted = session.pulse.counted.load(Ordering::Acquire);
                (number > counted).then(|| PendingHeartbeat {
                    node_id: *node_id,
                    number,
                    outbox: session.outbox.clone(),
                })
            })
            .collect()
    }

    /// The leader has counted heartbeats of `node_id` up to `number`.
    fn counted(&self, node_id: NodeId, number: u64) {
        if let Some(session) = self.lock().sessions.get(&node_id) {
            // A later session of the node begins at 1 again; it never gets ahead by this.
            if number <= session.pulse.heard.load(Ordering::Acquire) {
                session.pulse.counted.fetch_max(number, Ordering::AcqRel);
            }
        }
    }

    /// The connection of `node_id` to this server, and how long ago its agent said something.
    fn local(&self, node_id: NodeId) -> Option<(Connection, Duration)> {
        let table = self.lock();
        let session = table.sessions.get(&node_id)?;
        Some((session.connection.clone(), session.pulse.heard_ago()))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each change is one insertion or removal, so a panic elsewhere leaves the table whole.
        self.shared
            .table
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the session of `node_id` on `connection` and closes an older one.
    fn enter(
        &self,
        node_id: NodeId,
        connection: &Connection,
        outbox: &mpsc::Sender<ToAgent>,
    ) -> SessionEntry {
        let wake = Arc::new(Wake::default());
        let pulse = Arc::new(HeartbeatState::begin());
        let mut table = self.lock();
        table.last_number += 1;
        let number = table.last_number;
        let connected = ConnectedNode {
            connection: connection.clone(),
            wake: Arc::clone(&wake),
            pulse: Arc::clone(&pulse),
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
            pulse,
        }
    }
}

/// A session in the list; leaves it when dropped.
#[derive(Debug)]
struct SessionEntry {
    nodes: Nodes,
    node_id: NodeId,
    number: u64,
    wake: Arc<Wake>,
    pulse: Arc<HeartbeatState>,
}

impl SessionEntry {
    /// The agent's heartbeat `number` came.
    fn beat(&self, number: u64) {
        self.pulse.heard.fetch_max(number, Ordering::AcqRel);
        *self
            .pulse
            .heard_at
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

/// Sends on what is gathered from all sessions, until `stop`.
pub(crate) async fn run(control: Control, stop: CancellationToken) {
    let nodes = control.nodes().clone();
    tokio::join!(
        beats::gather(&control, &nodes.shared.service, &stop),
        reports::write(&control, nodes.reports(), &stop),
        nodes.pace().give(&stop),
    );
}

/// Checks the peer's identity before a frame is read, and serves it. `admission` says whether there is room
/// for another registration.
pub(crate) async fn admit(
    connection: Connection,
    control: &Control,
    admission: Result<OwnedSemaphorePermit, String>,
) {
    let peer = connection.remote_address();
    let refusal = match peer::role(&connection, &control.server_info().cluster) {
        Ok(Role::Agent) => None,
        Ok(role @ (Role::Operator | Role::Server)) => Some(format!(
            "the certificate of this {} does not speak for an agent",
            role.as_str()
        )),
        Err(error) => Some(error.to_string()),
    };
    if let Some(reason) = refusal {
        tracing::warn!(%peer, reason, "refused a connection");
        connection.close(Close::Refused.code(), reason.as_bytes());
        return;
    }
    match session::run(&connection, control, admission).await {
        Ok(()) => tracing::debug!(%peer, "an agent left"),
        Err(error) => {
            tracing::info!(%peer, error = %chain(&error), "an agent's session ended");
            if let Some(reason) = error.version_refusal() {
                connection.close(Close::Refused.code(), reason.as_bytes());
                return;
            }
        }
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
