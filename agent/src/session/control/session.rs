//! One session: the node registers, sends heartbeats and reports, and receives desired allocations.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use muster_agent_core::node::DesiredUpdate;
use muster_domain::id::LogIndex;
use muster_domain::job::NetworkPolicy;
use muster_domain::node::NodeSpec;
use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError};
use muster_wire::rpc::{FromAgent, ToAgent};
use quinn::Connection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Link, SessionError, late, requests};
use crate::limits::{
    HEARTBEATS_MAX, REPORT_DELAY, REPORT_REPEAT_DELAY, SESSION_DEADLINE, SESSION_INBOX_MAX,
    SILENCE_MIN,
};
use crate::node::event::Event;

type ReceiveResult = Result<Option<ToAgent>, RecvFrameError>;

/// Heartbeats that were sent and not counted yet.
#[derive(Debug)]
struct Heartbeats {
    last: u64,
    unanswered: VecDeque<(u64, Instant)>,
    /// Silence of the leader after which another server is tried.
    silence_max: Duration,
}

impl Heartbeats {
    fn new(ttl: Duration) -> Self {
        Self {
            last: 0,
            unanswered: VecDeque::new(),
            silence_max: (ttl / 2).max(SILENCE_MIN),
        }
    }

    fn next(&mut self, now: Instant) -> u64 {
        self.last += 1;
        // The first unanswered heartbeat decides when the silence is too long, so the newest need not be stored.
        if self.unanswered.len() < HEARTBEATS_MAX {
            self.unanswered.push_back((self.last, now));
        }
        self.last
    }

    /// Handles that a leader has counted `number`; returns the time at which that heartbeat was sent.
    fn answered(&mut self, number: u64) -> Option<Instant> {
        let mut sent = None;
        while let Some((first, at)) = self.unanswered.front().copied()
            && first <= number
        {
            self.unanswered.pop_front();
            sent = Some(at);
        }
        sent
    }

    /// The time at which the silence of the leader is too long.
    fn deadline(&self) -> Option<Instant> {
        let (_, sent) = self.unanswered.front()?;
        Some(*sent + self.silence_max)
    }
}

/// A session with the server at `addr`.
pub(super) struct Session<'a> {
    link: &'a mut Link,
    addr: SocketAddr,
    connection: &'a Connection,
    sender: FrameSender,
    heartbeats: Heartbeats,
    /// The sequence number of the newest report.
    sequence: u64,
    /// Set when a leader has counted a heartbeat of the session.
    served: &'a mut bool,
    /// Whether the server has sent the cluster's network policy, or the information that there is none.
    is_policy_known: bool,
}

impl<'a> Session<'a> {
    /// Registers over `connection` and holds the session until it ends.
    pub(super) async fn open(
        link: &'a mut Link,
        addr: SocketAddr,
        connection: &'a Connection,
        served: &'a mut bool,
    ) -> Result<(), SessionError> {
        let (send, receive) = connection
            .open_bi()
            .await
            .map_err(|source| SessionError::lost(addr, source))?;
        let mut sender = FrameSender::new(send);
        // All of them are dropped when the session ends: the reader and every pending answer.
        let mut jobs = JoinSet::new();
        let (read, mut inbox) = mpsc::channel(SESSION_INBOX_MAX);
        jobs.spawn(read_all(FrameReceiver::new(receive), read));
        jobs.spawn(requests::serve(
            Arc::clone(&link.context),
            connection.clone(),
        ));

        // The event precedes the server's first set in the node's loop.
        send_event(link, Event::SessionBegan).await?;
        let node = Box::new((*link.context.session.spec()).clone());
        let known = *link.context.session.standing.known().borrow();
        let register = FromAgent::Register {
            node,
            secret: link.context.session.node_secret,
            known,
        };
        sender.send(&register).await?;
        let (ttl, servers) = wait_for_registration(addr, &mut inbox).await?;
        link.servers.set_ttl(ttl);
        link.adopt_servers(servers).await;
        link.context.session.outbox.begin_session();
        link.context
            .session
            .standing
            .set_connection(Some(connection.clone()));
        let session = Session {
            link,
            addr,
            connection,
            sender,
            heartbeats: Heartbeats::new(ttl),
            sequence: 0,
            served,
            is_policy_known: false,
        };
        session.hold(inbox, ttl).await
    }

    async fn hold(
        mut self,
        mut inbox: mpsc::Receiver<ReceiveResult>,
        ttl: Duration,
    ) -> Result<(), SessionError> {
        let context = Arc::clone(&self.link.context);
        let mut spec = context.session.spec.clone();
        let mut known = context.session.standing.known();
        known.mark_unchanged();
        let mut heartbeat = tokio::time::interval(ttl / 3);
        heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let repeat = tokio::time::sleep(REPORT_REPEAT_DELAY);
        tokio::pin!(repeat);
        let mut repeated = false;
        self.report().await?;
        loop {
            let silent = self.heartbeats.deadline();
            tokio::select! {
                message = inbox.recv() => self.handle(message).await?,
                _ = heartbeat.tick() => {
                    let number = self.heartbeats.next(Instant::now());
                    self.sender.send(&FromAgent::Heartbeat { number }).await?;
                }
                () = until(silent) => return Err(SessionError::Leaderless {
                    addr: self.addr,
                    waited: self.heartbeats.silence_max,
                }),
                () = context.session.outbox.due(REPORT_DELAY) => self.report().await?,
                () = context.session.outbox.collected_due() => self.report_collection().await?,
                () = &mut repeat, if !repeated => {
                    repeated = true;
                    context.session.outbox.repeat_doubtful();
                    self.report().await?;
                }
                changed = spec.changed() => {
                    if changed.is_err() {
                        return Ok(());
                    }
                    let node = (**spec.borrow_and_update()).clone();
                    let known = *known.borrow();
                    self.register_again(node, known).await?;
                }
                Ok(()) = known.changed() => {
                    // The agent lacks an allocation that the server assumes it has.
                    let index = *known.borrow_and_update();
                    if index == LogIndex(0) {
                        send_event(self.link, Event::SessionBegan).await?;
                        let node = (*context.session.spec()).clone();
                        self.register_again(node, LogIndex(0)).await?;
                    }
                }
                reason = self.connection.closed() => {
                    return Err(SessionError::lost(self.addr, reason));
                }
            }
        }
    }

    async fn register_again(
        &mut self,
        node: NodeSpec,
        known: LogIndex,
    ) -> Result<(), SessionError> {
        let node = Box::new(node);
        let register = FromAgent::Register {
            node,
            secret: self.link.context.session.node_secret,
            known,
        };
        self.sender.send(&register).await?;
        Ok(())
    }

    /// Sends pending reports.
    async fn report(&mut self) -> Result<(), SessionError> {
        loop {
            let sequence = self.sequence + 1;
            let reports = self.link.context.session.outbox.batch(sequence);
            if reports.is_empty() {
                return Ok(());
            }
            self.sequence = sequence;
            self.sender
                .send(&FromAgent::Report { sequence, reports })
                .await?;
        }
    }

    /// Reports a finished collection of allocations, if one is pending.
    async fn report_collection(&mut self) -> Result<(), SessionError> {
        let sequence = self.sequence + 1;
        if let Some(report) = self.link.context.session.outbox.collected(sequence) {
            self.sequence = sequence;
            let report = Box::new(report);
            self.sender
                .send(&FromAgent::Collected { sequence, report })
                .await?;
        }
        Ok(())
    }

    async fn handle(&mut self, received: Option<ReceiveResult>) -> Result<(), SessionError> {
        match message(received)? {
            // The answer to a registration of a changed fingerprint.
            ToAgent::Registered { servers, .. } | ToAgent::Servers { servers } => {
                self.link.adopt_servers(servers).await;
                Ok(())
            }
            ToAgent::Apis { addrs } => {
                self.link.deny_apis(addrs, self.addr).await;
                Ok(())
            }
            ToAgent::HeartbeatAck { number, lease } => {
                self.link.servers.handle_served(&self.addr);
                *self.served = true;
                if let Some(sent) = self.heartbeats.answered(number) {
                    self.link.context.session.standing.grant(sent, lease);
                }
                Ok(())
            }
            ToAgent::Refused { reason } => Err(SessionError::Refused { reason }),
            ToAgent::TryElsewhere { reason, after } => Err(SessionError::SentAway {
                addr: self.addr,
                reason,
                after,
            }),
            ToAgent::ReportAck { sequence } => {
                self.link.context.session.outbox.ack(sequence);
                send_event(self.link, Event::ReportsCommitted).await
            }
            ToAgent::Desired {
                index,
                allocs,
                unchanged,
                gone,
                complete,
                remote,
            } => {
                self.handle_missing_policy(index).await;
                tracing::debug!(addr = %self.addr, ?index, allocs = allocs.len(), gone = gone.len(), complete, "desired allocations");
                let drivers = &self.link.context.tasks.nomad_drivers;
                let update = DesiredUpdate {
                    index,
                    allocs: drivers.rewritten(allocs),
                    unchanged,
                    gone,
                    complete,
                };
                send_event(self.link, Event::Desired { update, remote }).await
            }
            ToAgent::CollectGarbage => send_event(self.link, Event::CollectGarbage).await,
            ToAgent::ClusterPolicy { index, policy } => {
                self.is_policy_known = true;
                self.link.apply_cluster_policy(index, *policy).await;
                Ok(())
            }
        }
    }

    /// Handles a server that sends desired allocations and no cluster policy. If its index is higher than that of
    /// the agent's known policy, its state was restored from before that policy. The known policy is then replaced
    /// by an empty one.
    async fn handle_missing_policy(&mut self, index: LogIndex) {
        let known = self.link.context.network.rules.cluster_index();
        if !std::mem::replace(&mut self.is_policy_known, true)
            && known > LogIndex(0)
            && index > known
        {
            self.link
                .apply_cluster_policy(index, NetworkPolicy::default())
                .await;
        }
    }
}

/// Reads all frames in an asynchronous task of its own, because the read of a frame must not be interrupted.
async fn read_all(mut receiver: FrameReceiver, read: mpsc::Sender<ReceiveResult>) {
    loop {
        let received = receiver.recv::<ToAgent>().await;
        let last = !matches!(received, Ok(Some(_)));
        if read.send(received).await.is_err() || last {
            return;
        }
    }
}

/// Waits for the answer to the registration.
async fn wait_for_registration(
    addr: SocketAddr,
    inbox: &mut mpsc::Receiver<ReceiveResult>,
) -> Result<(Duration, Vec<SocketAddr>), SessionError> {
    let answer = tokio::time::timeout(SESSION_DEADLINE, inbox.recv())
        .await
        .map_err(|_elapsed| late(addr))?;
    match message(answer)? {
        ToAgent::Registered {
            cluster,
            heartbeat_ttl,
            servers,
        } => {
            tracing::info!(%addr, cluster, ?heartbeat_ttl, "the node is registered");
            Ok((heartbeat_ttl.max(Duration::from_millis(30)), servers))
        }
        ToAgent::Refused { reason } => Err(SessionError::Refused { reason }),
        ToAgent::TryElsewhere { reason, after } => Err(SessionError::SentAway {
            addr,
            reason,
            after,
        }),
        ToAgent::HeartbeatAck { .. }
        | ToAgent::ReportAck { .. }
        | ToAgent::Desired { .. }
        | ToAgent::Servers { .. }
        | ToAgent::ClusterPolicy { .. }
        | ToAgent::Apis { .. }
        | ToAgent::CollectGarbage => Err(SessionError::Refused {
            reason: "its first message was not an answer to the registration".to_owned(),
        }),
    }
}

fn message(received: Option<ReceiveResult>) -> Result<ToAgent, SessionError> {
    received
        .ok_or(SessionError::Ended)??
        .ok_or(SessionError::Ended)
}

async fn send_event(link: &Link, event: Event) -> Result<(), SessionError> {
    // The send fails only without the node's loop, when the agent is stopping.
    link.node
        .send(event)
        .await
        .map_err(|_closed| SessionError::Ended)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_covers_every_heartbeat_before_it() {
        let mut heartbeats = Heartbeats::new(Duration::from_secs(10));
        let start = Instant::now();
        for at in 0..3 {
            heartbeats.next(start + Duration::from_secs(at));
        }

        assert_eq!(heartbeats.answered(2), Some(start + Duration::from_secs(1)));
        assert_eq!(
            heartbeats.deadline(),
            Some(start + Duration::from_secs(2 + 5))
        );
        assert_eq!(heartbeats.answered(2), None);
    }

    /// The lease counts from a heartbeat's sending, so one that is answered twice extends nothing.
    #[test]
    fn silence_counts_from_the_first_unanswered_heartbeat() {
        let mut heartbeats = Heartbeats::new(Duration::from_secs(10));
        let start = Instant::now();
        assert_eq!(heartbeats.deadline(), None);
        for at in 0..100 {
            heartbeats.next(start + Duration::from_secs(at));
        }

        assert_eq!(heartbeats.deadline(), Some(start + Duration::from_secs(5)));
        assert_eq!(heartbeats.unanswered.len(), HEARTBEATS_MAX);
    }
}
