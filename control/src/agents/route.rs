//! Requests to nodes, connected to any server.
//!
//! A node that moved from one server to another may for a while have a session on both, one of them dead. So the
//! request goes to the server with the latest contact. Answers are forwarded piece by piece: a slow reader pauses
//! the node's stream, through both servers.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use muster_domain::error_chain::chain;
use muster_domain::id::NodeId;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_wire::rpc::{DiskAck, ExecInput, ExecSession, FailureKind, NodeReply, NodeRequest};
use quinn::Connection;
use tokio::sync::mpsc;

use super::exec::{self, ExecLine};
use super::nodes::Nodes;
use super::request::{self, NodeRequestError};
use crate::handle::{Control, ProposeError};
use crate::limits;
use crate::peers::PeerChannel::Forwarded;
use crate::peers::Peers;
use crate::peers::message::{PeerReply, PeerRequest};

impl Nodes {
    /// Sends a request to `node_id` through the server that it is connected to. The channel ends with the node's
    /// answer; dropping it cancels the request. If the answer breaks off, its last part is a
    /// [`NodeReply::Failed`].
    ///
    /// # Errors
    ///
    /// [`NodeRequestError`] if the node cannot be asked.
    pub async fn request(
        &self,
        node_id: NodeId,
        request: NodeRequest,
    ) -> Result<mpsc::Receiver<NodeReply>, NodeRequestError> {
        ask(self, &self.shared.peers, node_id, request).await
    }

    /// Opens a session with a command on `node_id` through the server that it is connected to. Dropping the
    /// returned value ends the session.
    ///
    /// # Errors
    ///
    /// [`NodeRequestError`] if the node cannot be asked.
    pub async fn exec(
        &self,
        node_id: NodeId,
        session: ExecSession,
    ) -> Result<ExecLine, NodeRequestError> {
        open(self, &self.shared.peers, node_id, session).await
    }
}

/// Sends a request to `node_id`.
async fn ask(
    nodes: &Nodes,
    peers: &Peers,
    node_id: NodeId,
    question: NodeRequest,
) -> Result<mpsc::Receiver<NodeReply>, NodeRequestError> {
    match find(nodes, peers, node_id).await? {
        NodeRoute::Direct(connection) => request::ask(node_id, &connection, question).await,
        NodeRoute::Through(server_id) => pass(peers, server_id, node_id, question).await,
    }
}

/// Opens a session with a command on `node_id`.
async fn open(
    nodes: &Nodes,
    peers: &Peers,
    node_id: NodeId,
    session: ExecSession,
) -> Result<ExecLine, NodeRequestError> {
    let request = NodeRequest::Exec(session);
    let (sender, receiver) = open_stream(nodes, peers, node_id, request).await?;
    Ok(ExecLine::over(sender, receiver))
}

/// Sends a request to `node_id` on a stream in both directions, which reaches the node.
pub(super) async fn open_stream(
    nodes: &Nodes,
    peers: &Peers,
    node_id: NodeId,
    request: NodeRequest,
) -> Result<(FrameSender, FrameReceiver), NodeRequestError> {
    match find(nodes, peers, node_id).await? {
        NodeRoute::Direct(connection) => request::open(node_id, &connection, &request).await,
        NodeRoute::Through(server_id) => {
            let request = PeerRequest::AskNode { node_id, request };
            let opened = peers.open(server_id, Forwarded, request).await;
            opened.map_err(|source| NodeRequestError::Server { node_id, source })
        }
    }
}

/// The route to a node.
enum NodeRoute {
    /// The node is connected to this server.
    Direct(Connection),
    /// The node is connected to the server with this number.
    Through(u64),
}

async fn find(
    nodes: &Nodes,
    peers: &Peers,
    node_id: NodeId,
) -> Result<NodeRoute, NodeRequestError> {
    let local = nodes.local(node_id);
    if let Some((connection, since_last_contact)) = &local
        && *since_last_contact <= limits::NODE_FRESH
    {
        return Ok(NodeRoute::Direct(connection.clone()));
    }
    let elsewhere = locate(peers, node_id).await;
    match (local, elsewhere) {
        (
            Some((connection, here)),
            NodeLocation::At {
                since_last_contact, ..
            },
        ) if here <= since_last_contact => Ok(NodeRoute::Direct(connection)),
        (_, NodeLocation::At { server_id, .. }) => Ok(NodeRoute::Through(server_id)),
        (Some((connection, _)), NodeLocation::Nowhere { .. }) => Ok(NodeRoute::Direct(connection)),
        (None, NodeLocation::Nowhere { silent }) => {
            Err(NodeRequestError::NotConnected { node_id, silent })
        }
    }
}

/// The server that a node is connected to.
enum NodeLocation {
    /// The node is connected to another server, with this time since its last contact.
    At {
        server_id: u64,
        since_last_contact: Duration,
    },
    /// The node is connected to no server that answered.
    Nowhere {
        /// Servers that did not answer.
        silent: Vec<String>,
    },
}

/// Asks all other servers for `node_id` and returns the one with the latest contact.
async fn locate(peers: &Peers, node_id: NodeId) -> NodeLocation {
    let mut asked: FuturesUnordered<_> = peers
        .servers()
        .into_iter()
        .map(|known| async move {
            let request = PeerRequest::NodeHeard { node_id };
            let waited = limits::LOCATE_WAIT;
            (
                peers.call_within(known.server_id, request, waited).await,
                known,
            )
        })
        .collect();
    let mut best: Option<(Duration, u64)> = None;
    let mut silent = Vec::new();
    while let Some((answer, known)) = asked.next().await {
        match answer {
            Ok(PeerReply::NodeHeard { ago: Some(ago) }) => {
                let found = (ago, known.server_id);
                best = Some(best.map_or(found, |best| best.min(found)));
                if ago <= limits::NODE_FRESH {
                    break;
                }
            }
            Ok(PeerReply::NodeHeard { ago: None }) => {}
            Ok(_) => silent.push(known.node.name),
            Err(error) => {
                tracing::debug!(%error, "a server does not say which nodes it has");
                silent.push(known.node.name);
            }
        }
    }
    match best {
        Some((since_last_contact, server_id)) => NodeLocation::At {
            server_id,
            since_last_contact,
        },
        None => NodeLocation::Nowhere { silent },
    }
}

/// Forwards the request to the server that the node is connected to.
async fn pass(
    peers: &Peers,
    server_id: u64,
    node_id: NodeId,
    request: NodeRequest,
) -> Result<mpsc::Receiver<NodeReply>, NodeRequestError> {
    let request = PeerRequest::AskNode { node_id, request };
    let opened = peers.open(server_id, Forwarded, request).await;
    let (mut sender, receiver) =
        opened.map_err(|source| NodeRequestError::Server { node_id, source })?;
    sender.finish();
    let (replies, answers) = mpsc::channel(limits::NODE_REPLIES_MAX);
    tokio::spawn(request::pass_on(receiver, replies, None));
    Ok(answers)
}

/// Returns the time since the last contact with `node_id`, for another server; `None` if it is not connected here.
pub(crate) fn since_last_contact(control: &Control, node_id: NodeId) -> Option<Duration> {
    control.nodes().local(node_id).map(|(_, ago)| ago)
}

/// Counts the node heartbeats that the server `from` received, if this server leads.
pub(crate) async fn count_for_server(
    control: &Control,
    from: u64,
    nodes: Vec<NodeId>,
    left: Vec<NodeId>,
) -> PeerReply {
    match control.count_beats(from, nodes, left).await {
        Some(lease) => PeerReply::Counted {
            lease: lease.duration,
            uncounted: lease.uncounted,
        },
        None => PeerReply::NotLeader,
    }
}

/// Forgets all garbage of the state for another server, if this server leads.
pub(crate) async fn collect_for_server(control: &Control) -> PeerReply {
    match control.collect_garbage_here().await {
        Ok(freed) => PeerReply::Collected(freed),
        Err(ProposeError::NotLeader { .. }) => PeerReply::NotLeader,
        Err(error) => PeerReply::Refused {
            reason: error.to_string(),
        },
    }
}

/// Sends another server's request to a node of this server, and returns the answer to that server.
pub(crate) async fn answer_for_server(
    control: &Control,
    node_id: NodeId,
    request: NodeRequest,
    mut sender: FrameSender,
    receiver: FrameReceiver,
) {
    let Some((connection, _)) = control.nodes().local(node_id) else {
        let silent = Vec::new();
        let error = NodeRequestError::NotConnected { node_id, silent };
        return refuse(sender, &error).await;
    };
    let (is_exec, is_disk) = (
        matches!(request, NodeRequest::Exec(_)),
        matches!(request, NodeRequest::ReadDisk(_)),
    );
    if is_exec || is_disk {
        match request::open(node_id, &connection, &request).await {
            Ok(node) if is_exec => exec::join::<ExecInput>((sender, receiver), node).await,
            Ok(node) => exec::join::<DiskAck>((sender, receiver), node).await,
            Err(error) => refuse(sender, &error).await,
        }
        return;
    }
    let mut replies = match request::ask(node_id, &connection, request).await {
        Ok(replies) => replies,
        Err(error) => return refuse(sender, &error).await,
    };
    loop {
        let reply = tokio::select! {
            reply = replies.recv() => reply,
            () = sender.stopped() => return,
        };
        let Some(reply) = reply else { break };
        if sender.send(&reply).await.is_err() {
            return;
        }
    }
    sender.finish();
    sender.stopped().await;
}

/// Sends the other server the reason why the node gets no request.
async fn refuse(mut sender: FrameSender, error: &NodeRequestError) {
    let failed = NodeReply::Failed {
        reason: chain(error),
        kind: FailureKind::Other,
    };
    // A failed send means that the other server is gone.
    drop(sender.send(&failed).await);
    sender.finish();
    sender.stopped().await;
}
