//! Proposals that a follower forwards to the leader.
//!
//! One stream leads to the leader. Proposals that wait together share a frame. The leader writes a frame's
//! proposals to the log together and answers as they are applied. When the stream breaks off, an unanswered
//! proposal may or may not have been committed. Its proposer gets an unknown outcome.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use muster_control_core::fsm::Response;
use muster_domain::id::LogIndex;
use muster_link::frames::{FrameReceiver, FrameSender};
use openraft::errors::ClientWriteError;
use serde::{Deserialize, Serialize};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::Raft;
use super::types::EncodedCommand;
use crate::limits;
use crate::peers::message::PeerRequest;
use crate::peers::{PeerChannel, Peers};

/// The outcome of a forwarded proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Outcome {
    /// The proposal is committed and applied at the leader.
    Applied {
        index: LogIndex,
        response: Response,
    },
    /// The proposal was not written: the receiving server does not lead or takes no changes now.
    NotLeader,
    Unknown {
        reason: String,
    },
}

/// Proposals of one frame, with the sender's numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Proposals(Vec<(u64, EncodedCommand)>);

/// Outcomes, by the sender's numbers.
#[derive(Debug, Serialize, Deserialize)]
struct Outcomes(Vec<(u64, Outcome)>);

/// A proposal that waits for its frame.
#[derive(Debug)]
struct QueuedProposal {
    leader: u64,
    logged: EncodedCommand,
    outcome: oneshot::Sender<Outcome>,
}

/// Sends proposals to the leader.
#[derive(Debug)]
pub(super) struct Forwarder {
    queue: mpsc::Sender<QueuedProposal>,
    _task: AbortOnDropHandle<()>,
}

impl Forwarder {
    pub(super) fn start(peers: Peers) -> Self {
        let (queue, waiting) = mpsc::channel(limits::PROPOSALS_MAX);
        Self {
            queue,
            _task: AbortOnDropHandle::new(tokio::spawn(run(peers, waiting))),
        }
    }

    /// Sends `logged` to `leader` and waits for its outcome.
    pub(super) async fn propose(&self, leader: u64, logged: EncodedCommand) -> Outcome {
        let (outcome, receiver) = oneshot::channel();
        let waiting = QueuedProposal {
            leader,
            logged,
            outcome,
        };
        if self.queue.send(waiting).await.is_err() {
            return Outcome::NotLeader;
        }
        receiver.await.unwrap_or_else(|_| Outcome::Unknown {
            reason: "the stream to the leader broke off".to_owned(),
        })
    }
}

type PendingOutcomes = Arc<Mutex<HashMap<u64, oneshot::Sender<Outcome>>>>;

/// A stream to a leader.
#[derive(Debug)]
struct Session {
    leader: u64,
    sender: FrameSender,
    pending: PendingOutcomes,
    /// Becomes true when the stream has ended.
    ended: watch::Receiver<bool>,
    _reader: AbortOnDropHandle<()>,
}

async fn run(peers: Peers, mut queue: mpsc::Receiver<QueuedProposal>) {
    let mut session: Option<Session> = None;
    let mut batch = Vec::new();
    let mut number = 0;
    while queue.recv_many(&mut batch, limits::FORWARD_BATCH_MAX).await > 0 {
        while !batch.is_empty() {
            let leader = batch[0].leader;
            let frame = take_frame(&mut batch, leader);
            let usable = session
                .as_ref()
                .is_some_and(|session| session.leader == leader && !*session.ended.borrow());
            if !usable {
                session = open(&peers, leader).await;
            }
            let Some(open) = &mut session else {
                for waiting in frame {
                    drop(waiting.outcome.send(Outcome::NotLeader));
                }
                continue;
            };
            if !open.send(frame, &mut number).await {
                session = None;
            }
        }
    }
}

/// Takes the first proposals of `batch` that are for `leader` and fit in a frame.
fn take_frame(batch: &mut Vec<QueuedProposal>, leader: u64) -> Vec<QueuedProposal> {
    let mut bytes = 0;
    let count = batch
        .iter()
        .take_while(|waiting| {
            let first = bytes == 0;
            bytes += waiting.logged.body.len() + 1;
            waiting.leader == leader && (first || bytes <= limits::FORWARD_FRAME_BYTES)
        })
        .count();
    batch.drain(..count).collect()
}

async fn open(peers: &Peers, leader: u64) -> Option<Session> {
    let (sender, receiver) = match peers
        .open(leader, PeerChannel::Control, PeerRequest::Propose)
        .await
    {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(%error, "changes cannot be passed on to the leader");
            return None;
        }
    };
    let pending = PendingOutcomes::default();
    let (end, ended) = watch::channel(false);
    let reader = tokio::spawn(read(receiver, Arc::clone(&pending), end));
    Some(Session {
        leader,
        sender,
        pending,
        ended,
        _reader: AbortOnDropHandle::new(reader),
    })
}

impl Session {
    /// Sends `frame`. Returns false if the stream has ended.
    async fn send(&mut self, frame: Vec<QueuedProposal>, number: &mut u64) -> bool {
        let mut proposals = Vec::with_capacity(frame.len());
        {
            let mut pending = lock(&self.pending);
            for waiting in frame {
                *number += 1;
                pending.insert(*number, waiting.outcome);
                proposals.push((*number, waiting.logged));
            }
        }
        // If the stream ends, also between the two lines above, the reader reports it to the waiting callers.
        if self.sender.send(&Proposals(proposals)).await.is_err() || *self.ended.borrow() {
            lock(&self.pending).clear();
            return false;
        }
        true
    }
}

/// Sends outcomes to their waiting proposers, until the stream ends.
async fn read(mut receiver: FrameReceiver, pending: PendingOutcomes, end: watch::Sender<bool>) {
    while let Ok(Some(Outcomes(outcomes))) = receiver.recv().await {
        let mut pending = lock(&pending);
        for (number, outcome) in outcomes {
            if let Some(waiting) = pending.remove(&number) {
                // The proposer may have gone away.
                drop(waiting.send(outcome));
            }
        }
    }
    end.send_replace(true);
    // Dropping the senders reports an unknown outcome.
    lock(&pending).clear();
}

fn lock(
    pending: &Mutex<HashMap<u64, oneshot::Sender<Outcome>>>,
) -> std::sync::MutexGuard<'_, HashMap<u64, oneshot::Sender<Outcome>>> {
    // Each change is one insertion or removal, so a panic elsewhere leaves the table whole.
    pending.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Raft {
    /// Writes the proposals of another server's stream, until the stream ends.
    pub(crate) async fn take_proposals(&self, sender: FrameSender, mut receiver: FrameReceiver) {
        let (outcomes, outgoing) = mpsc::channel(limits::PROPOSALS_MAX);
        let places = Arc::new(Semaphore::new(limits::PROPOSALS_MAX));
        let writing = tokio::spawn(send_outcomes(sender, outgoing));
        let _writing = AbortOnDropHandle::new(writing);
        let frames = TaskTracker::new();
        loop {
            let proposals = match receiver.recv::<Proposals>().await {
                Ok(Some(Proposals(proposals))) => proposals,
                Ok(None) => break,
                Err(error) => {
                    tracing::debug!(error = %crate::chain(&error), "a stream of proposals broke off");
                    break;
                }
            };
            let count = u32::try_from(proposals.len().min(limits::PROPOSALS_MAX)).unwrap_or(1);
            // While this waits, it does not read, which pauses the other server.
            let Ok(place) = Arc::clone(&places).acquire_many_owned(count).await else {
                break;
            };
            let (numbers, bodies): (Vec<u64>, Vec<EncodedCommand>) = proposals.into_iter().unzip();
            if self.check_disk().is_err() {
                // This server transfers leadership: the sender must find the next leader.
                for number in numbers {
                    drop(outcomes.send((number, Outcome::NotLeader)).await);
                }
                continue;
            }
            match self.raft.client_write_many(bodies).await {
                Ok(written) => {
                    let outcomes = outcomes.clone();
                    frames.spawn(async move {
                        let _place = place;
                        report(numbers, written, &outcomes).await;
                    });
                }
                Err(fatal) => {
                    tracing::debug!(%fatal, "a proposal was not taken");
                    break;
                }
            }
        }
        frames.close();
        // Outcomes of these proposals can still reach their senders.
        frames.wait().await;
    }
}

type WriteResults = futures::stream::BoxStream<
    'static,
    Result<
        openraft::raft::WriteResult<super::types::TypeConfig>,
        openraft::errors::Fatal<super::types::TypeConfig>,
    >,
>;

/// Sends the outcomes of the proposals `numbers`.
async fn report(
    numbers: Vec<u64>,
    mut written: WriteResults,
    outcomes: &mpsc::Sender<(u64, Outcome)>,
) {
    for number in numbers {
        let outcome = match written.next().await {
            Some(Ok(Ok(applied))) => match applied.response.0 {
                Some(response) => Outcome::Applied {
                    index: LogIndex(applied.log_id.index),
                    response,
                },
                None => Outcome::Unknown {
                    reason: "the entry was answered without a response".to_owned(),
                },
            },
            Some(Ok(Err(ClientWriteError::ForwardToLeader(_)))) => Outcome::NotLeader,
            Some(Ok(Err(error))) => Outcome::Unknown {
                reason: error.to_string(),
            },
            Some(Err(fatal)) => Outcome::Unknown {
                reason: fatal.to_string(),
            },
            None => Outcome::Unknown {
                reason: "raft has stopped".to_owned(),
            },
        };
        if outcomes.send((number, outcome)).await.is_err() {
            return;
        }
    }
}

/// Writes outcomes. Outcomes that are ready together share a frame.
async fn send_outcomes(mut sender: FrameSender, mut outgoing: mpsc::Receiver<(u64, Outcome)>) {
    let mut ready = Vec::new();
    while outgoing
        .recv_many(&mut ready, limits::FORWARD_BATCH_MAX)
        .await
        > 0
    {
        if let Err(error) = sender.send(&Outcomes(std::mem::take(&mut ready))).await {
            tracing::debug!(error = %crate::chain(&error), "outcomes of proposals were not sent");
            return;
        }
    }
    sender.finish();
}
