//! Sessions with commands on nodes: frames in both directions over one stream.
//!
//! The client and the node limit the bytes in transfer. This module only forwards frames, and the end of one
//! direction ends the other.

use muster_domain::error_chain::chain;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_wire::rpc::{ExecInput, FailureKind, NodeReply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::mpsc;

use super::request;
use crate::limits;

/// A session. Its drop ends the command's stream.
#[derive(Debug)]
pub struct ExecLine {
    /// Inputs to the command. The channel ends with the session.
    pub inputs: mpsc::Sender<ExecInput>,
    /// Replies of the command. If the session breaks off, the last one is a [`NodeReply::Failed`].
    pub replies: mpsc::Receiver<NodeReply>,
}

impl ExecLine {
    /// Creates the session over an open stream.
    pub(super) fn over(sender: FrameSender, receiver: FrameReceiver) -> Self {
        let (inputs, to_send) = mpsc::channel(limits::NODE_REPLIES_MAX);
        let (to_pass, replies) = mpsc::channel(limits::NODE_REPLIES_MAX);
        tokio::spawn(send_all(sender, to_send));
        tokio::spawn(request::pass_on(receiver, to_pass, None));
        Self { inputs, replies }
    }
}

/// Sends inputs until their channel ends or the stream is refused.
async fn send_all(mut sender: FrameSender, mut inputs: mpsc::Receiver<ExecInput>) {
    while let Some(input) = inputs.recv().await {
        if let Err(error) = sender.send(&input).await {
            // The other direction reports the end of the session.
            tracing::debug!(%error, "a session takes no input");
            return;
        }
    }
    sender.finish();
}

/// Both ends of a stream.
type Stream = (FrameSender, FrameReceiver);

/// Forwards frames between another server, which sends `I`, and a node.
pub(super) async fn join<I: DeserializeOwned + Serialize>(
    (mut to_server, mut from_server): Stream,
    (mut to_node, mut from_node): Stream,
) {
    let inputs = async {
        while let Ok(Some(input)) = from_server.recv::<I>().await {
            if to_node.send(&input).await.is_err() {
                return;
            }
        }
    };
    let replies = async {
        loop {
            let reply = match from_node.recv::<NodeReply>().await {
                Ok(Some(reply)) => reply,
                Ok(None) => return,
                Err(error) => NodeReply::Failed {
                    reason: format!("the node's answer broke off: {}", chain(&error)),
                    kind: FailureKind::Other,
                },
            };
            let last = matches!(reply, NodeReply::Failed { .. });
            if to_server.send(&reply).await.is_err() || last {
                return;
            }
        }
    };
    // The end of either direction ends the session: after the end of its input, its output may be silent for long.
    tokio::select! {
        () = inputs => {}
        () = replies => {
            to_server.finish();
            to_server.stopped().await;
        }
    }
    to_node.finish();
    from_node.stop();
}
