//! One agent's session: it registers, sends heartbeats and reports, and is told what to run.
//!
//! Four loops share the session's task: one reads, one writes, one turns reports into log entries, one
//! pushes desired allocations. Each hands over through a bounded queue, and the first that ends ends the
//! session. A heartbeat never waits for a slow reader: its acknowledgement is dropped instead.

use std::time::Duration;

use muster_control_core::fsm::{Command, Rejection, Response};
use muster_domain::id::NodeId;
use muster_domain::node::{NodeSpec, NodeStatus};
use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError, SendFrameError};
use muster_wire::limits::REPORT_BATCH_MAX;
use muster_wire::rpc::{FromAgent, ToAgent};
use quinn::{Connection, ConnectionError};
use tokio::sync::mpsc;

use super::desired::Told;
use super::reports::{self, ReportMessage};
use super::{Entered, Wake};
use crate::handle::{Control, ProposeError};
use crate::limits;

/// Why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The connection is lost.
    #[error("the connection is lost")]
    Connection(#[from] ConnectionError),
    /// The agent sent something that is no message.
    #[error("the agent's message cannot be read")]
    Receive(#[from] RecvFrameError),
    /// A message was not sent.
    #[error("a message to the agent was not sent")]
    Send(#[from] SendFrameError),
    /// The agent did not say who it is.
    #[error("the agent did not register within {waited:?}")]
    Silent {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The agent broke the protocol.
    #[error("the agent broke the protocol: {what}")]
    Protocol {
        /// How.
        what: String,
    },
    /// The node is not taken.
    #[error("the node is refused: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
    /// The log takes no changes.
    #[error("the node's news cannot be written")]
    Propose(#[from] ProposeError),
    /// Another loop of the session has ended.
    #[error("the session is closed")]
    Closed,
}

/// Serves the agent on `connection` until it leaves.
pub(super) async fn run(connection: &Connection, control: &Control) -> Result<(), SessionError> {
    let waited = limits::REGISTER_WAIT;
    let opening = async {
        let (send, receive) = connection.accept_bi().await?;
        let mut receiver = FrameReceiver::new(receive);
        let first = receiver.recv::<FromAgent>().await?;
        Ok::<_, SessionError>((FrameSender::new(send), receiver, first))
    };
    let (mut sender, receiver, first) = match tokio::time::timeout(waited, opening).await {
        Ok(opened) => opened?,
        Err(_) => return Err(SessionError::Silent { waited }),
    };
    let Some(FromAgent::Register { node, known: _ }) = first else {
        return Err(SessionError::Protocol {
            what: "its first message is not its registration".to_owned(),
        });
    };
    let node_id = node.id;
    if let Err(error) = register(*node, control).await {
        let reason = super::chain(&error);
        sender.send(&ToAgent::Refused { reason }).await?;
        sender.finish();
        // Wait for the agent to have read it: closing the connection would take it back.
        drop(tokio::time::timeout(waited, sender.stopped()).await);
        return Err(error);
    }
    let entered = control.nodes().enter(node_id, connection);
    tracing::info!(%node_id, peer = %connection.remote_address(), "an agent joined");

    let (outbox, outgoing) = mpsc::channel(limits::SESSION_OUTBOX_MAX);
    let (reports, report_messages) = mpsc::channel(limits::SESSION_INBOX_MAX);
    say(&outbox, registered(control)).await?;
    tokio::select! {
        result = read(node_id, receiver, reports, &outbox, control) => result,
        result = send_all(sender, outgoing) => result,
        result = reports::write(node_id, report_messages, outbox.clone(), control) => result,
        result = push(&entered, &outbox, control) => result,
    }
}

fn registered(control: &Control) -> ToAgent {
    let info = control.server_info();
    ToAgent::Registered {
        cluster: info.cluster.clone(),
        heartbeat_ttl: info.heartbeat_ttl,
        servers: vec![info.quic_addr],
    }
}

/// Queues `message` for the agent. Waits while the agent reads slowly.
pub(super) async fn say(
    outbox: &mpsc::Sender<ToAgent>,
    message: ToAgent,
) -> Result<(), SessionError> {
    match outbox.send(message).await {
        Ok(()) => Ok(()),
        Err(_) => Err(SessionError::Closed),
    }
}

/// Writes what the node is, if that is news, and that it is there.
async fn register(spec: NodeSpec, control: &Control) -> Result<(), SessionError> {
    let node_id = spec.id;
    let same = control
        .state()
        .nodes()
        .get(&node_id)
        .is_some_and(|known| *known.spec == spec);
    if !same {
        let command = Command::RegisterNode {
            spec: Box::new(spec),
            at: control.now(),
        };
        refuse_rejection(control.propose(command).await?.1)?;
    }
    ready(node_id, control).await
}

/// Makes the node ready, if it is not.
async fn ready(node_id: NodeId, control: &Control) -> Result<(), SessionError> {
    control.beat(node_id);
    let status = control
        .state()
        .nodes()
        .get(&node_id)
        .map(|node| node.status);
    if status == Some(NodeStatus::Ready) {
        return Ok(());
    }
    let command = Command::SetNodeStatus {
        node_id,
        status: NodeStatus::Ready,
        at: control.now(),
    };
    refuse_rejection(control.propose(command).await?.1)
}

fn refuse_rejection(response: Response) -> Result<(), SessionError> {
    let reason = match response {
        Response::Rejected(Rejection::InvalidNode(faults)) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            faults.join("; ")
        }
        Response::Rejected(rejection) => rejection.to_string(),
        _ => return Ok(()),
    };
    Err(SessionError::Refused { reason })
}

/// Reads what the agent says until it is done.
async fn read(
    node_id: NodeId,
    mut receiver: FrameReceiver,
    reports: mpsc::Sender<ReportMessage>,
    outbox: &mpsc::Sender<ToAgent>,
    control: &Control,
) -> Result<(), SessionError> {
    while let Some(message) = receiver.recv::<FromAgent>().await? {
        match message {
            FromAgent::Register { node, known: _ } if node.id == node_id => {
                register(*node, control).await?;
                say(outbox, registered(control)).await?;
            }
            FromAgent::Register { node, known: _ } => {
                return Err(SessionError::Protocol {
                    what: format!(
                        "it registered {} after {node_id} on one connection",
                        node.id
                    ),
                });
            }
            FromAgent::Heartbeat { number } => {
                ready(node_id, control).await?;
                // The agent learns from any message that the server is there.
                let lease = control.server_info().heartbeat_ttl;
                drop(outbox.try_send(ToAgent::HeartbeatAck { number, lease }));
            }
            FromAgent::Report { reports: batch, .. } if batch.len() > REPORT_BATCH_MAX => {
                return Err(SessionError::Protocol {
                    what: format!(
                        "{} reports in one message, {REPORT_BATCH_MAX} are allowed",
                        batch.len()
                    ),
                });
            }
            FromAgent::Report {
                sequence,
                reports: batch,
            } => {
                let message = ReportMessage {
                    sequence,
                    reports: batch,
                };
                if reports.send(message).await.is_err() {
                    return Err(SessionError::Closed);
                }
            }
        }
    }
    Ok(())
}

/// Writes what the other loops want to say.
async fn send_all(
    mut sender: FrameSender,
    mut outgoing: mpsc::Receiver<ToAgent>,
) -> Result<(), SessionError> {
    while let Some(message) = outgoing.recv().await {
        sender.send(&message).await?;
    }
    Ok(())
}

/// Tells the node what to run, whenever that changes.
async fn push(
    entered: &Entered,
    outbox: &mpsc::Sender<ToAgent>,
    control: &Control,
) -> Result<(), SessionError> {
    let wake: &Wake = &entered.wake;
    let mut told = Told::nothing(entered.node_id);
    loop {
        for message in told.catch_up(&control.state()) {
            say(outbox, message).await?;
        }
        tokio::select! {
            () = wake.desired.notified() => {}
            () = wake.garbage.notified() => {
                say(outbox, ToAgent::CollectGarbage).await?;
            }
            // In case a wake-up was lost with its effect.
            () = tokio::time::sleep(limits::SESSION_RESCAN) => {}
        }
    }
}
