//! Simulated nodes: all of an agent that the control plane sees.
//!
//! Each has a QUIC connection and a session of its own. It registers, sends a heartbeat every third of the time to
//! live, and says of each allocation that it is to run that it runs, with the states and events of one task, as
//! many at once as an agent gathers in its delay. What an agent does for itself (its store, its cgroups, keeping
//! what is not acknowledged) is not there. The nodes share sockets, as thousands of addresses are not to be had.

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
/// Nodes that connect at once: below what a server admits.
const JOINING: usize = 48;
/// How long an agent gathers news before it reports them.
const REPORT_DELAY: Duration = Duration::from_millis(200);
/// Pause after a session that failed.
const PAUSE: Duration = Duration::from_millis(500);
/// How much the nodes yield to everything else. Not more: beside busy neighbours their sessions would time out.
const NICENESS: i32 = 3;

/// Be the nodes: the certificates' directory, the server's address, how many.
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
        let joining = Arc::new(Semaphore::new(JOINING));
        for number in 0..count {
            let socket = sockets[(number % SOCKETS) as usize].clone();
            tokio::spawn(stay(
                socket,
                server,
                node_of_nine_sizes(number),
                Arc::clone(&joining),
            ));
        }
        // Until this process is killed.
        std::future::pending().await
    })
}

/// Keeps a session, and says why when it cannot.
async fn stay(
    socket: quinn::Endpoint,
    server: SocketAddr,
    node: NodeSpec,
    joining: Arc<Semaphore>,
) {
    loop {
        let error = session(&socket, server, &node, &joining).await.err();
        if let Some(error) = error {
            // A server that goes down closes all of them: nobody is left to tell.
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
    let news = Arc::new(PendingReports::default());
    tokio::select! {
        ended = read(receiver, &news) => ended,
        ended = write(sender, &news, ttl / 3) => ended,
    }
}

/// Reports that wait to be sent.
#[derive(Default)]
struct PendingReports {
    reports: Mutex<Vec<AllocReport>>,
    there: Notify,
}

impl PendingReports {
    fn put(&self, reports: impl Iterator<Item = AllocReport>) {
        let mut all = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(reports);
        drop(all);
        self.there.notify_one();
    }
}

/// Takes in what the node is to run, and runs it at once. One-off tasks end soon.
async fn read(mut receiver: FrameReceiver, news: &Arc<PendingReports>) -> anyhow::Result<()> {
    while let Some(message) = receiver.recv::<ToAgent>().await? {
        match message {
            ToAgent::Desired { allocs, .. } => {
                let starting = allocs.iter().filter(|alloc| {
                    alloc.desired == DesiredStatus::Run
                        && alloc.client_status == ClientStatus::Pending
                });
                let starting: Vec<&DesiredAlloc> = starting.collect();
                news.put(starting.iter().map(|alloc| running(alloc)));
                let ending = starting.iter().filter(|alloc| alloc.job.spec.is_one_off());
                let ending: Vec<AllocReport> = ending.map(|alloc| completed(alloc)).collect();
                if !ending.is_empty() {
                    let news = Arc::clone(news);
                    tokio::spawn(async move {
                        tokio::time::sleep(REPORT_DELAY).await;
                        news.put(ending.into_iter());
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
    news: &PendingReports,
    every: Duration,
) -> anyhow::Result<()> {
    let mut ticks = tokio::time::interval(every);
    let (mut number, mut sequence) = (0, 0);
    // Not begun anew when a heartbeat comes between: what has woken it would be forgotten.
    let mut due = Box::pin(gathered(news));
    loop {
        tokio::select! {
            _ = ticks.tick() => {
                number += 1;
                sender.send(&FromAgent::Heartbeat { number }).await?;
            }
            () = &mut due => {
                due.set(gathered(news));
                let reports = std::mem::take(
                    &mut *news.reports.lock().unwrap_or_else(PoisonError::into_inner),
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

/// There is something to report, and has been for a while.
async fn gathered(news: &PendingReports) {
    news.there.notified().await;
    tokio::time::sleep(REPORT_DELAY).await;
}

/// The report of an agent about an allocation that it has started.
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

/// The report of an agent about a one-off task that has ended well.
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
