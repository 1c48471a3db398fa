//! Simulated nodes: the part of an agent that the control plane sees.
//!
//! Each node has its own QUIC connection and session. It registers and sends a heartbeat every third of the time to
//! live. It reports each desired allocation as running, with the states and events of one task. One report message
//! has as many allocations as an agent gathers in its delay. An agent's local work is absent: its store, its cgroups,
//! and the storage of unacknowledged reports. The nodes share sockets, because the machine cannot have thousands of
//! addresses.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use muster_domain::alloc::{
    AllocReport, ClientStatus, DesiredAlloc, DesiredStatus, TaskEvent, TaskEventKind, TaskPhase,
    TaskState,
};
use muster_domain::id::{LogIndex, Timestamp};
use muster_domain::node::{NodeSecret, NodeSpec};
use muster_domain::one_off::WorkEnd;
use muster_domain::saturating;
use muster_link::endpoint;
use muster_link::frames::{FrameReceiver, FrameSender};
use muster_link::tls::{DEFAULT_CLUSTER, Identity, Role};
use muster_wire::limits::REPORT_BATCH_MAX;
use muster_wire::rpc::{ALPN_AGENT, FromAgent, ToAgent};
use tokio::sync::{Notify, Semaphore};

use crate::subject::node_spec::node_of_nine_sizes;

/// Sockets that the nodes share.
const SOCKETS: u32 = 8;
/// Nodes that connect at the same time: fewer than a server admits.
const JOINS_MAX: usize = 48;
/// The time for which an agent gathers reports before it sends them.
const REPORT_DELAY: Duration = Duration::from_millis(200);
/// Pause after a failed session.
const PAUSE: Duration = Duration::from_millis(500);
/// The niceness of the nodes' process. A higher value would make sessions time out on a busy machine.
const NICENESS: i32 = 3;

/// Runs the nodes. The arguments are the directory of certificates, the address of the server, and the number of
/// nodes.
pub(in crate::subject) fn child(args: &[OsString]) -> anyhow::Result<()> {
    let word = |at: usize| args.get(at).and_then(|arg| arg.to_str());
    let (Some(tls), Some(server), Some(count)) = (word(0), word(1), word(2)) else {
        bail!("the nodes need certificates, a server and their number");
    };
    rustix::process::nice(NICENESS)?;
    let server: SocketAddr = server.parse()?;
    let count: u32 = count.parse()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let identity = Identity::load(Path::new(tls), Role::Agent)?;
        let sockets = (0..SOCKETS)
            .map(|_| endpoint::client(&identity, ALPN_AGENT))
            .collect::<Result<Vec<_>, _>>()?;
        let joining = Arc::new(Semaphore::new(JOINS_MAX));
        for number in 0..count {
            let socket = sockets[(number % SOCKETS) as usize].clone();
            tokio::spawn(keep_session_open(
                socket,
                server,
                node_of_nine_sizes(number),
                Arc::clone(&joining),
            ));
        }
        // The process runs until it is killed.
        std::future::pending().await
    })
}

/// Keeps a session open, and prints the error when a session fails.
async fn keep_session_open(
    socket: quinn::Endpoint,
    server: SocketAddr,
    node: NodeSpec,
    joining: Arc<Semaphore>,
) {
    loop {
        let error = session(&socket, server, &node, &joining).await.err();
        if let Some(error) = error {
            // A server that shuts down closes all sessions. Standard error may be closed by then.
            let text = format!("place: node {}: {error:#}\n", node.name);
            drop(std::io::Write::write_all(
                &mut std::io::stderr(),
                text.as_bytes(),
            ));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn session(
    socket: &quinn::Endpoint,
    server: SocketAddr,
    node: &NodeSpec,
    joining: &Semaphore,
) -> anyhow::Result<()> {
    let place = joining.acquire().await?;
    let connection = socket
        .connect(server, &Role::Server.dns_name(DEFAULT_CLUSTER))?
        .await
        .context("connect")?;
    let (send, receive) = connection.open_bi().await?;
    let (mut sender, mut receiver) = (FrameSender::new(send), FrameReceiver::new(receive));
    let register = FromAgent::Register {
        node: Box::new(node.clone()),
        known: LogIndex(0),
        secret: NodeSecret::default(),
    };
    sender.send(&register).await?;
    let ttl = match receiver.recv::<ToAgent>().await? {
        Some(ToAgent::Registered { heartbeat_ttl, .. }) => heartbeat_ttl,
        other => bail!("the registration was answered with {other:?}"),
    };
    drop(place);
    let pending = Arc::new(PendingReports::default());
    tokio::select! {
        ended = read(receiver, &pending) => ended,
        ended = write(sender, &pending, ttl / 3) => ended,
    }
}

/// Reports that wait to be sent.
#[derive(Default)]
struct PendingReports {
    reports: Mutex<Vec<AllocReport>>,
    added: Notify,
}

impl PendingReports {
    fn put(&self, reports: impl Iterator<Item = AllocReport>) {
        let mut all = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(reports);
        drop(all);
        self.added.notify_one();
    }
}

/// Receives the desired state of the node and runs it at once. One-off tasks end soon.
async fn read(mut receiver: FrameReceiver, pending: &Arc<PendingReports>) -> anyhow::Result<()> {
    while let Some(message) = receiver.recv::<ToAgent>().await? {
        match message {
            ToAgent::Desired { allocs, .. } => {
                let starting = allocs.iter().filter(|alloc| {
                    alloc.desired == DesiredStatus::Run
                        && alloc.client_status == ClientStatus::Pending
                });
                let starting: Vec<&DesiredAlloc> = starting.collect();
                pending.put(starting.iter().map(|alloc| running(alloc)));
                let ending = starting.iter().filter(|alloc| alloc.job.spec.is_one_off());
                let ending: Vec<AllocReport> = ending.map(|alloc| completed(alloc)).collect();
                if !ending.is_empty() {
                    let pending = Arc::clone(pending);
                    tokio::spawn(async move {
                        tokio::time::sleep(REPORT_DELAY).await;
                        pending.put(ending.into_iter());
                    });
                }
            }
            ToAgent::Refused { reason } | ToAgent::TryElsewhere { reason, .. } => bail!(reason),
            ToAgent::Registered { .. }
            | ToAgent::ClusterPolicy { .. }
            | ToAgent::Apis { .. }
            | ToAgent::HeartbeatAck { .. }
            | ToAgent::ReportAck { .. }
            | ToAgent::CollectGarbage
            | ToAgent::Servers { .. } => {}
        }
    }
    bail!("the server has ended the session")
}

/// Sends heartbeats and reports.
async fn write(
    mut sender: FrameSender,
    pending: &PendingReports,
    every: Duration,
) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(every);
    let (mut number, mut sequence) = (0, 0);
    // The delay is not restarted by a heartbeat in between, because the notification that woke it would be lost.
    let mut due = Box::pin(wait_for_report_delay(pending));
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                number += 1;
                sender.send(&FromAgent::Heartbeat { number }).await?;
            }
            () = &mut due => {
                due.set(wait_for_report_delay(pending));
                let reports = std::mem::take(
                    &mut *pending.reports.lock().unwrap_or_else(PoisonError::into_inner),
                );
                for batch in reports.chunks(REPORT_BATCH_MAX) {
                    sequence += 1;
                    let reports = batch.to_vec();
                    sender.send(&FromAgent::Report { sequence, reports }).await?;
                }
            }
        }
    }
}

/// Resolves when reports have been pending for the gathering delay.
async fn wait_for_report_delay(pending: &PendingReports) {
    pending.added.notified().await;
    tokio::time::sleep(REPORT_DELAY).await;
}

/// Returns the report of an agent about an allocation that it has started.
fn running(alloc: &DesiredAlloc) -> AllocReport {
    let now = now();
    let name = alloc.group().map_or("main", |group| &group.tasks[0].name);
    let mut task = TaskState::pending(name);
    task.phase = TaskPhase::Running;
    task.started_at = Some(now);
    for (kind, message) in [
        (TaskEventKind::Received, "the agent has the task"),
        (
            TaskEventKind::Setup,
            "cgroup, FIFOs and directories are being made",
        ),
        (TaskEventKind::Started, "the process runs"),
    ] {
        task.push(TaskEvent {
            at: now,
            kind,
            message: message.to_owned(),
        });
    }
    AllocReport {
        alloc_id: alloc.alloc_id,
        client_status: ClientStatus::Running,
        client_description: "tasks are running".to_owned(),
        task_states: vec![task],
        healthy: None,
        end: None,
        remote: Vec::new(),
    }
}

/// Returns the report of an agent about a one-off task that has completed.
fn completed(alloc: &DesiredAlloc) -> AllocReport {
    let running = running(alloc);
    let now = now();
    let mut task_states = running.task_states;
    for task in &mut task_states {
        task.phase = TaskPhase::Dead;
        task.finished_at = Some(now);
    }
    AllocReport {
        client_status: ClientStatus::Complete,
        client_description: "all tasks have ended".to_owned(),
        task_states,
        end: Some(Box::new(WorkEnd {
            at: now,
            ..WorkEnd::default()
        })),
        ..running
    }
}

fn now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Timestamp(since.map_or(0, saturating::nanos))
}
