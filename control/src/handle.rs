//! The handle that everything in a server shares: read the state, propose a change, ask a node.

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
    /// The cluster it belongs to.
    pub cluster: String,
    /// Its number, chosen when its data directory was made.
    pub server_id: u64,
    /// The address for HTTP.
    pub http_addr: SocketAddr,
    /// The address for QUIC.
    pub quic_addr: SocketAddr,
    /// The address for Diego's clients, if it serves them.
    pub bbs_addr: Option<SocketAddr>,
    pub version: &'static str,
    /// Time at which the process started to serve.
    pub started_at: Timestamp,
    pub data_dir: PathBuf,
    /// Silence after which a node is down.
    pub heartbeat_ttl: Duration,
    /// Time added to that, for the way of a heartbeat to the leader.
    pub heartbeat_grace: Duration,
    /// Bytes cut off the log's end at the start: a write that a crash had left unfinished.
    pub log_bytes_cut: u64,
}

/// The action that a caller can take on an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// Nothing: it would fail again.
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
        /// How long the caller waited for a place.
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
    /// Nobody can tell whether the change was committed, or still will be. With a write key it can be sent
    /// again: it is applied once.
    #[error(
        "nobody can tell yet whether the change was made ({reason}): look before trying again, or try again with the same idempotency key"
    )]
    Timeout {
        /// How long it was waited for at most.
        waited: Duration,
        /// The reason there was no answer.
        reason: String,
    },
    /// The change is too large.
    #[error("the change has {bytes} bytes, the log takes {max}", max = limits::ENTRY_BYTES_MAX)]
    TooLarge { bytes: usize },
    /// The change cannot be encoded: a mistake of ours.
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

/// The state that a read must see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The leader's state: everything that was acknowledged, as long as clocks run at about the same pace.
    #[default]
    Leader,
    /// Everything that was acknowledged before the read began. A quorum confirms who leads.
    Linearizable,
    /// This server's state, however old.
    Stale,
}

/// A state to read from.
#[derive(Clone, Debug)]
pub struct ReadState {
    /// The state. It stays as it is while writes go on.
    pub state: State,
    /// Whether this server knows who leads.
    pub leader_known: bool,
    /// How long ago this server heard of the leader; zero if it leads, or has never heard of one.
    pub last_contact: Duration,
}

/// The reason why a state cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// Nobody leads, and nobody came to within the time that a read waits.
    #[error(
        "no server leads: more than half of the servers must run and reach each other; a stale read is answered all the same"
    )]
    NoLeader {
        /// How long it was waited for.
        waited: Duration,
    },
    /// This server is behind what the leader has.
    #[error(
        "this server has not caught up with entry {} within {waited:?}: try again later, or ask another server",
        index.0
    )]
    Behind {
        index: LogIndex,
        /// How long it was waited for.
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

/// Something the leader's duties are told.
#[derive(Debug)]
pub(crate) enum DutyRequest {
    /// Collect all garbage now, and say when that is done.
    CollectGarbage(oneshot::Sender<Result<FreedCounts, ProposeError>>),
    /// Find places for what is about to be recorded.
    Place(PlacementRequest),
}

/// Tasks or a job to find places for before they are recorded. A caller without an answer records them
/// without places.
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
    /// Servers to found a cluster with; 0: it founds none.
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

    /// The newest state: a snapshot that stays as it is while writes go on.
    #[must_use]
    pub fn state(&self) -> State {
        self.shared.published.state()
    }

    /// The index of the newest state, and a way to wait for the next. A state taken after an index was
    /// seen here contains that index.
    #[must_use]
    pub fn applied(&self) -> watch::Receiver<LogIndex> {
        self.shared.published.applied()
    }

    /// A state that contains what `consistency` asks for. Every server answers; a follower asks the leader only
    /// for a position. Waits a while for a leader if there is none.
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
        if !raft.applied(index, deadline).await {
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

    /// Proposes as [`Self::propose`] does, and repeats it until an answer is known. The log answers a `key`
    /// once, even if the leader changes.
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
    /// answer, not an error. Waits a while for a leader if there is none.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]; its [`retry`](ProposeError::retry) says what to do.
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

    /// Proposals of this server that are under way.
    pub(crate) fn proposals(&self) -> usize {
        limits::PROPOSALS_MAX.saturating_sub(self.shared.places.available_permits())
    }

    /// The leader; `None` during an election.
    #[must_use]
    pub fn leader(&self) -> Option<LeaderInfo> {
        self.shared.raft.leader()
    }

    /// The term that this server knows of: it counts elections.
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

    /// Notes that this server was removed from its cluster. It stays out until it is started again.
    pub(crate) fn set_removed(&self) {
        if !self.shared.removed.swap(true, Ordering::AcqRel) {
            tracing::error!(
                "this server was removed from its cluster: stop it. Started again with --join it joins again"
            );
            self.shared.raft.stand_back();
        }
    }

    /// Notes another server's introduction, and answers with this one's.
    pub(crate) fn meet(&self, hello: &Hello) -> PeerReply {
        self.shared.peers.meet(&hello.me);
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

    /// The wall clock, for the times that rows carry: without a jump that nobody has confirmed.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.shared.clock.now()
    }

    /// Forgets everything that is over, here and on every connected node, whatever its age. Any server can be
    /// asked.
    ///
    /// # Errors
    ///
    /// [`ProposeError`] if the log takes no changes; nodes are not asked then.
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
                tracing::warn!(%error, "the nodes of a server were not told to collect garbage");
            }
        }
        Ok(())
    }

    /// Forgets everything of the state that is over, whatever its age. Any server can be asked.
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

    /// Finds places for `tasks`, which are about to be recorded. `None` if no server leads, if others wait
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

    /// The command that records a job: with places for its instances where [`Self::places`] would find some for tasks.
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

    /// Places that the server which leads finds.
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

    /// Finds places for a server that passes its records on to this one; `None` if this one does not lead or
    /// has no time.
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

    /// Has the duties of this server find places, if it leads.
    async fn find_places<T>(
        &self,
        wanted: impl FnOnce(oneshot::Sender<T>) -> PlacementRequest,
    ) -> Option<T> {
        if !self.leadership().borrow().is_self() {
            return None;
        }
        let (reply, places) = oneshot::channel();
        // A busy leader has no time for more.
        self.shared
            .duties
            .try_send(DutyRequest::Place(wanted(reply)))
            .ok()?;
        let found = tokio::time::timeout(limits::PLACES_WAIT, places).await;
        found.ok()?.ok()
    }

    /// Intervals and thresholds of the collection.
    pub(crate) fn gc_config(&self) -> GcConfig {
        self.shared.gc
    }

    /// Times of one-off tasks, and how their callbacks are made.
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

    /// Takes a snapshot and drops from the log what is in it: room on a disk that is nearly full. A follower that
    /// is further behind gets the snapshot.
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
        let full = self.shared.raft.room().err()?;
        Some(full.to_string())
    }

    /// Becomes `Some` with the reason when the log fails. The process should end then.
    #[must_use]
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.shared.raft.failed()
    }

    /// Stops this server for good because of `reason`.
    pub(crate) fn halt(&self, reason: String) {
        self.shared.raft.halt(reason);
    }

    /// Counts what the server `server_id` heard of its nodes, as the leader. Their lease; `None` if no quorum
    /// confirms that this server leads.
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

    /// Lists the troubles that keep this server from its work.
    pub(crate) fn troubles(&self) -> Troubles {
        let mut troubles = Vec::new();
        if let Err(error) = self.raft().room() {
            troubles.push(error.to_string());
        }
        if let Some(upto) = self.raft().owed() {
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
