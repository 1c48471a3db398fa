//! The read index: the index that a server must have applied before it answers a read.
//!
//! Reads that wait together share one request to the leader. Reads that arrive during the request share the next
//! one, because the read index must be newer than the read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use muster_domain::id::LogIndex;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::RaftError;
use openraft::{Instant as _, ReadPolicy};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::machine::Machine;
use super::types::TypeConfig;
use super::{Leadership, Raft};
use crate::limits;
use crate::peers::Peers;
use crate::peers::message::{PeerReply, PeerRequest};

/// The reason why no read index is available.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoIndex {
    /// No server leads, or the former leader does not lead any more.
    NotLeader,
    Stopped(String),
}

type Answer = oneshot::Sender<Result<LogIndex, NoIndex>>;

/// Requests read indexes, many reads at a time.
#[derive(Debug)]
pub(super) struct Reads {
    leader: mpsc::Sender<Answer>,
    linearizable: mpsc::Sender<Answer>,
    /// The term in which this server leads and has applied every earlier entry.
    caught_up: Arc<AtomicU64>,
    _tasks: [AbortOnDropHandle<()>; 2],
}

/// The parts that a request needs.
#[derive(Clone, Debug)]
struct ReadRequest {
    raft: openraft::Raft<TypeConfig, Machine>,
    peers: Peers,
    leadership: watch::Receiver<Leadership>,
    linearizable: bool,
}

impl Reads {
    pub(super) fn start(
        raft: &openraft::Raft<TypeConfig, Machine>,
        peers: &Peers,
        leadership: &watch::Receiver<Leadership>,
    ) -> Self {
        let begin = |linearizable| {
            let read_request = ReadRequest {
                raft: raft.clone(),
                peers: peers.clone(),
                leadership: leadership.clone(),
                linearizable,
            };
            let (sender, waiting) = mpsc::channel(limits::READS_MAX);
            (
                sender,
                AbortOnDropHandle::new(tokio::spawn(read_request.run(waiting))),
            )
        };
        let ((leader, one), (linearizable, other)) = (begin(false), begin(true));
        Self {
            leader,
            linearizable,
            caught_up: Arc::new(AtomicU64::new(0)),
            _tasks: [one, other],
        }
    }
}

impl ReadRequest {
    async fn run(self, mut waiting: mpsc::Receiver<Answer>) {
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, limits::READS_MAX).await > 0 {
            let index = self.request_index().await;
            for answer in batch.drain(..) {
                // The reader may have gone away.
                drop(answer.send(index.clone()));
            }
        }
    }

    async fn request_index(&self) -> Result<LogIndex, NoIndex> {
        let leader = self.leadership.borrow().leader.clone();
        match leader {
            Some(leader) if leader.is_self => read_index(&self.raft, self.linearizable).await,
            Some(leader) => {
                let request = PeerRequest::ReadIndex {
                    linearizable: self.linearizable,
                };
                let waited = limits::READ_INDEX_WAIT;
                match self
                    .peers
                    .call_within(leader.server_id, request, waited)
                    .await
                {
                    Ok(PeerReply::ReadIndex(index)) => Ok(index),
                    Ok(_) => Err(NoIndex::NotLeader),
                    Err(error) => {
                        tracing::debug!(%error, "no read index");
                        Err(NoIndex::NotLeader)
                    }
                }
            }
            None => Err(NoIndex::NotLeader),
        }
    }
}

async fn read_index(
    raft: &openraft::Raft<TypeConfig, Machine>,
    linearizable: bool,
) -> Result<LogIndex, NoIndex> {
    let policy = if linearizable {
        ReadPolicy::ReadIndex
    } else {
        ReadPolicy::LeaseRead
    };
    match raft.get_read_linearizer(policy).await {
        Ok(linearizer) => Ok(LogIndex(linearizer.read_log_id().index())),
        Err(RaftError::Fatal(fatal)) => Err(NoIndex::Stopped(fatal.to_string())),
        Err(RaftError::APIError(error)) => {
            tracing::debug!(%error, "no read index");
            Err(NoIndex::NotLeader)
        }
    }
}

impl Raft {
    /// The read index, if this server leads.
    pub(crate) async fn read_index_here(&self, linearizable: bool) -> Option<LogIndex> {
        read_index(&self.raft, linearizable).await.ok()
    }

    /// The read index. Repeats the request until `deadline` while no server leads.
    pub(crate) async fn read_index(
        &self,
        linearizable: bool,
        deadline: Instant,
    ) -> Result<LogIndex, super::WriteError> {
        if !linearizable && self.leads_by_lease() {
            return Ok(LogIndex(0));
        }
        let reads = if linearizable {
            &self.reads.linearizable
        } else {
            &self.reads.leader
        };
        let mut leadership = self.leadership();
        loop {
            leadership.borrow_and_update();
            let (answer, receiver) = oneshot::channel();
            let asked = async {
                // An error means that the task has stopped; the receiver reports that.
                drop(reads.send(answer).await);
                receiver.await
            };
            match tokio::time::timeout_at(deadline, asked).await {
                Ok(Ok(Ok(index))) => {
                    self.note_caught_up(&leadership);
                    return Ok(index);
                }
                Ok(Ok(Err(NoIndex::Stopped(reason)))) => {
                    return Err(super::WriteError::Stopped { reason });
                }
                Ok(Err(_)) => {
                    return Err(super::WriteError::Stopped {
                        reason: "reads have ended".to_owned(),
                    });
                }
                Ok(Ok(Err(NoIndex::NotLeader))) if Instant::now() < deadline => {
                    super::wait_for_leadership_change(&mut leadership, deadline).await;
                }
                Ok(Ok(Err(NoIndex::NotLeader))) | Err(_) => {
                    return Err(super::WriteError::NotLeader {
                        leader: self.leader(),
                    });
                }
            }
        }
    }

    /// Whether this server certainly leads and has applied every acknowledged entry. In that case its state may
    /// answer a leader's read.
    fn leads_by_lease(&self) -> bool {
        let caught_up = self.reads.caught_up.load(Ordering::Acquire);
        if own_term(&self.leadership) != Some(caught_up) {
            return false;
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        if metrics.current_leader != Some(self.server_id) {
            return false;
        }
        if metrics
            .membership_config
            .membership()
            .voter_ids()
            .eq([self.server_id])
        {
            return true;
        }
        metrics
            .last_quorum_acked
            .is_some_and(|at| at.elapsed() < LEASE)
    }

    /// Records that a barrier has passed in the term in which this server leads.
    pub(super) fn note_caught_up(&self, leadership: &watch::Receiver<Leadership>) {
        if let Some(term) = own_term(leadership)
            && self.applied_own_term(term)
        {
            self.reads.caught_up.store(term, Ordering::Release);
        }
    }

    /// Whether an entry of `term` is applied here. In that case every earlier entry is applied too.
    fn applied_own_term(&self, term: u64) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        metrics
            .last_applied
            .is_some_and(|log_id| log_id.committed_leader_id().term == term)
    }
}

/// The term in which this server leads.
///
/// The leadership is borrowed alone. A borrow waits for a writer, so also borrowing Raft's metrics could deadlock.
fn own_term(leadership: &watch::Receiver<Leadership>) -> Option<u64> {
    let now = leadership.borrow();
    now.is_self().then_some(now.term)
}

/// How long a quorum's confirmation is valid. It is shorter than the time before followers vote for another
/// server. The difference covers the drift of clocks.
const LEASE: Duration = Duration::from_millis(600);
const _: () = assert!(LEASE.as_millis() < limits::RAFT_ELECTION_MAX.as_millis());
