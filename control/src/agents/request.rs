//! Requests to a node: each has its own stream, which the server opens.

use std::time::Duration;

use muster_domain::error_chain::chain;
use muster_domain::id::NodeId;
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_wire::limits::LOG_TAKEN_BYTES;
use muster_wire::rpc::{FailureKind, LogAck, NodeReply, NodeRequest};
use quinn::{Connection, ConnectionError};
use tokio::sync::mpsc;

use crate::limits;
use crate::peers::PeerError;

/// The reason why a node cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum NodeRequestError {
    /// The node has no connection to any server that answers.
    #[error(
        "node {node_id} is not connected to any server{}: see `muster node status`, and the agent's messages on that machine",
        if silent.is_empty() { String::new() } else { format!(" that answers ({} did not)", silent.join(", ")) }
    )]
    NotConnected {
        node_id: NodeId,
        /// Servers that did not answer whether the node is connected to them.
        silent: Vec<String>,
    },
    /// The node is connected to another server, which cannot be asked.
    #[error("node {node_id} is connected to another server, and that one cannot be asked")]
    Server {
        node_id: NodeId,
        #[source]
        source: PeerError,
    },
    /// The node opens no further stream.
    #[error(
        "node {node_id} took no further question within {waited:?}: end a log stream and try again"
    )]
    Busy {
        node_id: NodeId,
        /// How long the request waited for a stream.
        waited: Duration,
    },
    #[error("the connection to node {node_id} is lost")]
    Lost {
        node_id: NodeId,
        #[source]
        source: ConnectionError,
    },
    /// The request was not sent.
    #[error("the question to node {node_id} was not sent")]
    Send {
        node_id: NodeId,
        #[source]
        source: SendFrameError,
    },
}

/// Opens a stream of its own for `request`.
pub(super) async fn open(
    node_id: NodeId,
    connection: &Connection,
    request: &NodeRequest,
) -> Result<(FrameSender, FrameReceiver), NodeRequestError> {
    let waited = limits::NODE_REQUEST_WAIT;
    let (send, receive) = match tokio::time::timeout(waited, connection.open_bi()).await {
        Ok(opened) => opened.map_err(|source| NodeRequestError::Lost { node_id, source })?,
        Err(_) => return Err(NodeRequestError::Busy { node_id, waited }),
    };
    let mut sender = FrameSender::new(send);
    sender
        .send(request)
        .await
        .map_err(|source| NodeRequestError::Send { node_id, source })?;
    Ok((sender, FrameReceiver::new(receive)))
}

/// Sends `request` on a stream of its own and forwards the replies.
pub(super) async fn ask(
    node_id: NodeId,
    connection: &Connection,
    request: NodeRequest,
) -> Result<mpsc::Receiver<NodeReply>, NodeRequestError> {
    let (mut sender, receive) = open(node_id, connection, &request).await?;
    // The receiver of a log reports how many bytes it has forwarded.
    let taken = if matches!(request, NodeRequest::ReadLogs(_)) {
        Some(UnacknowledgedBytes { sender, bytes: 0 })
    } else {
        sender.finish();
        None
    };
    let (replies, receiver) = mpsc::channel(limits::NODE_REPLIES_MAX);
    tokio::spawn(pass_on(receive, replies, taken));
    Ok(receiver)
}

/// Bytes of a log that were forwarded and not yet reported to the log's node.
#[derive(Debug)]
pub(super) struct UnacknowledgedBytes {
    sender: FrameSender,
    bytes: u64,
}

impl UnacknowledgedBytes {
    /// Counts `bytes`, and reports them to the node once they reach [`LOG_TAKEN_BYTES`].
    async fn add(&mut self, bytes: u64) {
        self.bytes += bytes;
        if bytes > 0 && self.bytes >= LOG_TAKEN_BYTES {
            let taken = LogAck {
                bytes: std::mem::take(&mut self.bytes),
            };
            // If the node is gone, the stream of its replies ends.
            drop(self.sender.send(&taken).await);
        }
    }
}

/// Forwards replies until the stream ends or their receiver is gone.
pub(super) async fn pass_on(
    mut stream: FrameReceiver,
    replies: mpsc::Sender<NodeReply>,
    mut taken: Option<UnacknowledgedBytes>,
) {
    loop {
        let received = tokio::select! {
            () = replies.closed() => {
                stream.stop();
                return;
            }
            received = stream.recv::<NodeReply>() => received,
        };
        let reply = match received {
            Ok(Some(reply)) => reply,
            Ok(None) => return,
            Err(error) => {
                let reason = format!("the node's answer broke off: {}", chain(&error));
                // The reader may have gone away.
                drop(
                    replies
                        .send(NodeReply::Failed {
                            reason,
                            kind: FailureKind::Other,
                        })
                        .await,
                );
                return;
            }
        };
        let cost = match &reply {
            NodeReply::LogPiece(piece) => piece.cost(),
            _ => 0,
        };
        if replies.send(reply).await.is_err() {
            stream.stop();
            return;
        }
        if let Some(taken) = &mut taken {
            taken.add(cost).await;
        }
    }
}
