//! One agent's session: registration, heartbeats, reports and desired allocations.
//!
//! Loops share the session's task. One reads, one writes, one keeps the node registered and ready, one pushes
//! desired allocations. The first loop that ends also ends the session. The reading loop only queues messages, so
//! a heartbeat waits neither for the log nor for a slow reader. Any server serves any agent: a session reads this
//! server's state and sends its writes to the leader.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use muster_control_core::fsm::{NodeCommand, NodeRejection, Rejection, Response};
use muster_control_core::state::State;
use muster_domain::error_chain::chain;
use muster_domain::id::{LogIndex, NodeId};
use muster_domain::node::{NodeEvent, NodeSecret, NodeSpec, NodeStatus, NodeSubsystem};
use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError, SendFrameError};
use muster_wire::limits::REPORT_BATCH_MAX;
use muster_wire::rpc::{FromAgent, ToAgent};
use quinn::{Connection, ConnectionError};
use tokio::sync::{Notify, OwnedSemaphorePermit, mpsc, watch};
use tokio::time::Instant;

use super::desired::SentDesired;
use super::nodes::{ServiceInfo, SessionEntry};
use super::wake::{Wake, WakeReason};
use super::{disk, reports};
use crate::handle::{Consistency, Control, ProposeError, Retry};
use crate::limits;

/// The reason why a session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum SessionError {
    /// The connection is lost.
    #[error("the connection is lost")]
    Connection(#[from] ConnectionError),
    /// The agent sent something that cannot be read as a message.
    #[error("the agent's message cannot be read")]
    Receive(#[from] RecvFrameError),
    /// A message was not sent.
    #[error("a message to the agent was not sent")]
    Send(#[from] SendFrameError),
    /// The agent did not register in time.
    #[error("the agent did not register within {waited:?}")]
    Silent {
        /// The time limit for the registration.
        waited: Duration,
    },
    /// The agent broke the protocol.
    #[error("the agent broke the protocol: {what}")]
    Protocol { what: String },
    /// The node is refused.
    #[error("the node is refused: {reason}")]
    Refused { reason: String },
    /// The agent should connect to another server.
    #[error("the node is sent to another server: {reason}")]
    Elsewhere { reason: String },
    /// The log takes no changes.
    #[error("the node's news cannot be written")]
    Propose(#[from] ProposeError),
    /// Another loop of the session has ended.
    #[error("the session is closed")]
    Closed,
}

impl SessionError {
    /// The reason for an agent of another version, which cannot read a message.
    pub(super) fn version_refusal(&self) -> Option<String> {
        match self {
            Self::Receive(error) => error.version_refusal(),
            _ => None,
        }
    }

    /// Returns the message to the agent about the error; `None` if the connection cannot carry one.
    fn farewell(&self) -> Option<ToAgent> {
        match self {
            Self::Refused { reason } => Some(ToAgent::Refused {
                reason: reason.clone(),
            }),
            Self::Elsewhere { reason } => Some(elsewhere(reason.clone())),
            Self::Propose(error) if error.retry() == Retry::Never => Some(ToAgent::Refused {
                reason: chain(error),
            }),
            Self::Propose(error) => Some(elsewhere(chain(error))),
            Self::Protocol { what } => Some(ToAgent::Refused {
                reason: format!("the agent broke the protocol: {what}"),
            }),
            Self::Connection(_)
            | Self::Receive(_)
            | Self::Send(_)
            | Self::Silent { .. }
            | Self::Closed => None,
        }
    }
}

fn elsewhere(reason: String) -> ToAgent {
    ToAgent::TryElsewhere {
        reason,
        after: limits::TRY_ELSEWHERE_PAUSE,
    }
}

/// Serves the agent on `connection` until it leaves. Releases `admission` after its registration.
pub(super) async fn run(
    connection: &Connection,
    control: &Control,
    admission: Result<OwnedSemaphorePermit, String>,
) -> Result<(), SessionError> {
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
    let (node, known) = match begin(first, connection.remote_address(), control, admission).await {
        Ok(begun) => begun,
        Err(error) => {
            send_farewell(&mut sender, &error).await;
            return Err(error);
        }
    };
    let (outbox, outgoing) = mpsc::channel(limits::SESSION_OUTBOX_MAX);
    let entry = control.nodes().add_session(node.id, connection, &outbox);
    tracing::info!(node_id = %node.id, peer = %connection.remote_address(), "an agent joined");
    let node_id = node.id;
    let session = Session {
        node_id,
        entry: &entry,
        control,
        outbox,
        wanted: Mutex::new(node),
        registration_needed: Notify::new(),
        service: control.nodes().service(),
        peer: connection.remote_address().ip(),
    };
    session.send(session.registered()).await?;
    session.send(session.apis()).await?;
    let error = tokio::select! {
        ended = session.read(receiver) => ended.err().unwrap_or(SessionError::Closed),
        ended = session.stay_registered() => ended,
        ended = session.push(known) => ended,
        ended = session.follow_service() => ended,
        never = disk::serve(control, node_id, connection) => match never {},
        ended = send_all(&mut sender, outgoing) => ended,
    };
    send_farewell(&mut sender, &error).await;
    match error {
        SessionError::Closed => Ok(()),
        error => Err(error),
    }
}

/// Registers the node of the first message, unless this server cannot serve it.
async fn begin(
    first: Option<FromAgent>,
    peer: SocketAddr,
    control: &Control,
    admission: Result<OwnedSemaphorePermit, String>,
) -> Result<(NodeSpec, LogIndex), SessionError> {
    let Some(FromAgent::Register {
        node,
        secret,
        known,
    }) = first
    else {
        return Err(SessionError::Protocol {
            what: "its first message is not its registration".to_owned(),
        });
    };
    let _permit = admission.map_err(|reason| SessionError::Elsewhere { reason })?;
    if let Some(reason) = control.nodes().service().borrow().unserved.clone() {
        return Err(SessionError::Elsewhere { reason });
    }
    check_secret(&node, secret, peer, control).await?;
    register(&node, control).await?;
    Ok((*node, known))
}

/// Refuses an agent that does not know the secret of its node. The session of the real agent goes on. The node's
/// events record the attempt.
async fn check_secret(
    spec: &NodeSpec,
    secret: NodeSecret,
    peer: SocketAddr,
    control: &Control,
) -> Result<(), SessionError> {
    if secret.hash() != spec.secret_hash {
        return Err(SessionError::Refused {
            reason: "the secret of the node does not fit its hash".to_owned(),
        });
    }
    let known = control.state().nodes().get(&spec.id).cloned();
    let Some(known) = known.filter(|known| known.spec.secret_hash != spec.secret_hash) else {
        return Ok(());
    };
    let message = format!(
        "Registration refused: an agent at {} has the id of this node and another secret",
        peer.ip()
    );
    if !is_recorded(&known.events, &message) {
        tracing::warn!(node_id = %spec.id, %peer, "an agent with another secret is refused");
        let event = NodeCommand::AddEvent {
            node_id: spec.id,
            subsystem: NodeSubsystem::Cluster,
            message,
            details: BTreeMap::from([("agent_address".to_owned(), peer.ip().to_string())]),
        }
        .at(control.now());
        if let Err(error) = control.propose(event).await {
            tracing::debug!(%error, "the event of the refused agent is not recorded");
        }
    }
    let rejection = Rejection::Node(NodeRejection::Secret(spec.id));
    Err(SessionError::Refused {
        reason: rejection.to_string(),
    })
}

/// Whether a kept event has this message. Agents may retry repeatedly, in turn from several addresses. The same
/// event is written once.
fn is_recorded(events: &[NodeEvent], message: &str) -> bool {
    events.iter().any(|event| event.message == message)
}

/// Sends the agent the reason for the session's end and waits until the agent has read it. Closing the connection
/// earlier would discard the message.
async fn send_farewell(sender: &mut FrameSender, error: &SessionError) {
    let Some(message) = error.farewell() else {
        return;
    };
    let farewell = async {
        if sender.send(&message).await.is_ok() {
            sender.finish();
            sender.stopped().await;
        }
    };
    drop(tokio::time::timeout(limits::FAREWELL_WAIT, farewell).await);
}

/// Writes the node's specification if it changed, and its status `ready` if it is not ready.
async fn register(spec: &NodeSpec, control: &Control) -> Result<(), SessionError> {
    let known = control.state().nodes().get(&spec.id).cloned();
    if known.as_ref().is_none_or(|known| *known.spec != *spec) {
        let command = NodeCommand::Register {
            spec: Box::new(spec.clone()),
        }
        .at(control.now());
        refuse_rejection(control.propose(command).await?.1)?;
        let is_named_before = known.is_some_and(|known| known.spec.name == spec.name);
        if !is_named_before && let Some(other) = find_node_with_same_name(&control.state(), spec) {
            tracing::warn!(
                node_id = %spec.id, %other, name = spec.name,
                "two nodes have the same name: give each agent another --name"
            );
        }
    }
    if !is_ready(spec.id, control) {
        let command = NodeCommand::SetStatus {
            node_id: spec.id,
            status: NodeStatus::Ready,
        }
        .at(control.now());
        refuse_rejection(control.propose(command).await?.1)?;
    }
    Ok(())
}

/// Returns another node with the name of `spec` that is not down. A node that is down may be an earlier
/// installation of the same machine.
fn find_node_with_same_name(state: &State, spec: &NodeSpec) -> Option<NodeId> {
    let others = state.nodes().named(&spec.name).into_iter();
    let mut others =
        others.filter(|node| node.spec.id != spec.id && node.status != NodeStatus::Down);
    others.next().map(|node| node.spec.id)
}

fn is_ready(node_id: NodeId, control: &Control) -> bool {
    let state = control.state();
    state
        .nodes()
        .get(&node_id)
        .is_some_and(|node| node.status == NodeStatus::Ready)
}

fn refuse_rejection(response: Response) -> Result<(), SessionError> {
    let reason = match response {
        Response::Rejected(Rejection::Node(NodeRejection::Invalid(faults))) => {
            let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
            faults.join("; ")
        }
        Response::Rejected(rejection) => rejection.to_string(),
        _ => return Ok(()),
    };
    Err(SessionError::Refused { reason })
}

/// Returns the cluster's network policy if it is another than that of the entry `sent_index`.
fn cluster_policy(state: &State, sent_index: &mut LogIndex) -> Option<ToAgent> {
    let row = state.network();
    let before = std::mem::replace(sent_index, row.modify_index);
    // A restored state may have an older policy than the one sent. Its index must still be the newest for the
    // node.
    let index = if row.modify_index < before {
        state.applied()
    } else {
        row.modify_index
    };
    (row.modify_index != before).then(|| ToAgent::ClusterPolicy {
        index,
        policy: Box::new((*row.policy).clone()),
    })
}

/// Sends the messages of the other loops. A farewell ends it.
async fn send_all(sender: &mut FrameSender, mut outgoing: mpsc::Receiver<ToAgent>) -> SessionError {
    while let Some(message) = outgoing.recv().await {
        match message {
            ToAgent::Refused { reason } => return SessionError::Refused { reason },
            ToAgent::TryElsewhere { reason, .. } => return SessionError::Elsewhere { reason },
            message => {
                if let Err(error) = sender.send(&message).await {
                    return error.into();
                }
            }
        }
    }
    SessionError::Closed
}

/// A registered agent.
struct Session<'a> {
    node_id: NodeId,
    entry: &'a SessionEntry,
    control: &'a Control,
    outbox: mpsc::Sender<ToAgent>,
    /// The registration that the agent wants for the node.
    wanted: Mutex<NodeSpec>,
    /// Signals that the node may be not registered as `wanted`, or not ready.
    registration_needed: Notify,
    service: watch::Receiver<ServiceInfo>,
    peer: IpAddr,
}

impl Session<'_> {
    fn registered(&self) -> ToAgent {
        let info = self.control.server_info();
        ToAgent::Registered {
            cluster: info.cluster.clone(),
            heartbeat_ttl: info.heartbeat_ttl,
            servers: self.servers(),
        }
    }

    /// Addresses where this agent reaches the servers. An agent on another machine cannot use this machine's
    /// loopback addresses.
    fn servers(&self) -> Vec<SocketAddr> {
        let servers = self.service.borrow().servers.clone();
        let is_same_machine = self.peer.is_loopback();
        let useful = |addr: &SocketAddr| is_same_machine || !addr.ip().is_loopback();
        servers.into_iter().filter(useful).collect()
    }

    /// Addresses where tasks of this agent find the servers' sockets for clients. Loopback addresses are
    /// among them only if the agent is on this machine.
    fn apis(&self) -> ToAgent {
        let me = &self.control.peers().me().node.quic_addr;
        let own: Option<SocketAddr> = me.parse().ok();
        let is_same_machine =
            self.peer.is_loopback() || own.is_some_and(|own| own.ip() == self.peer);
        let apis = self.service.borrow().apis.clone();
        let reachable = |addr: &SocketAddr| is_same_machine || !addr.ip().is_loopback();
        ToAgent::Apis {
            addrs: apis.into_iter().filter(reachable).collect(),
        }
    }

    /// Queues `message` for the agent. Waits while the agent reads slowly.
    async fn send(&self, message: ToAgent) -> Result<(), SessionError> {
        match self.outbox.send(message).await {
            Ok(()) => Ok(()),
            Err(_) => Err(SessionError::Closed),
        }
    }

    /// Reads the agent's messages until the agent closes its stream.
    async fn read(&self, mut receiver: FrameReceiver) -> Result<(), SessionError> {
        while let Some(message) = receiver.recv::<FromAgent>().await? {
            match message {
                FromAgent::Register { node, .. } if node.id != self.node_id => {
                    return Err(SessionError::Protocol {
                        what: format!(
                            "it registered {} after {} on one connection",
                            node.id, self.node_id
                        ),
                    });
                }
                FromAgent::Register { node, known, .. } => {
                    *self.wanted.lock().unwrap_or_else(PoisonError::into_inner) = *node;
                    self.registration_needed.notify_one();
                    if known == LogIndex(0) {
                        self.entry.wake.start_over();
                    }
                }
                FromAgent::Heartbeat { number } => {
                    self.entry.record_heartbeat(number);
                    if !is_ready(self.node_id, self.control) {
                        self.registration_needed.notify_one();
                    }
                }
                FromAgent::Report { reports, .. } if reports.len() > REPORT_BATCH_MAX => {
                    return Err(SessionError::Protocol {
                        what: format!(
                            "{} reports in one message, {REPORT_BATCH_MAX} are allowed",
                            reports.len()
                        ),
                    });
                }
                FromAgent::Collected { sequence, report } => {
                    let pending = self.control.nodes().reports();
                    pending.put_collected(self.node_id, sequence, *report, &self.outbox);
                }
                FromAgent::Report { sequence, reports } => {
                    let queued = reports::relevant_reports(&self.control.state(), reports);
                    let pending = self.control.nodes().reports();
                    pending
                        .put(self.node_id, sequence, queued, &self.outbox)
                        .await;
                }
            }
        }
        Ok(())
    }

    /// Keeps the node ready and registered with its agent's newest specification.
    async fn stay_registered(&self) -> SessionError {
        loop {
            self.registration_needed.notified().await;
            let spec = self
                .wanted
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            match register(&spec, self.control).await {
                Ok(()) => {
                    if let Err(error) = self.send(self.registered()).await {
                        return error;
                    }
                }
                Err(SessionError::Propose(error)) if error.retry() != Retry::Never => {
                    // The next heartbeat requests the registration again. `follow_service` ends the session if
                    // this server is cut off.
                    tracing::debug!(node_id = %self.node_id, %error, "the registration waits");
                    self.registration_needed.notify_one();
                    tokio::time::sleep(limits::REPORT_RETRY_PAUSE).await;
                }
                Err(error) => return error,
            }
        }
    }

    /// Sends the node each change of its desired allocations. The node already has all changes up to `known`.
    async fn push(&self, known: LogIndex) -> SessionError {
        let wake: &Wake = &self.entry.wake;
        if let Err(error) = self.catch_up_with(known).await {
            return error;
        }
        let mut sent = SentDesired::up_to(self.node_id, known);
        let mut sent_policy_index = LogIndex(0);
        let limiter = self.control.nodes().push_limiter();
        loop {
            if wake.take_start_over() {
                if let Err(error) = self.catch_up_with(LogIndex(0)).await {
                    return error;
                }
                sent = SentDesired::up_to(self.node_id, LogIndex(0));
            }
            limiter.wait_for_turn().await;
            // The state that is read next contains the changes behind these wake-ups.
            let _woken = wake.desired.notified().now_or_never();
            let _woken = wake.forgotten.notified().now_or_never();
            for message in self.pending_messages(&mut sent_policy_index, &mut sent) {
                if let Err(error) = self.send(message).await {
                    return error;
                }
            }
            if let Err(error) = self.wait_for_changes(wake).await {
                return error;
            }
        }
    }

    /// Returns messages with the changes of the newest state that the node has not received. The policy comes
    /// first, because it applies to the allocations.
    fn pending_messages(
        &self,
        sent_policy_index: &mut LogIndex,
        sent: &mut SentDesired,
    ) -> Vec<ToAgent> {
        let state = self.control.state();
        let policy = cluster_policy(&state, sent_policy_index).into_iter();
        policy.chain(sent.catch_up(&state)).collect()
    }

    /// Waits until the node's desired allocations may have changed.
    async fn wait_for_changes(&self, wake: &Wake) -> Result<(), SessionError> {
        // A wake-up may have been lost together with its effect.
        let mut latest = Instant::now() + limits::SESSION_RESCAN;
        loop {
            match wake.next_reason(&mut latest).await {
                WakeReason::CheckDesired => return Ok(()),
                WakeReason::CollectGarbage => self.send(ToAgent::CollectGarbage).await?,
            }
        }
    }

    /// Waits until the state here is as new as the node's: the node must not receive an older one. A node with
    /// `known` 0 has lost its state. From an older state it would start allocations again that were stopped since.
    /// For it the state must be as new as the leader's.
    async fn catch_up_with(&self, known: LogIndex) -> Result<(), SessionError> {
        if known == LogIndex(0) {
            let read = self.control.read(Consistency::Leader).await;
            return read.map(drop).map_err(|error| SessionError::Elsewhere {
                reason: error.to_string(),
            });
        }
        let mut applied = self.control.applied();
        let caught_up = applied.wait_for(|applied| *applied >= known);
        match tokio::time::timeout(limits::LAG_WAIT, caught_up).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(SessionError::Closed),
            Err(_) => Err(SessionError::Elsewhere {
                reason: format!(
                    "this server has not caught up: it knows entry {}, the node {}",
                    self.control.state().applied().0,
                    known.0
                ),
            }),
        }
    }

    /// Sends the agent changes of the servers' addresses. Ends when this server cannot serve agents.
    async fn follow_service(&self) -> SessionError {
        let mut service = self.service.clone();
        loop {
            if service.changed().await.is_err() {
                return SessionError::Closed;
            }
            let unserved = service.borrow_and_update().unserved.clone();
            if let Some(reason) = unserved {
                return SessionError::Elsewhere { reason };
            }
            let servers = self.servers();
            if let Err(error) = self.send(ToAgent::Servers { servers }).await {
                return error;
            }
            if let Err(error) = self.send(self.apis()).await {
                return error;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_control_core::fsm;
    use muster_domain::fixture::node;
    use muster_domain::id::Timestamp;

    use super::*;

    #[test]
    fn node_with_same_name_must_be_up() {
        let mut state = State::default();
        let mut apply = |index, command: NodeCommand| {
            fsm::apply(&mut state, LogIndex(index), command.at(Timestamp(index)));
            state.clone()
        };
        let first = node("n1").build();
        let second = NodeSpec {
            id: NodeId([9; 16]),
            ..first.clone()
        };
        let register = |spec: &NodeSpec| NodeCommand::Register {
            spec: Box::new(spec.clone()),
        };
        let set = |node_id, status| NodeCommand::SetStatus { node_id, status };
        let alone = apply(1, register(&second));
        apply(2, register(&first));
        let both = apply(3, set(first.id, NodeStatus::Ready));
        let down = apply(4, set(first.id, NodeStatus::Down));

        assert_eq!(find_node_with_same_name(&alone, &second), None);
        assert_eq!(find_node_with_same_name(&both, &second), Some(first.id));
        assert_eq!(find_node_with_same_name(&down, &second), None);
        assert_eq!(find_node_with_same_name(&both, &node("n2").build()), None);
    }

    /// Two agents retry in turn, from two addresses.
    #[test]
    fn an_attempt_is_recorded_once_for_each_address() {
        let event = |message: &str| NodeEvent {
            subsystem: NodeSubsystem::Cluster,
            message: message.to_owned(),
            details: BTreeMap::new(),
            at: Timestamp(1),
            index: LogIndex(1),
        };
        let mut events = Vec::new();
        for attempt in ["from a", "from b", "from a", "from b", "from a"] {
            if !is_recorded(&events, attempt) {
                events.push(event(attempt));
            }
        }

        assert_eq!(events.len(), 2);
    }
}
