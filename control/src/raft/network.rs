//! The way to other servers.
//!
//! One server forms a cluster by itself so far: nobody is asked, and whoever would be is out of reach.
//! The stream that carries entries between servers takes this place.

use std::future::Future;
use std::io;

use openraft::OptionalSend;
use openraft::alias::{SnapshotOf, VoteOf};
use openraft::errors::{RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};

use super::snapshot::SnapshotFile;
use super::types::TypeConfig;

/// Makes ways to other servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peers;

/// The way to one other server.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    server_id: u64,
    addr: String,
}

impl Peer {
    fn unreachable(&self) -> Unreachable<TypeConfig> {
        Unreachable::new(&io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "server {} at {} cannot be reached: this version forms clusters of one server",
                self.server_id, self.addr
            ),
        ))
    }
}

impl RaftNetworkFactory<TypeConfig> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, server_id: u64, node: &openraft::BasicNode) -> Peer {
        Peer {
            server_id,
            addr: node.addr.clone(),
        }
    }
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn vote(
        &mut self,
        _: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    // The library's default grants every pre-vote.
    async fn pre_vote(
        &mut self,
        _: VoteRequest<TypeConfig>,
        _: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        Err(RPCError::Unreachable(self.unreachable()))
    }

    async fn full_snapshot(
        &mut self,
        _: VoteOf<TypeConfig>,
        _: SnapshotOf<TypeConfig, SnapshotFile>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        Err(StreamingError::Unreachable(self.unreachable()))
    }
}
