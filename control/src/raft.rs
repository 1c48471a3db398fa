//! The replicated log: openraft, its storage and its network, behind functions without openraft's types.
//!
//! Only `raft/` names openraft. A write returns when its entry is on disk, committed and applied here.

mod compaction;
mod forward;
mod lead;
mod log;
mod lost_end;
mod machine;
pub(crate) mod membership;
mod network;
mod read;
mod reclaim;
pub(crate) mod restore;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use muster_control_core::fsm::{Command, Entry, Response};
use muster_domain::id::LogIndex;
use muster_domain::saturating;
use muster_wire::codec::{self, EncodeError};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{Instant as _, SnapshotPolicy};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use self::forward::{Forwarder, Outcome};
use self::log::LogStore;
use self::lost_end::LostEnd;
use self::machine::Machine;
use self::network::Network;
use self::read::Reads;
use self::restore::step::LastRestored;
use self::snapshot::{RestoredSnapshot, SnapshotStore};
use self::types::{EncodedCommand, TypeConfig};
use crate::data_dir::DataDir;
use crate::limits;
use crate::peers::Peers;
use crate::peers::message::{PeerInfo, ServerNode};
use crate::published::Published;

pub(crate) use log::DiskHealth;
pub use log::OpenLogError;
#[cfg(test)]
pub(crate) use log::failpoint;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use log::fuzz::raft_log as fuzz_log;
pub use membership::ChangeServersError;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use snapshot::fuzz::snapshot as fuzz_snapshot;
pub(crate) use snapshot::inspect;
pub use snapshot::{
    ReadSnapshotError, SavedSnapshot, SnapshotInfo, SnapshotReader, SnapshotWriter, TableInfo,
};

/// Bytes of an entry besides its command.
const ENTRY_OVERHEAD_BYTES: usize = 4096;

/// The server that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderInfo {
    pub server_id: u64,
    pub name: String,
    /// The address for QUIC.
    pub raft_addr: String,
    /// The address for HTTP.
    pub http_addr: String,
    /// Whether this server is the leader.
    pub is_self: bool,
}

/// The leader and the term of its election.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    /// `None` during an election.
    pub(crate) leader: Option<LeaderInfo>,
    pub(crate) term: u64,
    /// Time at which this server learned of this leader and term.
    pub(crate) since: Instant,
}

impl Default for Leadership {
    fn default() -> Self {
        Self {
            leader: None,
            term: 0,
            since: Instant::now(),
        }
    }
}

impl Leadership {
    /// Whether this server leads.
    pub(crate) fn is_self(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.is_self)
    }
}

/// Settings and parts that Raft needs to start.
#[derive(Clone, Debug)]
pub(crate) struct RaftConfig {
    pub(crate) cluster: String,
    /// Connections to the other servers.
    pub(crate) peers: Peers,
    /// Whether to found a cluster of this server alone, if it belongs to none.
    pub(crate) alone: bool,
    /// The data directory. It stays locked while any part of Raft can write to it.
    pub(crate) data_dir: Arc<DataDir>,
}

/// The reason why Raft could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartRaftError {
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] OpenLogError),
    /// The directory of snapshots cannot be used.
    #[error("the snapshots in {} cannot be used", dir.display())]
    SnapshotDir {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    /// No readable snapshot reaches back to the start of the log.
    #[error(
        "the log begins after entry {purged}, and no snapshot that can be read reaches it: restore a backup of {}, or remove \
         this server from its cluster, empty its data directory and let it join again",
        dir.display()
    )]
    Snapshot {
        dir: PathBuf,
        /// The last purged entry of the log.
        purged: u64,
        /// The reason why the newest snapshot cannot be read; `None` if there is no snapshot.
        #[source]
        source: Option<ReadSnapshotError>,
    },
    /// The log of the only voter lost acknowledged entries.
    #[error(
        "the log in {} lost entries that were acknowledged, up to entry {lost}, and no other server has them: restore a backup \
         of the data directory, or move the file `mark` in it away to go on without them",
        dir.display()
    )]
    LostEntries {
        dir: PathBuf,
        /// The last acknowledged entry.
        lost: u64,
    },
    /// openraft refused to start.
    #[error("raft cannot start: {reason}")]
    Raft { reason: String },
    /// The only server was not elected in time.
    #[error(
        "raft elected no leader within {waited:?}: the disk may be stuck; see the messages before this one"
    )]
    NoLeader {
        /// The time limit for the election.
        waited: Duration,
    },
}

/// The reason why a command was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The command cannot be encoded.
    #[error("the command cannot be encoded")]
    Encode(#[from] EncodeError),
    /// The command is too large for an entry.
    #[error("a command of {bytes} bytes is above the limit of {max}", max = limits::ENTRY_BYTES_MAX)]
    TooLarge { bytes: usize },
    /// Another server leads, or none.
    #[error("this server does not lead")]
    NotLeader {
        /// The server that leads, if known.
        leader: Option<LeaderInfo>,
    },
    /// The outcome is unknown: the command may have been committed, or may be later.
    #[error("it is not known whether it was committed: {reason}")]
    Unknown {
        /// How long the caller waited.
        waited: Duration,
        reason: String,
    },
    /// The log cannot grow.
    #[error("the disk under {} is full: {reason}", dir.display())]
    DiskFull {
        dir: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    #[error("raft has stopped: {reason}")]
    Stopped { reason: String },
}

/// A running Raft.
#[derive(Debug)]
pub(crate) struct Raft {
    raft: openraft::Raft<TypeConfig, Machine>,
    server_id: u64,
    log_bytes_cut: u64,
    lost_end: LostEnd,
    stalls: Mutex<membership::StalledServers>,
    peers: Peers,
    published: Arc<Published>,
    leadership: watch::Receiver<Leadership>,
    failed: watch::Receiver<Option<String>>,
    disk: watch::Receiver<DiskHealth>,
    forwarder: Forwarder,
    reads: Reads,
    snapshots: SnapshotStore,
    restored: LastRestored,
    /// The directory in which snapshots of the leader arrive.
    incoming: PathBuf,
    /// A lock that is held while a snapshot arrives.
    receiving: tokio::sync::Mutex<()>,
    _compaction: AbortOnDropHandle<()>,
    _watcher: AbortOnDropHandle<()>,
}

impl Raft {
    /// Restores the state on disk and starts Raft. A server on its own leads when this returns.
    pub(crate) async fn start(
        config: RaftConfig,
        published: Arc<Published>,
    ) -> Result<Self, StartRaftError> {
        let (log, snapshots, restored) = {
            let config = config.clone();
            tokio::task::spawn_blocking(move || open_storage(&config))
                .await
                .map_err(raft_error)??
        };
        let log_bytes_cut = log.bytes_cut();
        let disk = log.disk();
        let machine = Machine::new(Arc::clone(&published), snapshots.clone(), restored);
        let restored = machine.restored();
        let log_watch = log.watch();
        let lost_end = LostEnd::new(log.lost(), log.watch());
        let server_id = config.data_dir.server_id();
        let peers = config.peers.clone();
        let raft = openraft::Raft::new(
            server_id,
            Arc::new(openraft_config(&config)?),
            Network(peers.clone()),
            log,
            machine,
        )
        .await
        .map_err(raft_error)?;
        let (leadership, failed, watcher) = watch_raft(&raft, &peers, &published);
        if let Some(lost) = lost_end.last_missing_index() {
            if raft.voter_ids().eq([server_id]) {
                let dir = config.data_dir.log();
                return Err(StartRaftError::LostEntries { dir, lost });
            }
            lost_end.disable_elections_until_complete(raft.clone());
        }
        let raft = Self {
            server_id,
            log_bytes_cut,
            lost_end,
            stalls: Mutex::default(),
            published,
            disk,
            peers: peers.clone(),
            forwarder: Forwarder::start(peers.clone()),
            reads: Reads::start(&raft, &peers, &leadership),
            leadership,
            failed,
            restored,
            _compaction: compaction::spawn(raft.clone(), log_watch, snapshots.clone()),
            snapshots,
            incoming: config.data_dir.snapshots().join("incoming"),
            receiving: tokio::sync::Mutex::new(()),
            raft,
            _watcher: watcher,
        };
        raft.lead_as_only_voter(peers.me(), config.alone).await?;
        Ok(raft)
    }

    /// Forms a cluster of one server at the first start, if `alone`. Starts an election at once if this server is
    /// the only voter.
    async fn lead_as_only_voter(&self, me: &PeerInfo, alone: bool) -> Result<(), StartRaftError> {
        if self.raft.is_initialized().await.map_err(raft_error)? {
            if self.raft.voter_ids().ne([self.server_id]) {
                return Ok(());
            }
            self.raft.trigger().elect(false).await.map_err(raft_error)?;
        } else if alone {
            // A new cluster of one server starts its election by itself.
            self.found(std::slice::from_ref(me))
                .await
                .map_err(raft_error)?;
        } else {
            return Ok(());
        }
        let mut leadership = self.leadership.clone();
        let lead = leadership.wait_for(Leadership::is_self);
        match tokio::time::timeout(limits::LEAD_WAIT, lead).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(raft_error(error)),
            Err(_) => {
                return Err(StartRaftError::NoLeader {
                    waited: limits::LEAD_WAIT,
                });
            }
        }
        // Reads must see every change that was acknowledged before the restart.
        self.barrier().await.map_err(raft_error)
    }

    /// Waits until everything committed so far is applied here; fails if this server does not lead.
    pub(crate) async fn barrier(&self) -> Result<(), WriteError> {
        let deadline = Instant::now() + limits::PROPOSE_WAIT;
        loop {
            match self
                .raft
                .ensure_linearizable(openraft::ReadPolicy::ReadIndex)
                .await
            {
                Ok(_) => {
                    self.note_caught_up(&self.leadership);
                    return Ok(());
                }
                Err(RaftError::Fatal(fatal)) => {
                    return Err(WriteError::Stopped {
                        reason: fatal.to_string(),
                    });
                }
                Err(RaftError::APIError(error))
                    if Instant::now() >= deadline || !self.leadership.borrow().is_self() =>
                {
                    tracing::debug!(%error, "no barrier");
                    return Err(WriteError::NotLeader {
                        leader: self.leader(),
                    });
                }
                Err(RaftError::APIError(_)) => tokio::time::sleep(limits::LEADER_RETRY_PAUSE).await,
            }
        }
    }

    /// Writes `entry`, through the leader if that is another server. Returns its position and its answer once it
    /// is applied here.
    ///
    /// Repeats a command with a write key until an answer is known: the command is applied once.
    pub(crate) async fn write(&self, entry: &Entry) -> Result<(LogIndex, Response), WriteError> {
        let body = codec::encode(entry)?;
        if body.len() + ENTRY_OVERHEAD_BYTES > limits::ENTRY_BYTES_MAX {
            return Err(WriteError::TooLarge { bytes: body.len() });
        }
        let logged = EncodedCommand {
            format: entry.command.version(),
            body: Arc::from(body),
        };
        let repeatable = matches!(entry.command, Command::Keyed { .. });
        let begun = Instant::now();
        let deadline = begun + limits::PROPOSE_WAIT;
        let mut leadership = self.leadership.clone();
        loop {
            let leader = {
                let now = leadership.borrow_and_update();
                now.leader.as_ref().map(|leader| leader.server_id)
            };
            let outcome = match leader {
                Some(leader) if leader == self.server_id => {
                    self.write_locally(&logged, deadline).await
                }
                Some(leader) => self.forward_write(leader, &logged, deadline).await,
                None => Err(WriteError::NotLeader { leader: None }),
            };
            match outcome {
                // A server that is not alone transfers leadership when its disk is full.
                Err(error @ (WriteError::NotLeader { .. } | WriteError::DiskFull { .. })) => {
                    let election = begun + limits::ELECTION_WAIT;
                    let alone = self.raft.voter_ids().count() < 2;
                    let full = matches!(error, WriteError::DiskFull { .. });
                    if Instant::now() >= election || (full && alone) {
                        return Err(error);
                    }
                    wait_for_leadership_change(&mut leadership, election).await;
                }
                Err(WriteError::Unknown { .. }) if repeatable && Instant::now() < deadline => {
                    wait_for_leadership_change(&mut leadership, deadline).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Fails if the log cannot grow. In that case no change may be acknowledged.
    pub(crate) fn check_disk(&self) -> Result<(), WriteError> {
        match &*self.disk.borrow() {
            DiskHealth::Writable => Ok(()),
            DiskHealth::Full { dir, reason } => Err(WriteError::DiskFull {
                dir: dir.clone(),
                reason: reason.clone(),
            }),
        }
    }

    /// Writes to this server's log, as its leader.
    async fn write_locally(
        &self,
        logged: &EncodedCommand,
        deadline: Instant,
    ) -> Result<(LogIndex, Response), WriteError> {
        self.check_disk()?;
        let writing = self.raft.client_write(logged.clone());
        let Ok(written) = tokio::time::timeout_at(deadline, writing).await else {
            return Err(WriteError::Unknown {
                waited: limits::PROPOSE_WAIT,
                reason: "the other servers, or the disk, did not take it in time".to_owned(),
            });
        };
        match written {
            Ok(answer) => {
                let response = answer
                    .data
                    .0
                    .expect("an entry with a command is answered with a response");
                Ok((LogIndex(answer.log_id.index), response))
            }
            Err(RaftError::Fatal(fatal)) => Err(WriteError::Stopped {
                reason: fatal.to_string(),
            }),
            Err(RaftError::APIError(ClientWriteError::ForwardToLeader(_))) => {
                Err(WriteError::NotLeader {
                    leader: self.leader().filter(|leader| !leader.is_self),
                })
            }
            Err(RaftError::APIError(error)) => Err(WriteError::Unknown {
                waited: limits::PROPOSE_WAIT,
                reason: error.to_string(),
            }),
        }
    }

    /// Sends `logged` to `leader` and waits until its entry is applied here.
    async fn forward_write(
        &self,
        leader: u64,
        logged: &EncodedCommand,
        deadline: Instant,
    ) -> Result<(LogIndex, Response), WriteError> {
        let unknown = |reason: String| WriteError::Unknown {
            waited: limits::PROPOSE_WAIT,
            reason,
        };
        let proposing = self.forwarder.propose(leader, logged.clone());
        let answered = tokio::select! {
            answered = tokio::time::timeout_at(deadline, proposing) => answered,
            () = self.wait_for_new_leader(leader) => Ok(Outcome::Unknown {
                reason: "another server leads now, and the former leader has not answered".to_owned(),
            }),
        };
        match answered {
            Ok(Outcome::Applied { index, response }) => {
                if self.wait_applied(index, deadline).await {
                    return Ok((index, response));
                }
                Err(unknown(
                    "it is committed, and this server is behind".to_owned(),
                ))
            }
            Ok(Outcome::NotLeader) => Err(WriteError::NotLeader {
                leader: self.leader(),
            }),
            Ok(Outcome::Unknown { reason }) => Err(unknown(reason)),
            Err(_) => Err(unknown("the leader has not answered in time".to_owned())),
        }
    }

    /// Resolves [`limits::FORMER_LEADER_WAIT`] after another server than `leader` leads.
    async fn wait_for_new_leader(&self, leader: u64) {
        let mut leadership = self.leadership.clone();
        let another = leadership.wait_for(|now| {
            now.leader
                .as_ref()
                .is_some_and(|now| now.server_id != leader)
        });
        if another.await.is_err() {
            // Raft has stopped; the caller's answer reports that.
            return std::future::pending().await;
        }
        tokio::time::sleep(limits::FORMER_LEADER_WAIT).await;
    }

    /// Waits until the entry at `index` is applied here. Returns false if it is not applied by `deadline`.
    pub(crate) async fn wait_applied(&self, index: LogIndex, deadline: Instant) -> bool {
        let mut applied = self.published.applied();
        let reached = applied.wait_for(|now| *now >= index);
        matches!(tokio::time::timeout_at(deadline, reached).await, Ok(Ok(_)))
    }

    /// Returns the leader. `None` also if it has had no contact with this server for a while, or has no quorum.
    pub(crate) fn leader(&self) -> Option<LeaderInfo> {
        let Leadership { leader, since, .. } = self.leadership.borrow().clone();
        let leader = leader?;
        let is_in_contact = if leader.is_self {
            let metrics = self.raft.metrics();
            // This must not borrow the other watch meanwhile: a borrow waits for a writer, and that writer may
            // wait for this borrow.
            let metrics = metrics.borrow_watched();
            let alone = metrics
                .membership_config
                .membership()
                .voter_ids()
                .eq([self.server_id]);
            alone
                || metrics.last_quorum_acked.map_or_else(
                    // A newly elected leader has only the votes as its quorum's confirmation.
                    || since.elapsed() <= limits::LEADER_SILENT,
                    |at| at.elapsed() <= limits::LEADER_SILENT,
                )
        } else {
            // After a restart the vote on disk may name a leader that died long ago.
            self.peers
                .last_contact(leader.server_id)
                .is_some_and(|silence| silence <= limits::LEADER_SILENT)
        };
        is_in_contact.then_some(leader)
    }

    /// Watches changes of leadership.
    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    /// Becomes `Some` with the reason when Raft stops by itself.
    pub(crate) fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed.clone()
    }

    /// Bytes that were cut off the log's end when it was opened.
    pub(crate) fn log_bytes_cut(&self) -> u64 {
        self.log_bytes_cut
    }

    /// The number of entries in the log so far, including purged ones.
    pub(crate) fn last_log_index(&self) -> LogIndex {
        LogIndex(
            self.raft
                .metrics()
                .borrow_watched()
                .last_log_index
                .unwrap_or(0),
        )
    }

    /// Takes a snapshot and waits until its file exists.
    pub(crate) async fn snapshot(&self) -> Result<LogIndex, WriteError> {
        let stopped = |reason: String| WriteError::Stopped { reason };
        let upto = self
            .raft
            .metrics()
            .borrow_watched()
            .last_applied
            .map_or(0, |log_id| log_id.index);
        let taken = |metrics: &openraft::RaftMetrics<TypeConfig>| {
            metrics.snapshot.is_some_and(|at| at.index >= upto)
        };
        let deadline = Instant::now() + limits::SNAPSHOT_INSTALL_TIMEOUT;
        loop {
            self.raft
                .trigger()
                .snapshot()
                .await
                .map_err(|error| stopped(error.to_string()))?;
            // A request during another snapshot has no effect, so it is repeated.
            let waited = Some(limits::SNAPSHOT_ASK_AGAIN);
            match self.raft.wait(waited).metrics(taken, "snapshot").await {
                Ok(_) => return Ok(LogIndex(upto)),
                Err(openraft::metrics::WaitError::Timeout(..)) if Instant::now() < deadline => {}
                Err(error) => return Err(stopped(error.to_string())),
            }
        }
    }

    /// Takes a snapshot and purges the log up to it. Returns the last purged index.
    pub(crate) async fn compact(&self) -> Result<LogIndex, WriteError> {
        let stopped = |reason: String| WriteError::Stopped { reason };
        let upto = self.snapshot().await?;
        self.raft
            .trigger()
            .purge_log(upto.0)
            .await
            .map_err(|error| stopped(error.to_string()))?;
        self.raft
            .wait(Some(limits::CHANGE_SERVERS_WAIT))
            .metrics(
                |metrics| metrics.purged.is_some_and(|at| at.index >= upto.0),
                "purge",
            )
            .await
            .map_err(|error| stopped(error.to_string()))?;
        Ok(upto)
    }

    /// Ends this server's elections, because it was removed.
    pub(crate) fn disable_elections(&self) {
        self.raft.runtime_config().elect(false);
    }

    /// The last index of the entries that this server had acknowledged and lacks.
    pub(crate) fn last_missing_index(&self) -> Option<u64> {
        self.lost_end.last_missing_index()
    }

    /// Whether the log has room to grow.
    pub(crate) fn disk(&self) -> watch::Receiver<DiskHealth> {
        self.disk.clone()
    }

    /// Stops Raft permanently because of `reason`. It neither answers nor votes any more.
    pub(crate) fn halt(&self, reason: String) {
        self.published.halt(reason);
        let raft = self.raft.clone();
        // `failed` reports the outcome.
        tokio::spawn(async move { drop(raft.shutdown().await) });
    }

    /// Stops Raft. Unacknowledged entries may or may not be in the log.
    pub(crate) async fn shutdown(&self) {
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop in order");
        }
    }
}

fn raft_error(error: impl std::fmt::Display) -> StartRaftError {
    StartRaftError::Raft {
        reason: error.to_string(),
    }
}

fn openraft_config(config: &RaftConfig) -> Result<openraft::Config, StartRaftError> {
    let millis = saturating::millis;
    openraft::Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: millis(limits::RAFT_HEARTBEAT),
        election_timeout_min: millis(limits::RAFT_ELECTION_MIN),
        election_timeout_max: millis(limits::RAFT_ELECTION_MAX),
        install_snapshot_timeout: millis(limits::SNAPSHOT_INSTALL_TIMEOUT),
        // `compaction` decides both, by bytes and time as well.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        // A follower that lost the end of its log gets it again. Until then it must not vote as if it had it: see
        // `lost_end`.
        allow_log_reversion: Some(true),
        // A leader without answers of a quorum is silent, so that followers that still receive its messages elect
        // another.
        quorum_loss_probe_interval: Some(millis(limits::RAFT_QUORUM_LOST_SILENCE)),
        // A server that was cut off and returns causes no election.
        enable_pre_vote: Some(true),
        max_payload_entries: limits::ENTRIES_PER_APPEND_MAX,
        purge_batch_size: limits::LOG_PURGE_BATCH,
        // Pauses for a follower that cannot be reached. Connections have their own pauses.
        backoff: "50ms 100ms 200ms ..500ms".to_owned(),
        // A restarted leader starts an election, because the committed position on disk may be older. So it
        // commits and applies its earlier acknowledged entries again before it answers.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
    .validate()
    .map_err(raft_error)
}

/// Opens the log and the newest readable snapshot. Fails unless the snapshot reaches the last purged entry of the
/// log.
fn open_storage(
    config: &RaftConfig,
) -> Result<(LogStore, SnapshotStore, Option<RestoredSnapshot>), StartRaftError> {
    let dir = config.data_dir.snapshots();
    let dir_error = |source| StartRaftError::SnapshotDir {
        dir: dir.clone(),
        source,
    };
    let guard: Arc<DataDir> = Arc::clone(&config.data_dir);
    let log = LogStore::open(&config.data_dir.log(), guard)?;
    let snapshots = SnapshotStore::open(&dir).map_err(dir_error)?;
    let (restored, broken) = snapshots.newest().map_err(dir_error)?;
    for error in &broken {
        tracing::error!(%error, "a snapshot is set aside; an older one and the log take its place");
    }
    let reached = restored
        .as_ref()
        .and_then(|restored| restored.contents.meta.last_log_id);
    match log.purged() {
        Some(purged) if reached.is_none_or(|reached| reached.index < purged.index) => {
            Err(StartRaftError::Snapshot {
                dir: dir.clone(),
                purged: purged.index,
                source: broken.into_iter().next(),
            })
        }
        _ => Ok((log, snapshots, restored)),
    }
}

/// Waits until leadership changes, at most [`limits::LEADER_RETRY_PAUSE`] and not beyond `deadline`.
pub(crate) async fn wait_for_leadership_change(
    leadership: &mut watch::Receiver<Leadership>,
    deadline: Instant,
) {
    let until = deadline.min(Instant::now() + limits::LEADER_RETRY_PAUSE);
    // An error means that Raft has stopped; the next attempt reports that.
    drop(tokio::time::timeout_at(until, leadership.changed()).await);
}

type RaftWatch = (
    watch::Receiver<Leadership>,
    watch::Receiver<Option<String>>,
    AbortOnDropHandle<()>,
);

/// Converts openraft's metrics and updates the members in `peers`.
fn watch_raft(
    raft: &openraft::Raft<TypeConfig, Machine>,
    peers: &Peers,
    published: &Arc<Published>,
) -> RaftWatch {
    let (leadership_sender, leadership) = watch::channel(Leadership::default());
    let (failed_sender, failed) = watch::channel(None);
    let mut metrics = raft.metrics();
    let (peers, published) = (peers.clone(), Arc::clone(published));
    let watcher = tokio::spawn(async move {
        let mut members_at = None;
        loop {
            let (leader, term, stopped) = {
                let metrics = metrics.borrow_and_update();
                let stored = &metrics.membership_config;
                if members_at != Some(*stored.log_id()) {
                    members_at = Some(*stored.log_id());
                    peers.set_members(&members(stored));
                }
                (
                    metrics.current_leader,
                    metrics.current_term,
                    metrics.running_state.clone().err(),
                )
            };
            let now = Leadership {
                leader: leader.map(|server_id| leader_info(&peers, server_id)),
                term,
                since: Instant::now(),
            };
            leadership_sender.send_if_modified(|shown| {
                let changed = (&shown.leader, shown.term) != (&now.leader, now.term);
                if changed {
                    *shown = now;
                }
                changed
            });
            if let Some(fatal) = stopped {
                if matches!(fatal, openraft::errors::Fatal::Stopped) {
                    tracing::debug!("raft has stopped on request");
                } else {
                    tracing::error!(reason = %fatal, "raft has stopped");
                }
                let reason = published.halted().map(str::to_owned);
                failed_sender.send_replace(Some(reason.unwrap_or_else(|| fatal.to_string())));
                return;
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    });
    (leadership, failed, AbortOnDropHandle::new(watcher))
}

fn members(stored: &types::StoredMembership) -> Vec<PeerInfo> {
    let known = |(server_id, node): (&u64, &ServerNode)| PeerInfo {
        server_id: *server_id,
        node: node.clone(),
    };
    stored.membership().nodes().map(known).collect()
}

fn leader_info(peers: &Peers, server_id: u64) -> LeaderInfo {
    // The membership may still have an address of an earlier start, but the address book has the newest one.
    let node = peers.node(server_id).unwrap_or_default();
    LeaderInfo {
        server_id,
        name: node.name,
        raft_addr: node.quic_addr,
        http_addr: node.http_addr,
        is_self: server_id == peers.me().server_id,
    }
}
