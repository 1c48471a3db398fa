//! Forwarding of allocations' data from node to node, for agents that request them.
//!
//! `control-core` decides which allocation may have whose data ([`migrate`]). This module waits until the data are
//! complete, asks the node that has them, and forwards frames in both directions. The two nodes limit the data in
//! transfer.

use std::convert::Infallible;

use muster_control_core::migrate::{self, DiskSource, NoDataError};
use muster_domain::error_chain::chain;
use muster_domain::id::{AllocId, NodeId};
use muster_link::frames::{FrameReceiver, FrameSender, SendFrameError};
use muster_wire::rpc::{
    AgentReply, AgentRequest, DiskAck, DiskRequest, FailureKind, NodeReply, NodeRequest,
};
use quinn::Connection;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::JoinSet;

use super::nodes::Nodes;
use super::route;
use crate::handle::Control;
use crate::limits;

/// Answers the requests of `node_id`'s agent, each on a stream of its own, until the future is dropped.
pub(super) async fn serve(
    control: &Control,
    node_id: NodeId,
    connection: &Connection,
) -> Infallible {
    let mut answers = JoinSet::new();
    loop {
        while answers.len() >= limits::AGENT_QUESTIONS_MAX {
            drop(answers.join_next().await);
        }
        while answers.try_join_next().is_some() {}
        let Ok((send, receive)) = connection.accept_bi().await else {
            // The session of the node sees the lost connection as well, and ends.
            return std::future::pending().await;
        };
        let question = DiskStream {
            control: control.clone(),
            node_id,
            sender: FrameSender::new(send),
            receiver: FrameReceiver::new(receive),
        };
        answers.spawn(async move {
            if let Err(error) = question.answer().await {
                tracing::debug!(%node_id, %error, "an agent that asked has gone");
            }
        });
    }
}

/// A stream of one agent's request.
struct DiskStream {
    control: Control,
    node_id: NodeId,
    sender: FrameSender,
    receiver: FrameReceiver,
}

impl DiskStream {
    async fn answer(mut self) -> Result<(), SendFrameError> {
        let request = self.receiver.recv::<AgentRequest>();
        let asked = tokio::time::timeout(limits::REGISTER_WAIT, request).await;
        let Ok(Ok(Some(AgentRequest::FetchDisk { alloc_id, previous }))) = asked else {
            // The agent is gone or has another version.
            return Ok(());
        };
        let found = self.find(alloc_id, previous).await?;
        let (holder, tasks) = match found {
            Ok(found) => found,
            Err(refusal) => return self.end_with(&refusal).await,
        };
        let nodes = self.control.nodes().clone();
        let _turn = self.wait_for_turn(&nodes.shared.disks).await?;
        let request = NodeRequest::ReadDisk(DiskRequest {
            alloc_id: previous,
            tasks,
        });
        self.pass(&nodes, holder, request).await
    }

    /// Waits until the data are complete. Returns their node and tasks, or the answer to send.
    async fn find(
        &mut self,
        alloc_id: AllocId,
        previous: AllocId,
    ) -> Result<Result<(NodeId, Vec<String>), AgentReply>, SendFrameError> {
        loop {
            let verdict = migrate::judge(&self.control.state(), self.node_id, alloc_id, previous);
            match verdict {
                DiskSource::At { node_id, tasks } => return Ok(Ok((node_id, tasks))),
                DiskSource::NotEnded => {}
                DiskSource::Unknown(error) => {
                    let reason = error.to_string();
                    return Ok(Err(AgentReply::Later { reason }));
                }
                DiskSource::Nothing(error) => return Ok(Err(no_data_reply(&error))),
            }
            self.sender.send(&AgentReply::Idle).await?;
            tokio::time::sleep(limits::DISK_LOOK_INTERVAL).await;
        }
    }

    /// Waits for a free place among the forwarded data.
    async fn wait_for_turn<'a>(
        &mut self,
        places: &'a Semaphore,
    ) -> Result<Option<SemaphorePermit<'a>>, SendFrameError> {
        let turn = places.acquire();
        tokio::pin!(turn);
        loop {
            match tokio::time::timeout(limits::DISK_LOOK_INTERVAL, &mut turn).await {
                // The places are never closed.
                Ok(turn) => return Ok(turn.ok()),
                Err(_elapsed) => self.sender.send(&AgentReply::Idle).await?,
            }
        }
    }

    /// Sends the request to the node with the data and forwards frames.
    async fn pass(
        self,
        nodes: &Nodes,
        holder: NodeId,
        request: NodeRequest,
    ) -> Result<(), SendFrameError> {
        let opened = route::open_stream(nodes, &nodes.shared.peers, holder, request).await;
        let (mut to_node, mut from_node) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let reason = chain(&error);
                return self.end_with(&AgentReply::Later { reason }).await;
            }
        };
        let Self {
            mut sender,
            mut receiver,
            ..
        } = self;
        let words = async {
            while let Ok(Some(taken)) = receiver.recv::<DiskAck>().await {
                if to_node.send(&taken).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            passed = pass_on(&mut from_node, &mut sender) => passed,
            // The requesting agent has gone.
            () = words => Ok(()),
        }
    }

    async fn end_with(mut self, reply: &AgentReply) -> Result<(), SendFrameError> {
        self.sender.send(reply).await?;
        self.sender.finish();
        self.sender.stopped().await;
        Ok(())
    }
}

/// Forwards replies to their end. A stream that breaks off earlier gets no end.
async fn pass_on(
    from_node: &mut FrameReceiver,
    sender: &mut FrameSender,
) -> Result<(), SendFrameError> {
    loop {
        let (reply, is_last) = match from_node.recv::<NodeReply>().await {
            Ok(Some(reply)) => translated(reply),
            Ok(None) => return Ok(()),
            Err(error) => {
                let reason = format!("its node's answer broke off: {}", chain(&error));
                (AgentReply::Later { reason }, true)
            }
        };
        sender.send(&reply).await?;
        if is_last {
            sender.finish();
            sender.stopped().await;
            return Ok(());
        }
    }
}

fn no_data_reply(error: &NoDataError) -> AgentReply {
    AgentReply::Gone {
        reason: error.to_string(),
    }
}

/// Converts the node's reply into the reply for the other agent. Returns whether it is the last.
fn translated(reply: NodeReply) -> (AgentReply, bool) {
    match reply {
        NodeReply::Idle => (AgentReply::Idle, false),
        NodeReply::DiskPiece(piece) => (AgentReply::DiskPiece(piece), false),
        NodeReply::DiskEnd(sum) => (AgentReply::DiskEnd(sum), true),
        NodeReply::Failed {
            reason,
            kind: FailureKind::NotFound,
        } => (AgentReply::Gone { reason }, true),
        NodeReply::Failed {
            reason,
            kind: FailureKind::Other | FailureKind::TooMany | FailureKind::Unavailable,
        } => (AgentReply::Later { reason }, true),
        NodeReply::LogData { .. }
        | NodeReply::LogGap { .. }
        | NodeReply::NodeStats(_)
        | NodeReply::AllocStats(_)
        | NodeReply::Collected { .. }
        | NodeReply::AllocNetwork(_)
        | NodeReply::LogPiece(_)
        | NodeReply::LogMissing { .. }
        | NodeReply::LogEnd { .. }
        | NodeReply::ExecOpened
        | NodeReply::ExecOutput(_)
        | NodeReply::ExecTaken { .. }
        | NodeReply::ExecExited(_)
        | NodeReply::Signaled { .. }
        | NodeReply::AllocHistory(_) => {
            let reason = "its node answered another question; its agent is at fault".to_owned();
            (AgentReply::Gone { reason }, true)
        }
    }
}
