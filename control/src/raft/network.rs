//! Raft's messages between servers.
//!
//! Entries use one long stream for each follower, with many under way at a time and answers in order. Votes and
//! heartbeats are requests of their own, on the same connection but sent first. Snapshots have their own
//! connection. Messages use the encoding of `wire::codec`.

mod backoff;
mod snapshot;

use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{BoxStream, Stream, StreamExt};
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_wire::codec;
use openraft::OptionalSend;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::task::AbortOnDropHandle;

use self::backoff::StreamBackoff;
use super::Raft;
use super::snapshot::SnapshotFile;
use super::types::TypeConfig;
use crate::peers::message::{PeerInfo, PeerReply, PeerRequest, RaftCall, ServerNode};
use crate::peers::{PeerChannel, PeerError, Peers};

/// The factory of clients for other servers.
#[derive(Clone, Debug)]
pub(crate) struct Network(pub(crate) Peers);

/// The client of one other server.
#[derive(Clone, Debug)]
pub(crate) struct Follower {
    peers: Peers,
    server_id: u64,
    backoff: StreamBackoff,
}

/// An answer that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("server {server_id} sent something else than an answer: {what}")]
struct MalformedAnswer {
    server_id: u64,
    what: String,
}

impl Follower {
    async fn ask<A: Serialize, B: DeserializeOwned>(
        &self,
        kind: RaftCall,
        message: &A,
        waited: Duration,
    ) -> Result<B, RPCError<TypeConfig>> {
        let body = codec::encode(message).map_err(|error| unreachable(&error))?;
        let request = PeerRequest::Raft { kind, body };
        let reply = self
            .peers
            .call_within(self.server_id, request, waited)
            .await
            .map_err(|error| rpc_error(&error))?;
        match reply {
            PeerReply::Raft(body) => codec::decode(&body).map_err(|error| unreachable(&error)),
            other => Err(unreachable(&self.malformed(&other))),
        }
    }

    fn malformed(&self, what: &dyn std::fmt::Debug) -> MalformedAnswer {
        MalformedAnswer {
            server_id: self.server_id,
            what: format!("{what:?}"),
        }
    }
}

fn unreachable<E: std::error::Error + 'static>(error: &E) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(error))
}

/// The error for Raft: openraft retries a lost answer at once, and any other error after a pause.
fn rpc_error(error: &PeerError) -> RPCError<TypeConfig> {
    match error {
        PeerError::Lost { .. } => RPCError::Network(NetworkError::new(error)),
        error => unreachable(error),
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Follower;

    async fn new_client(&mut self, server_id: u64, node: &ServerNode) -> Follower {
        self.0.add_if_unknown(&PeerInfo {
            server_id,
            node: node.clone(),
        });
        Follower {
            peers: self.0.clone(),
            server_id,
            backoff: StreamBackoff::new(),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Follower {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(RaftCall::Append, &request, option.soft_ttl())
            .await
    }

    #[expect(clippy::elidable_lifetime_names, reason = "the trait names it")]
    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        _: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: Stream<Item = AppendEntriesRequest<TypeConfig>> + OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            self.backoff.wait_for_turn().await;
            let (sender, receiver) = self
                .peers
                .open(
                    self.server_id,
                    PeerChannel::Control,
                    PeerRequest::RaftAppend,
                )
                .await
                .map_err(|error| rpc_error(&error))?;
            let sending = AbortOnDropHandle::new(tokio::spawn(send_entries(sender, input)));
            Ok(answers(self.clone(), receiver, sending).boxed())
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(RaftCall::Vote, &request, option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(RaftCall::PreVote, &request, option.soft_ttl())
            .await
    }

    async fn full_snapshot(
        &mut self,
        vote: VoteOf<TypeConfig>,
        snapshot: SnapshotOf<TypeConfig, SnapshotFile>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        tokio::select! {
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = snapshot::send(&self.peers, self.server_id, vote, snapshot) => {
                sent.map_err(|error| {
                    tracing::info!(server_id = self.server_id, error = %crate::chain(&error), "a snapshot was not sent whole; it goes on where it stopped");
                    StreamingError::Unreachable(Unreachable::new(&error))
                })
            }
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        self.ask(RaftCall::Transfer, &request, option.soft_ttl())
            .await
    }
}

/// Sends the items of `input` until it ends. The stream's window pauses this while the follower is slow.
async fn send_entries<S>(mut sender: FrameSender, mut input: S)
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
{
    while let Some(request) = input.next().await {
        if let Err(error) = sender.send(&request).await {
            tracing::debug!(error = %crate::chain(&error), "entries were not sent");
            return;
        }
    }
    sender.finish();
}

/// The follower's answers, in the order of the requests.
fn answers(
    follower: Follower,
    receiver: FrameReceiver,
    sending: AbortOnDropHandle<()>,
) -> impl Stream<Item = Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>> {
    let begin = Some((follower, receiver, sending));
    futures::stream::unfold(begin, |state| async move {
        let (follower, mut receiver, sending) = state?;
        match receiver.recv::<StreamAppendResult<TypeConfig>>().await {
            Ok(Some(answer)) => {
                follower.peers.note_contact(follower.server_id);
                follower.backoff.answered(&answer);
                Some((Ok(answer), Some((follower, receiver, sending))))
            }
            Ok(None) => None,
            Err(error) => Some((Err(RPCError::Network(NetworkError::new(&error))), None)),
        }
    })
}

/// The receiving end: requests of other servers' Rafts.
impl Raft {
    /// Answers one message.
    pub(crate) async fn answer(&self, kind: RaftCall, body: &[u8]) -> PeerReply {
        let answered = match kind {
            RaftCall::Append => match codec::decode(body) {
                Ok(request) => encoded(self.raft.append_entries(request).await),
                Err(error) => Err(error.to_string()),
            },
            RaftCall::Vote => match codec::decode::<VoteRequest<TypeConfig>>(body) {
                Ok(request) => match self.lost_end.vote_refusal(request.last_log_id) {
                    Some(reason) => Err(reason),
                    None => encoded(self.raft.vote(request).await),
                },
                Err(error) => Err(error.to_string()),
            },
            RaftCall::PreVote => match codec::decode::<VoteRequest<TypeConfig>>(body) {
                Ok(request) => match self.lost_end.vote_refusal(request.last_log_id) {
                    Some(reason) => Err(reason),
                    None => encoded(self.raft.pre_vote(request).await),
                },
                Err(error) => Err(error.to_string()),
            },
            RaftCall::Transfer => match codec::decode(body) {
                Ok(request) => match self.lost_end.vote_refusal(None) {
                    Some(reason) => Err(reason),
                    None => encoded(self.raft.handle_transfer_leader(request).await),
                },
                Err(error) => Err(error.to_string()),
            },
        };
        match answered {
            Ok(body) => PeerReply::Raft(body),
            Err(reason) => PeerReply::Refused { reason },
        }
    }

    /// Takes entries until the leader's stream ends.
    pub(crate) async fn take_entries(
        &self,
        peers: &Peers,
        from: u64,
        mut sender: FrameSender,
        receiver: FrameReceiver,
    ) {
        let peers = peers.clone();
        let requests = futures::stream::unfold(receiver, move |mut receiver| {
            let peers = peers.clone();
            async move {
                match receiver.recv::<AppendEntriesRequest<TypeConfig>>().await {
                    Ok(Some(request)) => {
                        peers.note_contact(from);
                        Some((request, receiver))
                    }
                    Ok(None) => None,
                    Err(error) => {
                        tracing::debug!(from, error = %crate::chain(&error), "a leader's stream broke off");
                        None
                    }
                }
            }
        });
        let mut answers = Box::pin(self.raft.stream_append(requests));
        while let Some(answer) = answers.next().await {
            let Ok(answer) = answer else {
                // Raft has stopped, which `Raft::failed` reports.
                return;
            };
            if sender.send(&answer).await.is_err() {
                return;
            }
        }
        sender.finish();
        sender.stopped().await;
    }
}

fn encoded<T: Serialize, E: std::fmt::Display>(answer: Result<T, E>) -> Result<Vec<u8>, String> {
    match answer {
        Ok(answer) => codec::encode(&answer).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
