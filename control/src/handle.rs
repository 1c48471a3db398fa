//! The handle that all parts of a server share: read the state, propose a change, ask a node.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use muster_control_core::fsm::{
    Entry, JobCommand, JobPlacement, NewOneOff, OneOffPlacement, Response,
};
use muster_control_core::gc::GcConfig;
use muster_control_core::state::State;
use muster_domain::id::{LogIndex, NodeId, Timestamp, WriteKey};
use muster_domain::job::JobSpec;
use muster_wire::codec::EncodeError;
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::agents::nodes::Nodes;
use crate::callback::{TasksConfig, Totals as CallbackTotals};
use crate::clock::Clock;
use crate::garbage::{FreedCounts, Totals};
use crate::leader::lease::{Lease, ServerHeartbeats};
use crate::limits;
use crate::one_off::batch::RequestQueues;
use crate::peers::Peers;
use crate::peers::bootstrap::Bootstrap;
use crate::peers::message::{
    Hello, PeerReply, PeerRequest, PlacementAnswer, PlacementQuery, Troubles,
};
use crate::published::Published;
use crate::raft::{Leadership, Raft, WriteError};

pub use crate::raft::LeaderInfo;

/// A server's identity and addresses.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    pub name: String,
    /// The cluster that the server belongs to.
    pub cluster: String,
    /// The server's number, chosen when its data directory was made.
    pub server_id: u64,
    /// The address for HTTP.
    pub http_addr: SocketAddr,
    /// The address for QUIC.
    pub quic_addr: SocketAddr,
    /// The address for Diego's clients, if the server serves them.
    pub bbs_addr: Option<SocketAddr>,
    pub version: &'static str,
    /// Time at which the process started to serve.
    pub started_at: Timestamp,
    pub data_dir: PathBuf,
    /// Silence after which a node is down.
    pub heartbeat_ttl: Duration,
    /// Time added to `heartbeat_ttl` for the transfer of a heartbeat to the leader.
    pub heartbeat_grace: Duration,
    /// Bytes cut off the end of the log at the start. A crash had left a write unfinished.
    pub log_bytes_cut: u64,
}

/// The action that a caller can take on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// No retry: the operation would fail again.
    Never,
    /// Try again after a pause.
    Later,
    /// Try again at once, at the server that leads.
    ElsewhereNow,
}

/// The reason why a proposal was not carried out.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProposeError {
    /// Too many proposals wait.
    #[error(
        "the server is overloaded: {waiting} changes wait for the log, and none was finished within {waited:?}; try again later"
    )]
    Overloaded {
        /// The bound on waiting proposals.
        waiting: usize,
        /// How long the caller waited for a place in the queue.
        waited: Duration,
    },
    /// Another server leads, or none does.
    #[error("this server does not lead{}", leader.as_ref().map_or_else(
        || "; an election is going on, try again".to_owned(),
        |leader| format!("; the leader is {} at {}", leader.name, leader.http_addr)
    ))]
    NotLeader {
        /// The server that leads, if known.
        leader: Option<LeaderInfo>,
    },
    /// The outcome is unknown: the change may have been committed, or may be later. With a write key the change
    /// can be sent again: it is applied once.
    #[error(
        "it is not known yet whether the change was made ({reason}): look before trying again, or try again with the same idempotency key"
    )]
    Timeout {
        /// The longest time that the caller waited.
        waited: Duration,
        /// The reason why no answer came.
        reason: String,
    },
    /// The change is too large.
    #[error("the change has {bytes} bytes, the log takes {max}", max = limits::ENTRY_BYTES_MAX)]
    TooLarge { bytes: usize },
    /// The change cannot be encoded: an error in this program.
    #[error("the change cannot be encoded")]
    Encode(#[from] EncodeError),
    /// The log cannot grow. Nothing was changed.
    #[error("the disk under {} is full ({reason}): make room; a restart is not needed", dir.display())]
    DiskFull {
        dir: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// The log has failed; the server is going down.
    #[error("the log has stopped: {reason}; see the server's messages, then start it again")]
    Stopped { reason: String },
}

impl ProposeError {
    /// The action that a caller can take.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::NotLeader { leader: Some(_) } => Retry::ElsewhereNow,
            Self::Overloaded { .. }
            | Self::NotLeader { leader: None }
            | Self::Timeout { .. }
            | Self::DiskFull { .. } => Retry::Later,
            Self::TooLarge { .. } | Self::Encode(_) | Self::Stopped { .. } => Retry::Never,
        }
    }
}

impl From<WriteError> for ProposeError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Encode(error) => Self::Encode(error),
            WriteError::TooLarge { bytes } => Self::TooLarge { bytes },
            WriteError::NotLeader { leader } => Self::NotLeader { leader },
            WriteError::Unknown { waited, reason } => Self::Timeout { waited, reason },
            WriteError::DiskFull { dir, reason } => Self::DiskFull { dir, reason },
            WriteError::Stopped { reason } => Self::Stopped { reason },
        }
    }
}

/// The consistency that a read requires.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The leader's state. It holds every acknowledged change, as long as clocks run at about the same pace.
    #[default]
    Leader,
    /// Every change acknowledged before the read began. A quorum confirms the leader.
    Linearizable,
    /// This server's state, of any age.
    Stale,
}

/// A state to read from.
#[derive(Clone, Debug)]
pub struct ReadState {
    /// The state. It does not change while writes go on.
    pub state: State,
    /// Whether this server knows the leader.
    pub leader_known: bool,
    /// Time since this server's last contact with the leader. It is zero if this server leads or never had contact
    /// with a leader.
    pub last_contact: Duration,
}

/// The reason why a state cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// No server leads, and none was elected within the time that a read waits.
    #[error(
        "no server leads: more than half of the servers must run and reach each other; a stale read is answered all the same"
    )]
    NoLeader {
        /// How long the read waited.
        waited: Duration,
    },
    /// This server's state is behind the leader's.
    #[error(
        "this server has not caught up with entry {} within {waited:?}: try again later, or ask another server",
        index.0
    )]
    Behind {
        index: LogIndex,
        /// How long the read waited.
        waited: Duration,
    },
    /// The log has failed; the server is going down.
    #[error("the log has stopped: {reason}; see the server's messages, then start it again")]
    Stopped { reason: String },
}

impl ReadError {
    /// The action that a caller can take.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::NoLeader { .. } | Self::Behind { .. } => Retry::Later,
            Self::Stopped { .. } => Retry::Never,
        }
    }
}

/// A command's position and answer.
pub(crate) type ProposeResult = Result<(LogIndex, Response), ProposeError>;

/// A request to the leader's duties.
#[derive(Debug)]
pub(crate) enum DutyRequest {
    /// Collects all garbage now and reports when that is done.
    CollectGarbage(oneshot::Sender<Result<FreedCounts, ProposeError>>),
    /// Finds places for tasks or a job about to be recorded.
    Place(PlacementRequest),
}

/// Tasks or a job that need places before they are recorded. A caller without an answer records them without
/// places.
#[derive(Debug)]
pub(crate) enum PlacementRequest {
    Tasks {
        tasks: Arc<Vec<NewOneOff>>,
        reply: oneshot::Sender<OneOffPlacements>,
    },
    /// All instances of a job.
    Job {
        spec: Arc<JobSpec>,
        reply: oneshot::Sender<Option<JobPlacement>>,
    },
}

/// Places for one-off tasks, in their order, and the state in which they were found.
#[derive(Debug)]
pub(crate) struct OneOffPlacements {
    pub(crate) places: Vec<Option<OneOffPlacement>>,
    pub(crate) seen: LogIndex,
}

/// A server's handle. Clones are cheap and share everything.
#[derive(Clone, Debug)]
pub struct Control {
    shared: Arc<HandleState>,
}

#[derive(Debug)]
struct HandleState {
    raft: Raft,
    published: Arc<Published>,
    nodes: Nodes,
    peers: Peers,
    expect: u32,
    founder: Bootstrap,
    removed: AtomicBool,
    info: ServerInfo,
    clock: Clock,
    places: Semaphore,
    beats: mpsc::Sender<ServerHeartbeats>,
    duties: mpsc::Sender<DutyRequest>,
    gc: GcConfig,
    tasks: TasksConfig,
    one_offs: RequestQueues,
    callbacks: CallbackTotals,
    gc_totals: Totals,
}

/// The parts of a [`Control`].
#[derive(Debug)]
pub(crate) struct ControlParts {
    pub(crate) raft: Raft,
    pub(crate) published: Arc<Published>,
    pub(crate) nodes: Nodes,
    pub(crate) peers: Peers,
    /// The number of servers that found a cluster together; 0 if this server founds none.
    pub(crate) expect: u32,
    pub(crate) founder: Bootstrap,
    pub(crate) info: ServerInfo,
    pub(crate) clock: Clock,
    pub(crate) beats: mpsc::Sender<ServerHeartbeats>,
    pub(crate) duties: mpsc::Sender<DutyRequest>,
    pub(crate) gc: GcConfig,
    pub(crate) tasks: TasksConfig,
    pub(crate) one_offs: RequestQueues,
}

impl Control {
    pub(crate) fn new(parts: ControlParts) -> Self {
        let ControlParts {
            raft,
            published,
            nodes,
            peers,
            expect,
            founder,
            info,
            clock,
            beats,
            duties,
            gc,
            tasks,
            one_offs,
        } = parts;
        let places = Semaphore::new(limits::PROPOSALS_MAX);
        Self {
            shared: Arc::new(HandleState {
                raft,
                published,
                nodes,
                peers,
                expect,
                founder,
                removed: AtomicBool::new(false),
                info,
                clock,
                places,
                beats,
                duties,
                gc,
                tasks,
                one_offs,
                callbacks: CallbackTotals::default(),
                gc_totals: Totals::default(),
            }),
        }
    }

    /// Returns the newest state: a snapshot that does not change while writes go on.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.published.state()
    }

    /// Returns the index of the newest state and a way to wait for the next. A state taken after an index was seen
    /// here contains that index.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<LogIndex> {
        self.shared.published.applied()
    }

    /// Returns a state that satisfies `consistency`. Every server answers; a follower asks the leader only for a
    /// position. Waits a limited time for a leader if there is none.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; never for [`Consistency::Stale`].
    pub async fn read(&self, consistency: Consistency) -> Result<ReadState, ReadError> {
        let waited = limits::ELECTION_WAIT;
        let deadline = Instant::now() + waited;
        let linearizable = match consistency {
            Consistency::Stale => return Ok(self.read_state()),
            Consistency::Leader => false,
            Consistency::Linearizable => true,
        };
        let raft = &self.shared.raft;
        let index = match raft.read_index(linearizable, deadline).await {
            Ok(index) => index,
            Err(WriteError::Stopped { reason }) => return Err(ReadError::Stopped { reason }),
            Err(_) => return Err(ReadError::NoLeader { waited }),
        };
        if !raft.wait_applied(index, deadline).await {
            return Err(ReadError::Behind { index, waited });
        }
        Ok(self.read_state())
    }

    fn read_state(&self) -> ReadState {
        let leader = self.leader();
        let last_contact = match &leader {
            Some(leader) if !leader.is_self => self.shared.peers.last_contact(leader.server_id),
            Some(_) => None,
            None => self.shared.peers.last_contact_of_any(),
        };
        ReadState {
            state: self.state(),
            leader_known: leader.is_some(),
            last_contact: last_contact.unwrap_or_default(),
        }
    }

    /// Proposes as [`Self::propose`] does and repeats it until an answer is known. The log applies a `key` once,
    /// even if the leader changes.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]; after [`ProposeError::Timeout`] the same key may be used again.
    pub async fn propose_keyed(
        &self,
        key: WriteKey,
        entry: Entry,
    ) -> Result<(LogIndex, Response), ProposeError> {
        self.propose(entry.keyed(key)).await
    }

    /// Writes `entry` to the log, through the leader if that is another server. Returns its position and its
    /// answer when it is on the disks of a quorum and part of [`Self::state`] here. A refused command is an
    /// answer, not an error. Waits a limited time for a leader if there is none.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]; its [`retry`](ProposeError::retry) gives the action to take.
    pub async fn propose(&self, entry: Entry) -> Result<(LogIndex, Response), ProposeError> {
        let waited = limits::PROPOSE_WAIT;
        let place = match tokio::time::timeout(waited, self.shared.places.acquire()).await {
            Ok(place) => place.map_err(|error| ProposeError::Stopped {
                reason: error.to_string(),
            })?,
            Err(_) => {
                return Err(ProposeError::Overloaded {
                    waiting: limits::PROPOSALS_MAX,
                    waited,
                });
            }
        };
        let answer = self.shared.raft.write(&entry).await;
        drop(place);
        Ok(answer?)
    }

    /// The number of this server's proposals under way.
    pub(crate) fn proposals(&self) -> usize {
        limits::PROPOSALS_MAX.saturating_sub(self.shared.places.available_permits())
    }

    /// The leader; `None` during an election.
    #[must_use]
    pub fn leader(&self) -> Option<LeaderInfo> {
        self.shared.raft.leader()
    }

    /// The newest term that this server knows. Terms count elections.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.shared.raft.leadership().borrow().term
    }

    /// The agents connected to this server.
    #[must_use]
    pub fn nodes(&self) -> &Nodes {
        &self.shared.nodes
    }

    /// The other servers.
    #[must_use]
    pub fn peers(&self) -> &Peers {
        &self.shared.peers
    }

    /// This server's promise to found a cluster.
    pub(crate) fn founder(&self) -> &Bootstrap {
        &self.shared.founder
    }

    /// Whether this server was removed from its cluster while it ran.
    pub(crate) fn removed(&self) -> bool {
        self.shared.removed.load(Ordering::Acquire)
    }

    /// Records that this server was removed from its cluster. It stays removed until it is started again.
    pub(crate) fn set_removed(&self) {
        if !self.shared.removed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "this server was removed from its cluster: stop it. Started again with --join it joins again"
            );
            self.shared.raft.disable_elections();
        }
    }

    /// Records another server's introduction and answers with this one's.
    pub(crate) fn exchange_hello(&self, hello: &Hello) -> PeerReply {
        self.shared.peers.update_peer(&hello.me);
        PeerReply::Hello(self.hello())
    }

    /// This server's introduction to other servers.
    pub(crate) fn hello(&self) -> Hello {
        let raft = &self.shared.raft;
        let founded = raft.founded();
        Hello {
            me: self.shared.peers.me().clone(),
            expect: self.shared.expect,
            founded,
            others: self.shared.peers.servers(),
            members: raft.member_ids(),
            leader: raft.leader().map(|leader| leader.server_id),
            promised: self.shared.founder.promised(),
        }
    }

    /// This server's identity and addresses.
    #[must_use]
    pub fn server_info(&self) -> &ServerInfo {
        &self.shared.info
    }

    /// The wall clock for the times in rows, without unconfirmed jumps.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Forgets all garbage, here and on every connected node, at any age. Any server can be asked.
    ///
    /// # Errors
    ///
    /// [`ProposeError`] if the log takes no changes; in that case nodes are not asked.
    pub async fn collect_garbage(&self) -> Result<(), ProposeError> {
        self.collect_garbage_of_state().await?;
        self.shared.nodes.collect_garbage();
        let servers = self.peers().servers();
        let calls = servers.iter().map(|known| {
            let request = PeerRequest::CollectOnNodes;
            self.peers().call(known.server_id, request)
        });
        for answer in futures::future::join_all(calls).await {
            if let Err(error) = answer {
                tracing::warn!(%error, "the nodes of a server were not asked to collect garbage");
            }
        }
        Ok(())
    }

    /// Forgets all garbage of the state, at any age. Any server can be asked.
    ///
    /// # Errors
    ///
    /// [`ProposeError`] if the log takes no changes.
    pub(crate) async fn collect_garbage_of_state(&self) -> Result<FreedCounts, ProposeError> {
        let leader = match self.leader() {
            Some(leader) if !leader.is_self => leader,
            _ => return self.collect_garbage_here().await,
        };
        let waited = limits::COLLECT_WAIT;
        let request = PeerRequest::CollectGarbage;
        let asked = self.peers().call_within(leader.server_id, request, waited);
        match asked.await {
            Ok(PeerReply::Collected(freed)) => Ok(freed),
            Ok(PeerReply::Refused { reason }) => Err(ProposeError::Timeout { waited, reason }),
            Ok(_) => Err(ProposeError::NotLeader { leader: None }),
            Err(error) => Err(ProposeError::Timeout {
                waited,
                reason: format!("the leader did not say that it has collected: {error}"),
            }),
        }
    }

    /// Collects garbage at the leader.
    pub(crate) async fn collect_garbage_here(&self) -> Result<FreedCounts, ProposeError> {
        let stopped = || ProposeError::Timeout {
            waited: limits::COLLECT_WAIT,
            reason: "this server led no more before it had collected".to_owned(),
        };
        let (sender, receiver) = oneshot::channel();
        let request = DutyRequest::CollectGarbage(sender);
        if self.shared.duties.send(request).await.is_err() {
            return Err(stopped());
        }
        receiver.await.unwrap_or_else(|_| Err(stopped()))
    }

    /// Finds places for `tasks`, which are about to be recorded. Returns `None` if no server leads, if others wait
    /// for room, or if it would take too long.
    pub(crate) async fn places(&self, tasks: &Arc<Vec<NewOneOff>>) -> Option<OneOffPlacements> {
        if self.leadership().borrow().is_self() {
            let tasks = Arc::clone(tasks);
            let wanted = |reply| PlacementRequest::Tasks { tasks, reply };
            return self.find_places(wanted).await;
        }
        match self
            .places_of_leader(PlacementQuery::Tasks(tasks.to_vec()))
            .await?
        {
            PlacementAnswer::Tasks { places, seen } => {
                (places.len() == tasks.len()).then_some(OneOffPlacements { places, seen })
            }
            PlacementAnswer::Job(_) => None,
        }
    }

    /// Builds the command that records a job. It has places for the instances of a new job under the conditions of
    /// [`Self::places`].
    pub(crate) async fn registration(&self, spec: JobSpec, check_index: Option<LogIndex>) -> Entry {
        let spec = Arc::new(spec);
        let places = if self.state().jobs().get(&spec.key()).is_none() {
            self.job_places(&spec).await
        } else {
            None
        };
        let spec = Box::new(Arc::unwrap_or_clone(spec));
        JobCommand::Register {
            spec,
            places,
            check_index,
        }
        .at(self.now())
    }

    async fn job_places(&self, spec: &Arc<JobSpec>) -> Option<Box<JobPlacement>> {
        if self.leadership().borrow().is_self() {
            let spec = Arc::clone(spec);
            let wanted = |reply| PlacementRequest::Job { spec, reply };
            return self.find_places(wanted).await?.map(Box::new);
        }
        let wanted = PlacementQuery::Job(Box::new((**spec).clone()));
        match self.places_of_leader(wanted).await? {
            PlacementAnswer::Job(places) => places,
            PlacementAnswer::Tasks { .. } => None,
        }
    }

    /// Asks the leader for places.
    async fn places_of_leader(&self, wanted: PlacementQuery) -> Option<PlacementAnswer> {
        let leader = self.leader().filter(|leader| !leader.is_self)?;
        let request = PeerRequest::FindPlaces(wanted);
        let asked = self
            .peers()
            .call_within(leader.server_id, request, limits::PLACES_WAIT);
        match asked.await {
            Ok(PeerReply::Places(found)) => Some(found),
            Ok(_) | Err(_) => None,
        }
    }

    /// Finds places for a server that forwards its records to this one. Returns `None` if this server does not
    /// lead or has no time.
    pub(crate) async fn find_places_here(&self, wanted: PlacementQuery) -> Option<PlacementAnswer> {
        match wanted {
            PlacementQuery::Tasks(tasks) => {
                let tasks = Arc::new(tasks);
                let wanted = |reply| PlacementRequest::Tasks { tasks, reply };
                let OneOffPlacements { places, seen } = self.find_places(wanted).await?;
                Some(PlacementAnswer::Tasks { places, seen })
            }
            PlacementQuery::Job(spec) => {
                let spec = Arc::new(*spec);
                let wanted = |reply| PlacementRequest::Job { spec, reply };
                let places = self.find_places(wanted).await?;
                Some(PlacementAnswer::Job(places.map(Box::new)))
            }
        }
    }

    /// Asks the duties of this server for places, if it leads.
    async fn find_places<T>(
        &self,
        wanted: impl FnOnce(oneshot::Sender<T>) -> PlacementRequest,
    ) -> Option<T> {
        if !self.leadership().borrow().is_self() {
            return None;
        }
        let (reply, places) = oneshot::channel();
        // A busy leader has no time for placements.
        self.shared
            .duties
            .try_send(DutyRequest::Place(wanted(reply)))
            .ok()?;
        let found = tokio::time::timeout(limits::PLACES_WAIT, places).await;
        found.ok()?.ok()
    }

    /// Intervals and thresholds of garbage collection.
    pub(crate) fn gc_config(&self) -> GcConfig {
        self.shared.gc
    }

    /// Time limits of one-off tasks, and the settings of their callbacks.
    pub(crate) fn tasks_config(&self) -> &TasksConfig {
        &self.shared.tasks
    }

    /// The queue of clients' requests about one-off tasks.
    pub(crate) fn one_offs(&self) -> &RequestQueues {
        &self.shared.one_offs
    }

    /// Counts of callbacks by outcome.
    pub(crate) fn callbacks(&self) -> &CallbackTotals {
        &self.shared.callbacks
    }

    /// Totals of garbage collections.
    pub(crate) fn gc_totals(&self) -> &Totals {
        &self.shared.gc_totals
    }

    /// Takes a snapshot of the state now and waits until its file is on disk.
    ///
    /// # Errors
    ///
    /// [`ProposeError::Stopped`] if it cannot be written.
    pub async fn take_snapshot(&self) -> Result<LogIndex, ProposeError> {
        Ok(self.shared.raft.snapshot().await?)
    }

    /// Takes a snapshot and drops the entries in it from the log. That frees room on a nearly full disk. A
    /// follower that is further behind gets the snapshot.
    ///
    /// # Errors
    ///
    /// [`ProposeError::Stopped`] if it cannot be written.
    pub async fn compact_log(&self) -> Result<LogIndex, ProposeError> {
        Ok(self.shared.raft.compact().await?)
    }

    /// The last entry of the log, Raft's own included.
    #[must_use]
    pub fn last_log_index(&self) -> LogIndex {
        self.shared.raft.last_log_index()
    }

    /// The reason why this server acknowledges no change at the moment: the disk under its log is full. `None` if
    /// the disk has room.
    #[must_use]
    pub fn disk_full(&self) -> Option<String> {
        let full = self.shared.raft.check_disk().err()?;
        Some(full.to_string())
    }

    /// Becomes `Some` with the reason when the log fails. The process should then end.
    #[must_use]
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.shared.raft.failed()
    }

    /// Stops this server permanently because of `reason`.
    pub(crate) fn halt(&self, reason: String) {
        self.shared.raft.halt(reason);
    }

    /// Counts the node heartbeats that the server `server_id` received, as the leader. Returns the nodes' lease,
    /// or `None` if no quorum confirms that this server leads.
    pub(crate) async fn count_beats(
        &self,
        server_id: u64,
        nodes: Vec<NodeId>,
        left: Vec<NodeId>,
    ) -> Option<Lease> {
        let (reply, lease) = oneshot::channel();
        let beats = ServerHeartbeats {
            server_id,
            nodes,
            left,
            reply,
        };
        self.shared.beats.send(beats).await.ok()?;
        lease.await.ok()
    }

    /// Lists the problems that keep this server from its work.
    pub(crate) fn troubles(&self) -> Troubles {
        let mut troubles = Vec::new();
        if let Err(error) = self.raft().check_disk() {
            troubles.push(error.to_string());
        }
        if let Some(upto) = self.raft().last_missing_index() {
            troubles.push(format!(
                "its log lost entries that it had acknowledged, up to {upto}, and has not got them again"
            ));
        }
        if let Some(by) = self.clock().jump() {
            troubles.push(format!(
                "its wall clock has jumped forward by {by:.0?}: set it back, or confirm it with `muster operator clock confirm`"
            ));
        }
        Troubles(troubles)
    }

    /// The clocks of this server.
    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// The monotonic clock, for deadlines.
    pub(crate) fn monotonic(&self) -> Timestamp {
        self.shared.clock.monotonic()
    }

    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.shared.raft.leadership()
    }

    pub(crate) fn published(&self) -> &Published {
        &self.shared.published
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.shared.raft
    }
}
