//! One session: register, then heartbeats and reports out, desired allocations in.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_link::frames::{FrameReceiver, FrameSender, RecvFrameError};
use muster_wire::rpc::{FromAgent, ToAgent};
use quinn::Connection;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{Link, SessionError, requests};
use crate::facilities::Facilities;
use crate::limits::{REPORT_DELAY, SESSION_DEADLINE, SESSION_INBOX_MAX};
use crate::node::Event;

type Received = Result<Option<ToAgent>, RecvFrameError>;

/// Runs a session over `connection` until it ends.
pub(super) async fn run(
    link: &Link,
    addr: SocketAddr,
    connection: &Connection,
    registered: &mut bool,
) -> Result<(), SessionError> {
    let lost = |source| SessionError::Lost { addr, source };
    let (send, receive) = connection.open_bi().await.map_err(lost)?;
    let mut sender = FrameSender::new(send);
    // Dropped, and with it the reader and every answer under way, when the session ends.
    let mut jobs = JoinSet::new();
    let (read, mut inbox) = mpsc::channel(SESSION_INBOX_MAX);
    jobs.spawn(read_all(FrameReceiver::new(receive), read));
    jobs.spawn(requests::serve(
        Arc::clone(&link.facilities),
        connection.clone(),
    ));

    let mut spec = link.facilities.spec.clone();
    let node = Box::new((**spec.borrow_and_update()).clone());
    sender.send(&FromAgent::Register { node }).await?;
    let ttl = welcome(addr, &mut inbox).await?;
    *registered = true;
    link.facilities.outbox.begin_session();
    tell(link, Event::SessionBegan).await?;

    let mut heartbeat = tokio::time::interval(ttl / 3);
    heartbeat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut sequence = 0;
    send_reports(&link.facilities, &mut sender, &mut sequence).await?;
    loop {
        tokio::select! {
            message = inbox.recv() => handle(link, addr, message).await?,
            _ = heartbeat.tick() => {
                tracing::trace!("heartbeat");
                sender.send(&FromAgent::Heartbeat).await?;
            }
            () = link.facilities.outbox.due(REPORT_DELAY) => {
                send_reports(&link.facilities, &mut sender, &mut sequence).await?;
            }
            changed = spec.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let node = Box::new((**spec.borrow_and_update()).clone());
                sender.send(&FromAgent::Register { node }).await?;
            }
            reason = connection.closed() => return Err(lost(reason)),
        }
    }
}

/// Reading a frame must not be interrupted, so it has a task of its own.
async fn read_all(mut receiver: FrameReceiver, read: mpsc::Sender<Received>) {
    loop {
        let message = receiver.recv().await;
        let last = !matches!(message, Ok(Some(_)));
        if read.send(message).await.is_err() || last {
            return;
        }
    }
}

/// Waits for the answer to the registration.
async fn welcome(
    addr: SocketAddr,
    inbox: &mut mpsc::Receiver<Received>,
) -> Result<Duration, SessionError> {
    let answer = tokio::time::timeout(SESSION_DEADLINE, inbox.recv())
        .await
        .map_err(|_elapsed| SessionError::Late { addr })?;
    match message(answer)? {
        ToAgent::Registered {
            cluster,
            heartbeat_ttl,
        } => {
            tracing::info!(%addr, cluster, ?heartbeat_ttl, "the node is registered");
            Ok(heartbeat_ttl.max(Duration::from_millis(30)))
        }
        ToAgent::Refused { reason } => Err(SessionError::Refused { reason }),
        ToAgent::HeartbeatAck
        | ToAgent::ReportAck { .. }
        | ToAgent::Desired { .. }
        | ToAgent::CollectGarbage => Err(SessionError::Refused {
            reason: "its first message was not an answer to the registration".to_owned(),
        }),
    }
}

fn message(received: Option<Received>) -> Result<ToAgent, SessionError> {
    received
        .ok_or(SessionError::Ended)??
        .ok_or(SessionError::Ended)
}

async fn handle(
    link: &Link,
    addr: SocketAddr,
    received: Option<Received>,
) -> Result<(), SessionError> {
    match message(received)? {
        // The answer to a registration of a changed fingerprint.
        ToAgent::Registered { .. } | ToAgent::HeartbeatAck => Ok(()),
        ToAgent::Refused { reason } => Err(SessionError::Refused { reason }),
        ToAgent::ReportAck { sequence } => {
            link.facilities.outbox.ack(sequence);
            tell(link, Event::Told).await
        }
        ToAgent::Desired {
            index,
            allocs,
            gone,
            complete,
        } => {
            tracing::debug!(%addr, ?index, allocs = allocs.len(), gone = gone.len(), complete, "desired allocations");
            tell(
                link,
                Event::Desired {
                    index,
                    allocs,
                    gone,
                    complete,
                },
            )
            .await
        }
        ToAgent::CollectGarbage => tell(link, Event::CollectGarbage).await,
    }
}

async fn tell(link: &Link, event: Event) -> Result<(), SessionError> {
    // Without the node's loop the agent is stopping.
    link.node
        .send(event)
        .await
        .map_err(|_closed| SessionError::Ended)
}

async fn send_reports(
    facilities: &Facilities,
    sender: &mut FrameSender,
    sequence: &mut u64,
) -> Result<(), SessionError> {
    loop {
        let reports = facilities.outbox.batch(*sequence + 1);
        if reports.is_empty() {
            return Ok(());
        }
        *sequence += 1;
        sender
            .send(&FromAgent::Report {
                sequence: *sequence,
                reports,
            })
            .await?;
    }
}
