//! The replicated log: openraft, its storage and its network, behind functions without its types.
//!
//! Nothing outside `raft/` names openraft. A write returns when its entry is on disk, committed and
//! applied here.

mod log;
mod machine;
mod network;
mod snapshot;
#[cfg(test)]
mod tests;
mod types;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_control_core::fsm::{Command, Response};
use muster_domain::id::LogIndex;
use muster_wire::codec::{self, EncodeError};
use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ClientWriteError, RaftError};
use openraft::{BasicNode, SnapshotPolicy};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use self::log::LogStore;
use self::machine::Machine;
use self::network::Peers;
use self::snapshot::{Restored, SnapshotStore};
use self::types::{Logged, TypeConfig};
use crate::data_dir::DataDir;
use crate::limits;
use crate::published::Published;

pub use log::OpenLogError;
pub use snapshot::ReadSnapshotError;

/// Bytes of an entry besides its command.
const ENTRY_OVERHEAD_BYTES: usize = 4096;

/// The server that leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaderInfo {
    /// Its number.
    pub server_id: u64,
    /// Where it speaks QUIC.
    pub raft_addr: String,
    /// Whether it is this server.
    pub is_self: bool,
}

/// Who leads, and since which election.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leadership {
    /// `None` during an election.
    pub(crate) leader: Option<LeaderInfo>,
    /// Counts elections.
    pub(crate) term: u64,
}

impl Leadership {
    /// Whether this server leads.
    pub(crate) fn is_self(&self) -> bool {
        self.leader.as_ref().is_some_and(|leader| leader.is_self)
    }
}

/// What Raft needs to start.
#[derive(Clone, Debug)]
pub(crate) struct RaftConfig {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// Where this server speaks QUIC.
    pub(crate) addr: String,
    /// The data directory. It stays locked until nothing of Raft can write to it.
    pub(crate) data_dir: Arc<DataDir>,
}

/// Why Raft could not start.
#[derive(Debug, thiserror::Error)]
pub enum StartRaftError {
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] OpenLogError),
    /// The directory of snapshots cannot be used.
    #[error("the snapshots in {} cannot be used", dir.display())]
    SnapshotDir {
        /// The directory.
        dir: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No snapshot that can be read reaches back to the log.
    #[error(
        "the log begins after entry {purged}, and no snapshot that can be read reaches it: restore a backup of {}, or remove \
         this server from its cluster, empty its data directory and let it join again",
        dir.display()
    )]
    Snapshot {
        /// The snapshots' directory.
        dir: PathBuf,
        /// The last entry that the log has no more.
        purged: u64,
        /// Why the newest cannot be read; `None` if it is not there.
        #[source]
        source: Option<ReadSnapshotError>,
    },
    /// openraft refused to start.
    #[error("raft cannot start: {reason}")]
    Raft {
        /// Its reason.
        reason: String,
    },
    /// The only server did not come to lead.
    #[error(
        "raft elected no leader within {waited:?}: the disk may be stuck; see the messages before this one"
    )]
    NoLeader {
        /// How long it was waited for.
        waited: Duration,
    },
}

/// Why a command was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// It cannot be encoded.
    #[error("the command cannot be encoded")]
    Encode(#[from] EncodeError),
    /// It is too large for an entry.
    #[error("a command of {bytes} bytes is above the limit of {max}", max = limits::ENTRY_BYTES_MAX)]
    TooLarge {
        /// Its size.
        bytes: usize,
    },
    /// Another server leads, or none.
    #[error("this server does not lead")]
    NotLeader {
        /// Who does.
        leader: Option<LeaderInfo>,
    },
    /// It was not committed in time; it may still be.
    #[error("no commit within {waited:?}")]
    Timeout {
        /// How long it was waited for.
        waited: Duration,
    },
    /// Raft has stopped.
    #[error("raft has stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
}

/// A running Raft.
#[derive(Debug)]
pub(crate) struct Raft {
    raft: openraft::Raft<TypeConfig, Machine>,
    server_id: u64,
    log_bytes_cut: u64,
    leadership: watch::Receiver<Leadership>,
    failed: watch::Receiver<Option<String>>,
    _watcher: AbortOnDropHandle<()>,
}

impl Raft {
    /// Restores what is on disk and starts. A server on its own leads when this returns.
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
        let machine = Machine::new(published, snapshots, restored);
        let server_id = config.data_dir.server_id();
        let raft = openraft::Raft::new(
            server_id,
            Arc::new(openraft_config(&config)?),
            Peers,
            log,
            machine,
        )
        .await
        .map_err(raft_error)?;
        let (leadership, failed, watcher) = watch_raft(&raft, server_id, config.addr.clone());
        let raft = Self {
            raft,
            server_id,
            log_bytes_cut,
            leadership,
            failed,
            _watcher: watcher,
        };
        raft.lead_alone(config.addr).await?;
        Ok(raft)
    }

    /// Forms a cluster of one at the first start; asks for leadership at once when there is nobody
    /// else to ask.
    async fn lead_alone(&self, addr: String) -> Result<(), StartRaftError> {
        if self.raft.is_initialized().await.map_err(raft_error)? {
            if self.raft.voter_ids().ne([self.server_id]) {
                return Ok(());
            }
            self.raft.trigger().elect(false).await.map_err(raft_error)?;
        } else {
            // Stands for election by itself.
            let members = BTreeMap::from([(self.server_id, BasicNode { addr })]);
            self.raft.initialize(members).await.map_err(raft_error)?;
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
        // Everything acknowledged before the restart is applied before anybody can read.
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
                Ok(_) => return Ok(()),
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

    /// Writes `command`. Returns its position and its answer once it is applied here.
    pub(crate) async fn write(
        &self,
        command: &Command,
    ) -> Result<(LogIndex, Response), WriteError> {
        let body = codec::encode(command)?;
        if body.len() + ENTRY_OVERHEAD_BYTES > limits::ENTRY_BYTES_MAX {
            return Err(WriteError::TooLarge { bytes: body.len() });
        }
        let logged = Logged {
            format: command.version(),
            body: Arc::from(body),
        };
        let waited = limits::PROPOSE_WAIT;
        match tokio::time::timeout(waited, self.write_logged(logged)).await {
            Ok(result) => result,
            Err(_) => Err(WriteError::Timeout { waited }),
        }
    }

    async fn write_logged(&self, logged: Logged) -> Result<(LogIndex, Response), WriteError> {
        loop {
            let forward = match self.raft.client_write(logged.clone()).await {
                Ok(answer) => {
                    let response = answer
                        .data
                        .0
                        .expect("an entry with a command is answered with a response");
                    return Ok((LogIndex(answer.log_id.index), response));
                }
                Err(RaftError::Fatal(fatal)) => {
                    return Err(WriteError::Stopped {
                        reason: fatal.to_string(),
                    });
                }
                Err(RaftError::APIError(ClientWriteError::ForwardToLeader(forward))) => forward,
                Err(RaftError::APIError(error)) => {
                    tracing::debug!(%error, "a proposal was discarded");
                    return Err(WriteError::NotLeader {
                        leader: self.leader(),
                    });
                }
            };
            match forward.leader_id {
                Some(other) if other != self.server_id => {
                    return Err(WriteError::NotLeader {
                        leader: self.leader(),
                    });
                }
                // An election, or a leader whose lease the disk let run out: both pass.
                _ => tokio::time::sleep(limits::LEADER_RETRY_PAUSE).await,
            }
        }
    }

    /// Who leads.
    pub(crate) fn leader(&self) -> Option<LeaderInfo> {
        self.leadership.borrow().leader.clone()
    }

    /// Changes of leadership.
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

    /// Entries in the log so far, purged ones included.
    pub(crate) fn last_log_index(&self) -> LogIndex {
        LogIndex(
            self.raft
                .metrics()
                .borrow_watched()
                .last_log_index
                .unwrap_or(0),
        )
    }

    /// Takes a snapshot and waits until the file is there.
    pub(crate) async fn snapshot(&self) -> Result<LogIndex, WriteError> {
        let stopped = |reason: String| WriteError::Stopped { reason };
        let upto = self
            .raft
            .metrics()
            .borrow_watched()
            .last_applied
            .map_or(0, |log_id| log_id.index);
        self.raft
            .trigger()
            .snapshot()
            .await
            .map_err(|error| stopped(error.to_string()))?;
        self.raft
            .wait(Some(limits::SNAPSHOT_INSTALL_TIMEOUT))
            .metrics(
                |metrics| metrics.snapshot.is_some_and(|at| at.index >= upto),
                "snapshot",
            )
            .await
            .map_err(|error| stopped(error.to_string()))?;
        Ok(LogIndex(upto))
    }

    /// Stops. Entries that were not acknowledged may or may not be in the log.
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
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    openraft::Config {
        cluster_name: config.cluster.clone(),
        heartbeat_interval: millis(limits::RAFT_HEARTBEAT),
        election_timeout_min: millis(limits::RAFT_ELECTION_MIN),
        election_timeout_max: millis(limits::RAFT_ELECTION_MAX),
        install_snapshot_timeout: millis(limits::SNAPSHOT_INSTALL_TIMEOUT),
        snapshot_policy: SnapshotPolicy::LogsSinceLast(limits::SNAPSHOT_EVERY),
        max_in_snapshot_log_to_keep: limits::LOG_KEPT_ENTRIES,
        // A restarted leader stands for election, so that what it acknowledged before is committed again
        // and applied before it answers: the committed position on disk may be older.
        enable_leader_restore: Some(false),
        ..openraft::Config::default()
    }
    .validate()
    .map_err(raft_error)
}

/// Opens the log and the newest snapshot that can be read and that the log continues.
fn open_storage(
    config: &RaftConfig,
) -> Result<(LogStore, SnapshotStore, Option<Restored>), StartRaftError> {
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
        .and_then(|restored| restored.meta.last_log_id);
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

type Watched = (
    watch::Receiver<Leadership>,
    watch::Receiver<Option<String>>,
    AbortOnDropHandle<()>,
);

/// Turns openraft's metrics into ours.
fn watch_raft(raft: &openraft::Raft<TypeConfig, Machine>, server_id: u64, addr: String) -> Watched {
    let (leadership_sender, leadership) = watch::channel(Leadership::default());
    let (failed_sender, failed) = watch::channel(None);
    let mut metrics = raft.metrics();
    let watcher = tokio::spawn(async move {
        loop {
            let (now, orderly, fatal) = {
                let metrics = metrics.borrow_and_update();
                let leader = metrics.current_leader.map(|leader_id| LeaderInfo {
                    server_id: leader_id,
                    raft_addr: if leader_id == server_id {
                        // The membership may still name an address of an earlier start.
                        addr.clone()
                    } else {
                        let node = metrics.membership_config.membership().get_node(&leader_id);
                        node.map_or_else(String::new, |node| node.addr.clone())
                    },
                    is_self: leader_id == server_id,
                });
                let stopped = metrics.running_state.as_ref().err();
                let orderly = matches!(stopped, Some(openraft::errors::Fatal::Stopped));
                let fatal = stopped.map(ToString::to_string);
                (
                    Leadership {
                        leader,
                        term: metrics.current_term,
                    },
                    orderly,
                    fatal,
                )
            };
            leadership_sender.send_if_modified(|shown| {
                let changed = *shown != now;
                *shown = now;
                changed
            });
            if let Some(reason) = fatal {
                if orderly {
                    tracing::debug!("raft has stopped, as it was told to");
                } else {
                    tracing::error!(reason, "raft has stopped");
                }
                failed_sender.send_replace(Some(reason));
                return;
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    });
    (leadership, failed, AbortOnDropHandle::new(watcher))
}
